"""Make the fixtures pools-* anew: three steps of decompose, from initial weights drawn as the documents say.

This program is written from the documents alone: programs/decompose/model.h (ad_decompose_options:
formulas, order of sites, sources, initial values; and the decoder above it), operations.h (ad_lower_at, ad_upper_at),
tensor.h (ad_array_uniform), data.h (draws and samples), optim.h (ad_optimizer_step, ad_schedule), and the manual page's
defaults. Names in the fixtures are those of audit/docs/dumps.md, "What a proof computed". README.md says how to start it.
"""
import fnmatch
import json
import math
import shutil

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

from draws import normal, uniform, xxh64
from generate import FIXTURES, TEXT, batch_of, blocks_of, clip, flow, hidden_of, learning_rate, mlp, mlp_shapes, \
    norm_of, prepare, shapes_of, texts_of

STEPS = 3
MATRICES = ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "mlp.gate", "mlp.up", "mlp.down")
DEFAULTS = {"train": {"microbatches": 1, "warmup": 0, "final_lr_fraction": 0.1, "clip": 1, "beta1": 0.9, "beta2": 0.95,
                      "epsilon": 1e-8, "weight_decay": 0, "seed": 1},
            "ascent": {"steps": 1, "rule": "adam", "scope": "sample", "bounds": "clamp", "lr": 0.1, "eps": 1e-8},
            "model": {"tied": True, "d_hidden": 0, "rotary_base": 10000, "kv_heads": 0, "qk_norm": False, "bias": False}}
DATA = {"text": [TEXT], "seq": 6, "validation": 0, "valid": []}
LOSSES = {"faithfulness": {"coefficient": 1}, "stochastic": {"coefficient": 1, "divergence": "mse"},
          "sparsity": {"coefficient": 1, "power": 1, "beta": 0, "epsilon": 1e-6, "anneal_from": 0, "anneal_to": 1},
          "adversarial": {"coefficient": 1}}

CASES = {
    # Every key that has a default keeps it.
    "plain": {"model": {"layers": 1, "d_model": 8, "heads": 2}, "importance": {"layers": 1, "d_model": 8, "heads": 2},
              "sites": [{"match": "blocks.*.attn.wq", "components": 3}], "train": {"global_batch": 3, "steps": 9, "lr": 1e-2}},
    # Patterns are listed against the order of the sites; three microbatches have unequal sizes.
    "everything": {
        "model": {"layers": 2, "d_model": 12, "heads": 2, "kv_heads": 1, "tied": False, "rotary_base": 50, "bias": True,
                  "qk_norm": True, "d_hidden": 17},
        "importance": {"layers": 2, "d_model": 8, "heads": 2},
        "sites": [{"match": "blocks.*.mlp.*", "components": 4}, {"match": "blocks.1.attn.w[ko]", "components": 3}],
        "losses": {"faithfulness": {"coefficient": 3}, "stochastic": {"coefficient": 2, "divergence": "kl"},
                   "sparsity": {"coefficient": 0.5, "power": 1.3, "last_power": 0.7, "anneal_from": 0.1, "anneal_to": 0.6,
                                "beta": 0.3, "epsilon": 1e-3}, "adversarial": {"coefficient": 1.5}},
        "ascent": {"steps": 2, "lr": 0.3, "eps": 1e-4},
        "train": {"global_batch": 7, "microbatches": 3, "steps": 8, "lr": 1e-2, "warmup": 2, "weight_decay": 0.2, "clip": 0.3,
                  "seed": 12345678901}},
    "shared-sigmoid": {
        "model": {"layers": 1, "d_model": 8, "heads": 1}, "importance": {"layers": 1, "d_model": 12, "heads": 1},
        "sites": [{"match": "blocks.0.mlp.down", "components": 4}, {"match": "blocks.0.attn.wv", "components": 6}],
        "ascent": {"steps": 1, "rule": "sign", "scope": "batch", "bounds": "sigmoid", "lr": 0.4},
        "train": {"global_batch": 5, "microbatches": 2, "steps": 8, "lr": 1e-2, "clip": 0, "seed": 3}},
    "shared-adam": {
        "model": {"layers": 1, "d_model": 8, "heads": 2}, "importance": {"layers": 1, "d_model": 8, "heads": 2},
        "sites": [{"match": "*", "components": 3}], "losses": {"adversarial": {"coefficient": 0.25}},
        "ascent": {"steps": 3, "scope": "batch", "bounds": "sigmoid"},
        "train": {"global_batch": 4, "microbatches": 2, "steps": 8, "lr": 1e-2, "seed": 4}},
}


def section(recipe, name):
    return DEFAULTS[name] | recipe.get(name, {})


class Lower(torch.autograd.Function):
    """The function ad_lower_at of operations.h."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.clamp(0, 1)

    @staticmethod
    def backward(context, gradient):
        x, = context.saved_tensors
        return torch.where(x < 0, 0.01 * gradient.clamp(max=0), torch.where(x > 1, 0.0, gradient))


def upper(x):
    return torch.where(x > 1, 1 + 0.01 * (x - 1), x.clamp(0, 1))


class Matrices(dict):
    """A decoder's weights whose matrix products are visited: a name gives a Product, with which x @ it calls `visit`.
    """

    def __init__(self, weights, visit):
        super().__init__(weights)
        self.visit = visit

    def __getitem__(self, name):
        w = super().__getitem__(name)
        return Product(name, w, self.visit) if name.split(".", 2)[-1] in MATRICES else w


class Product:
    def __init__(self, name, w, visit):
        self.name, self.w, self.visit = name, w, visit

    def __rmatmul__(self, x):
        return self.visit(self.name, x, self.w)


class Decomposition:
    def __init__(self, case):
        self.model, self.ascent, self.train = (section(case, name) for name in ("model", "ascent", "train"))
        self.losses = {name: LOSSES[name] | case.get("losses", {}).get(name, {}) for name in LOSSES}
        importance = case["importance"]
        self.network = DEFAULTS["model"] | importance | {"rotary_base": self.model["rotary_base"]}
        self.target = {name: torch.tensor(value) for name, value in self.target_weights().items()}
        self.sites = {}  # component matrices by name, in their order
        for name in (f"blocks.{i}.{matrix}" for i in range(self.model["layers"]) for matrix in MATRICES):
            for site in case["sites"]:
                if fnmatch.fnmatchcase(name, site["match"]):
                    self.sites[name] = site["components"]
        self.counts = list(self.sites.values())

    # ---- shapes and initial values ----

    def shapes(self):
        sizes = {name: self.target[name].shape for name in self.sites}
        d = self.network["d_model"]
        shapes = shapes_of(self.network, mlp_shapes("mlp", d, hidden_of(self.network)))
        del shapes["embedding.weight"]
        ends = {"input.weight": (sum(rows for rows, _ in sizes.values()), d), "output.weight": (d, sum(self.counts))}
        out = {f"ci.{name}": shape for name, shape in (shapes | ends).items()}
        for name, (rows, columns) in sizes.items():
            out |= {f"blocks.{name}.V": (rows, self.sites[name]), f"blocks.{name}.U": (self.sites[name], columns)}
        return out

    def drawn_weight(self, name, shape, layers):
        """Return a matrix's deviation: one over the root of its rows, or of the embedding's width; for the last matrix
        of a branch also over the root of the number of branches.
        """
        if len(shape) == 1:
            return np.zeros(shape) if name.endswith("_bias") else np.ones(shape)
        rows = shape[1] if name == "embedding.weight" else shape[0]
        deviation = 1 / math.sqrt(rows) / (math.sqrt(2 * layers) if name.endswith((".wo", ".down")) else 1)
        stream = xxh64(name.encode())
        return np.array([deviation * normal(self.train["seed"], stream, e) for e in range(math.prod(shape))]).reshape(shape)

    def target_weights(self):
        """Draw the target's weights from the seed."""
        model = self.model
        shapes = shapes_of(model, mlp_shapes("mlp", model["d_model"], hidden_of(model)))
        return {name: self.drawn_weight(name, shape, model["layers"]) for name, shape in shapes.items()}

    def initial(self):
        """Draw the network's weights; names of random streams do not contain the module's name."""
        return {name: self.drawn_weight(name.split(".", 1)[1], shape, self.network["layers"])
                for name, shape in self.shapes().items()}

    def decays(self, name):
        return name.startswith("ci.") and len(self.shapes()[name]) == 2

    # ---- forward ----

    def logits(self, tokens, visit):
        w = Matrices(self.target, visit)
        x = blocks_of(self.model, w, self.target["embedding.weight"][tokens], lambda x, i: mlp(x, w, f"blocks.{i}.mlp"))
        return x @ (self.target["embedding.weight"].T if self.model["tied"] else self.target["head.weight"])

    def masked(self, tokens, w, masks):
        """Return the logits with masked matrices; masks: (m, d) for each masked site."""
        def visit(name, x, matrix):
            if name not in masks:
                return x @ matrix
            (m, d), v, u = masks[name], w[f"blocks.{name}.V"], w[f"blocks.{name}.U"]
            return (x @ v * m) @ u + d[..., None] * (x @ matrix - (x @ v) @ u)
        return self.logits(tokens, visit)

    def divergence(self, logits, wanted):
        if self.losses["stochastic"]["divergence"] == "mse":
            return (logits - wanted).square().sum()
        return F.kl_div(logits.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="sum")

    def importances(self, tokens, w):
        """Return the importances' input z, and the target's logits."""
        seen = {}

        def see(name, x, matrix):
            seen[name] = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)
            return x @ matrix
        wanted = self.logits(tokens, see)
        own = {name.removeprefix("ci."): value for name, value in w.items() if name.startswith("ci.")}
        x = torch.cat([seen[name] for name in self.sites], -1) @ own["input.weight"]
        x = blocks_of(self.network, own, x, lambda x, i: mlp(x, own, f"blocks.{i}.mlp"), sees_all=True)
        return x @ own["output.weight"], wanted

    def power(self, step):
        sparsity = self.losses["sparsity"]
        span = sparsity["anneal_to"] - sparsity["anneal_from"]
        way = min(max((step / self.train["steps"] - sparsity["anneal_from"]) / span, 0), 1)
        return sparsity["power"] + (sparsity.get("last_power", sparsity["power"]) - sparsity["power"]) * way

    def sparsity(self, z, step):
        options = self.losses["sparsity"]
        sums = ((upper(z) + options["epsilon"]) ** self.power(step)).sum((0, 1))
        return (sums * (1 + options["beta"] * torch.log2(1 + sums))).sum()

    def drawn(self, name, step, first, samples, shape):
        numbers = [uniform(self.train["seed"], name, step, first + i, math.prod(shape)) for i in range(samples)]
        return torch.tensor(numbers, dtype=torch.float64).reshape(samples, *shape)

    def stochastic(self, tokens, w, ci, wanted, step, first):
        samples, seq = tokens.shape
        total = 0
        for (name, count), own in zip(self.sites.items(), ci.split(self.counts, -1)):
            u, d = (self.drawn(f"{what} {name}", step, first, samples, shape)
                    for what, shape in (("mask", (seq, count)), ("remains", (seq,))))
            total = total + self.divergence(self.masked(tokens, w, {name: (own + (1 - own) * u, d)}), wanted)
        return total

    # ---- the adversary ----

    def adversarial(self, tokens, w, ci, wanted, leaves):
        sources = [leaf.sigmoid() if self.ascent["bounds"] == "sigmoid" else leaf for leaf in leaves]
        if self.ascent["scope"] == "batch":
            sources = [source.expand(len(tokens), *source.shape) for source in sources]
        mixed = (ci + (1 - ci) * sources[0]).split(self.counts, -1)
        return self.divergence(self.masked(tokens, w, dict(zip(self.sites, zip(mixed, sources[1:])))), wanted)

    def climb(self, states, m, gradients):
        states["adv.sources.steps"][m] += 1
        t, lr = states["adv.sources.steps"][m], self.ascent["lr"]
        for i, g in enumerate(gradients):
            value = states[f"adv.sources.{m}.{i}.value"]
            if self.ascent["rule"] == "sign":
                value += lr * g.sign()
            else:
                first, second = (states[f"adv.sources.{m}.{i}.{what}_moment"] for what in ("first", "second"))
                first += 0.1 * (g - first)
                second += 0.001 * (g * g - second)
                value += lr * (first / (1 - 0.9**t)) / (torch.sqrt(second / (1 - 0.999**t)) + self.ascent["eps"])
            if self.ascent["bounds"] == "clamp":
                value.clamp_(0, 1)

    def leaves(self, states, m):
        return [states[f"adv.sources.{m}.{i}.value"].clone().requires_grad_() for i in range(1 + len(self.sites))]

    # ---- a step ----

    def start_of_sources(self, sizes, seq):
        lead = [() if self.ascent["scope"] == "batch" else (n,) for n in sizes]
        begin = 0.5 if self.ascent["bounds"] == "clamp" else 0.0
        out = {"adv.sources.steps": torch.zeros(len(sizes), dtype=torch.float64)}
        for m in range(len(sizes)):
            for i, shape in enumerate([(seq, sum(self.counts))] + [(seq,)] * len(self.sites)):
                out[f"adv.sources.{m}.{i}.value"] = torch.full((*lead[m], *shape), begin, dtype=torch.float64)
                if self.ascent["rule"] == "adam":
                    out |= {f"adv.sources.{m}.{i}.{what}_moment": torch.zeros((*lead[m], *shape), dtype=torch.float64)
                            for what in ("first", "second")}
        return out

    def step(self, step, w, states, batches):
        """Return what is reported of the losses, without coefficients; gradients are left in w, and states climb."""
        positions = sum(tokens.numel() for tokens in batches)
        weights = sum(self.target[name].numel() for name in self.sites)
        coefficients = {name: loss["coefficient"] for name, loss in self.losses.items()}
        errors = [(self.target[name] - w[f"blocks.{name}.V"] @ w[f"blocks.{name}.U"]).square().sum() for name in self.sites]
        found = {"faithfulness": sum(errors) / weights}
        (coefficients["faithfulness"] * found["faithfulness"]).backward()
        first = 0
        for m, tokens in enumerate(batches):
            z, wanted = self.importances(tokens, w)
            ci = Lower.apply(z)
            still = {name: value.detach() for name, value in w.items()}
            for _ in range(self.ascent["steps"]):
                leaves = self.leaves(states, m)
                loss = self.adversarial(tokens, still, ci.detach(), wanted, leaves) / positions
                self.climb(states, m, torch.autograd.grad(loss, leaves))
            leaves = self.leaves(states, m)
            losses = {"stochastic": self.stochastic(tokens, w, ci, wanted, step, first) / positions / len(self.sites),
                      "sparsity": self.sparsity(z, step) / positions,
                      "adversarial": self.adversarial(tokens, w, ci, wanted, leaves) / positions}
            sum(coefficients[name] * loss for name, loss in losses.items()).backward()
            if self.ascent["steps"]:
                self.climb(states, m, [leaf.grad / coefficients["adversarial"] for leaf in leaves])
            found |= {name: found.get(name, 0) + loss.detach() for name, loss in losses.items()}
            first += len(tokens)
        return {f"loss.{name}": loss.detach().item() for name, loss in found.items()}


# ---- training ----

def update(decomposition, w, optimizer, step):
    """Clip each pool's gradients by its own norm, and return the norms."""
    norms = {}
    for pool in ("ci", "blocks"):
        own = [value for name, value in w.items() if name.startswith(f"{pool}.")]
        norms[f"norm.{pool}"] = norm_of(own)
        clip(own, decomposition.train["clip"])
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(decomposition.train, step)
    optimizer.step()
    return norms


def optimizer_of(decomposition, w):
    train = decomposition.train
    groups = [{"params": [value for name, value in w.items() if decomposition.decays(name) == decays],
               "weight_decay": float(train["weight_decay"]) if decays else 0.0} for decays in (False, True)]
    return torch.optim.AdamW(groups, lr=0.0, betas=(train["beta1"], train["beta2"]), eps=train["epsilon"], foreach=False)


def kept(what, values):
    """Return copies, so that kept numbers do not change later."""
    return {f"{what}:{name}": np.array(value.detach().numpy() if torch.is_tensor(value) else value)
            for name, value in values.items()}


def train_case(case):
    decomposition = Decomposition(case)
    train, seq = decomposition.train, DATA["seq"]
    ends = [m * train["global_batch"] // train["microbatches"] for m in range(train["microbatches"] + 1)]
    w = {name: torch.tensor(value, requires_grad=True) for name, value in decomposition.initial().items()}
    optimizer = optimizer_of(decomposition, w)
    states = decomposition.start_of_sources([end - first for first, end in zip(ends, ends[1:])], seq)
    out, text = kept("constants", decomposition.target), texts_of(DATA)[0]
    for step in range(STEPS):
        tokens, _ = batch_of(DATA, train, text, b"data", step)
        batches = [tokens[first:end] for first, end in zip(ends, ends[1:])]
        out |= kept(f"{step}.weights", w) | kept(f"{step}.states", states)
        out |= kept(f"{step}.inputs", {f"microbatch.{m}.tokens": batch for m, batch in enumerate(batches)})
        optimizer.zero_grad()
        reported = decomposition.step(step, w, states, [torch.from_numpy(batch).long() for batch in batches])
        out |= kept(f"{step}.gradients", {name: value.grad for name, value in w.items()})
        reported |= update(decomposition, w, optimizer, step) | {"lr": learning_rate(train, step)}
        out |= kept(f"{step}.told", {name: np.array([value]) for name, value in reported.items()})
    return out


def write_case(name, case):
    folder = FIXTURES / f"pools-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    sections = {"model": {"kind": "decompose"} | case["model"], "data": DATA} | {key: case[key] for key in case if key != "model"}
    lines = ["# Written by programs/tests/oracle/generate_pools.py; its paths are seen from the root of the tree.", f"name: pools-{name}"]
    lines += [f"{key}: {flow(value)}" for key, value in sections.items()]
    lines += ['mesh: {ci: "dp=1", blocks: "block=1 dp=1", adv: "dp=1"}', "placement: disjoint"]
    (folder / "recipe.yaml").write_text("\n".join(lines) + "\n")
    expected = train_case(case)
    save_file(expected, folder / "expected.safetensors", {"torch": torch.__version__.split("+")[0]})
    print(f"pools-{name}: " + ", ".join(f"{key.split(':')[1]} {value[0]:.6g}" for key, value in expected.items() if ".told:" in key))


def main():
    prepare()
    for name, case in CASES.items():
        write_case(name, case)


if __name__ == "__main__":
    main()
