"""Test that `import addend.torch` imports no slow part of PyTorch that the job itself has not imported."""

import json
import subprocess
import sys
import unittest

PROGRAM = """
import sys
import torch
before = set(sys.modules)
import addend.torch
import json
print(json.dumps(sorted(set(sys.modules) - before)))
"""


class Import(unittest.TestCase):
    def test_it_imports_little_of_pytorch_that_torch_itself_does_not(self):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        added = [name for name in json.loads(done.stdout) if name.split(".")[0] in ("torch", "sympy")]
        self.assertNotIn("torch.distributed.tensor", added)
        self.assertNotIn("torch.distributed.fsdp", added)
        self.assertLess(len(added), 20, added)


if __name__ == "__main__":
    unittest.main()
