"""Plants a mistake in a job's sums, to show that a watch of it bites."""
from __future__ import annotations

import math

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from addend.torch import _parameters

KINDS = ("average", "skip", "double")


class sabotage:
    """While it lasts every backward has a mistake, in jobs with any wrapper or none. What ranks bring is right, what is summed
    is not: hooks behind those of `watch` change the gradient on its way into the sum.

    "average": every gradient is divided by the number of data ranks once more
    "skip": the last rank's addend of one parameter is left out
    "double": the last rank's addend of one parameter is counted twice
    """

    def __init__(self, model, kind):
        if kind not in KINDS:
            raise ValueError(f'"{kind}" is no mistake to plant: {", ".join(KINDS)}')
        if not dist.is_initialized() or dist.get_world_size() == 1:
            raise ValueError("one rank alone sums nothing: there is no sum to plant a mistake in")
        self._model, self._kind = model, kind
        self._victim = None
        self._handles: list = []

    def __enter__(self):
        for entry in _parameters.find(self._model):
            change = self._divide if self._kind == "average" else self._change_one
            self._handles.append(entry.used.register_hook(lambda gradient, entry=entry, change=change: change(entry, gradient)))
        return self

    def __exit__(self, kind, error, trace):
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        return False

    def _divide(self, entry, gradient):
        ranks = math.prod(len(ranks) for ranks in entry.data) if entry.data else dist.get_world_size()
        return _times(gradient, 1 / ranks)

    def _change_one(self, entry, gradient):
        """The first parameter that gets a gradient, in this backward and in all later ones."""
        if dist.get_rank() != dist.get_world_size() - 1:
            return None
        self._victim = self._victim or entry.name
        if entry.name != self._victim:
            return None
        return _times(gradient, 0 if self._kind == "skip" else 2)


def _times(gradient, factor):
    """Without communication, whatever the placements."""
    if not isinstance(gradient, DTensor):
        return gradient * factor
    part = gradient.to_local() * factor
    return DTensor.from_local(part, gradient.device_mesh, gradient.placements, run_check=False, shape=gradient.shape, stride=gradient.stride())
