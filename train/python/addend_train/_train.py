"""`addend.train`: trains a recipe on ranks of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from addend._documents import read
from addend._errors import InvalidError
from addend._library import path_of
from addend_train._check import number
from addend_train._recipe import PathLike, Sets, arguments_of, sets_of
from addend_train._run import run


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run. Its files are in `folder`: metrics.jsonl, report.html, weights.safetensors, ..."""

    recipe: str
    steps: int
    first_step: int  # steps that were already taken by the run that this one resumed; 0 for a new run
    steps_taken: int
    first_loss: float | None  # None if no step was left to take
    last_loss: float | None
    tokens_per_second: float
    folder: Path
    summary: tuple[str, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the JSON of `addend train --json`
    first_tenth_loss: float | None = None  # mean over the first tenth of the steps; first_loss is that of one batch
    last_tenth_loss: float | None = None

    def metrics(self) -> list[Mapping[str, Any]]:
        """The lines of metrics.jsonl: a dictionary for each step."""
        with open(self.folder / "metrics.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def train(
    recipe: PathLike,
    *,
    out: PathLike | None = None,
    steps: int | None = None,
    resume: bool = False,
    force: bool = False,
    overwrite: bool = False,
    dump_step: int | None = None,
    fresh_states: Iterable[str] = (),
    set: Sets = None,
    program: PathLike | None = None,
) -> TrainResult:  # noqa: A002
    """Trains the recipe on ranks of this machine.

    `out`: the run's folder, runs/NAME if left out. `steps`: replaces the recipe's train.steps. `resume` continues from
    the folder's newest checkpoint; with `force` even if it is of another recipe. `overwrite` replaces a run that is
    in the folder. `dump_step`: writes each rank's addends and sums of this step to FOLDER/dump-N, for `diff`.
    `fresh_states`, with `resume`: patterns of parameters whose optimizer states begin anew. `set`, `program`: as in
    `check`. Ctrl-C ends the run after the current step, writes a checkpoint and is then raised."""
    if resume and overwrite:
        raise InvalidError("resume continues the run in the folder, overwrite replaces it: give only one of them")
    if force and not resume:
        raise InvalidError("force has a meaning only with resume: give resume=True too")
    patterns = [fresh_states] if isinstance(fresh_states, str) else list(fresh_states)
    if patterns and not resume:
        raise InvalidError("fresh_states has a meaning only with resume: give resume=True too")
    if out is not None and not path_of(out):
        raise InvalidError("out is empty: it takes the name of the run's folder")
    arguments: list[str] = ["train", "--json"]
    arguments += ["--out", path_of(out)] if out is not None else []
    arguments += ["--dump-step", number("dump_step", dump_step, 0)] if dump_step is not None else []
    chosen = {"--resume": resume, "--force": force, "--overwrite": overwrite}
    arguments += [option for option, wanted in chosen.items() if wanted]
    arguments += [f"--fresh-states={pattern}" for pattern in patterns]
    sets = sets_of(set) + ([f"train.steps={number('steps', steps)}"] if steps is not None else [])
    _, text = run([*arguments, *arguments_of(recipe, sets, program)])
    document = json.loads(text)
    loss = document["loss"]
    return read(
        TrainResult,
        document,
        first_loss=loss["first"],
        last_loss=loss["last"],
        first_tenth_loss=loss["first_tenth"],
        last_tenth_loss=loss["last_tenth"],
        folder=Path(document["folder"]),
        document=document,
    )
