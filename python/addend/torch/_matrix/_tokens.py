"""Batches of token identifiers that hide no mistake: ranks have unequal counts, one of them padding, and every token
has its own weight in the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable

import torch
import torch.nn.functional as F

from addend.torch._matrix._shrink import FIRST

Batch = dict[str, torch.Tensor]
_LENGTH = 9  # tokens of a row
_SEED = 5


def no_more(ids: torch.Tensor, generator: torch.Generator) -> Batch:
    """No inputs beside the tokens."""
    return {}


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The batches of a job whose ranks along `axes` each have different rows."""

    vocabulary: int
    axes: Sequence[str]
    microbatches: int
    more: Callable[[torch.Tensor, torch.Generator], Batch] = no_more  # the model's other inputs, from the tokens
    places: int = 0  # tokens at the begin of a row that represent an image
    image: int = 0  # their identifier
    start: int = 1  # the identifier before them
    padding: int = 3  # tokens that pad the last row of the first rank's first microbatch

    def rows(self, generator: torch.Generator, count: int, padding: int) -> Batch:
        """`count` rows, [count, length]; the last row ends with `padding` tokens that do not count."""
        length = _LENGTH + (self.places + 1 if self.places else 0)
        ids = torch.randint(FIRST, self.vocabulary, (count, length), generator=generator)
        if self.places:
            ids[:, 0], ids[:, 1 : 1 + self.places] = self.start, self.image
        weights = torch.rand(count, length - 1, generator=generator, dtype=torch.float64) + 0.1
        mask = torch.ones(count, length, dtype=torch.long)
        if padding:
            ids[-1, -padding:] = 0
            mask[-1, -padding:] = 0
            weights[-1, -padding:] = 0
        return {"input_ids": ids, "attention_mask": mask, "weights": weights, **self.more(ids, generator)}

    def batches(self, rank: int | None, mesh: Any) -> list[Batch]:
        """A rank's microbatches, or those of all ranks together if `rank` is None."""
        sizes = [mesh.size(axis) for axis in self.axes]
        ranks = 1
        for size in sizes:
            ranks *= size
        generator = torch.Generator().manual_seed(_SEED)
        rows = [
            [self.rows(generator, 1 + (r + k) % 2 + (r == 0), self.padding if r == k == 0 else 0) for r in range(ranks)]
            for k in range(self.microbatches)
        ]
        if rank is None:
            return [{name: torch.cat([row[name] for row in some]) for name in some[0]} for some in rows]
        own = 0
        for axis, size in zip(self.axes, sizes):
            own = own * size + mesh.get_local_rank(axis)
        return [some[own] for some in rows]


def token_loss(model: Any, batch: Batch) -> Any:
    """The weighted cross entropy of the next token, or of a model without a head the weighted distance of its hidden
    states from fixed ones, summed; and the sum of the weights."""
    dtype = next(model.parameters()).dtype
    takes = {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}
    del takes["weights"]
    out = model(**takes)
    if getattr(out, "logits", None) is not None:
        each = F.cross_entropy(out.logits[:, :-1].transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
    else:
        hidden = out.last_hidden_state
        aim = torch.sin(torch.arange(hidden.shape[-1], dtype=hidden.dtype))
        each = (hidden[:, :-1] - aim).square().mean(-1)
    return (each * batch["weights"]).sum(), float(batch["weights"].sum())
