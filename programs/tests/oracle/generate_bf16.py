"""Make expected_bf16.safetensors of some fixtures of GPT anew: loss and gradients of step 0 as bf16 gives them.

This program is written from the documents alone: programs/decoder/options.h as generate.py has it, and
core/docs/dtypes.md ("Computing in bf16") for what is rounded, where. Arithmetic is f64, and values are
rounded by PyTorch's own conversion: a program that sums in f32 differs from this only where its sums' error tips a
rounding the other way. Formulas of backward are written out, since autograd would round a gradient to the dtype of
its value and cannot be set otherwise. README.md says how to start it.
"""
import math

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from generate import (CASES, FIXTURES, NORM_EPSILON, Gpt, kv_heads_of, prepare)

NAMES = ("gpt-untied", "gpt-grouped", "gpt-head-norms")


def r(x):
    """Round to bf16, through the f32 in which a program has the value."""
    return x.float().bfloat16().double()


class Value:
    """A number for each element, with its gradient, which is bf16 unless it is wide."""

    def __init__(self, value, wide=False):
        self.value, self.wide, self.grad = value, wide, None

    def take(self, share):
        """Add a share to the gradient, then round the gradient."""
        total = share if self.grad is None else self.grad + share
        self.grad = total if self.wide else r(total)


class Tape:
    """A tape: records each backward function and runs them in reverse."""

    def __init__(self):
        self.steps = []

    def value(self, value, wide, backward):
        out = Value(value if wide else r(value), wide)
        self.steps.append((out, backward))
        return out

    def backward(self):
        for out, step in reversed(self.steps):
            if out.grad is not None:
                step(out.grad)

    def product(self, x, w, turned=False):
        matrix = w.value.T if turned else w.value

        def backward(d):
            share = x.value.flatten(0, -2).T @ d.flatten(0, -2)
            x.take(d @ matrix.T)
            w.take(share.T if turned else share)
        return self.value(x.value @ matrix, False, backward)

    def bias(self, x, row):
        def backward(d):
            row.take(d.flatten(0, -2).sum(0))
            x.take(d)
        return self.value(x.value + row.value, False, backward)

    def add(self, stream, branch):
        def backward(d):
            stream.take(d)
            branch.take(d)
        return self.value(stream.value + branch.value, True, backward)

    def norm(self, x, weight):
        """RMS norm over the last dimension, of the residual stream or of each head."""
        n = x.value.shape[-1]
        inverse = 1 / torch.sqrt((x.value * x.value).mean(-1, keepdim=True) + NORM_EPSILON)

        def backward(d):
            weight.take((d * x.value * inverse).flatten(0, -2).sum(0))
            pull = inverse**3 * (d * weight.value * x.value).sum(-1, keepdim=True) / n
            x.take(d * weight.value * inverse - x.value * pull)
        return self.value(x.value * inverse * weight.value, False, backward)

    def reshaped(self, x, forward, back):
        """Rearrange elements, which rounds nothing."""
        return self.value(forward(x.value), False, lambda d: x.take(back(d)))

    def rotary(self, x, base):
        seq, head_dim = x.value.shape[-2:]
        i = torch.arange(head_dim // 2, dtype=torch.float64)
        angle = torch.arange(seq, dtype=torch.float64)[:, None] * base ** (-2 * i / head_dim)

        def turned(y, sign):
            a, b = y.chunk(2, -1)
            return torch.cat((a * angle.cos() - sign * b * angle.sin(), b * angle.cos() + sign * a * angle.sin()), -1)
        return self.value(turned(x.value, 1), False, lambda d: x.take(turned(d, -1)))

    def attention(self, q, k, v, sharing):
        """Attention: scores, normalisation and sums are wide; the operands of products with v, q and k are bf16."""
        factor = 1 / math.sqrt(q.value.shape[-1])
        keys, values = (y.value.repeat_interleave(sharing, 1) for y in (k, v))
        seq = q.value.shape[-2]
        hidden = torch.ones(seq, seq, dtype=torch.bool).triu(1)
        scores = (q.value @ keys.mT * factor).masked_fill(hidden, -math.inf)
        largest = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - largest)
        total = weights.sum(-1, keepdim=True)
        out = r(r(weights) @ values / total)

        def of_heads(y):
            return y.unflatten(1, (-1, sharing)).sum(2)

        def backward(d):
            p = weights / total
            centre = (out * d).sum(-1, keepdim=True)
            slope = factor * p * (d @ values.mT - centre)
            slope[..., 0, :] = 0  # the first token sees only itself, so its score has no gradient
            slope = r(slope)
            q.take(slope @ keys)
            k.take(of_heads(slope.mT @ q.value))
            v.take(of_heads(r(p).mT @ d))
        return self.value(out, False, backward)

    def swiglu(self, gate, up):
        sigmoid = torch.sigmoid(gate.value)
        silu = gate.value * sigmoid

        def backward(d):
            gate.take(d * up.value * (sigmoid + silu * (1 - sigmoid)))
            up.take(d * silu)
        return self.value(silu * up.value, False, backward)

    def rows(self, table, tokens):
        def backward(d):
            table.take(torch.zeros_like(table.value).index_add_(0, tokens.flatten(), d.flatten(0, -2)))
        return self.value(table.value[tokens], False, backward)

    def stream(self, x):
        return self.value(x.value, True, lambda d: x.take(d))

    def loss(self, logits, targets):
        """The mean over the counted tokens, which starts backward."""
        counted = targets >= 0
        largest = logits.value.amax(-1, keepdim=True)
        total = torch.exp(logits.value - largest).sum(-1, keepdim=True)
        at = logits.value.gather(-1, targets.clamp(min=0)[..., None])
        slope = 1 / counted.sum()
        d = r(torch.exp(logits.value - largest) / total * slope)
        d = d.scatter(-1, targets.clamp(min=0)[..., None],
                      r(d.gather(-1, targets.clamp(min=0)[..., None]) - slope))
        logits.take(torch.where(counted[..., None], d, torch.zeros_like(d)))
        return (torch.where(counted, (largest - at + torch.log(total))[..., 0], 0.0).sum() * slope).item()


def gradients_of(program, initial, batch):
    model, t = program.model, Tape()
    w = {name: Value(value.float().double() if value.ndim == 1 else r(value), wide=True) for name, value in initial.items()}
    heads, head_dim = model["heads"], model["d_model"] // model["heads"]

    def linear(x, name):
        y = t.product(x, w[name])
        return t.bias(y, w[f"{name}_bias"]) if f"{name}_bias" in w else y

    def split(x):
        return t.reshaped(x, lambda y: y.unflatten(-1, (-1, head_dim)).transpose(1, 2), lambda d: d.transpose(1, 2).flatten(2))

    def positioned(x, norm):
        x = split(x)
        return t.rotary(t.norm(x, w[norm]) if model["qk_norm"] else x, model["rotary_base"])

    def attention(x, block):
        q, k, v = (linear(x, f"{block}.{name}") for name in ("wq", "wk", "wv"))
        q, k, v = positioned(q, f"{block}.q_norm"), positioned(k, f"{block}.k_norm"), split(v)
        y = t.attention(q, k, v, heads // kv_heads_of(model))
        y = t.reshaped(y, lambda o: o.transpose(1, 2).flatten(2), lambda d: d.unflatten(-1, (-1, head_dim)).transpose(1, 2))
        return linear(y, f"{block}.wo")

    tokens, targets = (torch.from_numpy(batch[name]).long() for name in ("tokens", "targets"))
    x = t.stream(t.rows(w["embedding.weight"], tokens))
    for i in range(model["layers"]):
        block = f"blocks.{i}"
        x = t.add(x, attention(t.norm(x, w[f"{block}.norm.attn"]), f"{block}.attn"))
        h = t.norm(x, w[f"{block}.norm.mlp"])
        gate, up = linear(h, f"{block}.mlp.gate"), linear(h, f"{block}.mlp.up")
        x = t.add(x, linear(t.swiglu(gate, up), f"{block}.mlp.down"))
    head = "embedding.weight" if model["tied"] else "head.weight"
    logits = t.product(t.norm(x, w["final.norm.weight"]), w[head], turned=model["tied"])
    loss = t.loss(logits, targets)
    t.backward()
    return loss, {name: value.grad.contiguous().numpy() for name, value in w.items()}


def main():
    prepare()
    for name in NAMES:
        program, folder = Gpt(CASES[name]), FIXTURES / name
        initial = {key: torch.from_numpy(value) for key, value in load_file(folder / "weights.safetensors").items()}
        loss, gradients = gradients_of(program, initial, program.batch(0))
        exact = load_file(folder / "expected.safetensors")
        out = {f"gradient.0:{key}": value for key, value in gradients.items()} | {"loss": np.array([loss])}
        save_file(out, folder / "expected_bf16.safetensors", {"torch": torch.__version__.split("+")[0]})
        far = {key: np.linalg.norm(value - exact[f"gradient.0:{key}"]) / np.linalg.norm(exact[f"gradient.0:{key}"])
               for key, value in gradients.items() if np.linalg.norm(exact[f"gradient.0:{key}"])}
        worst = max(far, key=far.get)
        print(f"{name}: loss {loss:.6f}, in f64 {exact['loss'][0]:.6f}; furthest from f64 {worst}, {far[worst]:.2g} of its norm")


if __name__ == "__main__":
    main()
