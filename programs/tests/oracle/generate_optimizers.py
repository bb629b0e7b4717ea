"""Make the fixtures *-muon, gpt-muon-rates and gpt-frozen anew: groups of parameters that different optimizers update,
Muon among them, and parameters that are frozen.

This program is written from the documents alone: the manual page (keys of `optimizer.muon` and `groups`), optim.h
(Muon's options, what a matrix is, what decays), and what generate.py and generate_moe.py name. Updates are by
torch.optim's Muon, AdamW and SGD. The fixtures have weights and states after each step, so that a step can be repeated
from PyTorch's own weights: Muon's iteration enlarges rounding errors from step to step.

torch.optim.Muon rounds a direction to bf16 before it is orthogonalised. Here that cast is lifted (`lift_cast`), and
everything is computed in f64.
"""
import fnmatch
import inspect
import sys

import numpy as np
import torch
import torch.optim._muon as torch_muon
from draws import random_bits, xxh64
from generate import FIXTURES, GRADIENTS_OF, STEPS, Gpt, clip, learning_rate, norm_of, prepare, windows_of, write_recipe
from generate_moe import Moe
from safetensors.numpy import save_file
from torch import nn

SEQ, WINDOWS, VOCABULARY = 11, 61, 29
AT = "programs/tests/oracle/fixtures"


def data_of(name):
    return {"tokens": [f"{AT}/{name}/tokens.npy"], "mask": [f"{AT}/{name}/mask.npy"], "seq": SEQ}


CASES = {
    # Every default of Muon. All matrices have more rows than columns or fewer; there are two of each shape and more.
    "gpt-muon": {
        "model": {"kind": "gpt", "layers": 2, "d_model": 8, "heads": 2, "kv_heads": 1, "head_dim": 6, "d_hidden": 11,
                  "vocabulary": VOCABULARY},
        "data": data_of("gpt-muon"),
        "train": {"global_batch": 5, "microbatches": 2, "steps": STEPS, "lr": 2e-2, "warmup": 3, "clip": 0.5, "beta1": 0.8,
                  "beta2": 0.9, "weight_decay": 0.1, "seed": 61},
        "optimizer": {"kind": "muon"},
        "groups": [{"match": "embedding.*", "kind": "adamw", "lr": 5e-3, "decay": 0.05},
                   {"match": "*norm*", "kind": "adamw", "lr": 3e-3}],
    },
    # No key of Muon has its default. Directions are both longer and shorter than epsilon.
    "gpt-muon-rates": {
        "model": {"kind": "gpt", "layers": 1, "d_model": 8, "heads": 4, "kv_heads": 2, "head_dim": 6, "d_hidden": 13,
                  "vocabulary": VOCABULARY, "tied": False, "bias": "qkv"},
        "data": data_of("gpt-muon-rates"),
        "train": {"global_batch": 4, "microbatches": 3, "steps": STEPS, "lr": 5e-2, "final_lr_fraction": 0.3, "clip": 0.3,
                  "weight_decay": 0.2, "seed": 62},
        "optimizer": {"kind": "muon", "momentum": 0.6, "nesterov": True,
                      "muon": {"momentum": 0.7, "nesterov": False, "a": 3, "b": -3.2, "c": 1.2, "steps": 3, "epsilon": 0.03,
                               "adjust_lr": "match_rms_adamw"}},
        # The first pattern that matches counts: the norm of attention is in the first group, with its decay.
        "groups": [{"match": "*norm.attn", "kind": "sgd", "lr": 0.1, "decay": 0.3}, {"match": "*norm*", "kind": "sgd"},
                   {"match": "*_bias", "kind": "adamw", "lr": 1e-2}, {"match": "embedding.*", "kind": "sgd", "lr": 0.5}],
    },
    # Each expert is a matrix of its own; more of them than ranks divide.
    "moe-muon": {
        "model": {"kind": "moe", "layers": 1, "d_model": 8, "heads": 2, "kv_heads": 2, "head_dim": 6, "experts": 5, "top_k": 2,
                  "expert_hidden": 5, "vocabulary": VOCABULARY, "balance_loss": 0.2, "balance_rate": 2**-5},
        "data": data_of("moe-muon"),
        "train": {"global_batch": 5, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "clip": 0.5, "weight_decay": 0.1, "seed": 63},
        "optimizer": {"kind": "muon", "muon": {"adjust_lr": "spectral_unclamped", "momentum": 0.9}},
        "groups": [{"match": "embedding.*", "kind": "adamw", "lr": 5e-3}, {"match": "*.router", "kind": "adamw", "lr": 2e-3},
                   {"match": "*norm*", "kind": "adamw"}],
    },
    # The embedding and the first block are frozen, and a norm behind what trains.
    "gpt-frozen": {
        "model": {"kind": "gpt", "layers": 2, "d_model": 8, "heads": 2, "d_hidden": 11, "vocabulary": VOCABULARY, "tied": False},
        "data": data_of("gpt-frozen"),
        "train": {"global_batch": 5, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "clip": 0.3, "weight_decay": 0.1, "seed": 64},
        "groups": [{"match": "embedding.*", "frozen": True}, {"match": "blocks.0.*", "frozen": True},
                   {"match": "final.*", "frozen": True}, {"match": "*norm*", "lr": 5e-3, "decay": 0.2}],
    },
}

MUON = {"momentum": 0.95, "nesterov": True, "a": 3.4445, "b": -4.7750, "c": 2.0315, "steps": 5, "epsilon": 1e-7,
        "adjust_lr": "original"}  # the manual page's defaults
STATES = {"adamw": {"exp_avg": "first_moment", "exp_avg_sq": "second_moment"}, "sgd": {"momentum_buffer": "momentum"},
          "muon": {"momentum_buffer": "average_gradient"}}


# ---- torch.optim.Muon without its cast to bf16 ----

AS_IT_IS = torch_muon._zeropower_via_newtonschulz


def lift_cast():
    """Make Muon orthogonalise in the dtype of the gradient. Its step finds the function by name in its module."""
    source, cast = inspect.getsource(AS_IT_IS), "grad.to(dtype=torch.bfloat16, copy=True)"
    assert source.count(cast) == 1, "another version of torch.optim.Muon: read where it rounds"
    exec(source.replace(cast, "grad.to(dtype=grad.dtype, copy=True)"), torch_muon.__dict__)


def moved_by_muon(value, gradient):
    """Return what a step with lr 1 and no decay subtracts."""
    p = nn.Parameter(value.clone())
    p.grad = gradient
    torch.optim.Muon([p], lr=1.0, weight_decay=0, momentum=0, nesterov=False).step()
    return value - p.detach()


def polynomial_of(matrix):
    """Return the matrix with each singular value replaced by what the iteration makes of it."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    for _ in range(MUON["steps"]):
        s = MUON["a"] * s + MUON["b"] * s**3 + MUON["c"] * s**5
    return u @ torch.diag(s) @ v


def check_lifted():
    """Check that the lifted step is that of f64, and that the one as it is differs from it by bf16's rounding."""
    stream = xxh64(b"oracle muon")
    drawn = [random_bits(5, stream, i) * 2.0**-64 - 0.5 for i in range(30)]
    value, gradient = torch.tensor(drawn, dtype=torch.float64).view(2, 3, 5)
    lifted = torch_muon._zeropower_via_newtonschulz
    found = moved_by_muon(value, gradient)
    torch_muon._zeropower_via_newtonschulz = AS_IT_IS
    as_it_is = moved_by_muon(value, gradient)
    torch_muon._zeropower_via_newtonschulz = lifted
    rounding = (found - as_it_is).abs().max().item()
    assert (found - polynomial_of(gradient)).abs().max() < 1e-13
    assert 1e-4 < rounding < 5e-2, rounding


# ---- tokens ----

def tokens_of(name):
    """Return tokens, each of which follows from the one before it and a draw, and which of them count as targets."""
    stream = xxh64(f"oracle tokens {name}".encode())
    tokens, mask = [1], [1]
    for i in range(SEQ * WINDOWS):
        bits = random_bits(7, stream, i)
        tokens.append((5 * tokens[-1] + bits % 3) % VOCABULARY)
        mask.append(int((bits >> 8) % (2 + i // SEQ % 5) > 0))
    return np.array(tokens, np.uint16), np.array(mask, np.uint8)


class OfTokens:
    """A program whose samples are windows of token files."""
    def __init__(self, name):
        super().__init__(CASES[name])
        self.tokens, self.mask = tokens_of(name)
        self.groups = CASES[name]["groups"]

    def batch(self, step, validation=False):
        return windows_of(self.tokens, self.mask, SEQ, self.train, step)


class GptOfTokens(OfTokens, Gpt):
    pass


class MoeOfTokens(OfTokens, Moe):
    pass


# ---- groups ----

def group_of(program, name):
    """Return the first group whose pattern matches the name, completed by what it does not say."""
    train = program.train
    found = next((group for group in program.groups if fnmatch.fnmatchcase(name, group["match"])), {})
    return {"kind": program.optimizer["kind"], "lr": train["lr"], "frozen": False} | found


class Leaves:
    """A parameter as torch.optim is given it: matrices of Muon are [out, in], each expert one of its own."""
    def __init__(self, program, name, value):
        self.group, self.ndim = group_of(program, name), value.ndim
        self.is_frozen, self.kind = self.group["frozen"], self.group["kind"]
        own = program.train["weight_decay"] if program.decays(name, value) else 0
        self.decay = float(self.group.get("decay", own))
        values = list(value) if self.kind == "muon" and value.ndim == 3 else [value]
        turned = [each.T if self.kind == "muon" else each for each in values]
        self.list = [torch.tensor(np.ascontiguousarray(each), requires_grad=not self.is_frozen) for each in turned]

    def joined(self, each):
        """Return the leaves' tensors as the parameter's [in, out] or [experts, in, out]."""
        turned = [tensor.T if self.kind == "muon" else tensor for tensor in each]
        return torch.stack(turned) if self.kind == "muon" and self.ndim == 3 else turned[0]

    def array(self, each):
        return np.array(self.joined([tensor.detach() for tensor in each]).numpy(), order="C")


def optimizer_of(program, leaves):
    """Make the optimizer of one parameter."""
    train, sgd, muon = program.train, program.optimizer, MUON | program.optimizer.get("muon", {})
    if leaves.kind == "sgd":
        return torch.optim.SGD(leaves.list, lr=0.0, momentum=sgd["momentum"], nesterov=sgd["nesterov"],
                               weight_decay=leaves.decay, foreach=False)
    if leaves.kind == "adamw":
        return torch.optim.AdamW(leaves.list, lr=0.0, betas=(train["beta1"], train["beta2"]), eps=train["epsilon"],
                                 weight_decay=leaves.decay, foreach=False)
    return torch.optim.Muon(leaves.list, lr=0.0, weight_decay=leaves.decay, momentum=muon["momentum"],
                            nesterov=muon["nesterov"], ns_coefficients=(muon["a"], muon["b"], muon["c"]), eps=muon["epsilon"],
                            ns_steps=muon["steps"], adjust_lr_fn=muon["adjust_lr"])


# ---- training ----

class Training:
    """All parameters of a program, those that train with their optimizers."""
    def __init__(self, program, initial):
        self.program = program
        self.all = {name: Leaves(program, name, value) for name, value in initial.items()}
        self.trained = {name: leaves for name, leaves in self.all.items() if not leaves.is_frozen}
        self.optimizers = {name: optimizer_of(program, leaves) for name, leaves in self.trained.items()}

    def differentiate(self, batch):
        """Return the loss, after its gradients are in the leaves."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss = sum(self.program.losses({name: leaves.joined(leaves.list) for name, leaves in self.all.items()}, **batch))
        loss.backward()
        return loss.item()

    def update(self, step):
        """Clip and step. Return the norm before clipping."""
        every = [leaf for leaves in self.trained.values() for leaf in leaves.list]
        norm = norm_of(every)
        clip(every, self.program.train["clip"])
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(self.program.train | {"lr": self.trained[name].group["lr"]}, step)
            optimizer.step()
        return norm

    def gradients(self, step):
        return {f"gradient.{step}:{name}": leaves.array([leaf.grad for leaf in leaves.list])
                for name, leaves in self.trained.items()}

    def values(self, step):
        """Return weights and states after `step` steps."""
        out = {f"weight.{step}:{name}": leaves.array(leaves.list) for name, leaves in self.all.items()
               if not leaves.is_frozen or step == STEPS}
        for name, leaves in self.trained.items():
            kept = [self.optimizers[name].state[leaf] for leaf in leaves.list]
            out |= {f"state.{step}:{own}.{name}": leaves.array([state[key] for state in kept])
                    for key, own in STATES[leaves.kind].items() if kept[0].get(key) is not None}
        return out


def take_step(training, batch, step, out):
    program = training.program
    loss = training.differentiate(batch)
    if step in GRADIENTS_OF:
        out |= training.gradients(step)
    norm = training.update(step)
    out |= training.values(step + 1)
    return {"loss": loss, "norm": norm, "lr": learning_rate(program.train, step)} | program.after_step()


def rounded_step(name, initial):
    """Return the weights of Muon's matrices after a step of torch.optim.Muon as it is, with its cast to bf16."""
    lifted, torch_muon._zeropower_via_newtonschulz = torch_muon._zeropower_via_newtonschulz, AS_IT_IS
    program = program_of(name)
    training = Training(program, initial)
    training.differentiate(program.batch(0))
    training.update(0)
    torch_muon._zeropower_via_newtonschulz = lifted
    return {f"rounded.1:{own}": leaves.array(leaves.list) for own, leaves in training.all.items() if leaves.kind == "muon"}


def train_case(program, initial):
    training = Training(program, initial)
    batches = [program.batch(step) for step in range(STEPS)]
    out = {name: np.stack([each[name] for each in batches]) for name in batches[0]}
    out["count"] = np.array([program.counted(batch["targets"]) for batch in batches])
    seen = [take_step(training, batches[step], step, out) for step in range(STEPS)]
    if all(leaves.kind != "muon" for leaves in training.trained.values()):  # then steps are not restarted
        out = {key: value for key, value in out.items() if key.split(".")[0] not in ("weight", "state")} | {
            key: value for key, value in out.items() if key.startswith(f"weight.{STEPS}:")}
    return out | {name: np.array([each[name] for each in seen]) for name in seen[0]}


# ---- files ----

def program_of(name):
    return (MoeOfTokens if name.startswith("moe") else GptOfTokens)(name)


def write_case(name):
    folder, program = FIXTURES / name, program_of(name)
    folder.mkdir(exist_ok=True)
    initial = program.initial()
    write_recipe(name, CASES[name], program.mesh, folder)
    np.save(folder / "tokens.npy", program.tokens)
    np.save(folder / "mask.npy", program.mask)
    save_file(initial, folder / "weights.safetensors")
    expected = train_case(program, initial)
    if name == "gpt-muon":
        expected |= rounded_step(name, initial)
    save_file(expected, folder / "expected.safetensors", {"torch": torch.__version__.split("+")[0]})
    print(f"{name}: loss {expected['loss'][0]:.6f} to {expected['loss'][-1]:.6f}, norm {min(expected['norm']):.3g} to "
          f"{max(expected['norm']):.3g}, counts {min(expected['count'])} to {max(expected['count'])}")


def main():
    prepare()
    lift_cast()
    check_lifted()
    for name in sys.argv[1:] or CASES:
        write_case(name)


if __name__ == "__main__":
    main()
