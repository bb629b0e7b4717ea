"""PyTorch 2.15: ScheduleGPipe with stages in DistributedDataParallel ends in an internal assertion in its second step.

Two ranks on gloo, one stage on one rank each is not possible with DDP beside it: four ranks, 2 (dp) x 2 (pp).
usage: ddp_gpipe.py [1F1B]
Exit status: 1 the bug is there, 0 it is not, 2 it cannot run.
"""

import os
import sys
import tempfile
import traceback

if __name__ == "__main__":  # an error is not the bug
    sys.excepthook = lambda *error: (traceback.print_exception(*error, file=sys.__stderr__), os._exit(2))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank, path, kind):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4))
    at, dp = mesh.get_local_rank("pp"), mesh.get_group("dp")
    part = DDP(whole[:2] if at == 0 else whole[2:], process_group=dp)
    stage = PipelineStage(part, at, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = kind(stage, 2, loss_fn=lambda y, t: (y - t).square().sum(), scale_grads=False)
    for step in range(3):
        draw = torch.Generator().manual_seed(10 * step)
        data = torch.randn(2, 2, 4, 4, generator=draw)
        x, t = data[mesh.get_local_rank("dp")]
        part.zero_grad()
        try:
            schedule.step(*((x,) if at == 0 else ()), **({"target": t} if at == 1 else {}))
        except RuntimeError as error:
            if rank in (0, 1):
                print(f"{kind.__name__}, rank {rank}, step {step}: {str(error.__cause__ or error)[:300]}", flush=True)
            os._exit(1 if step else 2)
        own = [p.grad.clone() for p in part.parameters()]
        whole.zero_grad()
        sum((whole(x) - t).square().sum() / 2 for x, t in data).backward()
        right = [p.grad for p in (whole[:2] if at == 0 else whole[2:]).parameters()]
        bad = [not torch.allclose(a, b, rtol=1e-4) for a, b in zip(own, right)]
        print(f"{kind.__name__}, rank {rank}, step {step}: {sum(bad)} gradients of {len(bad)} are wrong", flush=True)
    dist.barrier()
    os._exit(1 if any(bad) else 0)


if __name__ == "__main__":
    kind = Schedule1F1B if sys.argv[1:] == ["1F1B"] else ScheduleGPipe
    try:
        mp.start_processes(main, (tempfile.mktemp(), kind), 4, start_method="fork")
    except mp.ProcessExitedException as error:
        sys.exit(1 if error.exit_code == 1 else 2)
