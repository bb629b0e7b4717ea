"""Parameters drawn anew, away from what they begin with: ones and zeros hide mistakes."""

from __future__ import annotations

import math

import torch
from torch import nn

_SEED = 7
_VECTOR = 0.3  # standard deviation of what is added to a vector's or scalar's initial values


def draw(model: nn.Module, only_trained: bool = False) -> None:
    """Draws matrices anew with the standard deviation that keeps a product's size, and adds noise to vectors and
    scalars, whose initial values may have a meaning (a decay, a scale). `only_trained`: frozen ones stay."""
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if only_trained and not parameter.requires_grad:
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.ndim >= 2:
                parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
            else:
                parameter.add_(noise * _VECTOR)
