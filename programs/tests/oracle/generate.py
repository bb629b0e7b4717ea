"""Make the fixtures of programs/tests/oracle anew: what PyTorch computes for the recipes of CASES, in f64 on one thread.

This program is written from the documents alone: train/include/addend/data.h (the text, its validation part, draws,
samples, what counts, the rows of a microbatch), model.h (ad_decoder_options: formulas, names, shapes, what decays;
ad_gpt_options: the default width), optim.h (schedule, AdamW, SGD, the clip), and the manual page's defaults. Initial
weights are made here and given to both. Gradients are by autograd, the update by torch.optim.AdamW or SGD. Two runs give the
same bytes. Arguments name the cases whose fixtures are made; without arguments all are. README.md says how to start
it.
"""
import json
import math
import pathlib
import shutil
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

from draws import check_random_numbers, random_bits, window_of, xxh64

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FIXTURES = HERE / "fixtures"
TEXT = "programs/tests/oracle/fixtures/text"  # recipes name the text relative to the root of the tree
STEPS = 20
GRADIENTS_OF = (0, 1)  # the steps whose gradients are kept
NORM_EPSILON = 1e-5  # the manual page's default
CLOSE = 1e-6  # two scores nearer than this could change places by rounding

CASES = {
    # Every key that has a default keeps it.
    "gpt-tied": {
        "model": {"kind": "gpt", "layers": 1, "d_model": 8, "heads": 2},
        "data": {"text": [f"{TEXT}/first.txt"], "seq": 11},
        "train": {"global_batch": 4, "steps": STEPS, "lr": 1e-2},
    },
    "gpt-untied": {
        "model": {"kind": "gpt", "layers": 2, "d_model": 12, "heads": 3, "d_hidden": 21, "tied": False, "rotary_base": 50},
        "data": {"text": [TEXT], "seq": 13, "validation": 0.15},
        "train": {"global_batch": 5, "steps": STEPS, "lr": 7e-3, "beta1": 0.8, "beta2": 0.97, "epsilon": 1e-6,
                  "weight_decay": 0.3, "clip": 0, "seed": 12345678901},
    },
    # Three microbatches of seven samples have unequal counts, some samples do not count, half a token is rounded, and
    # the clip takes effect only in some steps.
    "gpt-masks": {
        "model": {"kind": "gpt", "layers": 1, "d_model": 12, "heads": 1, "d_hidden": 17},
        "data": {"text": [f"{TEXT}/second.txt", f"{TEXT}/first.txt"], "seq": 13, "valid": [1, 0.5, 0, 0.3, 0]},
        "train": {"global_batch": 7, "microbatches": 3, "steps": STEPS, "lr": 1e-2, "clip": 2, "seed": 5},
    },
    "gpt-schedule": {
        "model": {"kind": "gpt", "layers": 2, "d_model": 8, "heads": 2, "d_hidden": 10},
        "data": {"text": [f"{TEXT}/second.txt"], "seq": 9},
        "train": {"global_batch": 6, "microbatches": 2, "steps": STEPS, "lr": 2e-2, "warmup": 6, "final_lr_fraction": 0.4,
                  "clip": 0.25, "beta1": 0.7, "beta2": 0.9, "weight_decay": 0.2, "seed": 77},
    },
    "gpt-everything": {
        "model": {"kind": "gpt", "layers": 2, "d_model": 10, "heads": 1, "d_hidden": 15, "tied": False, "rotary_base": 200},
        "data": {"text": [TEXT], "seq": 12, "valid": [0.25, 1, 0, 0.7, 1, 0.05], "validation": 0.1},
        "train": {"global_batch": 8, "microbatches": 4, "steps": STEPS, "lr": 1e-2, "warmup": 3, "final_lr_fraction": 0,
                  "clip": 0.5, "beta1": 0.85, "beta2": 0.99, "epsilon": 1e-7, "weight_decay": 0.1, "seed": 9},
    },
    # Three heads share a key head. One sample counts one token, one counts none; microbatches have two and three
    # samples.
    "gpt-grouped": {
        "model": {"kind": "gpt", "layers": 1, "d_model": 12, "heads": 6, "kv_heads": 2, "d_hidden": 17, "tied": False},
        "data": {"text": [TEXT], "seq": 12, "valid": [0.1, 1, 0, 0.6]},
        "train": {"global_batch": 5, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "weight_decay": 0.1, "seed": 31},
    },
    # The first microbatch counts one token, the second none, and the third has two samples.
    "gpt-one-key": {
        "model": {"kind": "gpt", "layers": 1, "d_model": 12, "heads": 6, "kv_heads": 1, "d_hidden": 19, "bias": True},
        "data": {"text": [TEXT], "seq": 12, "valid": [0.1, 0, 1, 0.4]},
        "train": {"global_batch": 4, "microbatches": 3, "steps": STEPS, "lr": 1e-2, "weight_decay": 0.2, "seed": 32},
    },
    "gpt-head-norms": {
        "model": {"kind": "gpt", "layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "d_hidden": 21, "qk_norm": True,
                  "bias": True, "rotary_base": 100},
        "data": {"text": [TEXT], "seq": 12, "validation": 0.1},
        "train": {"global_batch": 3, "steps": STEPS, "lr": 1e-2, "warmup": 3, "clip": 0.5, "seed": 33},
    },
    # Heads are together wider than the residual stream, which they do not divide; no tp divides the vocabulary; of each
    # head's rotary pairs one keeps its frequency, one has the whole factor, one is between. Biases as in Qwen2, head
    # norms as in Qwen3.
    "gpt-wide-heads": {
        "model": {"kind": "gpt", "layers": 2, "d_model": 10, "heads": 4, "kv_heads": 2, "head_dim": 6, "d_hidden": 13,
                  "vocabulary": 259, "tied": False, "bias": "qkv", "qk_norm": True, "norm_epsilon": 0.01, "rotary_base": 12,
                  "rotary_scaling": [8, 0.5, 2, 16]},
        "data": {"text": [TEXT], "seq": 12, "valid": [1, 0.3, 0.6], "validation": 0.1},
        "train": {"global_batch": 4, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "weight_decay": 0.1, "seed": 34},
    },
    # Heads are together narrower than the residual stream and share one key head; wo has a bias too, as in Llama.
    "gpt-narrow-heads": {
        "model": {"kind": "gpt", "layers": 3, "d_model": 14, "heads": 6, "kv_heads": 1, "head_dim": 2, "d_hidden": 11,
                  "vocabulary": 257, "bias": "attention", "norm_epsilon": 1e-3, "rotary_scaling": [3, 1, 2, 9]},
        "data": {"text": [TEXT], "seq": 12, "valid": [0.5, 1]},
        "train": {"global_batch": 3, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "clip": 0.5, "seed": 35},
    },
    # Plain SGD, whose decay is a part of the gradient and is not clipped; then with momentum, and as Nesterov has it.
    "gpt-sgd": {
        "model": {"kind": "gpt", "layers": 1, "d_model": 8, "heads": 2, "d_hidden": 11},
        "data": {"text": [TEXT], "seq": 11, "valid": [1, 0.5]},
        "train": {"global_batch": 4, "microbatches": 2, "steps": STEPS, "lr": 0.25, "weight_decay": 0.1, "clip": 0.5, "seed": 51},
        "optimizer": {"kind": "sgd"},
    },
    "gpt-momentum": {
        "model": {"kind": "gpt", "layers": 1, "d_model": 8, "heads": 2, "d_hidden": 11, "tied": False},
        "data": {"text": [TEXT], "seq": 11},
        "train": {"global_batch": 5, "microbatches": 2, "steps": STEPS, "lr": 0.05, "warmup": 4, "weight_decay": 0.2, "seed": 52},
        "optimizer": {"kind": "sgd", "momentum": 0.9},
    },
    "gpt-nesterov": {
        "model": {"kind": "gpt", "layers": 1, "d_model": 8, "heads": 2, "d_hidden": 11},
        "data": {"text": [TEXT], "seq": 11, "valid": [0.25, 1, 0, 0.7]},
        "train": {"global_batch": 6, "microbatches": 3, "steps": STEPS, "lr": 0.1, "weight_decay": 0.1, "clip": 0.3, "seed": 53},
        "optimizer": {"kind": "sgd", "momentum": 0.75, "nesterov": True},
    },
    "gpt-mlp-bias": {
        "model": {"kind": "gpt", "layers": 1, "d_model": 9, "heads": 2, "head_dim": 4, "d_hidden": 7, "bias": "mlp"},
        "data": {"text": [TEXT], "seq": 12},
        "train": {"global_batch": 3, "steps": STEPS, "lr": 1e-2, "seed": 36},
    },
}

DEFAULTS = {  # the manual page's defaults
    "model": {"d_hidden": 0, "tied": True, "rotary_base": 10000, "kv_heads": 0, "qk_norm": False, "bias": False,
              "vocabulary": 256, "head_dim": 0, "norm_epsilon": NORM_EPSILON, "rotary_scaling": []},
    "data": {"valid": [], "validation": 0},
    "train": {"microbatches": 1, "warmup": 0, "final_lr_fraction": 0.1, "clip": 1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8,
              "weight_decay": 0, "seed": 1},
    "optimizer": {"kind": "adamw", "momentum": 0, "nesterov": False},
}


def section(recipe, name):
    return DEFAULTS[name] | recipe.get(name, {})


# ---- samples ----

def files_of(paths):
    """Yield the files of folders, recursively and in the order of names."""
    for path in paths:
        path = ROOT / path
        yield from files_of(sorted(path.iterdir())) if path.is_dir() else [path]


def texts_of(data):
    """Return the bytes to train on and the validation bytes, which are the last fraction of each file."""
    train, held = b"", b""
    for path in files_of(data.get("text", [])):
        content = path.read_bytes()
        kept = math.floor(len(content) * data["validation"])
        train += content[:len(content) - kept]
        held += content[len(content) - kept:]
    return train, held


def counted_of(data, sample):
    """Return how many tokens of a sample count (its first ones): the nearest integer, halves rounded up. `valid` begins
    anew with every step.
    """
    if not data["valid"]:
        return data["seq"]
    return math.floor(data["valid"][sample % len(data["valid"])] * data["seq"] + 0.5)


def batch_of(data, train, text, stream, step):
    """Return tokens and targets [global_batch, seq]: each sample begins at any place that seq + 1 bytes follow; the
    target of a token is the byte after it, or -1 if it does not count.
    """
    seq, stream = data["seq"], xxh64(stream)
    tokens = np.zeros((train["global_batch"], seq), np.int32)
    targets = np.full_like(tokens, -1)
    for sample in range(train["global_batch"]):
        bits = random_bits(train["seed"], stream, step * train["global_batch"] + sample)
        begin = bits * (len(text) - seq) >> 64
        window = np.frombuffer(text[begin:begin + seq + 1], np.uint8)
        tokens[sample] = window[:-1]
        counted = counted_of(data, sample)
        targets[sample, :counted] = window[1:1 + counted]
    return tokens, targets


def windows_of(tokens, mask, seq, train, step):
    """Return a step's batch of token files: each window of seq tokens that has a target for its last one is a sample, as
    often as every other. Targets that the mask leaves out are -1.
    """
    windows = (len(tokens) - 1) // seq
    samples = range(step * train["global_batch"], (step + 1) * train["global_batch"])
    begins = [window_of(train["seed"], sample, windows) * seq for sample in samples]
    inputs, targets = (np.stack([tokens[at + by:at + by + seq] for at in begins]).astype(np.int32) for by in (0, 1))
    counts = np.stack([mask[at + 1:at + 1 + seq] for at in begins])
    return {"tokens": inputs, "targets": np.where(counts, targets, -1).astype(np.int32)}


# ---- model ----

def hidden_of(model):
    """Return d_hidden; the default is 8/3 d_model, rounded up to a multiple of 16."""
    return model["d_hidden"] or math.ceil(8 * model["d_model"] / 3 / 16) * 16


def kv_heads_of(model):
    return model["kv_heads"] or model["heads"]


def head_dim_of(model):
    return model.get("head_dim") or model["d_model"] // model["heads"]


def vocabulary_of(model):
    return model.get("vocabulary", 256)


def epsilon_of(model):
    return model.get("norm_epsilon", NORM_EPSILON)


QKV = ("attn.wq", "attn.wk", "attn.wv")
MLP = ("mlp.gate", "mlp.up", "mlp.down")
BIASES = {False: (), "none": (), "qkv": QKV, "attention": QKV + ("attn.wo",), "mlp": MLP, "all": QKV + ("attn.wo",) + MLP}
BIASES[True] = BIASES["all"]


def block_shapes(model, branch):
    """Return the shapes of a block. Matrices are [in, out]; a bias has the width of its matrix's output; a mixture of
    experts has no biases. `branch`: the shapes of the block's second branch.
    """
    d, head_dim = model["d_model"], head_dim_of(model)
    queries, keys = head_dim * model["heads"], head_dim * kv_heads_of(model)
    shapes = {"norm.attn": (d,), "attn.wq": (d, queries), "attn.wk": (d, keys), "attn.wv": (d, keys), "attn.wo": (queries, d),
              "norm.mlp": (d,)} | branch
    shapes |= {f"{name}_bias": shape[1:] for name, shape in shapes.items() if name in BIASES[model["bias"]]}
    if model["qk_norm"]:
        shapes |= {"attn.q_norm": (head_dim,), "attn.k_norm": (head_dim,)}
    return shapes


def mlp_shapes(path, d, hidden):
    return {f"{path}.gate": (d, hidden), f"{path}.up": (d, hidden), f"{path}.down": (hidden, d)}


def shapes_of(model, branch):
    """Return every parameter's shape."""
    shapes = {"embedding.weight": (vocabulary_of(model), model["d_model"])}
    for i in range(model["layers"]):
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in block_shapes(model, branch).items()}
    shapes["final.norm.weight"] = (model["d_model"],)
    if not model["tied"]:
        shapes["head.weight"] = (model["d_model"], vocabulary_of(model))
    return shapes


def initial_weights(shapes, seed):
    """Return weights spread evenly around 0 (those of norms around 1), made from integers alone, so that every machine
    rounds them in the same way.
    """
    weights = {}
    for name, shape in shapes.items():
        stream = xxh64(f"oracle {name}".encode())
        unit = np.array([(random_bits(seed, stream, i) >> 11) * 2.0**-53 for i in range(math.prod(shape))])
        width = 0.4 if len(shape) == 1 else 1.0 if name == "embedding.weight" else math.sqrt(3 / shape[-2])
        is_norm = len(shape) == 1 and not name.endswith("_bias")
        weights[name] = ((2 * unit - 1) * width + is_norm).reshape(shape)
    return weights


def rms_norm(x, weight, epsilon=NORM_EPSILON):
    """RMS norm (Zhang and Sennrich 2019)."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def frequencies_of(model):
    """Return the rotary frequencies, scaled by each pair's wavelength as in Transformers' _compute_llama3_parameters.
    """
    head_dim = head_dim_of(model)
    frequency = model["rotary_base"] ** (-2 * torch.arange(head_dim // 2, dtype=torch.float64) / head_dim)
    if not model.get("rotary_scaling"):
        return frequency
    factor, low, high, original = model["rotary_scaling"]
    wavelength = 2 * math.pi / frequency
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * frequency / factor + smooth * frequency
    scaled = torch.where(wavelength > original / low, frequency / factor, between)
    return torch.where(wavelength < original / high, frequency, scaled)


def rotary(x, frequencies):
    """Rotary embedding (Su et al. 2021) of [batch, heads, seq, head_dim]: pair (i, i + head_dim/2) turns by position *
    frequencies[i].
    """
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequencies
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


def product(x, w, name):
    """Multiply x by a matrix, and add its bias if it has one."""
    y = x @ w[name]
    return y + w[f"{name}_bias"] if f"{name}_bias" in w else y


def attention(x, w, block, model, sees_all=False):
    """Attention in which consecutive heads of q share a head of k and v (Ainslie et al. 2023). Queries and keys, if
    they are normalised, are normalised for each head before they turn. A token sees itself and earlier tokens, or all
    tokens.
    """
    batch, seq, _ = x.shape
    heads, head_dim, frequencies = model["heads"], head_dim_of(model), frequencies_of(model)

    def split(name):
        return product(x, w, f"{block}.attn.{name}").unflatten(-1, (-1, head_dim)).transpose(1, 2)

    def positioned(name, norm):
        y = split(name)
        return rotary(rms_norm(y, w[f"{block}.attn.{norm}"], epsilon_of(model)) if model["qk_norm"] else y, frequencies)

    q, k, v = positioned("wq", "q_norm"), positioned("wk", "k_norm"), split("wv")
    k, v = (y.repeat_interleave(heads // kv_heads_of(model), 1) for y in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(head_dim)
    if not sees_all:
        scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), -math.inf)
    y = scores.softmax(-1) @ v
    return product(y.transpose(1, 2).reshape(batch, seq, heads * head_dim), w, f"{block}.attn.wo")


def mlp(x, w, path):
    gate, up = (product(x, w, f"{path}.{name}") for name in ("gate", "up"))
    return product(F.silu(gate) * up, w, f"{path}.down")


def embedding_of(w, tokens):
    return w["embedding.weight"][torch.from_numpy(tokens).long()]


def blocks_of(model, w, x, branch, sees_all=False):
    """Run all blocks and the final norm; branch(x, i) is the second branch of block i."""
    def norm(x, name):
        return rms_norm(x, w[name], epsilon_of(model))
    for i in range(model["layers"]):
        block = f"blocks.{i}"
        x = x + attention(norm(x, f"{block}.norm.attn"), w, block, model, sees_all)
        x = x + branch(norm(x, f"{block}.norm.mlp"), i)
    return norm(x, "final.norm.weight")


def cross_entropy_of(model, w, x, targets, branch):
    """Return the loss of a decoder whose sequence begins as x, summed over the counted tokens."""
    x = blocks_of(model, w, x, branch)
    logits = x @ (w["embedding.weight"].T if model["tied"] else w["head.weight"])
    targets = torch.from_numpy(targets).long()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")


class Gpt:
    """The program of a recipe: its batches, the second branch of a block, its losses, and states that are not
    parameters.
    """
    mesh = '"dp=1"'
    optimizer = DEFAULTS["optimizer"]

    def __init__(self, recipe):
        self.optimizer = section(recipe, "optimizer")
        self.model, self.data, self.train = (section(recipe, name) for name in ("model", "data", "train"))
        self.texts = dict(zip((b"data", b"data held out"), texts_of(self.data)))

    def branch_shapes(self):
        return mlp_shapes("mlp", self.model["d_model"], hidden_of(self.model))

    def initial(self):
        return initial_weights(shapes_of(self.model, self.branch_shapes()), self.train["seed"])

    def batch(self, step, validation=False):
        """Return a step's batch: the arrays that the losses get, by name."""
        stream = b"data held out" if validation else b"data"
        tokens, targets = batch_of(self.data, self.train, self.texts[stream], stream, step)
        return {"tokens": tokens, "targets": targets}

    def kept(self, batch):
        """Return what the fixture keeps of a batch."""
        return batch

    def counted(self, targets):
        """Return a step's first count: the tokens that count."""
        return (targets >= 0).sum()

    def norm_groups(self, w):
        """Return the groups of parameters whose gradients have one norm, which is clipped."""
        return [list(w.values())]

    def decays(self, name, p):
        """Return whether the parameter decays: matrices do, except for the embedding."""
        return p.ndim > 1 and not name.endswith("embedding.weight")

    def losses(self, w, tokens, targets):
        """Return the losses: the first one is the validation loss, and all together are trained; each is the mean over
        the counted tokens of the whole batch.
        """
        def branch(x, i):
            return mlp(x, w, f"blocks.{i}.mlp")
        return [cross_entropy_of(self.model, w, embedding_of(w, tokens), targets, branch) / (targets >= 0).sum()]

    def after_step(self):
        """Update states that are not parameters; return the numbers of the step to keep, by name."""
        return {}

    def found(self, w):
        """Return what the program reports of the trained weights."""
        return {}


# ---- training ----

def learning_rate(train, step):
    """Linear warm-up, in step s lr * (s + 1) / (warmup + 1); then a cosine from lr down to lr * fraction in the last
    step, `steps` - 1.
    """
    lr, warmup, final = train["lr"], train["warmup"], train["lr"] * train["final_lr_fraction"]
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    return final + (lr - final) * (1 + math.cos(math.pi * (step - warmup) / (train["steps"] - 1 - warmup))) / 2


def optimizer_of(program, w):
    """Make torch's AdamW, which is lr * (m / (sqrt(v) + epsilon) + decay * p) as optim.h states it, or torch's SGD."""
    train = program.train
    decays = [p for name, p in w.items() if program.decays(name, p)]
    others = [p for name, p in w.items() if not program.decays(name, p)]
    groups = [{"params": decays, "weight_decay": float(train["weight_decay"])}, {"params": others, "weight_decay": 0.0}]
    if program.optimizer["kind"] == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=program.optimizer["momentum"], nesterov=program.optimizer["nesterov"],
                               foreach=False)
    return torch.optim.AdamW(groups, lr=0.0, betas=(train["beta1"], train["beta2"]), eps=train["epsilon"], foreach=False)


def norm_of(params):
    return torch.cat([p.grad.flatten() for p in params]).norm().item()


def clip(params, largest):
    """Clip to the norm `largest` exactly: torch's clip_grad_norm_ divides by norm + 1e-6."""
    norm = norm_of(params)
    if not largest or norm <= largest:
        return
    for p in params:
        p.grad.mul_(largest / norm)


def take_step(program, w, optimizer, batch, step, out):
    train = program.train
    optimizer.zero_grad()
    loss = sum(program.losses(w, **batch))
    loss.backward()
    norm = norm_of(w.values())
    if step in GRADIENTS_OF:
        out |= {f"gradient.{step}:{name}": p.grad.numpy().copy() for name, p in w.items()}
    for group in program.norm_groups(w):
        clip(group, train["clip"])
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(train, step)
    optimizer.step()
    return {"loss": loss.item(), "norm": norm, "lr": learning_rate(train, step)} | program.after_step()


def train_case(program, initial):
    w = {name: torch.tensor(value, requires_grad=True) for name, value in initial.items()}
    optimizer = optimizer_of(program, w)
    batches = [program.batch(step) for step in range(STEPS)]
    kept = [program.kept(batch) for batch in batches]
    out = {name: np.stack([each[name] for each in kept]) for name in kept[0]}
    out["count"] = np.array([program.counted(batch["targets"]) for batch in batches])
    if program.data["validation"]:
        batch = program.batch(0, validation=True)
        out |= {f"validation.{name}": array for name, array in program.kept(batch).items()}
        with torch.no_grad():
            out["validation.loss"] = np.array([program.losses(w, **batch)[0].item()])
    seen = [take_step(program, w, optimizer, batches[step], step, out) for step in range(STEPS)]
    out |= {name: np.array([each[name] for each in seen]) for name in seen[0]}
    out |= {f"weight.{STEPS}:{name}": p.detach().numpy() for name, p in w.items()}
    with torch.no_grad():
        return out | program.found(w)


# ---- files ----

def flow(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return value if isinstance(value, str) and not set(value) & set('*[') else json.dumps(value)


def write_recipe(name, recipe, mesh, folder):
    weights = f"{folder.relative_to(ROOT).as_posix()}/weights.safetensors"
    script = pathlib.Path(sys.argv[0]).name
    lines = [f"# Written by programs/tests/oracle/{script}; its paths are seen from the root of the tree.", f"name: {name}",
             f"model: {flow(recipe['model'] | {'weights': weights})}", f"data: {flow(recipe['data'])}", f"mesh: {mesh}",
             f"train: {flow(recipe['train'])}"]
    lines += [f"{key}: {flow(value)}" for key, value in recipe.items() if key not in ("model", "data", "train")]
    (folder / "recipe.yaml").write_text("\n".join(lines) + "\n")


def write_case(name, recipe, program):
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    initial = program.initial()
    write_recipe(name, recipe, program.mesh, folder)
    save_file(initial, folder / "weights.safetensors")
    expected = train_case(program, initial)
    save_file(expected, folder / "expected.safetensors", {"torch": torch.__version__.split("+")[0]})
    print(f"{name}: loss {expected['loss'][0]:.6f} to {expected['loss'][-1]:.6f}, norm {min(expected['norm']):.3g} to "
          f"{max(expected['norm']):.3g}, counts {min(expected['count'])} to {max(expected['count'])}")


def prepare():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    check_random_numbers()


def main():
    prepare()
    for name in sys.argv[1:] or CASES:
        write_case(name, CASES[name], Gpt(CASES[name]))


if __name__ == "__main__":
    main()
