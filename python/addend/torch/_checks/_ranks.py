"""Runs the processes of a check. They are forked after the imports, since these take seconds. The error for one that
fails, dies or hangs includes what it printed, or its stack."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Callable

import addend
from addend.torch._checks import _names
from addend.torch._process import end_with

_LINES = 12  # number of lines shown of a child's output or stack
_BAR = re.compile(r"\d%\|.*\|")  # of tqdm, with which Transformers and others show progress
_OTHERS = 1.0  # seconds to wait for other failures after the first, which may be only a consequence of them
_FOLLOWS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
)  # errors of ranks that lost the connection to another one
HUNG = "did not end in"
_STACKS = 2.0  # seconds to wait for the stacks of ranks that hang


def _path(folder: str, name: str, kind: str) -> str:
    return os.path.join(folder, f"{name.replace(' ', '')}.{kind}")


def _be_child(name: str, folder: str, pipe: Connection, work: Callable[[], Any], parent: int) -> None:
    """The child's work: sends None or its error through the pipe. Its standard error goes to a file, which is shown if
    it dies."""
    end_with(parent)
    said = open(_path(folder, name, "said"), "wb", buffering=0)
    os.dup2(said.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=open(_path(folder, name, "stack"), "w"), all_threads=True)
    try:
        with open(_path(folder, name, "answer"), "wb") as file:
            pickle.dump(work(), file)
        pipe.send(None)
    except BaseException as error:
        refused = isinstance(error, addend.AddendError)
        pipe.send((type(error), str(error)) if refused else (addend.RankDiedError, reported(error)))
    finally:
        _flush()
        os._exit(0)  # without waiting for threads of gloo, which may wait for a rank that failed


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def reported(error: BaseException) -> str:
    """The error's text, and the line of the job's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _names.is_inside(frame.filename)]
    place = f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def said_lines(path: str) -> list[str]:
    """The lines that a process wrote, as a terminal shows them at the end, without progress bars."""
    with open(path, errors="replace", newline="\n") as file:
        lines = [line.rstrip().rsplit("\r", 1)[-1] for line in file]
    return [line for line in lines if line.strip() and not _BAR.search(line)]


def _last_lines(path: str) -> str:
    try:
        lines = said_lines(path)
    except OSError:
        return ""
    return "".join(f"\n  {line}" for line in lines[-_LINES:])


def _stacks(folder: str, processes: dict[str, Any], silent: Sequence[str]) -> str:
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
    """A sort key by which the likely cause comes first: 0 for a failure, 1 for ranks that hang, 2 for a lost
    connection to another rank."""
    return 2 if any(word in text for word in _FOLLOWS) else int(HUNG in text)


def _collect(folder: str, processes: dict[str, Any], pipes: dict[str, Connection], limit: float) -> None:
    waiting, deadline = dict(pipes), time.monotonic() + limit
    failed: list[tuple[str, Any]] = []
    while waiting:
        ready = wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
        if not ready and failed:
            break
        if not ready:
            silent = sorted(waiting)
            raise addend.RankDiedError(
                f"{', '.join(silent)} {HUNG} {limit:g} s (timeout=): these ranks wait for each other, or the job is "
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


def run(names: Sequence[str], work: Callable[[int], Any], folder: str, limit: float) -> list[Any]:
    """Runs work(i) in one process for each name, all at the same time; returns their results."""
    context = multiprocessing.get_context("fork")
    processes: dict[str, Any] = {}
    pipes: dict[str, Connection] = {}
    _flush()
    try:
        for i, name in enumerate(names):
            here, there = context.Pipe(duplex=False)
            open(_path(folder, name, "stack"), "w").close()
            process = context.Process(target=_be_child, args=(name, folder, there, lambda i=i: work(i), os.getpid()))
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
