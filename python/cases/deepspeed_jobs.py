"""Code shared by the cases of DeepSpeed."""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch.distributed as dist
from torch.distributed.elastic.agent.server import api

if not hasattr(api, "_get_socket_with_port"):
    api._get_socket_with_port = (
        None  # DeepSpeed 0.14 imports this for its launcher, and later versions of PyTorch do not have it
    )

import deepspeed
from deepspeed.utils import safe_get_full_grad

import addend.torch

ROWS = 4
# Let gloo sum instead of DeepSpeed's own sums in shared memory, which would be compiled first. `deepspeed.comm.torch`
# is PyTorch.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def engine_of(model, microbatches=1, mpu=None, **config):
    deepspeed.init_distributed(dist_backend="gloo")
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": microbatches,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        **config,
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config, mpu=mpu)[0]


def gradient_of(parameter):
    """Return the gradient, or the f32 sum that the optimizer keeps beside a bf16 gradient."""
    kept = getattr(parameter, "_hp_grad", None)
    return safe_get_full_grad(parameter) if kept is None else kept.view_as(parameter)


def watch(engine, losses, **reported):
    reported = {"gradient": gradient_of, "expect": 1 / dist.get_world_size(), **reported}
    with addend.torch.watch(engine.module, **reported) as watching:
        for at, loss in enumerate(losses):
            engine.backward(loss())
            if at < len(losses) - 1:
                engine.step()
    return watching.report
