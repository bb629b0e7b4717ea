"""Megatron-Core 0.19: tensor-parallel layers, its DistributedDataParallel and finalize_model_grads, on CPUs."""

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.transformer import TransformerConfig
from torch import nn
from torch.nn.functional import cross_entropy, silu

torch.cuda.current_device = lambda: "cpu"  # where buffers and reduced tensors are made
torch.cuda.current_stream = torch.cpu.current_stream
NEEDS = [
    "numpy packaging",
    "--no-deps --ignore-requires-python --python-version=3.12 --only-binary=:all: --target={site} "
    "megatron-core==0.19.2",
]
WIDTH, INNER, WORDS = 9, 18, 12


class Plain(nn.Module):
    """What one process has: the same names, and layers that are whole."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER)
        self.down, self.head = nn.Linear(INNER, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids, labels):
        x = self.embed(ids)
        x = x + self.down(silu(self.up(self.norm(x))))
        return cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), reduction="none")


class Parallel(nn.Module):
    """The same of Megatron-Core's layers."""

    def __init__(self, config):
        super().__init__()
        said = {"config": config, "init_method": nn.init.normal_}
        self.embed = tensor_parallel.VocabParallelEmbedding(WORDS, WIDTH, **said)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = tensor_parallel.ColumnParallelLinear(WIDTH, INNER, gather_output=False, **said)
        self.down = tensor_parallel.RowParallelLinear(
            INNER, WIDTH, bias=True, input_is_parallel=True, skip_bias_add=False, **said
        )
        self.head = tensor_parallel.ColumnParallelLinear(WIDTH, WORDS, bias=False, gather_output=False, **said)

    def forward(self, ids, labels):
        x = self.embed(ids)
        x = x + self.down(silu(self.up(self.norm(x))[0]))[0]
        return tensor_parallel.vocab_parallel_cross_entropy(self.head(x)[0].flatten(0, 1), labels.flatten())


def make_model():
    torch.manual_seed(0)
    return Plain()


def megatron(**buckets):
    def parallelize(model, mesh):
        sizes = dict(zip(mesh.mesh_dim_names, mesh.shape))
        tp = sizes.get("tp", 1)
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp)
        config = TransformerConfig(
            num_layers=1, hidden_size=WIDTH * tp, num_attention_heads=tp, tensor_model_parallel_size=tp,
            use_cpu_initialization=True, perform_initialization=False, calculate_per_token_loss=True,
            params_dtype=torch.float64, pipeline_dtype=torch.float64,
        )  # fmt: skip
        parts, whole = Parallel(config).double(), dict(model.named_parameters())
        with torch.no_grad():
            for name, own in parts.named_parameters():
                for dim, (has, all_of) in enumerate(zip(own.shape, whole[name].shape)):
                    if has != all_of:
                        own.copy_(whole[name].narrow(dim, has * parallel_state.get_tensor_model_parallel_rank(), has))
                        break
                else:
                    own.copy_(whole[name])
        said = DistributedDataParallelConfig(**buckets)
        wrapped = DistributedDataParallel(config, said, parts)
        parts.__dict__["wrapped"] = wrapped
        return parts

    return parallelize


def run(model, microbatches, loss):
    wrapped = model.wrapped
    wrapped.zero_grad_buffer()
    for parameter in model.parameters():
        parameter.grad = None
    for i, batch in enumerate(microbatches):
        if i < len(microbatches) - 1:
            with wrapped.no_sync():
                loss(model, batch).backward()
        else:
            loss(model, batch).backward()
    finalize_model_grads([wrapped], None)
    for parameter in model.parameters():
        parameter.grad = parameter.main_grad.detach().clone().to(parameter.dtype)


def rows_of(draw, count):
    return torch.randint(WORDS, (count, 5), generator=draw), torch.randint(WORDS, (count, 5), generator=draw)


def batches(rank, mesh, microbatches):
    draw, ranks = torch.Generator().manual_seed(1), mesh.sizes.get("dp", 1)
    parts = [[rows_of(draw, 1 + (r + k) % 2) for r in range(ranks)] for k in range(microbatches)]
    if rank is None:
        return [tuple(torch.cat(some) for some in zip(*part)) for part in parts]
    return [part[mesh.get_local_rank("dp") if "dp" in mesh.sizes else 0] for part in parts]


def loss(model, batch):
    ids, labels = batch
    return model.__dict__.get("wrapped", model)(ids, labels).sum(), labels.numel()


layouts = {
    name: {"mesh": mesh, "parallelize": megatron(**buckets), "run": run}
    for name, mesh, buckets in (
        ("ddp", {"dp": 2}, {}),
        ("overlapped", {"dp": 3}, {"overlap_grad_reduce": True, "bucket_size": 50}),
        ("tensor parallel", {"tp": 2}, {}),
        ("tensor parallel, overlapped", {"dp": 2, "tp": 2}, {"overlap_grad_reduce": True, "bucket_size": 50}),
    )
}
