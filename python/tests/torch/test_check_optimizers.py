"""Test what `addend.torch.check` says of optimizer steps: right ones of several optimizers, in f64 like all else, and
updates that are wrong where the gradients are right.
"""

import unittest

import torch
import torch.distributed as dist
import torch.nn.functional as F
from says import says
from torch import nn

from addend.torch import check

HANGS = 120  # seconds; many times what a check takes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.up = nn.Embedding(7, 6), nn.Linear(6, 8)
        self.attend, self.head = (
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 7),
        )

    def forward(self, x):
        y = self.up(self.emb(x))
        return self.head(y + self.attend(y, y, y, need_weights=False)[0])


class Softmax(torch.autograd.Function):
    """A softmax that has no f64."""

    @staticmethod
    def forward(context, x):
        if x.dtype != torch.float32:
            raise TypeError(f"this softmax takes f32, not {x.dtype}")
        context.save_for_backward(x.softmax(-1))
        return x.softmax(-1)

    @staticmethod
    def backward(context, gradient):
        (y,) = context.saved_tensors
        return y * (gradient - (gradient * y).sum(-1, keepdim=True))


class Narrow(nn.Module):
    """A model whose first feature moves all logits alike: its gradient is only the softmax's rounding."""

    def __init__(self):
        super().__init__()
        self.emb, self.up, self.head, self.shift = nn.Embedding(7, 6), nn.Linear(6, 8), nn.Linear(8, 7), 0.0
        with torch.no_grad():
            self.head.weight[:, 0] = 0.5

    def forward(self, x):
        return Softmax.apply(self.head(self.up(self.emb(x))) + self.shift) * 9


def batches(rank, mesh):
    x = torch.randint(7, (6, 5), generator=torch.Generator().manual_seed(3))
    return [x] if rank is None else [x.chunk(mesh.size())[rank]]


def loss(model, x):
    return F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten(), reduction="sum"), x[:, 1:].numel()


def ddp(model, mesh):
    return nn.parallel.DistributedDataParallel(model)


def shifted(model, mesh):
    """The ranks' softmax is of the same value, and rounds otherwise."""
    model.shift = 0.3
    return ddp(model, mesh)


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.up)
    fully_shard(model)


def matrices(model):
    return [parameter for parameter in model.parameters() if parameter.ndim == 2]


def hooked(optimizer):
    """An optimizer with hooks that change gradients in a narrower dtype and then scale the update."""

    def narrow(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.copy_((parameter.grad.to(torch.bfloat16) * 0.5).float())

    optimizer.register_step_pre_hook(narrow)
    return optimizer


OPTIMIZERS = {
    "Muon": lambda model: torch.optim.Muon(matrices(model), 0.1),
    "fused AdamW": lambda model: torch.optim.AdamW(model.parameters(), 0.1, fused=True),
    "foreach AdamW": lambda model: torch.optim.AdamW(model.parameters(), 0.1, foreach=True),
    "AdamW with hooks": lambda model: hooked(torch.optim.AdamW(model.parameters(), 0.1)),
    "Adafactor": lambda model: torch.optim.Adafactor(matrices(model), 0.1),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True),
}


class Sign(torch.optim.Optimizer):
    """Makes as much of a gradient that is rounding alone (that of the attention's key bias) as of any other."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad.sign() * 0.1)


def checked(optimizer, parallelize=ddp, steps=2):
    return check(
        Net,
        parallelize,
        batches,
        loss,
        2,
        optimizer=optimizer,
        steps=steps,
        timeout=HANGS,
    )


def unlike_alone(model, step):
    """A decay that differs on the ranks, from this step on."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    done = []

    def count(*_):
        done.append(1)
        if dist.is_initialized() and len(done) == step:
            optimizer.param_groups[0]["weight_decay"] = 0.5

    optimizer.register_step_pre_hook(count)
    return optimizer


class RightSteps(unittest.TestCase):
    def test_of_each_optimizer_and_wrapper(self):
        for name, optimizer in OPTIMIZERS.items():
            for parallelize in (ddp, sharded):
                with self.subTest(f"{name}, {parallelize.__name__}"):
                    if name == "Adafactor" and parallelize is sharded:
                        continue  # its means over rows are those of shards
                    report = checked(optimizer, parallelize)
                    self.assertTrue(report.ok, report)

    def test_of_one_that_makes_much_of_rounding(self):
        report = checked(lambda model: Sign(model.parameters()), steps=1)
        self.assertTrue(report.ok, report)

    def test_of_one_that_makes_much_of_rounding_to_f32(self):
        report = check(
            make_model=Narrow, parallelize=shifted, batches=batches, loss=loss, mesh=2,
            optimizer=lambda model: Sign(model.parameters()), steps=1,
        )  # fmt: skip
        self.assertTrue(report.ok, report)
        self.assertGreater(report.bound, 1e-9)


class WrongSteps(unittest.TestCase):
    def test_the_optimizer_is_named_with_its_step(self):
        for step in (1, 2):
            report = checked(lambda model, step=step: unlike_alone(model, step))
            self.assertIs(report.ok, False)
            self.assertEqual((report.begins.place, report.begins.step), ("optimizer", step), report)
            says(self, str(report), f"step {step}")

    def test_a_wrong_gradient_comes_before_the_update(self):
        report = checked(OPTIMIZERS["SGD"], lambda model, mesh: model)
        self.assertEqual((report.begins.place, report.begins.step), ("reduction", None), report)


if __name__ == "__main__":
    unittest.main()
