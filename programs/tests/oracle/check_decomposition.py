"""Check that lab/bench/peers/decomposition.py, the PyTorch program that `addend bench --op decompose_step` measures
beside addend, computes what `addend train` does: three steps in f64, from the same weights, on the same samples, with
the same random masks. That program and this one are written from the documents alone that generate_pools.py names.
Usage: check_decomposition.py ADDEND, with a python3 that has torch and safetensors.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench" / "peers"))
from decomposition import MATRICES, Decomposition
from draws import uniform
from generate import batch_of, initial_weights, mlp_shapes, shapes_of, texts_of

STEPS, SEED, CLOSE = 3, 5, 2e-8  # CLOSE: metrics.jsonl has nine digits
MODEL = {"layers": 2, "d_model": 16, "heads": 2, "d_hidden": 24, "tied": True, "kv_heads": 0, "qk_norm": False, "bias": False}
DATA = {"text": ["programs/tests/oracle/fixtures/text"], "seq": 12, "validation": 0, "valid": []}
BATCH = 6
COUNTS = {"attn": 5, "mlp": 7}
SITES = {f"blocks.{i}.{name}": COUNTS[name.split(".")[0]] for i in range(MODEL["layers"]) for name in MATRICES}
SIZES = MODEL | {"seq": DATA["seq"], "importance_layers": 1, "importance_d_model": 16, "importance_heads": 2, "components": SITES,
                 "coefficients": {"faithfulness": 3, "stochastic": 2, "sparsity": 0.5, "adversarial": 1.5}, "power": 0.9, "beta": 0.3,
                 "epsilon": 1e-6, "ascent_steps": 2, "ascent_lr": 0.1, "lr": 1e-2, "clip": 1}


def recipe(folder, lr, steps):
    losses = {name: {"coefficient": value} for name, value in SIZES["coefficients"].items()}
    losses["sparsity"] |= {"power": SIZES["power"], "beta": SIZES["beta"], "epsilon": SIZES["epsilon"]}
    return {
        "name": "check", "model": {"kind": "decompose", **{key: MODEL[key] for key in ("layers", "d_model", "heads", "d_hidden")}},
        "target": {"weights": f"{folder}/target.safetensors"}, "data": {"text": [str(ROOT / DATA["text"][0])], "seq": DATA["seq"]},
        "importance": {"layers": 1, "d_model": 16, "heads": 2},
        "sites": [{"match": f"blocks.*.{kind}.*", "components": count} for kind, count in COUNTS.items()],
        "losses": losses, "ascent": {"steps": SIZES["ascent_steps"], "rule": "adam", "lr": SIZES["ascent_lr"]},
        "mesh": {"ci": "dp=1", "blocks": "block=1 dp=1", "adv": "dp=1"}, "placement": "disjoint", "precision": {"compute": "f64", "param": "f64"},
        "train": {"global_batch": BATCH, "microbatches": 1, "steps": steps, "lr": lr, "warmup": 0, "final_lr_fraction": 1, "clip": SIZES["clip"], "seed": SEED},
    }


def train(addend, folder, lr, steps):
    """Return the losses of each step, and the weights at the end."""
    path, out = folder / f"{steps}.yaml", folder / f"run-{steps}"
    path.write_text(json.dumps(recipe(folder, lr, steps)))
    subprocess.run([addend, "train", path, "--out", out], check=True, stdout=subprocess.DEVNULL)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["losses"] for line in lines], load_file(out / "weights.safetensors")


def drawing(step):
    def draw(site, components):
        name, of_sample = f"{'mask' if components else 'remains'} {site}", DATA["seq"] * (components or 1)
        numbers = [uniform(SEED, name, step, sample, of_sample) for sample in range(BATCH)]
        shape = (BATCH, DATA["seq"], components) if components else (BATCH, DATA["seq"])
        return torch.tensor(numbers, dtype=torch.float64).reshape(shape)

    return draw


def tensors(weights):
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}


def main():
    addend = str(pathlib.Path(sys.argv[1]).resolve())
    folder = pathlib.Path(tempfile.mkdtemp())
    target = initial_weights(shapes_of(MODEL, mlp_shapes("mlp", MODEL["d_model"], MODEL["d_hidden"])), SEED)
    save_file(target, folder / "target.safetensors")
    _, initial = train(addend, folder, 0, 1)
    found, _ = train(addend, folder, SIZES["lr"], STEPS)
    peer = Decomposition(SIZES, tensors(target), tensors(initial), BATCH, torch.float64)
    text, _ = texts_of(DATA)
    worst = 0
    for step in range(STEPS):
        tokens, _ = batch_of(DATA, {"global_batch": BATCH, "seed": SEED}, text, b"data", step)
        losses = peer.step(torch.from_numpy(tokens).long(), drawing(step))
        for name, value in losses.items():
            worst = max(worst, abs(found[step][name] / value - 1))
            print(f"step {step}: {name}: PyTorch {value:.9g}, addend {found[step][name]:.9g}")
    print(f"worst difference {worst:.1e}")
    return worst > CLOSE


if __name__ == "__main__":
    sys.exit(main())
