"""A model folder fine-tuned by Hugging Face's Trainer, beside `addend train recipes/finetune.yaml`: the same model, samples of
the same length and number, AdamW, bf16 by autocast with f32 parameters, ranks over gloo on one machine.

    torchrun --nproc-per-node 4 bench/peers/transformers_train.py MODEL TOKENS.npy --seq 512 --batch 8 --steps 6

Prints the tokens of a second of all ranks, by step, and the largest sum of their resident memory (PSS)."""
import argparse
import os
import pathlib
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import transformers


class Windows(torch.utils.data.Dataset):
    def __init__(self, file, seq):
        self.tokens, self.seq = np.load(file, mmap_mode="r"), seq

    def __len__(self):
        return (len(self.tokens) - 1) // self.seq

    def __getitem__(self, i):
        window = torch.from_numpy(self.tokens[i * self.seq:(i + 1) * self.seq].astype(np.int64))
        return {"input_ids": window, "labels": window}


class Clock(transformers.TrainerCallback):
    """The time of each step, the slowest rank's."""
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


def train(call, folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(call.model, dtype=torch.float32)
    clock = Clock(call.batch * call.seq)
    trainer = transformers.Trainer(model, arguments_of(call, folder), train_dataset=Windows(call.tokens, call.seq),
                                   callbacks=[clock])
    trainer.train()
    memory = torch.tensor([pss()])
    dist.all_reduce(memory)
    if dist.get_rank() == 0:
        rates = " ".join(f"{rate:.1f}" for rate in clock.rates)
        print(f"{type(trainer.model_wrapped).__name__}: tokens a second by step: {rates}; memory of all ranks {memory.item() / 2**20:.0f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8, help="samples of a step, over all ranks")
    parser.add_argument("--steps", type=int, default=6)
    call = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(call, folder)


if __name__ == "__main__":
    main()
