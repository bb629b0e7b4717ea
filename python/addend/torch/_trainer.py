"""Watches steps of Transformers' Trainer. Imports transformers only once a trainer is given, which has loaded it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from addend.torch import _meshes
from addend.torch._options import WatchOptions, need_options
from addend.torch._watch import watch

if TYPE_CHECKING:
    from typing_extensions import Unpack

    import addend


class _Steps:
    """The watched steps of one trainer: a watch begins with the step and ends before gradients are clipped."""

    def __init__(self, trainer: Any, every: int, options: WatchOptions):
        self.report: addend.DiffReport | None = None
        self._trainer, self._every, self._options = trainer, every, options
        self._running: watch | None = None
        self._replaced: list[tuple[Any, str]] = []

    def begin(self, step: int) -> None:
        if self._every > 1 and step % self._every != 1:
            return
        self._running = watch(self._trainer.model_wrapped, **self._options)
        self._running.__enter__()
        self._end_before(self._trainer, "_clip_grad_norm")
        self._end_before(self._trainer.accelerator, "clip_grad_norm_")

    def _end_before(self, owner: Any, name: str) -> None:
        """Makes the next call of the method `owner.name` end the watch first, if this version of the owner has it."""
        method = getattr(owner, name, None)
        if method is None or name in vars(owner):
            return

        def call(*arguments: Any, **named: Any) -> Any:
            self.end()
            return method(*arguments, **named)

        setattr(owner, name, call)
        self._replaced.append((owner, name))

    def end(self) -> None:
        """Ends the watch; does nothing if no step is being watched."""
        for owner, name in self._replaced:
            delattr(owner, name)
        self._replaced.clear()
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)
            self.report = running.report


def watch_trainer(trainer: Any, *misplaced: NoReturn, **options: Unpack[WatchOptions]) -> Any:
    """Watches steps of a transformers.Trainer, from the first forward to synchronised gradients, before they are
    clipped. The first of them is the second step of the training: in the first step of LoRA half of the gradients are
    zero.

    Args:
        trainer: the transformers.Trainer.
        **options: those of `watch`. Of `every`, the default is 1000 here. With `raises=True` a wrong gradient ends the
            training.

    Returns:
        The callback that was added to the trainer; its `report` is the report on the last watched step.

    Raises:
        TypeError: an option came by position, or does not exist.
        ValueError: `every` is less than 1.

    Example:
        trainer = transformers.Trainer(...)
        addend.torch.watch_trainer(trainer, every=1000, show=True)
        trainer.train()
    """
    need_options("watch_trainer", "the trainer", misplaced, options, WatchOptions)
    from transformers import TrainerCallback

    every = options.pop("every", 1000)
    if every < 1:
        raise ValueError(f"every={every} must be 1 or more: one step in `every` is watched")
    _meshes.need_device_mesh(options.get("mesh"))
    steps = _Steps(trainer, every, options)

    class Watch(TrainerCallback):
        """The callback that begins and ends the watches."""

        @property
        def report(self) -> addend.DiffReport | None:
            """The report on the last watched step; None: no step was watched yet."""
            return steps.report

        def on_step_begin(self, args: Any, state: Any, control: Any, **reported: Any) -> None:
            """Begins a watch before the step's first forward."""
            steps.begin(state.global_step)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **reported: Any) -> None:
            """Ends the watch, if gradient clipping did not end it before."""
            steps.end()

    callback = Watch()
    trainer.add_callback(callback)
    return callback
