"""Mistakes of random wrong jobs, and what a report may say of each without being wrong."""

import dataclasses
import random

import drawn_jobs
import ranks
from drawn_jobs import Spec

ANY = None


@dataclasses.dataclass
class Bug:
    wrappers: tuple  # (wrapper, mesh)... that may have it
    true: tuple  # (kind, axes)... of the causes that name it rightly; axes ANY: any axes
    least: int = 1  # least number of microbatches
    options: dict = dataclasses.field(default_factory=dict)
    equal: bool = False  # one process has the same gradients: the mistake is not in them
    unreported: bool = False  # the watch can only say that something is wrong
    noted: bool = False  # the job asks for it in its own hook: it is right, with a note that says so


DP = [("ddp", (2,)), ("ddp", (3,)), ("ddp", (4,))]
HAND = [("hand", (2,)), ("hand", (3,)), ("hand", (4,))]
FSDP = [("fsdp", (2,)), ("fsdp", (3,)), ("fsdp", (4,))]
HSDP = [("hsdp", (2, 2))]

BUGS = {
    "hook_sums": Bug(DP, (("doubled", "dp"),)),
    "hook_divides_twice": Bug(DP, (("averaged", "dp"),)),
    "divided_again": Bug(DP + FSDP + HSDP + HAND, (("averaged", "dp"), ("averaged", "dp_replicate,dp_shard"))),
    "summed_again": Bug(DP + HAND, (("doubled", "dp"),)),
    "not_divided": Bug(HAND, (("doubled", "dp"),), options={"divides": True}),
    "unscaled_twice": Bug(DP + FSDP + HAND, (("factor", ""),)),
    "clipped_early": Bug(DP + FSDP + HAND, (("factor", ""),)),
    "decayed": Bug(DP + FSDP + HAND, (("unexplained", ANY),)),
    "one_rank_scaled": Bug(FSDP, (("doubled", ""), ("doubled", "dp"), ("factor", ""))),
    "no_sync_left_on": Bug(DP, (("own_only", "dp"),)),
    "no_sync_off_by_one": Bug(DP, (("partial", "dp"), ("own_only", "dp")), least=2),
    "last_only": Bug(DP + FSDP + HAND, (("last_microbatch", ""),), least=2, options={"accumulate": "each"}),
    "mean_of_means": Bug(DP + FSDP + HSDP, (("divided_by_own_count", ""),), options={"counts": True}),
    "same_batch": Bug(DP + FSDP + HAND, (), unreported=True),
    "same_microbatch": Bug(DP + FSDP + HAND, (), least=2, unreported=True),
    "masked": Bug(DP + HAND, (("unexplained", ANY),), noted=True),
    "replicas_by_turns": Bug(HSDP, (("partial", "dp_replicate"),), least=2),
    "other_weights": Bug(DP, (("replicas_differ", "dp"),)),
    "half_world": Bug([("ddp", (4,))], (("partial", ANY), ("wrong_group", ANY))),
    "norm_counts_copies": Bug(DP + HSDP, (("doubled", ANY),), options={"norm": True}, equal=True),
    "sync_left_off": Bug(FSDP + HSDP, (("no_sum", ANY),), options={"accumulate": "each"}),
    "replicas_left_off": Bug(
        HSDP, (("no_sum", ANY), ("partial", "dp_replicate")), options={"accumulate": "no_all_reduce"}
    ),
    "one_axis_only": Bug([("hand", (2, 2))], (("partial", "inner"), ("wrong_group", "inner"))),
    "addend_lost": Bug(HAND, (("missing", ANY),)),
    "addend_doubled": Bug(HAND, (("doubled", ANY), ("factor", ANY))),
    "own_clip": Bug(HAND, (("factor", ANY),)),
    "forgotten": Bug(HAND, (("own_only", "dp"),), options={"main": False}),
    "absent_keep_none": Bug(HAND, (("replicas_differ", "dp"),), options={"spare": "some", "main": False}),
    "reduced_each_time": Bug(
        HAND,
        (("factor", ""), ("doubled", "dp")),
        least=2,
        options={"divides": False, "main": False},
    ),
    "wrong_group": Bug([("parts", (2, 2))], (("wrong_group", "tp"), ("wrong_group", "dp"))),
    "not_summed": Bug([("parts", (2, 2))], (("own_only", "dp"),)),
}


def draw_wrong(seed, k):
    """Draw mistakes in turns, so that each comes equally often."""
    draw = random.Random(f"{seed} wrong {k}")
    names = list(BUGS)
    random.Random(f"{seed} wrong").shuffle(names)
    names = [name for name in names if ranks.FSDP2 or _wrappers(name)]
    name = names[k % len(names)]
    bug = BUGS[name]
    wrapper, mesh = draw.choice(_wrappers(name))
    spec = Spec(wrapper, mesh, microbatches=draw.randint(bug.least, 3), bug=name)
    spec.seed = draw.randint(1, 1 << 20)
    drawn_jobs._options(draw, spec)
    _fit(spec, bug)
    return spec


def _wrappers(name):
    return [(w, m) for w, m in BUGS[name].wrappers if ranks.FSDP2 or w not in drawn_jobs.FSDP2_ONLY]


def _fit(spec, bug):
    """Draw a job that has the mistake, without options that raise their own questions."""
    o = spec.options
    spec.microbatches = max(spec.microbatches, bug.least)
    if spec.model in ("sparse", "convolved", "attention") or spec.wrapper == "parts":
        spec.model = "net" if spec.model != "attention" else "recurrent"
    if spec.dtype in ("bf16", "autocast", "mixed"):
        spec.dtype = "f32"
    o.update(counts=False, norm=False, hooks=None, comm=None, static=False, checkpoints=None, frozen=False, main=False)
    o["call"] = None if o.get("call") == "together" else o.get("call")
    if o.get("spare") and spec.model != "net":
        o["spare"] = None
    o.update(bug.options)
    if spec.bug == "absent_keep_none":
        spec.model, spec.microbatches = "net", 1
    elif spec.bug != "absent_keep_none" and o.get("spare") == "some":
        o["spare"] = "all"
    if spec.bug in ("last_only", "no_sync_off_by_one", "no_sync_left_on") and spec.wrapper == "ddp":
        o["accumulate"] = "each"
    if spec.bug == "same_microbatch" and o.get("call") == "together":
        o["call"] = None
    if spec.bug == "replicas_by_turns":
        o["accumulate"] = "each"
    if spec.bug == "mean_of_means":
        spec.seed = spec.seed // 9 * 9 + 1  # ranks' counts differ
