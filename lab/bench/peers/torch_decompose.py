"""A step of a decomposition in PyTorch, in one process (decomposition.py; with the recipe of lab/bench/trainer/library_decompose.c).
Usage: torch_decompose.py ADDRESS RANK RANKS PORT THREADS LAYERS D_MODEL HEADS SEQ BATCH."""
import os
import sys

import worker

THREADS = int(sys.argv[5])
os.environ.update(OMP_NUM_THREADS=str(THREADS), MKL_NUM_THREADS=str(THREADS))
import torch
from decomposition import MATRICES, Decomposition

torch.set_num_threads(THREADS)
torch.manual_seed(1)
LAYERS, D_MODEL, HEADS, SEQ, BATCH = map(int, sys.argv[6:11])
VOCABULARY, HIDDEN, IMPORTANCE_LAYERS = 256, (8 * D_MODEL // 3 + 15) // 16 * 16, 2
held = {}


def matrix(rows, columns):
    return torch.randn(rows, columns) / rows**0.5


def transformer(layers):
    shapes = 4 * [(D_MODEL, D_MODEL)] + 2 * [(D_MODEL, HIDDEN)] + [(HIDDEN, D_MODEL)]
    weights = {f"blocks.{i}.{name}": matrix(*shape) for i in range(layers) for name, shape in zip(MATRICES, shapes)}
    norms = [f"blocks.{i}.norm.{name}" for i in range(layers) for name in ("attn", "mlp")]
    return weights | {name: torch.ones(D_MODEL) for name in [*norms, "final.norm.weight"]}


def prepare_step():
    target = transformer(LAYERS) | {"embedding.weight": 0.02 * torch.randn(VOCABULARY, D_MODEL)}
    components = {f"blocks.{i}.{name}": D_MODEL * (1 + name.startswith("mlp")) for i in range(LAYERS) for name in MATRICES}
    sizes = {"layers": LAYERS, "heads": HEADS, "seq": SEQ, "d_model": D_MODEL, "importance_layers": IMPORTANCE_LAYERS, "importance_d_model": D_MODEL,
             "importance_heads": HEADS, "components": components, "power": 0.9, "beta": 0.3, "epsilon": 1e-6, "ascent_steps": 2, "ascent_lr": 0.1,
             "coefficients": dict.fromkeys(("faithfulness", "stochastic", "sparsity", "adversarial"), 1.0), "lr": 1e-4, "clip": 1.0}
    inputs = sum(target[site].shape[0] for site in components)
    learnt = {f"ci.{name}": value for name, value in transformer(IMPORTANCE_LAYERS).items()}
    learnt |= {"ci.input.weight": matrix(inputs, D_MODEL), "ci.output.weight": matrix(D_MODEL, sum(components.values()))}
    for site, count in components.items():
        learnt |= {f"blocks.{site}.V": matrix(target[site].shape[0], count), f"blocks.{site}.U": matrix(count, target[site].shape[1])}
    peer, tokens = Decomposition(sizes, target, learnt, BATCH), torch.randint(0, VOCABULARY, (BATCH, SEQ))
    return lambda: peer.step(tokens, lambda site, count: torch.rand((BATCH, SEQ, count) if count else (BATCH, SEQ)))


def prepare(task):
    if task.op != "decompose_step":
        return None
    if "step" not in held:
        held["step"] = prepare_step()
    return held["step"]


worker.work(prepare, lambda: None)
