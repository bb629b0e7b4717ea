"""Processes of a proof: forked after the imports, since those take seconds; a child that fails, dies or hangs is told
with what it said."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any, Callable, Dict, List, Sequence, Tuple

import addend
from addend.torch._proof import _names

_LINES = 12  # of what a child said last
_OTHERS = 1.0  # seconds in which the failure shows of which the first that is told was a consequence
_FOLLOWS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
)  # what others say of a rank that is gone
HUNG = "did not end in"
_STACKS = 2.0  # seconds that stacks of ranks that hang may take to be written


def _path(folder: str, name: str, kind: str) -> str:
    return os.path.join(folder, f"{name.replace(' ', '')}.{kind}")


def _be_child(name: str, folder: str, pipe: Connection, work: Callable[[], Any]) -> None:
    """Answers over the pipe; what it says goes to a file, which is shown if it fails."""
    said = open(_path(folder, name, "said"), "wb", buffering=0)
    os.dup2(said.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=open(_path(folder, name, "stack"), "w"), all_threads=True)
    try:
        with open(_path(folder, name, "answer"), "wb") as file:
            pickle.dump(work(), file)
        pipe.send(None)
    except BaseException as error:
        refused = isinstance(error, addend.AddendError)
        pipe.send((type(error), str(error)) if refused else (addend.RankDiedError, told(error)))
    finally:
        _flush()
        os._exit(0)  # threads of gloo may still wait for a rank that failed


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def told(error: BaseException) -> str:
    """The error, and where the caller's code made it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _names.is_inside(frame.filename)]
    place = f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def _last_lines(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            lines = [line.rstrip() for line in file if line.strip()]
    except OSError:
        return ""
    return "".join(f"\n  {line}" for line in lines[-_LINES:])


def _stacks(folder: str, processes: Dict[str, Any], silent: Sequence[str]) -> str:
    for name in silent:
        os.kill(processes[name].pid, signal.SIGUSR1)
    end, text = time.monotonic() + _STACKS, ""
    while time.monotonic() < end and not all(os.path.getsize(_path(folder, name, "stack")) for name in silent):
        time.sleep(0.05)
    for name in silent:
        with open(_path(folder, name, "stack"), errors="replace") as file:
            own = [line.rstrip() for line in file if line.startswith("  File")]
        text += f"\n{name}, innermost call first:" + "".join(f"\n{line}" for line in own[:_LINES])
    return text


def follows(text: str) -> int:
    """The smallest is the most telling: a failure, ranks that hang, what is said of a rank that is gone."""
    return 2 if any(word in text for word in _FOLLOWS) else int(HUNG in text)


def _collect(folder: str, processes: Dict[str, Any], pipes: Dict[str, Connection], limit: float) -> None:
    waiting, deadline = dict(pipes), time.monotonic() + limit
    failed: List[Tuple[str, Any]] = []
    while waiting:
        ready = wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
        if not ready and failed:
            break
        if not ready:
            silent = sorted(waiting)
            raise addend.RankDiedError(
                f"{', '.join(silent)} {HUNG} {limit:g} s (timeout=): they wait for each other, or the job is "
                f"too large for it{_stacks(folder, processes, silent)}"
            )
        for name, pipe in list(waiting.items()):
            if pipe not in ready:
                continue
            del waiting[name]
            try:
                error = pipe.recv()
            except EOFError:
                processes[name].join(1)
                code = processes[name].exitcode
                how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
                said = _last_lines(_path(folder, name, "said"))
                error = (addend.RankDiedError, f"it died ({how}){said}")
            if error is not None:
                failed.append((name, error))
                deadline = min(deadline, time.monotonic() + _OTHERS)
    if failed:
        name, (kind, text) = min(failed, key=lambda found: follows(found[1][1]))
        raise kind(f"{name}: {text}")


def run(names: Sequence[str], work: Callable[[int], Any], folder: str, limit: float) -> List[Any]:
    """What work(i) gave in each of the processes, which run at the same time."""
    context = multiprocessing.get_context("fork")
    processes: Dict[str, Any] = {}
    pipes: Dict[str, Connection] = {}
    _flush()
    try:
        for i, name in enumerate(names):
            here, there = context.Pipe(duplex=False)
            open(_path(folder, name, "stack"), "w").close()
            process = context.Process(target=_be_child, args=(name, folder, there, lambda i=i: work(i)))
            process.start()
            there.close()
            processes[name], pipes[name] = process, here
        _collect(folder, processes, pipes, limit)
    finally:
        for process in processes.values():
            process.join(0.2)
            if process.is_alive():
                process.kill()
                process.join()
    answers = []
    for name in names:
        with open(_path(folder, name, "answer"), "rb") as file:
            answers.append(pickle.load(file))
    return answers
