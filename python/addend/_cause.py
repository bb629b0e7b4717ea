"""What went wrong with a gradient, as the reports of `addend.check` and `addend.diff` say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from addend._documents import read


@dataclass(frozen=True)
class Cause:
    """What happened to a gradient that is not what it should be, or may have where several causes fit."""

    kind: str  # averaged, missing, doubled, partial, wrong_group, replicas_differ, rounding, unknown, ...
    text: str
    axes: Optional[str] = None
    factor: Optional[float] = None
    place: Optional[str] = None  # the bridge, pool or microbatches where it happened


def causes(document: Mapping[str, Any]) -> Dict[str, Any]:
    """The fields `cause` and `possible_causes` of what a document says: one that is sure, or all that fit."""
    cause = document.get("cause")
    return {
        "cause": read(Cause, cause) if cause else None,
        "possible_causes": tuple(read(Cause, possible) for possible in document.get("possible_causes", ())),
    }
