"""DeepSpeed's ZeRO; addend watches the second step. DeepSpeed divides gradients by the number of ranks and gives
unsharded ones on request, which addend.torch.deepspeed() tells the watch.

OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu torchrun --nproc-per-node 4 python/examples/zero.py [--stage 0..3] [--bug]"""

import argparse
import contextlib

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import addend.torch

STEPS, MICROBATCHES, ROWS, INPUTS, CLASSES = 3, 2, 16, 64, 8


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument(
        "--bug", action="store_true", help="make a mistake: leave out the last rank's addend of a parameter"
    )
    arguments = parser.parse_args()

    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, 256), nn.GELU(), nn.Linear(256, CLASSES))
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": MICROBATCHES,
        "zero_optimization": {"stage": arguments.stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    torch.manual_seed(1 + dist.get_rank())  # each rank has its own batches

    for step in range(STEPS):
        watch = addend.torch.watch(**addend.torch.deepspeed(engine), show=True)
        with contextlib.ExitStack() as stack:
            if step == 1 and arguments.bug:
                stack.enter_context(addend.torch.mutate(engine.module, "skip"))
            if step == 1:
                stack.enter_context(watch)
            for m in range(MICROBATCHES):
                x = torch.randn(ROWS, INPUTS)
                engine.backward(nn.functional.cross_entropy(engine(x), x[:, :CLASSES].argmax(1)))
                if m < MICROBATCHES - 1:
                    engine.step()  # only counts the microbatch
        engine.step()  # the last microbatch's: clips, updates the parameters, and zeroes the gradients
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
