"""Plants a mistake in a job's sums, to show that a watch of it bites."""
from __future__ import annotations

import torch.distributed as dist

from addend.torch import _parameters

KINDS = {
    "average": "every gradient is divided by the number of data ranks once more",
    "skip": "the last rank's addend of one parameter is left out",
    "double": "the last rank's addend of one parameter is counted twice",
}


class sabotage:
    """While it lasts every backward has the mistake. What ranks bring is right, what is summed is not: hooks behind those of
    `watch` change the gradient on its way into the sum, so it works for every wrapper, and for none."""

    def __init__(self, model, kind):
        if kind not in KINDS:
            raise ValueError(f'"{kind}" is no mistake to plant: {", ".join(KINDS)}')
        self._model, self._kind = model, kind
        self._victim = None
        self._handles = []

    def __enter__(self):
        watched = _parameters.find(self._model)
        for entry in watched:
            self._handles.append(entry.used.register_hook(self._change(entry)))
        return self

    def __exit__(self, kind, error, trace):
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        return False

    def _change(self, entry):
        world = dist.get_world_size()
        if self._kind == "average":
            count = 1
            for ranks in entry.data or [range(world)]:
                count *= len(ranks)
            return lambda gradient: gradient / count
        if dist.get_rank() != world - 1:
            return lambda gradient: None
        return lambda gradient: self._scaled(entry.name, gradient)

    def _scaled(self, name, gradient):
        """Of the first parameter that gets a gradient, in this backward and all later ones."""
        if self._victim is None:
            self._victim = name
        if name != self._victim:
            return None
        return gradient * (0 if self._kind == "skip" else 2)
