"""Under the real torchrun: a watched job runs, and ranks of addend's own are refused with what to do instead."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HANGS = 60  # seconds; several times what a job takes
OWN_RANKS = f"""
import addend

def train():
    addend.train({str(ROOT / "recipes" / "gpt-dp.yaml")!r}, steps=2, out="run")

for start in (addend.Comm, lambda: addend.Comm(alone=True), train):
    try:
        start()
        print("started", flush=True)
    except addend.InvalidError as error:
        print(error, flush=True)
"""


def torchrun(world, *command, **options):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    return subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=HANGS, **options)


class Torchrun(unittest.TestCase):
    def test_ranks_of_addends_own_are_refused_and_told_how_to_start(self):
        with tempfile.TemporaryDirectory() as folder:
            job = pathlib.Path(folder, "job.py")
            job.write_text(OWN_RANKS)
            done = torchrun(2, str(job), cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse(pathlib.Path(folder, "run", "metrics.jsonl").exists())
        for rank in (0, 1):
            found = f"(RANK={rank} and WORLD_SIZE=2 in the environment)"
            said = [line for line in done.stdout.splitlines() if found in line]
            self.assertEqual(len(said), 3, done.stdout)
            for line in said:
                self.assertTrue(line.startswith("torchrun or a launcher like it started this process"), line)
                self.assertIn("start the program once, with `addend run -n 2 -- PROGRAM`", line)
                self.assertIn("`unset RANK WORLD_SIZE`", line)
        self.assertEqual(len(done.stdout.splitlines()), 6, done.stdout)

    def test_a_watched_job_runs(self):
        done = torchrun(2, str(ROOT / "examples" / "torch" / "ddp.py"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("\nright\n"), 1, done.stdout)


if __name__ == "__main__":
    unittest.main()
