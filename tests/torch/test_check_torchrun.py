"""`addend.torch.check` in a script that torchrun started: its ranks run the job, and all of them have the report."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HANGS = 120  # seconds; many times what a job takes
JOB = f"""
import json, os, sys, time
sys.path.insert(0, {str(HERE)!r})
import torch
import torch.distributed as dist
import addend
import proofs
from addend.torch import check

rank = int(os.environ["RANK"])

def forgetful(model, mesh):
    model = proofs.megatron(model, mesh)
    if dist.get_rank() == 1:
        {{}}
    return model

def tell(**found):
    sys.stdout.write("told " + json.dumps(dict(rank=rank, **found)) + "\\n")
    sys.stdout.flush()

def asked(parallelize=proofs.megatron, mesh=None, **arguments):
    mesh = mesh or {{"dp": 1, "tp": 2}}
    try:
        report = check(proofs.Decoder, parallelize, (proofs.whole, proofs.cut), proofs.loss, mesh, **arguments)
        tell(ok=report.ok, text=str(report), begins=report.begins and report.begins.module)
    except addend.AddendError as error:
        tell(kind=type(error).__name__, text=str(error))
"""


def torchrun(world, text, **options):
    """What each rank told, in the order of ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    with tempfile.TemporaryDirectory() as folder:
        job = pathlib.Path(folder, "job.py")
        job.write_text(JOB.replace("{}", options.get("fails", "pass")) + text, encoding="utf-8")
        done = subprocess.run([*launcher, str(job)], capture_output=True, text=True, timeout=HANGS)
    told = [json.loads(line.partition("told ")[2]) for line in done.stdout.splitlines() if line.startswith("told ")]
    if done.returncode or not told:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return sorted(told, key=lambda entry: entry["rank"])


class Torchrun(unittest.TestCase):
    def alike(self, told, world):
        self.assertEqual([entry["rank"] for entry in told], list(range(world)))
        self.assertEqual(len({entry["text"] for entry in told}), 1, told)
        return told[0]

    def test_a_right_job_and_then_a_wrong_one(self):
        told = torchrun(
            4, "mesh = {'dp': 2, 'tp': 2}\nasked(mesh=mesh)\nasked(proofs.at('blocks.1.mlp.up', copies=False), mesh)\n"
        )
        right = self.alike([entry for entry in told if entry["ok"]], 4)
        self.assertIn("4 ranks, mesh dp=2 tp=2, against one process", right["text"])
        wrong = self.alike([entry for entry in told if entry["ok"] is False], 4)
        self.assertEqual(wrong["begins"], "blocks.1.mlp.up", wrong["text"])

    def test_groups_that_the_script_has_stay_as_they_are(self):
        told = torchrun(
            2,
            """
dist.init_process_group("gloo")
asked(proofs.ddp, {"dp": 2})
x = torch.ones(1) * (rank + 1)
dist.all_reduce(x)
tell(text="", ok=x.item() == 3.0 and x.dtype == torch.float32)
dist.destroy_process_group()
""",
        )
        self.assertEqual([entry["ok"] for entry in told], [True] * 4, told)

    def test_an_error_on_one_rank_is_told_on_all(self):
        told = torchrun(2, "asked(forgetful)\n", fails='raise KeyError("no such layer")')
        one = self.alike(told, 2)
        self.assertEqual(one["kind"], "RankDiedError")
        self.assertIn("rank 1: KeyError: 'no such layer' (", one["text"])

    def test_a_rank_that_hangs_is_told_on_all(self):
        one = self.alike(torchrun(2, "asked(forgetful, timeout=8)\n", fails="time.sleep(1000)"), 2)
        self.assertIn("rank 1 did not end in 8 s", one["text"])
        self.assertIn("in forgetful", one["text"].partition("rank 1, innermost call first:")[2])

    def test_a_mesh_of_another_size(self):
        one = self.alike(torchrun(2, "asked(mesh=4)\n"), 2)
        self.assertEqual(one["kind"], "InvalidError")
        self.assertIn("the launcher started 2 ranks, and mesh dp=4 has 4", one["text"])

    def test_a_reference_and_one_that_is_not_there(self):
        text = """
from addend.torch import write_reference
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "one")
if rank == 0:
    write_reference(path, proofs.Decoder, proofs.megatron, (proofs.whole, proofs.cut), proofs.loss, {"dp": 1, "tp": 2})
asked(reference=path)
asked(reference="none")
"""
        told = torchrun(2, text)
        self.assertEqual([entry.get("ok") for entry in told], [True, None] * 2, told)
        self.assertIn("could not be read", self.alike([entry for entry in told if "kind" in entry], 2)["text"])

    def test_an_error_in_the_process_with_the_whole(self):
        text = """
proofs.loss = lambda model, batch: (1, 2, 3)
asked(proofs.ddp, {"dp": 2})
"""
        one = self.alike(torchrun(2, text), 2)
        self.assertIn("the process with the whole batch: loss gave 3 things", one["text"])


if __name__ == "__main__":
    unittest.main()
