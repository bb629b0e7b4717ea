"""FSDP2 (PyTorch 2.15): gradients in float16 are divided twice on a mesh of one rank.

fully_shard over one rank, set_gradient_divide_factor(2): the gradient should be half of the plain one. In float32 and
bfloat16 it is; in float16 (and float64) it is a quarter. foreach_reduce divides by `gradient_divide_factor` where there
is no reduce-scatter (_fsdp_collectives.py:690), and then by what _get_gradient_divide_factors gives for dtypes that
overflow (lines 679 and 753). Transformers uses this for experts where ep_size == fsdp_size * tp_size (efsdp_size 1).

Run: python3 FILE   (CPU, one process on gloo; needs torch only)
Exit status: 1 the bug is there, 0 it is not, 2 it cannot run.
"""

import os
import sys
import tempfile
import traceback

os.environ["CUDA_VISIBLE_DEVICES"] = ""
if __name__ == "__main__":  # an error is not the bug
    sys.excepthook = lambda *error: (traceback.print_exception(*error, file=sys.__stderr__), os._exit(2))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

bad = False
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        torch.manual_seed(0)
        layer, rows = torch.nn.Linear(4, 4, bias=False, dtype=dtype), torch.randn(3, 4, dtype=dtype)
        (expected,) = torch.autograd.grad(layer(rows).sum(), layer.weight)
        fully_shard(layer, mesh=mesh)
        layer.set_gradient_divide_factor(2.0)
        layer(rows).sum().backward()
        ratio = float((layer.weight.grad.full_tensor() / expected).mean())
        print(f"{dtype}: the gradient is {ratio:.3g} times the plain one, expected 0.5")
        bad |= abs(ratio - 0.5) > 0.01
    dist.destroy_process_group()
sys.exit("WRONG: the weight's gradient is divided twice, on 1 rank" if bad else 0)
