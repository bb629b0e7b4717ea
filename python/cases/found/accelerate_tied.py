"""Accelerate 1.15: FSDP2 with cpu_ram_efficient_loading=True unties the parameters of a model that has no method
`tie_weights` (any nn.Module that is not Transformers'): embedding and head are trained apart.
usage: accelerate_tied.py [repaired]
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


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def tie_weights(self):
    """What Accelerate's fsdp2_prepare_model calls after it has loaded the weights, if the model has it."""
    self.head.weight = self.embed.weight


def main(rank, path, words):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.utils import DistributedType

    if "repaired" in words:
        Words.tie_weights = tie_weights
    accelerator = Accelerator(cpu=True)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, cpu_ram_efficient_loading="kept" not in words, auto_wrap_policy="no_wrap"
    )
    accelerator.state.distributed_type = DistributedType.FSDP  # on CPU Accelerate takes no plugin itself
    accelerator.state.fsdp_plugin = plugin
    torch.manual_seed(0)
    model = Words()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.arange(8)).logsumexp(-1).sum().backward()
    optimizer.step()
    gone = (model.embed.weight.full_tensor() - model.head.weight.full_tensor()).abs().max().item()
    print(f"rank {rank}: tied {model.head.weight is model.embed.weight}, apart by {gone:.2g} after a step", flush=True)
    dist.barrier()
    os._exit(int(gone > 0))


if __name__ == "__main__":
    try:
        mp.start_processes(main, (tempfile.mktemp(), sys.argv[1:]), 2, start_method="fork")
    except mp.ProcessExitedException as error:
        sys.exit(1 if error.exit_code == 1 else 2)
