"""Test on a CUDA device that a watched backward does not wait for the device, and that addends are copied once, at
the end.
"""

import contextlib
import unittest
from unittest import mock

import torch
from torch import nn

import addend.torch
from addend.torch import _sample

WIDTH, MICROBATCHES = 128, 3


@unittest.skipUnless(torch.cuda.is_available(), "no CUDA device is here: what a watch does on one was not tested")
class Cuda(unittest.TestCase):
    def step_of(self, model):
        for _ in range(MICROBATCHES):
            x = torch.randn(8, WIDTH, device="cuda")
            loss = model(x).square().mean()
            torch.cuda.set_sync_debug_mode("error")
            try:
                loss.backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")

    def test_a_backward_waits_for_nothing(self):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).to("cuda")
        copied, bring = [], _sample.bring

        def counted(pieces):
            pieces = list(pieces)
            copied.append(len({piece.values.device for piece in pieces}))
            bring(pieces)

        with mock.patch.object(_sample, "bring", counted), contextlib.redirect_stdout(None):
            with addend.torch.watch(model) as watch:
                self.step_of(model)
                self.assertEqual(copied, [])
        self.assertTrue(watch.report.ok, str(watch.report))
        self.assertEqual(len(copied), 2)  # one copy of addends and one of sums


if __name__ == "__main__":
    unittest.main()
