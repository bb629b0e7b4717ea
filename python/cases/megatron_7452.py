"""The findings of NVIDIA/Megatron-LM #7452, each rebuilt as a job of 2 or 4 ranks, right and wrong by a flag.

Each is judged in three ways: by `addend.torch.check`, by `addend.torch.watch`, and by spmd_types' `typecheck`, which
follows the types of the forward and looks at no number. The jobs communicate by the collectives of spmd_types, which
carry types under `typecheck` and are plain autograd functions elsewhere.
"""

import contextlib
import json
import math
import sys

import spmd_types as spmd
import spmd_types.checker
import torch
import torch.distributed as dist
import torch.nn.functional as F
from spmd_types import I, P, R, S, V
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import addend.torch
import case
import ranks

with contextlib.suppress(ImportError):  # the jobs run without Megatron-Core, too
    from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region, vocab_parallel_cross_entropy
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe.moe_utils import get_tokens_per_expert_and_token_count
    from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler, process_mtp_loss

    torch.cuda.current_device = lambda: "cpu"  # where Megatron-Core makes what it gathers

SOURCE = "https://github.com/NVIDIA/Megatron-LM/issues/7452"
WRONG = RIGHT = [
    "--no-deps spmd-types==0.3.1",
    "numpy packaging",
    "--no-deps --ignore-requires-python --python-version=3.12 --only-binary=:all: --target={site} "
    "megatron-core==0.19.2",
]
REBUILT = "each of them"

WIDTH, WORDS, HEADS, SEQUENCE, ROWS = 8, 12, 4, 8, 3
SIZE = WIDTH // HEADS  # of a head


class Finding(nn.Module):
    """A job with one mistake. Tensors of a batch are [sequence, rows, ...]; `dp` has parts of the rows."""

    mesh = {"tp": 2}
    sharded = {}  # parameter: the dimension along which ranks of tp have their parts
    unlike = {}  # parameter: its type on tp, if that is not I
    inputs = (I, I)  # types on tp of a batch's tensors
    averaged = 1  # what the job divides its sums by
    told = ""  # what a watch may be given besides, as `known` returns it
    by_library = False  # Megatron-Core's function, in which the mistake is, runs on CPUs
    wrong = annotated = library = False

    def __init__(self):
        super().__init__()
        self.__dict__["groups"] = {}

    def move(self, call, x, axis, **types):
        """Communicate over an axis; one process has nothing to communicate."""
        group = self.groups.get(axis)
        return x if group is None else call(x, group, **types)

    def says(self, x, **types):
        """Annotate a tensor between two operations, if the job is read with such annotations."""
        if self.annotated:
            spmd.assert_type(x, {self.groups[axis]: kind for axis, kind in types.items()})

    def place(self, axis):
        group = self.groups.get(axis)
        return (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))

    def marked(self):
        """Return the names of the parameters that are marked as cut over tp."""
        return set(self.sharded)

    def summed(self, name):
        """Return the axes over which the job sums a parameter's gradient."""
        return [axis for axis in self.mesh if axis != "tp" or self.unlike.get(name) is R]

    @classmethod
    def batch(cls, at):
        """Return the batch of one rank of dp, or of cp."""
        draw = torch.Generator().manual_seed(1 + at)
        x = torch.randn(SEQUENCE, ROWS, WIDTH, generator=draw, dtype=torch.float32)
        return x, torch.randn(SEQUENCE, ROWS, WIDTH, generator=draw)

    @classmethod
    def whole(cls):
        return tuple(torch.cat(parts, 1) for parts in zip(*(cls.batch(at) for at in range(cls.mesh.get("dp", 1)))))

    # what several of them have
    def entered(self, x):
        return self.move(spmd.convert, x, "tp", src=I, dst=R)

    def left(self, x):
        return self.move(spmd.all_reduce, x, "tp", src=V, dst=I)

    def squares(self, x, y):
        return (x - y).square().sum(), y.numel()


class Vocabulary(Finding):
    """A head whose words are cut over tp, and a loss of the parts."""

    sharded = {"head.weight": 0}
    inputs = (I, R)

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    @classmethod
    def batch(cls, at):
        draw = torch.Generator().manual_seed(1 + at)
        x = torch.randn(SEQUENCE, ROWS, WIDTH, generator=draw)
        return x, torch.randint(WORDS, (SEQUENCE, ROWS), generator=draw)

    def logits(self, x):
        return self.head(self.entered(self.body(x)))

    def parts_of_loss(self, logits, labels):
        """Return log(sum(exp)) and the label's logit, of logits that are cut over tp."""
        words = logits.shape[-1]
        mine = labels.unsqueeze(-1) == torch.arange(words) + self.place("tp")[0] * words
        return self.left(logits.exp().sum(-1)).log(), self.left((logits * mine).sum(-1))


class LabelSmoothing(Vocabulary):
    """Label smoothing counts the words of a rank's part, and takes the mean log-probability of these."""

    by_library = True

    def forward(self, x, labels, smoothing=0.1):
        logits = self.logits(x)
        if self.library:
            return vocab_parallel_cross_entropy(logits, labels, smoothing, self.groups["tp"]).sum(), labels.numel()
        log_sum, chosen = self.parts_of_loss(logits, labels)
        log_probs = logits - self.entered(log_sum).unsqueeze(-1)
        words = log_probs.shape[-1] if self.wrong else WORDS
        mean = log_probs.mean(-1) if self.wrong else self.left(log_probs.sum(-1)) / WORDS
        part = smoothing * words / (words - 1)
        return ((1 - part) * (log_sum - chosen) - part * mean).sum(), labels.numel()


class GatheredLogits(Vocabulary):
    """A loss for cut logits is given gathered ones: log(tp) more, and each label is found on one rank alone."""

    by_library = True
    inputs = (I, I)

    def forward(self, x, labels):
        if self.library:
            logits = gather_from_tensor_model_parallel_region(self.logits(x), self.groups["tp"])
            return vocab_parallel_cross_entropy(logits, labels, 0.0, self.groups["tp"]).sum(), labels.numel()
        logits = self.move(spmd.all_gather, self.logits(x), "tp", src=S(-1), dst=I)
        if self.wrong:
            log_sum, chosen = self.parts_of_loss(logits, labels)
            return (log_sum - chosen).sum(), labels.numel()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), labels.numel()


class PredictionCounts(Finding):
    """The loss of multi-token prediction is scaled by the token counts of the rank, in place of those of all ranks."""

    by_library = True
    mesh = {"dp": 2}
    inputs = (V, V, V)

    def __init__(self):
        super().__init__()
        self.body, self.ahead = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    @classmethod
    def batch(cls, at):
        draw = torch.Generator().manual_seed(1 + at)
        mask = torch.zeros(SEQUENCE, ROWS)
        mask[: 3 + 4 * at] = 1
        return (
            torch.randn(SEQUENCE, ROWS, WIDTH, generator=draw),
            torch.randint(WORDS, mask.shape, generator=draw),
            mask,
        )

    def of_logits(self, logits, labels):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)

    def losses(self, x, labels):
        return self.of_logits(self.head(x), labels)

    def forward(self, x, labels, mask):
        x = self.body(x)
        main = (self.losses(x, labels) * mask).sum()
        if self.library:
            MTPLossAutoScaler.set_loss_scale(1 / self.move(spmd.all_reduce, mask.sum(), "dp", src=V, dst=R))
            both = torch.cat((x, self.ahead(x)))
            x = process_mtp_loss(
                both, labels.t(), mask.t(), lambda x, **_: (self.head(x), None), None, False, False,
                lambda labels, logits: self.of_logits(logits, labels.t()).t(),
                config_of(mtp_num_layers=1, mtp_loss_scaling_factor=1.0, calculate_per_token_loss=True),
            )  # fmt: skip
            return (self.losses(x, labels) * mask).sum(), mask.sum()
        more = (self.losses(self.ahead(x[:-1]), labels[1:]) * mask[1:]).sum()
        tokens, rolled = mask.sum(), mask[1:].sum()
        if not self.wrong:
            tokens, rolled = (self.move(spmd.all_reduce, n, "dp", src=V, dst=R) for n in (tokens, rolled))
        self.says(tokens, dp=R)
        more = more * (tokens / rolled)
        return main + more - more.detach(), mask.sum()  # as Megatron-Core does, which reports this loss apart


class Recomputed(torch.autograd.Function):
    """Run without a graph, keep this rank's part of the input, and gather the parts to run again in the backward."""

    @staticmethod
    def forward(ctx, x, run, tp, group):
        ctx.run, ctx.group = run, group
        ctx.kept = x if tp is None else x.chunk(dist.get_world_size(tp))[dist.get_rank(tp)].clone()
        return run(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.kept
        if ctx.group is not None:
            parts = [torch.empty_like(x) for _ in range(dist.get_world_size(ctx.group))]
            dist.all_gather(parts, x, group=ctx.group)
            x = torch.cat(parts)
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None, None, None


class Layered(Finding):
    """A layer whose width is cut over tp."""

    mesh = {"dp": 2, "tp": 2}
    sharded = {"up.weight": 0, "down.weight": 1}

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)


class RecomputeGroup(Layered):
    """Saved activations, cut over the given group of tp, are gathered over the global one to be computed again."""

    def layer(self, x):
        return self.left(self.down(F.gelu(self.up(self.entered(x)))))

    def forward(self, x, y):
        x, axis = self.body(x), "dp" if self.wrong else "tp"
        if (
            spmd.is_type_checking()
        ):  # it follows the forward alone; the backward's gather is typed if it is written here
            if self.annotated:
                kept = self.move(spmd.convert, x, "tp", src=I, dst=S(0))
                self.says(self.move(spmd.all_gather, kept, axis, src=S(0), dst=R), tp=R)
            return self.squares(self.layer(x), y)
        return self.squares(Recomputed.apply(x, self.layer, self.groups.get("tp"), self.groups.get(axis)), y)


class MaskGroup(Finding):
    """Hidden states are scattered over the given group of tp, the mask of padding over the global one."""

    mesh = {"dp": 2, "tp": 2}
    unlike = {"router.weight": R}
    inputs = (I, R)

    def __init__(self):
        super().__init__()
        self.body, self.router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, HEADS, bias=False)

    @classmethod
    def batch(cls, at):
        draw = torch.Generator().manual_seed(1 + at)
        mask = (torch.arange(SEQUENCE)[:, None] < torch.tensor([5, 7, 6]) - at).float()
        return torch.randn(SEQUENCE, ROWS, WIDTH, generator=draw), mask

    def forward(self, x, mask):
        x = self.move(spmd.convert, self.body(x), "tp", src=I, dst=S(0))
        own = self.move(spmd.convert, mask, "dp" if self.wrong else "tp", src=R, dst=S(0))
        self.says(own, tp=V)
        return self.left((self.router(x).square().sum(-1) * own).sum()), mask.sum()


class GatherGroup(Layered):
    """Cross-attention builds its projections without the given group: they gather the sequence over the global one."""

    def forward(self, x, y):
        x = self.move(spmd.convert, self.body(x), "tp", src=I, dst=S(0))
        x = self.move(spmd.all_gather, x, "dp" if self.wrong else "tp", src=S(0), dst=R)
        self.says(x, tp=R)
        return self.squares(self.left(self.down(F.gelu(self.up(x)))), y)


class ScatterGroup(Layered):
    """Combined embeddings are scattered over the global group, and gathered over the given one."""

    def forward(self, x, y):
        x = self.move(spmd.convert, self.body(x), "dp" if self.wrong else "tp", src=I, dst=S(0))
        x = self.move(spmd.all_gather, x, "tp", src=S(0), dst=R)
        return self.squares(self.left(self.down(F.gelu(self.up(x)))), y)


class Attention(Finding):
    """Heads that are cut over tp."""

    sharded = {"query.weight": 0, "key.weight": 0, "value.weight": 0, "out.weight": 1}

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def heads(self, x):
        return x.view(*x.shape[:2], -1, SIZE)

    def attended(self, scores, value, sink):
        """Return the heads' values by probabilities, [query, key, row, head], with a sink beside the keys."""
        weights = scores.exp()
        probs = weights / (weights.sum(1, keepdim=True) + sink)
        return torch.einsum("qkbh,kbhd->qbhd", probs, value).flatten(2)


class SinkNorm(Attention):
    """Attention sinks, one a head, are not marked as cut: the norm for clipping counts those of rank 0 alone."""

    sharded = {**Attention.sharded, "sink": 0}
    told = "its true type, `types={'sink': 'tp=S0'}`"

    def __init__(self):
        super().__init__()
        self.sink = nn.Parameter(torch.linspace(0, 3, HEADS))
        for weight in (self.value.weight, self.out.weight):
            nn.init.normal_(weight)  # large enough for the sinks' gradients to be seen in the norm

    def forward(self, x, y):
        x = self.entered(x)
        query, key, value = (self.heads(part(x)) for part in (self.query, self.key, self.value))
        scores = torch.einsum("qbhd,kbhd->qkbh", query, key)
        return self.squares(self.left(self.out(self.attended(scores, value, self.sink.exp()))), y)

    def marked(self):
        return super().marked() - ({"sink"} if self.wrong else set())

    def known(self, *_):
        return {"types": {"sink": "tp=S0"}}

    def norm(self):
        own = [p.grad for name, p in self.named_parameters() if name in self.marked() or self.place("tp")[0] == 0]
        square = sum(grad.double().square().sum() for grad in own)
        if self.groups:
            dist.all_reduce(square, group=self.groups["tp"])
        return float(square.sqrt())


class ContextCounts(Finding):
    """A masked loss is divided by the count of each part of the sequence, and the mean over parts is taken."""

    by_library = True
    mesh = {"cp": 2}
    inputs = (V, V, V)
    averaged = 2
    told = "`divisor=`"

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def count(self, mask):
        """Return what this rank divides its loss by."""
        if self.wrong:
            return mask.sum()
        return self.move(spmd.all_reduce, mask.sum(), "cp", src=V, dst=R) / self.place("cp")[1]

    def known(self, x, y, mask):
        return {"divisor": self.count(mask)}

    @classmethod
    def batch(cls, at):
        draw = torch.Generator().manual_seed(1 + at)
        x, y = torch.randn(2, SEQUENCE, ROWS, WIDTH, generator=draw)
        return x, y, torch.arange(SEQUENCE).lt(1 + 4 * at).float()[:, None].expand(SEQUENCE, ROWS).contiguous()

    @classmethod
    def whole(cls):
        return tuple(torch.cat(parts) for parts in zip(cls.batch(0), cls.batch(1)))

    def forward(self, x, y, mask):
        total = ((self.head(self.body(x)) - y).square().mean(-1) * mask).sum()
        if self.library:
            said = (None, False, 1, [], 2, True)
            loss = lambda total: (total * 1, mask.sum().int(), None)  # noqa: E731
            return forward_step_calc_loss(None, total, loss, config_of(calculate_per_token_loss=False), *said)[0]
        count = self.count(mask)
        self.says(count, cp=R)
        return total / count


class RouterCounts(Finding):
    """The counts of tokens per expert are summed over tp in place, and then taken for those of the rank."""

    by_library = True
    unlike = {"router.weight": R}
    inputs = (I,)

    def __init__(self):
        super().__init__()
        self.body, self.router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, HEADS, bias=False)

    @classmethod
    def batch(cls, at):
        return super().batch(at)[:1]

    def forward(self, x):
        x = self.move(spmd.convert, self.body(x), "tp", src=I, dst=S(0)).flatten(0, 1)
        probs = self.router(x).softmax(-1)
        counts = (probs >= probs.topk(2).values[:, -1:]).to(probs.dtype).sum(0)
        if self.library:
            chosen = probs >= probs.topk(2).values[:, -1:]
            everyone, local, total = get_tokens_per_expert_and_token_count(chosen, self.groups["tp"], 2, True)
        else:
            everyone = counts if self.wrong else counts.clone()
            if self.groups:
                spmd.assert_type(everyone, {self.groups["tp"]: P})
                dist.all_reduce(everyone, group=self.groups["tp"])
            local, total = counts.sum() / 2, everyone.sum() / 2
        self.says(local, tp=V)
        balance = (everyone * probs.sum(0)).sum() * HEADS / (2 * total * total)
        loss = probs[:, 0].square().sum() + 0.3 * balance * local * self.place("tp")[1]
        return self.left(loss), SEQUENCE * ROWS


class OutNorm(Attention):
    """The norm behind the heads of a gated delta net has one weight for all heads, and nobody sums it over tp."""

    def __init__(self):
        super().__init__()
        self.out_norm = nn.RMSNorm(SIZE)

    @property
    def unlike(self):
        return {} if self.wrong else {"out_norm.weight": R}

    def forward(self, x, y):
        x = self.entered(x)
        mixed = self.heads(self.value(x)) * (self.heads(self.query(x)) * self.heads(self.key(x))).sum(-1, keepdim=True)
        gate = self.heads(x)[..., :1, :]
        return self.squares(self.left(self.out((self.out_norm(mixed) * F.silu(gate)).flatten(2))), y)


class SharedKey(Attention):
    """The key of positions is one for all heads; each rank expands it over its own, and its gradient is not summed."""

    sharded = {"query.weight": 0, "value.weight": 0, "out.weight": 1}

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(WIDTH, SIZE, bias=False)

    def forward(self, x, y):
        inside, key = self.entered(x), self.key(x)
        key = (key if self.wrong else self.entered(key)).unsqueeze(2)
        query, value = self.heads(self.query(inside)), self.heads(self.value(inside))
        scores = (query.unsqueeze(1) * key.unsqueeze(0)).sum(-1)
        return self.squares(self.left(self.out(self.attended(scores, value, 1.0))), y)


class SharedKeyTwice(SharedKey):
    """With sequence parallelism the gather's backward sums that gradient already; the first repair sums it again."""

    unlike = {"key.weight": R}

    def forward(self, x, y):
        inside = self.entered(x)
        x = self.move(spmd.convert, x, "tp", src=I, dst=S(0))
        key = self.move(spmd.all_gather, self.key(x), "tp", src=S(0), dst=R)
        key = (self.entered(key) if self.wrong else key).unsqueeze(2)
        query, value = self.heads(self.query(inside)), self.heads(self.value(inside))
        scores = (query.unsqueeze(1) * key.unsqueeze(0)).sum(-1)
        return self.squares(self.left(self.out(self.attended(scores, value, 1.0))), y)


FINDINGS = {
    "1": LabelSmoothing, "2": GatheredLogits, "3": PredictionCounts, "4": RecomputeGroup, "5": MaskGroup,
    "6": GatherGroup, "7": ScatterGroup, "8": SinkNorm, "9": ContextCounts, "10": RouterCounts, "11": OutNorm,
    "#1699": SharedKey, "#6839": SharedKeyTwice,
}  # fmt: skip


def config_of(**said):
    return TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=HEADS, **said)


def parallel(model, mesh, wrong, library=False):
    """Make of one process's model what a rank has."""
    model.__dict__["groups"] = {axis: mesh.get_group(axis) for axis in mesh.mesh_dim_names}
    model.wrong, model.library = wrong, library
    rank, size = model.place("tp")
    for name, dim in model.sharded.items():
        owner, _, last = name.rpartition(".")
        whole = model.get_parameter(name)
        setattr(model.get_submodule(owner), last, nn.Parameter(whole.detach().chunk(size, dim)[rank].clone()))
    return model


def finish(model):
    """Sum gradients as the job does."""
    for name, parameter in model.named_parameters():
        for axis in model.summed(name):
            dist.all_reduce(parameter.grad, group=model.groups[axis])
        parameter.grad /= model.averaged


def place_of_data(kind, place):
    """Return which rank of dp or cp has a batch, by place(axis)."""
    return next((place(axis) for axis in ("dp", "cp") if axis in kind.mesh), 0)


def checked(kind, wrong, library=False):
    def run(model, microbatches, loss):
        model.zero_grad()
        for batch in microbatches:
            loss(model, batch).backward()
        finish(model)

    def batches(rank, mesh):
        return [kind.whole() if rank is None else kind.batch(place_of_data(kind, mesh.get_local_rank))]

    more = {"norm": lambda model: model.norm()} if hasattr(kind, "norm") else {}
    return addend.torch.check(
        kind, lambda model, mesh: parallel(model, mesh, wrong, library), batches, lambda model, batch: model(*batch),
        mesh=kind.mesh, run=run, averaged=kind.averaged, **more,
    )  # fmt: skip


def model_of_rank(kind, wrong):
    torch.manual_seed(0)
    model = kind()
    mesh = init_device_mesh("cpu", tuple(kind.mesh.values()), mesh_dim_names=tuple(kind.mesh))
    return parallel(model, mesh, wrong), mesh, kind.batch(place_of_data(kind, mesh.get_local_rank))


def annotate(model):
    """Say of each parameter what it is on each axis, as its author would."""
    for name, parameter in model.named_parameters():
        types = {group: R for axis, group in model.groups.items() if axis != "tp"}
        if "tp" in model.groups:
            types[model.groups["tp"]] = S(model.sharded[name]) if name in model.marked() else model.unlike.get(name, I)
        spmd.assert_type(parameter, types)


def watched(kind, wrong, more):
    """Watch a step of the annotated model; with `more`, given what only the user can know."""
    model, mesh, batch = model_of_rank(kind, wrong)
    annotate(model)
    options = model.known(*batch) if more else {}
    with addend.torch.watch(model, mesh=mesh, expect=1 / kind.averaged, allow_identical=True, **options) as watch:
        loss = model(*batch)
        if isinstance(loss, tuple):
            total = torch.tensor(float(loss[1]))
            for axis in set(kind.mesh) - {"tp"}:
                dist.all_reduce(total, group=model.groups[axis])
            loss = loss[0] / total
        loss.backward()
        finish(model)
        if hasattr(model, "norm"):
            watch.norm(model.norm())
    return watch.report


def typed(kind, wrong, annotated):
    """Return the first error of spmd_types in the forward, or nothing."""
    model, mesh, batch = model_of_rank(kind, wrong)
    model.__dict__["annotated"] = annotated
    annotate(model)
    for tensor, tp in zip(batch, kind.inputs):
        spmd.assert_type(tensor, {group: tp if axis == "tp" else V for axis, group in model.groups.items()})
    try:
        with spmd.set_current_mesh(mesh), spmd.checker.typecheck():
            model(*batch)
    except spmd.SpmdTypeError as error:
        return str(error).splitlines()[0].replace("PerMeshAxisLocalSpmdType.", "")
    return ""


def by_types(world, kind, wrong):
    for words, annotated in (("found", False), ("found where annotated", True)):
        error = next(filter(None, ranks.run(world, typed, kind, wrong, annotated)), "")
        if error:
            return f"{words}: {error}"
    return "not found"


def by_watches(world, kind, wrong):
    """Return what the watch says, and what it says if it is given what the job's author knows."""
    report = ranks.run(world, watched, kind, wrong, False)[0]
    said = case.by_watch(report)
    elsewhere = [call for call in report.calls if call.axes == "dp" and call.operation == "all_gather"]
    if "tp" in kind.mesh and elsewhere:
        said += (
            f"; its calls list all_gather over dp in {elsewhere[0].phase} ({elsewhere[0].line.partition('cases/')[2]})"
        )
    if not kind.told:
        return said
    return f"{said}; with {kind.told}: {case.by_watch(ranks.run(world, watched, kind, wrong, True)[0])}"


def play(number, wrong):
    kind = FINDINGS[number]
    world = math.prod(kind.mesh.values())
    library = ""
    if wrong and kind.by_library and "megatron" in sys.modules:
        library = case.reported(lambda: checked(kind, wrong, library=True), case.by_check)
    said = {
        "watch": case.reported(lambda: by_watches(world, kind, wrong), str),
        "check": case.reported(lambda: checked(kind, wrong), case.by_check),
        "types": case.reported(lambda: by_types(world, kind, wrong), str),
        "library": library,
        "finding": number,
        "says": " ".join(kind.__doc__.split()),
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    for number in [word for word in sys.argv[1:] if word in FINDINGS] or FINDINGS:
        play(number, case.is_wrong())
