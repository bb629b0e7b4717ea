"""The examples, as torchrun starts them: each prints a report that passes, and with --mistake one that names it."""
import io
import os
import pathlib
import runpy
import socket
import sys
from contextlib import redirect_stdout

import ranks

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "torch"
SAYS = {"ddp": "own addend only", "fsdp2": "has no sum", "tensor_parallel": "own addend only along tp"}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def play(name, port, arguments):
    """What this rank printed."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [f"{name}.py", *arguments]
    with redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return said.getvalue()


def hold(name, arguments, words):
    said = ranks.run(4, play, name, free_port(), arguments, joined=False)
    holds = words in said[0] and not any(said[1:])
    print(f"{'held  ' if holds else 'FAILED'} {name} {' '.join(arguments)}\n{said[0]}", flush=True)
    return holds


def main():
    held = [hold(name, arguments, words) for name, mistake in SAYS.items() for arguments, words in (((), "right"), (("--mistake",), mistake))]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
