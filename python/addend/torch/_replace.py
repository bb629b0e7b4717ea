"""Files that are replaced as a whole: a reader sees the old one or the new one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO, Union

_PART = ".part"  # the end of the name of a file that is being written

Path = Union[str, "os.PathLike[str]"]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file, which replaces the one at `path` when the block ends. Where the block or the system fails (OSError),
    what was at `path` is unchanged and nothing else is left."""
    part = f"{os.fspath(path)}{_PART}"
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def write(path: Path, text: str) -> None:
    """Replaces the file at `path` with a text in UTF-8."""
    with replacing(path) as file:
        file.write(text.encode())


def check_writable(path: Path) -> None:
    """Raises OSError if no file at `path` can be written; leaves what is there unchanged."""
    if os.path.isdir(path):
        raise IsADirectoryError(f"{os.fspath(path)} is a folder, but a file is written there: name a file")
    part = f"{os.fspath(path)}{_PART}"
    open(part, "ab").close()
    os.unlink(part)
