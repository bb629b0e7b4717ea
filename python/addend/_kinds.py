"""Kinds of verdicts and causes that the watch and the check treat alike; `audit/say/causes.h` has all kinds."""

UNCOUNTED = frozenset(
    ("unexplained", "not_fitted", "other_operation", "shifted", "other_parameters", "other_rows")
)  # no counts of the addends that were seen give the sum, which a hook of the job may have changed
FACTORS = frozenset(
    ("averaged", "doubled", "factor", "missing", "earlier_microbatches_divided")
)  # addends count with factors that a job may mean
UNSUMMED = frozenset(
    (
        "own_only",
        "partial",
        "replicas_differ",
        "unexplained",
        "not_judged",
        "not_observed",
        "not_distinguishable",
    )
)  # a sum over ranks may be missing
