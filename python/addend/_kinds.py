"""Kinds of verdicts and causes that the watch and the check treat alike; `audit/say/causes.h` has all kinds."""

from __future__ import annotations

import ctypes

from addend._library import function

_is_counted = function("ad_kind_is_counted", ctypes.c_int, ctypes.c_char_p)


def uncounted(kind: str) -> bool:
    """Whether no counts of the addends that were seen give such a sum, so that a hook of the job may have made it."""
    return bool(_is_counted(kind.encode()) == 0)


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
