"""Accelerate as its users write it, for `addend torch-matrix`: DistributedDataParallel, FSDP2, HSDP and tensor
parallelism, with `accumulate`. On CPU Accelerate takes no FSDP plugin, and so the plugin is put into its state by hand.
"""

import os
import tempfile

import small
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator, DistributedDataParallelKwargs, FullyShardedDataParallelPlugin, ParallelismConfig
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from small import IGNORED, loss, make_frozen, make_model, make_tied
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.distributed import DistributedConfig

# Accelerate asks for these and does not use them: the ranks have joined already
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
SIZES = {
    "vocab_size": small.VOCABULARY - 1, "hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
}  # fmt: skip


def batches(rank, mesh, microbatches):
    found = small.batches(rank, mesh, microbatches)
    return [(tokens.clamp(max=small.VOCABULARY - 2), labels.clamp(max=small.VOCABULARY - 2), weights)
            for tokens, labels, weights in found]  # fmt: skip


def language_loss(model, batch):
    tokens, labels, weights = batch
    logits = model(input_ids=tokens, use_cache=False).logits
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    weights = weights * (labels != IGNORED)
    return (losses * weights).sum(), weights.sum()


def any_loss(model, batch):
    own = model
    while hasattr(own, "module"):
        own = own.module
    return language_loss(model, batch) if hasattr(own, "config") else loss(model, batch)


def make_llama():
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))


def make_tied_qwen():
    torch.manual_seed(3)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True))


models = {
    "decoder": make_model, "tied": make_tied, "frozen": make_frozen, "llama": make_llama, "qwen3 tied": make_tied_qwen
}  # fmt: skip
LANGUAGE = ["llama", "qwen3 tied"]


class Parallelism(ParallelismConfig):
    """Accelerate asks for a GPU before it looks at the plugin; all else runs on CPU."""

    plugin = None

    def _validate_accelerator(self, accelerator):
        accelerator.state.distributed_type = DistributedType.FSDP if self.plugin else DistributedType.MULTI_XPU
        if self.plugin:
            accelerator.state.fsdp_plugin = self.plugin
        super()._validate_accelerator(accelerator)


def accelerator_of(plugin=None, **arguments):
    for state in AcceleratorState, GradientState, PartialState:
        state._reset_state()
    Parallelism.plugin = plugin
    return Accelerator(cpu=True, **arguments)


def prepared(accelerator, model):
    """The model and its optimizer, prepared together, as FSDP2 wants it."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    model.__dict__["accelerated"] = accelerator, optimizer
    return model


def run(model, microbatches, loss_of):
    """The loop of the documentation: the loss counts the items of all microbatches and ranks, so that it is multiplied
    by the number of microbatches, by which `backward` divides."""
    accelerator, _ = model.__dict__["accelerated"]
    accelerator.gradient_accumulation_steps = len(microbatches)
    for batch in microbatches:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch) * len(microbatches))


def optimizer(model):
    if "accelerated" in model.__dict__:
        return model.__dict__["accelerated"][1]
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


steps = 2


def norm(model):
    accelerator, _ = model.__dict__["accelerated"]
    found = accelerator.clip_grad_norm_(model.parameters(), 1e9)
    return found.full_tensor() if hasattr(found, "full_tensor") else found


def ddp(**arguments):
    def parallelize(model, mesh):
        handlers = [DistributedDataParallelKwargs(**arguments)] if arguments else []
        return prepared(accelerator_of(kwargs_handlers=handlers), model)

    return parallelize


def wrapped_names(model):
    names = {type(module).__name__ for module in model.modules()}
    return sorted(names & {"Block", "LlamaDecoderLayer", "Qwen3DecoderLayer"})


def fsdp(sizes=None, **arguments):
    def parallelize(model, mesh):
        reported = {"fsdp_version": 2, "auto_wrap_policy": "transformer_based_wrap", **arguments}
        if reported["auto_wrap_policy"] == "transformer_based_wrap":
            reported["transformer_cls_names_to_wrap"] = wrapped_names(model)
        config = Parallelism(**(sizes or {"dp_shard_size": mesh.size()}))
        accelerator = accelerator_of(FullyShardedDataParallelPlugin(**reported), parallelism_config=config)
        return prepared(accelerator, model)

    return parallelize


def tensor_parallel(shards=1):
    """The model is loaded with its plan, and then prepared."""

    def parallelize(model, mesh):
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        if dist.get_rank() == 0:
            model.save_pretrained(folder[0])
        dist.barrier()
        size = mesh.size() // shards
        more = {"fsdp_size": shards} if shards > 1 else {}
        config = DistributedConfig(tp_size=size, tp_plan="auto", **more)
        own = AutoModelForCausalLM.from_pretrained(folder[0], distributed_config=config, dtype=torch.float64)
        accelerator = accelerator_of(parallelism_config=Parallelism(tp_size=size, dp_shard_size=shards))
        return prepared(accelerator, own)

    return parallelize


def layout(mesh, parallelize, which=("decoder",), **more):
    return {"mesh": mesh, "parallelize": parallelize, "models": list(which), "run": run, "norm": norm,
            "optimizer": optimizer, "steps": steps, "loss": any_loss, **more}  # fmt: skip


DP, HSDP = {"dp": 2}, {"dp_replicate": 2, "dp_shard": 2}
layouts = {
    "ddp": layout(DP, ddp(), models),
    "ddp, of three": layout({"dp": 3}, ddp(gradient_as_bucket_view=True)),
    "ddp, unused": layout(DP, ddp(find_unused_parameters=True)),
    "fsdp": layout(DP, fsdp(), models),
    "fsdp, of three": layout({"dp": 3}, fsdp(), ["decoder", "llama"]),
    "fsdp, kept": layout(DP, fsdp(reshard_after_forward=False)),
    "fsdp, by size": layout(DP, fsdp(auto_wrap_policy="size_based_wrap", min_num_params=500), ["decoder", "llama"]),
    "fsdp, whole": layout(DP, fsdp(auto_wrap_policy="no_wrap")),
    "fsdp, checkpointed": layout(DP, fsdp(activation_checkpointing=True), ["decoder", "llama"]),
    "fsdp, loaded on the first": layout(DP, fsdp(cpu_ram_efficient_loading=True), ["decoder", "tied", *LANGUAGE]),
    "fsdp, offloaded": layout(DP, fsdp(cpu_offload=True)),
    "hsdp": layout(HSDP, fsdp({"dp_replicate_size": 2, "dp_shard_size": 2}), ["decoder", "llama"]),
    "tp": layout({"tp": 2}, tensor_parallel(), LANGUAGE),
    "tp, fsdp": layout({"dp": 2, "tp": 2}, tensor_parallel(2), LANGUAGE),
}
