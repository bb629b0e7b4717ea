"""One exception class for each error status of the library; its text is the library's error message."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from addend._diff import DiffReport


class AddendError(Exception):
    """Base class of all errors of addend. `status` is the library's name for the kind ("invalid", "type", ...)."""

    status = "unknown"


class InvalidError(AddendError, ValueError):
    """The call or its input is wrong."""

    status = "invalid"


class LayoutError(AddendError, TypeError):
    """The layouts of the operands do not fit the operation."""

    status = "type"


class NoMemoryError(AddendError, MemoryError):
    """Memory could not be allocated."""

    status = "memory"


class FileError(AddendError, OSError):
    """A file could not be read or written."""

    status = "io"


class MismatchError(AddendError, RuntimeError):
    """The ranks of a group called different collectives, or the same one with different arguments."""

    status = "mismatch"


class RankDiedError(AddendError, RuntimeError):
    """A rank died while others waited for it."""

    status = "rank-died"


class RankLeftError(AddendError, RuntimeError):
    """A rank left the world while others waited for it."""

    status = "rank-left"


class CycleError(AddendError, RuntimeError):
    """Ranks wait for each other in a circle."""

    status = "cycle"


class PeerFailedError(AddendError, RuntimeError):
    """Another rank failed and reported its error, which is this exception's text."""

    status = "peer-failed"


class NumberError(AddendError, ArithmeticError):
    """A value is not a finite number."""

    status = "number"


class StoppedError(AddendError):
    """The run ended because a signal asked its ranks to stop. (Ctrl-C in this process raises KeyboardInterrupt.)"""

    status = "interrupted"


class SystemRefusedError(AddendError, OSError):
    """The operating system refused something that the library needs, such as shared memory."""

    status = "system"


class MissingTrainerError(AddendError, ImportError):
    """The call needs addend's trainer library, which is not installed."""

    status = "trainer"


class GradientError(AddendError):
    """Gradients are wrong; `report` says which ranks' addends each one contains."""

    status = "gradient"

    def __init__(self, report: DiffReport):
        super().__init__(str(report))
        self.report = report


_BY_STATUS: dict[str, type[AddendError]] = {
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
    """The exception for the library's status of this name, such as "invalid"."""
    return _BY_STATUS.get(status, AddendError)(message)
