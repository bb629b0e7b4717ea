"""Test `addend.torch.testing`: ranks that start once run many test bodies; what a rank does wrong is reported, the
next body starts clean, and nothing is left behind, however a body ends.
"""

import contextlib
import glob
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import torch
import torch.distributed as dist
from says import raises, says, says_facts
from skips import skip_file
from torch import nn

import addend
import ranks
from addend.torch import _testing_pool
from addend.torch.testing import RankError, World

HANGS = 120  # seconds
RANKS = 4
IN_TIME = 5  # seconds after which a body that never ends is ended


def get_pid():
    return os.getpid()


def sum_ranks(start):
    print(f"rank {dist.get_rank()} adds")
    tensor = torch.full((3,), start + dist.get_rank())
    dist.all_reduce(tensor)
    return tensor


def assert_on_one(wrong):
    tensor = torch.ones(2)
    if dist.get_rank() == wrong:
        print("before it")
        assert tensor.sum().item() == 3, "the sum"
    dist.all_reduce(tensor)


def raise_in_another_group():
    """Others wait in a group that is not the default one."""
    group = dist.new_group([0, 1])
    if dist.get_rank() == 1:
        raise KeyError("gone")
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), group=group)


def die(how):
    if dist.get_rank() == 1:
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(2))


def hang(how):
    if dist.get_rank() == 3:
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        sleep_long()
    dist.all_reduce(torch.ones(2))


def sleep_long():
    time.sleep(1000)


def leave_early():
    if dist.get_rank() != 2:
        dist.all_reduce(torch.ones(2))


def runs(pid):
    """Return whether the process exists and is not only a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def leave_a_child():
    child = subprocess.Popen(["sleep", "1000"])
    print(f"child {child.pid}.")
    if dist.get_rank() == 0:
        raise ValueError("with a child")
    return child.pid


def return_a_lock():
    import threading

    return threading.Lock()


def look_around():
    before = os.environ.get("ADDEND_TEST_OF_RANKS"), os.getcwd(), torch.rand(1).item()
    os.environ["ADDEND_TEST_OF_RANKS"] = "changed"
    os.chdir("/")
    torch.rand(3)
    dist.destroy_process_group()  # a body may destroy the group and make another
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return before


def fsdp_step(wide):
    if ranks.FSDP2:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(nn.Sequential(nn.Linear(8, wide), nn.Linear(wide, 4)))
    else:
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, wide), nn.Linear(wide, 4)))
    model(torch.ones(2, 8)).sum().backward()
    return os.getpid()


def count_fds():
    return len(os.listdir("/proc/self/fd"))


def is_alive(pid):
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    return False


def left_behind():
    """Return the shared memory files of these tests' ranks. Other tests run beside them, with files in the same folder
    that have the number of a living process.
    """
    shared = {name: re.match(r"(?:addend|torch)\D*(\d+)", name) for name in os.listdir("/dev/shm")}
    gone = {f"/dev/shm/{name}" for name, found in shared.items() if found and not is_alive(int(found[1]))}
    return gone | set(glob.glob(f"{tempfile.gettempdir()}/addend-*"))


def setUpModule():
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    os.environ["TMPDIR"] = folder.name  # for all processes that these tests start
    tempfile.tempdir = None


def await_gone(pids):
    end = time.monotonic() + HANGS
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return [pid for pid in pids if is_alive(pid)]


class Bodies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.before = left_behind()
        cls.world = World(RANKS, timeout=HANGS)
        cls.pids = cls.world.run(get_pid)

    @classmethod
    def tearDownClass(cls):
        pids = cls.world.run(get_pid)
        cls.world.close()
        assert not [pid for pid in pids if is_alive(pid)]
        assert left_behind() <= cls.before, left_behind() - cls.before

    def fail_with(self, body, *arguments, timeout=HANGS):
        """Return the error; afterwards the world is as new."""
        before = self.world.run(get_pid)
        printed = io.StringIO()
        self.world.timeout = timeout
        with contextlib.redirect_stdout(printed), self.assertRaises(RankError) as raised:
            self.world.run(body, *arguments)
        self.world.timeout = HANGS
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(self.world.run(sum_ranks, 1)[0].tolist(), [10, 10, 10])
        after = self.world.run(get_pid)
        self.assertFalse(set(before) & set(after))
        self.assertEqual(await_gone(before), [])
        return str(raised.exception), printed.getvalue()

    def test_results_and_what_is_printed_come_back(self):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            results = self.world.run(sum_ranks, 2)
        self.assertEqual([tensor.tolist() for tensor in results], [[14, 14, 14]] * RANKS)
        self.assertEqual(printed.getvalue(), "".join(f"[rank {r}] rank {r} adds\n" for r in range(RANKS)))

    def test_many_bodies_use_the_same_ranks(self):
        """Use groups and models, of which nothing stays."""
        pids = self.world.run(get_pid)
        self.assertEqual(len(set(pids)), RANKS)
        self.world.run(fsdp_step, 16)
        fds = self.world.run(count_fds)
        for k in range(50):
            self.assertEqual(self.world.run(fsdp_step, 16 + k), pids)
        for now, then in zip(self.world.run(count_fds), fds):
            self.assertLessEqual(now, then + 2)

    def test_a_body_finds_the_world_of_the_test_each_time(self):
        os.environ["ADDEND_TEST_OF_RANKS"] = "set by the test"
        try:
            first, second = self.world.run(look_around), self.world.run(look_around)
        finally:
            del os.environ["ADDEND_TEST_OF_RANKS"]
        self.assertEqual(first, second)
        self.assertEqual(first[0][:2], ("set by the test", os.getcwd()))
        self.assertEqual(len(set(first)), 1)

    def test_an_assertion_on_one_rank(self):
        said, printed = self.fail_with(assert_on_one, 2)
        first, _, rest = said.partition("\n")
        says(self, first, "rank 2", "4")
        self.assertRegex(rest, r"^Traceback[^\n]*\n[^\n]*test_testing.py")
        self.assertIn("AssertionError: the sum", said)
        says(self, said, "ranks 0", "1", "3", "PeerFailedError", "rank 2", "AssertionError")
        self.assertEqual(printed, "[rank 2] before it\n")

    def test_an_error_while_others_wait_in_another_group(self):
        start = time.monotonic()
        said, _ = self.fail_with(raise_in_another_group)
        says(self, said.partition("\n")[0], "rank 1", "4")
        self.assertIn("KeyError: 'gone'", said)
        says(self, said, "ranks 0", "2", "3", "PeerFailedError", "rank 1", "KeyError")
        self.assertLess(time.monotonic() - start, HANGS)

    def test_ranks_that_die(self):
        for how, word in (("exit", "status 3"), ("kill", "SIGKILL")):
            said, _ = self.fail_with(die, how)
            says(self, said.partition("\n")[0], "rank 1", "4", word)
            says_facts(self, said, "ranks 0", "2", "3", "RankDiedError")

    def test_a_rank_that_hangs_is_said_where(self):
        said, _ = self.fail_with(hang, "sleep", timeout=IN_TIME)
        says(self, said.partition("\n")[0], "rank 3", "4", f"{IN_TIME} s")
        self.assertRegex(said.split("\n")[1], r"test_testing.py.*in sleep_long")

    def test_a_rank_that_is_stopped(self):
        said, _ = self.fail_with(hang, "stop", timeout=IN_TIME)
        says(self, said.partition("\n")[0], "rank 3", "4", f"{IN_TIME} s")
        says(self, said.split("\n")[1])

    def test_a_rank_that_makes_a_call_less(self):
        said, _ = self.fail_with(leave_early)
        says_facts(self, said, "rank 2", "leave_early", "all_reduce")

    def test_what_a_rank_started_ends_with_it(self):
        _, printed = self.fail_with(leave_a_child)
        children = re.findall(r"child (\d+)\.", printed)
        self.assertIn(len(children), range(1, 5), printed)
        self.assertEqual([child for child in children if runs(child)], [])

    def test_what_cannot_be_sent(self):
        said, _ = self.fail_with(return_a_lock)
        says_facts(self, said, "return_a_lock")

    def test_a_body_that_ranks_cannot_find(self):
        for body in (lambda: 1, self.test_ranks_that_die, print):
            with raises(self, addend.InvalidError, body.__qualname__):
                self.world.run(body)

    def test_ranks_that_died_between_bodies_are_started_anew(self):
        """The next body is asked for at once, when the deaths may not be seen yet."""
        for _ in range(3):
            pids = self.world.run(get_pid)
            os.kill(pids[1], signal.SIGKILL)
            self.assertFalse(set(pids) & set(self.world.run(get_pid)))

    def test_a_server_that_died_is_started_anew(self):
        for _ in range(3):
            pids, server = self.world.run(get_pid), self.world._pool._server.pid
            os.kill(server, signal.SIGKILL)
            self.assertFalse(set(pids) & set(self.world.run(get_pid)))
            self.assertEqual(await_gone(pids), [])

    def test_a_server_that_is_stopped_before_it_dies(self):
        """A process that was killed answers nothing, however long its end takes."""
        pids, server = self.world.run(get_pid), self.world._pool._server.pid
        os.kill(server, signal.SIGSTOP)
        kill = threading.Timer(1.0, os.kill, (server, signal.SIGKILL))
        kill.start()
        self.assertFalse(set(pids) & set(self.world.run(get_pid)))
        kill.join()
        self.assertEqual(await_gone(pids), [])


class Server(unittest.TestCase):
    def test_one_that_does_not_end_by_itself_is_killed(self):
        """However long that takes, closing the world is no error, and the ranks end with the server."""
        world = World(2, timeout=HANGS)
        pids, server = world.run(get_pid), world._pool._server.pid
        os.kill(server, signal.SIGSTOP)
        with unittest.mock.patch.object(_testing_pool, "_GENTLY", 0.1):
            world.close()
        self.assertEqual(await_gone([*pids, server]), [])
        with world:
            self.assertFalse(set(pids) & set(world.run(get_pid)))


HEAD = """
import os, pathlib, time
import pytest, torch
import torch.distributed as dist
from addend.torch.testing import ranks

world = ranks(2, timeout=60)

def body():
    pathlib.Path(f"pid{dist.get_rank()}").write_text(str(os.getpid()))
    dist.barrier()
    time.sleep(1000)
"""
WHOLE = """
class TestClass:
    @pytest.mark.addend(ranks=3)
    @pytest.mark.parametrize("start", [1, 2])
    def test_sum(self, addend_ranks, start, tmp_path):
        assert addend_ranks == dist.get_world_size() == 3
        tensor = torch.tensor([start + dist.get_rank()])
        dist.all_reduce(tensor)
        assert tensor.item() == 3 * start + 3

def pids():
    return os.getpid()

def test_world(world):
    assert world.run(pids) == world.run(pids)

def test_same_processes(addend_ranks):
    pathlib.Path(f"first{dist.get_rank()}").write_text(str(os.getpid()))

def test_same_processes_again(addend_ranks):
    assert pathlib.Path(f"first{dist.get_rank()}").read_text() == str(os.getpid())

def test_skipped(addend_ranks):
    pytest.skip("not here")

def test_wrong(addend_ranks):
    print("said before")
    assert dist.get_rank() == 0
"""


class Pytest(unittest.TestCase):
    def start(self, folder, text):
        pathlib.Path(folder, "test_ranks.py").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-p", "pytest_addend", "-p", "no:cacheprovider", "-rs"]
        return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_the_page(self):
        page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "torch-testing.md"
        example = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S).group(1)
        with tempfile.TemporaryDirectory() as folder:
            said, _ = self.start(folder, example).communicate(timeout=HANGS)
        self.assertIn("2 passed", said)

    def test_whole_tests_and_bodies(self):
        before = left_behind()
        with tempfile.TemporaryDirectory() as folder:
            running = self.start(folder, HEAD + WHOLE)
            said, _ = running.communicate(timeout=HANGS)
        self.assertIn("1 failed, 5 passed, 1 skipped", said)
        self.assertIn("not here", said)
        says_facts(self, said, "rank 1", "2")
        self.assertRegex(said, r"\nAssertionError: assert 1 == 0\n")
        self.assertIn("[rank 1] said before", said)
        self.assertLessEqual(left_behind(), before)

    def test_an_interrupted_run_leaves_nothing(self):
        """End by Ctrl-C, and without warning."""
        for end, status in ((signal.SIGINT, 2), (signal.SIGKILL, -9)):
            before = left_behind()
            with tempfile.TemporaryDirectory() as folder:
                running = self.start(folder, HEAD + "\ndef test_long(world):\n    world.run(body)\n")
                files = [pathlib.Path(folder, f"pid{rank}") for rank in range(2)]
                deadline = time.monotonic() + HANGS
                while not all(file.exists() and file.read_text() for file in files):
                    self.assertLess(time.monotonic(), deadline)
                    self.assertIsNone(running.poll(), running.poll() is not None and running.stdout.read())
                    time.sleep(0.05)
                pids = [int(file.read_text()) for file in files]
                server = int(re.search(r"PPid:\t(\d+)", pathlib.Path(f"/proc/{pids[0]}/status").read_text()).group(1))
                running.send_signal(end)
                running.communicate(timeout=HANGS)
            self.assertEqual(running.returncode, status)
            self.assertEqual(await_gone([*pids, server]), [])
            self.assertLessEqual(left_behind(), before)


if __name__ == "__main__":
    try:
        import pytest  # noqa: F401
    except ImportError:
        skip_file(__name__, f"{sys.executable} has no pytest (script/torch installs it)")
    unittest.main()
