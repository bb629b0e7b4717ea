"""Make the fixtures moe-* anew: mixtures of experts with balancing loss, balancing bias and limited capacity, in the
way in which generate.py makes those of gpt.

This program is written from the documents alone: programs/moe/moe.h (ad_moe_options: formulas, names,
shapes, capacity, bias, balancing loss), programs/docs/moe.md ("Balance", "A limit"), the manual page (the keys' defaults; in
metrics.jsonl tokens, dropped and imbalance), and what generate.py names. Choices are torch.topk's, which orders equal
scores as it likes: so no two scores may be nearly equal.
"""
import math
import sys

import torch
import torch.nn.functional as F

from generate import CLOSE, STEPS, TEXT, Gpt, cross_entropy_of, embedding_of, mlp, mlp_shapes, prepare, write_case

CASES = {
    # Every key that has a default keeps it, except for the order of scores: no shared expert, no balancing, no limit.
    # There are more experts than a microbatch has tokens.
    "moe-plain": {
        "model": {"kind": "moe", "layers": 1, "d_model": 8, "heads": 2, "experts": 13, "expert_hidden": 5,
                  "score_before_experts": True},
        "data": {"text": [f"{TEXT}/first.txt"], "seq": 12},
        "train": {"global_batch": 2, "microbatches": 2, "steps": STEPS, "lr": 1e-2},
    },
    # Microbatches count and route unequal numbers of tokens; the clip takes effect.
    "moe-softmax": {
        "model": {"kind": "moe", "layers": 2, "d_model": 12, "heads": 2, "experts": 5, "top_k": 2, "expert_hidden": 9,
                  "capacity": 0.9, "balance_loss": 0.3, "balance_rate": 2**-5},
        "data": {"text": [TEXT], "seq": 12, "valid": [1, 0.5, 0, 0.3, 0]},
        "train": {"global_batch": 7, "microbatches": 3, "steps": STEPS, "lr": 1e-2, "warmup": 3, "clip": 0.5,
                  "weight_decay": 0.1, "seed": 41},
    },
    # The first microbatch counts one token and the second none, but it still routes tokens, and its experts are
    # limited.
    "moe-sigmoid": {
        "model": {"kind": "moe", "layers": 2, "d_model": 12, "heads": 6, "kv_heads": 3, "experts": 7, "top_k": 3,
                  "expert_hidden": 8, "sigmoid": True, "score_before_experts": True, "capacity": 0.7, "balance_loss": 0.2,
                  "balance_rate": 2**-6},
        "data": {"text": [TEXT], "seq": 12, "valid": [0.1, 0, 1, 0.4]},
        "train": {"global_batch": 4, "microbatches": 3, "steps": STEPS, "lr": 1e-2, "clip": 0.7, "weight_decay": 0.2,
                  "seed": 42},
    },
    # Only attention has biases; the validation loss is limited as a step is, and has no balancing loss.
    "moe-shared": {
        "model": {"kind": "moe", "layers": 2, "d_model": 12, "heads": 2, "experts": 6, "top_k": 4, "expert_hidden": 7,
                  "shared_experts": 5, "sigmoid": True, "tied": False, "bias": True, "qk_norm": True, "capacity": 1,
                  "balance_loss": 0.5, "balance_rate": 2**-7},
        "data": {"text": [TEXT], "seq": 12, "valid": [0.25, 1, 0.7, 0.05], "validation": 0.1},
        "train": {"global_batch": 6, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "clip": 2, "weight_decay": 0.1, "seed": 43},
    },
    # The scores of three experts each are divided by their sum before a limit drops some; the other options are those
    # of Mixtral and Qwen3.
    "moe-normalised": {
        "model": {"kind": "moe", "layers": 2, "d_model": 10, "heads": 6, "kv_heads": 3, "head_dim": 4, "experts": 7, "top_k": 3,
                  "expert_hidden": 6, "normalised_scores": True, "tied": False, "vocabulary": 259, "bias": "qkv", "qk_norm": True,
                  "norm_epsilon": 0.01, "rotary_base": 40, "rotary_scaling": [4, 0.5, 2, 16], "capacity": 0.9,
                  "balance_loss": 0.3, "balance_rate": 2**-6},
        "data": {"text": [TEXT], "seq": 12, "valid": [1, 0.4, 0, 0.7]},
        "train": {"global_batch": 5, "microbatches": 2, "steps": STEPS, "lr": 1e-2, "weight_decay": 0.1, "seed": 44},
    },
    # The same with sigmoid scores, applied before the experts, beside a shared expert.
    "moe-normalised-sigmoid": {
        "model": {"kind": "moe", "layers": 1, "d_model": 12, "heads": 2, "head_dim": 4, "experts": 5, "top_k": 2,
                  "expert_hidden": 5, "shared_experts": 6, "sigmoid": True, "score_before_experts": True,
                  "normalised_scores": True, "vocabulary": 257, "bias": "attention", "norm_epsilon": 1e-3},
        "data": {"text": [TEXT], "seq": 12, "valid": [0.1, 0, 1, 0.4]},
        "train": {"global_batch": 4, "microbatches": 3, "steps": STEPS, "lr": 1e-2, "clip": 0.7, "seed": 45},
    },
}

DEFAULTS = {"top_k": 1, "shared_experts": 0, "sigmoid": False, "score_before_experts": False, "normalised_scores": False,
            "capacity": math.inf, "balance_loss": 0, "balance_rate": 0}  # the manual page's defaults


class Moe(Gpt):
    def __init__(self, recipe):
        super().__init__(recipe)
        self.model = DEFAULTS | self.model
        self.microbatches = self.train["microbatches"]
        self.bias = torch.zeros(self.model["layers"], self.model["experts"], dtype=torch.float64)

    def branch_shapes(self):
        model = self.model
        d, hidden, experts, shared = (model[key] for key in ("d_model", "expert_hidden", "experts", "shared_experts"))
        shapes = {"moe.router": (d, experts), "moe.gate": (experts, d, hidden), "moe.up": (experts, d, hidden),
                  "moe.down": (experts, hidden, d)}
        return shapes | (mlp_shapes("moe.shared", d, shared) if shared else {})

    def chosen(self, scores, block):
        """Choose experts [tokens, top_k] by score and bias; the bias has no gradient."""
        ranked = scores.detach() + self.bias[block]
        best = ranked.sort(descending=True).values
        k = self.model["top_k"]
        assert (best[:, k - 1] - best[:, k]).min() > CLOSE
        return ranked.topk(k).indices

    def experts(self, x, w, path, scores, chosen):
        """Run an expert on x [tokens, d_model]: it takes the first tokens that chose it, up to the limit."""
        model, y = self.model, torch.zeros_like(x)
        limit = math.ceil(min(chosen.numel(), model["capacity"] * chosen.numel() / model["experts"]))
        for e in range(model["experts"]):
            tokens = (chosen == e).any(-1).nonzero().flatten()
            self.dropped += max(0, len(tokens) - limit)
            tokens = tokens[:limit]
            score, rows = scores[tokens, e, None], x[tokens]
            rows = score * rows if model["score_before_experts"] else rows
            rows = (F.silu(rows @ w[f"{path}.gate"][e]) * (rows @ w[f"{path}.up"][e])) @ w[f"{path}.down"][e]
            y = y.index_add(0, tokens, rows if model["score_before_experts"] else score * rows)
        return y

    def moe(self, x, w, block):
        """The second branch: experts, with the balancing loss of Fedus, Zoph and Shazeer 2021 and the bias of Wang et
        al. 2024.
        """
        path, model, batch = f"blocks.{block}.moe", self.model, x
        x = x.flatten(0, 1)
        logits = x @ w[f"{path}.router"]
        shares = logits.softmax(-1)
        scores = logits.sigmoid() if model["sigmoid"] else shares
        chosen = self.chosen(scores, block)
        choices = chosen.flatten().bincount(minlength=model["experts"]).double()
        self.choices[block] += choices
        self.balances.append(model["experts"] * (choices / chosen.numel() * shares.mean(0)).sum())
        if model["normalised_scores"]:
            scores = scores / scores.gather(1, chosen).sum(-1, keepdim=True)
        y = self.experts(x, w, path, scores, chosen).view_as(batch)
        return y + mlp(batch, w, f"{path}.shared") if model["shared_experts"] else y

    def microbatch(self, w, tokens, targets):
        """Return the summed cross-entropy, and the balancing loss as the mean over blocks."""
        self.balances = []
        total = cross_entropy_of(self.model, w, embedding_of(w, tokens), targets, lambda x, block: self.moe(x, w, block))
        return total, sum(self.balances) / len(self.balances)

    def losses(self, w, tokens, targets):
        """Return the losses; the balancing loss has the weight of its microbatch's share of the counted tokens."""
        self.choices = torch.zeros_like(self.bias)
        self.dropped = 0
        count, self.cross_entropy, self.balance = (targets >= 0).sum().item(), 0, 0
        ends = [i * len(tokens) // self.microbatches for i in range(self.microbatches + 1)]
        for first, end in zip(ends, ends[1:]):
            total, balance = self.microbatch(w, tokens[first:end], targets[first:end])
            self.cross_entropy = self.cross_entropy + total / count
            self.balance = self.balance + balance * ((targets[first:end] >= 0).sum().item() / count)
        return [self.cross_entropy, self.model["balance_loss"] * self.balance]

    def after_step(self):
        even = self.choices.sum(-1, keepdim=True) / self.model["experts"]
        self.bias = self.bias + self.model["balance_rate"] * (even - self.choices).sign()
        numbers = {"loss.cross_entropy": self.cross_entropy.item(), "loss.balance": self.balance.item(),
                   "measured.dropped": self.dropped / self.choices.sum().item(),
                   "measured.imbalance": (self.choices / even).max().item()}
        for i in range(self.model["layers"]):
            numbers |= {f"measured.blocks.{i}.moe.tokens": self.choices[i].numpy(),
                        f"state:blocks.{i}.moe.bias": self.bias[i].numpy()}
        return numbers


def main():
    prepare()
    for name in sys.argv[1:] or CASES:
        write_case(name, CASES[name], Moe(CASES[name]))


if __name__ == "__main__":
    main()
