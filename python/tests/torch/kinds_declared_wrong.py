"""Wrong jobs with one declaration, or one collective, that is false, and what a report must say of it: parameter, axis
and declaration.
"""

import copy

import kinds
import torch
import torch.distributed as dist
from kinds import Job, truth, watched
from kinds_declared import (
    SHARDED_BY_SPMD,
    SPMD,
    Cut,
    fused,
    mesh_for,
    planned,
    routed,
    twice_cut,
    wide_gradients,
    words_job,
)
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Partial, Replicate

import addend.torch

NOT_SUMMED_TP = truth("own_only:tp", "partial:tp", "other_batches:tp", "replicas_differ:tp")
TWO = {"dp": 2, "tp": 2}
HSDP = {"dp_replicate": 2, "dp_shard": 2, "tp": 2}
NARROW = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}


def affected(*names):
    return {"affected": set(names)}


# -- declared I, and its addends differ


@watched(4, truth=NOT_SUMMED_TP, needs=SHARDED_BY_SPMD, says=("contradicted 0.norm.weight tp=I",))
def declared_i_norm(draw):
    """Rows are cut, and fully_shard does not sum what is I."""
    return Cut(TWO, "wrapper", declared={"*.norm.weight": "I"}, fields=affected("0.norm.weight")).build(draw)


@watched(4, truth=NOT_SUMMED_TP, needs=SHARDED_BY_SPMD, says=("contradicted 0.out_norm.weight tp=I",))
def declared_i_norm_of_heads(draw):
    """A norm that each rank uses for its own heads."""
    return Cut(TWO, declared={"*.out_norm.weight": "I"}, fields=affected("0.out_norm.weight")).build(draw)


@watched(4, truth=NOT_SUMMED_TP, needs=SHARDED_BY_SPMD, says=("contradicted 0.pos.weight tp=I",))
def declared_i_shared_keys(draw):
    """A part of the keys that all heads have in common."""
    return Cut(TWO, declared={"*.pos.weight": "I"}, fields=affected("0.pos.weight")).build(draw)


@watched(4, truth=NOT_SUMMED_TP, needs=SHARDED_BY_SPMD, says=("contradicted 0.mlp_norm.bias tp=I",))
def declared_i_bias_of_a_norm(draw):
    return Cut(TWO, "wrapper", declared={"*.mlp_norm.bias": "I"}, fields=affected("0.mlp_norm.bias")).build(draw)


@watched(4, truth=truth("own_only:ep", "partial:ep", "other_batches:ep"), says=("contradicted gate.weight ep=I",))
def declared_i_router(draw):
    """to_local() without grad_placements."""
    return routed(draw, False, affected={"gate.weight"})


@watched(4, truth=NOT_SUMMED_TP, needs=SHARDED_BY_SPMD, says=("contradicted 0.v.weight tp=I",))
def declared_i_heads_in_common(draw):
    return Cut(TWO, declared={"*.v.weight": "I"}, fields=affected("0.v.weight")).build(draw)


@watched(8, truth=NOT_SUMMED_TP, needs=SHARDED_BY_SPMD, says=("contradicted 0.norm.bias tp=I",))
def declared_i_in_hsdp(draw):
    return Cut(HSDP, "wrapper", declared={"*.norm.bias": "I"}, fields=affected("0.norm.bias")).build(draw)


@watched(2, truth=NOT_SUMMED_TP, needs=("transformers",), says=("contradicted *.q_norm.weight tp=I",))
def declared_i_by_a_plan(draw):
    """A plan of Transformers' that leaves a norm of heads without its sum."""
    plan = {"model.layers.*.self_attn.q_norm": "replicate"}
    return planned(draw, "qwen3", plan, affected={f"model.layers.{i}.self_attn.q_norm.weight" for i in range(2)})


# -- declared R


@watched(4, truth=truth(equal=False), needs=SHARDED_BY_SPMD, says=("open 0.norm.weight tp=R",))
def declared_r_of_the_same_work(draw):
    """All ranks of tp do the same work, and fully_shard sums it."""
    return Cut(TWO, declared={"*.norm.weight": "R"}).build(draw)


@watched(4, truth=truth(equal=True), needs=SPMD, says=("contradicted 0.norm.weight tp=R",))
def declared_r_and_not_summed(draw):
    """The same, and nobody sums it: the gradient is right, and the annotation is not."""
    sums = lambda name, axis: axis == "dp" or ".v." in name or ".pos." in name or ".out_norm." in name  # noqa: E731
    return Cut(TWO, hold="hand", declared={"*.norm.weight": "R"}, sums=sums).build(draw)


@watched(4, truth=truth("own_only:cp", "partial:cp"), needs=SPMD, says=("holds *0.up.weight cp=R",))
def declared_r_of_an_axis_left_out(draw):
    """DDP has a process group that leaves the ranks of cp out."""
    return Cut({"dp": 2, "cp": 2}, hold="ddp", sums=lambda name, axis: False).build(draw)


@watched(4, truth=truth("own_only:tp", "partial:tp"), needs=SPMD, says=("holds 0.out_norm.weight tp=R",))
def declared_r_and_forgotten(draw):
    """One parameter is missing in the list of what is summed over tp."""
    sums = lambda name, axis: axis == "dp" or ".v." in name or ".pos." in name  # noqa: E731
    return Cut(TWO, hold="hand", sums=sums, fields=affected("0.out_norm.weight")).build(draw)


@watched(4, truth=truth("doubled:dp", "own_only:tp", "partial", "unexplained"), needs=SPMD,
         says=("holds 0.out_norm.weight tp=R", "call twice 0.out_norm.weight",))  # fmt: skip
def declared_r_over_another_axis(draw):
    """Summed over dp twice, and over tp never."""
    job = Cut(TWO, hold="hand", sums=lambda name, axis: axis == "dp" or ".v." in name or ".pos." in name,
              fields=affected("0.out_norm.weight")).build(draw)  # fmt: skip
    return afterwards(job, lambda: dist.all_reduce(named(job)["0.out_norm.weight"].grad, group=group_of("dp")))


def afterwards(job, function):
    step = job.step

    def longer(watch):
        step(watch)
        function()

    job.step = longer
    return job


def named(job):
    return dict(job.model.named_parameters())


def group_of(axis, axes=None):
    return mesh_for(**(axes or TWO)).get_group(axis)


# -- sharded, and it is not


@watched(4, truth=truth(equal=True), needs=SPMD, says=("contradicted 0.norm.weight tp=S0",))
def declared_s_of_copies(draw):
    """S(0), and every rank has the same rows."""
    return Cut(TWO, hold="hand", declared={"*.norm.weight": "S0"}).build(draw)


@watched(4, truth=truth("own_only:tp", "partial:tp"), needs=SPMD, says=("contradicted 0.v.weight tp=S0",))
def declared_s_of_heads_in_common(draw):
    """S(0), and each rank has a copy of one value head, which stays equal for a step of the optimizer's."""
    made = [0]  # steps

    def sums(name, axis):
        return axis == "dp" or ".pos." in name or ".out_norm." in name or (".v." in name and not made[0])

    job = Cut(TWO, hold="hand", declared={"*.v.weight": "S0"}, sums=sums, fields=affected("0.v.weight")).build(draw)
    optimizer = torch.optim.AdamW(job.model.parameters(), lr=1e-6)  # the reference keeps its weights

    def report():
        watch = addend.torch.watch(job.model, **job.watch)
        with watch:
            job.step(watch)
        optimizer.step()
        optimizer.zero_grad()
        made[0] += 1
        with watch:
            job.step(watch)
        return watch.report

    job.report = report
    return job


@watched(4, truth=truth("own_only:tp", "replicas_differ:tp", equal=True), needs=SHARDED_BY_SPMD,
         says=("contradicted 0.scale tp=I",))  # fmt: skip
def declared_i_of_own_heads(draw):
    """A number for each head, of which each rank has those of its own heads."""
    return Cut(TWO, declared={"*.scale": "I"}, fields=affected("0.scale")).build(draw)


@watched(2, truth=truth(equal=True), needs=SPMD, says=("refused weight S1",))
def declared_s_of_another_dimension(draw):
    """S(1), and rows are cut: 17 on one rank and 16 on the other."""
    return cut_rows(draw, "S1")


class Rows(nn.Module):
    """A product whose rows are cut unevenly."""

    def __init__(self):
        super().__init__()
        self.weight, self.tp = nn.Parameter(torch.randn(33, kinds.IN) / 5), None

    def forward(self, x):
        return torch.tanh(x @ self.weight.t())


def cut_rows(draw, declared):
    from kinds_declared import annotate

    mesh, model = mesh_for(tp=2), Rows()
    model.weight = nn.Parameter(model.weight.detach().chunk(2)[draw.rank].clone())
    annotate(model.weight, {"tp": mesh.get_group()}, {"tp": declared})
    step = lambda watch: model(draw.batch(0)[0]).square().mean().backward()  # noqa: E731
    return Job(model, step, dict, {"mesh": mesh})


@watched(4, truth=truth(silent="no number of a rank says where its shard lies (python/docs/torch.md)"), needs=SPMD)
def declared_in_another_order(draw):
    """A dimension over two axes, annotated in the other order."""
    return twice_cut(draw, ("dp", "tp"), ("tp", "dp"))


# -- sums that are left out


@watched(2, truth=truth("replicas_differ", equal=True), says=("open weight tp=R",))
def declared_partial_and_stepped(draw):
    """A gradient is a Partial DTensor, and the optimizer took each rank's part of it in the step before."""
    mesh = mesh_for(tp=2)
    model = nn.Linear(kinds.IN, kinds.OUT, bias=False)
    reference = copy.deepcopy(model)
    model.weight = nn.Parameter(DTensor.from_local(model.weight.detach(), mesh, [Replicate()], run_check=False))

    def share(weight, r):
        x, y = draw.batch(r)
        return (x @ weight.t() - y).square().mean() / 2

    def step(watch):
        share(model.weight.to_local(grad_placements=[Partial()]), draw.rank).backward()
        with torch.no_grad():
            model.weight.to_local().sub_(model.weight.grad.to_local(), alpha=0.1)

    whole = lambda: kinds.alone(reference, [lambda one, r=r: share(one.weight, r) for r in range(2)])  # noqa: E731
    return Job(model, step, whole, warm=1)


@watched(4, truth=truth("partial", "own_only:tp", "missing", "unexplained"), needs=SPMD,
         says=("holds 0.v.weight tp=R",))  # fmt: skip
def declared_r_in_one_microbatch(draw):
    """One parameter is summed over tp after each of two microbatches, in a hook, but not after the last."""
    sums = lambda name, axis: axis == "dp" or ".pos." in name or ".out_norm." in name  # noqa: E731
    job = Cut(TWO, hold="hand", count=2, sums=sums, fields=affected("0.v.weight")).build(draw)
    seen = []

    def sum_it(gradient):
        seen.append(1)
        if len(seen) % 2:
            gradient = gradient.clone()
            dist.all_reduce(gradient, group=group_of("tp"))
        return gradient

    named(job)["0.v.weight"].register_hook(sum_it)
    return job


# -- dtypes


class Narrow:
    """A reduce-scatter of fully_shard's that sends in another dtype than it is told."""

    def __init__(self, dtype):
        self.dtype = dtype

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        sent = input_tensor.to(self.dtype)
        own = torch.empty_like(output_tensor, dtype=self.dtype)
        dist.reduce_scatter_tensor(own, sent, op, group=group)
        output_tensor.copy_(own)


ROUNDED = truth("rounding", equal=True)


@watched(
    4, truth=ROUNDED, needs=SHARDED_BY_SPMD,
    says=tuple(f"contradicted 0.{name} f32" for name in ("*norm.*", "pos.weight", "v.weight", "o.bias", "down.bias")),
)  # fmt: skip
def declared_f32_summed_over_tp_in_bf16(draw):
    """As fully_shard did before PyTorch 2.15: a norm's gradient is summed over tp in bf16, whatever reduce_dtype is."""
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    own = FSDPParam._get_grad_inner_tensor

    def narrow(param, grad):
        return own(param, grad.to(torch.bfloat16)).float()

    job = Cut(TWO, "wrapper", policy=MixedPrecisionPolicy(**NARROW), fields={"bound": 0.3}).build(draw)
    return with_patch(job, FSDPParam, "_get_grad_inner_tensor", narrow)


def with_patch(job, owner, name, function):
    from unittest import mock

    step = job.step

    def patched(watch):
        with mock.patch.object(owner, name, function):
            step(watch)

    job.step = patched
    return job


@watched(4, truth=ROUNDED, says=("contradicted * f32",))
def declared_f32_sent_in_bf16(draw):
    """fully_shard's collective is the job's own, and casts; gradients are stored in bf16."""
    return sent_in_bf16(draw, 4, torch.bfloat16)


@watched(2, truth=ROUNDED, says=("contradicted * f32",))
def declared_f32_sent_in_bf16_stored_in_f32(draw):
    return sent_in_bf16(draw, 2, torch.float32)


def sent_in_bf16(draw, world, stored):
    job = words_job(draw, mesh_for(dp=world), dtype=stored, mp_policy=MixedPrecisionPolicy(**NARROW))
    return with_collective(job, torch.bfloat16)


def with_collective(job, dtype):
    for module in job.model.modules():
        if hasattr(module, "set_custom_reduce_scatter"):
            module.set_custom_reduce_scatter(Narrow(dtype))
    return job


@watched(2, 3, 4, truth=ROUNDED, needs=("torch>=2.15",), says=("contradicted * f32",))
def declared_f32_gradients_summed_in_bf16(draw):
    """Tensor.grad_dtype says f32, and a sum by hand rounds."""

    def rounded(parameters):
        for p in parameters:
            narrow = p.grad.bfloat16()
            dist.all_reduce(narrow)
            p.grad.copy_(narrow)

    return wide_gradients(draw, "hand", rounded)


@watched(2, 3, truth=truth(equal=True), needs=("torch>=2.15",), says=("call wider *", "contradicted * bf16"))
def declared_bf16_and_a_wide_bucket(draw):
    """Gradients are to be bf16, and hooks sum them in f32 (deepspeedai/DeepSpeed#8038)."""
    model = kinds.Net().bfloat16()
    for p in model.parameters():
        p.grad_dtype = torch.bfloat16
    reference = copy.deepcopy(model)

    def reduce(p):
        wide = p.grad.float()
        dist.all_reduce(wide)
        p.grad.copy_(wide)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(reduce)
    share = lambda one, r: (one(draw.batch(r)[0].bfloat16()).float() - draw.batch(r)[1]).square().mean()  # noqa: E731
    shares = [lambda one, r=r: share(one, r) for r in range(draw.world)]
    step = lambda watch: share(model, draw.rank).backward()  # noqa: E731
    return Job(model, step, lambda: kinds.alone(reference, shares), bound=0.3)


# -- collectives


@watched(
    4, truth=truth("doubled:tp"), needs=SHARDED_BY_SPMD, says=("call twice 0.norm.weight", "holds 0.norm.weight tp=R")
)
def declared_r_summed_twice(draw):
    """A hook sums over tp what fully_shard sums as well."""
    job = Cut(TWO, "wrapper", fields=affected("0.norm.weight")).build(draw)
    model, hooked = job.model, []

    def hook(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=group_of("tp"))
        return gradient

    def attach(*_):
        weight = model.get_submodule("0.norm").weight
        if not hooked or hooked[0] is not weight:
            hooked[:] = [weight]
            weight.register_hook(hook)

    model.get_submodule("0").register_forward_pre_hook(attach)
    return job


@watched(2, 4, truth=truth(equal=True), needs=SPMD, says=("call for_nothing 0.norm.weight", "holds 0.norm.weight tp=I"))
def declared_i_averaged(draw):
    """A hook averages over tp what is the same there."""
    axes = TWO if draw.world == 4 else {"tp": 2}
    job = Cut(axes, hold="hand").build(draw)

    def average(p):
        dist.all_reduce(p.grad, group=group_of("tp", axes))
        p.grad /= 2

    named(job)["0.norm.weight"].register_post_accumulate_grad_hook(average)
    return job


@watched(2, 3, truth=truth(equal=True), says=("call wider *", "contradicted * bf16"))
def declared_bf16_sent_in_f32(draw):
    """reduce_dtype is bf16, and the job's own collective sends f32."""
    job = words_job(draw, mesh_for(dp=draw.world), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    return with_collective(job, torch.float32)


@watched(4, truth=truth("partial", "missing", "own_only", "unexplained"), needs=SPMD,
         says=("call no_axis 0.v.weight", "holds 0.v.weight tp=R"))  # fmt: skip
def declared_r_over_no_axis(draw):
    """Summed over ranks 0 and 3, and 1 and 2, which are no axis of the mesh."""
    sums = lambda name, axis: ".v." not in name and (axis == "dp" or ".pos." in name or ".out_norm." in name)  # noqa: E731
    job = Cut(TWO, hold="hand", sums=sums, fields=affected("0.v.weight")).build(draw)
    groups = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    return afterwards(job, lambda: dist.all_reduce(named(job)["0.v.weight"].grad, group=groups[draw.rank in (1, 2)]))


@watched(2, 3, truth=truth("own_only", "partial"))
def declared_fused_dummy_summed(draw):
    """A fused layer writes main_grad, and what is summed is the gradient that autograd has
    (NVIDIA-NeMo/Megatron-Bridge#6009)."""
    return fused(draw, lambda p: dist.all_reduce(p.grad))


@watched(4, truth=truth(equal=True), needs=SPMD, says=("refused 0.norm.weight tp",))
def declared_differently_by_ranks(draw):
    """An annotation that hangs on the rank."""
    declared = {"*.norm.weight": "I" if draw.rank % 2 == 0 else "R"}
    return Cut(TWO, "wrapper", "hand", declared).build(draw)
