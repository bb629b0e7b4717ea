"""The ways in which PyTorch distributes, computes and compiles the measured models."""

import contextlib

import torch
from torch import nn

TP = 2  # number of ranks for tensor parallelism


def data_ranks(kind, ranks):
    """The number of ranks among which the batch is divided."""
    return ranks // TP if "tp" in kind else ranks


def loss_context(kind):
    """The context for loss and backward: loss_parallel if the vocabulary is sharded."""
    from torch.distributed.tensor.parallel import loss_parallel

    return loss_parallel() if "tp" in kind else contextlib.nullcontext()


def computing(kind):
    """The context for forward and loss: autocast to bf16, which leaves parameters, gradients and the loss in f32."""
    return torch.autocast("cpu", torch.bfloat16) if "bf16" in kind else contextlib.nullcontext()


def compiled(model, kind):
    return torch.compile(model) if "compiled" in kind else model


def cut_matrices(model, units, mesh, sequence):
    """Shards each pair of matrices by columns, then by rows. `sequence`: sequence parallelism between them."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
    from torch.distributed.tensor import parallel as p

    between = Shard(1) if sequence else Replicate()

    class Whole(p.ParallelStyle):
        def _apply(self, module, mesh):
            enter = lambda module, x, mesh: DTensor.from_local(x[0], mesh, [Replicate()])
            return distribute_module(module, mesh, None, enter, lambda module, y, mesh: y.to_local())

    def enter():
        return p.PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())

    def norm():
        return p.SequenceParallel() if sequence else Whole()

    for unit in units:
        columns = {part: p.ColwiseParallel() for part in ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")}
        rows = {part: p.RowwiseParallel(output_layouts=between) for part in ("attention.o", "mlp.down")}
        p.parallelize_module(unit, mesh, {"norm1": norm(), "norm2": norm(), "attention": enter(), "mlp": enter(), **columns, **rows})
    head = p.ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
    embedding = p.RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    p.parallelize_module(model, mesh, {"embedding": embedding, "norm": norm(), "head": head})


def cut_and_shard(model, units, kind, ranks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks // TP, TP), mesh_dim_names=("dp", "tp"))
    cut_matrices(model, units, mesh["tp"], kind == "tp_sequence")
    if kind != "fsdp_tp":
        return model
    for unit in units:
        fully_shard(unit, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def communicate_in_the_groups_memory(model):
    """Lets FSDP allocate its communication buffers in the process group's shared memory."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_allocate_memory_from_process_group_for_comm(True)


def distribute(model, units, kind, ranks):
    """Distributes the model. ddp...: DDP with buckets of 25 MiB, of which gradients are views. fsdp: fully_shard of each of `units`, parts of
    the model. tp: tensor parallel. fsdp_tp: both."""
    if "tp" in kind:
        return cut_and_shard(model, units, kind, ranks)
    if kind.startswith("ddp"):
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    return fully_shard(model, mesh=mesh)
