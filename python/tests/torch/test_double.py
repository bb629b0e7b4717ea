"""Test by tables of synthetic inputs how a job is made to compute in f64: what is converted, which buffers count as
rounded, what has no f64 and is computed in f32, and what is noted. No job runs.
Source: addend/torch/_checks/_double.py.
"""

import collections
import dataclasses
import math
import unittest
from typing import Any, List

import torch
import torch.distributed as dist
from says import says, says_nothing_of
from torch import nn
from torch.autograd import graph
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from addend.torch._checks import _double

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
ULP = 2.0**-23  # of f32, from 1 to 2
NAN, INF = math.nan, math.inf
Pair = collections.namedtuple("Pair", ("first", "second"))


@dataclasses.dataclass(frozen=True)
class Batch:
    tokens: torch.Tensor
    mask: torch.Tensor
    name: str = "batch"
    later: Any = dataclasses.field(init=False)  # which nobody sets


class Encoding(collections.UserDict):
    """As tokenizers return it."""


class Converted(unittest.TestCase):
    def test_floats_become_f64_and_all_else_stays(self):
        wide = {F32: F64, BF16: F64, F16: F64, F64: F64, torch.complex64: torch.complex128}
        wide.update({torch.complex32: torch.complex128, torch.int64: torch.int64, torch.bool: torch.bool})
        for dtype, expected in wide.items():
            self.assertEqual(_double.doubled(torch.zeros(2, dtype=dtype)).dtype, expected, dtype)

    def test_tensors_inside_of_containers(self):
        one, number = torch.ones(2), torch.ones(2, dtype=torch.int64)
        table = {
            "tuple": ((one, number), lambda found: found),
            "list": ([one, number], lambda found: found),
            "dictionary": ({"a": one, "b": number}, lambda found: [*found.values()]),
            "named tuple": (Pair(one, number), lambda found: [found.first, found.second]),
            "mapping": (Encoding(a=one, b=number), lambda found: [found["a"], found["b"]]),
            "ordered": (collections.OrderedDict(a=one, b=number), lambda found: [*found.values()]),
            "dataclass": (Batch(one, number), lambda found: [found.tokens, found.mask]),
            "list of dataclasses": ([Batch(one, number)], lambda found: [found[0].tokens, found[0].mask]),
            "nested": ({"a": [(one,), Pair(number, None)]}, lambda found: [found["a"][0][0], found["a"][1].first]),
        }
        for name, (value, read) in table.items():
            with self.subTest(name):
                found = _double.doubled(value)
                self.assertIs(type(found), type(value))
                self.assertEqual([tensor.dtype for tensor in read(found)], [F64, torch.int64])
                self.assertEqual([tensor.dtype for tensor in read(value)], [F32, torch.int64])  # the job's own stays
        for value in ("text", 3, None, Batch):
            self.assertIs(_double.doubled(value), value)

    def test_a_module(self):
        model = nn.Linear(2, 2)
        model.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        model.register_buffer("wave", torch.ones(2, dtype=torch.complex64))
        model.register_buffer("count", torch.ones(2, dtype=torch.int64))
        found = {name: value.dtype for name, value in _double.widened(model).state_dict().items()}
        complex_ = dict.fromkeys(("turn", "wave"), torch.complex128)
        self.assertEqual(found, {"weight": F64, "bias": F64, "count": torch.int64, **complex_})


def buffered(*values):
    model = nn.Module()
    for name, value in zip("abc", values):
        model.register_buffer(name, value)
    return model


class Rounded(unittest.TestCase):
    def test_a_value_is_rounded_within_units_of_f32s_last_place(self):
        for right, ulp in ((1.5, ULP), (-1.5, ULP), (3.0, 2 * ULP), (1.0, ULP / 2), (0.75, ULP / 2), (0.0, 0.0)):
            for ulps in (2, 8):
                for by in (0.999, -0.999, 1, -1, 1.001, -1.001):
                    found = torch.tensor([right + by * ulps * ulp, 1.0], dtype=F64)
                    wanted = torch.tensor([right, 1.0], dtype=F64)
                    held = abs(by) <= 1 or not ulp
                    self.assertIs(_double._is_rounded(found, wanted, ulps), held, (right, ulps, by))

    def test_a_narrow_value_is_one_of_its_own_dtype(self):
        right = torch.tensor([1 / 3], dtype=F64)
        for dtype in (F32, BF16, F16):
            for step in (0, 1, -1, 3):
                own = right.to(dtype)
                for _ in range(abs(step)):
                    own = torch.nextafter(own, torch.tensor([math.copysign(INF, step)], dtype=dtype))
                held = abs(step) <= (2 if dtype == F32 else 0)
                self.assertIs(_double._is_rounded(own, right, 2), held, (dtype, step))

    def test_what_is_no_number_is_not_rounded(self):
        table = (
            ((INF, INF), True),
            ((-INF, INF), False),
            ((NAN, NAN), True),
            ((NAN, 1.0), False),
            ((1.0, NAN), False),
            ((INF, 1.0), False),
            ((1.0, INF), False),
            ((INF, 1e39), False),
            ((1e39 * (1 + 1e-12), 1e39), False),  # no number of f32
            ((1e38 * (1 + 1e-12), 1e38), True),
        )
        for (found, right), held in table:
            for more in (0.0, 1.0):
                values = [torch.tensor([one, more], dtype=F64) for one in (found, right)]
                self.assertIs(_double._is_rounded(*values, 2), held, (found, right))

    def test_complex_values_are_two_numbers(self):
        right = torch.tensor([1.5 + 0.75j], dtype=torch.complex128)
        for by, held in ((0.999, True), (1.001, False)):
            for unit in (2 * ULP, 1j * ULP):
                self.assertIs(_double._is_rounded(right + by * unit, right, 2), held, (by, unit))
        self.assertIs(_double._is_rounded(right.conj(), right.conj().resolve_conj(), 2), True)
        self.assertIs(_double._is_rounded(right.conj(), right, 2), False)
        self.assertIs(_double._is_rounded(right.real, right, 2), False)
        self.assertIs(_double._is_rounded(right, right.real, 2), False)


class Unified(unittest.TestCase):
    RIGHT = torch.tensor([1.5, 1 / 3], dtype=F64)

    def unified(self, *values, wanted=RIGHT):
        model = buffered(*values)
        said, narrow = _double.unify_buffers([model], {} if wanted is None else dict.fromkeys("abc", wanted))
        same = [wanted is not None and torch.equal(buffer, wanted) for buffer in model.buffers()]
        return len(said), narrow, same

    def off(self, by):
        return self.RIGHT + torch.tensor([by * ULP, 0.0], dtype=F64)

    def test_buffers_that_differ_by_rounding_get_the_value_of_one_process(self):
        table = {
            "equal": (self.RIGHT, (0, {}, [True])),
            "within two units": (self.off(1.999), (1, {}, [True])),
            "beyond two": (self.off(2.001), (0, {"a": ""}, [False])),
            "within eight": (self.off(-7.999), (0, {"a": ""}, [False])),
            "beyond eight": (self.off(8.001), (0, {}, [False])),
            "f32": (self.RIGHT.float(), (1, {}, [True])),
            "f32, beyond two": (self.off(3).float(), (0, {"a": "f32"}, [False])),
            "f32, beyond eight": (self.off(9).float(), (0, {"a": "f32"}, [False])),
            "bf16": (self.RIGHT.bfloat16(), (1, {}, [True])),
            "bf16, another": (self.off(2.0**22).bfloat16(), (0, {"a": "bf16"}, [False])),
            "f16, another": (self.off(2.0**22).half(), (0, {"a": "f16"}, [False])),
            "another shape": (self.RIGHT.float()[:1], (0, {"a": "f32"}, [False])),
            "an integer": (torch.ones(2, dtype=torch.int64), (0, {}, [False])),
        }
        for name, (value, expected) in table.items():
            with self.subTest(name):
                self.assertEqual(self.unified(value.clone()), expected)

    def test_a_buffer_that_one_process_has_not_stays(self):
        for value, narrow in ((self.RIGHT.float(), {"a": "f32"}), (self.RIGHT, {})):
            self.assertEqual(self.unified(value, wanted=None), (0, narrow, [False]))
        wave = torch.tensor([0.1, 2j], dtype=torch.complex64)
        self.assertEqual(self.unified(wave, wanted=None), (0, {"a": "complex64"}, [False]))
        self.assertEqual(self.unified(wave, wanted=wave.to(torch.complex128)), (1, {}, [True]))
        unknown = torch.tensor([NAN, 1.0], dtype=F64)
        self.assertEqual(self.unified(unknown.clone(), wanted=unknown)[:2], (0, {}))

    def test_the_note_names_one_and_how_many_more(self):
        for count, more in (1, "0 more"), (2, "1 more"), (3, "2 more"):
            said, _ = _double.unify_buffers(
                [buffered(*(self.off(1) for _ in range(count)))], dict.fromkeys("abc", self.RIGHT)
            )
            says(self, next(iter(said)), "a", *[more] * (count > 1))
            if count == 1:
                says_nothing_of(self, next(iter(said)), more)

    def test_buffers_are_named_without_wrappers(self):
        outer = buffered(torch.ones(1), torch.ones(1, dtype=torch.int64))
        outer.inner = nn.DataParallel(buffered(torch.ones(1, dtype=torch.complex64), None))
        self.assertIn("a", _double.buffers_of([outer]))
        self.assertEqual({name.rpartition(".")[2] for name in _double.buffers_of([outer])}, {"a"})
        self.assertEqual(len(_double.buffers_of([outer])), 2)


class NoDouble(torch.autograd.Function):
    """An operation without f64, or one whose tensors need one dtype. `told`: the dtypes with which it was called."""

    error, reported, inner = RuntimeError("no Double"), [], None

    @staticmethod
    def forward(ctx, x, *more):
        dtypes = {each.dtype for each in (x, *more)}
        NoDouble.reported.append([each.dtype for each in (x, *more)])
        NoDouble.inner = x.half().dtype
        if dtypes == {F64} if not more else len(dtypes) > 1:
            raise NoDouble.error
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        NoDouble.reported.append(gradient.dtype)
        raise RuntimeError("no Double")


@torch.library.custom_op("addend_tests::twice_", mutates_args=("own",))
def twice_(factor: torch.Tensor, own: List[torch.Tensor]) -> None:
    """Doubles all of `own` in place."""
    if factor.dtype == F64:
        raise NotImplementedError("no kernel for float64")
    for tensor in own:
        tensor.mul_(2)


def own_twice(x):
    """Doubles `x` in place and returns it, as PyTorch's methods do."""
    if torch.overrides.has_torch_function_unary(x) or torch._C._is_torch_function_mode_enabled():
        return torch.overrides.handle_torch_function(own_twice, (x,), x)
    if x.dtype == F64:
        raise NotImplementedError("no kernel for float64")
    return x.mul_(2)


class Narrow(unittest.TestCase):
    def setUp(self):
        NoDouble.error, NoDouble.reported, NoDouble.inner = RuntimeError("no Double"), [], None

    def test_an_operation_whose_error_says_that_it_has_no_f64_is_computed_in_f32(self):
        words = {"Double": True, "float64": True, "f64": True, "fp64": True, "a double.": True}
        words.update({"doubled": False, "redouble": False, "half": False, "": False})
        kinds = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError, KeyError)
        for kind in kinds:
            for word, taken in words.items():
                NoDouble.error, mode = kind(word), _double.Double(["a", "b"])
                with self.subTest(kind.__name__, word=word), mode:
                    if taken and kind is not KeyError:
                        self.assertEqual(NoDouble.apply(torch.ones(2, dtype=F64)).dtype, F64)
                    else:
                        self.assertRaises(kind, NoDouble.apply, torch.ones(2, dtype=F64))
                self.assertEqual([*mode.narrow], ["NoDouble"] * (taken and kind is not KeyError))
                for place in mode.narrow.values():
                    says(self, place, "b", "test_double.py")

    def test_dtypes_of_arguments_that_dtensor_lists_are_no_refusal_of_f64(self):
        refused = "in-place operations that require placement changes are not supported.\n\n"
        for name in ("Spec(f64[1, 6](_NormP(2)))", "DTensorSpec(tensor_meta=TensorMeta(dtype=torch.float64))"):
            NoDouble.error = RuntimeError(f"{refused}Sharding propagation failed for aten.pow_.Scalar({name}, 2)")
            mode = _double.Double()
            with mode:
                self.assertRaises(RuntimeError, NoDouble.apply, torch.ones(2, dtype=F64))
            self.assertEqual((NoDouble.reported[-1], mode.narrow), ([F64], {}))

    def test_what_an_operation_in_f32_writes_in_place_is_kept(self):
        x, y = torch.full((2,), 3.0, dtype=F64), torch.full((2,), 5.0, dtype=F64)
        mode = _double.Double()
        with mode:
            for _ in range(2):
                self.assertIsNone(torch.ops.addend_tests.twice_(x, [y]))
        self.assertEqual((x.tolist(), y.tolist(), x.dtype), ([3, 3], [20, 20], F64))
        with mode:
            self.assertIs(own_twice(x), x)
        self.assertEqual((x.tolist(), len(mode.narrow)), ([6, 6], 2))

    def test_it_is_tried_in_f64_once(self):
        mode = _double.Double()
        with mode:
            for _ in range(2):
                NoDouble.apply(torch.ones(2, dtype=F64))
                self.assertEqual(NoDouble.inner, F16)  # its own conversions stay
                self.assertEqual(torch.ones(2).half().dtype, F64)  # and no others
        self.assertEqual(NoDouble.reported, [[F64], [F32], [F32]])
        self.assertNotIn("`", mode.narrow["NoDouble"])

    def test_inside_of_an_operation_the_operation_is_named_alone(self):
        mode = _double.Double()
        with mode:
            mode._inside = True
            self.assertEqual(NoDouble.apply(torch.ones(2)).tolist(), [1, 1])
            self.assertRaises(RuntimeError, NoDouble.apply, torch.ones(2, dtype=F64))
        self.assertEqual(mode.narrow, {})

    def test_tensors_of_two_dtypes_are_all_made_f64(self):
        mode, one = _double.Double(), torch.ones(2, dtype=F64)
        with mode:
            self.assertEqual(NoDouble.apply(one, torch.ones(2)).dtype, F64)
            self.assertEqual(NoDouble.reported, [[F64, F32], [F64, F64]])
            self.assertRaises(RuntimeError, NoDouble.apply, torch.ones(2), torch.ones(2, dtype=torch.int64))
        self.assertEqual(mode.narrow, {})

    def test_an_error_in_f32_is_the_jobs(self):
        mode = _double.Double()
        NoDouble.forward, before = (
            staticmethod(lambda ctx, x: 1 / 0 if x.dtype == F32 else self.raised()),
            (NoDouble.forward),
        )
        try:
            with mode:
                self.assertRaises(ZeroDivisionError, NoDouble.apply, torch.ones(2, dtype=F64))
        finally:
            NoDouble.forward = staticmethod(before)
        self.assertEqual((mode._through, mode.narrow), (False, {}))

    def raised(self):
        raise RuntimeError("no double")

    def test_inputs_are_changed_by_a_rounding_error_where_it_is_drawn(self):
        ones = torch.ones(1000, dtype=F64)
        drawn = _double.Double((), torch.Generator().manual_seed(1))._narrowed(ones)
        self.assertEqual(sorted({*drawn.double().tolist()}), [1 - ULP, 1, 1 + ULP])
        self.assertEqual(drawn.dtype, F32)
        plain = _double.Double()._narrowed(ones)
        self.assertEqual(({*plain.tolist()}, plain.dtype), ({1.0}, F32))
        for other in (torch.ones(2), torch.ones(2, dtype=torch.int64)):
            self.assertIs(_double.Double((), torch.Generator())._narrowed(other), other)

    def test_a_backward_is_never_run_twice(self):
        for run in (
            lambda loss, x: loss.backward(),
            lambda loss, x: torch.autograd.grad(loss, x),
            lambda loss, x: torch.autograd.backward([loss]),
        ):
            mode, x = _double.Double(), torch.ones(2, dtype=F64, requires_grad=True)
            with mode:
                loss = NoDouble.apply(x).sum()
                NoDouble.reported.clear()
                self.assertRaisesRegex(RuntimeError, "no Double", run, loss, x)
            self.assertEqual((NoDouble.reported, [*mode.narrow]), ([F32], ["NoDouble"]))


CONVERSIONS, DROPOUT, AUTOCAST = "f64", "dropout", "autocast"


class Step(unittest.TestCase):
    X = torch.linspace(1, 2, 16, dtype=F64).reshape(1, 4, 4)

    def hold(self, table):
        for name, (call, dtype, *facts) in table.items():
            mode = _double.Double()
            with self.subTest(name), mode:
                found = call(self.X)
                self.assertEqual(found.dtype, dtype)
            self.assertEqual(len(mode.said), len(facts), mode.said)
            for fact in facts:
                says(self, "\n".join(sorted(mode.said, reverse=True)), fact)

    def test_conversions_to_narrower_dtypes_are_to_f64(self):
        self.hold(
            {
                "float": (lambda x: x.float(), F64, CONVERSIONS),
                "half": (lambda x: x.half(), F64, CONVERSIONS),
                "bfloat16": (lambda x: x.bfloat16(), F64, CONVERSIONS),
                "to": (lambda x: x.to(F32), F64, CONVERSIONS),
                "to, by name": (lambda x: x.to(dtype=BF16), F64, CONVERSIONS),
                "type": (lambda x: x.type(F16), F64, CONVERSIONS),
                "a complex one": (lambda x: x.to(torch.complex64), torch.complex128, CONVERSIONS),
                "zeros": (lambda x: torch.zeros(2, dtype=F32), F64, CONVERSIONS),
                "softmax": (lambda x: functional.softmax(x, -1, dtype=F32), F64, CONVERSIONS),
                "double": (lambda x: x.double(), F64),
                "integers": (lambda x: x.to(torch.int32), torch.int32),
                "complex of f64": (lambda x: x.to(torch.complex128), torch.complex128),
            }
        )

    def test_dropout_is_off(self):
        attend = functional.scaled_dot_product_attention
        calls = {
            "dropout": lambda x: functional.dropout(x, 0.5),
            "alpha_dropout": lambda x: functional.alpha_dropout(x, 0.5, True),
            "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
            "by name": lambda x: torch.dropout(input=x, p=0.5, train=True),
        }
        self.hold({name: (call, F64, DROPOUT) for name, call in calls.items()})
        for call in calls.values():
            with _double.Double():
                self.assertIs(call(self.X), self.X)
        self.hold(
            {
                "attention": (lambda x: attend(x, x, x, dropout_p=0.5), F64, DROPOUT),
                "attention without": (lambda x: attend(x, x, x, dropout_p=0.0), F64),
                "another word": (lambda x: functional.relu(x), F64),
            }
        )
        with _double.Double():
            self.assertTrue(torch.equal(attend(self.X, self.X, self.X, dropout_p=0.5), attend(*[self.X] * 3)))
            self.assertTrue(torch.equal(attend(*[self.X] * 3, None, 0.5), attend(*[self.X] * 3)))

    def test_a_dropout_that_gives_its_mask_is_no_dropout_that_is_off(self):
        with _double.Double():
            found, mask = torch.native_dropout(self.X, 0.5, True)
        self.assertEqual((found.shape, mask.dtype), (self.X.shape, torch.bool))

    def test_autocast_is_off(self):
        narrow = torch.ones(4, 4)
        for on in (True, False):
            mode = _double.Double()
            with torch.autocast("cpu", dtype=BF16, enabled=on), mode:
                self.assertEqual((narrow @ narrow).dtype, F32)
                self.assertIs(torch.is_autocast_enabled("cpu"), on)
            self.assertEqual(any(AUTOCAST in note for note in mode.said), on)
        with torch.autocast("cpu", dtype=BF16):
            self.assertEqual((narrow @ narrow).dtype, BF16)

    def test_hooks_in_a_backward_are_inside_the_mode(self):
        for run in (
            lambda loss, x: loss.backward(),
            lambda loss, x: torch.autograd.grad(loss, x),
            lambda loss, x: torch.autograd.backward([loss]),
        ):
            reported, x = [], torch.ones(2, dtype=F64, requires_grad=True)
            y = x * 2
            y.register_hook(lambda gradient, reported=reported: reported.append(gradient.float().dtype))
            with _double.Double():
                run(y.sum(), x)
                self.assertEqual(torch.ones(2).half().dtype, F64)
            self.assertEqual(reported, [F64])
            self.assertEqual(torch.ones(2).half().dtype, F16)

    def test_nothing_is_left_of_a_mode(self):
        kept = lambda: (  # noqa: E731
            vars(torch.autograd.Function).get("apply"),
            graph._engine_run_backward,
            torch.autograd._engine_run_backward,
        )
        before = kept()
        for error in (None, ZeroDivisionError):
            try:
                with _double.Double():
                    self.assertFalse(any(one is other for one, other in zip(before, kept())))
                    1 / (error is None)
            except ZeroDivisionError:
                pass
            self.assertEqual(kept(), before)

    def test_what_a_dispatch_mode_repeats_in_a_backward_has_the_dtypes_of_the_forward(self):
        add, reported = torch.ops.aten.add.Tensor, []
        self.assertEqual([_double._is_repeated(each) for each in (add, torch.add)], [False, False])
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda _: reported.extend(_double._is_repeated(each) for each in (add, torch.add)))
        x.sum().backward()
        self.assertEqual(reported, [True, False])


class Made(unittest.TestCase):
    """What is changed of a model before it runs."""

    def test_dropout_of_modules_is_off(self):
        own = nn.Linear(1, 1)
        own.dropout = 0.25
        for module, read, noted in (
            (nn.Dropout(0.5), lambda module: module.p, True),
            (nn.Dropout2d(0.5), lambda module: module.p, True),
            (nn.Dropout(0.0), lambda module: module.p, False),
            (nn.MultiheadAttention(2, 1, dropout=0.5), lambda module: module.dropout, True),
            (nn.MultiheadAttention(2, 1), lambda module: module.dropout, False),
            (nn.LSTM(2, 2, 2, dropout=0.5), lambda module: module.dropout, True),
            (own, lambda module: module.dropout, True),
            (nn.TransformerEncoderLayer(2, 1, dropout=0.5), lambda module: module.dropout.p, True),
            (nn.Linear(1, 1), lambda module: 0.0, False),
        ):
            self.assertEqual(bool(_double.quiet(nn.Sequential(module))), noted, module)
            self.assertEqual(read(module), 0.0, module)

    def test_parameters_of_one_number_are_varied(self):
        model = nn.Module()
        values = {
            "zeros": torch.zeros(3, 2),
            "ones": torch.ones(2),
            "one": torch.ones(1),
            "none": torch.ones(0),
            "first": torch.tensor([1.0, 2.0]),
            "last": torch.tensor([1.0, 1.0, 2.0]),
        }
        for name, value in values.items():
            setattr(model, name, nn.Parameter(value.clone()))
        model.layer = nn.Module()
        model.layer.ones = nn.Parameter(torch.ones(2))
        (said,) = _double.vary_constants(model)
        says(self, said, "zeros", "ones")
        self.assertEqual(said.count("`"), 4, said)
        for name, value in values.items():
            own = getattr(model, name).detach()
            self.assertEqual(torch.equal(own, value), name not in ("zeros", "ones"), name)
            if name in ("zeros", "ones"):
                self.assertEqual(len({*own.flatten().tolist()}), own.numel(), name)
                self.assertTrue(0 < float((own - value).abs().max()) < 0.5, own)
        self.assertEqual(_double.vary_constants(model), set())
        again = nn.Module()
        again.zeros = nn.Parameter(torch.zeros(3, 2))
        _double.vary_constants(again)
        self.assertTrue(torch.equal(again.zeros, model.zeros))  # the same on every rank

    def test_mixed_precision_of_fully_shard_is_off(self):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        self.addCleanup(dist.destroy_process_group)
        for policy, noted in (
            ({}, False),
            ({"param_dtype": BF16}, True),
            ({"reduce_dtype": F32}, True),
            ({"output_dtype": F16}, True),
            ({"cast_forward_inputs": False}, False),
            ({"param_dtype": BF16, "cast_forward_inputs": False}, True),
        ):
            model = nn.Sequential(nn.Linear(2, 2))
            fully_shard(model, mp_policy=MixedPrecisionPolicy(**policy))
            self.assertEqual(bool(_double.widen_policies([model])), noted, policy)
            state = model._get_fsdp_state()
            holders = [(state, "_mp_policy")]
            holders += [(param, "mp_policy") for param in state._fsdp_param_group.fsdp_params]
            self.assertEqual(len(holders), 3)
            for holder, name in holders:
                found = getattr(holder, name)
                self.assertEqual((found.param_dtype, found.reduce_dtype, found.output_dtype), (None,) * 3)
                self.assertEqual(found.cast_forward_inputs, policy.get("cast_forward_inputs", True))
        self.assertEqual(_double.widen_policies([nn.Linear(1, 1)]), set())


if __name__ == "__main__":
    unittest.main()
