"""Test DeepSpeed and Megatron-Core with `addend.torch.deepspeed` and `addend.torch.megatron`, which tell a watch what
these frameworks do: right jobs, mistakes, and what is refused. Tests that need a missing package are skipped, and say
so.
"""

import contextlib
import importlib.util
import os
import sys
import types
import unittest
from unittest.mock import patch

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist
from says import raises
from torch import nn

import addend.torch
import ranks
from jobs import IN, NET, Net, draw, mean_loss


def is_there(name):
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(name) is not None
    return False


if HAS_DEEPSPEED := is_there("deepspeed"):
    import deepspeed

    # Let gloo sum instead of DeepSpeed's own sums, which would be compiled at first use. `deepspeed.comm.torch` is
    # PyTorch, not DeepSpeed's module.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
if HAS_MEGATRON := is_there("megatron.core"):
    from megatron.core import parallel_state as mpu
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer import TransformerConfig


# -- DeepSpeed


def engine_of(stage, **more):
    deepspeed.init_distributed(dist_backend="gloo")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        **more,
    }
    model = Net()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def run_deepspeed(stage, bug, more=None):
    """Watch the second of two steps."""
    engine, narrow = engine_of(stage, **(more or {})), torch.bfloat16 if more else torch.float32
    watch = addend.torch.watch(**addend.torch.deepspeed(engine))
    for step in range(2):
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(None))
            if step:
                if bug:
                    stack.enter_context(addend.torch.mutate(engine.module, bug))
                stack.enter_context(watch)
            for m in range(2):
                x, y = (part.to(narrow) for part in draw(dist.get_rank(), 2 * step + m))
                engine.backward(mean_loss(engine, (x, y)).float())
                if m == 0:
                    engine.step()
        engine.step()
    return watch.report


# -- Megatron-Core


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        reported = {"config": config, "init_method": nn.init.xavier_normal_}
        self.norm = nn.LayerNorm(16)
        self.up = ColumnParallelLinear(16, 64, gather_output=False, **reported)
        self.down = RowParallelLinear(64, 16, bias=True, input_is_parallel=True, skip_bias_add=False, **reported)

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.norm(x))[0]))[0]


def chunk_of(distributed):
    """Make Megatron-Core believe in CUDA: it asks where buffers go even without a device."""
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_, **__: None
    if not mpu.is_initialized():
        mpu.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(3)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=2,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
    )
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=distributed)
    return DistributedDataParallel(config, ddp, Block(config))


def run_megatron(distributed, bug, chunks=1):
    models = [chunk_of(distributed) for _ in range(chunks)]
    torch.manual_seed(10 + mpu.get_data_parallel_rank())
    reported = addend.torch.megatron(models if chunks > 1 else models[0])
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(None))
        if bug:
            stack.enter_context(addend.torch.mutate(reported["model"], bug))
        watch = stack.enter_context(addend.torch.watch(**reported))
        for m in range(2):
            with contextlib.ExitStack() as unsynchronised:
                for model in models if m == 0 else ():
                    unsynchronised.enter_context(model.no_sync())
                x = torch.randn(6, 16)
                for model in models:
                    x = model(x)
                (x.square().mean() / 2).backward()
        for model in models:
            model.finish_grad_sync(force_all_reduce=True)
    return watch.report


def fake_mpu(**sizes):
    asked = {"pipeline_model": 1, "expert_model": 1, **sizes}
    functions = {f"get_{what}_parallel_world_size": lambda size=size: size for what, size in asked.items()}
    return types.SimpleNamespace(**functions)


class Frameworks(unittest.TestCase):
    def hold(self, report, kind, parameters):
        found = {(p.name, p.kind) for p in report.params}
        self.assertEqual(found, {(name, kind) for name in parameters}, str(report))

    @unittest.skipUnless(HAS_DEEPSPEED, "this Python has no DeepSpeed")
    def test_zero(self):
        for stage in range(4):
            with self.subTest(stage=stage):
                self.hold(ranks.run(2, run_deepspeed, stage, None)[0], "right", NET)
                wrong = ranks.run(2, run_deepspeed, stage, "average")[0]
                self.assertFalse(wrong.ok, str(wrong))

    @unittest.skipUnless(HAS_DEEPSPEED, "this Python has no DeepSpeed")
    def test_bf16_with_sums_in_f32(self):
        more = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
        self.hold(ranks.run(2, run_deepspeed, 1, None, more)[0], "right", NET)

    @unittest.skipUnless(HAS_MEGATRON, "this Python has no Megatron-Core")
    def test_megatron(self):
        names = [f"{layer}.{kind}" for layer in ("norm", "up", "down") for kind in ("weight", "bias")]
        for distributed in (False, True):
            with self.subTest(distributed=distributed):
                self.hold(ranks.run(4, run_megatron, distributed, None)[0], "right", names)
        self.hold(ranks.run(4, run_megatron, False, "average")[0], "averaged", names)
        both = [f"{chunk}.{name}" for chunk in (0, 1) for name in names]
        self.hold(ranks.run(4, run_megatron, False, None, 2)[0], "right", both)

    def test_what_is_refused_of_deepspeed(self):
        for what in "pipeline_parallelism", "has_moe_layers", "mp_world_size":
            engine = types.SimpleNamespace(module=nn.Linear(IN, 1), **{what: 2})
            with self.subTest(what), raises(self, ValueError, "DeepSpeed", what, "mesh="):
                addend.torch.deepspeed(engine)

    def test_what_is_refused_of_megatron(self):
        model = nn.Module()
        model.module, model.config = nn.Linear(IN, 1), types.SimpleNamespace()
        for sizes in ({"pipeline_model": 2}, {"expert_model": 2}):
            name = "megatron.core.parallel_state"
            with self.subTest(sizes), patch.dict("sys.modules", {name: fake_mpu(**sizes)}):
                with raises(self, ValueError, "Megatron-Core", "addend.torch.megatron", "mesh="):
                    addend.torch.megatron(model)


if __name__ == "__main__":
    unittest.main()
