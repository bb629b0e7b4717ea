"""PyTorch 2.15: SequenceParallel makes frozen parameters trainable: a norm with requires_grad=False gets a gradient,
and is changed by the optimizer.   usage: sequence_parallel_frozen.py [repaired]
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
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module


def repair():
    plain = SequenceParallel._replicate_module_fn

    def kept(self, name, module, device_mesh):
        trained = [(key, p.requires_grad) for key, p in module.named_parameters(recurse=False)]
        plain(self, name, module, device_mesh)
        for key, is_trained in trained:
            getattr(module, key).requires_grad_(is_trained)

    SequenceParallel._replicate_module_fn = kept


def main(rank, path, words):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    if "repaired" in words:
        repair()
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6))
    model[0].requires_grad_(False)
    plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1))}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.1)
    model(torch.randn(2, 3, 4)).square().sum().backward()
    optimizer.step()
    norm, moved = model[0].weight, (model[0].weight.to_local() - 1).abs().max().item()
    print(f"rank {rank}: frozen norm: requires_grad {norm.requires_grad}, moved by {moved:.2g}", flush=True)
    dist.barrier()
    os._exit(int(norm.requires_grad or moved > 0))


if __name__ == "__main__":
    try:
        mp.start_processes(main, (tempfile.mktemp(), sys.argv[1:]), 2, start_method="fork")
    except mp.ProcessExitedException as error:
        sys.exit(1 if error.exit_code == 1 else 2)
