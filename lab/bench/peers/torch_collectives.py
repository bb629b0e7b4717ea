"""Measures collectives of gloo, or of addend's process group, through torch.distributed, on flat tensors. Usage: torch_collectives.py ADDRESS RANK RANKS PORT
gloo|addend."""
import sys

import torch_backend
import torch_buffers
import worker
import torch
import torch.distributed as dist

BACKEND = sys.argv[5]
torch.set_num_threads(1)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SUM = worker.RANKS * (worker.RANKS + 1) // 2


class Case:
    """A task's tensors: its input and its output."""

    def __init__(self, task, dtype):
        numel = task.bytes // dtype.itemsize
        self.block = numel // worker.RANKS
        self.first = worker.RANK * self.block
        memory = task.memory if BACKEND == "addend" else "ordinary"
        buffer = lambda name, count: torch_buffers.buffer(name, count, dtype, memory)
        self.whole = buffer("whole", numel)
        self.own = self.whole[self.first : self.first + self.block] if task.in_place else buffer("own", self.block)
        self.out = buffer("out", numel) if task.op == "all_to_all" else None


def all_reduce(case):
    return case.whole, 0, case.whole, lambda: dist.all_reduce(case.whole)


def all_gather(case):
    return case.own, case.first, case.whole, lambda: dist.all_gather_into_tensor(case.whole, case.own)


def reduce_scatter(case):
    return case.whole, 0, case.own, lambda: dist.reduce_scatter_tensor(case.own, case.whole)


def all_to_all(case):
    return case.whole, 0, case.out, lambda: dist.all_to_all_single(case.out, case.whole)


OPERATIONS = {function.__name__: function for function in (all_reduce, all_gather, reduce_scatter, all_to_all)}


def expected(op, case, out):
    if op in ("all_reduce", "reduce_scatter"):
        return torch_buffers.numbers(SUM, case.first if op == "reduce_scatter" else 0, out)
    starts = [r * case.block if op == "all_gather" else case.first for r in range(worker.RANKS)]
    return torch.cat([torch_buffers.numbers(r + 1, start, out[: case.block]) for r, start in enumerate(starts)])


def look(op, case):
    read, first, written, run = OPERATIONS[op](case)
    read.copy_(torch_buffers.numbers(worker.RANK + 1, first, read))
    run()
    torch_buffers.check(written, expected(op, case, written))
    read.zero_()


def prepare(task):
    if task.dtype not in DTYPES or task.op not in OPERATIONS or (task.op == "all_reduce" and not task.in_place):
        return None
    case = Case(task, DTYPES[task.dtype])
    if not task.iterations:
        look(task.op, case)
    return OPERATIONS[task.op](case)[-1]


if BACKEND == "addend":
    worker.bind()
torch_backend.start(BACKEND)
worker.work(prepare, dist.barrier)
dist.destroy_process_group()
