"""Flat tensors for collectives, kept as long as the next task needs the same ones, and the numbers in them for checking results."""
import mmap

import torch
import torch.distributed as dist

PAGE = 2 << 20
NUMBERS = torch.tensor([1, 2, 3])
held = {}


def ordinary(numel, dtype):
    """Memory on huge pages, like bench_ordinary_alloc of lab/bench/worker.c."""
    size = -(-numel * dtype.itemsize // PAGE) * PAGE
    memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % PAGE
    return whole[start : start + numel * dtype.itemsize].view(dtype)


def make(numel, dtype, memory):
    if memory != "comm":
        return ordinary(numel, dtype)
    return dist.group.WORLD.allocate_tensor(numel, dtype=dtype, device=torch.device("cpu"))


def buffer(name, numel, dtype, memory="ordinary"):
    key = (numel, dtype, memory)
    if name not in held or held[name][0] != key:
        held.pop(name, None)
        held[name] = (key, make(numel, dtype, memory).zero_())
    return held[name][1]


def numbers(factor, first, like):
    """The numbers of lab/bench/worker.c, which are exact in every dtype."""
    count = like.numel()
    return (factor * NUMBERS).to(like.dtype).repeat(count // 3 + 2)[first % 3 : first % 3 + count]


def check(out, expected):
    """Checks the results. If one rank's is wrong, all ranks raise, so that none waits for another."""
    wrong = torch.tensor([int(not torch.equal(out, expected))])
    dist.all_reduce(wrong)
    if wrong.item():
        raise RuntimeError(f"the result is wrong on {wrong.item()} ranks")
