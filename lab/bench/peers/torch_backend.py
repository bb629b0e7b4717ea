"""Starts torch.distributed with a backend. Backend "addend" is that of the build in whose folder the peers are, or of the installed
package."""
import os
import pathlib
import sys

import worker
import torch.distributed as dist

BUILT = pathlib.Path(__file__).absolute().parent.parent / "libaddend.so"


def start(name):
    if name == "addend":
        sys.dont_write_bytecode = True  # to write no files into the source tree, where the package is
        if BUILT.exists():
            os.environ.setdefault("ADDEND_LIBRARY", str(BUILT))
        import addend.torch.group  # registers it
    dist.init_process_group(name, rank=worker.RANK, world_size=worker.RANKS)
