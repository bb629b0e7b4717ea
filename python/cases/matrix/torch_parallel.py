"""PyTorch's own ways to share a model, for `addend torch-matrix`: DTensor's plans, loss_parallel, fully_shard,
replicate, DistributedDataParallel and FullyShardedDataParallel.
"""

import contextlib

import small
import torch
import torch.nn.functional as F
from small import IGNORED, batches, loss, make_model, make_tied, token_loss  # noqa: F401 - functions of the matrix
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

models = {"decoder": make_model, "tied": make_tied, "frozen": small.make_frozen, "half frozen": small.make_half_frozen}
WHOLE, FROZEN, ALL = ["decoder"], ["frozen", "half frozen"], list(models)


# -- DTensor's plans


def block_plan(sequence, prepared):
    """The plan of a block. `prepared`: PrepareModuleInput gathers once for the three or two projections."""
    cut = Shard(1)
    plan = {}
    for name in ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"):
        plan[name] = ColwiseParallel(input_layouts=cut) if sequence and not prepared else ColwiseParallel()
    for name in ("attention.o", "mlp.down"):
        plan[name] = RowwiseParallel(output_layouts=cut) if sequence else RowwiseParallel()
    if sequence:
        plan.update(before=SequenceParallel(), after=SequenceParallel())
    if sequence and prepared:
        for name in "attention", "mlp":
            plan[name] = PrepareModuleInput(input_layouts=(cut,), desired_input_layouts=(Replicate(),))
    return plan


def cut_by_plan(sequence=False, prepared=False, vocabulary=True, loss_cut=False, wrap=None):
    """Tensor parallelism over tp; `wrap(model, mesh)` is what is done about the axis dp."""

    def parallelize(model, mesh):
        kept, is_tied = Shard(1) if sequence else Replicate(), model.head.weight is model.embed.weight
        for block in model.blocks.values():
            parallelize_module(block, mesh["tp"], block_plan(sequence, prepared))
        plan = {}
        if vocabulary:
            plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=kept)
            out = Shard(-1) if loss_cut else Replicate()
            plan["head"] = ColwiseParallel(input_layouts=kept, output_layouts=out, use_local_output=not loss_cut)
        elif sequence:
            plan["embed"] = PrepareModuleOutput(output_layouts=(Replicate(),), desired_output_layouts=(kept,))
            plan["head"] = PrepareModuleInput(
                input_layouts=(kept,), desired_input_layouts=(Replicate(),), use_local_output=True
            )
        if sequence:
            plan["norm"] = SequenceParallel()
        parallelize_module(model, mesh["tp"], plan)
        if is_tied:
            model.head.weight = model.embed.weight  # each of the two got its own parameter
        return wrap(model, mesh) if wrap else model

    return parallelize


def colwise_embedding(model, mesh):
    """The embedding is sharded along its width, and its output is gathered."""
    plan = {"embed": ColwiseParallel(output_layouts=Replicate()), "head": RowwiseParallel(input_layouts=Replicate())}
    for block in model.blocks.values():
        parallelize_module(block, mesh["tp"], block_plan(False, False))
    return parallelize_module(model, mesh["tp"], plan)


def in_loss_parallel(model, microbatches, loss_of):
    for batch in microbatches:
        with loss_parallel():
            loss_of(model, batch).backward()


def mean_loss(model, batch):
    """The mean, given back as a numerator."""
    tokens, labels, _ = batch
    count = int((labels != IGNORED).sum())
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten()) * count, count


def classes_loss(model, batch):
    """Classes have weights."""
    tokens, labels, _ = batch
    weights = torch.linspace(0.5, 1.5, small.VOCABULARY, dtype=torch.float64)
    kept = labels != IGNORED
    losses = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), weights, reduction="sum")
    return losses, int(kept.sum())


def kept_classes_loss(model, batch):
    """Classes have weights, and no label is ignored."""
    tokens, labels, weights = batch
    return classes_loss(model, (tokens, labels.clamp(0), weights))


def local_loss(model, batch):
    """As `small.loss`, of losses that are the same on all ranks."""
    tokens, labels, weights = batch
    weights = weights * (labels != IGNORED)
    losses = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="none")
    losses = losses.to_local() if isinstance(losses, DTensor) else losses
    return (losses * weights.flatten()).sum(), weights.sum()


def smoothed_loss(model, batch):
    """Labels are smoothed; they are a DTensor where the logits are one."""
    tokens, labels, _ = batch
    logits, count, labels = model(tokens).flatten(0, 1), int((labels != IGNORED).sum()), labels.flatten()
    if isinstance(logits, DTensor):
        labels = DTensor.from_local(labels, logits.device_mesh, [Replicate()])
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1), count


def regularized_loss(model, batch):
    """The cross entropy and a small square of the logarithm of the softmax' denominator."""
    tokens, labels, _ = batch
    logits, kept = model(tokens).flatten(0, 1), labels != IGNORED
    denominators = torch.logsumexp(logits, -1)
    return F.cross_entropy(logits, labels.flatten(), reduction="sum") + 0.1 * denominators.square().sum(), int(
        kept.sum()
    )


def probabilities_loss(model, batch):
    """A loss of the logarithms of all probabilities, as of the entropy of a policy."""
    tokens, labels, weights = batch
    logarithms = F.log_softmax(model(tokens), -1)
    return (logarithms.exp() * logarithms).sum(-1).sum(), weights.numel()


# -- fully_shard, replicate


def sharded(axes=("dp",), blocks=True, **arguments):
    def parallelize(model, mesh):
        own = mesh[axes] if len(axes) > 1 else mesh[axes[0]]
        for block in model.blocks.values() if blocks else ():
            fully_shard(block, mesh=own, **arguments)
        return fully_shard(model, mesh=own, **arguments)

    return parallelize


def replicated(model, mesh):
    for block in model.blocks.values():
        replicate(block, mesh=mesh["dp"])
    return replicate(model, mesh=mesh["dp"])


def placed(model, mesh):
    """Matrices are sharded along their second dimension."""
    count = mesh["dp"].size()

    def place(parameter):
        return Shard(1) if parameter.dim() == 2 and parameter.shape[1] % count == 0 else None

    return sharded(shard_placement_fn=place)(model, mesh)


def grouped(model, mesh):
    """Two blocks are one group, and the embedding and the head another."""
    blocks = list(model.blocks.values())
    fully_shard(blocks, mesh=mesh["dp"])
    fully_shard([model.embed, model.norm, model.head], mesh=mesh["dp"], reshard_after_forward=False)
    return fully_shard(model, mesh=mesh["dp"])


def summed(model, mesh):
    """Sums instead of means; what `check` multiplies by is then 1."""
    model = sharded()(model, mesh)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def no_gradient_sync(model, last):
    model.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def no_all_reduce(model, last):
    model.set_requires_all_reduce(last)
    return contextlib.nullcontext()


def kept_gathered(model, last):
    model.set_requires_gradient_sync(last)
    model.set_is_last_backward(last)
    model.set_reshard_after_backward(last)
    return contextlib.nullcontext()


def deferred(model, last):
    model.set_is_last_backward(last)
    return contextlib.nullcontext()


# -- DistributedDataParallel, FullyShardedDataParallel


def ddp(**arguments):
    def parallelize(model, mesh):
        return DistributedDataParallel(model, process_group=mesh.get_group("dp"), **arguments)

    return parallelize


def no_sync(model, last):
    return contextlib.nullcontext() if last else model.no_sync()


def flat(strategy, axes=("dp",), **arguments):
    def parallelize(model, mesh):
        arguments.update(
            sharding_strategy=ShardingStrategy[strategy],
            use_orig_params=True,
            device_id=torch.device("cpu"),
            device_mesh=mesh[axes] if len(axes) > 1 else mesh[axes[0]],
        )
        for name, block in model.blocks.items():
            model.blocks[name] = FullyShardedDataParallel(block, **arguments)
        return FullyShardedDataParallel(model, **arguments)

    return parallelize


def clipped(model):
    return total(nn.utils.clip_grad_norm_(model.parameters(), 1e9))


def clipped_once_more(model):
    return total(nn.utils.clip_grad_norm_(model.parameters(), 1e9, foreach=True))


def total(norm):
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


TP, DP, BOTH = {"tp": 2}, {"dp": 2}, {"dp": 2, "tp": 2}
HSDP = {"dp_replicate": 2, "dp_shard": 2}
CUT = {"run": in_loss_parallel, "loss": token_loss}
over = lambda model, mesh: sharded()(model, mesh)  # noqa: E731


def layout(mesh, parallelize, which=WHOLE, **more):
    return {"mesh": mesh, "parallelize": parallelize, "models": which, **more}


def in_steps(contexts):
    return {"run": small.accumulate(contexts)}


layouts = {
    "blocks": layout(TP, cut_by_plan(vocabulary=False)),
    "vocabulary": layout(TP, cut_by_plan()),
    "vocabulary, of three": layout({"tp": 3}, cut_by_plan()),
    "embedding's width": layout(TP, colwise_embedding),
    "sequence": layout(TP, cut_by_plan(True, vocabulary=False)),
    "sequence, vocabulary": layout(TP, cut_by_plan(True), norm=clipped),
    "sequence, prepared": layout({"tp": 3}, cut_by_plan(True, prepared=True)),
    "loss cut": layout(TP, cut_by_plan(loss_cut=True), **CUT),
    "loss cut, of three": layout({"tp": 3}, cut_by_plan(loss_cut=True), **CUT),
    "loss cut, sequence": layout(TP, cut_by_plan(True, True, loss_cut=True), **CUT),
    "loss cut, mean": layout(TP, cut_by_plan(loss_cut=True), run=in_loss_parallel, loss=mean_loss),
    "loss cut, each token": layout(TP, cut_by_plan(loss_cut=True), run=in_loss_parallel, loss=local_loss),
    "loss cut, classes": layout(TP, cut_by_plan(loss_cut=True), run=in_loss_parallel, loss=classes_loss),
    "loss cut, classes, none ignored": layout(
        TP, cut_by_plan(loss_cut=True), run=in_loss_parallel, loss=kept_classes_loss
    ),
    "loss cut, smoothed": layout(TP, cut_by_plan(loss_cut=True), run=in_loss_parallel, loss=smoothed_loss),
    "loss cut, regularized": layout(TP, cut_by_plan(loss_cut=True), run=in_loss_parallel, loss=regularized_loss),
    "loss cut, entropy": layout(TP, cut_by_plan(loss_cut=True), run=in_loss_parallel, loss=probabilities_loss),
    "fsdp over tp": layout(BOTH, cut_by_plan(wrap=over)),
    "fsdp over tp, sequence": layout(BOTH, cut_by_plan(True, wrap=over), norm=clipped),
    "fsdp over tp, loss cut": layout(BOTH, cut_by_plan(loss_cut=True, wrap=over), **CUT),
    "replicate over tp": layout(BOTH, cut_by_plan(wrap=replicated)),
    "ddp over tp": layout(BOTH, cut_by_plan(vocabulary=False, wrap=ddp())),
    "fsdp": layout(DP, sharded(), norm=clipped),
    "fsdp, of three": layout({"dp": 3}, sharded(), norm=clipped_once_more),
    "fsdp, of five": layout({"dp": 5}, sharded()),
    "fsdp, of one": layout({"dp": 1}, sharded()),
    "fsdp, whole": layout(DP, sharded(blocks=False)),
    "fsdp, kept": layout(DP, sharded(reshard_after_forward=False)),
    "fsdp, second dimension": layout({"dp": 3}, placed),
    "fsdp, groups": layout(DP, grouped),
    "fsdp, summed": layout(DP, summed),
    "fsdp, reduced in f32": layout(
        DP, sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    ),
    "fsdp, no_sync": layout(DP, sharded(), **in_steps(no_gradient_sync)),
    "fsdp, no_sync, kept": layout(DP, sharded(), **in_steps(kept_gathered)),
    "fsdp, deferred": layout(DP, sharded(), **in_steps(deferred)),
    "hsdp": layout(HSDP, sharded(tuple(HSDP)), norm=clipped),
    "hsdp, no_sync": layout(HSDP, sharded(tuple(HSDP)), **in_steps(no_gradient_sync)),
    "hsdp, no_all_reduce": layout(HSDP, sharded(tuple(HSDP)), **in_steps(no_all_reduce)),
    "replicate": layout(DP, replicated, norm=clipped),
    "replicate, no_sync": layout(DP, replicated, **in_steps(no_gradient_sync)),
    "ddp": layout(DP, ddp(), norm=clipped),
    "ddp, no_sync": layout(DP, ddp(), **in_steps(no_sync)),
    "ddp, static": layout(DP, ddp(static_graph=True), **in_steps(no_sync)),
    "ddp, views": layout({"dp": 3}, ddp(gradient_as_bucket_view=True, bucket_cap_mb=0.001), **in_steps(no_sync)),
    "ddp, unused": layout(DP, ddp(find_unused_parameters=True)),
    "flat": layout(DP, flat("FULL_SHARD")),
    "flat, grad": layout({"dp": 3}, flat("SHARD_GRAD_OP")),
    "flat, no_sync": layout(DP, flat("FULL_SHARD"), **in_steps(no_sync)),
    "flat, hybrid": layout(HSDP, flat("HYBRID_SHARD", tuple(HSDP))),
}

for name in ("fsdp", "fsdp, whole", "fsdp, no_sync", "hsdp", "replicate", "ddp", "flat"):
    layouts[name]["models"] = ALL
for name in (
    "vocabulary",
    "sequence, vocabulary",
    "loss cut",
    "fsdp over tp",
    "fsdp over tp, sequence",
    "hsdp, no_sync",
):
    layouts[name]["models"] = ALL
