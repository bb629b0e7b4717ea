"""Test PyTorch's own parallel training on backend "addend": gradients are compared with gloo's and with one
process's.
"""

import collections
import datetime
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import addend.torch.group  # noqa: F401  registers the backend
import ranks

BATCH, STEPS, RATE = 8, 3, 0.1
FSDP2 = unittest.skipUnless(ranks.FSDP2, "fully_shard works on the processor from PyTorch 2.9 on")
ALLOCATES = hasattr(FSDPModule, "set_allocate_memory_from_process_group_for_comm")
GATHERS = ("_allgather_base", "all_gather_single")
SCATTERS = ("_reduce_scatter_base", "reduce_scatter_single")


def model():
    torch.manual_seed(7)
    layers = [("up", nn.Linear(6, 16)), ("act", nn.GELU()), ("down", nn.Linear(16, 5)), ("norm", nn.LayerNorm(5))]
    return nn.Sequential(collections.OrderedDict(layers)).double()


def batches():
    made = torch.Generator().manual_seed(11)
    return [torch.randn(BATCH, 6, generator=made, dtype=torch.float64) for _ in range(STEPS)]


def share_of(batch, parts=None, part=None):
    parts = parts or dist.get_world_size()
    part = dist.get_rank() if part is None else part
    return batch[part * BATCH // parts : (part + 1) * BATCH // parts]


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(net, shared, optimizer=None):
    """Return the gradients of all steps, and the parameters after them."""
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=RATE)
    found = []
    for batch in batches():
        optimizer.zero_grad()
        net(shared(batch)).square().mean().backward()
        found += [whole(param.grad) for param in net.parameters()]
        optimizer.step()
    return found + [whole(param) for param in net.parameters()]


def run_alone():
    return train(model(), lambda batch: batch)


def run_ddp(**options):
    return train(DistributedDataParallel(model(), **options), share_of)


def run_ddp_small_buckets():
    return run_ddp(bucket_cap_mb=0.0001, gradient_as_bucket_view=True)


def run_ddp_hook():
    """A communication hook that chains on the Future, as PyTorch's own do."""

    def average(group, bucket):
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    net = DistributedDataParallel(model())
    net.register_comm_hook(dist.group.WORLD, average)
    return train(net, share_of)


def run_zero():
    net = DistributedDataParallel(model())
    return train(net, share_of, ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=RATE))


def fully_sharded(**options):
    net = model()
    for layer in (net.up, net.down):
        fully_shard(layer, **options)
    return fully_shard(net, **options)


def run_fsdp():
    return train(fully_sharded(), share_of)


def run_fsdp_in_shared_memory():
    """Every buffer that fully_shard's collectives read or write was allocated by the group."""
    net, group = fully_sharded(), dist.group.WORLD
    for module in (net, net.up, net.down):
        module.set_allocate_memory_from_process_group_for_comm(True)
    given, moved = set(), set()
    allocate, gather, scatter = group.allocate_tensor, group._allgather_base, group._reduce_scatter_base

    def note(call, *tensors):
        moved.update(tensor.untyped_storage().data_ptr() for tensor in tensors)
        return call

    def noted(*arguments, **options):
        tensor = allocate(*arguments, **options)
        given.add(tensor.untyped_storage().data_ptr())
        return tensor

    group.allocate_tensor = noted
    for names, call in ((GATHERS, gather), (SCATTERS, scatter)):
        for name in names:
            setattr(group, name, lambda out, own, *rest, call=call: note(call, out, own)(out, own, *rest))
    found = train(net, share_of)
    assert moved and moved <= given, (moved, given)
    return found


def run_hsdp():
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return train(fully_sharded(mesh=mesh), share_of)


def run_tp():
    net = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return train(net, lambda batch: batch)


def run_fsdp_of_tp():
    net = model()
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "model"))
    parallelize_module(net, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(net, mesh=mesh["data"])
    return train(net, lambda batch: share_of(batch, 2, mesh["data"].get_local_rank()))


def run_dtensor():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    full = torch.arange(28.0, dtype=torch.float64).reshape(7, 4)  # 7 rows are cut unevenly
    rows = distribute_tensor(full, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    again = columns.redistribute(mesh, [Replicate()])
    return [
        again.to_local(),
        (rows @ distribute_tensor(full.t(), mesh, [Shard(1)])).full_tensor(),
        columns.sum(0).full_tensor(),
        rows.sum(0).full_tensor(),
    ]


def newest(module, *names):
    """Return the function by its name since 2026, or by its earlier name."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


def run_functional():
    """A function for torch.compile: the work is waited for when the tensor is used."""
    from torch.distributed import _functional_collectives as functional

    group, rank, world = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    own = torch.arange(4.0 * world) + rank
    summed = functional.all_reduce(own, "sum", group)
    gathered = newest(functional, "all_gather_single", "all_gather_tensor")(own, 0, group)
    scattered = newest(functional, "reduce_scatter_single", "reduce_scatter_tensor")(own, "sum", 0, group)
    exchanged = functional.all_to_all_single(own, None, None, group)
    one = functional.broadcast(own, 1, group)
    return [tensor + 0 for tensor in (summed, gathered, scattered, exchanged, one)]


def run_subgroups():
    """Groups within the world, of any order, made and destroyed, with sums in them and in the world in between."""
    rank, world = dist.get_rank(), dist.get_world_size()
    evens, odds = [peer for peer in range(world) if peer % 2 == 0], [peer for peer in range(world) if peer % 2]
    found = []
    for _ in range(3):
        groups = [dist.new_group(members, timeout=datetime.timedelta(seconds=60)) for members in (evens, odds)]
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=groups[rank % 2])
        found.append(tensor.clone())
        dist.all_reduce(tensor)
        found.append(tensor)
        dist.destroy_process_group(groups[rank % 2])
    return found


def close(got, expected, bound):
    scale = max(1e-6, max(tensor.abs().max().item() for tensor in expected))
    return all(
        one.shape == other.shape and (one - other).abs().max().item() <= bound * scale
        for one, other in zip(got, expected)
    )


def reported(function, *arguments):
    """Return tensors as arrays, which a pipe takes without a separate file for each."""
    return [tensor.numpy() for tensor in function(*arguments)]


def run(world, function, *arguments, **options):
    return [
        [torch.from_numpy(array) for array in arrays]
        for arrays in ranks.run(world, reported, function, *arguments, **options)
    ]


class Training(unittest.TestCase):
    def hold(self, function, worlds, *arguments, beside_gloo=True):
        reference = run_alone()
        for world in worlds:
            with self.subTest(world=world):
                ours = run(world, function, *arguments, backend="addend")
                gloos = run(world, function, *arguments) if beside_gloo else ours
                for rank in range(world):
                    self.assertEqual(len(ours[rank]), len(reference))
                    self.assertTrue(close(ours[rank], reference, 1e-12), (world, rank))
                    self.assertTrue(close(ours[rank], gloos[rank], 1e-12), (world, rank))
                    self.assertTrue(all(map(torch.equal, ours[rank], ours[0])))

    def identical(self, function, worlds):
        for world in worlds:
            ours, gloos = run(world, function, backend="addend"), run(world, function)
            for one, other in zip(ours, gloos):
                self.assertTrue(all(map(torch.equal, one, other)), (world, one, other))

    def test_ddp(self):
        self.hold(run_ddp, (2, 4))

    def test_ddp_with_small_buckets(self):
        self.hold(run_ddp_small_buckets, (2,))

    def test_ddp_with_a_hook(self):
        self.hold(run_ddp_hook, (2,))

    def test_zero(self):
        self.hold(run_zero, (2, 4))

    def test_functional_collectives(self):
        self.identical(run_functional, (2, 3))

    def test_subgroups(self):
        self.identical(run_subgroups, (3, 4))

    def test_tensor_parallel(self):
        self.hold(run_tp, (2, 4))

    def test_dtensor(self):
        self.identical(run_dtensor, (2, 4))

    @FSDP2
    def test_fsdp(self):
        self.hold(run_fsdp, (2, 4))

    @FSDP2
    def test_hsdp(self):
        self.hold(run_hsdp, (4,))

    @FSDP2
    def test_fsdp_of_tensor_parallel(self):
        self.hold(run_fsdp_of_tp, (4,))

    @unittest.skipUnless(ALLOCATES, "this PyTorch's fully_shard takes no memory from a group")
    def test_fsdp_in_shared_memory(self):
        self.hold(run_fsdp_in_shared_memory, (2, 4), beside_gloo=False)


if __name__ == "__main__":
    unittest.main()
