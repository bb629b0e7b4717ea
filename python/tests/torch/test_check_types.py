"""Test `check(typecheck=True)`: what spmd_types' type checker says of a job, beside what numbers say."""

import pathlib
import subprocess
import sys
import time
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from says import says_facts
from skips import skip_file
from torch import nn

import addend.torch
import addend.types
from addend.torch import assert_matches_one_process, check

try:
    import spmd_types as spmd
    import spmd_types.checker  # noqa: F401
except ImportError:
    skip_file(__name__, "this python3 has no spmd_types")

HANGS = 120  # seconds; many times what a check takes
HERE = pathlib.Path(__file__).resolve()
TYPES = {"*": "tp=I", "up": "tp=S0", "down": "tp=S1"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.bias = (nn.Parameter(torch.randn(shape)) for shape in ((8, 6), (6, 8), (6,)))

    def forward(self, x):
        return torch.tanh(x @ self.up.T) @ self.down.T + self.bias


class Tensor(Net):
    """Columns and rows of the matrices are on the ranks of tp."""

    def forward(self, x):
        tp = self.mesh.get_group("tp")
        x = spmd.convert(self.begin(x), tp, src=spmd.I, dst=spmd.R)
        y = spmd.all_reduce(torch.tanh(x @ self.up.T) @ self.down.T, tp, src=spmd.V, dst=spmd.I)
        return self.end(y + self.bias)

    def begin(self, x):
        return spmd.assert_type(x, {self.mesh.get_group("tp"): spmd.I}) if spmd.is_type_checking() else x

    def end(self, y):
        return y


class Untyped(Tensor):
    def begin(self, x):
        return x


class Early(Tensor):
    """One rank meets a value that types refuse before a collective, and the others wait in it."""

    def begin(self, x):
        x = super().begin(x)
        if spmd.is_type_checking() and dist.get_rank() == 1:
            spmd.assert_type(x, {self.mesh.get_group("tp"): spmd.V})
        return x


class Doubled(Tensor):
    """The numbers are wrong, and the types are right."""

    def end(self, y):
        return 2 * y


class Fails(Tensor):
    """The further step fails, for another reason than its types."""

    def end(self, y):
        if spmd.is_type_checking():
            raise ValueError("no kernel for this dtype\nand more words")
        return y


class Narrow(Tensor):
    """It runs in f64 alone, in which numbers are compared."""

    def end(self, y):
        if y.dtype != torch.float64:
            raise TypeError(f"{y.dtype} is too narrow")
        return y


def sharded(kind=Tensor, types=TYPES):
    def parallelize(model, mesh):
        rank = mesh.get_local_rank("tp")
        for name, dim in (("up", 0), ("down", 1)):
            setattr(model, name, nn.Parameter(getattr(model, name).detach().chunk(2, dim)[rank].clone()))
        model.__class__, model.mesh = kind, mesh
        addend.types.annotate(model, types, mesh)

    return parallelize


def batches(rank, mesh):
    return [torch.randn(5, 6, generator=torch.Generator().manual_seed(3))]


def squares(model, x):
    return model(x).square().sum(), len(x)


def checked(parallelize=None, call=check, **arguments):
    arguments = {"typecheck": True, "timeout": HANGS, **arguments}
    return call(Net, parallelize or sharded(), batches, squares, {"tp": 2}, **arguments)


WRONG = {**TYPES, "bias": "tp=R"}  # the numbers are right; the bias is added to what is I


class Answers(unittest.TestCase):
    def test_a_step_that_passes(self):
        report = checked()
        self.assertEqual((report.ok, report.typecheck.ok, report.typecheck.text), (True, True, ""))
        says_facts(self, str(report), "spmd_types")
        self.assertEqual(report.document["typecheck"], {"ok": True, "text": "", "where": "", "checked": True})

    def test_it_is_not_asked_for(self):
        report = checked(sharded(types=WRONG), typecheck=False)
        self.assertIs(report.ok, True)
        self.assertIsNone(report.typecheck)
        self.assertNotIn("by types", str(report))

    def test_types_that_are_refused_beside_right_numbers(self):
        report = checked(sharded(types=WRONG))
        self.assertEqual((report.ok, report.typecheck.ok), (True, False))
        says_facts(self, report.typecheck.text, "[I, R]")
        file, _, line = report.typecheck.where.rpartition(":")
        self.assertEqual(file, str(HERE))
        self.assertIn("y + self.bias", HERE.read_text().splitlines()[int(line) - 1])
        self.assertTrue(str(report).startswith("CANNOT TELL"), report)

    def test_the_place_is_the_jobs_own_where_the_checkers_frames_are_kept(self):
        """As under pytest, where it leaves them in the traceback."""
        with mock.patch.object(spmd._traceback, "_FILTERING", "off"):
            self.assertTrue(checked(sharded(types=WRONG)).typecheck.where.startswith(f"{HERE}:"))

    def test_a_test_of_it_fails(self):
        with self.assertRaises(AssertionError) as caught:
            checked(sharded(types=WRONG), assert_matches_one_process)
        says_facts(self, str(caught.exception), "[I, R]")
        says_facts(self, str(caught.exception), f"{HERE}:")
        first = str(caught.exception).splitlines()[0]
        for fact in ("numbers match", "types: the step is refused"):
            self.assertIn(fact, first)

    def test_a_test_says_that_the_numbers_failed(self):
        with self.assertRaises(AssertionError) as caught:
            checked(sharded(Doubled), assert_matches_one_process)
        first = str(caught.exception).splitlines()[0]
        for fact in ("numbers do not match", "types: the step passes"):
            self.assertIn(fact, first)
        with self.assertRaises(AssertionError) as caught:
            checked(sharded(Doubled), assert_matches_one_process, typecheck=False)
        self.assertNotIn("by types", str(caught.exception))

    def test_a_step_that_fails_for_another_reason(self):
        """The verdict by numbers stays."""
        for kind, text in ((Fails, "no kernel for this dtype"), (Narrow, "float")):
            report = checked(sharded(kind))
            self.assertEqual((report.ok, report.typecheck.ok, report.typecheck.checked), (True, None, False))
            self.assertIn(text, report.typecheck.text.lower())
            self.assertNotIn("\n", report.typecheck.text)
            self.assertIn(report.typecheck.text, str(report))
            self.assertTrue(str(report).startswith("matches"), report)
            self.assertIs(report.document["typecheck"]["checked"], False)
        with self.assertRaises(AssertionError) as caught:
            checked(sharded(Fails), assert_matches_one_process)
        self.assertIn("could not be checked", str(caught.exception).splitlines()[0])

    def test_what_has_no_type_is_no_mistake(self):
        report = checked(sharded(Untyped))
        self.assertEqual((report.ok, report.typecheck.ok), (True, None))
        says_facts(self, report.typecheck.text, "default_pg")
        self.assertFalse(str(report).startswith("CANNOT TELL"), report)

    def test_one_rank_that_is_refused_while_the_others_wait(self):
        start = time.monotonic()
        report = checked(sharded(Early))
        self.assertLess(time.monotonic() - start, HANGS / 2)
        self.assertEqual((report.ok, report.typecheck.ok), (True, False))
        says_facts(self, report.typecheck.text, "V")

    def test_the_jobs_own_dtypes_and_run_are_used(self):
        def run(model, microbatches, loss_of):
            for x in microbatches:
                if spmd.is_type_checking():
                    assert x.dtype == model.up.dtype == torch.float32
                    raise spmd.SpmdTypeError("the run is here")
                loss_of(model, x).backward()

        report = checked(run=run)
        self.assertEqual((report.ok, report.typecheck.text), (True, "the run is here"))

    def test_without_spmd_types_no_rank_is_started(self):
        gone = {name: None for name in sys.modules if name.split(".")[0] == "spmd_types"}
        with mock.patch.dict(sys.modules, gone), self.assertRaises(ImportError) as caught:
            checked(lambda model, mesh: self.fail("a rank was started"))
        self.assertIn("pip install spmd-types", str(caught.exception))


class Launched(unittest.TestCase):
    def test_all_ranks_of_a_launcher_get_the_answer(self):
        words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(HERE), "rank"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=2 * HANGS)
        told = [line for line in done.stdout.splitlines() if line.startswith("told")]
        self.assertEqual(told, ["told True True"] * 2 + ["told True False"] * 2, done.stderr)


def be_launched():
    dist.init_process_group("gloo")
    for types in (TYPES, WRONG):
        report = checked(sharded(types=types))
        sys.stdout.write(f"told {report.ok} {report.typecheck.ok}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        be_launched()
    else:
        unittest.main()
