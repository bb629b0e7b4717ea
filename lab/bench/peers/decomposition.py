"""A decomposition of a small decoder's matrices in PyTorch, by the formulas of programs/decompose/model.h: four losses, an importance
network, an adversary that maximises its loss, AdamW with gradient clipping for each pool. Weights and sources are dictionaries with addend's
names; matrices are [in, out]."""
import math

import torch
import torch.nn.functional as F

EPSILON = 1e-5  # of the RMS norms
MATRICES = ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "mlp.gate", "mlp.up", "mlp.down")


class Lower(torch.autograd.Function):
    """clamp(x, 0, 1); values below 0 get a small part of gradients that would raise them."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.clamp(0, 1)

    @staticmethod
    def backward(context, gradient):
        x, = context.saved_tensors
        inside = torch.where((x >= 0) & (x <= 1), gradient, 0)
        return torch.where(x < 0, 0.01 * gradient.clamp(max=0), inside)


def upper(x):
    return torch.where(x > 1, 1 + 0.01 * (x - 1), x.clamp(0, 1))


def norm(x, weight=None):
    return F.rms_norm(x, x.shape[-1:], weight, EPSILON)


def divergence(logits, wanted):
    return F.mse_loss(logits, wanted, reduction="sum")


def masked_product(x, w, v, u, mask, remains):
    h = x @ v
    return (h * mask) @ u + remains.unsqueeze(-1) * (x @ w - h @ u)


class Transformer:
    """Blocks of attention and SwiGLU. If product(name, x, w) returns a value, it replaces the product x w."""

    def __init__(self, layers, heads, seq, width, sees_all, dtype):
        half = width // heads // 2
        angle = torch.arange(seq)[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        self.cosine, self.sine = angle.cos().to(dtype), angle.sin().to(dtype)
        self.layers, self.heads, self.sees_all = layers, heads, sees_all

    def rotate(self, x):  # [batch, heads, seq, head]
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cosine - b * self.sine, a * self.sine + b * self.cosine), -1)

    def attention(self, x, product):
        q, k, v = (product(name, x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in ("attn.wq", "attn.wk", "attn.wv"))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=not self.sees_all)
        return product("attn.wo", y.transpose(1, 2).flatten(2))

    def run(self, x, weights, stand_in=None):
        for i in range(self.layers):

            def product(name, x, block=f"blocks.{i}"):
                name = f"{block}.{name}"
                y = stand_in(name, x) if stand_in else None
                return x @ weights[name] if y is None else y

            x = x + self.attention(norm(x, weights[f"blocks.{i}.norm.attn"]), product)
            y = norm(x, weights[f"blocks.{i}.norm.mlp"])
            x = x + product("mlp.down", F.silu(product("mlp.gate", y)) * product("mlp.up", y))
        return norm(x, weights["final.norm.weight"])


class Decomposition:
    """sizes: layers, d_model, heads, seq; importance_layers, importance_d_model, importance_heads; components: of each site, by
    name; coefficients, power, beta, epsilon; ascent_steps, ascent_lr; lr, clip."""

    def __init__(self, sizes, target, learnt, batch, dtype=torch.float32):
        self.sizes, self.target = sizes, target
        self.decoder = Transformer(sizes["layers"], sizes["heads"], sizes["seq"], sizes["d_model"], False, dtype)
        self.encoder = Transformer(sizes["importance_layers"], sizes["importance_heads"], sizes["seq"], sizes["importance_d_model"], True, dtype)
        self.sites = list(sizes["components"])
        self.counts = list(sizes["components"].values())
        self.learnt = {name: value.requires_grad_() for name, value in learnt.items()}
        self.ci = {name[3:]: value for name, value in self.learnt.items() if name.startswith("ci.")}
        shapes = [(batch, sizes["seq"], sum(self.counts))] + [(batch, sizes["seq"])] * len(self.sites)
        self.sources = [torch.full(shape, 0.5, dtype=torch.float64) for shape in shapes]
        self.moments = [(torch.zeros_like(source), torch.zeros_like(source)) for source in self.sources]
        self.climbed, self.dtype = 0, dtype
        self.pools = [[value for name, value in self.learnt.items() if name.startswith(pool)] for pool in ("ci.", "blocks.")]
        self.optimizer = torch.optim.AdamW(self.learnt.values(), lr=sizes["lr"], betas=(0.9, 0.95), eps=1e-8, weight_decay=0, foreach=True)

    def logits(self, tokens, stand_in=None):
        x = self.decoder.run(self.target["embedding.weight"][tokens], self.target, stand_in)
        return x @ self.target["embedding.weight"].T

    def components(self, site):
        return self.learnt[f"blocks.{site}.V"], self.learnt[f"blocks.{site}.U"]

    def masked_logits(self, tokens, masks):
        """The logits with masked components. masks[site]: (mask of components, mask of the matrix without them)."""

        def stand_in(name, x):
            return masked_product(x, self.target[name], *self.components(name), *masks[name]) if name in masks else None

        return self.logits(tokens, stand_in)

    def importances(self, tokens):
        seen = {}

        def see(name, x):
            if name in self.sizes["components"]:
                seen[name] = norm(x)

        with torch.no_grad():
            wanted = self.logits(tokens, see)
        x = torch.cat([seen[site] for site in self.sites], -1) @ self.ci["input.weight"]
        return self.encoder.run(x, self.ci) @ self.ci["output.weight"], wanted

    def faithfulness(self):
        errors = [(self.target[site] - v @ u).square().sum() for site in self.sites for v, u in [self.components(site)]]
        return sum(errors) / sum(self.target[site].numel() for site in self.sites)

    def stochastic(self, tokens, wanted, kept, draw):
        """The stochastic loss. draw(site, components): numbers in [0, 1); components 0: for the rest of the matrix."""
        total = 0
        for site, ci in zip(self.sites, kept):
            mask = ci + (1 - ci) * draw(site, ci.shape[-1])
            total = total + divergence(self.masked_logits(tokens, {site: (mask, draw(site, 0))}), wanted)
        return total / (tokens.numel() * len(self.sites))

    def sparsity(self, x):
        sums = ((upper(x) + self.sizes["epsilon"]) ** self.sizes["power"]).sum((0, 1))
        return (sums * (1 + self.sizes["beta"] * torch.log1p(sums) / math.log(2))).sum() / (x.shape[0] * x.shape[1])

    def adversarial(self, tokens, wanted, kept, sources):
        mixed = (kept + (1 - kept) * sources[0]).split(self.counts, -1)
        masks = {site: (mask, remains) for site, mask, remains in zip(self.sites, mixed, sources[1:])}
        return divergence(self.masked_logits(tokens, masks), wanted) / tokens.numel()

    def leaves(self):
        return [source.to(self.dtype, copy=True).requires_grad_() for source in self.sources]

    def climb(self, gradients, factor=1.0):
        """One step of Adam (Kingma and Ba 2015) in the direction that raises the loss."""
        self.climbed += 1
        for source, gradient, (first, second) in zip(self.sources, gradients, self.moments):
            gradient = gradient.double() * factor
            first.lerp_(gradient, 0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            size = (second / (1 - 0.999**self.climbed)).sqrt_().add_(1e-8)
            source.addcdiv_(first, size, value=self.sizes["ascent_lr"] / (1 - 0.9**self.climbed)).clamp_(0, 1)

    def climb_before(self, tokens, wanted, kept):
        for parameter in self.learnt.values():
            parameter.requires_grad_(False)
        for _ in range(self.sizes["ascent_steps"]):
            leaves = self.leaves()
            self.climb(torch.autograd.grad(self.adversarial(tokens, wanted, kept, leaves), leaves))
        for parameter in self.learnt.values():
            parameter.requires_grad_(True)

    def step(self, tokens, draw):
        """Runs one step; returns the losses by name, without their coefficients."""
        self.optimizer.zero_grad()
        x, wanted = self.importances(tokens)
        kept = Lower.apply(x)
        self.climb_before(tokens, wanted, kept.detach())
        leaves = self.leaves()
        losses = {
            "faithfulness": self.faithfulness(),
            "stochastic": self.stochastic(tokens, wanted, kept.split(self.counts, -1), draw),
            "sparsity": self.sparsity(x),
            "adversarial": self.adversarial(tokens, wanted, kept, leaves),
        }
        coefficients = self.sizes["coefficients"]
        sum(coefficients[name] * loss for name, loss in losses.items()).backward()
        self.climb([leaf.grad for leaf in leaves], 1 / coefficients["adversarial"])
        for pool in self.pools:
            torch.nn.utils.clip_grad_norm_(pool, self.sizes["clip"], foreach=True)
        self.optimizer.step()
        return {name: loss.item() for name, loss in losses.items()}
