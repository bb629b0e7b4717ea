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

PYTHON = pathlib.Path(__file__).resolve().parents[2] / "python"
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


class Backend(unittest.TestCase):
    def setUp(self):
        """Make a folder in which the package is installed, as far as PyTorch looks at it."""
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        text = (PYTHON / "pyproject.toml").read_text()
        named = re.search(r'\[project\.entry-points\."torch\.backends"\]\n(\w+) = "(.+)"', text)
        told = self.folder / "addend-0.dist-info"
        told.mkdir()
        (told / "METADATA").write_text("Metadata-Version: 2.1\nName: addend\nVersion: 0\n")
        (told / "entry_points.txt").write_text(f"[torch.backends]\n{named[1]} = {named[2]}\n")
        (self.folder / "job.py").write_text(JOB)
        (self.folder / "alone.py").write_text(ALONE)

    def run_python(self, *command, **changed):
        library = str(pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve())
        path = os.pathsep.join([str(self.folder), os.environ["PYTHONPATH"]])
        told = {**os.environ, "ADDEND_LIBRARY": library, "PYTHONPATH": path, **changed}
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=told, capture_output=True, text=True, timeout=HANGS
        )

    def test_torchruns_ranks_need_no_import(self):
        done = self.run_python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "job.py")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("addend sum 3.0\n"), 2, done.stdout)
        self.assertEqual(done.stdout.count("by default gloo\n"), 2, done.stdout)

    def test_a_library_that_is_missing_shows_when_a_group_is_made(self):
        done = self.run_python("alone.py", ADDEND_LIBRARY="/nowhere/libaddend.so")
        self.assertEqual(done.stdout, "False True\n")
        self.assertRegex(done.stderr, "ImportError: addend's library could not be loaded: /nowhere/libaddend.so")

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
