"""local_map (PyTorch 2.15): an input whose collective was not waited for gets no gradient.

`redistribute(async_op=True)` gives a DTensor whose local tensor may be an AsyncCollectiveTensor. local_map calls wait()
on it (tensor/experimental/_func_map.py:439), which returns the tensor inside, outside autograd: what flows back through
the function is lost, silently. An all-gather over dimension 1 stays an AsyncCollectiveTensor where the batch is one
row, and is waited for where it has more. torchtitan 0.3 redistributes so before its routed experts.

Run: python3 FILE   (CPU, 2 processes on gloo; needs torch only)
Exit status: 1 the bug is there, 0 it is not, 2 it cannot run.
"""

import os
import sys
import tempfile
import traceback

os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
if __name__ == "__main__":  # an error is not the bug
    sys.excepthook = lambda *error: (traceback.print_exception(*error, file=sys.__stderr__), os._exit(2))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map

RANKS = 2


def one_rank(rank, folder, bad):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    torch.manual_seed(0)
    weights = torch.randn(RANKS, 3, 5)
    product = local_map(
        lambda x: x @ weights[rank],
        in_placements=([Replicate()],),
        in_grad_placements=([Partial()],),
        out_placements=[Partial()],
        device_mesh=mesh,
    )
    for rows in (1, 2):
        for is_async in (False, True):
            x = distribute_tensor(torch.randn(rows, 4, 3), mesh, [Shard(1)]).requires_grad_()
            whole = x.redistribute(placements=[Replicate()], async_op=is_async)
            # beside the function x reaches the loss by itself, as in a residual stream: no error says what is lost
            total = product(whole).redistribute(placements=[Replicate()]).sum() + whole.sum()
            total.redistribute(placements=[Replicate()]).to_local().backward()
            found = x.grad.full_tensor()
            expected = (weights.sum(0).sum(-1) + 1).expand(rows, 4, 3)
            is_right = torch.allclose(found, expected, atol=1e-5)
            if rank == 0:
                reported = f"{rows} row{'s' * (rows > 1)}, async_op={is_async}: the gradient is"
                print(reported, "right" if is_right else f"{found[0, 0].tolist()}, expected {expected[0, 0].tolist()}")
                bad.value |= not is_right
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    bad = mp.get_context("spawn").Value("b", False)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(one_rank, (folder, bad), RANKS)
    sys.exit("WRONG: what flows back through local_map is lost" if bad.value else 0)
