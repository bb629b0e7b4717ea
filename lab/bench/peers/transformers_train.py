"""Fine-tunes a model of Transformers with its Trainer, to compare with `addend train recipes/finetune.yaml`: the same
model, length and number of samples, AdamW, bf16 products with f32 parameters, and gloo ranks on one machine.

    torchrun --nproc-per-node 4 lab/bench/peers/transformers_train.py MODEL TOKENS.npy --way ddp --seq 512 --batch 8

`ddp`: the Trainer, which wraps the model in DistributedDataParallel. On CPUs it does so even with its option `fsdp`, so
`fsdp2` is a training loop of this file with fully_shard on each layer, products in bf16 and sums in f32.
Prints the tokens per second of all ranks for each step, and the sum of the ranks' memory (PSS) at the end."""
import argparse
import os
import pathlib
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Windows(torch.utils.data.Dataset):
    def __init__(self, file, seq):
        self.tokens, self.seq = np.load(file, mmap_mode="r"), seq

    def __len__(self):
        return (len(self.tokens) - 1) // self.seq

    def __getitem__(self, i):
        window = torch.from_numpy(self.tokens[i * self.seq:(i + 1) * self.seq].astype(np.int64))
        return {"input_ids": window, "labels": window}


class Clock(transformers.TrainerCallback):
    """Notes the time of each step on the slowest rank."""

    def __init__(self, tokens):
        self.tokens, self.began, self.rates = tokens, 0.0, []

    def on_step_begin(self, *_, **__):
        dist.barrier()
        self.began = time.monotonic()

    def on_step_end(self, *_, **__):
        dist.barrier()
        self.rates.append(self.tokens / (time.monotonic() - self.began))


def pss():
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def arguments_of(call, folder):
    return transformers.TrainingArguments(
        folder, use_cpu=True, ddp_backend="gloo", bf16=True, max_steps=call.steps, learning_rate=1e-4, weight_decay=0.01,
        per_device_train_batch_size=call.batch // int(os.environ["WORLD_SIZE"]), max_grad_norm=1.0, save_strategy="no",
        report_to=[], disable_tqdm=True, logging_strategy="no", dataloader_drop_last=True)


def train_by_trainer(call, clock):
    model = transformers.AutoModelForCausalLM.from_pretrained(call.model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(model, arguments_of(call, folder), train_dataset=Windows(call.tokens, call.seq),
                                       callbacks=[clock])
        trainer.train()
    return type(trainer.model_wrapped).__name__


def sharded(call):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = transformers.AutoModelForCausalLM.from_pretrained(call.model, dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def train_sharded(call, clock):
    dist.init_process_group("gloo")
    model, windows = sharded(call), Windows(call.tokens, call.seq)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    own = call.batch // dist.get_world_size()
    for step in range(call.steps):
        clock.on_step_begin()
        first = step * call.batch + dist.get_rank() * own
        inputs = torch.stack([windows[i]["input_ids"] for i in range(first, first + own)])
        model(input_ids=inputs, labels=inputs, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.on_step_end()
    return type(model).__name__


def train(call):
    clock = Clock(call.batch * call.seq)
    name = {"ddp": train_by_trainer, "fsdp2": train_sharded}[call.way](call, clock)
    memory = torch.tensor([pss()])
    dist.all_reduce(memory)
    if dist.get_rank() == 0:
        rates = " ".join(f"{rate:.1f}" for rate in clock.rates)
        print(f"{name}: tokens a second by step: {rates}; memory of all ranks {memory.item() / 2**20:.0f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--way", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8, help="samples of a step, over all ranks")
    parser.add_argument("--steps", type=int, default=6)
    call = parser.parse_args()
    torch.set_num_threads(1)
    train(call)


if __name__ == "__main__":
    main()
