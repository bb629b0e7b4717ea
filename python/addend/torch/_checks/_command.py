"""The command `addend torch-check MODULE:FUNCTION`; the function returns the arguments of `addend.torch.check`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import addend
from addend.torch._checks import _report

HOLDS, WRONG_CALL, UNFINISHED = 0, 2, 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "addend torch-check", description="Compares ranks of a PyTorch job with one process."
    )
    parser.add_argument("function", metavar="MODULE:FUNCTION")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mutate", action="store_true")
    parser.add_argument("--typecheck", action="store_true")
    parser.add_argument("--timeout", type=float, metavar="SECONDS")
    file = parser.add_mutually_exclusive_group()
    file.add_argument("--reference", metavar="FILE")
    file.add_argument("--write-reference", metavar="FILE")
    return parser


def _load(text: str) -> dict[str, Any]:
    """Calls the function that MODULE:FUNCTION names; returns its dictionary of arguments for check."""
    path, _, name = text.partition(":")
    if not path or not name:
        raise addend.InvalidError(f"'{text}' is not MODULE:FUNCTION, as in tests.jobs:tensor_parallel")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise addend.InvalidError(f"there is no module `{error.name}` in {os.getcwd()} or on PYTHONPATH") from error
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise addend.InvalidError(f"`{path}` has no function `{name}`; it has {', '.join(own) or 'none'}")
    found = function()
    if not isinstance(found, dict):
        raise addend.InvalidError(f"{text} returned {type(found).__name__}, not a dictionary of check's arguments")
    return found


def run(words: Sequence[str]) -> int:
    """Runs the command and prints the report; returns the exit status."""
    reported = _parser().parse_args(words)
    from addend.torch._checks import check, write_reference

    try:
        arguments = _load(reported.function)
        if reported.mutate:
            arguments["mutate"] = True
        if reported.typecheck:
            arguments["typecheck"] = True
        if reported.timeout is not None:
            arguments["timeout"] = reported.timeout
        if reported.write_reference:
            write_reference(reported.write_reference, **arguments)
            return HOLDS
        if reported.reference:
            arguments["reference"] = reported.reference
        report = check(**arguments)
    except (addend.InvalidError, TypeError) as error:
        print(f"addend torch-check: {error}", file=sys.stderr)
        return WRONG_CALL
    except (addend.AddendError, ImportError) as error:  # ImportError: spmd_types is not installed
        print(f"addend torch-check: {error}", file=sys.stderr)
        return UNFINISHED
    if os.environ.get("RANK", "0") == "0":  # of torchrun's ranks, only rank 0 prints
        print(json.dumps(report.document, allow_nan=False) if reported.json else report)
    return _report.status_of(report)


def main(words: Sequence[str]) -> NoReturn:
    """The entry point that the program `addend` runs."""
    sys.exit(run(words))
