"""The process of one rank of a test that uses the fixture `addend_watch`; the pytest plugin starts it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pickle
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable


def _find(place: dict[str, Any]) -> Callable[..., object]:
    """The test function. Imports the test's file in this process, under the module name that it has in pytest."""
    spec = importlib.util.spec_from_file_location(place["module"], place["file"])
    if spec is None or spec.loader is None:
        raise ImportError(
            f"{place['file']} cannot be imported as a Python file: name a file that exists and ends in .py"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[place["module"]] = module
    spec.loader.exec_module(module)
    found: Any = module
    owner: Any = None
    for name in place["name"].split("."):
        owner, found = found, getattr(found, name)
    return functools.partial(found, owner()) if isinstance(owner, type) else found  # a test class's method


@contextlib.contextmanager
def _watching(used: list[bool], seed: int, *model: Any, **options: Any) -> Iterator[Any]:
    import torch

    import addend.torch

    used.append(True)
    watching = addend.torch.watch(*model, **options)
    torch.manual_seed(seed + 1 + int(os.environ["RANK"]))
    with watching:
        yield watching
    assert watching.report.ok, f"\n{watching.report}"


def _play(place: dict[str, Any], folder: Path) -> tuple[str, str]:
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.manual_seed(place["seed"])
    used: list[bool] = []
    function = _find(place)
    arguments = pickle.loads(place["arguments"])
    if place["asks"]:
        arguments["addend_watch"] = functools.partial(_watching, used, place["seed"])
    function(**arguments)
    if not used:
        text = "the test takes `addend_watch` but never uses it: put `with addend_watch(model):` around a step"
        return "failed", text
    with contextlib.suppress(RuntimeError):  # raised if another rank failed, which reports its error itself
        dist.barrier()
    return "passed", ""


def _outcome(place: dict[str, Any], folder: Path) -> tuple[str, str]:
    try:
        return _play(place, folder)
    except AssertionError as error:
        return "failed", str(error) if str(error).startswith("\n") else traceback.format_exc()
    except BaseException as error:
        if type(error).__name__ == "Skipped":
            return "skipped", str(error)
        return "failed", traceback.format_exc()


def main() -> None:
    """Runs the test that the file callRANK in folder sys.argv[1] describes, and writes the outcome to answerRANK."""
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    place = pickle.loads((folder / f"call{rank}").read_bytes())
    sys.path[:] = place["path"] + [entry for entry in sys.path if entry not in place["path"]]
    outcome = _outcome(place, folder)
    (folder / f"answer{rank}").write_bytes(pickle.dumps((*outcome, time.monotonic())))
    sys.stdout.flush()
    os._exit(outcome[0] == "failed")  # without waiting for threads of gloo, which may wait for a rank that failed
