"""Test errors in a group of backend "addend": every rank that waits gets the error, with the program's lines; and
groups can be made and destroyed without leaving anything behind.
"""

import datetime
import gc
import inspect
import os
import pathlib
import signal
import threading
import time
import unittest

import torch
import torch.distributed as dist
from says import says, says_facts, says_nothing_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend
import addend.torch
import addend.torch.group
import draws
import ranks

SPLITS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
GROUPS = 1000 if draws.choose_seed() == "all" else 200  # groups that are made and destroyed
WITHIN = 60  # seconds, however loaded the machine: far below the half hour of a group's own timeout


def here(offset=0):
    frame = inspect.currentframe().f_back
    return f"test_group_errors.py:{frame.f_lineno + offset}"


def refused(call, kind=addend.AddendError):
    """Return (the error's message, seconds until it came)."""
    began = time.monotonic()
    try:
        call()
    except kind as error:
        return str(error), time.monotonic() - began
    raise AssertionError("nothing was said")


def wait_until_reported(store):
    """A rank that does not call waits until another one has got its error."""
    store.wait(["told"], datetime.timedelta(seconds=WITHIN))


def reported(store, *result):
    store.set("told", "")
    return result


def get_store():
    return dist.distributed_c10d._get_default_store()


def run_other_sizes():
    if dist.get_rank():
        return (*refused(lambda: dist.all_reduce(torch.ones(5)), addend.MismatchError), here())
    return (*refused(lambda: dist.all_reduce(torch.ones(4)), addend.MismatchError), here())


def run_other_calls():
    tensor = torch.ones(4)
    if dist.get_rank():
        return (*refused(lambda: dist.broadcast(tensor, 0), RuntimeError), here())
    return (*refused(lambda: dist.all_reduce(tensor, async_op=True).wait(), RuntimeError), here())


def run_other_models():
    """The message names the line of the program that led to DDP's call."""
    net = DistributedDataParallel(nn.Linear(4, 3))
    loss = net(torch.ones(2, 4)).sum()
    if dist.get_rank():
        return (*refused(lambda: dist.all_reduce(torch.ones(1)), addend.MismatchError), here())
    return (*refused(lambda: loss.backward(), addend.MismatchError), here())


def run_death():
    if dist.get_rank() == 1:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    words, seconds = refused(lambda: dist.all_reduce(torch.ones(4)), addend.RankDiedError)
    again, _ = refused(lambda: dist.barrier(), addend.RankDiedError)
    return words, seconds, again


def run_exception():
    if dist.get_rank() == 1:
        raise KeyError("a mistake of the program")
    return refused(lambda: dist.all_reduce(torch.ones(4)), RuntimeError)


def run_left():
    store = get_store()
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        wait_until_reported(store)
        return None
    return reported(store, *refused(lambda: dist.all_reduce(torch.ones(4)), addend.RankLeftError))


def run_circle():
    """Each rank waits for what the other one does later."""
    return refused(lambda: dist.recv(torch.ones(4), 1 - dist.get_rank()), addend.CycleError)


def run_timeout():
    """Rank 1 does not call, and gets the error at its next call."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if dist.get_rank():
        wait_until_reported(get_store())
        return refused(lambda: dist.barrier(group=group), addend.PeerFailedError)[0]
    words, seconds = refused(lambda: dist.all_reduce(torch.ones(4), group=group), addend.PeerFailedError)
    return reported(get_store(), words, seconds, here(-1))


def run_stopped():
    """Rank 1 is stopped while the others wait for it, and continues long after."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    reported = [0] * dist.get_world_size()
    dist.all_gather_object(reported, os.getpid())
    dist.all_reduce(torch.ones(5), group=group)
    line = here(-1)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return (*refused(lambda: dist.barrier(group=group), addend.PeerFailedError), reported[1], line)
    try:
        return (*refused(lambda: dist.barrier(group=group), addend.PeerFailedError), reported[1], line)
    finally:
        time.sleep(2)
        os.kill(reported[1], signal.SIGCONT)


def run_wait_with_timeout():
    if dist.get_rank():
        wait_until_reported(get_store())
        return None
    work = dist.irecv(torch.ones(4), 1)
    return reported(get_store(), *refused(lambda: work.wait(datetime.timedelta(seconds=0.5)), addend.PeerFailedError))


def run_monitored_barrier(absent):
    """A monitored barrier that all ranks reach, then one that the ranks `absent` do not reach."""
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=20))
    present = [rank for rank in range(dist.get_world_size()) if rank not in absent]
    if dist.get_rank() in absent:
        get_store().wait([f"told {rank}" for rank in present], datetime.timedelta(seconds=WITHIN))
        return None
    call = lambda: dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=0.5), True)  # noqa: E731
    result = refused(call, addend.PeerFailedError)
    get_store().set(f"told {dist.get_rank()}", "")
    return result


def run_abort():
    """Another thread aborts the group while this one waits; the other rank gets the error at its next call."""
    store = get_store()
    if dist.get_rank():
        wait_until_reported(store)
        return refused(lambda: dist.barrier(), addend.PeerFailedError)[0]
    threading.Timer(0.3, dist.group.WORLD.abort).start()
    words, seconds = refused(lambda: dist.barrier(), addend.PeerFailedError)
    assert seconds < WITHIN, seconds
    reported(store)
    time.sleep(0.2)
    refused(lambda: dist.barrier(), addend.InvalidError)
    dist.destroy_process_group()
    return words


def run_again():
    """The default group is destroyed and made again, with other sums in between."""
    world, store, found = dist.get_world_size(), dist.distributed_c10d._get_default_store(), []
    for turn in range(5):
        tensor = torch.tensor([1.0])
        dist.all_reduce(tensor)
        found.append(tensor.item())
        rank = dist.get_rank()
        dist.destroy_process_group()
        dist.init_process_group("addend", store=dist.PrefixStore(f"turn {turn}", store), rank=rank, world_size=world)
    return found


def used():
    """Return (file descriptors, mappings, mappings of files in /dev/shm, resident KiB)."""
    gc.collect()
    status = pathlib.Path("/proc/self/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0])
    maps = pathlib.Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count("\n"), maps.count("/dev/shm/"), resident


def make_and_destroy(turn):
    """Use and destroy a group, every other time while a tensor has memory of it."""
    group = dist.new_group()
    tensor = torch.ones(100)
    if turn % 2:
        tensor = group.allocate_tensor(100, dtype=torch.float32, device=torch.device("cpu")).fill_(1)
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    # PyTorch does not know this group, and drops it
    half = dist.group.WORLD.split_group(list(range(dist.get_world_size())))
    half.barrier().wait()
    assert tensor.sum().item() == 100 * dist.get_world_size()


def run_many(count):
    for turn in range(20):
        make_and_destroy(turn)
    before = used()
    for turn in range(count):
        make_and_destroy(turn)
    return before, used()


def run_destroyed_early():
    """Works that nobody waited for are complete when their group is destroyed; if one cannot be, nothing is raised
    there.
    """
    rank, found = dist.get_rank(), []
    group, other = dist.new_group(), dist.new_group()
    time.sleep(0.5 * rank)
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=group, async_op=True)
    dist.destroy_process_group(group)
    found.append(tensor.tolist())
    dist.all_reduce(torch.ones(4 + rank), group=other, async_op=True)
    dist.destroy_process_group(other)
    dist.all_reduce(tensor)
    return found


def run_idle():
    """Time between calls does not count as waiting."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))  # more than a loaded machine delays a rank
    for idle in (6, 0):
        dist.barrier(group=group, async_op=True).wait()
        dist.barrier(group=group)
        time.sleep(idle)
    return True


def run_memory():
    """A group's memory: seen by all ranks, used again, kept as long as a tensor has it."""
    group, cpu = dist.new_group(), torch.device("cpu")
    assert group._get_backend(cpu).supports_tensor_alloc(cpu)
    first = group.allocate_tensor(1000, dtype=torch.bfloat16, device=cpu)
    address = first.data_ptr()
    part = first[10:20].fill_(3)
    del first
    other = group.allocate_tensor(1000, dtype=torch.bfloat16, device=cpu)
    assert other.data_ptr() != address  # a part of it is still in use
    del part
    again = group.allocate_tensor(500, dtype=torch.float32, device=cpu)  # a tensor of as many bytes
    assert again.data_ptr() == address
    work = dist.all_reduce(again.fill_(1), group=group, async_op=True)
    del again
    taken = group.allocate_tensor(500, dtype=torch.float32, device=cpu)
    assert taken.data_ptr() != address  # a call in flight reads this memory
    work.wait()
    assert group.allocate_tensor(0, dtype=torch.float32, device=cpu).shape == (0,)
    dist.destroy_process_group(group)
    other.fill_(2)
    taken.fill_(2)
    return other.sum().item(), taken.sum().item()


def run_flight_recorder():
    dist.all_reduce(torch.ones(6))
    where = here(-1)
    return addend.torch.flight_recorder(), where


def run_split():
    """Halves of the world, each by itself, the second one in another order."""
    rank, world = dist.get_rank(), dist.get_world_size()
    halves = [list(range(world // 2)), list(range(world // 2, world))[::-1]]
    group = dist.group.WORLD.split_group(halves[rank // (world // 2)])
    assert group.rank() == halves[rank // (world // 2)].index(rank)
    assert group.options._timeout == dist.group.WORLD.options._timeout == datetime.timedelta(minutes=30)
    none = dist.group.WORLD.split_group([0])
    tensor = torch.tensor([float(rank)])
    group.allreduce([tensor]).wait()
    return tensor.item(), group.size(), none is None


def run_split_by_pytorch():
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.split_group(split_ranks=[list(range(world // 2)), list(range(world // 2, world))])
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    dist.monitored_barrier()
    return tensor.item()


def run_threads():
    """Two threads, each on its own group."""
    groups, found = [dist.new_group() for _ in range(2)], {}

    def work(name):
        for _ in range(50):
            tensor = torch.ones(1000)
            dist.all_reduce(tensor, group=groups[name])
            found[name] = found.get(name, 0) + tensor[0].item()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Errors(unittest.TestCase):
    def on_two(self, function, *arguments):
        return ranks.run(2, function, *arguments, backend="addend")

    def test_a_call_that_does_not_match_names_both_lines(self):
        for function in (run_other_sizes, run_other_calls, run_other_models):
            with self.subTest(function.__name__):
                (words, seconds, one), (other_words, other_seconds, other) = self.on_two(function)
                for line in (one, other):
                    says_facts(self, words, line)
                    says_facts(self, other_words, line)
                self.assertLess(max(seconds, other_seconds), WITHIN)

    def test_a_rank_that_is_killed(self):
        context = ranks.run(3, run_death, dead=(1,), backend="addend")
        for words, seconds, again in context:
            says_facts(self, words, "rank 1")
            says_facts(self, again, "rank 1")
            self.assertLess(seconds, WITHIN)

    def test_an_exception_on_one_rank(self):
        for words, seconds in ranks.run(3, run_exception, dead=(1,), backend="addend"):
            says_facts(self, words, "rank 1")
            self.assertLess(seconds, WITHIN)

    def test_a_rank_that_left(self):
        words, seconds = self.on_two(run_left)[0]
        says_facts(self, words, "rank 1")
        self.assertLess(seconds, WITHIN)

    def test_a_circle_of_waits(self):
        for words, seconds in self.on_two(run_circle):
            self.assertIn("test_group_errors.py:", words)
            self.assertLess(seconds, WITHIN)

    def test_the_timeout_of_a_group(self):
        (words, seconds, line), other = self.on_two(run_timeout)
        for said in (words, other):
            says_facts(self, said, "2 s", line, "rank 1")
            self.assertRegex(said, r"rank 1 \(process \d+\)")
        self.assertTrue(1.9 < seconds < WITHIN, seconds)

    def test_a_rank_that_is_stopped(self):
        for words, seconds, pid, line in ranks.run(3, run_stopped, backend="addend"):
            says_facts(self, words, "2 s", "rank 1", f"process {pid}", "all_reduce", "5 f32", line)
            says_nothing_of(self, words, "rank 2 (process")
            self.assertLess(seconds, WITHIN)

    def test_the_timeout_of_a_wait(self):
        words, seconds = self.on_two(run_wait_with_timeout)[0]
        says_facts(self, words, "0.5 s", "rank 1")
        self.assertRegex(words, r"rank 1 \(process \d+\)")
        self.assertTrue(0.4 < seconds < WITHIN, seconds)

    def test_a_monitored_barrier(self):
        for absent, *facts in (
            ((1,), "Rank 1", "500 ms"),
            ((1, 3), "Ranks 1", "3", "500 ms"),
            ((0,), "rank 0"),
        ):
            for result in ranks.run(4, run_monitored_barrier, absent, backend="addend"):
                if result:
                    says_facts(self, result[0], "monitoredBarrier", *facts)
                    for rank in absent:
                        self.assertRegex(result[0], rf"rank {rank} \(process \d+\) ")
                    self.assertLess(result[1], WITHIN)

    def test_abort(self):
        for words in self.on_two(run_abort):
            says(self, words, "rank 0")

    def test_flight_recorder(self):
        for text, line in self.on_two(run_flight_recorder):
            says(self, text, "all_reduce", "6 f32", line)


class Life(unittest.TestCase):
    def test_destroyed_and_made_again(self):
        self.assertEqual(ranks.run(3, run_again, backend="addend"), [[3.0] * 5] * 3)

    def test_many_groups_leave_nothing(self):
        for before, after in ranks.run(2, run_many, GROUPS, backend="addend"):
            self.assertEqual((after[0], after[2]), (before[0], before[2]))
            # malloc makes a mapping now and then, but a leak makes one for each group
            self.assertLess(after[1] - before[1], 10)
            self.assertLess(after[3] - before[3], 4096)  # KiB, after all groups

    def test_destroyed_while_calls_are_in_flight(self):
        self.assertEqual(ranks.run(2, run_destroyed_early, backend="addend"), [[[2.0] * 4]] * 2)

    def test_time_between_calls_is_no_wait(self):
        self.assertEqual(ranks.run(2, run_idle, backend="addend"), [True, True])

    def test_memory_is_kept_as_long_as_it_is_used(self):
        self.assertEqual(ranks.run(2, run_memory, backend="addend"), [(2000.0, 1000.0)] * 2)

    def test_a_group_is_split(self):
        found = ranks.run(4, run_split, backend="addend")
        self.assertEqual(found, [(1.0, 2, False), (1.0, 2, True), (5.0, 2, True), (5.0, 2, True)])

    @unittest.skipUnless(SPLITS, "this PyTorch splits groups of its own backends only")
    def test_pytorch_splits_it(self):
        self.assertEqual(ranks.run(4, run_split_by_pytorch, backend="addend"), [1.0, 1.0, 5.0, 5.0])

    def test_threads_with_groups_of_their_own(self):
        self.assertEqual(ranks.run(2, run_threads, backend="addend"), [{0: 100.0, 1: 100.0}] * 2)


if __name__ == "__main__":
    unittest.main()
