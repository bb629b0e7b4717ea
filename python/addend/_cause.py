"""The cause of a wrong gradient, in the reports of `addend.check` and `addend.diff`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from addend._documents import read


@dataclass(frozen=True)
class Cause:
    """Why a gradient is wrong, or may be wrong if several causes fit its numbers."""

    kind: str  # averaged, missing, doubled, partial, wrong_group, replicas_differ, rounding, unknown, ...
    text: str
    axes: str | None = None
    factor: float | None = None
    place: str | None = None  # the bridge, pool or microbatches where it happened
    operation: str | None = None  # of kind other_operation: maximum, minimum or product
    no_axis: str | None = None  # of a check's cause whose `axes` are "": why none is named (man addend)


def causes(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields `cause` (the cause is certain) and `possible_causes` (several fit) of a report's JSON document."""
    cause = document.get("cause")
    return {
        "cause": read(Cause, cause) if cause else None,
        "possible_causes": tuple(read(Cause, possible) for possible in document.get("possible_causes", ())),
    }
