"""Test ranks in Python: processes that `addend run` starts join, sum NumPy arrays, and get errors for what is
refused.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy
from says import raises

import addend

PROGRAM = Path(os.environ["ADDEND_LIBRARY"]).parent / "addend"
HANGS = 60  # seconds; no call here takes a tenth of it

SUMS = """
import addend, numpy
with addend.Comm("dp=2 tp=2") as comm:
    first = comm.rank * 7 // 4
    rows = (comm.rank + 1) * 7 // 4 - first
    for dtype in ("f8", "f4", "f2", "i4", "i8"):
        x = numpy.arange(6).reshape(2, 3).astype(dtype) + comm.rank
        assert comm.all_reduce(x) is x
        assert (x == 4 * numpy.arange(6).reshape(2, 3) + 6).all(), x
    all_ranks = [numpy.array([3, 0, 200, 128, 255], "u1") * (rank + 1) for rank in range(4)]
    for dtype in ("u1", "i1", "i2", "i4", "i8", "?", "f4"):
        held = [one.astype(dtype) for one in all_ranks]
        folds = {
            "sum": numpy.logical_or if dtype == "?" else numpy.add,
            "product": numpy.multiply,
            "max": numpy.maximum,
            "min": numpy.minimum,
        }
        if dtype != "f4":
            folds.update(bit_and=numpy.bitwise_and, bit_or=numpy.bitwise_or, bit_xor=numpy.bitwise_xor)
        for op, fold in folds.items():
            want = fold(fold(held[0], held[1]), fold(held[2], held[3]))
            x, part = held[comm.rank].copy(), numpy.zeros((comm.rank + 1) * 5 // 4 - comm.rank * 5 // 4, dtype)
            comm.reduce_scatter(x, part, op=op)
            assert (part == want[comm.rank * 5 // 4 :][: len(part)]).all() and part.dtype == want.dtype, (dtype, op)
            assert (comm.all_reduce(x, op=op) == want).all() and x.dtype == want.dtype, (dtype, op, x, want)
        whole = numpy.zeros(4, dtype)
        comm.all_gather(held[comm.rank][2:3], whole)
        assert (whole == [one[2] for one in held]).all()
        x = held[comm.rank].copy()
        assert (comm.broadcast(x, root=2) == held[2]).all()
    try:
        comm.all_reduce(numpy.zeros(2), op="bit_or")
    except addend.InvalidError as error:
        assert "f64" in str(error) and "bit_or" in str(error), error
    else:
        raise SystemExit("bits of floats were combined")
    y = numpy.full(3, comm.rank, "f4")
    out = numpy.zeros(3, "f4")
    comm.all_reduce(y, out, axes="tp")
    assert (out == (1 if comm.rank < 2 else 5)).all() and (y == comm.rank).all()
    assert comm.all_reduce(numpy.full(1, comm.rank), op="max")[0] == 3
    part = numpy.zeros((rows, 2))
    whole = numpy.arange(14.0).reshape(7, 2)
    comm.reduce_scatter(whole, part)
    assert (part == 4 * whole[first : first + rows]).all(), part
    again = numpy.zeros((7, 2))
    comm.all_gather(part, again)
    assert (again == 4 * whole).all(), again
    z = numpy.full(2, comm.rank)
    comm.broadcast(z, root=3)
    assert (z == 3).all()
    comm.barrier("dp")
    assert (comm.size, comm.backend, str(comm.mesh)) == (4, "shm", "dp_shard=2 tp=2")
    empty = comm.all_reduce(numpy.zeros((0, 3)))
    assert empty.shape == (0, 3)
try:
    comm.barrier()
except addend.InvalidError as error:
    assert "closed" in str(error)
"""
FAILS = """
import os, addend
try:
    with addend.Comm() as comm:
        if comm.rank == 2:
            raise ValueError("no data here")
        comm.barrier()
except addend.PeerFailedError as error:
    os.write(1, f"{error}\\n".encode())
    raise SystemExit(1)
"""
MISMATCH = """
import os, addend, numpy
try:
    with addend.Comm() as comm:
        {}
except addend.MismatchError as error:
    os.write(1, f"{{error}}\\n".encode())
    raise SystemExit(1)
"""
DIFFERENT = (
    "comm.all_reduce(numpy.zeros(comm.rank + 1))",
    "comm.reduce_scatter(numpy.zeros(4 + 2 * comm.rank), numpy.zeros(2 + comm.rank))",
    "comm.all_gather(numpy.zeros(2 + comm.rank), numpy.zeros(4 + 2 * comm.rank))",
)


def ranks(count, program):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.py")
        path.write_text(program)
        return subprocess.run(
            [PROGRAM, "run", "-n", str(count), "--", sys.executable, path],
            capture_output=True,
            text=True,
            timeout=HANGS,
        )


IN_FOLDER = """
import os, sys, time, addend, numpy

class Folder:
    def path(self, key):
        return os.path.join(sys.argv[1], key.replace("/", "-"))
    def set(self, key, value):
        with open(self.path(key) + ".part", "wb") as file:
            file.write(value)
        os.rename(self.path(key) + ".part", self.path(key))
    def get(self, key):
        with open(self.path(key), "rb") as file:
            return file.read()
    def wait(self, keys, most):
        while not os.path.exists(self.path(keys[0])):
            time.sleep(0.01)

with addend.Comm(store=Folder(), rank=int(sys.argv[2]), size=3) as comm:
    print(comm.all_reduce(numpy.array([1.0 + comm.rank]))[0], comm.backend)
"""


class Ranks(unittest.TestCase):
    def test_collectives_on_arrays_are_their_sums(self):
        done = ranks(4, SUMS)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_an_exception_on_one_rank_reaches_all(self):
        done = ranks(3, FAILS)
        self.assertEqual(done.returncode, 3)
        words = "rank 2: ValueError: no data here; the communicator can only be closed"
        self.assertEqual(done.stdout.splitlines(), [words] * 2)

    def test_arrays_of_different_sizes_are_an_error_on_all(self):
        for call in DIFFERENT:
            done = ranks(2, MISMATCH.format(call))
            self.assertEqual(done.returncode, 3)
            self.assertEqual(done.stdout.count("job.py:5"), 4, done.stdout)  # each rank names both calls

    def test_a_process_that_nobody_started_is_refused(self):
        with raises(self, addend.InvalidError, "Comm(alone=True)"):
            addend.Comm()

    def test_a_store_brings_processes_together(self):
        with tempfile.TemporaryDirectory() as folder:
            jobs = [
                subprocess.Popen(
                    [sys.executable, "-c", IN_FOLDER, folder, str(rank)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(3)
            ]
            said = [job.communicate(timeout=HANGS)[0] for job in jobs]
        self.assertEqual(said, ["6.0 shm\n"] * 3)

    def test_a_store_that_cannot_be_one_is_refused(self):
        class Full(dict):
            def set(self, key, value):
                raise OSError("the disk is full")

            def wait(self, keys, most):
                raise TimeoutError(f"{keys[0]} did not come in {most.total_seconds():g} s")

        class Silent(Full):
            def set(self, key, value):
                pass

        class Short(Silent):
            def wait(self, keys, most):
                pass

            def get(self, key):
                return b"of another"

        for given, facts in (
            ({"rank": 1, "size": 2}, ["store="]),
            ({"store": Full()}, ["rank=", "size="]),
            ({"store": {}, "rank": 0, "size": 2}, ["set"]),
            ({"store": Full(), "rank": 2, "size": 2}, ["rank 2", "2 ranks"]),
        ):
            with raises(self, addend.InvalidError, *facts):
                addend.Comm(**given)
        for store, rank, facts in (
            (Full(), 0, ["addend/world", "OSError"]),
            (Full(), 1, ["rank 0", "addend/world", "TimeoutError", "7 s"]),
            (Silent(), 0, ["rank 1", "TimeoutError", "7 s"]),
            (Short(), 0, ["10 bytes", "8"]),
        ):
            with raises(self, addend.AddendError, *facts):
                addend.Comm(store=store, rank=rank, size=2, seconds=7)

    def test_a_world_of_torchrun_is_refused(self):
        os.environ.update(RANK="1", WORLD_SIZE="4")
        try:
            for alone in (False, True):
                with raises(self, addend.InvalidError, "RANK=1", "WORLD_SIZE=4"):
                    addend.Comm(alone=alone)
        finally:
            del os.environ["RANK"], os.environ["WORLD_SIZE"]

    def test_a_mesh_of_another_size_is_refused(self):
        with raises(self, addend.InvalidError, "1 rank", "dp_shard=2", "has 2"):
            addend.Comm("dp=2", alone=True)


class OnDevice:
    def __dlpack__(self):
        raise AssertionError("never asked for")

    def __dlpack_device__(self):
        return 2, 1


class OnCuda:
    __cuda_array_interface__ = {}


class ByDLPackAlone:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Arrays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.comm = addend.Comm(alone=True)

    @classmethod
    def tearDownClass(cls):
        cls.comm.close()

    def refused(self, facts, array, **arguments):
        with raises(self, addend.InvalidError, *facts):
            self.comm.all_reduce(array, **arguments)

    def test_what_cannot_be_handed_over_is_refused_by_its_reason(self):
        square = numpy.zeros((4, 4))
        self.refused(["array", "numpy.ascontiguousarray"], square[:, :2])
        self.refused(["array", "numpy.ascontiguousarray"], square.T[:3])
        self.refused(["array", "numpy.ascontiguousarray"], square[::-1])
        self.refused(["out", "numpy.ascontiguousarray"], numpy.zeros(4), out=square[:, 0])
        self.refused(["<u4"], numpy.zeros(3, "u4"))
        self.refused([">f4"], numpy.zeros(3, ">f4"))
        self.refused(["list"], [1.0, 2.0])
        self.refused(["CUDA", "1"], OnDevice())
        self.refused(["CUDA"], OnCuda())
        self.refused(["op", "bit_and", "mean"], square, op="mean")
        self.refused(["f8", "f4", "i8", "b1", "<u2"], numpy.zeros(3, "u2"))
        self.refused(["f64", "f32"], square, out=numpy.zeros((4, 4), "f4"))
        self.refused(["[2]", "[4, 4]"], square, out=numpy.zeros(2))
        square.flags.writeable = False
        self.refused(["array"], square)

    def test_a_row_of_a_matrix_is_contiguous(self):
        square = numpy.ones((4, 4))
        self.assertIs(self.comm.all_reduce(square[1:3]).base, square)

    def test_dlpack_is_read_without_a_copy(self):
        array = numpy.arange(6, dtype="f4").reshape(2, 3)
        from addend._arrays import memory_of

        memory = memory_of(ByDLPackAlone(array), "array")
        self.assertEqual(
            (memory.address, memory.dtype.name, memory.shape),
            (array.ctypes.data, "f32", (2, 3)),
        )
        for dtype, name in (("u1", "u8"), ("i1", "i8"), ("i2", "i16"), ("?", "bool")):
            self.assertEqual(memory_of(ByDLPackAlone(numpy.zeros(3, dtype)), "array").dtype.name, name)
        self.refused(["array"], ByDLPackAlone(array[:, :2]))
        self.refused(["f64", "bool"], ByDLPackAlone(array.astype("c8")))
        self.refused(["f64", "bf16", "u8", "bool"], ByDLPackAlone(array.astype("u4")))

    def test_memory_outlives_the_array_s_name(self):
        from addend._arrays import memory_of

        memory = memory_of(ByDLPackAlone(numpy.full(1000, 7.0)), "array")
        import ctypes

        self.assertEqual(ctypes.c_double.from_address(memory.address + 8 * 999).value, 7.0)


if __name__ == "__main__":
    unittest.main()
