"""`addend.check` compares a recipe's distributed gradient with that of one process."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from addend._cause import Cause, causes
from addend._documents import read
from addend._errors import InvalidError
from addend._library import path_of, take_text
from addend_train._library import checked
from addend_train._recipe import PathLike, Sets, arguments_of
from addend_train._run import run

_table = checked("ad_check_table", ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_list = checked("ad_check_list", ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))


@dataclass(frozen=True)
class CheckParam:
    """One parameter's distributed gradient, compared with that of one process."""

    name: str
    layout: str
    storage: str
    reduced_over: str
    step: int
    ratio: float | None
    max_rel_err: float | None
    bound: float | None
    replicas_equal: bool
    cause: Cause | None = None
    mesh: str = ""
    possible_causes: tuple[Cause, ...] = ()  # all causes that fit, if more than one does; `cause` is None then
    reached: bool = True  # whether some step had a gradient that is not zero; False: nothing is known of the parameter


@dataclass(frozen=True)
class Mutant:
    """A mutant, a copy of the program with a mistake made on purpose, and what killed it."""

    name: str
    killed_by: str  # type, number, protocol, plan, no_effect, or none: the mutant survived
    param: str | None = None
    ratio: float | None = None
    expected_ratio: float | None = None
    dtype: str = "f64"
    catalogue: int | None = None  # number of the published bug in docs/catalogue.md that this one repeats
    cause: Cause | None = None
    message: str | None = None
    derived: Mapping[str, Any] | None = None
    possible_causes: tuple[Cause, ...] = ()
    axes: str | None = None  # that all of its causes name
    no_axis: str | None = None  # why `axes` is None


@dataclass(frozen=True)
class CheckReport:
    """The report of `addend check`; str() gives it as a table."""

    ok: bool
    recipe: str
    world: int
    mesh: Any  # as in the recipe: a text like "dp=2 tp=2", or a mapping of modules to such texts
    dtype: str
    steps: int
    params: tuple[CheckParam, ...]
    mutants: tuple[Mutant, ...]
    table: str
    survivors: int = 0
    loss: Mapping[str, Any] = field(default_factory=dict)
    norm: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    coverage: Mapping[str, Any] | None = None
    directional: Mapping[str, Any] | None = None
    reason: str | None = None  # why the check failed, if it failed for something else than a parameter's numbers
    seconds: float = 0.0
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the JSON of `addend check --json`

    def __str__(self) -> str:
        return self.table

    def full_table(self) -> str:
        """The table with a row for each parameter and each mutant; `table` has rows for what does not match and for
        mutants that survived."""
        out = ctypes.c_void_p()
        _list(json.dumps(self.document).encode(), 0, out)
        return take_text(out)


def _report(text: str, ok: bool) -> CheckReport:
    document, table = json.loads(text), ctypes.c_void_p()
    _table(text.encode(), 0, table)
    return read(
        CheckReport,
        document,
        ok=ok,
        table=take_text(table),
        document=document,
        params=tuple(read(CheckParam, param, **causes(param)) for param in document["params"]),
        mutants=tuple(read(Mutant, row, **causes(row)) for row in document.get("mutants", ())),
    )


def number(name: str, value: int, least: int = 1) -> str:
    """The number as a command-line argument; `name` is the Python argument, for the error message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidError(f"{name} takes a whole number of at least {least}, not {value!r}")
    return str(value)


def check(
    recipe: PathLike,
    *,
    mutate: bool | int = False,
    seed: int = 1,
    steps: int = 2,
    dtype: str | None = None,
    directional: bool = False,
    dump: PathLike | None = None,
    set: Sets = None,
    program: PathLike | None = None,
) -> CheckReport:  # noqa: A002 (the name is the command's)
    """Compares the recipe's distributed gradient, parameter by parameter, with that of one process on the same batch.

    `mutate`: then try mutants one at a time and report what killed each; a number tries that many of the derived
    mutants, drawn with `seed`. `dtype`: compute in "f64", "f32" or the dtypes of the "recipe".
    `directional`: compare with the loss's difference quotient, without a reference run. `dump`: a folder to write each
    step's inputs and results to. `set`: recipe keys to replace, {"mesh": "dp=2 tp=2"} or ["mesh='dp=2 tp=2'"].
    `program`: a shared object with your own program that the recipe trains; its code is run. A wrong gradient raises
    no exception: look at the report's `ok`."""
    if dtype not in (None, "f64", "f32", "recipe"):
        raise InvalidError(f"dtype takes 'f64', 'f32' or 'recipe', not {dtype!r}")
    arguments: list[str] = ["check", "--json", "--steps", number("steps", steps)]
    arguments += ["--dtype", dtype] if dtype else []
    arguments += ["--directional"] if directional else []
    arguments += ["--dump", path_of(dump)] if dump is not None else []
    if mutate is True:
        arguments.append("--mutate")
    elif mutate is not False:
        arguments += ["--mutate=" + number("mutate", mutate), "--seed", number("seed", seed)]
    status, text = run([*arguments, *arguments_of(recipe, set, program)])
    return _report(text, ok=status == 0)
