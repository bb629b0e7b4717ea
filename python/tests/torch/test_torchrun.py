"""Test jobs under the real torchrun: a watched job runs, and its ranks can join as ranks of addend, in Python and in
C.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from says import has, says, says_facts

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve().parent / "addend"
TRAINER = unittest.skipUnless(PROGRAM.with_name("libaddend_train.so").exists(), "the trainer is not built")
RECIPE = ROOT / "recipes" / "gpt-dp.yaml"
HANGS = 240  # seconds; many times what a job takes, even if nothing of PyTorch is in the disk cache yet
SAY = """
import os

def say(words):  # a line in one piece
    os.write(1, f"{words}\\n".encode())
"""
OWN_RANKS = f"""{SAY}
import addend
import numpy

with addend.Comm() as comm:
    value = numpy.array([1.0 + comm.rank])
    comm.all_reduce(value)
    say(f"sum {{value[0]}}")
try:
    addend.train({str(RECIPE)!r}, steps=2, out="run")
except addend.InvalidError as error:
    say(error)
"""
STORE = f"""{SAY}
import signal
import addend
import numpy
import torch.distributed as dist

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which torchrun sends to the others of a rank that died
dist.init_process_group("gloo")
store = dist.PrefixStore("addend", dist.distributed_c10d._get_default_store())
with addend.Comm("dp=2", store=store, rank=dist.get_rank(), size=dist.get_world_size()) as comm:
    say(f"sum {{comm.all_reduce(numpy.array([1.0 + comm.rank]))[0]}}")
    if comm.rank == 1:
        os.kill(os.getpid(), 9)
    try:
        comm.barrier()
    except addend.RankDiedError as error:
        say(error)
"""

# The first two attempts end at other places: before the group is made, and in its second life. Rank 0 comes last, so
# that the others see what the attempt before has left in torchrun's store.
RESTARTS = f"""{SAY}
import sys
import time
import torch
import torch.distributed as dist
import addend.torch.group

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank = int(os.environ["RANK"])
for life in range(3):
    if (attempt, life, rank) == (0, 0, 1):
        os._exit(3)
    if rank == 0 and attempt:
        time.sleep(0.3)
    dist.init_process_group("addend")
    tensor = torch.tensor([10.0 * attempt + life])
    dist.all_reduce(tensor)
    say(f"attempt {{attempt}} life {{life}} sum {{tensor.item()}}")
    if (attempt, life, rank) == (1, 1, 2):
        os.kill(os.getpid(), 9)
    dist.destroy_process_group()
"""


def torchrun(world, *command, more=(), **options):
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(world),
        *more,
    ]
    return subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=HANGS, **options)


class Torchrun(unittest.TestCase):
    @TRAINER
    def test_its_ranks_are_a_world_and_start_none_of_their_own(self):
        with tempfile.TemporaryDirectory() as folder:
            job = pathlib.Path(folder, "job.py")
            job.write_text(OWN_RANKS)
            done = torchrun(3, str(job), cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse(pathlib.Path(folder, "run", "metrics.jsonl").exists())
        self.assertEqual(done.stdout.count("sum 6.0\n"), 3, done.stdout)
        says(self, done.stdout, "addend.train", "addend run")
        self.assertEqual(done.stdout.count("addend.train"), 3, done.stdout)

    def test_pytorchs_store_brings_ranks_together_and_a_death_is_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            job = pathlib.Path(folder, "job.py")
            job.write_text(STORE)
            done = torchrun(2, str(job), cwd=folder)
        self.assertEqual(done.stdout.count("sum 3.0\n"), 2, done.stdout + done.stderr)
        says_facts(self, done.stdout, "rank 1")
        self.assertEqual(len([line for line in done.stdout.splitlines() if has(line, "rank 1")]), 1, done.stdout)

    def losses(self, run):
        return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]

    @TRAINER
    def test_a_program_without_python_trains_with_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            train = [str(PROGRAM), "train", str(RECIPE), "--out"]
            done = torchrun(3, "--no-python", *train, "torchrun", cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            subprocess.run(
                [*train, "own"],
                cwd=folder,
                capture_output=True,
                timeout=HANGS,
                check=True,
            )
            self.assertEqual(*(self.losses(pathlib.Path(folder, run)) for run in ("torchrun", "own")))

    @TRAINER
    def test_a_world_of_another_size_than_the_mesh_is_refused(self):
        done = torchrun(2, "--no-python", str(PROGRAM), "check", str(RECIPE))
        self.assertNotEqual(done.returncode, 0)
        says(self, done.stderr, "2 rank(s)", "3")

    def test_restarted_ranks_and_groups_made_again_take_nothing_from_the_ones_before(self):
        with tempfile.TemporaryDirectory() as folder:
            job = pathlib.Path(folder, "job.py")
            job.write_text(RESTARTS)
            done = torchrun(3, str(job), cwd=folder, more=["--max-restarts", "2"])
        self.assertEqual(done.returncode, 0, done.stderr)
        for life in range(3):
            self.assertEqual(done.stdout.count(f"attempt 2 life {life} sum {3.0 * (20 + life)}\n"), 3, done.stdout)
        self.assertEqual(done.stdout.count("attempt 1 life 1 sum 33.0\n"), 3, done.stdout)
        self.assertNotIn("attempt 0", done.stdout)

    def test_a_watched_job_runs(self):
        done = torchrun(2, str(ROOT / "python" / "examples" / "ddp.py"))
        self.assertEqual(done.returncode, 0, done.stderr)
        verdicts = re.findall("^matches: ", done.stdout, re.M)  # the first line and the last
        self.assertEqual(len(verdicts), 2, done.stdout)


if __name__ == "__main__":
    unittest.main()
