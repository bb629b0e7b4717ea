"""Test addend=: jobs whose backward adds weight gradients to a buffer itself, as Megatron's fused kernels do, and gives
autograd memory that nobody wrote, or nothing.
"""

import contextlib
import functools
import types
import unittest

import torch
import torch.distributed as dist
from says import raises_facts
from torch import nn

import addend.torch
import ranks
from addend.torch import _addends, _buffers, _frameworks, _parameters, _sample

IN, HIDDEN, ROWS = 6, 8, 5
FUSED, PLAIN = ["up.weight", "down.weight"], ["norm.weight", "norm.bias"]


class Fused(torch.autograd.Function):
    """A product whose backward adds the weight's gradient to `weight.main_grad`. `dummy`: what autograd gets for the
    weight, NaN for memory that nobody wrote; None: nothing. `later`: a list to which the work is left.
    """

    @staticmethod
    def forward(ctx, x, weight, dummy, later):
        ctx.save_for_backward(x, weight)
        ctx.dummy, ctx.later = dummy, later
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors

        def add():
            weight.main_grad.add_(gradient.t() @ x)

        add() if ctx.later is None else ctx.later.append(add)
        weight.grad_added_to_main_grad = True
        return gradient @ weight, None if ctx.dummy is None else torch.full_like(weight, ctx.dummy), None, None


class Linear(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) / 3)
        self.dummy, self.later = float("nan"), None

    def forward(self, x):
        return Fused.apply(x, self.weight, self.dummy, self.later)


class Net(nn.Module):
    """A net of fused layers with a norm in front, in Megatron's DistributedDataParallel: after each backward a
    parameter's gradient is added to its `main_grad` and cleared, unless the kernel has added it.
    """

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.up, self.down = nn.LayerNorm(IN), Linear(HIDDEN, IN), Linear(HIDDEN, HIDDEN)
        self.to(dtype)
        self.nodes = [torch.autograd.graph.get_gradient_edge(p).node for p in self.parameters()]
        for p, node in zip(self.parameters(), self.nodes):
            p.main_grad, p.grad_added_to_main_grad = torch.zeros(p.shape), False
            node.register_hook(lambda *_, p=p: self.collect(p))

    @staticmethod
    def collect(p):
        if p.grad is not None and (not p.grad_added_to_main_grad or getattr(p, "zero_out_wgrad", False)):
            p.main_grad.add_(p.grad)
        p.grad = None

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.norm(x))))


def batch(microbatch):
    return torch.randn(ROWS, IN, generator=torch.Generator().manual_seed(10 * dist.get_rank() + microbatch))


def sum_buffers(model):
    for p in model.parameters():
        dist.all_reduce(p.main_grad)


def main_grad(p):
    return p.main_grad


MEGATRON = _frameworks._FusedGradient()
OPTIONS = {"gradient": main_grad, "addend": MEGATRON}


def judged(model, microbatches=3, after=None, at_end=sum_buffers, scale=1.0, **options):
    """Return the (kind, verdict) of each parameter after a step. `after`: called after each backward."""
    watch = addend.torch.watch(model, **{**OPTIONS, **options})
    with watch:
        for m in range(microbatches):
            (scale * model(batch(m).to(model.up.weight.dtype)).square().mean()).backward()
            if after:
                after(model)
        at_end(model)
    return {p.name: (p.kind, p.verdict) for p in watch.report.params}, str(watch.report)


# -- jobs: each returns what judged() does


def right(dtype=torch.float32):
    return judged(Net(dtype))


def without_gradients():
    model = Net()
    model.up.dummy = model.down.dummy = None
    return judged(model)


def only_own():
    return judged(Net(), at_end=lambda model: None)


def bridge(**options):
    """A hook sums what autograd gives a weight, and nobody sums its buffer (Megatron-Bridge #6009)."""
    model = Net()

    def summed(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

    for layer in (model.up, model.down):
        layer.dummy = 0.0
        layer.weight.register_hook(summed)
    return judged(
        model, at_end=lambda model: [dist.all_reduce(p.main_grad) for p in model.norm.parameters()], **options
    )


def kept():
    """Return of how many buffers a watch keeps what they held, in its step and after it."""
    model = Net()
    watch = addend.torch.watch(model, **OPTIONS)
    with watch:
        model(batch(0)).square().mean().backward()
        during = len(watch._addends.buffers._last)
        sum_buffers(model)
    return during, len(watch._addends.buffers._last)


def zeros():
    return judged(Net(), scale=0.0)


def summed_each_time():
    """A buffer that is summed after each microbatch, and not cleared: the earlier ones count twice."""
    return judged(Net(), microbatches=2, after=sum_buffers, at_end=lambda model: None)


def late(microbatches):
    """Weight gradients that are computed after the backward."""
    model = Net()
    model.up.later = model.down.later = later = []

    def compute(model):
        while later:
            later.pop()()

    return judged(model, microbatches, after=compute)


def misused():
    """addend= names a buffer to which autograd's gradient is added after the hook."""
    return judged(Net(), addend=main_grad)


def one_idle_rank():
    """On one rank all gradients are zero, and the sum changes buffers that no backward there changed."""
    return judged(Net(), scale=0.0 if dist.get_rank() else 1.0)


def tied(adds):
    """A weight that a fused layer has and that autograd gives a gradient as well; `adds`: it is added to the buffer."""
    model = Net()
    weight = model.down.weight
    model.down.dummy = 0.0
    weight.zero_out_wgrad = adds
    forward = model.forward
    model.forward = lambda x: forward(x) + x.mean() * weight.sum()
    return judged(model)


def full():
    model = Net()
    model.up.weight.main_grad.fill_(1.0)
    model.up.weight.grad_added_to_main_grad = True
    with contextlib.suppress(ValueError):
        addend.torch.watch(model, **OPTIONS).__enter__()
        return "no error"
    model.up.weight.main_grad.zero_()
    return judged(model)


class Fusion(unittest.TestCase):
    def hold(self, job, *arguments, world=2, others="right", **expected):
        """Whether all fused weights of the job have one of these kinds, and the other parameters `others`."""
        found, text = ranks.run(world, job, *arguments)[0]
        for name in FUSED:
            self.assertIn(found[name], [(kind, verdict) for kind, verdict in expected.items()], text)
        for name in PLAIN:
            self.assertEqual(found[name][0], others, text)

    def test_addends_are_what_a_backward_added_to_its_buffer(self):
        self.hold(right, right="right")
        self.hold(right, torch.bfloat16, right="right")
        self.hold(right, world=3, right="right")
        self.hold(without_gradients, right="right")
        self.hold(one_idle_rank, right="right")

    def test_a_buffer_that_nobody_sums(self):
        self.hold(only_own, own_only="wrong", others="own_only")

    def test_a_hook_that_sums_what_autograd_gives(self):
        self.hold(bridge, own_only="wrong")
        found, text = ranks.run(2, functools.partial(bridge, addend=None))[0]
        self.assertTrue(all(found[name][1] != "right" for name in FUSED), text)

    def test_zeros_are_not_observed(self):
        self.hold(zeros, not_observed="cannot_tell", others="not_observed")

    def test_a_buffer_that_is_summed_after_each_microbatch(self):
        found, text = ranks.run(2, summed_each_time)[0]
        self.assertTrue(all(verdict == "wrong" for _, verdict in found.values()), text)
        self.assertNotIn("rounding", [kind for kind, _ in found.values()])

    def test_a_gradient_that_is_computed_later_is_not_judged(self):
        for microbatches in (1, 2):
            self.hold(late, microbatches, not_judged="cannot_tell")

    def test_a_buffer_to_which_autograds_gradient_is_added_later_is_not_judged(self):
        found, text = ranks.run(2, misused)[0]
        self.assertEqual({name: found[name][0] for name in FUSED}, dict.fromkeys(FUSED, "right"), text)
        self.assertEqual(
            {name: found[name] for name in PLAIN}, dict.fromkeys(PLAIN, ("not_judged", "cannot_tell")), text
        )

    def test_autograds_gradient_of_a_tied_embedding_counts_where_it_is_added(self):
        self.hold(tied, True, right="right")
        self.hold(tied, False, right="right")

    def test_buffers_begin_empty(self):
        self.hold(full, right="right")


def watched_of(model):
    return [_parameters.Watched(name, p, p) for name, p in model.named_parameters()]


class Taking(unittest.TestCase):
    """One process: what is taken of a buffer."""

    def test_differences_add_up_to_the_buffer_bit_by_bit(self):
        model = Net()
        watched = watched_of(model)
        attached = _addends.Addends(watched, _sample.Sampler(None), {}, MEGATRON)
        attached.attach()
        try:
            for m in range(8):
                x = torch.randn(ROWS, IN, generator=torch.Generator().manual_seed(m)) * 10.0 ** (m - 4)
                model(x).square().mean().backward()
        finally:
            attached.remove()
        self.assertEqual(attached.errors, [])
        for name in FUSED:
            pieces = [attached.taken[m][name].values for m in range(8)]
            self.assertEqual({piece.dtype for piece in pieces}, {torch.float64})
            whole = model.get_parameter(name).main_grad.double().flatten()
            self.assertTrue(torch.equal(sum(pieces).flatten(), whole))
        self.assertEqual(attached.taken[0]["norm.weight"].values.dtype, torch.float32)

    def test_hooks_on_what_autograd_gives_change_no_addend(self):

        def fill(p):
            p.grad.fill_(3)

        model = Net()
        model.up.weight.register_hook(lambda gradient: gradient * 0 + 7)
        model.up.weight.register_post_accumulate_grad_hook(fill)
        attached = _addends.Addends(watched_of(model), _sample.Sampler(None), {}, MEGATRON)
        attached.attach()
        model(torch.randn(ROWS, IN)).square().mean().backward()
        attached.remove()
        attached.settle(["up.weight"])
        self.assertEqual(attached.behind.get(0, {}), {})
        self.assertTrue(attached.taken[0]["up.weight"].values.isfinite().all())
        self.assertEqual(attached.changed(), {})

    def test_a_buffer_that_changes_without_a_call_of_its_hook(self):
        entry = types.SimpleNamespace(name="w", used=torch.zeros(2), unjudged="")
        buffer = torch.zeros(2)

        def sample(_, tensor):
            return _sample.Piece(tensor.clone(), _sample.Box((0,), (2,)), (2,))

        buffers = _buffers.Buffers([entry], lambda _: buffer, sample)
        buffers.begin()
        buffers.end()
        self.assertEqual(entry.unjudged, "")
        buffers.begin()
        buffer += 1
        buffers.end()
        self.assertIn("addend=", entry.unjudged)

    def test_nothing_that_a_buffer_held_stays(self):
        during, after = ranks.run(2, kept)[0]
        self.assertGreater(during, 0)
        self.assertEqual(after, 0)

    def test_a_full_buffer_is_an_error(self):
        entry = types.SimpleNamespace(name="w", used=torch.zeros(2))
        with raises_facts(self, ValueError, "w", "addend="):
            _buffers.need_empty([entry], lambda _: torch.ones(2))
        _buffers.need_empty([entry], lambda _: None)
        _buffers.need_empty([entry], lambda _: torch.zeros(2))

    def test_buffers_that_no_rank_wrote_in_time(self):
        for everyones, is_open in (
            ([{"w": False}, {"w": False}], True),
            ([{"w": False}, {"w": True}], False),
            ([{"w": False}, {}], True),
            ([{}, {}], False),
        ):
            entry = types.SimpleNamespace(name="w", unjudged="")
            _buffers.doubt_late([entry], everyones)
            self.assertEqual(bool(entry.unjudged), is_open, everyones)


if __name__ == "__main__":
    unittest.main()
