"""Test every operation of backend "addend" with every dtype, on 2 and 3 ranks, against plain arithmetic."""

import unittest
import warnings

import torch
import torch.distributed as dist
from says import says
from torch.distributed import ReduceOp

import addend
import addend.torch.group  # noqa: F401  registers the backend
import ranks

WORLDS = (2, 3)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex128, torch.complex64)  # PyTorch cannot add complex32
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
MOVED = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX, torch.complex32, *FLOAT8)
NUMEL = 7


def values(dtype, rank, numel=NUMEL, salt=0):
    """Return a rank's tensor, which every rank can make."""
    made = torch.Generator().manual_seed(1000 * salt + rank)
    if dtype is torch.bool:
        return torch.randint(0, 2, (numel,), generator=made).bool()
    if dtype in INTEGERS:
        return torch.randint(1, 6, (numel,), generator=made, dtype=torch.int64).to(dtype)
    if dtype.is_complex:
        parts = torch.randn(numel, 2, generator=made, dtype=torch.float64)
        with warnings.catch_warnings():  # silences the warning that complex32 is experimental
            warnings.simplefilter("ignore")
            return torch.view_as_complex(parts).to(dtype)
    return torch.randn(numel, generator=made, dtype=torch.float64).to(dtype)


def bits(tensor):
    """Return the bytes that two equal tensors share, NaN included."""
    return tensor.contiguous().view(torch.uint8) if tensor.numel() else torch.empty(tensor.shape)


def same(got, expected, what):
    assert got.dtype == expected.dtype and got.shape == expected.shape, (what, got, expected)
    assert torch.equal(bits(got), bits(expected)), (what, got, expected)


def summed(tensors):
    """Reduce as the laws say: in the order of a tree, in f32 for all floats below f64."""
    if len(tensors) == 1:
        return tensors[0]
    half = (len(tensors) + 1) // 2
    return summed(tensors[:half]) + summed(tensors[half:])


def wide(tensor):
    if tensor.dtype in (torch.bfloat16, torch.float16):
        return tensor.float()
    return tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor


def reduced(op, tensors):
    dtype = tensors[0].dtype
    if op == ReduceOp.SUM:
        return (summed([wide(tensor) for tensor in tensors])).to(dtype)
    if op == ReduceOp.AVG:
        whole = summed([wide(tensor) for tensor in tensors])
        if dtype.is_complex:
            return torch.view_as_complex(torch.view_as_real(whole) / len(tensors)).to(dtype)
        return (whole / len(tensors)).to(dtype)
    if op == ReduceOp.PREMUL_SUM:
        return summed([wide(tensor) * factor(peer) for peer, tensor in enumerate(tensors)]).to(dtype)
    if op == ReduceOp.PRODUCT:
        return product([wide(tensor) for tensor in tensors]).to(dtype)
    stacked = torch.stack(tensors)
    if op == ReduceOp.MAX:
        return stacked.amax(0)
    if op == ReduceOp.MIN:
        return stacked.amin(0)
    combine = {ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or, ReduceOp.BXOR: torch.bitwise_xor}
    found = tensors[0]
    for tensor in tensors[1:]:
        found = combine[op](found, tensor)
    return found


def product(tensors):
    if len(tensors) == 1:
        return tensors[0]
    half = (len(tensors) + 1) // 2
    return product(tensors[:half]) * product(tensors[half:])


def factor(rank):
    """Return the factor of a rank's PREMUL_SUM, of which bf16 and f16 have only a rounded value."""
    return 0.3000001907348633 + rank  # a number of f32


def reductions():
    """Yield (op, dtype) of all reductions."""
    every = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.MIN)
    for dtype in (*FLOATS, *INTEGERS):
        for op in every:
            yield op, dtype
    for dtype in (*FLOATS, *COMPLEX):
        yield ReduceOp.AVG, dtype
        yield ReduceOp.PREMUL_SUM, dtype
    for dtype in COMPLEX:
        yield ReduceOp.SUM, dtype
    yield ReduceOp.MAX, torch.bool
    yield ReduceOp.MIN, torch.bool
    for dtype in (*INTEGERS, torch.bool):
        for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
            yield op, dtype


def run_reductions():
    rank, world = dist.get_rank(), dist.get_world_size()
    count = 0
    for op, dtype in reductions():
        what = (op, dtype)
        everyones = [values(dtype, peer) for peer in range(world)]
        expected = reduced(op, everyones)
        kind = op
        if op == ReduceOp.PREMUL_SUM:
            op = dist._make_nccl_premul_sum(torch.tensor([factor(rank)]) if dtype.is_complex else factor(rank))

        tensor = everyones[rank].clone()
        dist.all_reduce(tensor, op=op)
        same(tensor, expected, ("all_reduce", *what))

        strided = torch.stack([everyones[rank], everyones[rank]], 1)
        work = dist.all_reduce(strided[:, 0], op=op, async_op=True)
        work.wait()
        same(strided[:, 0].contiguous(), expected, ("all_reduce of every other element", *what))
        same(strided[:, 1].contiguous(), everyones[rank], ("beside it", *what))

        for root in range(world):
            tensor = everyones[rank].clone()
            dist.reduce(tensor, dst=root, op=op)
            same(tensor, expected if rank == root else everyones[rank], ("reduce", root, *what))

        whole = torch.cat(everyones)  # each rank has another order, so that a wrong block shows
        wholes = [whole.roll(peer) for peer in range(world)]
        blocks = reduced(kind, wholes).reshape(world, NUMEL)
        out = torch.empty(NUMEL, dtype=dtype)
        dist.reduce_scatter_tensor(out, wholes[rank].clone(), op=op)
        same(out, blocks[rank], ("reduce_scatter_tensor", *what))
        out = torch.zeros(NUMEL, 2, dtype=dtype)[:, 1]
        dist.reduce_scatter(out, list(wholes[rank].reshape(world, NUMEL)), op=op)
        same(out.contiguous(), blocks[rank], ("reduce_scatter", *what))
        count += 1
    return count


def run_moves():
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in MOVED:
        everyones = [values(dtype, peer) for peer in range(world)]
        for root in range(world):
            tensor = everyones[rank].clone()
            dist.broadcast(tensor, src=root)
            same(tensor, everyones[root], ("broadcast", root, dtype))
            run_rooted(everyones, root)
        out = torch.zeros(NUMEL * world, dtype=dtype)
        dist.all_gather_into_tensor(out, everyones[rank])
        same(out, torch.cat(everyones), ("all_gather_into_tensor", dtype))
        dist.all_gather_into_tensor(out, out[rank * NUMEL : (rank + 1) * NUMEL])
        same(out, torch.cat(everyones), ("all_gather_into_tensor in place", dtype))
        run_lists(everyones)
        run_all_to_all(dtype)
        run_pairs(everyones)
    return len(MOVED)


def run_rooted(everyones, root):
    rank, world, dtype = dist.get_rank(), len(everyones), everyones[0].dtype
    into = [torch.zeros_like(everyones[0]) for _ in range(world)] if rank == root else None
    dist.gather(everyones[rank], into, dst=root)
    for peer, tensor in enumerate(into or []):
        same(tensor, everyones[peer], ("gather", root, peer, dtype))
    blocks = [values(dtype, 10 * root + peer, salt=1) for peer in range(world)]
    tensor = torch.zeros_like(everyones[0])
    dist.scatter(tensor, blocks if rank == root else None, src=root)
    same(tensor, blocks[rank], ("scatter", root, dtype))


def run_lists(everyones):
    rank, world, dtype = dist.get_rank(), len(everyones), everyones[0].dtype
    into = [torch.zeros(NUMEL, 2, dtype=dtype)[:, peer % 2] for peer in range(world)]
    dist.all_gather(into, everyones[rank])
    for peer, tensor in enumerate(into):
        same(tensor.contiguous(), everyones[peer], ("all_gather", peer, dtype))
    # some tensors are empty
    sent = [values(dtype, 10 * rank + peer, numel=(rank + peer) % 3, salt=2) for peer in range(world)]
    got = [torch.zeros((rank + peer) % 3, dtype=dtype) for peer in range(world)]
    dist.all_to_all(got, sent)
    for peer, tensor in enumerate(got):
        same(tensor, values(dtype, 10 * peer + rank, numel=(rank + peer) % 3, salt=2), ("all_to_all", peer, dtype))


def run_all_to_all(dtype):
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [[(3 * source + target) % 4 for target in range(world)] for source in range(world)]  # sizes include 0
    blocks = [
        [values(dtype, 10 * source + target, numel=2 * sizes[source][target], salt=3) for target in range(world)]
        for source in range(world)
    ]
    sent = torch.cat(blocks[rank]).reshape(-1, 2)
    expected = torch.cat([blocks[source][rank] for source in range(world)]).reshape(-1, 2)
    got = torch.zeros_like(expected)
    dist.all_to_all_single(got, sent, [sizes[source][rank] for source in range(world)], sizes[rank])
    same(got, expected, ("all_to_all_single with splits", dtype))
    whole = values(dtype, rank, numel=world * 2, salt=4)
    got = torch.zeros_like(whole)
    dist.all_to_all_single(got, whole)
    parts = [values(dtype, peer, numel=world * 2, salt=4)[2 * rank : 2 * rank + 2] for peer in range(world)]
    same(got, torch.cat(parts), ("all_to_all_single", dtype))


def run_pairs(everyones):
    rank, world, dtype = dist.get_rank(), len(everyones), everyones[0].dtype
    after, before = (rank + 1) % world, (rank - 1) % world
    got = torch.zeros_like(everyones[0])
    works = [dist.isend(everyones[rank], after), dist.irecv(got, before)]  # all ranks send first
    for work in works:
        work.wait()
        assert work.is_completed()
    same(got, everyones[before], ("isend and irecv", dtype))
    got = torch.zeros(2, NUMEL, dtype=dtype).t()
    ops = [
        dist.P2POp(dist.irecv, got[:, 0], before, tag=5),
        dist.P2POp(dist.isend, everyones[rank], after, tag=5),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got[:, 0].contiguous(), everyones[before], ("batch_isend_irecv", dtype))


def run_tags_and_any_source():
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank:
        for tag in (3, 1, 2):
            dist.send(torch.tensor([rank, tag]), 0, tag=tag)
        dist.send(torch.tensor([rank, 9]), 0, tag=9)
        return None
    for peer in range(1, world):
        for tag in (1, 2, 3):  # received in another order than they were sent
            got = torch.zeros(2, dtype=torch.int64)
            dist.recv(got, peer, tag=tag)
            assert got.tolist() == [peer, tag], got
    found = set()
    for _ in range(1, world):
        got = torch.zeros(2, dtype=torch.int64)
        source = dist.recv(got, tag=9)
        assert got.tolist() == [source, 9], (source, got)
        found.add(source)
    return sorted(found)


def run_coalesced():
    rank, world = dist.get_rank(), dist.get_world_size()
    tensors = [values(torch.float32, rank, numel) for numel in (3, 0, 5)]
    expected = [summed([values(torch.float32, peer, numel) for peer in range(world)]) for numel in (3, 0, 5)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor, sum_ in zip(tensors, expected):
        same(tensor, sum_, "all_reduce, coalesced")
    group = dist.group.WORLD
    outs = [torch.zeros(world * numel) for numel in (3, 5)]
    ins = [values(torch.float32, rank, numel) for numel in (3, 5)]
    group.allgather_into_tensor_coalesced(outs, ins).wait()
    for out, numel in zip(outs, (3, 5)):
        same(out, torch.cat([values(torch.float32, peer, numel) for peer in range(world)]), "all_gather, coalesced")
    parts = [torch.zeros(numel) for numel in (3, 5)]
    group.reduce_scatter_tensor_coalesced(parts, outs).wait()
    for part, one in zip(parts, ins):
        same(part, summed([one] * world), "reduce_scatter, coalesced")
    lists = [[torch.zeros(3), torch.zeros(5)] for _ in range(world)]
    group.allgather_coalesced(lists, ins).wait()
    for peer, pair in enumerate(lists):
        same(pair[1], values(torch.float32, peer, 5), "all_gather of lists, coalesced")
    return True


def run_objects():
    rank, world = dist.get_rank(), dist.get_world_size()
    reported = [None] * world
    dist.all_gather_object(reported, {"rank": rank, "text": "x" * rank * 100})
    heard = ["nothing"] if rank else ["a word"]
    dist.broadcast_object_list(heard, src=0)
    got = [None]
    dist.scatter_object_list(got, [f"for {peer}" for peer in range(world)] if rank == 1 else None, src=1)
    gathered = [None] * world if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    return [one["rank"] for one in reported], heard, got, gathered


def run_async():
    """Calls are in flight together and waited for in another order; results are complete after their wait."""
    rank, world = dist.get_rank(), dist.get_world_size()
    # more calls than a rank may have in flight
    tensors = [values(torch.float64, rank, salt=salt) for salt in range(100)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in works[::-1]]
    assert all(future.done() for future in futures)
    for salt, tensor in enumerate(tensors):
        same(tensor, summed([values(torch.float64, peer, salt=salt) for peer in range(world)]), "async")
    late = torch.zeros(3)
    if rank == 0:
        work = dist.irecv(late, 1)
        early = work.is_completed()
        dist.barrier()
        work.wait()
        return early, late.tolist(), work.is_completed(), work.get_future().value()[0] is late
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(3), 0)
    return None


def run_complex():
    """Complex tensors as C++ passes them to the group; torch.distributed's functions pass real and imaginary parts."""
    rank, world, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    everyones = [values(torch.complex128, peer, numel=world) for peer in range(world)]
    tensor = everyones[rank].clone()
    group.broadcast([tensor]).wait()
    same(tensor, everyones[0], "broadcast")
    tensor = everyones[rank].clone()
    group.allreduce([tensor], dist.AllreduceOptions()).wait()
    same(tensor, summed(everyones), "allreduce")
    got = torch.zeros_like(tensor)
    for call in (group.alltoall_base, group.all_to_all_single):
        call(got, everyones[rank], [], [], dist.AllToAllOptions()).wait()
        same(got, torch.stack([one[rank] for one in everyones]), "all_to_all")
    group._allgather_base(torch.zeros(world * world, dtype=got.dtype), got).wait()
    mirrored = everyones[rank].conj()  # in memory only the plain number, with a note that it is conjugated
    out = torch.zeros(world * world, dtype=got.dtype)
    group.all_gather_single(out, mirrored).wait()
    same(out, torch.cat([one.conj().resolve_conj() for one in everyones]), "all_gather of conjugates")
    target = torch.zeros(world * world, dtype=got.dtype).conj()
    group.all_gather_single(target, everyones[rank]).wait()
    same(target.resolve_conj(), torch.cat(everyones), "all_gather into conjugates")
    return True


def run_copies():
    """A tensor of every other element is sent as a copy, which lives as long as the call."""
    rank, large = dist.get_rank(), 1 << 20
    got = torch.zeros(large)
    if rank == 0:
        work = dist.isend(torch.arange(2.0 * large).reshape(large, 2)[:, 1], 1)
        others = [torch.full((large,), -1.0) for _ in range(4)]
        dist.barrier()
        work.wait()
        return len(others)
    dist.barrier()
    if rank == 1:
        dist.recv(got, 0)
        same(got, torch.arange(1.0, 2 * large, 2), "a copy")
    return None


def run_dropped():
    """A work that nobody waits for completes all the same, and its tensors live until then."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = values(torch.bfloat16, rank)
    dist.all_reduce(tensor[::2], op=ReduceOp.AVG, async_op=True)  # this needs a copy and a division
    dist.all_reduce(torch.ones(1000), async_op=True)
    dist.barrier()
    dist.barrier()
    same(
        tensor[::2].contiguous(),
        reduced(ReduceOp.AVG, [values(torch.bfloat16, p)[::2] for p in range(world)]),
        "dropped",
    )
    return True


def run_refused():
    """Wrong calls are refused with words, alike on all ranks, and the group can still be used."""
    said = []

    def refuse(call):
        try:
            call()
        except (addend.InvalidError, RuntimeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            raise AssertionError("it was not refused")

    f32 = torch.ones(4)
    refuse(lambda: dist.all_reduce(torch.eye(3).to_sparse()))
    refuse(lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), op=dist._make_nccl_premul_sum(2.0)))
    refuse(lambda: dist.all_reduce(f32, op=ReduceOp.BAND))
    refuse(lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), op=ReduceOp.AVG))
    refuse(lambda: dist.all_reduce(torch.ones(4).to(torch.float8_e5m2)))
    refuse(lambda: dist.all_reduce(torch.empty(4, device="meta")))
    refuse(lambda: dist.group.WORLD.allreduce([f32, f32]))
    refuse(lambda: dist.all_gather_into_tensor(torch.empty(5), f32))
    refuse(lambda: dist.all_gather([torch.empty(4, dtype=torch.int32)] * dist.get_world_size(), f32))
    refuse(lambda: dist.all_to_all_single(f32.clone(), f32, [1] * dist.get_world_size(), [9] * dist.get_world_size()))
    dist.all_reduce(f32)
    return said, f32[0].item()


class Operations(unittest.TestCase):
    def everywhere(self, function, worlds=WORLDS):
        return {world: ranks.run(world, function, backend="addend") for world in worlds}

    def test_reductions_of_every_dtype(self):
        for world, counts in self.everywhere(run_reductions).items():
            self.assertEqual(counts, [len(list(reductions()))] * world)

    def test_every_dtype_is_moved(self):
        self.everywhere(run_moves)

    def test_tags_and_any_source(self):
        self.assertEqual(self.everywhere(run_tags_and_any_source)[3][0], [1, 2])

    def test_coalesced(self):
        self.everywhere(run_coalesced)

    def test_objects(self):
        reported, heard, got, gathered = self.everywhere(run_objects, (3,))[3][0]
        self.assertEqual((reported, heard, got, gathered), ([0, 1, 2], ["a word"], ["for 0"], [0, 1, 2]))

    def test_async(self):
        self.assertEqual(self.everywhere(run_async)[2][0], (False, [1, 1, 1], True, True))

    def test_complex(self):
        self.everywhere(run_complex)

    def test_copies_live_as_long_as_the_call(self):
        self.everywhere(run_copies)

    def test_a_work_that_is_dropped(self):
        self.everywhere(run_dropped)

    def test_what_it_does_not_do_is_said(self):
        said, sum_ = self.everywhere(run_refused, (2,))[2][1]
        self.assertEqual(sum_, 2.0)
        facts = (
            ["to_dense()"],
            ["torch.int32", "PREMUL_SUM"],
            ["torch.float32", "BAND"],
            ["torch.int32", "AVG"],
            ["torch.float8_e5m2", "SUM"],
            ["CPU"],
            ["all_reduce", "2"],
            ["5 of", "4 of", "all_to_all_single"],
            [],  # PyTorch's own refusal of tensors of different dtypes
            ["all_to_all_single", "[9, 9]", "2", "4"],
        )
        for some, sentence in zip(facts, said):
            if some:
                says(self, sentence, *some)
        self.assertEqual(len(said), len(facts))


if __name__ == "__main__":
    unittest.main()
