"""Test `addend.torch.check` of operations that have no f64, of autocast, and of models and inputs that are not only
floating tensors.
"""

import dataclasses
import typing
import unittest

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from says import raises, raises_facts, says, says_nothing_of
from torch import nn
from torch.autograd import Function

import addend
from addend.torch import check
from addend.torch._checks import _double

HANGS = 120  # seconds; many times what a check takes


@torch.library.custom_op("addend_tests::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float64:
        raise NotImplementedError("square has no kernel for float64")
    return (x * x).sin()


def _keep(ctx, inputs, output):  # PyTorch requires this name
    ctx.save_for_backward(*inputs)


def _backward(context, gradient):
    (x,) = context.saved_tensors
    return gradient * (x * x).cos() * 2 * x


square.register_autograd(_backward, setup_context=_keep)


class Cube(Function):
    """An operation as a kernel's wrapper is written."""

    @staticmethod
    def forward(context, x):
        if x.dtype not in (torch.float32, torch.bfloat16):
            raise TypeError(f"cube takes f32 and bf16, not {x.dtype}")
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context, gradient):
        return gradient * 3 * context.saved_tensors[0] ** 2


class Half(Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient * 0.5


class Net(nn.Module):
    def __init__(self, between=torch.tanh):
        super().__init__()
        self.up, self.down, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between

    def forward(self, x):
        return self.down(self.between(self.up(x)))


class Squared(nn.Module):
    def forward(self, x):
        return torch.ops.addend_tests.square(x)


class Cubed(nn.Module):
    def forward(self, x):
        return Cube.apply(x)


def whole():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)


def cut(batch, rank, mesh):
    return [tuple(x.chunk(mesh.size())[rank] for x in batch)]


def loss(model, batch):
    x, y = batch
    return (model(x) - y).square().sum(), y.numel()


def ddp(model, mesh):
    return nn.parallel.DistributedDataParallel(model)


def halved(model, mesh):
    """A backward that is not the dual of its forward."""
    down = model.down.forward
    model.down.forward = lambda x: down(Half.apply(x))
    return ddp(model, mesh)


def checked(make_model=Net, parallelize=ddp, batches=(whole, cut), loss=loss, mesh=2, **arguments):
    return check(make_model, parallelize, batches, loss, mesh, **{"timeout": HANGS, **arguments})


class Turned(Net):
    """A layer with integer positions, as rotary embeddings make angles from them; the frequencies are f64 like all
    buffers.
    """

    def __init__(self, convert):
        super().__init__()
        self.convert = convert
        self.register_buffer("frequencies", torch.rand(1, 6, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        angles = self.convert(torch.arange(3)[:, None]) @ self.frequencies
        return super().forward(x * angles.cos().sum(0))


class Integers(unittest.TestCase):
    def test_their_conversions_to_narrower_numbers_are_conversions_to_f64(self):
        for convert in (
            torch.Tensor.float,
            torch.Tensor.bfloat16,
            lambda x: x.to(torch.float32),
            lambda x: x.to(dtype=torch.float32),
            lambda x: x.type(torch.float32),
        ):
            report = checked(lambda convert=convert: Turned(convert))
            self.assertTrue(report.ok, report)
            self.assertEqual(report.bound, 1e-9)
            says(self, "\n".join(report.messages), "f64")


class NoDouble(unittest.TestCase):
    """Check that operations without f64 are computed in f32, named, and bounded by one process's own error."""

    def held(self, make, name):
        report = checked(make)
        self.assertTrue(report.ok, report)
        facts = (name, "between", "test_check_dtypes.py", f"{report.bound:.2g}")
        says(self, "\n".join(report.messages), *facts)
        self.assertTrue(1e-9 < report.bound < 1e-4, report.bound)
        self.assertTrue(all(param.error < report.bound / 2 for param in report.params), report)
        return report

    def test_a_custom_operation(self):
        self.held(lambda: Net(Squared()), "square")

    def test_a_function_that_raises(self):
        self.held(lambda: Net(Cubed()), "Cube")

    def test_bugs_are_still_caught(self):
        for make in (lambda: Net(Squared()), lambda: Net(Cubed())):
            report = checked(make, halved)
            self.assertIs(report.ok, False, report)
            self.assertEqual((report.begins.module, report.begins.place), ("down", "backward"), report)
            self.assertTrue(all(param.ok for param in report.params if param.name.startswith("down")), report)

    def test_mutants_are_noticed(self):
        report = checked(lambda: Net(Squared()), mutate=True)
        self.assertTrue(report.mutants)
        self.assertEqual(report.survivors, ())

    def test_a_backward_that_takes_no_f64(self):
        class Narrow(Function):
            @staticmethod
            def forward(context, x):
                return x.clone()

            @staticmethod
            def backward(context, gradient):
                raise TypeError("no kernel for float64")

        class Narrowed(nn.Module):
            def forward(self, x):
                return Narrow.apply(x)

        with raises(self, addend.RankDiedError, "TypeError", "float64", "test_check_dtypes.py"):
            checked(lambda: Net(Narrowed()))

    def test_an_error_that_is_no_dtypes_stays(self):
        class Raises(nn.Module):
            def forward(self, x):
                raise ValueError("no such double-edged thing")

        with raises(self, addend.RankDiedError, "ValueError", "test_check_dtypes.py"):
            checked(lambda: Net(Raises()))


class Autocast(unittest.TestCase):
    def casting_loss(self, model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, batch)

    def test_in_the_loss(self):
        report = checked(loss=self.casting_loss)
        self.assertTrue(report.ok, report)
        says(self, "\n".join(report.messages), "autocast", "f64")
        self.assertEqual(report.bound, 1e-9)

    def test_on_the_ranks_alone(self):
        def casting(model, mesh):
            forward = model.forward

            def narrowed(x):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return forward(x)

            model.forward = narrowed
            return ddp(model, mesh)

        def casting_run(model, microbatches, loss_of):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                for batch in microbatches:
                    loss_of(model, batch).backward()

        for arguments in ({"parallelize": casting}, {"run": casting_run}):
            report = checked(**arguments)
            self.assertTrue(report.ok, report)
            says(self, "\n".join(report.messages), "autocast", "f64")

    def test_a_bug_in_it(self):
        report = checked(parallelize=halved, loss=self.casting_loss)
        self.assertIs(report.ok, False)
        self.assertEqual(report.begins.module, "down")


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    words: list[str]
    options: dict


class Point(typing.NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Models(unittest.TestCase):
    def test_batches_that_are_dataclasses(self):
        def narrow(rank, mesh):
            x, y = (value.float() for value in whole())
            if rank is not None:
                x, y = x.chunk(2)[rank], y.chunk(2)[rank]
            return [Batch(x, y, ["a"] * len(x), {"scale": torch.ones(1, dtype=torch.float32), "name": "it"})]

        class OfBatch(Net):
            def forward(self, batch):
                return super().forward(batch.x) * batch.options["scale"] * len(batch.words[0])

        def of_batch(model, batch):
            return (model(batch) - batch.y).square().sum(), batch.y.numel()

        report = checked(OfBatch, batches=narrow, loss=of_batch)
        self.assertTrue(report.ok, report)
        self.assertEqual(report.bound, 1e-9)
        self.assertIs(checked(OfBatch, halved, narrow, of_batch).ok, False)

    def test_batches_that_are_named_tuples(self):
        def narrow(rank, mesh):
            x, y = (value.float() for value in whole())
            return [Point(x, y) if rank is None else Point(x.chunk(2)[rank], y.chunk(2)[rank])]

        def of_point(model, batch):
            return (model(batch.x) - batch.y).square().sum(), batch.y.numel()

        report = checked(batches=narrow, loss=of_point)
        self.assertTrue(report.ok, report)
        self.assertEqual(report.bound, 1e-9)

    def test_a_tensor_that_is_narrow_from_the_start(self):
        scale = torch.ones(8, 8, dtype=torch.float32)
        report = checked(lambda: Net(lambda x: F.linear(x, scale)))
        self.assertTrue(report.ok, report)
        self.assertEqual(report.bound, 1e-9)

    def test_buffers_of_integers_and_truth_values(self):
        class Buffered(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("order", torch.randperm(6))
                self.register_buffer("mask", torch.rand(6) < 0.8)

            def forward(self, x):
                return super().forward(x[:, self.order] * self.mask)

        report = checked(Buffered)
        self.assertTrue(report.ok, report)
        self.assertIs(checked(Buffered, halved).ok, False)

    def test_buffers_that_the_forward_changes_and_uses(self):
        class Counting(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
                self.register_buffer("scale", torch.ones(()))

            def forward(self, x):
                self.calls += 1
                self.scale.mul_(0.5)
                return super().forward(x) * self.scale / self.calls

        report = checked(Counting, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
        self.assertTrue(report.ok, report)

    def test_statistics_of_a_batch_are_not_those_of_its_parts(self):
        class Normed(Net):
            def __init__(self):
                super().__init__(nn.BatchNorm1d(8))

        report = checked(Normed)
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.module, report.begins.place), ("between", "forward"), report)

        def same(rank, mesh):
            return [whole()]

        report = checked(Normed, batches=same, loss=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
        self.assertTrue(report.ok, report)

        def synchronised(model, mesh):
            return ddp(nn.SyncBatchNorm.convert_sync_batchnorm(model), mesh)

        with raises_facts(self, addend.RankDiedError, "ValueError", "SyncBatchNorm"):
            checked(Normed, synchronised)

    def test_a_model_that_makes_no_gradient_at_all(self):
        class Frozen(Net):
            def __init__(self):
                super().__init__()
                self.requires_grad_(False)

        with raises(self, addend.InvalidError, "loss"):
            checked(Frozen)


class Narrowed(Function):
    """Its backward computes in bf16."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient.to(torch.bfloat16).float() * 1.0


def narrowed(model, mesh):
    model.between = lambda x: torch.tanh(Narrowed.apply(x))
    return ddp(model, mesh)


def compressed(model, mesh):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = ddp(model, mesh)
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return model


def narrow_gradient(parameter):
    parameter.grad.copy_(parameter.grad.half())


def hooked(model, mesh):
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(narrow_gradient)
    return ddp(model, mesh)


def computed_again(model, mesh):
    """Activation checkpoints, whose second forward, in the backward, has conversions and dropout as the first."""

    def between(x):
        return F.dropout(torch.tanh(x.bfloat16()), 0.5)

    model.between = lambda x: torch.utils.checkpoint.checkpoint(between, x, use_reentrant=False)
    return ddp(model, mesh)


def sharded(model, mesh):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    fully_shard(model.up, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


class Policies(unittest.TestCase):
    def test_mixed_precision_of_fully_shard_is_off(self):
        report = checked(parallelize=sharded)
        self.assertTrue(report.ok, report)
        says(self, "\n".join(report.messages), "fully_shard", "f64")


class Nested(Net):
    """Rows of different lengths go through a layer as one nested tensor."""

    def __init__(self):
        super().__init__()
        self.mid = nn.Linear(2, 2)

    def forward(self, x):
        pairs = self.up(x).unflatten(1, (4, 2))
        counts = [2 + int(row[0] > 0) for row in x]
        nested = torch.nested.as_nested_tensor([y[:n] for y, n in zip(pairs, counts)], layout=torch.jagged)
        return self.down(torch.nested.to_padded_tensor(self.mid(nested), 0.0, (len(x), 4, 2)).flatten(1))


class NestedTensors(unittest.TestCase):
    def test_in_a_module_of_its_own(self):
        self.assertTrue(checked(Nested).ok)


class Backwards(unittest.TestCase):
    """What runs in a backward computes in f64 too."""

    def test_functions_hooks_and_recomputation(self):
        for parallelize in (narrowed, compressed, hooked, computed_again):
            with self.subTest(parallelize.__name__):
                report = checked(parallelize=parallelize)
                self.assertTrue(report.ok, report)

    def test_a_wrong_backward_is_still_found(self):
        report = checked(parallelize=lambda model, mesh: halved(model, mesh))
        self.assertIs(report.ok, False)
        self.assertEqual(report.begins.place, "backward")


class Remade(nn.Module):
    """Angles in a buffer that is not in the state; `keeps`: kept in f32 where dtypes are not converted."""

    def __init__(self, keeps=False, times=1.0):
        super().__init__()
        exponents = torch.arange(0, 6, dtype=torch.float32) / 6
        angles = times / 1000**exponents
        if keeps:
            angles = torch.from_numpy(angles.numpy().astype("float32"))
        self.register_buffer("angles", angles, persistent=False)
        self.linear = nn.Linear(6, 5)

    def forward(self, x):
        return self.linear(x * torch.cos(3 * self.angles))


def remade(**arguments):
    """Check a job whose parallelize makes the model again."""

    def parallelize(model, mesh):
        again = Remade(**arguments).double()
        again.load_state_dict(model.state_dict())
        if arguments.get("keeps"):
            own = Remade(**arguments).angles
            again.angles = torch.from_numpy(own.numpy().astype("float32"))
        return nn.parallel.DistributedDataParallel(again)

    def batches(rank, mesh):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
        return [x] if rank is None else [x.chunk(2)[rank]]

    def loss(model, x):
        return model(x).square().sum(), len(x)

    return check(Remade, parallelize, batches, loss, 2, timeout=HANGS)


class Masked(nn.Module):
    """Attention with a mask and a scale in buffers, and a table of which the forward uses the last number."""

    def __init__(self):
        super().__init__()
        self.to_scores, self.to_values, self.out = nn.Linear(6, 4), nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
        self.register_buffer("scale", torch.full((5,), 0.75))
        self.register_buffer("table", torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 0.1]))

    def forward(self, x):
        attended = (self.to_scores(x) + self.mask).softmax(-1) @ self.to_values(x)
        return self.out(attended * self.scale * self.table[-1])


def with_buffer(name, change):
    """Check a job whose ranks have `change(buffer)` in place of a buffer."""

    def parallelize(model, mesh):
        setattr(model, name, change(getattr(model, name)))
        return nn.parallel.DistributedDataParallel(model)

    def batches(rank, mesh):
        x = torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(3))
        return [x] if rank is None else [x.chunk(2)[rank]]

    def loss(model, x):
        return model(x).square().sum(), len(x)

    return check(Masked, parallelize, batches, loss, 2, timeout=HANGS)


def rounded_to(dtype):
    """What rounds to a dtype and back, where the check does not see it."""
    return lambda buffer: torch.from_numpy(buffer.numpy().astype(dtype).astype("float64"))


class BuffersMadeAgain(unittest.TestCase):
    def test_infinities_and_nan_are_those_of_one_process_or_wrong(self):
        nan, inf = float("nan"), float("inf")
        for name, change in (
            ("mask", torch.zeros_like),
            ("mask", lambda mask: mask.transpose(0, 1).contiguous()),
            ("mask", lambda mask: mask.nan_to_num(neginf=-1e9) * (torch.arange(4) > 0)[:, None]),
            ("scale", lambda scale: scale.clone().fill_(nan)),
            ("scale", lambda scale: scale.clone().fill_(inf)),
            ("table", lambda table: torch.cat([table[:-1], table[:1]])),
        ):
            with self.subTest(name):
                report = with_buffer(name, change)
                self.assertIs(report.ok, False, str(report))
                says_nothing_of(self, "\n".join(report.messages), "parallelize")

    def test_rounding_beside_infinities_and_nan(self):
        for name in ("table", "mask"):
            report = with_buffer(name, rounded_to("float32"))
            self.assertIs(report.ok, True, str(report))
        self.assertIs(with_buffer("table", rounded_to("float16")).ok, False)

    def test_rounding_to_the_dtype_that_a_buffer_stays_in(self):
        for units, ok in ((0, True), (1, False)):
            report = with_buffer(
                "table", lambda table, units=units: torch.from_numpy(table.numpy().astype("float16") + units * 2.0**-13)
            )
            self.assertIs(report.ok, ok, str(report))

    def test_two_units_of_the_last_place_are_rounding_and_up_to_eight_may_be(self):
        """Rotary frequencies of a head of 80 are 3 to 5 units off where they were computed in f32."""
        for units, ok in ((2, True), (-2, True), (3, None), (-3, None), (8, None), (9, False), (-9, False)):
            report = with_buffer("scale", lambda scale, units=units: scale + units * 2.0**-24)
            self.assertIs(report.ok, ok, f"{units}: {report}")
            if ok:
                says(self, "\n".join(report.messages), "parallelize", "scale")
            else:
                says_nothing_of(self, "\n".join(report.messages), "parallelize")
        self.assertIsNone(with_buffer("scale", lambda scale: scale * (1 + 5e-7)).ok)
        self.assertIs(with_buffer("scale", lambda scale: scale * (1 + 5e-6)).ok, False)
        self.assertIs(with_buffer("scale", lambda scale: torch.cat([scale[:-1], -scale[-1:]])).ok, False)

    def test_a_buffer_near_rounding_is_not_called_f32_and_one_in_a_narrow_dtype_is_called_that(self):
        near = with_buffer("scale", lambda scale: scale + 5 * 2.0**-24)
        stays = remade(keeps=True, times=1 + 4e-6)
        for report, *facts in (near, "scale", "8 units", "f32"), (stays, "angles", "f32"):
            texts = [param.text for param in report.params if param.ok is None]
            self.assertTrue(texts, str(report))
            for text in texts:
                says(self, text, *facts)
            says(self, "\n".join(report.messages), *facts)
        says_nothing_of(self, str(stays), "8 units")

    def test_which_buffers_may_be_rounded(self):
        """Elements just within each bound and just beyond it, and dtypes."""
        unit = 2.0**-24  # of 0.75 in f32
        for change, narrow, is_replaced in (
            (0.0, {}, False),
            (2 * unit, {}, True),
            (2.1 * unit, {"x": ""}, False),
            (8 * unit, {"x": ""}, False),
            (8.1 * unit, {}, False),
        ):
            for sign in (1, -1):
                part = nn.Module()
                part.register_buffer("x", torch.full((3,), 0.75 + sign * change, dtype=torch.float64))
                said, found = _double.unify_buffers([part], {"x": torch.full((3,), 0.75, dtype=torch.float64)})
                self.assertEqual((found, bool(said)), (narrow, is_replaced), change)
        for dtype, word in ((torch.float32, "f32"), (torch.bfloat16, "bf16"), (torch.float16, "f16")):
            part = nn.Module()
            part.register_buffer("x", torch.full((3,), 0.5, dtype=dtype))
            self.assertEqual(_double.unify_buffers([part], {})[1], {"x": word})

    def test_what_differs_by_rounding_has_the_values_of_one_process(self):
        for keeps in (False, True):
            report = remade(keeps=keeps)
            self.assertIs(report.ok, True, str(report))
            says(self, "\n".join(report.messages), "angles")

    def test_other_values_are_found(self):
        report = remade(times=1.01)
        self.assertIs(report.ok, False, str(report))

    def test_a_buffer_that_stays_in_f32_explains_no_large_error(self):
        for times, ok in ((1 + 4e-6, None), (1.01, False)):
            report = remade(keeps=True, times=times)
            self.assertIs(report.ok, ok, str(report))
            says(self, "\n".join(report.messages), "f32", "angles")


if __name__ == "__main__":
    unittest.main()
