"""Make fixtures/operations anew: attention, the loss, a router, the losses of a decomposition and small operations,
each alone, as PyTorch's own operations compute them, in f64 on one thread. Full values are computed;
test_operations.c, test_decomposition.c and test_small.c compare each rank's part with them.

This program is written from the documents alone: train/include/addend/tensor.h (ad_attention, ad_attention_all,
ad_cross_entropy, ad_top_k and what stands with it, ad_squared_error, ad_kl_divergence), decompose/operations.h
(ad_lower, ad_upper, ad_mix, ad_power_sums, ad_sparsity), and model.h for how a router's and a decomposition's losses
are put together (ad_moe_options, ad_decompose_options). README.md says how to start it.
"""
import math
import shutil

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from draws import uniform
from generate import CLOSE, FIXTURES, prepare, random_bits, xxh64

FOLDER = FIXTURES / "operations"
BATCH, SEQ = 2, 13  # chunks are uneven
HEADS, KV_HEADS = 4, 2
VOCABULARY = 11  # parts are uneven
HIGH = 5000
EXPERTS, TOP_K, CAPACITY, WIDTH = 7, 3, 0.6, 5
WIDTHS, COMPONENTS = (5, 6, 7), (4, 3)  # WIDTHS: of two matrices in a row; COMPONENTS: of their decompositions
POWER, EPSILON, BETA = 0.9, 0.01, 0.75
# weights of the losses in the total
PARTS = {"faithfulness": 0.5, "squares": 0.05, "divergence": 0.6, "sparsity": 0.003, "adversarial": 0.4}
HIGH_ELEMENT = 70.5  # HIGH_ELEMENT: four of its squares over sqrt(16) are a score of 4970


def drawn(name, *shape):
    """Return multiples of 1/1024 in [-1, 1), so that sums of their products are exact."""
    stream = xxh64(name.encode())
    return np.array([(random_bits(1, stream, i) >> 53) / 1024 - 1 for i in range(math.prod(shape))]).reshape(shape)


def signs(name, *shape):
    return np.where(drawn(name, *shape) < 0, -1.0, 1.0)


# ---- attention ----

def attention_inputs(name, head_dim, seq=SEQ):
    shapes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS, "slope": HEADS}
    return {part: 2 * drawn(f"{name} {part}", BATCH, seq, heads * head_dim) for part, heads in shapes.items()}


def high_attention_inputs(name):
    """Return inputs with scores near 4970 and -4970 (from the first four elements of heads that are 16 wide), to which
    the other elements add a little. The first keys have the low scores, so a row finds its maximum late and must
    rescale what it had. A score is a sum of products over 4, exact in f64, so the difference of two keys is not rounded
    away.
    """
    inputs = attention_inputs(name, 16)
    of_key = signs(f"{name} sign", BATCH, SEQ, KV_HEADS, 1)
    of_key[:, :2] = -1
    inputs["q"].reshape(BATCH, SEQ, HEADS, 16)[..., :4] = HIGH_ELEMENT
    inputs["k"].reshape(BATCH, SEQ, KV_HEADS, 16)[..., :4] = HIGH_ELEMENT * of_key
    return inputs


def attention(inputs, head_dim, is_causal=True):
    """Run attention with torch's plain kernel: a fused one keeps the rows' log-sum-exp, and loses three digits if
    scores are in the thousands.
    """
    x = {name: torch.tensor(value, requires_grad=name != "slope") for name, value in inputs.items()}
    q, k, v = (x[name].unflatten(-1, (-1, head_dim)).transpose(1, 2) for name in "qkv")
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True).transpose(1, 2).flatten(2)
    (out * x["slope"]).sum().backward()
    return inputs | {"out": out.detach().numpy()} | {f"gradient.{name}": x[name].grad.numpy() for name in "qkv"}


# ---- loss ----

def targets_of(name):
    """Return targets, every fifth of which does not count."""
    targets = np.array([random_bits(2, xxh64(name.encode()), i) % VOCABULARY for i in range(BATCH * SEQ)], np.int32)
    targets[::5] = -1
    return targets.reshape(BATCH, SEQ)


def loss(name, logits):
    targets = targets_of(f"{name} targets")
    x = torch.tensor(logits, requires_grad=True)
    total = F.cross_entropy(x.flatten(0, 1), torch.from_numpy(targets).long().flatten(), ignore_index=-1, reduction="sum")
    total.backward()
    return {"logits": logits, "loss": total.detach().numpy(), "gradient.logits": x.grad.numpy(), "targets": targets}


def losses():
    """Return small logits; logits that differ by thousands; and rows within a few of 5000 or of -5000."""
    shape = (BATCH, SEQ, VOCABULARY)
    yield "loss", 3 * drawn("loss", *shape)
    yield "loss-wide", HIGH * drawn("loss wide", *shape)
    yield "loss-high", HIGH * signs("loss high sign", BATCH, SEQ, 1) + 3 * drawn("loss high", *shape)


# ---- a router ----

def router_inputs(name):
    """Return inputs in which some experts have equal biases, so that equal scores make equal choices."""
    shapes = {"x": WIDTH, "slope": WIDTH}
    inputs = {part: 2 * drawn(f"{name} {part}", BATCH, SEQ, width) for part, width in shapes.items()}
    return inputs | {"bias": np.array([0, 0.125, 0, -0.125, 0, 0.125, 0])}


def route(inputs, logits, score):
    """Return each row of x times the sum of the scores of the experts that take it, and the balancing loss. The sort is
    stable, so the lowest of equal experts comes first.
    """
    logits, x = (torch.tensor(value.reshape(BATCH * SEQ, -1), requires_grad=True) for value in (logits, inputs["x"]))
    scores, shares = score(logits), logits.softmax(-1)
    ranked, order = (scores.detach() + torch.tensor(inputs["bias"])).sort(descending=True, stable=True)
    distance = ranked[:, TOP_K - 1] - ranked[:, TOP_K]
    assert ((distance == 0) | (distance > CLOSE)).all()
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(1, order[:, :TOP_K], True)
    taken = chosen & (chosen.cumsum(0) <= math.ceil(CAPACITY * BATCH * SEQ * TOP_K / EXPERTS))
    out = x * (scores * taken).sum(-1, keepdim=True)
    choices = chosen.sum(0).double()
    balance = EXPERTS * (choices / choices.sum() * shares.mean(0)).sum()
    ((out * torch.tensor(inputs["slope"]).flatten(0, 1)).sum() + balance).backward()
    assert taken.sum() < chosen.sum()
    whole = {"logits": logits, "out": out, "gradient.logits": logits.grad, "gradient.x": x.grad}
    whole = {name: value.detach().numpy().reshape(BATCH, SEQ, -1) for name, value in whole.items()}
    return inputs | whole | {"choices": choices.numpy(), "balance": balance.detach().numpy()}


def routers():
    """Return logits, some of which are all near 5000 or -5000, so that scores are exactly 0 or (by sigmoid) 1."""
    shape = (BATCH, SEQ, EXPERTS)
    small, high = 3 * drawn("router", *shape), HIGH * signs("router sign", *shape) + 3 * drawn("router high", *shape)
    for name, score in {"softmax": lambda logits: logits.softmax(-1), "sigmoid": torch.sigmoid}.items():
        yield f"router-{name}", route(router_inputs("router"), small, score)
        yield f"router-{name}-high", route(router_inputs("router high"), high, score)


# ---- a decomposition ----

class Lower(torch.autograd.Function):
    """clamp(x, 0, 1), whose backward depends on the sign of the gradient that arrives."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.clamp(0, 1)

    @staticmethod
    def backward(context, gradient):
        x, = context.saved_tensors
        nothing = torch.zeros_like(gradient)
        outside = torch.where((x < 0) & (gradient < 0), 0.01 * gradient, nothing)
        assert (gradient[x < 0].abs() > CLOSE**2).logical_or(gradient[x < 0] == 0).all()
        return torch.where((x < 0) | (x > 1), outside, gradient)


def upper(x):
    return torch.where(x > 1, 1 + 0.01 * (x - 1), x.clamp(0, 1))


def normed(x):
    return F.rms_norm(x, x.shape[-1:], eps=1e-5)


def divergence(logits, target):
    return F.kl_div(logits.log_softmax(-1), target.log_softmax(-1), log_target=True, reduction="sum")


def decomposition_inputs():
    """Return a target gelu(x w1) w2, with components v u of both matrices, and a network of one matrix that gives the
    importances.
    """
    rows = (BATCH, SEQ)
    inputs = {"x": 2 * drawn("decomposed x", *rows, WIDTHS[0]),
              "network": 1.5 * drawn("decomposed network", sum(WIDTHS[:2]), sum(COMPONENTS))}
    for i, count in enumerate(COMPONENTS):
        inputs |= {f"v{i}": drawn(f"v{i}", WIDTHS[i], count), f"u{i}": drawn(f"u{i}", count, WIDTHS[i + 1]),
                   f"w{i}": drawn(f"w{i}", WIDTHS[i], WIDTHS[i + 1])}
        for name, shape in {"mask": (*rows, count), "delta": rows}.items():
            inputs[f"{name}{i}"] = (drawn(f"{name}{i}", *shape) + 1) / 2
            inputs[f"adverse_{name}{i}"] = (drawn(f"adverse {name}{i}", *shape) + 1) / 2
    return inputs


LEARNT = ["network", "v0", "u0", "v1", "u1", "adverse_mask0", "adverse_mask1", "adverse_delta0", "adverse_delta1"]


def parts_of_decomposition(x):
    """Return each loss's numerator. `squares` and `divergence` mask one matrix at a time, `adversarial` both."""
    hidden = F.gelu(x["x"] @ x["w0"])
    target = hidden @ x["w1"]
    logits = torch.cat([normed(x["x"]), normed(hidden)], -1) @ x["network"]
    assert (logits.abs() > CLOSE).all() and ((logits - 1).abs() > CLOSE).all()
    assert (logits < 0).any() and (logits > 1).any() and ((logits > 0) & (logits < 1)).any()
    kept = Lower.apply(logits).split(COMPONENTS, -1)
    sums = ((upper(logits) + EPSILON) ** POWER).sum((0, 1))

    def masked(i, value, kind):
        mask = kept[i] + (1 - kept[i]) * x[f"{kind}mask{i}"]
        rest = value @ (x[f"w{i}"] - x[f"v{i}"] @ x[f"u{i}"])
        return value @ x[f"v{i}"] * mask @ x[f"u{i}"] + x[f"{kind}delta{i}"].unsqueeze(-1) * rest

    return {
        "faithfulness": sum((x[f"w{i}"] - x[f"v{i}"] @ x[f"u{i}"]).square().sum() for i in range(2)),
        "squares": (F.gelu(masked(0, x["x"], "")) @ x["w1"] - target).square().sum(),
        "divergence": divergence(masked(1, hidden, ""), target),
        "sparsity": (sums * (1 + BETA * torch.log2(1 + sums))).sum(),
        "adversarial": divergence(masked(1, F.gelu(masked(0, x["x"], "adverse_")), "adverse_"), target),
    }


def decomposition():
    """Run every loss alone, and their weighted total, whose gradient before `lower` is not the sum of the parts'
    gradients.
    """
    inputs, out = decomposition_inputs(), {}
    for name in [*PARTS, "total"]:
        x = {key: torch.tensor(value, requires_grad=key in LEARNT) for key, value in inputs.items()}
        parts = parts_of_decomposition(x)
        loss = sum(PARTS[part] * parts[part] for part in PARTS) if name == "total" else parts[name]
        loss.backward()
        out[name] = loss.detach().numpy()
        out |= {f"{name}.gradient.{key}": x[key].grad.numpy() for key in LEARNT if x[key].grad is not None}
    sum_of_parts = sum(PARTS[part] * out.get(f"{part}.gradient.network", 0) for part in PARTS)
    assert abs(sum_of_parts - out["total.gradient.network"]).max() > 1e-4 * abs(sum_of_parts).max()
    return inputs | out


# ---- small operations ----

SMALL = (5, 6, 4)


def small_inputs():
    """Return inputs: `positive` is where logarithms and roots are defined, `share` is between 0 and 1; `x` has a 0, the kink of relu; in `tied` a
    row's largest number occurs more than once.
    """
    inputs = {"x": 3 * drawn("small x", *SMALL), "other": 2 * drawn("small other", *SMALL),
              "positive": 2.5 + 2 * drawn("small positive", *SMALL), "row": 2 * drawn("small row", SMALL[-1]),
              "bias": 2 * drawn("small bias", SMALL[-1]), "one": drawn("small one", 1),
              "share": 0.5 + 0.5 * drawn("small share", *SMALL)}
    inputs["x"][1, 2, 3] = 0
    inputs["tied"] = np.round(2 * inputs["x"]) / 2
    return inputs


SMALL_OPERATIONS = {
    "relu": (F.relu, "x"),
    "tanh": (torch.tanh, "x"),
    "sigmoid": (torch.sigmoid, "x"),
    "exp": (torch.exp, "x"),
    "ln": (torch.log, "positive"),
    "sqrt": (torch.sqrt, "positive"),
    "add_row": (torch.add, "x", "row"),
    **{f"sum_over.{d}": (lambda x, d=d: x.sum(d), "x") for d in range(3)},
    **{f"mean_over.{d}": (lambda x, d=d: x.mean(d), "x") for d in range(3)},
    **{f"max_over.{d}": (lambda x, d=d: x.max(d).values, "tied") for d in range(3)},
    "norm_over.0": (lambda x: x.norm(dim=0), "x"),
    "norm_over.2": (lambda x: x.norm(dim=2), "x"),
    "scale_by": (torch.mul, "x", "one"),
    "concat_along.0": (lambda a, b: torch.cat([a, b], 0), "x", "other"),
    "concat_along.1": (lambda a, b: torch.cat([a, b], 1), "x", "other"),
    "concat_along.2": (lambda a, b: torch.cat([a, b], 2), "x", "other"),
    "slice_along.0": (lambda x: x[1:4], "x"),
    "slice_along.1": (lambda x: x[:, 2:5], "x"),
    "slice_along.2": (lambda x: x[..., 1:3], "x"),
    "transpose.01": (lambda x: x.transpose(0, 1), "x"),
    "transpose.02": (lambda x: x.transpose(0, 2), "x"),
    "transpose.21": (lambda x: x.transpose(2, 1), "x"),
    "reshape.join": (lambda x: x.reshape(5, 24), "x"),
    "reshape.split": (lambda x: x.reshape(5, 2, 3, 1, 4), "x"),
    "reshape.other": (lambda x: x.reshape(3, 8, 5), "x"),
    "layer_norm": (lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, 1e-5), "x", "row", "bias"),
    "dropout": (lambda x: x * torch.tensor(dropped("small dropout", 3, SMALL) >= 0.3) / (1 - 0.3), "x"),
    "binary_cross_entropy": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach(), reduction="sum"), "x", "share"),
    "squared_error": (lambda a, b: F.mse_loss(a, b, reduction="sum"), "x", "other"),
}


def dropped(name, step, shape):
    """Return the random numbers of dropout, each sample's own (tensor.h, ad_array_uniform)."""
    of_sample = math.prod(shape[1:])
    return np.array([uniform(7, name, step, sample, of_sample) for sample in range(shape[0])]).reshape(shape)


def small():
    """Return for each operation its result, and the gradients of its operands for a given gradient of the result (of a
    loss: 1).
    """
    inputs = small_inputs()
    out = dict(inputs)
    for name, (operation, *operands) in SMALL_OPERATIONS.items():
        x = {key: torch.tensor(inputs[key], requires_grad=True) for key in operands}
        value = operation(*x.values())
        slope = 2 * drawn(f"small {name}", *value.shape) if value.ndim else np.ones(())
        (value * torch.tensor(slope)).sum().backward()
        out |= {f"{name}.out": value.detach().numpy()} | ({f"{name}.slope": slope} if value.ndim else {})
        out |= {f"{name}.gradient.{key}": x[key].grad.numpy() for key in operands if x[key].grad is not None}
    return out


# ---- files ----

def write(name, tensors):
    tensors = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    save_file(tensors, FOLDER / f"{name}.safetensors", {"torch": torch.__version__.split("+")[0]})
    print(f"{name}: " + ", ".join(f"{key} to {abs(value).max():.4g}" for key, value in tensors.items()))


def main():
    prepare()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    write("attention", attention(attention_inputs("attention", 4), 4))
    write("attention-high", attention(high_attention_inputs("attention high"), 16))
    write("attention-all", attention(attention_inputs("attention all", 4), 4, is_causal=False))
    write("attention-all-high", attention(high_attention_inputs("attention all high"), 16, is_causal=False))
    write("attention-all-one", attention(attention_inputs("attention all one", 4, seq=1), 4, is_causal=False))
    for name, logits in losses():
        write(name, loss(name, logits))
    for name, tensors in routers():
        write(name, tensors)
    write("decomposition", decomposition())
    write("small", small())


if __name__ == "__main__":
    main()
