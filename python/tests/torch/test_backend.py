"""Test that an installed package makes the backend "addend" known to programs that import nothing of addend, as
torchrun starts them, and that `import torch` neither loads addend nor fails because of it.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec

from says import says

PYTHON = pathlib.Path(__file__).resolve().parents[2]
HANGS = 240  # seconds
JOB = """
import os
import sys
import torch
import torch.distributed as dist

assert "addend" not in sys.modules
dist.init_process_group("addend")
tensor = torch.ones(3) + dist.get_rank()
dist.all_reduce(tensor)
os.write(1, f"{dist.get_backend()} sum {tensor[0].item()}\\n".encode())
dist.destroy_process_group()
dist.init_process_group()
os.write(1, f"by default {dist.group.WORLD._get_backend(torch.device('cpu')).name()}\\n".encode())
dist.destroy_process_group()
"""
ALONE = """
import sys
import torch
import torch.distributed as dist

print("addend" in sys.modules, "addend" in dist.Backend.backend_list)
if sys.argv[1:]:
    __import__(sys.argv[1])
dist.init_process_group("addend", store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_backend())
"""
TRAINING = """
import os
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from transformers import Trainer, TrainingArguments

dist.init_process_group("addend")


class Net(nn.Linear):
    def forward(self, x, labels=None):
        return {"loss": (super().forward(x) - labels).square().mean()}


def row(at):
    made = torch.Generator().manual_seed(at)
    return {"x": torch.randn(6, generator=made), "labels": torch.randn(20, generator=made)}


def new_net():
    torch.manual_seed(1)
    return Net(6, 20)


rows = [row(at) for at in range(32)]
told = dict(use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
told.update(gradient_accumulation_steps=2, max_steps=3)
trainer = Trainer(new_net(), TrainingArguments("trained", **told), train_dataset=rows, eval_dataset=rows)
trainer.train()
assert trainer.evaluate()["eval_loss"] > 0
assert isinstance(trainer.model_wrapped, nn.parallel.DistributedDataParallel)

accelerator = Accelerator(cpu=True)
net = new_net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net, optimizer, batches = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(rows, batch_size=4))
for batch in batches:
    loss = net(**batch)["loss"]
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
losses = accelerator.gather(loss.detach())
assert abs(accelerator.reduce(loss.detach(), "mean") - losses.mean()) < 1e-6
assert gather_object([accelerator.process_index]) == [0, 1]
sums = [torch.cat([p.detach().double().sum()[None] for p in one.parameters()]) for one in (trainer.model, net)]
both = accelerator.gather(torch.stack(sums)[None])
assert torch.equal(both[0], both[1]), both
os.write(1, f"trained on {dist.get_backend()}\\n".encode())
dist.destroy_process_group()
"""


class Backend(unittest.TestCase):
    def setUp(self):
        """Make a folder in which the package is installed, as far as PyTorch looks at it."""
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        text = (PYTHON / "pyproject.toml").read_text()
        named = re.search(r'\[project\.entry-points\."torch\.backends"\]\n(\w+) = "(.+)"', text)
        reported = self.folder / "addend-0.dist-info"
        reported.mkdir()
        (reported / "METADATA").write_text("Metadata-Version: 2.1\nName: addend\nVersion: 0\n")
        (reported / "entry_points.txt").write_text(f"[torch.backends]\n{named[1]} = {named[2]}\n")
        (self.folder / "job.py").write_text(JOB)
        (self.folder / "alone.py").write_text(ALONE)

    def run_python(self, *command, **changed):
        library = str(pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve())
        path = os.pathsep.join([str(self.folder), os.environ["PYTHONPATH"]])
        reported = {**os.environ, "ADDEND_LIBRARY": library, "PYTHONPATH": path, **changed}
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=reported, capture_output=True, text=True, timeout=HANGS
        )

    def test_torchruns_ranks_need_no_import(self):
        done = self.run_python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "job.py")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("addend sum 3.0\n"), 2, done.stdout)
        self.assertEqual(done.stdout.count("by default gloo\n"), 2, done.stdout)

    @unittest.skipUnless(find_spec("transformers") and find_spec("accelerate"), "script/torch installs them")
    def test_trainer_and_accelerate_take_a_group_that_is_there(self):
        (self.folder / "training.py").write_text(TRAINING)
        done = self.run_python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "training.py")
        self.assertEqual(done.stdout.count("trained on addend\n"), 2, done.stdout + done.stderr)

    def test_a_library_that_is_missing_shows_when_a_group_is_made(self):
        done = self.run_python("alone.py", ADDEND_LIBRARY="/nowhere/libaddend.so")
        self.assertEqual(done.stdout, "False True\n")
        says(self, done.stderr, "ImportError", "/nowhere/libaddend.so", "ADDEND_LIBRARY")

    def test_without_autoload_an_import_is_needed(self):
        done = self.run_python("alone.py", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.assertEqual(done.stdout, "False False\n")
        self.assertNotEqual(done.returncode, 0)
        done = self.run_python("alone.py", "addend.torch.group", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.assertEqual(done.stdout, "False False\naddend\n", done.stderr)

    def test_what_goes_wrong_while_it_registers_does_not_reach_import_torch(self):
        program = "import torch, torch_addend; torch.distributed.Backend = None; torch_addend.register()"
        done = self.run_python("-c", program)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
