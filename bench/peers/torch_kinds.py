"""The two ways in which PyTorch distributes the measured models."""

from torch import nn


def distribute(model, units, kind, ranks):
    """ddp: buckets of 25 MiB that are the gradients' memory. fsdp: `units`, parts of the model, are gathered one by one."""
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    return fully_shard(model, mesh=mesh)
