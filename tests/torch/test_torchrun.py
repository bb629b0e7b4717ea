"""Under the real torchrun: a watched job runs, and its ranks are a world of addend's own, in Python and in C."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve().parent / "addend"
RECIPE = ROOT / "recipes" / "gpt-dp.yaml"
HANGS = 60  # seconds; several times what a job takes
OWN_RANKS = f"""
import addend
import numpy

with addend.Comm() as comm:
    value = numpy.array([1.0 + comm.rank])
    comm.all_reduce(value)
    print("sum", value[0], flush=True)
try:
    addend.train({str(RECIPE)!r}, steps=2, out="run")
except addend.InvalidError as error:
    print(error, flush=True)
"""


def torchrun(world, *command, **options):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    return subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=HANGS, **options)


class Torchrun(unittest.TestCase):
    def test_its_ranks_are_a_world_and_start_none_of_their_own(self):
        with tempfile.TemporaryDirectory() as folder:
            job = pathlib.Path(folder, "job.py")
            job.write_text(OWN_RANKS)
            done = torchrun(3, str(job), cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse(pathlib.Path(folder, "run", "metrics.jsonl").exists())
        self.assertEqual(done.stdout.count("sum 6.0\n"), 3, done.stdout)
        self.assertEqual(done.stdout.count("in a process that is itself a rank"), 3, done.stdout)

    def losses(self, run):
        return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]

    def test_a_program_without_python_trains_with_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            train = [str(PROGRAM), "train", str(RECIPE), "--out"]
            done = torchrun(3, "--no-python", *train, "torchrun", cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            subprocess.run([*train, "own"], cwd=folder, capture_output=True, timeout=HANGS, check=True)
            self.assertEqual(*(self.losses(pathlib.Path(folder, run)) for run in ("torchrun", "own")))

    def test_a_world_of_another_size_than_the_mesh_is_refused(self):
        done = torchrun(2, "--no-python", str(PROGRAM), "check", str(RECIPE))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the launcher started 2 rank(s), the mesh", done.stderr)

    def test_a_watched_job_runs(self):
        done = torchrun(2, str(ROOT / "examples" / "torch" / "ddp.py"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("\nright\n"), 1, done.stdout)


if __name__ == "__main__":
    unittest.main()
