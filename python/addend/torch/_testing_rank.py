"""The ranks' side of a pool for tests: a server that has imported PyTorch forks the ranks, and each rank runs one test
body after another, each in a new process group. _testing_pool.py is the test's side."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import gc
import io
import json
import os
import pickle
import shutil
import signal
import socket
import sys
import time
import traceback
from typing import Any, cast

import torch
import torch._dynamo  # noqa: F401  fully_shard and DTensor import it when first used: once here, not in each rank
import torch.distributed as dist
import torch.distributed.fsdp  # noqa: F401  once here, too
import torch.distributed.tensor.parallel  # noqa: F401
from torch._C._distributed_c10d import PrefixStore, TCPStore

from addend.torch._process import end_with
from addend.torch._testing_body import find
from addend.torch.group import Group

_LATER = 60  # seconds by which the group's timeout is longer than the test's, which reports each rank's place


# ---- the server ----


def serve(control_fd: str, folder: str, size: str) -> None:
    """Starts and ends ranks on command; ends them and itself when the test's process closes the control socket."""
    control = socket.socket(fileno=int(control_fd))
    gc.collect()
    gc.freeze()  # so that ranks' garbage collection skips all imported objects
    pids: list[int] = []
    while True:
        reported, pipes, _, _ = socket.recv_fds(control, 1, int(size))
        if reported == b"p":
            control.sendall(b"p")
            continue
        if reported == b"s":
            pids = [_fork(rank, pipes, control, folder) for rank in range(int(size))]
            for pipe in pipes:
                os.close(pipe)
            continue
        hows = [_end(pid) for pid in pids]
        pids = []
        if not reported:
            shutil.rmtree(folder, ignore_errors=True)
            return
        with contextlib.suppress(OSError):
            control.sendall(json.dumps(hows).encode())


def _fork(rank: int, pipes: list[int], control: socket.socket, folder: str) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        end_with(server)
        control.close()
        for other, pipe in enumerate(pipes):
            if other != rank:
                os.close(pipe)
        _be_rank(rank, len(pipes), socket.socket(fileno=pipes[rank]), folder)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _end(pid: int) -> str:
    """Ends a rank and the processes that it started. Returns how it had ended: a signal's name or an exit status."""
    for end in (os.killpg, os.kill):  # the rank may not have made its process group yet
        with contextlib.suppress(ProcessLookupError):
            end(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.WEXITSTATUS(status)}"


# ---- a rank ----


def _be_rank(rank: int, size: int, pipe: socket.socket, folder: str) -> None:
    os.setpgid(0, 0)
    said = os.open(f"{folder}/said{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.close(said)
    for stream in (sys.stdout, sys.stderr):
        cast(io.TextIOWrapper, stream).reconfigure(line_buffering=True)  # so output before a crash is not lost
    stack = open(f"{folder}/stack{rank}", "w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    torch.set_num_threads(1)
    store = _store(0, size) if rank == 0 else None
    pipe.sendall(f"{os.getpid()} {store.port if store else 0}".encode())
    while reported := pipe.recv(1):
        if reported == b"p":
            pipe.sendall(b"p")
            continue
        with open(f"{folder}/call", "rb") as file:
            call = pickle.load(file)
        port, name = call["store"]
        store = store or _store(port, size)
        answer = _outcome(call, rank, PrefixStore(name, store), size)
        with open(f"{folder}/answer{rank}", "wb") as file:
            pickle.dump((*answer, time.monotonic()), file)
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.sendall(b"a")


def _store(port: int, size: int) -> Any:
    """The store through which the ranks form process groups. Port 0: this rank serves it, on a free port."""
    return TCPStore("127.0.0.1", port, size, is_master=port == 0, wait_for_workers=False)


def _outcome(call: dict[str, Any], rank: int, store: Any, size: int) -> tuple[str, Any]:
    try:
        return "passed", _play(call, rank, store, size)
    except BaseException as error:
        if type(error).__name__ == "Skipped":
            return "skipped", str(error)
        _tell_others(rank, error)
        return "failed", _reported(error)


def _play(call: dict[str, Any], rank: int, store: Any, size: int) -> bytes:
    os.environ.clear()
    os.environ.update(call["environment"], RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.chdir(call["folder"])
    sys.path[:] = call["path"] + [entry for entry in sys.path if entry not in call["path"]]
    body = find(call)
    arguments, named = pickle.loads(call["arguments"])
    after = datetime.timedelta(seconds=call["timeout"] + _LATER)
    dist.init_process_group("addend", store=store, rank=rank, world_size=size, timeout=after)
    torch.manual_seed(call["seed"])
    answer = _pickled(body, body(*arguments, **named))
    if dist.is_initialized():
        _meet_at_the_end(call["name"])
        dist.destroy_process_group()
    gc.collect()  # frees models, which may be in the group's shared memory
    return answer


def _meet_at_the_end(name: str) -> None:
    """A barrier after the body, so that a rank that makes fewer calls than the others gets an error, which names "the
    end of NAME" as its place."""
    exec(compile("dist.barrier()", f"the end of {name}", "exec"), {"dist": dist})


def _pickled(body: Any, result: Any) -> bytes:
    try:
        return pickle.dumps(result)
    except Exception as error:
        name = getattr(body, "__qualname__", body)
        raise TypeError(
            f"the result of {name} cannot be pickled to send it to the test ({error}): return numbers or plain tensors"
        ) from None


def _tell_others(rank: int, error: BaseException) -> None:
    """Fails all process groups of this rank, so that ranks that wait for it get its error."""
    words = f"rank {rank} raised {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    for group in list(dist.distributed_c10d._world.pg_map):
        if isinstance(group, Group):
            group._calls.fail(words)


def _reported(error: BaseException) -> str:
    """The error's traceback, from the test body on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
