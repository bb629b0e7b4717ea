"""Make the fixtures decompose-* anew: decompositions of a decoder, with the sources of their adversary, and their
final results, in the way in which generate.py makes those of gpt. Formulas, streams of draws and initial values are
those of programs/decompose/model.h and programs/docs/pools.md.
"""
import fnmatch
import math

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

from draws import MASK32, philox4x32, random_bits, xxh64
from generate import ROOT, STEPS, TEXT, Gpt, blocks_of, counted_of, embedding_of, hidden_of, initial_weights, mlp, \
    mlp_shapes, prepare, rms_norm, shapes_of, write_case

BETA1, BETA2 = 0.9, 0.999  # AdamW's betas in the ascent
THRESHOLD, BATCHES, USED, SHOWN = 0.5, 8, 8, 4
# least distance of two numbers whose order is reported; and of a gradient from 0 if its sign is a step, relative to the
# largest
CLOSE = 1e-9

CASES = {
    # Every key that has a default keeps it.
    "decompose-plain": {
        "model": {"kind": "decompose", "layers": 1, "d_model": 8, "heads": 2},
        "data": {"text": [f"{TEXT}/first.txt"], "seq": 6},
        "train": {"global_batch": 3, "steps": STEPS, "lr": 1e-2},
        "importance": {"layers": 1, "d_model": 6, "heads": 1},
        "sites": [{"match": "blocks.0.attn.wv", "components": 3}, {"match": "blocks.0.mlp.down", "components": 4}],
    },
    # Microbatches of one sample, two and two; both exponents, between which the training moves in its middle; each
    # pool's clip takes effect; more components than a matrix has rows; sources that samples share. The losses do not
    # depend on which tokens count. No query or key matrix is a site here: the effect of masking one is a small
    # difference of large numbers.
    "decompose-annealed": {
        "model": {"kind": "decompose", "layers": 2, "d_model": 8, "heads": 2, "d_hidden": 10, "tied": False, "kv_heads": 1,
                  "qk_norm": True, "bias": True, "rotary_base": 100},
        "data": {"text": [TEXT], "seq": 4, "validation": 0.2, "valid": [1, 0.5, 0]},
        "train": {"global_batch": 5, "microbatches": 3, "steps": STEPS, "lr": 1e-2, "warmup": 3, "clip": 0.5,
                  "epsilon": 1e-5, "weight_decay": 0.1, "seed": 71},
        "importance": {"layers": 2, "d_model": 8, "heads": 2},
        "sites": [{"match": "blocks.*.attn.w[vo]", "components": 3}, {"match": "blocks.1.mlp.gate", "components": 9}],
        "losses": {"faithfulness": {"coefficient": 3}, "stochastic": {"coefficient": 2, "divergence": "kl"},
                   "sparsity": {"coefficient": 0.1, "power": 1.9, "last_power": 1.3, "anneal_from": 0.2, "anneal_to": 0.8,
                                "beta": 0.3, "epsilon": 1e-3},
                   "adversarial": {"coefficient": 1.5}},
        "ascent": {"steps": 2, "scope": "batch", "bounds": "sigmoid", "lr": 0.3, "eps": 1e-2},
        "evaluate": {"samples": 33},
    },
    # Sources move by signs to the edges of [0, 1] and stay there; the validation set begins again.
    "decompose-signs": {
        "model": {"kind": "decompose", "layers": 1, "d_model": 8, "heads": 1, "plain_clamp": True},
        "data": {"text": [TEXT], "seq": 7, "validation": 0.1},
        "train": {"global_batch": 3, "microbatches": 2, "steps": STEPS, "lr": 3e-2, "seed": 72},
        "importance": {"layers": 1, "d_model": 12, "heads": 3},
        "sites": [{"match": "blocks.0.attn.w[vo]", "components": 5}, {"match": "blocks.0.mlp.*", "components": 3}],
        "losses": {"faithfulness": {"coefficient": 0.2}, "stochastic": {"coefficient": 0.3},
                   "sparsity": {"coefficient": 1, "power": 2, "last_power": 1, "anneal_from": 0.5},
                   "adversarial": {"coefficient": 0.1}},
        "ascent": {"steps": 3, "rule": "sign", "lr": 0.15},
        "evaluate": {"samples": 10},
    },
    # Losses that are only measured, and an adversary from which nothing learns; Adam, a source for each sample,
    # sigmoids.
    "decompose-measured": {
        "model": {"kind": "decompose", "layers": 1, "d_model": 8, "heads": 2},
        "data": {"text": [TEXT], "seq": 6, "validation": 0.1},
        "train": {"global_batch": 4, "microbatches": 2, "steps": STEPS, "lr": 6e-2, "seed": 73},
        "importance": {"layers": 1, "d_model": 6, "heads": 1},
        "sites": [{"match": "blocks.0.attn.wv", "components": 4}, {"match": "blocks.0.mlp.up", "components": 3}],
        "losses": {"stochastic": {"coefficient": 0}, "sparsity": {"coefficient": 0.3}, "adversarial": {"coefficient": 0}},
        "ascent": {"bounds": "sigmoid", "lr": 0.3},
    },
}

LOSSES = ("faithfulness", "stochastic", "sparsity", "adversarial")
DEFAULTS = {  # the manual page's defaults
    "sparsity": {"power": 1, "last_power": None, "anneal_from": 0, "anneal_to": 1, "beta": 0, "epsilon": 1e-6},
    "stochastic": {"divergence": "mse"},
    "ascent": {"steps": 1, "rule": "adam", "scope": "sample", "bounds": "clamp", "lr": 0.1, "eps": 1e-8},
    "evaluate": {"samples": 256},
}
MATRICES = ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "mlp.gate", "mlp.up", "mlp.down")
PASSES = ("target", "masked", "rounded", "stochastic", "unmasked", "random", "largest")


# ---- replacing a matrix product by a function ----

class Lower(torch.autograd.Function):
    """The backward of ad_lower, as programs/decompose/operations.h states it."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.clamp(0, 1)

    @staticmethod
    def backward(context, gradient):
        x, = context.saved_tensors
        inside = gradient * ((x >= 0) & (x <= 1))
        return torch.where((x < 0) & (gradient < 0), 0.01 * gradient, inside)


class StandIn:
    """An object such that x @ it is function(x)."""

    def __init__(self, function):
        self.function = function

    def __rmatmul__(self, x):
        return self.function(x)


def upper(x):
    return torch.where(x > 1, 1 + 0.01 * (x - 1), x.clamp(0, 1))


def mixed(x, u):
    return x + (1 - x) * u


def masked(w, v, u, mask, remains):
    return StandIn(lambda x: (x @ v * mask) @ u + remains[..., None] * (x @ w - x @ v @ u))


def divergence_of(kind, logits, wanted):
    if kind == "mse":
        return ((logits - wanted) ** 2).sum()
    return F.kl_div(logits.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="sum")


# ---- random numbers ----

def uniform(seed, name, step, first, shape):
    """Return uniform numbers by place in the step's batch (ad_array_uniform in train/include/addend/tensor.h)."""
    own, of_sample = random_bits(seed, xxh64(name.encode()), step), math.prod(shape[1:])
    numbers = [[(random_bits(own, first + sample, i) >> 40) * 2.0**-24 for i in range(of_sample)]
               for sample in range(shape[0])]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def fraction(bits):
    return (bits >> 11) * 2.0**-53


def normal(seed, name, shape):
    """Return normal numbers by Box and Muller 1958, from the two numbers of a draw."""
    stream, numbers = xxh64(name.encode()), []
    for i in range(math.prod(shape)):
        words = philox4x32((i & MASK32, i >> 32, stream & MASK32, stream >> 32), (seed & MASK32, seed >> 32))
        first, second = fraction(words[1] << 32 | words[0]), fraction(words[3] << 32 | words[2])
        numbers.append(math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second))
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


# ---- the program ----

class Decompose(Gpt):
    mesh = '{ci: "dp=1", blocks: "block=1 dp=1", adv: "dp=1"}'

    def __init__(self, name, recipe):
        super().__init__(recipe)
        given = recipe.get("losses", {})
        losses = {name: {"coefficient": 1} | DEFAULTS.get(name, {}) | given.get(name, {}) for name in LOSSES}
        self.coefficients = {name: losses[name]["coefficient"] for name in LOSSES}
        self.divergence, self.sparse = losses["stochastic"]["divergence"], losses["sparsity"]
        self.importance = recipe["importance"]
        self.ascent, self.evaluate = (DEFAULTS[key] | recipe.get(key, {}) for key in ("ascent", "evaluate"))
        self.target = self.make_target(name, recipe)
        names = [f"blocks.{i}.{matrix}" for i in range(self.model["layers"]) for matrix in MATRICES]
        self.sites = {site: one["components"] for site in names for one in recipe["sites"]
                      if fnmatch.fnmatch(site, one["match"])}
        samples, count = self.train["global_batch"], self.train["microbatches"]
        ends = [i * samples // count for i in range(count + 1)]
        self.microbatches = list(zip(ends, ends[1:]))
        self.sources = [self.start(end - first) for first, end in self.microbatches]
        self.climbed = [0] * len(self.microbatches)

    def make_target(self, name, recipe):
        """Give the target a head that separates tokens clearly, so that a divergence is no difference of nearly equal
        numbers.
        """
        self.path = f"programs/tests/oracle/fixtures/{name}/target.safetensors"
        recipe["target"] = {"weights": self.path}
        self.weights = initial_weights(shapes_of(self.model, self.branch_shapes()), self.train["seed"])
        if "head.weight" in self.weights:
            self.weights["head.weight"] *= 4
        return {name: torch.tensor(value) for name, value in self.weights.items()}

    def counted(self, targets):
        """Count all positions: the losses of a decomposition do not predict next bytes."""
        return np.int64(targets.size)

    # ---- parameters ----

    def encoder(self):
        """Return the encoder's options: blocks as ocr's encoder has, MLPs as wide as a decoder's default."""
        return self.importance | {"kv_heads": 0, "d_hidden": 0, "bias": False, "qk_norm": False, "tied": True,
                                  "rotary_base": self.model["rotary_base"]}

    def initial(self):
        encoder, seed = self.encoder(), self.train["seed"]
        shapes = shapes_of(encoder, mlp_shapes("mlp", encoder["d_model"], hidden_of(encoder)))
        del shapes["embedding.weight"]
        shapes |= {"input.weight": (sum(self.target[site].shape[0] for site in self.sites), encoder["d_model"]),
                   "output.weight": (encoder["d_model"], sum(self.sites.values()))}
        factors = {}
        for site, components in self.sites.items():
            rows, columns = self.target[site].shape
            short = site.removeprefix("blocks.")
            factors |= {f"{short}.V": (rows, components), f"{short}.U": (components, columns)}
        return {f"ci.{name}": value for name, value in initial_weights(shapes, seed + 1).items()} | {
            f"blocks.blocks.{name}": value for name, value in initial_weights(factors, seed + 2).items()}

    def norm_groups(self, w):
        return [[p for name, p in w.items() if name.startswith(pool)] for pool in ("ci.", "blocks.")]

    def decays(self, name, p):
        return p.ndim > 1 and name.startswith("ci.")

    def factors(self, w, site):
        return w[f"blocks.{site}.V"], w[f"blocks.{site}.U"]

    # ---- the target and its importances ----

    def batch(self, step, validation=False):
        return super().batch(step, validation) | {"step": np.array([step])}

    def logits(self, tokens, stand_ins):
        w = self.target | stand_ins
        x = blocks_of(self.model, w, embedding_of(w, tokens), lambda x, i: mlp(x, w, f"blocks.{i}.mlp"))
        return x @ (w["embedding.weight"].T if self.model["tied"] else w["head.weight"])

    def importances(self, w, tokens):
        """Return the importances of all components, and the target's logits."""
        seen = {}

        def see(site):
            def look(x):
                seen[site] = rms_norm(x, 1)
                return x @ self.target[site]
            return StandIn(look)
        wanted = self.logits(tokens, {site: see(site) for site in self.sites})
        ci = {name.removeprefix("ci."): p for name, p in w.items() if name.startswith("ci.")}
        x = torch.cat([seen[site] for site in self.sites], -1) @ ci["input.weight"]
        x = blocks_of(self.encoder(), ci, x, lambda x, i: mlp(x, ci, f"blocks.{i}.mlp"), sees_all=True)
        return x @ ci["output.weight"], wanted

    def lower(self, x):
        return x.clamp(0, 1) if self.model.get("plain_clamp") else Lower.apply(x)

    def split(self, x):
        return dict(zip(self.sites, x.split(list(self.sites.values()), -1)))

    # ---- losses ----

    def power(self, step):
        last, begin, end = (self.sparse[key] for key in ("last_power", "anneal_from", "anneal_to"))
        way = min(max((step / self.train["steps"] - begin) / (end - begin), 0), 1)
        return self.sparse["power"] if last is None else self.sparse["power"] + (last - self.sparse["power"]) * way

    def faithfulness(self, w):
        errors = 0
        for site in self.sites:
            v, u = self.factors(w, site)
            errors = errors + ((self.target[site] - v @ u) ** 2).sum()
        return errors / sum(self.target[site].numel() for site in self.sites)

    def stochastic(self, w, tokens, wanted, kept, step, first):
        total = 0
        for site, ci in kept.items():
            mask = mixed(ci, uniform(self.train["seed"], f"mask {site}", step, first, ci.shape))
            remains = uniform(self.train["seed"], f"remains {site}", step, first, ci.shape[:2])
            logits = self.logits(tokens, {site: masked(self.target[site], *self.factors(w, site), mask, remains)})
            total = total + divergence_of(self.divergence, logits, wanted)
        return total / len(self.sites)

    def sparsity(self, x, step):
        sums = ((upper(x) + self.sparse["epsilon"]) ** self.power(step)).sum((0, 1))
        return (sums * (1 + self.sparse["beta"] * torch.log2(1 + sums))).sum()

    # ---- the adversary ----

    def start(self, samples):
        """Make the sources in the middle of [0, 1]: an array for the masks, and one for each site's remainder."""
        lead = (samples,) if self.ascent["scope"] == "sample" else ()
        shapes = [(*lead, self.data["seq"], sum(self.sites.values()))] + [(*lead, self.data["seq"])] * len(self.sites)
        middle = 0.5 if self.ascent["bounds"] == "clamp" else 0
        starts = {"value": middle, "first_moment": 0, "second_moment": 0}
        return [{name: torch.full(shape, value, dtype=torch.float64) for name, value in starts.items()} for shape in shapes]

    def leaves(self, m):
        return [source["value"].clone().requires_grad_() for source in self.sources[m]]

    def adversarial(self, w, tokens, wanted, ci, leaves):
        """Return the adversarial loss, divided by the positions of the whole batch."""
        sources = leaves if self.ascent["bounds"] == "clamp" else [torch.sigmoid(leaf) for leaf in leaves]
        if self.ascent["scope"] == "batch":
            sources = [source.expand(len(tokens), *source.shape) for source in sources]
        masks = self.split(mixed(ci, sources[0]))
        stand_ins = {site: masked(self.target[site], *self.factors(w, site), masks[site], remains)
                     for site, remains in zip(self.sites, sources[1:])}
        return divergence_of(self.divergence, self.logits(tokens, stand_ins), wanted) / self.positions

    def climb(self, m, gradients):
        """Take an ascent step: Adam (Kingma and Ba 2015) upwards, or by signs."""
        self.climbed[m] += 1
        for source, g in zip(self.sources[m], gradients):
            if self.ascent["rule"] == "sign":
                assert ((g == 0) | (g.abs() > CLOSE * g.abs().max())).all()
                way = g.sign()
            else:
                source["first_moment"] = BETA1 * source["first_moment"] + (1 - BETA1) * g
                source["second_moment"] = BETA2 * source["second_moment"] + (1 - BETA2) * g * g
                size = (source["second_moment"] / (1 - BETA2 ** self.climbed[m])).sqrt() + self.ascent["eps"]
                way = source["first_moment"] / (1 - BETA1 ** self.climbed[m]) / size
            source["value"] = source["value"] + self.ascent["lr"] * way
            if self.ascent["bounds"] == "clamp":
                source["value"] = source["value"].clamp(0, 1)

    def microbatch(self, w, tokens, step, m):
        """Return a microbatch's part of each loss. Sources climb only in training."""
        x, wanted = self.importances(w, tokens)
        ci = self.lower(x)
        fixed = {name: p.detach() for name, p in w.items()}
        for _ in range(self.ascent["steps"] if torch.is_grad_enabled() else 0):
            leaves = self.leaves(m)
            self.climb(m, torch.autograd.grad(self.adversarial(fixed, tokens, wanted, ci.detach(), leaves), leaves))
        self.climbing[m] = self.leaves(m)
        first = self.microbatches[m][0]
        return {"faithfulness": self.faithfulness(w) / len(self.microbatches),
                "stochastic": self.stochastic(w, tokens, wanted, self.split(ci), step, first) / self.positions,
                "sparsity": self.sparsity(x, step) / self.positions,
                "adversarial": self.adversarial(w, tokens, wanted, ci, self.climbing[m])}

    def losses(self, w, tokens, targets, step):
        self.positions, self.climbing, parts = targets.size, {}, []
        for m, (first, end) in enumerate(self.microbatches):
            parts.append(self.microbatch(w, tokens[first:end], int(step[0]), m))
        self.parts = {name: sum(part[name] for part in parts) for name in LOSSES}
        return [sum(self.coefficients[name] * self.parts[name] for name in LOSSES if self.coefficients[name])]

    def after_step(self):
        """Read each source's gradient, which backward left multiplied by the loss's coefficient."""
        coefficient = self.coefficients["adversarial"]
        numbers = {f"loss.{name}": value.item() for name, value in self.parts.items()}
        for m, leaves in self.climbing.items():
            if self.ascent["steps"] and coefficient:
                self.climb(m, [leaf.grad / coefficient for leaf in leaves])
            for i, source in enumerate(self.sources[m]):
                kept = source if self.ascent["rule"] == "adam" else {"value": source["value"]}
                numbers |= {f"state:sources.{m}.{i}.{name}": value.numpy().copy() for name, value in kept.items()}
        return numbers | {"state:sources.steps": np.array(self.climbed, float)}

    # ---- the final result ----

    def validation_batch(self, step):
        """Return a batch of data.h's validation set, which begins again after its last sample."""
        text, seq, size = self.texts[b"data held out"], self.data["seq"], self.train["global_batch"]
        windows = (len(text) - 1) // seq
        stride = math.ceil(0.61803398874989485 * windows)
        while math.gcd(stride, windows) != 1:
            stride += 1
        numbers = [(step * size + i) % min(self.evaluate["samples"], windows) for i in range(size)]
        rows = [text[n * stride % windows * seq:][:seq + 1] for n in numbers]
        rows = np.stack([np.frombuffer(row, np.uint8) for row in rows]).astype(np.int32)
        targets = rows[:, 1:].copy()
        for n, row in zip(numbers, targets):
            row[counted_of(self.data, n):] = -1
        return rows[:, :-1], targets

    def random_factors(self, site):
        w = self.target[site]
        v = normal(self.train["seed"], f"random {site}", (w.shape[0], self.sites[site]))
        return v, torch.linalg.pinv(v) @ w

    def kept_largest(self, site, h, active, step):
        order = h.abs() * self.random[site][1].norm(dim=-1)
        return self.largest(order, active)

    def kept_any(self, site, h, active, step):
        """Return the random numbers by place in the set, the same for every step's batch."""
        stream, size = xxh64(f"kept {list(self.sites).index(site)}".encode()), h.shape[-1]
        first = step * self.train["global_batch"] * self.data["seq"] * size
        numbers = [fraction(random_bits(self.train["seed"], stream, first + i)) for i in range(h.numel())]
        return self.largest(torch.tensor(numbers, dtype=torch.float64).reshape(h.shape), active)

    def largest(self, order, active):
        best, at = order.sort(-1, descending=True)
        assert ((best[..., :-1] - best[..., 1:] > CLOSE * best.max()) | (best[..., :-1] == 0)).all()
        rank = torch.empty_like(at).scatter_(-1, at, torch.arange(order.shape[-1]).expand_as(at))
        return (rank < active[..., None]).double()

    def stand_ins(self, w, name, ci, step):
        if name == "target":
            return {}
        none = torch.zeros(ci.shape[:2], dtype=torch.float64)
        if name in ("random", "largest"):
            def random(site, own):
                v, u = self.random[site]
                keep = self.kept_any if name == "random" else self.kept_largest
                return StandIn(lambda x: (x @ v * keep(site, x @ v, (own > 0).sum(-1), step)) @ u)
            return {site: random(site, own) for site, own in self.split(ci).items()}
        drawn, remains = ci, none
        if name == "stochastic":
            drawn = mixed(ci, uniform(self.train["seed"], "found mask", step, 0, ci.shape))
            remains = uniform(self.train["seed"], "found remains", step, 0, ci.shape[:2])
        drawn = {"rounded": (ci > THRESHOLD).double(), "unmasked": torch.ones_like(ci)}.get(name, drawn)
        return {site: masked(self.target[site], *self.factors(w, site), own, remains)
                for site, own in self.split(drawn).items()}

    def passes(self, w, tokens, targets, ci, wanted, step):
        """Return entropies and divergences, summed over positions."""
        entropies, divergences = [], []
        for name in PASSES:
            logits = self.logits(tokens, self.stand_ins(w, name, ci, step))
            wanted_bytes = torch.from_numpy(targets).long().flatten()
            entropies.append(F.cross_entropy(logits.flatten(0, 1), wanted_bytes, ignore_index=-1, reduction="sum"))
            divergences.append(divergence_of("kl", logits, wanted))
        return torch.stack(entropies), torch.stack(divergences)

    def relative_errors(self, w):
        """Return the squared error of each site, and of all together."""
        errors = torch.stack([((self.target[site] - torch.matmul(*self.factors(w, site))) ** 2).sum() for site in self.sites])
        sizes = torch.stack([(self.target[site] ** 2).sum() for site in self.sites])
        return torch.cat(((errors / sizes).sqrt(), (errors.sum() / sizes.sum()).sqrt()[None]))

    def most(self, of, count):
        """Return for each site its largest components by `of`, and -1 where fewer are above 0."""
        out = []
        for own in self.split(of).values():
            best, at = own.sort(descending=True)
            assert len(best) < 2 or ((best[:-1] - best[1:]) > CLOSE)[best[:-1] > CLOSE].all()
            at = [i if own[i] > CLOSE else -1 for i in at[:count].tolist()]
            out.append(at + [-1] * (count - len(at)))
        return np.array(out, float)

    def found(self, w):
        if not self.data["validation"]:
            return {}
        self.random = {site: self.random_factors(site) for site in self.sites}
        cis, sums, counted = [], 0, 0
        for step in range(BATCHES):
            tokens, targets = self.validation_batch(step)
            x, wanted = self.importances(w, tokens)
            cis.append(x.clamp(0, 1))
            counted += (targets >= 0).sum()
            sums = sums + torch.stack(self.passes(w, tokens, targets, cis[-1], wanted, step))  # [2, passes]
        ci = torch.cat(cis).flatten(0, 1)
        assert (ci - THRESHOLD).abs().min() > CLOSE and not ((ci > 0) & (ci < CLOSE)).any()
        entropies, divergences = sums[0] / counted, sums[1] / len(ci)
        mean = ci.mean(0)
        out = {"positions": len(ci), "counted": counted, "cross_entropy": entropies, "divergence": divergences[1:],
               "relative_error": self.relative_errors(w), "importance": mean, "above_zero": (ci > 0).double().mean(0),
               "above_threshold": (ci > THRESHOLD).double().mean(0), "used": self.most(mean, USED),
               "shown": self.most((ci * ci).mean(0) - mean * mean, SHOWN)}
        print(f"of {len(mean)} components {int((ci > 0).any(0).sum())} alive, {ci.gt(0).double().sum(-1).mean():.2f} above 0, "
              f"{ci.gt(THRESHOLD).double().sum(-1).mean():.2f} above {THRESHOLD}")
        return {f"found.{name}": torch.as_tensor(value, dtype=torch.float64).reshape(-1).numpy()
                for name, value in out.items()}


def main():
    prepare()
    for name, recipe in CASES.items():
        program = Decompose(name, recipe)
        write_case(name, recipe, program)
        save_file(program.weights, ROOT / program.path)


if __name__ == "__main__":
    main()
