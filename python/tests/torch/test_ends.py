"""Test by tables of synthetic inputs what is reported of ranks that failed, died or hang: which of them comes first,
and which lines of their output or stacks. No rank runs. Sources: _testing_pool and _checks/_ranks of addend.torch.
"""

import pathlib
import tempfile
import types
import unittest
from unittest import mock

from addend.torch import _testing_pool
from addend.torch._checks import _ranks

SHOWN = 12  # lines


def frames(first, count, file="job.py"):
    return [f'  File "{file}", line {line} in step' for line in range(first, first + count)]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.signals = []
        for name, instead in (
            ("os.kill", lambda pid, _: self.signals.append(pid)),
            ("time.sleep", lambda seconds: None),
        ):
            patch = mock.patch(name, instead)
            patch.start()
            self.addCleanup(patch.stop)


class InTests(Folder):
    """Ranks that run bodies of tests."""

    def hung(self, *lines):
        pool = _testing_pool.Pool(2)
        pool._folder, pool._pids = self.folder, [70, 71]
        (self.folder / "stack1").write_text("".join(f"{line}\n" for line in lines))
        found = pool._where(1)
        self.assertEqual((found.outcome, self.signals.pop(), self.signals), ("hung", 71, []))
        return found.text.splitlines()

    def test_a_stack_is_that_of_the_body(self):
        below = frames(900, 3, _testing_pool._BELOW_THE_BODY)
        for count in (1, SHOWN - 1, SHOWN, SHOWN + 1, 50):
            for rest in ([], below):
                with self.subTest(count=count, rest=len(rest)):
                    said = self.hung("Current thread:", *frames(1, count), *rest)
                    self.assertEqual(said, frames(1, min(count, SHOWN)))

    def test_a_place_that_is_not_known(self):
        with mock.patch.object(_testing_pool, "_STACKS", 0.0):
            self.assertNotIn("File", *self.hung())
        self.assertNotIn("File", *self.hung("Current thread:", *frames(900, 3, _testing_pool._BELOW_THE_BODY)))

    def test_the_likely_cause_comes_first(self):
        """Each beside the next: a failure, one that follows from it, a hang outside calls, one in a call, success."""
        ends = [
            ("failed", "KeyError"),
            ("failed", "RankLeftError: rank 1"),
            ("hung", "\n".join(frames(1, 2))),
            ("hung", "\n".join(frames(1, 2, _testing_pool._IN_A_CALL))),
            ("passed", b"PeerFailedError"),
        ]
        for first, then in zip(ends, ends[1:]):
            early, late = (_testing_pool.Ended(*first, when=9.0), _testing_pool.Ended(*then, when=1.0))
            self.assertLess(early.order(), late.order(), (first, then))
        for outcome, text in ends:
            early, late = (_testing_pool.Ended(outcome, text, when) for when in (1.0, 1.5))
            self.assertLess(early.order(), late.order(), outcome)
        for outcome, text in (("died", "status 3: PeerFailedError"), ("skipped", "RankDiedError"), ("failed", "")):
            self.assertEqual(_testing_pool.Ended(outcome, text, 1.0).order(), (0, 1.0), outcome)
        for name in ("PeerFailedError", "RankLeftError", "RankDiedError"):
            self.assertEqual(_testing_pool.Ended("failed", name, 1.0).order(), (1, 1.0), name)

    def reported(self, first, *ends):
        ended = [_testing_pool.Ended(outcome, text, 0.0) for outcome, text in ends]
        return _testing_pool._reported(ended, first, 2.5).splitlines()

    def test_equal_ends_of_other_ranks_share_a_line(self):
        ends = [("failed", "Traceback\nKeyError: 1\n"), ("passed", b""), ("died", "SIGKILL"), ("passed", b"2")]
        head, *rest = self.reported(0, *ends)
        self.assertEqual([rest[0], rest[1], len(rest)], ["Traceback", "KeyError: 1", 4])
        self.assertTrue(head.startswith("rank 0 of 4 "))
        self.assertTrue(rest[2].startswith("ranks 1, 3 "))
        self.assertTrue(rest[3].startswith("rank 2 "))
        self.assertIn("SIGKILL", rest[3])
        head, *rest = self.reported(2, *ends)
        self.assertIn("SIGKILL", head)
        self.assertEqual([line.split()[:3:2] for line in rest], [["rank", "failed:"], ["ranks", "3"]])
        self.assertTrue(rest[0].endswith("KeyError: 1"))
        head, *rest = self.reported(1, ("hung", "  at 7"), ("hung", "  at 8"), ("skipped", "no GPU"))
        self.assertIn(" 2.5 s", head)
        self.assertEqual([rest[0], rest[2], rest[3].rpartition(": ")[2]], ["  at 8", "  at 7", "no GPU"])


class InACheck(Folder):
    """Ranks of a check, and the one process beside them."""

    def test_the_stacks_of_those_that_hang(self):
        for count in (1, SHOWN - 1, SHOWN, SHOWN + 1, 50):
            for name in ("rank0", "rank1"):
                (self.folder / f"{name}.stack").write_text("\n".join(["Thread 1:", *frames(count, count), ""]))
            processes = {f"rank {rank}": types.SimpleNamespace(pid=70 + rank) for rank in range(3)}
            _, _, *said = _ranks._stacks(str(self.folder), processes, ["rank 0", "rank 1"]).splitlines()
            shown = frames(count, min(count, SHOWN))
            self.assertEqual(said[: len(shown)] + said[len(shown) + 1 :], 2 * shown)
            self.assertIn("rank 1", said[len(shown)])
        self.assertEqual(self.signals, [70, 71] * 5)

    def test_the_last_lines_of_one_that_died(self):
        path = self.folder / "said"
        self.assertEqual(_ranks._last_lines(str(path)), "")
        for count in (0, 1, SHOWN, SHOWN + 1, 50):
            lines = [f"line {i}" for i in range(count)]
            path.write_text("\n \n".join(lines))
            self.assertEqual(_ranks._last_lines(str(path)), "".join(f"\n  {line}" for line in lines[-SHOWN:]))

    def test_progress_bars_are_no_last_lines(self):
        path = self.folder / "said"
        bars = [f"\rLoading weights: {n:3d}%|{'#' * (n // 10)}| {n}/100 [00:00<00:01]" for n in range(0, 101, 5)]
        path.write_text(f"first\n{''.join(bars)}\n{bars[0]}terminate called\nwhat(): 90% of it\n{bars[3]}")
        self.assertEqual(_ranks._last_lines(str(path)), "\n  first\n  what(): 90% of it")

    def test_the_likely_cause_comes_first(self):
        for text, place in (
            ("KeyError: 1", 0),
            (f"rank 1 {_ranks.HUNG} 8 s", 1),
            ("RuntimeError: Connection closed by peer [127.0.0.1]", 2),
            ("Broken pipe", 2),
            (f"rank 1 {_ranks.HUNG} 8 s: Broken pipe", 2),
        ):
            self.assertEqual(_ranks.follows(text), place, text)


if __name__ == "__main__":
    unittest.main()
