"""Test that parameters and modules of a wrapped model have their names in one process: wrappers of PyTorch, of other
frameworks and of a job's own, whatever the attribute is called in which they keep the model."""

import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch
from addend.torch import _plain
from addend.torch._checks import _names


class Net(nn.Module):
    """A model with a module that is called as the attribute of many wrappers."""

    def __init__(self):
        super().__init__()
        self.up, self.module = nn.Linear(3, 5), nn.Sequential(nn.Linear(5, 2))

    def forward(self, x):
        return self.module(torch.tanh(self.up(x)))


NAMES = {"up.weight", "up.bias", "module.0.weight", "module.0.bias"}


class Wrapper(nn.Module):
    """A job's own wrapper."""

    def __init__(self, model, attribute="module"):
        super().__init__()
        self.attribute = attribute
        setattr(self, attribute, model)

    def forward(self, x):
        return getattr(self, self.attribute)(x)


class Engine(Wrapper):
    """As DeepSpeed's engine: it has other modules beside the model, which have no parameters."""

    def __init__(self, model):
        super().__init__(model)
        self.timer = nn.Identity()
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class Fabric(nn.Module):
    """As Lightning's: it has the wrapped model and the model itself."""

    def __init__(self, forward, original):
        super().__init__()
        self._forward_module, self._original_module = forward, original

    def forward(self, x):
        return self._forward_module(x)


def names_of(model):
    return {name for name, _ in _names.parameters(model)}


class Learnt(unittest.TestCase):
    def test_a_wrapper_s_attribute_is_no_part_of_a_name(self):
        for wrap in (
            Wrapper,
            lambda net: Wrapper(net, "model"),
            Engine,
            lambda net: Fabric(net, net),
            lambda net: Fabric(Wrapper(net, "ddp"), net),
            lambda net: Wrapper(Wrapper(Wrapper(net), "model")),
            lambda net: torch.compile(Wrapper(net), backend="eager"),
            lambda net: Wrapper(torch.compile(net, backend="eager")),
            lambda net: net,
        ):
            net = Net()
            model = wrap(net)
            _plain.learn(model, NAMES)
            self.assertEqual(names_of(model), NAMES)
            modules = dict(_names.modules(model))
            self.assertEqual(
                {name: modules[name] for name in ("up", "module.0")}, {"up": net.up, "module.0": net.module[0]}
            )

    def test_a_part_is_wrapped(self):
        net = Net()
        net.up, net.module = Wrapper(net.up, "inner"), Wrapper(net.module)
        _plain.learn(net, NAMES)
        self.assertEqual(names_of(net), NAMES)

    def test_what_is_another_model_keeps_its_names(self):
        for change, names in (
            (lambda net: net, {"weight", "up.weight"}),
            (lambda net: setattr(net, "down", nn.Linear(2, 2)), NAMES),
            (lambda net: setattr(net, "extra", Wrapper(nn.Linear(2, 2), "up")), NAMES),  # up.weight is another one
        ):
            net = Net()
            change(net)
            before = [name for name, _ in net.named_parameters()]
            _plain.learn(net, names)
            self.assertEqual(sorted(names_of(net)), sorted(before))

    def test_a_wrapper_is_learnt_for_itself_alone(self):
        one, other = Wrapper(Net()), Wrapper(Net())
        _plain.learn(one, NAMES)
        self.assertEqual(names_of(other), {f"module.{name}" for name in NAMES})


def make_model():
    torch.manual_seed(4)
    return Net()


def batches(rank, mesh):
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(2 * mesh.size(), 3, generator=draw, dtype=torch.float64)
    return [rows if rank is None else rows[2 * rank : 2 * rank + 2]]


def loss(model, batch):
    return model(batch).pow(2).sum(), len(batch)


def in_engine(model, mesh):
    return Engine(DistributedDataParallel(model))


def in_fabric(model, mesh):
    return Fabric(DistributedDataParallel(model), model)


def summed_by_hand(model, mesh):
    return Wrapper(model, "inner")


def in_flat(model, mesh):
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = FullyShardedDataParallel(Wrapper(model), device_id=torch.device("cpu"), use_orig_params=True)
    return Wrapper(wrapped)


def sums(model, microbatches, loss):
    for batch in microbatches:
        loss(model, batch).backward()
    for name, parameter in model.named_parameters():
        if not name.endswith("up.bias"):
            dist.all_reduce(parameter.grad)


class Check(unittest.TestCase):
    def test_wrapped_jobs(self):
        for parallelize in (in_engine, in_fabric, in_flat):
            with self.subTest(parallelize.__name__):
                report = addend.torch.check(make_model, parallelize, batches, loss, 2)
                self.assertTrue(report.ok, report)
                self.assertEqual({param.name for param in report.params}, NAMES)

    def test_a_bug_in_a_wrapper_is_found_in_its_sum(self):
        report = addend.torch.check(make_model, summed_by_hand, batches, loss, 2, run=sums)
        self.assertEqual([param.name for param in report.params if not param.ok], ["up.bias"])
        wrong = {
            param["name"]: param["kind"] for param in report.document["diff"]["params"] if param["verdict"] == "wrong"
        }
        self.assertEqual(wrong, {"up.bias": "own_only"})


if __name__ == "__main__":
    unittest.main()
