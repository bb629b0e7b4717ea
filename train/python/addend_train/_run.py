"""Runs the program `addend`, which starts the ranks. The Python interpreter itself is never forked into ranks: it has
threads (NumPy's, a notebook's), and a forked rank could hang on a lock that one of them holds."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from addend._errors import AddendError, InvalidError, error_of
from addend._library import function, program_path
from addend_train._library import need_trainer

ANSWER_IS_NO = 1  # exit status of a command that ran and found something wrong
_ERROR = 3  # the file descriptor to which the program writes its error message (ADDEND_ERROR_FD)

_is_rank = function("ad_comm_launched", ctypes.c_int)


def run(arguments: Sequence[str]) -> tuple[int, str]:
    """Runs a command of the trainer that prints a JSON document. Returns the exit status, 0 or 1, and the document. The
    command's progress goes to this process's standard error; its error is raised."""
    if _is_rank():
        raise InvalidError(
            f"addend.{arguments[0]} was called in a process that is itself a rank, so each rank would start ranks of "
            "its own; call it in a program that was not started by `addend run`, mpirun or srun"
        )
    need_trainer(f"addend.{arguments[0]}")
    with tempfile.TemporaryFile() as document, tempfile.TemporaryFile() as error:
        status = _wait(_start(arguments, document.fileno(), error.fileno()))
        if status not in (0, ANSWER_IS_NO):
            raise _error(arguments, status, _text(error))
        return status, _text(document)


def _start(arguments: Sequence[str], document: int, error: int) -> int:
    # posix_spawn, because a fork waits for threads inside OpenBLAS. setsid, so that Ctrl-C reaches the program only
    # once, through _wait. All other file descriptors are closed by exec.
    program = str(program_path())
    files = [(os.POSIX_SPAWN_DUP2, document, 1), (os.POSIX_SPAWN_DUP2, error, _ERROR)]
    environment = dict(os.environ, ADDEND_ERROR_FD=str(_ERROR))
    sys.stderr.flush()
    try:
        return os.posix_spawn(program, [program, *arguments], environment, file_actions=files, setsid=True)
    except OSError as refused:
        raise AddendError(f"{program} could not be run: {refused}") from refused


def _wait(process: int) -> int:
    """Waits for the program; returns its exit status. The first Ctrl-C asks the ranks to stop, the second ends them;
    KeyboardInterrupt is raised here once the program has ended."""
    interrupt = None
    for request in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        try:
            status = os.waitpid(process, 0)[1]
            break
        except BaseException as raised:  # KeyboardInterrupt, or what another signal's handler raises
            interrupt = raised
            os.kill(process, request)
    else:
        status = os.waitpid(process, 0)[1]
    if interrupt:
        raise interrupt
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _error(arguments: Sequence[str], exit_status: int, text: str) -> AddendError:
    if text:
        status, _, message = text.partition(" ")
        return error_of(status, message)
    return AddendError(f"addend {arguments[0]} ended with exit status {exit_status}; standard error has the reason")
