"""`addend.plan` says what a recipe reduces, over which axes, in which order and how many bytes. Nothing is trained."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from addend._documents import read
from addend._library import take_text
from addend_train._library import checked, need_trainer
from addend_train._recipe import PathLike, Sets, opened


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("ranks_per_node", ctypes.c_int64)]


_text_p = ctypes.POINTER(ctypes.c_void_p)
_json = checked("ad_plan_json", ctypes.c_void_p, ctypes.POINTER(_Options), _text_p)
_table = checked("ad_plan_table", ctypes.c_void_p, ctypes.POINTER(_Options), _text_p)
_write = checked("ad_write_text", ctypes.c_char_p, ctypes.c_char_p)
_picture = checked("ad_plan_picture", ctypes.c_void_p, ctypes.POINTER(_Options), ctypes.c_char_p, _text_p)


@dataclass(frozen=True)
class PlanStep:
    """One reduction of a gradient, between its layout after backward and its storage layout."""

    op: str
    axes: str
    group_size: int
    dtype: str
    bytes: int
    bucket: int
    when: str
    times: int = 1


@dataclass(frozen=True)
class PlanParam:
    """A parameter, its layouts, and the reductions (`path`) of its gradient."""

    name: str
    numel: int
    layout: str
    storage: str
    gradient_layout: str
    precision: Mapping[str, str]
    path: tuple[PlanStep, ...]
    mesh: str = ""
    pool: int = 0


@dataclass(frozen=True)
class Plan:
    """The result of `addend plan`; str() gives it as a table."""

    recipe: str
    world: int
    params: tuple[PlanParam, ...]
    table: str
    collectives: tuple[Mapping[str, Any], ...] = ()  # in launch order
    memory_per_rank: tuple[Mapping[str, Any], ...] = ()
    memory_per_node: tuple[Mapping[str, Any], ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the JSON of `addend plan --json`

    def __str__(self) -> str:
        return self.table


def _param(document: Mapping[str, Any]) -> PlanParam:
    return read(PlanParam, document, path=tuple(read(PlanStep, step) for step in document["path"]))


def plan(
    recipe: PathLike,
    *,
    ranks_per_node: int = 0,
    picture: PathLike | None = None,
    set: Sets = None,
    program: PathLike | None = None,
) -> Plan:  # noqa: A002
    """Plans a recipe, for any number of ranks. `ranks_per_node`: how many consecutive ranks share a machine; 0: all of
    them. `picture`: a file for an SVG picture of which ranks send what to whom. `set`, `program`: as in `check`."""
    need_trainer("addend.plan")
    options = _Options(ctypes.sizeof(_Options), ranks_per_node)
    text, table, drawn = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    with opened(recipe, set, program) as read_recipe:
        _json(read_recipe, options, text)
        _table(read_recipe, options, table)
        if picture is not None:
            _picture(read_recipe, options, None, drawn)
    if picture is not None:
        _write(take_text(drawn).encode(), os.fsencode(picture))
    document = json.loads(take_text(text))
    return read(
        Plan,
        document,
        params=tuple(_param(param) for param in document["params"]),
        table=take_text(table),
        document=document,
    )
