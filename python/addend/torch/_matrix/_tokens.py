"""Batches of token identifiers that hide no mistake: ranks have unequal counts, one of them padding, and every token
has a weight of its own in the loss."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence

import torch
import torch.nn.functional as F

Batch = Dict[str, torch.Tensor]
_LENGTH = 9  # tokens of a row
_FIRST = 5  # smaller identifiers are special tokens
_SEED = 5


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The batches of a job whose ranks along `axes` each have rows of their own."""

    vocabulary: int
    axes: Sequence[str]
    microbatches: int

    def _rows(self, generator: torch.Generator, count: int, padding: int) -> Batch:
        """`count` rows, [count, length]; the last row ends with `padding` tokens that do not count."""
        ids = torch.randint(_FIRST, self.vocabulary, (count, _LENGTH), generator=generator)
        weights = torch.rand(count, _LENGTH - 1, generator=generator, dtype=torch.float64) + 0.1
        mask = torch.ones(count, _LENGTH, dtype=torch.long)
        if padding:
            ids[-1, -padding:] = 0
            mask[-1, -padding:] = 0
            weights[-1, -padding:] = 0
        return {"input_ids": ids, "attention_mask": mask, "weights": weights}

    def batches(self, rank: Optional[int], mesh: Any) -> List[Batch]:
        """A rank's microbatches, or those of all ranks together if `rank` is None."""
        sizes = [mesh.size(axis) for axis in self.axes]
        ranks = 1
        for size in sizes:
            ranks *= size
        generator = torch.Generator().manual_seed(_SEED)
        rows = [
            [self._rows(generator, 1 + (r + k) % 2 + (r == 0), 3 if r == k == 0 else 0) for r in range(ranks)]
            for k in range(self.microbatches)
        ]
        if rank is None:
            return [{name: torch.cat([row[name] for row in some]) for name in some[0]} for some in rows]
        own = 0
        for axis, size in zip(self.axes, sizes):
            own = own * size + mesh.get_local_rank(axis)
        return [some[own] for some in rows]


def token_loss(model: Any, batch: Batch) -> Any:
    """The weighted cross entropy of the next token, summed, and the sum of the weights."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
    return (each * batch["weights"]).sum(), float(batch["weights"].sum())
