"""Test `addend.torch.check` in a script that torchrun started: its ranks run the job, and all of them get the report.
Starting a script takes long, so one script asks for all that two ranks can show.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from says import says

HERE = pathlib.Path(__file__).resolve().parent
HANGS = 240  # seconds; many times what a script takes
JOB = f"""
import json, os, sys, time
sys.path.insert(0, {str(HERE)!r})
import torch
import torch.distributed as dist
import addend
import right_jobs
from addend.torch import check, write_reference

rank = int(os.environ["RANK"])

def failing(fail):
    def forgetful(model, mesh):
        model = right_jobs.megatron(model, mesh)
        if dist.get_rank() == 1:
            fail()
        return model

    return forgetful

def no_such_layer():
    raise KeyError("no such layer")

def tell(what, **found):
    sys.stdout.write("told " + json.dumps(dict(rank=rank, what=what, **found)) + "\\n")
    sys.stdout.flush()

def asked(what, parallelize=right_jobs.megatron, mesh=None, loss=right_jobs.loss, **arguments):
    mesh = mesh or {{"dp": 1, "tp": 2}}
    try:
        report = check(right_jobs.Decoder, parallelize, (right_jobs.whole, right_jobs.cut), loss, mesh, **arguments)
        tell(what, ok=report.ok, text=str(report), begins=report.begins and report.begins.module)
    except addend.AddendError as error:
        tell(what, kind=type(error).__name__, text=str(error))
"""
FOUR = """
mesh = {"dp": 2, "tp": 2}
asked("right", mesh=mesh)
asked("wrong", right_jobs.at("blocks.1.mlp.up", copies=False), mesh)
"""
TWO = """
asked("another size", mesh=4)
asked("an error", failing(no_such_layer))
asked("an error in the whole", right_jobs.ddp, {"dp": 2}, loss=lambda model, batch: (1, 2, 3))
asked("a hang", failing(lambda: time.sleep(1000)), timeout=8)
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "one")
if rank == 0:
    both = (right_jobs.whole, right_jobs.cut)
    write_reference(path, right_jobs.Decoder, right_jobs.megatron, both, right_jobs.loss, {"dp": 1, "tp": 2})
asked("a reference", reference=path)
asked("no reference", reference="none")
dist.init_process_group("gloo")
asked("groups", right_jobs.ddp, {"dp": 2})
x = torch.ones(1) * (rank + 1)
dist.all_reduce(x)
tell("a sum", text="", ok=x.item() == 3.0 and x.dtype == torch.float32)
dist.destroy_process_group()
"""


def torchrun(world, text):
    """Return by question what each rank was told, in the order of ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    with tempfile.TemporaryDirectory() as folder:
        job = pathlib.Path(folder, "job.py")
        job.write_text(JOB + text, encoding="utf-8")
        done = subprocess.run([*launcher, str(job)], capture_output=True, text=True, timeout=HANGS)
    reported = [json.loads(line.partition("told ")[2]) for line in done.stdout.splitlines() if line.startswith("told ")]
    if done.returncode or not reported:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    found = {}
    for entry in sorted(reported, key=lambda entry: entry["rank"]):
        found.setdefault(entry["what"], []).append(entry)
    return found


class Reported(unittest.TestCase):
    def identical(self, reported, world=2):
        self.assertEqual([entry["rank"] for entry in reported], list(range(world)))
        self.assertEqual(len({entry["text"] for entry in reported}), 1, reported)
        return reported[0]


class Four(Reported):
    def test_a_right_job_and_then_a_wrong_one(self):
        reported = torchrun(4, FOUR)
        right, wrong = self.identical(reported["right"], 4), self.identical(reported["wrong"], 4)
        self.assertTrue(all(entry["ok"] for entry in reported["right"]), reported)
        says(self, right["text"], "4 ranks", "dp=2 tp=2")
        self.assertTrue(all(entry["ok"] is False for entry in reported["wrong"]), reported)
        self.assertEqual(wrong["begins"], "blocks.1.mlp.up", wrong["text"])


class Two(Reported):
    """One script of two ranks asks all questions; earlier failures leave nothing behind for later questions."""

    @classmethod
    def setUpClass(cls):
        cls.reported = torchrun(2, TWO)

    def test_groups_that_the_script_has_stay_as_they_are(self):
        for what in ("groups", "a sum"):
            self.assertEqual([entry.get("ok") for entry in self.reported[what]], [True] * 2, self.reported[what])

    def test_an_error_on_one_rank_is_reported_on_all(self):
        one = self.identical(self.reported["an error"])
        self.assertEqual(one["kind"], "RankDiedError")
        says(self, one["text"], "rank 1", "KeyError", "no such layer")

    def test_a_rank_that_hangs_is_reported_on_all(self):
        one = self.identical(self.reported["a hang"])
        says(self, one["text"], "rank 1", "8 s", "timeout=")
        self.assertIn("in forgetful", one["text"].partition("\nrank 1")[2])

    def test_a_mesh_of_another_size(self):
        one = self.identical(self.reported["another size"])
        self.assertEqual(one["kind"], "InvalidError")
        says(self, one["text"], "2 ranks", "dp=4", "4")

    def test_a_reference_and_one_that_is_not_there(self):
        found = self.reported["a reference"]
        self.assertEqual([entry.get("ok") for entry in found], [True] * 2, found)
        says(self, self.identical(self.reported["no reference"])["text"], "reference=")

    def test_an_error_in_the_process_with_the_whole(self):
        one = self.identical(self.reported["an error in the whole"])
        says(self, one["text"], "loss", "3 values")


if __name__ == "__main__":
    unittest.main()
