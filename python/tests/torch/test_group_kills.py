"""Test what happens if a rank of backend "addend" fails during a step of DDP or fully_shard: it is killed, raises,
leaves, makes another call, or stops. The other ranks get an error within seconds, and steps that were computed before
have the bits of an undisturbed run.

    bash tests/support/python.sh torch build/libaddend.so python/tests/torch/test_group_kills.py --cases 300 [--seed 1]
"""

import argparse
import collections
import functools
import gc
import hashlib
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import unittest
from multiprocessing.connection import wait

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend
import addend.torch.group  # noqa: F401  registers the backend
import draws
import ranks

STEPS = 60
IN_TIME = 60  # seconds within which every remaining rank has its error, on a machine however loaded
HANGS = 120  # seconds that a run may take on a busy machine
CASES, DRAWN = 300, 6
CYCLES, DRAWN_CYCLES = 1000, 100
WRAPPERS = ("ddp", "fsdp") if ranks.FSDP2 else ("ddp",)
FAULTS = {  # fault -> what the other ranks are told
    "kill": (addend.RankDiedError,),
    "raise": (addend.RankDiedError,),
    "leave": (addend.RankLeftError,),
    "other call": (addend.MismatchError,),
    "stop": (),
}
Case = collections.namedtuple("Case", "world wrapper fault victim step moment")


def draw_case(seed, k):
    drawn = random.Random(f"{seed} {k}")
    world = drawn.randint(2, 4)
    fault = drawn.choice(["kill", "kill", *FAULTS])
    return Case(world, drawn.choice(WRAPPERS), fault, drawn.randrange(world), drawn.randrange(STEPS), drawn.random())


# -- a rank


def wrapped(wrapper):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 8))
    if wrapper == "ddp":
        return DistributedDataParallel(net, bucket_cap_mb=0.02)
    from torch.distributed.fsdp import fully_shard

    for layer in (net[0], net[2]):
        fully_shard(layer)
    return fully_shard(net)


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def digest(net):
    found = hashlib.md5()
    for param in net.parameters():
        for tensor in (param, param.grad):
            found.update(local(tensor.detach()).contiguous().numpy().tobytes())
    return found.hexdigest()


class Mutant(Exception):
    pass


def mutate(case, param):
    """Make the fault once, in the middle of a backward."""

    def go_wrong(_):
        handle.remove()
        if case.fault == "raise":
            raise Mutant
        if case.fault == "leave":
            dist.destroy_process_group()
            raise Mutant
        dist.broadcast(torch.ones(3), src=case.victim)

    handle = param.register_hook(go_wrong)


def train(case, note):
    rank = dist.get_rank()
    net = wrapped(case.wrapper)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    made = torch.Generator().manual_seed(100 + rank)
    dist.barrier()
    note("ready")
    for step in range(STEPS):
        if case.fault in ("raise", "leave", "other call") and (rank, step) == (case.victim, case.step):
            output = net(torch.randn(4, 32, generator=made))
            mutate(case, output)
        else:
            output = net(torch.randn(4, 32, generator=made))
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
        note(f"{step} {digest(net)}")
    dist.barrier()


def be_rank(rank, case, folder):
    with open(f"{folder}/said{rank}", "w", encoding="utf-8", buffering=1) as said:
        note = functools.partial(print, file=said)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.set_num_threads(1)
        dist.init_process_group("addend", init_method=f"file://{folder}/store", rank=rank, world_size=case.world)
        try:
            train(case, note)
            note("done")
        except BaseException as error:
            note(f"error {time.monotonic()} {type(error).__name__}: {error}".replace("\n", " "))
        os._exit(0)


# -- the process that watches the ranks


def lines_of(folder, rank):
    path = pathlib.Path(folder, f"said{rank}")
    return path.read_text().splitlines() if path.exists() else []


def await_ready(folder, case, processes):
    end = time.monotonic() + HANGS
    while not all("ready" in lines_of(folder, rank) for rank in range(case.world)):
        assert time.monotonic() < end, "ranks did not start"
        assert all(process.is_alive() for process in processes), "a rank died before the first step"
        time.sleep(0.005)


def strike(case, process, seconds):
    """Make the fault at a random moment of a run of this length; return when, or None if a rank makes it itself."""
    if case.fault not in ("kill", "stop"):
        return None
    time.sleep(case.moment * seconds)
    if case.fault == "kill":
        process.kill()
        return time.monotonic()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1 + 2 * case.moment)
    os.kill(process.pid, signal.SIGCONT)
    return None


def play(case, seconds=0.0):
    """Return what each rank noted, when the fault happened, and the seconds of all steps."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=be_rank, args=(rank, case, folder)) for rank in range(case.world)]
        try:
            for process in processes:
                process.start()
            await_ready(folder, case, processes)
            start = time.monotonic()
            struck = strike(case, processes[case.victim], seconds)
            end = time.monotonic() + (2 * IN_TIME if case.fault == "kill" else HANGS)
            while any(process.is_alive() for process in processes) and time.monotonic() < end:
                wait([process.sentinel for process in processes if process.is_alive()], 0.1)
            took = time.monotonic() - start
        finally:
            for process in processes:
                process.kill()
                process.join()
        return [lines_of(folder, rank) for rank in range(case.world)], struck, took


@functools.cache
def undisturbed(world, wrapper):
    """Return what ranks note in an undisturbed run, and how long it takes."""
    said, _, took = play(Case(world, wrapper, "none", 0, 0, 0.0))
    assert all(len(lines) == STEPS + 2 and lines[-1] == "done" for lines in said), said
    return said, took


def judge(case, said, struck):
    """Check everything, and return how long the last rank waited for its error; None: no error."""
    expected, _ = undisturbed(case.world, case.wrapper)
    for rank, lines in enumerate(said):
        steps = [line for line in lines if line[0].isdigit()]
        right = [line for line in expected[rank] if line[0].isdigit()]
        if rank == case.victim and case.fault == "kill":
            # the last line may be cut off
            steps = steps[:-1] if steps and len(steps[-1]) != len(right[len(steps) - 1]) else steps
        assert steps == right[: len(steps)], f"rank {rank}: other bits in step {len(steps) - 1} or before"
    if case.fault == "stop":
        assert all(lines[-1] == "done" for lines in said), [lines[-1] for lines in said]
        return None
    if struck is None:
        last = said[case.victim][-1].split(" ", 2)
        assert last[0] == "error", f"nothing happened on the victim: {last}"
        struck = float(last[1])
    return max((wait_of(case, rank, lines, struck) for rank, lines in enumerate(said) if rank != case.victim))


def wait_of(case, rank, lines, struck):
    if lines[-1] == "done":
        assert case.fault == "kill" and sum(line[0].isdigit() for line in lines) == STEPS, (
            f"rank {rank} noticed nothing"
        )
        return 0.0
    assert lines[-1].startswith("error "), f"rank {rank} hangs after {lines[-1]}"
    _, when, words = lines[-1].split(" ", 2)
    assert any(kind.__name__ in words or kind.__name__[:-5] in words for kind in FAULTS[case.fault]), (rank, words)
    assert case.fault == "other call" or f"rank {case.victim}" in words, (rank, words)
    assert float(when) - struck < IN_TIME, f"rank {rank} got its error after {float(when) - struck:.1f} s"
    return float(when) - struck


def run_case(seed, k):
    case = draw_case(seed, k)
    said, struck, _ = play(case, undisturbed(case.world, case.wrapper)[1])
    try:
        return case, judge(case, said, struck)
    except AssertionError as error:
        raise AssertionError(f"--seed {seed} --only {k}  {case}: {error}") from None


# -- groups that are made and destroyed


def kept():
    status = pathlib.Path("/proc/self/status").read_text()
    kilobytes = int(status.split("VmRSS:")[1].split()[0])
    shared = sum(f"_{os.getpid()}_" in name for name in os.listdir("/dev/shm"))  # other tests have files there too
    return len(os.listdir("/proc/self/fd")), kilobytes, shared, len(os.listdir("/proc/self/task"))


def cycle(cycles):
    """Return (file descriptors, memory in kB, files of shared memory, threads) after a quarter of the groups and after
    all.
    """
    rank, world, found = dist.get_rank(), dist.get_world_size(), []
    for k in range(cycles):
        group = dist.new_group(list(range(world)))
        tensor = torch.full((5000,), float(rank + k))
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == sum(r + k for r in range(world))
        parts = [torch.empty(10) for _ in range(world)]
        dist.all_gather(parts, torch.ones(10), group=group)
        dist.destroy_process_group(group)
        del group
        if k + 1 in (cycles // 4, cycles):
            gc.collect()
            found.append(kept())
    return found


class Kills(unittest.TestCase):
    def test_ranks_that_go_wrong(self):
        for k in draws.draw_cases("cases", range(CASES), DRAWN):
            with self.subTest(k=k):
                run_case(1, k)

    def test_each_fault_once(self):
        for fault in FAULTS:
            world, wrapper = (3, WRAPPERS[-1]) if fault == "stop" else (2, WRAPPERS[0])
            case = Case(world, wrapper, fault, 1, STEPS // 2, 0.5)
            with self.subTest(fault=fault):
                said, struck, _ = play(case, undisturbed(world, wrapper)[1])
                judge(case, said, struck)

    def test_groups_come_and_go(self):
        cycles = CYCLES if draws.choose_seed() == "all" else DRAWN_CYCLES
        for early, late in ranks.run(2, cycle, cycles, backend="addend"):
            self.assertLessEqual(late[0], early[0])
            self.assertLess(late[1] - early[1], 200 + 4 * cycles, (early, late))  # PyTorch itself keeps 4 kB a group
            self.assertLessEqual(late[2], early[2])
            self.assertLessEqual(late[3], early[3])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, action="append", default=[])
    given = parser.parse_args()
    waits, counts, wrong = [], collections.Counter(), 0
    for k in given.only or range(given.cases):
        try:
            case, waited = run_case(given.seed, k)
        except AssertionError as error:
            wrong += 1
            print(error, flush=True)
            continue
        counts[f"{case.fault}, {case.wrapper}"] += 1
        if waited is not None:
            waits.append(waited)
    print("; ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    print(f"{wrong} wrong; the longest wait for an error {max(waits, default=0):.2f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("--"):
        sys.exit(main())
    unittest.main()
