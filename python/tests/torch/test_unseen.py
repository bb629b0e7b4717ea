"""Test that a watch calls nothing right that it did not see (gradients of zeros, backwards that some ranks did not
run), and takes no rank for a replica of what it does not have.
"""

import contextlib
import io
import tempfile
import unittest

import torch
import torch.distributed as dist
from says import has, raises, says, says_nothing_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import addend
import addend.torch
import ranks


class Adapted(nn.Module):
    """A residual layer of two factors, the second of which begins at zero: so the first one's gradient is zero."""

    def __init__(self, second=0.0):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.full((8, 4), second))

    def forward(self, x):
        return x + x @ self.first.T @ self.second.T


def batch(width=8, microbatch=0):
    return torch.randn(5, width, generator=torch.Generator(ranks.DEVICE).manual_seed(10 * dist.get_rank() + microbatch))


def sum_of(*parameters):
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def watched(step, model, **arguments):
    with contextlib.redirect_stdout(io.StringIO()), addend.torch.watch(model, **arguments) as watch:
        step()
    return watch.report


def run_factors(second, summed, **arguments):
    """The first factor's gradient is summed by hand, or not."""
    model = Adapted(second)

    def step():
        model(batch()).square().mean().backward()
        sum_of(*([model.first] if summed else []), model.second)

    return watched(step, model, expect=0.5, **arguments)


class Fused(torch.autograd.Function):
    """A product whose backward writes the weight's gradient elsewhere, and gives autograd zeros."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        weight.elsewhere += gradient.T @ x
        return gradient @ weight, torch.zeros_like(weight)


def run_fused(summed, read):
    model = nn.Linear(8, 4, bias=False)
    model.weight.elsewhere = torch.zeros(4, 8)

    def step():
        Fused.apply(batch(), model.weight).square().mean().backward()
        if summed:
            dist.all_reduce(model.weight.elsewhere)

    return watched(step, model, **({"gradient": lambda parameter: parameter.elsewhere} if read else {}))


def run_every():
    """Steps of a training whose first factor is summed in none of them."""
    model, reported = Adapted(), []
    watch, optimizer = addend.torch.watch(model, expect=0.5, every=2), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with contextlib.redirect_stdout(io.StringIO()), watch:
            model(batch()).square().mean().backward()
            sum_of(model.second)
        optimizer.step()
        reported.append(watch.watches)
    return reported, watch.report["first"].kind


def run_backwards(counts):
    """A rank runs counts[rank] backwards; the last one is synchronised."""
    model = DistributedDataParallel(nn.Linear(8, 4))
    count = counts[dist.get_rank()]

    def step():
        for m in range(count):
            with model.no_sync() if m < count - 1 else contextlib.nullcontext():
                model(batch(microbatch=m)).square().mean().backward()

    return watched(step, model)


class Stage(nn.Module):
    """One half of a model whose halves are on two ranks; both have `shared`."""

    def __init__(self, half):
        super().__init__()
        self.shared = nn.Parameter(torch.ones(6, 6))
        self.add_module(f"half{half}", nn.Linear(6, 6))

    def forward(self, x):
        return getattr(self, f"half{dist.get_rank()}")(x @ self.shared)


def run_stages(doubled):
    """A pipeline by hand: each rank has its own parameters, and one that is tied."""
    mesh = init_device_mesh(ranks.DEVICE.type, (1, 2), mesh_dim_names=("dp", "pp"))
    model = Stage(dist.get_rank())

    def step():
        model(batch(6)).square().mean().backward()
        dist.all_reduce(model.shared.grad)
        if doubled:
            dist.all_reduce(model.shared.grad)

    return watched(step, model, mesh=mesh)


class End(nn.Module):
    """One end of a pipeline by hand; the ends' weights, `embed` and `head`, are tied."""

    def __init__(self, at):
        super().__init__()
        self.register_parameter("head" if at else "embed", nn.Parameter(torch.ones(6, 6)))
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return self.inner(x @ (self.head if hasattr(self, "head") else self.embed))


def run_ends(sizes, tied):
    """Nothing says what the axes are, and no sum is made."""
    mesh = init_device_mesh(ranks.DEVICE.type, sizes, mesh_dim_names=("dp", "pp", "cp"))
    model = End(mesh.get_local_rank("pp"))
    return watched(lambda: model(batch(6)).square().mean().backward(), model, mesh=mesh, tied=tied)


class Unseen(unittest.TestCase):
    def test_gradients_of_zeros_are_not_called_right(self):
        for summed in True, False:
            for report in ranks.run(2, run_factors, 0.0, summed):
                self.assertEqual((report.ok, report.verdict), (None, "cannot_tell"))
                self.assertEqual((report["first"].kind, report["second"].kind), ("not_observed", "right"))
                says(self, report["first"].text)
            for report in ranks.run(2, run_factors, 0.1, summed):
                self.assertEqual((report.ok, report["first"].kind), (summed, "right" if summed else "own_only"))

    def test_zeros_that_are_meant_are_left_out(self):
        for report in ranks.run(2, run_named):
            self.assertTrue(report.ok, str(report))
            self.assertEqual([param.name for param in report.params], ["second"])
            says(self, str(report), "first")
        for report in ranks.run(2, run_named, 0.1):
            self.assertEqual((report.ok, report["first"].kind), (False, "own_only"))

    def test_a_gradient_that_is_written_elsewhere_is_not_seen(self):
        for summed in True, False:
            for read in True, False:
                for report in ranks.run(2, run_fused, summed, read):
                    if summed or not read:
                        self.assertIsNone(report.ok, str(report))
                        self.assertEqual(report["weight"].kind, "not_observed")
                    else:  # replicas have other sums
                        self.assertIsNot(report.ok, True)

    def test_every_begins_with_the_second_step(self):
        for reported in ranks.run(2, run_every):
            self.assertEqual(reported, ([False, True], "own_only"))

    def test_ranks_that_ran_other_numbers_of_backwards_are_named(self):
        for report in ranks.run(3, run_backwards, (3, 3, 2)):
            self.assertTrue(report.ok, str(report))
            self.assertEqual(report.document["dumped"]["addends"], 8)
            says(self, "\n".join(report.messages), "3 on", "ranks 0", "and 1", "2 on", "rank 2")
        for report in ranks.run(2, run_backwards, (2, 2)):
            self.assertEqual((report.ok, report.messages), (True, ()))


class Replicas(unittest.TestCase):
    def test_a_rank_without_the_parameter_is_no_replica(self):
        for report in ranks.run(2, run_stages, False):
            self.assertTrue(report.ok, str(report))
        for report in ranks.run(2, run_stages, True):
            self.assertEqual({param.name for param in report.params if param.ok is False}, {"shared"}, str(report))

    def test_advice_keeps_the_sums_of_tied_names(self):
        for report in ranks.run(4, run_ends, (2, 2, 1), [("embed", "head")]):
            self.assertIs(report.ok, False)
            (advice,) = [text for text in report.messages if '{"*": "pp=' in text]
            self.assertEqual(advice.count('"embed": "pp=R"'), 2, advice)
            self.assertEqual(advice.count('"head": "pp=R"'), 2, advice)

    def test_an_axis_of_one_rank_is_not_mentioned(self):
        for report in ranks.run(4, run_ends, (2, 2, 1), ()):
            says_nothing_of(self, "\n".join(report.messages), "cp")
            says(self, "\n".join(report.messages), "dp")
        for report in ranks.run(2, run_ends, (1, 2, 1), ()):
            self.assertIs(report.ok, False)
            for axis in "dp", "pp", "cp":
                says_nothing_of(self, "\n".join(report.messages), axis)


def asked_of(loss, model, **arguments):
    return torch.autograd.grad(loss, list(model.parameters()), **arguments)


def learned(model, x, create_graph):
    """The loss after an inner step of gradient descent, of the second or the first order."""
    own = dict(model.named_parameters())
    slopes = asked_of(model(x).square().mean(), model, create_graph=create_graph)
    fast = {name: p - 0.1 * slope for (name, p), slope in zip(own.items(), slopes)}
    return torch.func.functional_call(model, fast, (x,)).square().mean()


def penalised(model, x):
    """A loss with a penalty on its gradients."""
    loss = model(x).square().mean()
    return loss + sum(slope.square().sum() for slope in asked_of(loss, model, create_graph=True))


INNER = {
    "second order": lambda model, x: learned(model, x, True),
    "first order": lambda model, x: learned(model, x, False),
    "penalty": penalised,
}


def run_inner(kind, summed):
    """Two microbatches with gradients inside the loss; the first parameter is summed or not."""
    model = Adapted(0.3)

    def step():
        for m in range(2):
            watch.divisor(2)
            (INNER[kind](model, batch(microbatch=m)) / 2).backward()
        sum_of(*([model.first] if summed else []), model.second)

    with (
        contextlib.redirect_stdout(io.StringIO()),
        addend.torch.watch(model, expect=0.5) as watch,
    ):
        step()
    return watch.report


def run_added_by_hand(added):
    """A microbatch's gradient by a backward and another's by torch.autograd.grad, which is added or forgotten."""
    model = Adapted(0.3)

    def step():
        model(batch()).square().mean().backward()
        for p, gradient in zip(
            model.parameters(),
            asked_of(model(batch(microbatch=1)).square().mean(), model),
        ):
            p.grad += gradient if added else 0
        sum_of(model.first, model.second)

    return watched(step, model, expect=0.5)


def run_divided_by_hand():
    """Gradients by torch.autograd.grad alone, in two microbatches that are divided by other counts."""
    model = Adapted(0.3)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        addend.torch.watch(model, expect=0.5) as watch,
    ):
        for m in range(2):
            watch.divisor(1 + m)
            loss = model(batch(microbatch=m)).square().mean() / (1 + m)
            for p, gradient in zip(model.parameters(), asked_of(loss, model)):
                p.grad = gradient if p.grad is None else p.grad + gradient
        sum_of(model.first, model.second)
    return watch.report


class Asked(unittest.TestCase):
    """Gradients that a job asks of torch.autograd.grad."""

    def test_gradients_inside_the_loss_are_no_addends(self):
        for kind in INNER:
            with self.subTest(kind):
                for report in ranks.run(2, run_inner, kind, True):
                    self.assertEqual((report.ok, report.microbatches), (True, 2), report)
                for report in ranks.run(2, run_inner, kind, False):
                    self.assertEqual(
                        (report["first"].kind, report["second"].ok),
                        ("own_only", True),
                        report,
                    )

    def test_gradients_that_are_added_by_hand_are_addends(self):
        for added in (True, False):
            for report in ranks.run(2, run_added_by_hand, added):
                self.assertIs(report.ok, True, report)
                self.assertEqual(any(has(text, "torch.autograd.grad") for text in report.messages), added)

    def test_gradients_that_are_all_asked_for_are_counted_as_microbatches(self):
        for report in ranks.run(2, run_divided_by_hand):
            self.assertEqual(
                (report["first"].kind, report.microbatches),
                ("divided_by_own_count", 2),
                report,
            )


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = nn.Linear(8, 10), nn.Linear(10, 5)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def loss_of(model, microbatch=0):
    return model(batch(microbatch=microbatch)).square().mean()


class Job:
    """A model, plain or in DDP, with two optimizers and a GradScaler; `run` is its step."""

    def __init__(self, wrapped, lr=0.1, scale=8.0, kind=torch.optim.SGD):
        self.body = Body()
        self.model = DistributedDataParallel(self.body) if wrapped else self.body
        self.parameters = list(self.body.parameters())
        self.optimizer, self.other = kind(self.parameters, lr=lr), kind(self.parameters, lr=lr)
        self.each = {p: kind([p], lr=lr) for p in self.parameters}
        self.scaler = torch.amp.GradScaler(ranks.DEVICE.type, init_scale=scale, growth_interval=2)
        self.scaler.scale(torch.ones(1))

    def backward(self, microbatch=0, scaled=False):
        loss = loss_of(self.model, microbatch)
        (self.scaler.scale(loss) if scaled else loss).backward()

    def step_in_hooks(self):
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(lambda p: self.each[p].step())

    def sum(self):
        sum_of(*self.parameters)


def scaled_job(name):
    """A job with a GradScaler: its step, and arguments of the watch."""
    job = Job(True, scale=65536.0 if name == "never scaled" else 8.0)

    def step():
        for m in range(3 if name == "scale grows" else 2 if name == "two steps" else 1):
            job.backward(m, scaled=name != "never scaled")
            job.scaler.unscale_(job.optimizer)
            if name == "twice":
                job.scaler.unscale_(job.other)
            if name == "divided too, expect":
                for p in job.parameters:
                    p.grad /= 8
            if name in ("two steps", "scale grows"):
                job.scaler.step(job.optimizer)
                job.scaler.update()
                job.optimizer.zero_grad()

    expect = {"mean, expect": 0.5, "divided too, expect": 0.5 / 8, "scale, expect": 0.5 / 8}.get(name)
    return step, job.model, {"expect": expect}


class Summing(torch.optim.SGD):
    """An optimizer that sums inside its step."""

    def step(self, closure=None):
        sum_of(*self.param_groups[0]["params"])
        return super().step(closure)


def stepping_job(name):
    """A job whose optimizer steps inside the watch."""
    kind = Summing if name == "sums itself" else torch.optim.Adam if name == "rate 0" else torch.optim.SGD
    wrapped = name in ("in DDP's hooks", "not cleared", "closure")
    job = Job(wrapped, 0.0 if name == "rate 0" else 0.1, kind=kind)
    if name in ("in hooks", "in DDP's hooks"):
        job.step_in_hooks()

    def step():
        if name == "closure":
            job.optimizer.step(job.backward)
            job.optimizer.zero_grad()
            return
        job.backward()
        if name in ("before the sum", "rate 0", "cleared", "sums itself", "not cleared"):
            job.optimizer.step()
        if name == "not cleared":
            job.backward(1)
            job.optimizer.step()
        if name in ("before the sum", "rate 0", "cleared", "in hooks"):
            job.sum()
        if name in ("cleared", "sums itself"):
            job.optimizer.zero_grad()

    return step, job.model, {"expect": None if wrapped else 0.5}


def asking_job(name):
    """The head's gradient comes by torch.autograd.grad, and is thrown away."""
    job = Job(False)
    head, body = list(job.body.down.parameters()), list(job.body.up.parameters())

    def step():
        loss = loss_of(job.model)
        torch.autograd.grad(loss, head, retain_graph=True)
        loss.backward(inputs=body if name != "looked at" else None)
        sum_of(*(body if name != "looked at" else job.parameters))

    return step, job.model, {"expect": 0.5, "unused": ["down.*"] if name == "unused" else ()}


def run_jobs(make, names):
    found = {}
    for name in names:
        step, model, arguments = make(name)
        found[name] = watched(step, model, **arguments)
    return found


class Seen(unittest.TestCase):
    """What a job does with gradients inside the watch: whether it is right, and facts that the report has."""

    def judge(self, make, expected):
        for reports in ranks.run(2, run_jobs, make, list(expected)):
            for name, (ok, *facts) in expected.items():
                with self.subTest(name):
                    report = str(reports[name])
                    self.assertIs(reports[name].ok, ok, report)
                    if facts:
                        says(self, report, *facts)
                    self.assertNotIn("replicas_differ", {param.kind for param in reports[name].params}, report)

    def test_a_scaler_divides_once_for_a_loss_that_it_scaled(self):
        expected = {
            "once": (True, "GradScaler", "by 8"),
            "twice": (False, "BAD", "1/64"),
            "two steps": (True, "GradScaler", "by 8"),
            "scale grows": (None, "GradScaler", "by 8", "by 16"),
            "never scaled": (None, "GradScaler", "by 65536"),
            "mean, expect": (True, "GradScaler", "by 8"),
            "scale, expect": (True,),
            "divided too, expect": (None, "GradScaler", "expect="),
        }
        self.judge(scaled_job, expected)

    def test_a_step_is_judged_by_the_gradient_that_it_took(self):
        unsummed = (False, "BAD", "dp")
        expected = {
            "before the sum": unsummed,
            "rate 0": unsummed,
            "cleared": unsummed,
            "in hooks": unsummed,
            "in DDP's hooks": unsummed,
            "not cleared": (None, "zero_grad"),
            "sums itself": (True,),
            "closure": (True,),
        }
        self.judge(stepping_job, expected)

    def test_gradients_that_were_asked_for_and_thrown_away_are_not_called_unused(self):
        expected = {"thrown away": (None, "torch.autograd.grad"), "unused": (True, "down.weight", "down.bias")}
        self.judge(asking_job, {**expected, "looked at": (True,)})


class Meshes(unittest.TestCase):
    def test_a_mesh_that_is_none_is_refused_where_it_is_given(self):
        model = nn.Linear(2, 2)
        with tempfile.TemporaryDirectory() as folder:
            for call in (
                lambda mesh: addend.torch.watch(model, mesh=mesh),
                lambda mesh: addend.torch.dump(model, folder, mesh=mesh),
                lambda mesh: addend.torch.assert_summed(lambda: None, model, mesh=mesh),
                lambda mesh: addend.torch.watch_trainer(None, mesh=mesh),
            ):
                for mesh in "dp=2 tp=2", {"dp": 2}, 4:
                    with self.subTest(mesh=mesh), raises(self, TypeError, f"mesh={mesh!r}", "init_device_mesh"):
                        call(mesh)


def run_named(second=0.0):
    return run_factors(second, False, unused=["first"])


if __name__ == "__main__":
    unittest.main()
