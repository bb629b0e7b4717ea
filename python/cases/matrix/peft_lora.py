"""PEFT 0.21: LoRA and its relatives on small Llamas and mixtures of experts, under DDP, FSDP2 and Transformers' tensor
and expert parallelism."""

import tempfile

import torch
import torch.distributed as dist
import transformers
from peft import (
    FourierFTConfig,
    HRAConfig,
    IA3Config,
    LNTuningConfig,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    VeraConfig,
    get_peft_model,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig
from transformers.distributed import DistributedConfig

from addend.torch._matrix import _draw, _variants
from addend.torch._matrix._tokens import Tokens, token_loss

NEEDS = ["--no-deps peft==0.21.2"]
WORDS = 37
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "tie_word_embeddings": False,
}
DENSE = LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)
EXPERTS = Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BELOW = ["q_proj", "v_proj", "o_proj"]
COLUMNS = ["q_proj", "k_proj", "v_proj", "up_proj"]  # those that tensor parallelism divides by columns
ADAPTERS = {
    "lora": (DENSE, LoraConfig(r=3, target_modules=LINEAR)),
    "columns": (DENSE, LoraConfig(r=3, target_modules=COLUMNS)),
    "columns_bias": (DENSE, LoraConfig(r=3, target_modules=COLUMNS, lora_bias=True, bias="all")),
    "columns_embedding": (DENSE, LoraConfig(r=3, target_modules=[*COLUMNS, "embed_tokens"])),
    "columns_norm": (DENSE, LoraConfig(r=3, target_modules=COLUMNS, modules_to_save=["norm"])),
    "columns_dora": (DENSE, LoraConfig(r=3, target_modules=COLUMNS, use_dora=True)),
    "columns_moe": (EXPERTS, LoraConfig(r=3, target_modules=["q_proj", "k_proj", "v_proj"])),
    "lora_bias": (DENSE, LoraConfig(r=3, target_modules=LINEAR, lora_bias=True)),
    "train_bias": (DENSE, LoraConfig(r=3, target_modules=LINEAR, bias="all")),
    "head_saved": (DENSE, LoraConfig(r=3, target_modules=BELOW, modules_to_save=["lm_head", "embed_tokens"])),
    "head_lora": (DENSE, LoraConfig(r=3, target_modules=[*BELOW, "lm_head"])),
    "embedding": (DENSE, LoraConfig(r=3, target_modules=[*BELOW, "embed_tokens"])),
    "dora": (DENSE, LoraConfig(r=3, target_modules=LINEAR, use_dora=True)),
    "rank_pattern": (DENSE, LoraConfig(r=3, target_modules=LINEAR, rank_pattern={"q_proj": 5}, use_rslora=True)),
    "new_tokens": (DENSE, LoraConfig(r=3, target_modules=BELOW, trainable_token_indices=[3, 7, 11])),
    "ia3": (DENSE, IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])),
    "vera": (DENSE, VeraConfig(r=3, target_modules=["q_proj", "o_proj"])),
    "oft": (DENSE, OFTConfig(oft_block_size=6, target_modules=BELOW)),
    "loha": (DENSE, LoHaConfig(r=3, target_modules=["q_proj", "v_proj"])),
    "lokr": (DENSE, LoKrConfig(r=3, target_modules=["q_proj", "v_proj"])),
    "hra": (DENSE, HRAConfig(r=2, target_modules=["q_proj", "v_proj"])),
    "fourier": (DENSE, FourierFTConfig(n_frequency=20, target_modules=["q_proj", "v_proj"])),
    "norms": (DENSE, LNTuningConfig()),
    "moe": (EXPERTS, LoraConfig(r=3, target_modules=BELOW)),
    "moe_experts": (
        EXPERTS,
        LoraConfig(r=2, target_modules=BELOW, target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    ),
}
transformers.logging.set_verbosity_error()


def base_of(config):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager", dtype=torch.float64
    )
    _draw.draw(model)
    return model


def adapted(model, name):
    torch.manual_seed(2)
    return get_peft_model(model, ADAPTERS[name][1], autocast_adapter_dtype=False).train()


def maker(name):
    def make_model():
        model = adapted(base_of(ADAPTERS[name][0]), name)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():  # the B of an adapter begins at 0, which hides the gradient of its A
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) / 5)
        model.adapter = name
        return model

    return make_model


models = {name: maker(name) for name in ADAPTERS}


def ddp(model, mesh):
    return DistributedDataParallel(model)


def fsdp(model, mesh):
    for layer in model.get_base_model().model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def loaded(model, mesh, **sizes):
    """The base loaded by Transformers on its mesh, then adapted by PEFT, with the adapter's weights of one process."""
    name, folder = model.adapter, [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        base_of(ADAPTERS[name][0]).save_pretrained(folder[0])
    dist.barrier()
    parts = AutoModelForCausalLM.from_pretrained(
        folder[0],
        distributed_config=DistributedConfig(**sizes),
        dtype=torch.float64,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    parts = adapted(parts, name)
    own = dict(parts.named_parameters())
    with torch.no_grad():
        for key, whole in model.named_parameters():
            if whole.requires_grad:
                fill(own[key], whole)
    return parts


def fill(own, whole):
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(own, DTensor):
        own.copy_(distribute_tensor(whole.detach(), own.device_mesh, own.placements, src_data_rank=None))
        return
    for dim, (has, all_of) in enumerate(zip(own.shape, whole.shape)):
        if has != all_of:  # the adapter was made for this rank's part of a layer
            whole = whole.narrow(dim, has * (dist.get_rank() % (all_of // has)), has)
    own.copy_(whole)


def tp(model, mesh):
    return loaded(model, mesh, tp_size=mesh.size())


def fsdp_tp(model, mesh):
    return loaded(model, mesh, fsdp_size=mesh["fsdp"].size(), tp_size=mesh["tp"].size())


def fsdp_ep(model, mesh):
    return loaded(model, mesh, fsdp_size=mesh.size(), ep_size=mesh.size())


def loaded_fsdp(model, mesh):
    return loaded(model, mesh, fsdp_size=mesh.size())


layouts = {
    "tp": {"mesh": {"tp": 2}, "parallelize": tp},
    "fully_shard": {"mesh": {"fsdp": 3}, "parallelize": fsdp},
    "fully_shard, no_sync": {"mesh": {"fsdp": 2}, "parallelize": fsdp, "run": _variants.no_sync},
    "ddp": {"mesh": {"dp": 2}, "parallelize": ddp},
    "hsdp": {"mesh": {"dp_replicate": 2, "fsdp": 2}, "parallelize": fsdp},
    "from_pretrained": {"mesh": {"fsdp": 2}, "parallelize": loaded_fsdp},
    "from_pretrained, tp": {"mesh": {"fsdp": 2, "tp": 2}, "parallelize": fsdp_tp},
    "from_pretrained, ep": {"mesh": {"fsdp": 2}, "parallelize": fsdp_ep},
}


def batches(rank, mesh, microbatches):
    return Tokens(WORDS, [axis for axis in mesh.sizes if axis != "tp"], microbatches).batches(rank, mesh)


loss = token_loss
steps = 1


def optimizer(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, foreach=False)
