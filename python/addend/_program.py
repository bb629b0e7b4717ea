"""The command `addend` of the installed package."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from addend._library import program_path


def main() -> NoReturn:
    """Becomes the program `addend`, with the arguments of this process."""
    os.environ.setdefault("ADDEND_PYTHON", sys.executable)  # `addend torch-check` runs this Python
    program: list[str] = [str(program_path()), *sys.argv[1:]]
    os.execv(program[0], program)
