"""torchtitan 0.3: its small models, made parallel by its own functions, in its three ways of typing tensors."""

import importlib
import types
from unittest import mock

import torch
from torchtitan.tools import utils

utils.device_type, utils.device_module = "cpu", torch.cpu  # without a GPU it says "cuda"; others import these names

# ruff: noqa: E402
from torchtitan.components.loss import IGNORE_INDEX, cross_entropy_loss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, full_dtensor
from torchtitan.distributed.spmd_types import annotate_input_spmd_types
from torchtitan.distributed.utils import get_spmd_context, set_spmd_backend
from torchtitan.models.common.attention import ScaledDotProductAttention

from addend.torch._matrix import _draw

NEEDS = [
    "tyro einops torchdata tensorboard tokenizers safetensors pillow torch_checkpointing datasets>=3.6,<4.8 "
    "spmd_types==0.2.3",
    "--no-deps torchtitan==0.3.0",
]
LENGTH = 8
SMALL = {"n_layers": 2, "num_experts": 8, "moe_hidden_dim": 32, "hidden_dim": 64, "dense_hidden_dim": 64}
MODELS = {
    "llama3": ("llama3", "debugmodel"),
    "qwen3": ("qwen3", "debugmodel"),
    "qwen3_moe": ("qwen3", "debugmodel_moe"),
    "deepseek_v3": ("deepseek_v3", "debugmodel"),
}


def spec_of(name):
    """The model's specification with small sizes, and attention that computes in f64 on CPUs."""
    found, flavor = MODELS[name]
    module = importlib.import_module(f"torchtitan.models.{found}")
    makers = [key for key in vars(module) if key.startswith("_build_") and key.endswith("layers")]
    with mock.patch.multiple(module, **{key: smaller(getattr(module, key)) for key in makers}):
        spec = module.model_registry(flavor, attn_backend="flex")
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return spec


def smaller(build):
    def small(*args, **sizes):
        return build(*args, **{**sizes, **{key: size for key, size in SMALL.items() if key in sizes}})

    return small


def built(name, parallelism):
    config = spec_of(name).model
    config.update_from_config(config=types.SimpleNamespace(parallelism=parallelism))
    model = config.build()
    model.vocabulary = config.vocab_size
    return model.train()


def maker(name):
    def make_model():
        torch.manual_seed(1)
        model = built(name, ParallelismConfig())
        with torch.no_grad():
            model.init_weights(buffer_device=None)
        _draw.draw(model)
        model.spec, model.dims = name, None
        return model

    return make_model


models = {name: maker(name) for name in MODELS}


def by(backend, sequence=True, experts=1):
    """The function that makes a model parallel by torchtitan with this way of typing tensors."""

    def parallelize(model, mesh):
        sizes = dict(zip(mesh.mesh_dim_names, mesh.shape))
        set_spmd_backend(backend)  # as its trainer does
        parallelism = ParallelismConfig(
            spmd_backend=backend,
            enable_sequence_parallel=sequence,
            data_parallel_replicate_degree=sizes.get("dp_replicate", 1),
            data_parallel_shard_degree=sizes.get("dp_shard", 1),
            context_parallel_degree=sizes.get("cp", 1),
            tensor_parallel_degree=sizes.get("tp", 1),
            expert_parallel_degree=experts,
        )
        dims = ParallelDims.from_config(parallelism, mesh.size())
        dims.build_mesh()
        parts = built(model.spec, parallelism)
        parts.load_state_dict(model.state_dict())
        for own, other in zip(parts.buffers(), model.buffers()):
            own.data = other.data.clone()
        parts = parts.double()
        training = TrainingConfig(mixed_precision_param="float32")
        parts = spec_of(model.spec).parallelize_fn(
            parts,
            parallel_dims=dims,
            training=training,
            parallelism=parallelism,
            compile_config=CompileConfig(),
            ac_config=None,
            dump_folder="",
        )
        as_trained(parts, model)
        parts.dims, parts.vocabulary = dims, model.vocabulary
        return parts

    return parallelize


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def as_trained(parts, model):
    """What torchtitan's trainer does next, which also ties weights; then each rank's part of the weights again."""
    kept = {name: local(own).detach().clone() for name, own in parts.named_parameters(remove_duplicate=False)}
    parts.to_empty(device="cpu")
    with torch.no_grad():
        parts.init_weights(buffer_device=None)
        for name, own in parts.named_parameters(remove_duplicate=False):
            local(own).copy_(kept[name])
        for own, other in zip(parts.buffers(), model.buffers()):
            local(own).copy_(local(other))


def run(model, microbatches, loss):
    for batch in microbatches:
        with get_spmd_context(parallel_dims=model.dims)():
            loss(model, batch).backward()


def loss(model, batch):
    inputs, labels = batch
    counted = int((labels != IGNORE_INDEX).sum())
    if model.dims is not None and model.dims.spmd_backend == "full_dtensor":
        inputs, labels, _ = full_dtensor.parallelize_inputs(model.dims, inputs, labels, {})
    elif model.dims is not None and model.dims.spmd_backend == "spmd_types":
        inputs, labels, _ = annotate_input_spmd_types(model.dims, inputs, labels, {})
    total = cross_entropy_loss(model(inputs), labels, global_vocab_size=model.vocabulary)
    return total, counted


def batches(rank, mesh, microbatches):
    """Rows of tokens, more on some ranks than on others, and padding at the end of one row."""
    axes = [axis for axis in mesh.sizes if axis.startswith("dp")]
    ranks = 1
    for axis in axes:
        ranks *= mesh.size(axis)
    draw = torch.Generator().manual_seed(5)
    parts = [[rows_of(draw, 1 + (r + k) % 2, r == k == 0) for r in range(ranks)] for k in range(microbatches)]
    if rank is None:
        return [tuple(torch.cat(some) for some in zip(*part)) for part in parts]
    own = 0
    for axis in axes:
        own = own * mesh.size(axis) + mesh.get_local_rank(axis)
    return [part[own] for part in parts]


def rows_of(draw, count, padded):
    tokens = torch.randint(2048, (count, LENGTH + 1), generator=draw)
    labels = tokens[:, 1:].clone()
    if padded:
        labels[0, -3:] = IGNORE_INDEX
    return tokens[:, :-1].contiguous(), labels


layouts = {
    f"{name}, {backend}": {"mesh": sizes, "parallelize": by(backend, **options), "run": run}
    for name, sizes, options in (
        ("tp", {"tp": 2}, {}),
        ("tp, whole sequences", {"tp": 2}, {"sequence": False}),
        ("fsdp ep", {"dp_shard": 2}, {"experts": 2}),
        ("tp ep", {"tp": 2}, {"experts": 2}),
        ("fsdp tp ep", {"dp_shard": 2, "tp": 2}, {"experts": 4}),
        ("fsdp", {"dp_shard": 3}, {}),
        ("hsdp", {"dp_replicate": 2, "dp_shard": 2}, {}),
        ("fsdp tp", {"dp_shard": 2, "tp": 2}, {}),
    )
    for backend in ("spmd_types", "full_dtensor", "partial_dtensor")
}
steps = 1


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
