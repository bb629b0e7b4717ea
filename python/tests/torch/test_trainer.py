"""Test `addend.torch.watch_trainer` with the real Trainer of transformers, on two ranks: which steps it watches, that
clipping comes after it, that a mistake ends the training, and that it leaves nothing behind. Skipped without
transformers.
"""

import contextlib
import io
import logging
import os
import re
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from says import raises, says
from skips import skip_file
from torch import nn

import addend
import addend.torch
import ranks

try:
    import transformers
except ImportError:
    transformers = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = nn.Linear(6, 30), nn.Linear(30, 20)

    def forward(self, x, labels=None):
        return {"loss": (self.down(torch.tanh(self.up(x))) - labels).square().mean()}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        return {"x": torch.randn(6, generator=generator), "labels": torch.randn(20, generator=generator)}


def new_trainer(folder, **more):
    logging.disable(logging.WARNING)
    reported = dict(
        output_dir=folder,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=4,
        max_grad_norm=0.01,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    return transformers.Trainer(Net(), transformers.TrainingArguments(**{**reported, **more}), train_dataset=Rows())


def train(folder, every, wrong=False, raises=False, **more):
    """Return (what was printed, whether the last report is right, the last step, the weights' sum)."""
    trainer, said = new_trainer(folder, **more), io.StringIO()
    callback = every and addend.torch.watch_trainer(trainer, every=every, raises=raises, show=True)
    raised = False
    with contextlib.redirect_stdout(said):
        with addend.torch.mutate(trainer.model, "double") if wrong else contextlib.nullcontext():
            try:
                trainer.train()
            except addend.GradientError:
                raised = True
    left = [name for name in vars(trainer.accelerator) if name == "clip_grad_norm_"]
    weights = sum(p.double().sum().item() for p in trainer.model.parameters())
    report = callback.report if callback else None
    wrapped = type(trainer.model_wrapped).__name__
    return said.getvalue(), report and report.ok, raised, trainer.state.global_step, left, weights, wrapped


def run(*arguments, **more):
    """Return the results of both ranks, each in an environment as torchrun makes it."""
    with tempfile.TemporaryDirectory() as folder:
        return ranks.run(2, _train, folder, arguments, more)


def _train(folder, arguments, more):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # the ranks have joined already
    return train(f"{folder}/{dist.get_rank()}", *arguments, **more)


@unittest.skipUnless(transformers, "transformers is not installed")
class Trainer(unittest.TestCase):
    def test_steps_are_watched_before_they_are_clipped(self):
        for more in {}, {"max_grad_norm": 0.0}:
            with self.subTest(more):
                first, second = run(2, **more)
                verdicts = re.findall("^matches: ", first[0], re.M)  # first and last lines, of steps 1 and 3
                self.assertEqual(len(verdicts), 4, first[0])
                says(self, first[0], "2 ranks", "dp=2", "2 microbatches")
                self.assertEqual((second[1], second[2], second[3], second[4]), (True, False, 4, []))
                self.assertEqual(second[6], "DistributedDataParallel")

    def test_a_watched_training_has_the_same_bits(self):
        self.assertEqual([one[5] for one in run(0)], [one[5] for one in run(1)])

    def test_a_bug_is_reported_and_may_end_the_training(self):
        first, second = run(1, True)
        self.assertEqual((first[1], first[2], first[3]), (False, False, 4))
        says(self, first[0], "BAD", "rank 1", "2 times")
        for said in run(1, True, True):
            self.assertEqual((said[2], said[3], said[4]), (True, 0, []))

    def test_every_is_a_count(self):
        with raises(self, ValueError, "every=0"):
            addend.torch.watch_trainer(None, every=0)


if __name__ == "__main__":
    if transformers is None:
        skip_file(__name__, f"{sys.executable} has no transformers (script/torch installs it)")
    unittest.main()
