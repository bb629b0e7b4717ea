"""Errors: one exception for each status of the library, with the sentence that the library says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Type

if TYPE_CHECKING:
    from addend._diff import DiffReport


class AddendError(Exception):
    """What addend refuses or cannot finish. `status` is the library's name of the kind ("invalid", "type", ...)."""

    status = "unknown"


class InvalidError(AddendError, ValueError):
    """The call or its input is wrong."""

    status = "invalid"


class LayoutError(AddendError, TypeError):
    """The types of the values on the ranks do not fit the operation."""

    status = "type"


class NoMemoryError(AddendError, MemoryError):
    """No memory is left for it."""

    status = "memory"


class FileError(AddendError, OSError):
    """A file could not be read or written."""

    status = "io"


class MismatchError(AddendError, RuntimeError):
    """The ranks of a group did not call the same thing."""

    status = "mismatch"


class RankDiedError(AddendError, RuntimeError):
    """A rank died while others needed it."""

    status = "rank-died"


class RankLeftError(AddendError, RuntimeError):
    """A rank returned while others needed it."""

    status = "rank-left"


class CycleError(AddendError, RuntimeError):
    """Ranks wait for each other in a circle."""

    status = "cycle"


class PeerFailedError(AddendError, RuntimeError):
    """Another rank failed and said so."""

    status = "peer-failed"


class NumberError(AddendError, ArithmeticError):
    """A value is not a finite number."""

    status = "number"


class StoppedError(AddendError):
    """The run was asked to stop, by a signal to its ranks and not by Ctrl-C here, which is KeyboardInterrupt."""

    status = "interrupted"


class SystemRefusedError(AddendError, OSError):
    """The operating system refused something needed."""

    status = "system"


class MissingTrainerError(AddendError, ImportError):
    """What is asked for needs the trainer, which this installation does not have."""

    status = "trainer"


class GradientError(AddendError):
    """Gradients do not hold what they should; `report` says which addends they hold."""

    status = "gradient"

    def __init__(self, report: DiffReport):
        super().__init__(str(report))
        self.report = report


_BY_STATUS: Dict[str, Type[AddendError]] = {
    error.status: error
    for error in (
        InvalidError,
        LayoutError,
        NoMemoryError,
        FileError,
        MismatchError,
        RankDiedError,
        RankLeftError,
        CycleError,
        PeerFailedError,
        NumberError,
        StoppedError,
        SystemRefusedError,
    )
}


def error_of(status: str, message: str) -> AddendError:
    """The exception for a status of the library, by its name."""
    return _BY_STATUS.get(status, AddendError)(message)
