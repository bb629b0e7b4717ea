"""PyTorch 2.15: schedules with split backwards (zero bubble) lose weight gradients of layers that are in `fully_shard`
of their own inside a stage, unless reshard_after_forward=False.
usage: zero_bubble_fsdp2.py [SCHEDULE] [kept] [repaired]
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
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class


def repair():
    plain = PipelineStage.backward_maybe_with_nosync

    def unsharded(self, *arguments, **more):
        for module in (m for m in self.submod.modules() if isinstance(m, FSDPModule)):
            module.unshard()  # before the weights are looked up: else they are the sharded ones
        return plain(self, *arguments, **more)

    PipelineStage.backward_maybe_with_nosync = unsharded


def main(rank, path, words):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "pp"))
    if "repaired" in words:
        repair()
    torch.manual_seed(0)
    schedule = next((word for word in words if word not in ("kept", "repaired")), "InterleavedZeroBubble")
    places = [rank, rank + 2] if schedule.startswith("Interleaved") else [rank, 3 - rank]
    parts = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(4)]
    x, y = torch.randn(2, 8, 4)
    loss = nn.MSELoss(reduction="sum")
    right = [torch.autograd.grad(loss(nn.Sequential(*parts)(x), y), part.parameters()) for part in parts]
    for part in parts:
        for layer in part[0], part[2], part:
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward="kept" not in words)
    stages = [PipelineStage(parts[i], i, 4, torch.device("cpu"), group=mesh.get_group("pp")) for i in places]
    runtime = get_schedule_class(schedule)(stages, 4, loss_fn=loss, scale_grads=False)
    runtime.step(*((x,) if 0 in places else ()), **({"target": y} if 3 in places else {}))
    wrong = []
    for i in places:
        for (name, p), known in zip(parts[i].named_parameters(), right[i]):
            if p.grad is None or not torch.allclose(p.grad.full_tensor(), known, rtol=1e-4, atol=1e-5):
                wrong.append(f"stage {i} {name}{' has none' if p.grad is None else ''}")
    print(f"rank {rank}: {len(wrong)} gradients are wrong: {', '.join(wrong)}", flush=True)
    dist.barrier()
    os._exit(int(bool(wrong)))


if __name__ == "__main__":
    try:
        mp.start_processes(main, (tempfile.mktemp(), sys.argv[1:]), 2, start_method="fork")
    except mp.ProcessExitedException as error:
        sys.exit(1 if error.exit_code == 1 else 2)
