"""Code shared by the cases of Transformers' expert parallelism: a small OLMoE on two ranks, each with half of the
experts.
"""

import atexit
import shutil
import tempfile

import torch
import torch.distributed as dist
from transformers import OlmoeConfig, OlmoeForCausalLM
from transformers.distributed import DistributedConfig

import addend.torch

WORLD = 2
SIZES = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_experts": 8}
CONFIG = OlmoeConfig(**SIZES, num_attention_heads=4, num_experts_per_tok=2)
FOLDER = tempfile.mkdtemp(prefix="addend-case-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def make_model(experts="grouped_mm"):
    torch.manual_seed(1)
    return OlmoeForCausalLM._from_config(CONFIG, experts_implementation=experts)


def parallel(model, experts):
    """Save the model and read it again, each rank its own experts."""
    if dist.get_rank() == 0:
        model.save_pretrained(FOLDER)
    dist.barrier()
    kind = DistributedConfig(enable_expert_parallel=True, tp_size=WORLD)
    parts = OlmoeForCausalLM.from_pretrained(FOLDER, distributed_config=kind, experts_implementation=experts)
    parts = parts.to(next(model.parameters()).dtype)
    for own, other in zip(parts.buffers(), model.buffers()):
        own.copy_(other)  # the rotary frequencies are not saved; they are computed anew in f32
    return parts


def batch_of():
    return torch.randint(0, 100, (2, 12), generator=torch.Generator().manual_seed(2))


def loss(model, words):
    return model(input_ids=words, labels=words).loss


def watched(experts):
    model = parallel(make_model(), experts)
    with addend.torch.watch(model) as watch:
        loss(model, batch_of()).backward()
    return watch.report


def checked(experts):
    return addend.torch.check(
        lambda: make_model(experts),
        lambda model, _: parallel(model, experts),
        lambda *_: [batch_of()],
        loss,
        mesh={"tp": WORLD},
    )
