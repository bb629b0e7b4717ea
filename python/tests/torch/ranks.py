"""Start the ranks of a job: processes forked after PyTorch was imported once, since the import is what takes time.
They meet over gloo, unless another backend is named; the results of their function come back in the order of ranks; a
job that hangs is ended and reported.
"""

import contextlib
import io
import logging
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import wait

import torch
import torch._dynamo  # noqa: F401  fully_shard and DTensor import it when first used: once here, not in each rank
import torch.distributed as dist

RANK_HANGS = 300  # seconds; a few jobs, one of them compiled, on a machine that has other work
# fully_shard on gloo: PyTorch 2.6 cannot, 2.7 and 2.8 do not divide, for gloo takes an average for a sum there; 2.9 and
# 2.15 are right.
# Where jobs have their tensors: the processor, or what ADDEND_TEST_DEVICE names (script/accelerator).
DEVICE = torch.device(os.environ.get("ADDEND_TEST_DEVICE", "cpu"))
FSDP2 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)


def take_device():
    """Make this rank's tensors on DEVICE, and return the backend of its process group. Ranks call it, and nobody before
    them: a process that is forked after an accelerator was used cannot use it. Ranks may share one accelerator, which
    NCCL refuses, and gloo does not.
    """
    if DEVICE == torch.device("cpu"):
        return "gloo"
    torch.set_default_device(DEVICE)
    torch.backends.cudnn.allow_tf32 = False  # convolutions in f32, as elsewhere
    return "cpu:gloo" if DEVICE.type == "cpu" else f"cpu:gloo,{DEVICE.type}:gloo"


class RankError(Exception):
    """A rank raised, died or did not end; the text has what it printed."""


def _be_rank(rank, world, backend, store, all_live, pipe, function, arguments):
    try:
        torch.set_num_threads(1)
        # silences its remarks on which way would be fastest
        logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        if backend == "gloo":
            backend = take_device()
        if store:
            dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
        answer = (True, function(*arguments))
        if dist.is_initialized() and backend != "addend" and all_live:
            dist.barrier()
    except BaseException:
        answer = (False, traceback.format_exc())
    pipe.send(answer)
    pipe.close()
    os._exit(0)  # threads of gloo may still wait for a rank that failed


def _gather(pipes, world, dead=()):
    answers, deadline = {}, time.monotonic() + RANK_HANGS
    while len(answers) < world:
        ready = wait([pipe for rank, pipe in pipes.items() if rank not in answers], max(0, deadline - time.monotonic()))
        if not ready:
            raise RankError(f"ranks {sorted(set(pipes) - set(answers))} did not end in {RANK_HANGS} s")
        for rank, pipe in pipes.items():
            if pipe not in ready:
                continue
            try:
                ended, answer = pipe.recv()
            except EOFError:
                ended, answer = False, "it died"
            if not ended and rank not in dead:
                raise RankError(f"rank {rank} of {world}: {answer}")
            answers[rank] = answer
    return [answers[rank] for rank in range(world) if rank not in dead]


def run(world, function, *arguments, joined=True, backend="gloo", dead=()):
    """Return what function(*arguments) returned on each of `world` ranks; without `joined` the function makes the
    process group itself. `dead`: ranks that must raise or die; they return nothing.
    """
    context = multiprocessing.get_context("fork")
    processes, pipes = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            here, there = context.Pipe(duplex=False)
            arguments_of_rank = (
                rank,
                world,
                backend,
                joined and f"{folder}/store",
                not dead,
                there,
                function,
                arguments,
            )
            process = context.Process(target=_be_rank, args=arguments_of_rank)
            process.start()
            there.close()
            processes.append(process)
            pipes[rank] = here
        try:
            return _gather(pipes, world, dead)
        finally:
            for process in processes:
                process.join(1)
                if process.is_alive():
                    process.kill()
                    process.join()


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# keeps what a script made until its process ends: with PyTorch 2.6 a model that is freed after its group may hang
_kept = {}


def _play(path, port, arguments):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [str(path), *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        _kept.update(runpy.run_path(str(path), run_name="__main__"))
    return said.getvalue()


def play(world, path, *arguments):
    """Return what each rank of a script printed, started with the environment that torchrun gives it."""
    return run(world, _play, path, _free_port(), arguments, joined=False)
