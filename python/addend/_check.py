"""`addend.check`: the proof of a recipe's distributed gradient."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Tuple, Union

from addend._cause import Cause, causes
from addend._documents import read
from addend._errors import InvalidError
from addend._library import checked, path_of, take_text
from addend._program import run
from addend._recipe import PathLike, Sets, arguments_of

_table = checked("ad_check_table", ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))


@dataclass(frozen=True)
class CheckParam:
    """One parameter's distributed gradient against that of one process."""

    name: str
    layout: str
    storage: str
    reduced_over: str
    step: int
    ratio: Optional[float]
    max_rel_err: Optional[float]
    bound: Optional[float]
    replicas_equal: bool
    cause: Optional[Cause] = None
    mesh: str = ""
    possible_causes: Tuple[Cause, ...] = ()  # where several fit; cause is None then


@dataclass(frozen=True)
class Sabotage:
    """A planted mistake, and what caught it."""

    name: str
    caught_by: str  # type, number, protocol, plan, no_effect, or none: it survived
    param: Optional[str] = None
    ratio: Optional[float] = None
    expected_ratio: Optional[float] = None
    dtype: str = "f64"
    catalogue: Optional[int] = None
    cause: Optional[Cause] = None
    message: Optional[str] = None
    derived: Optional[Mapping[str, Any]] = None
    possible_causes: Tuple[Cause, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """What `addend check` says; str() is its table."""

    ok: bool
    recipe: str
    world: int
    mesh: Any  # as in the recipe: a text, or one for each module
    dtype: str
    steps: int
    params: Tuple[CheckParam, ...]
    sabotage: Tuple[Sabotage, ...]
    table: str
    survivors: int = 0
    loss: Mapping[str, Any] = field(default_factory=dict)
    norm: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    coverage: Optional[Mapping[str, Any]] = None
    directional: Optional[Mapping[str, Any]] = None
    reason: Optional[str] = None  # why it does not hold, where no number says so
    seconds: float = 0.0
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)  # as `addend check --json` prints it

    def __str__(self) -> str:
        return self.table


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
        sabotage=tuple(read(Sabotage, row, **causes(row)) for row in document.get("sabotage", ())),
    )


def number(name: str, value: int, least: int = 1) -> str:
    """The number as the program takes it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidError(f"{name} takes a number from {least} on, not {value!r}")
    return str(value)


def check(
    recipe: PathLike,
    *,
    sabotage: Union[bool, int] = False,
    seed: int = 1,
    steps: int = 2,
    dtype: Optional[str] = None,
    directional: bool = False,
    dump: Optional[PathLike] = None,
    set: Sets = None,
    program: Optional[PathLike] = None,
) -> CheckReport:  # noqa: A002 (the name is the command's)
    """Proves the recipe's distributed gradient, parameter by parameter, against one process on the same batch.

    `sabotage`: then plant mistakes and say what caught each; a number: so many of the derived ones, drawn by `seed`.
    `dtype`: "f64", "f32" or "recipe". `directional`: no reference, the loss's difference quotient instead. `dump`: a
    folder for what each step starts from and comes to. `set`: keys to replace, {"mesh": "dp=2 tp=2"} or
    ["mesh='dp=2 tp=2'"]. `program`: the shared object that brings the recipe's program, one of your own; it is code
    that runs. A gradient that does not hold is no error: look at `ok`."""
    if dtype not in (None, "f64", "f32", "recipe"):
        raise InvalidError(f"dtype takes 'f64', 'f32' or 'recipe', not {dtype!r}")
    arguments: List[str] = ["check", "--json", "--steps", number("steps", steps)]
    arguments += ["--dtype", dtype] if dtype else []
    arguments += ["--directional"] if directional else []
    arguments += ["--dump", path_of(dump)] if dump is not None else []
    if sabotage is True:
        arguments.append("--sabotage")
    elif sabotage is not False:
        arguments += ["--sabotage=" + number("sabotage", sabotage), "--seed", number("seed", seed)]
    status, text = run([*arguments, *arguments_of(recipe, set, program)])
    return _report(text, ok=status == 0)
