"""Test what the watch does on an accelerator, if the machine has one: a watched backward does not wait for the device,
addends are copied once, at the end, and ranks that share the device are judged as on processors. script/accelerator
runs this and more on one. Without one the way there is tested on the processor.
"""

import contextlib
import pathlib
import subprocess
import sys
import unittest
from unittest import mock

import accelerator
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch
import ranks
from addend.torch import _sample

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "script" / "accelerator"
WIDTH, MICROBATCHES = 128, 3
# A protocol's name, an example, and a script for other machines.
NAMED = {ROOT / "python/addend" / name for name in ("_arrays.py", "torch/_gather.py", "torch/_matrix/_reproduce.py")}


@contextlib.contextmanager
def forbidden_waits():
    """Raise if the host waits for the device inside, where the device's module can tell."""
    module = torch.get_device_module(ranks.DEVICE)
    if not hasattr(module, "set_sync_debug_mode"):
        yield
        return
    module.set_sync_debug_mode("error")
    try:
        yield
    finally:
        module.set_sync_debug_mode("default")


def watched_alone():
    """Return (what the report says, devices of each copy during the step, and until its end)."""
    ranks.take_device()
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    copied, bring = [], _sample.bring

    def counted(pieces):
        pieces = list(pieces)
        copied.append(len({piece.values.device for piece in pieces}))
        bring(pieces)

    with mock.patch.object(_sample, "bring", counted), contextlib.redirect_stdout(None):
        with addend.torch.watch(model) as watch:
            for _ in range(MICROBATCHES):
                loss = model(torch.randn(8, WIDTH)).square().mean()
                with forbidden_waits():
                    loss.backward()
            inside = list(copied)
    return watch.report.ok, f"{watch.report}", inside, copied


def watched_pair(synced):
    """Return the verdict on a job of two ranks, and where its gradients are."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4))
    torch.manual_seed(1 + dist.get_rank())
    with contextlib.redirect_stdout(None), addend.torch.watch(model) as watch:
        with contextlib.nullcontext() if synced else model.no_sync():
            model(torch.randn(16, 8)).square().mean().backward()
    return watch.report.verdict, model.module.weight.grad.device.type


class Device(unittest.TestCase):
    @unittest.skipIf(ranks.DEVICE.type == "cpu", "no accelerator is here: what a watch waits for there was not tested")
    def test_a_backward_waits_for_nothing(self):
        ((ok, said, inside, copied),) = ranks.run(1, watched_alone, joined=False)
        self.assertTrue(ok, said)
        self.assertEqual(inside, [])
        self.assertEqual(len(copied), 2)  # one copy of addends and one of sums

    def test_two_ranks_share_a_device(self):
        for synced, verdict in (True, "right"), (False, "wrong"):
            self.assertEqual(ranks.run(2, watched_pair, synced), [(verdict, ranks.DEVICE.type)] * 2)

    def test_no_device_is_named_in_the_package(self):
        files = set((ROOT / "python/addend").rglob("*.py")) - NAMED
        self.assertGreater(len(files), 50)
        self.assertEqual([path for path in files if "cuda" in path.read_text(encoding="utf-8").lower()], [])


@unittest.skipUnless(ranks.DEVICE.type == "cpu", "the script that runs this ran")
class Script(unittest.TestCase):
    def run_script(self, *arguments):
        ended = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stdout.strip()

    def test_without_an_accelerator_it_says_so(self):
        if self.run_script("--find"):
            self.skipTest("there is one")
        self.assertIn("nothing was tested", self.run_script())

    def test_kinds_are_told_apart(self):
        """On the processor, as if it were the device: what a device's collectives lack is left out, and a wrong answer
        is none of that."""
        found = accelerator.count_answers(
            [
                ("one", "right", ""),
                ("two", "FAILED", "RuntimeError: ProcessGroupGloo::reduce_scatter: unsupported device type xpu"),
                ("three", "FAILED", "AssertionError: no"),
                ("four", "FALSE ALARM", "BAD w: unsupported device"),
            ]
        )
        self.assertEqual((found.good, found.left_out, found.bad), (["one"], ["two"], ["three", "four"]))


if __name__ == "__main__":
    sys.exit(unittest.main())
