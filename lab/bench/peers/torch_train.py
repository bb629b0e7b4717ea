"""Training steps of the measured model in PyTorch: the same layers and sizes, AdamW with clipping, one thread per process; with DDP, FSDP or
tensor parallelism, over gloo or addend's process group. With DDP it may compute in bf16 (autocast), and model and loss may be
compiled. Usage: torch_train.py ADDRESS RANK RANKS PORT
ddp|ddp_compiled|ddp_bf16|ddp_bf16_compiled|ddp_addend|fsdp|fsdp_zero3|fsdp_zero3_addend|tp|tp_sequence|fsdp_tp LAYERS D_MODEL HEADS SEQ BATCH."""
import sys

import torch_backend
import torch_kinds
import worker
import torch
import torch.distributed as dist
from torch import nn
from torch_model import BATCH, GPT, SEQ, VOCABULARY

KIND = sys.argv[5]
torch.set_num_threads(1)
torch.manual_seed(1)


def prepare_step(memory):
    model = GPT()
    model = torch_kinds.compiled(torch_kinds.distribute(model, model.blocks, KIND, worker.RANKS), KIND)
    if memory == "comm" and "addend" in KIND:
        torch_kinds.communicate_in_the_groups_memory(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    rows = BATCH // torch_kinds.data_ranks(KIND, worker.RANKS)
    tokens = torch.randint(0, VOCABULARY, (rows, SEQ))
    targets = torch.randint(0, VOCABULARY, (rows, SEQ))

    def step():
        optimizer.zero_grad(set_to_none=not KIND.startswith("ddp"))
        with torch_kinds.loss_context(KIND):
            with torch_kinds.computing(KIND):
                loss = model(tokens, targets)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def can_do(task):
    if task.op != "train_step":
        return (task.op, task.storage) == ("parallel_step", KIND)
    if (task.storage == "zero3") != ("zero3" in KIND):  # FSDP without zero3 is also measured for a train_step of storage "whole"
        return False
    return KIND == "ddp" or task.dtype == ("bf16" if "bf16" in KIND else "f32")


def prepare(task):
    if not can_do(task):
        return None
    if task.memory not in held:
        held.clear()
        held[task.memory] = prepare_step(task.memory)
    return held[task.memory]


held = {}
torch_backend.start("addend" if "addend" in KIND else "gloo")
worker.work(prepare, dist.barrier)
dist.destroy_process_group()
