"""The requirements between the two Python distributions: addend[train] needs addend-train, which needs addend.
In the source tree each names the other's folder, so that pip does not ask a package index, which may have another
project of that name. script/wheel, whose wheels are used elsewhere, sets ADDEND_RELEASE: then each names a version."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
TORCH = ["torch>=2.6", "numpy", "safetensors", "packaging"]  # safetensors 0.7 imports packaging and does not say so
TOKENS = ["numpy", "tokenizers"]


def _version() -> str:
    text = (FOLDER.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    found = re.search(r"project\(addend VERSION ([0-9.]+)", text)
    assert found, "CMakeLists.txt has the version"
    return found[1]


def _sibling(name: str, folder: Path) -> str:
    return f"{name}=={_version()}" if os.environ.get("ADDEND_RELEASE") else f"{name} @ {folder.as_uri()}"


def dynamic_metadata(field: str, settings: Mapping[str, Any]) -> Any:
    """Called by scikit-build-core for the requirements of addend-train, and for the extras of the distribution that
    `settings` names."""
    if field == "dependencies":
        return [_sibling("addend", FOLDER)]
    if settings["of"] == "addend-train":
        return {"tokens": TOKENS}
    return {"torch": TORCH, "train": [_sibling("addend-train", FOLDER.parent / "train" / "python")]}
