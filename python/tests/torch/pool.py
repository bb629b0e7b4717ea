"""Ranks that start once and run one job after another: processes forked after PyTorch was imported, with a gloo
process group for each number of ranks. A job that hangs or kills a rank ends its pool; the next job starts another.
"""

import contextlib
import io
import logging
import multiprocessing
import os
import tempfile
import time
import traceback
from multiprocessing.connection import wait

import torch
import torch._dynamo  # noqa: F401  once here, not in each rank
import torch.distributed as dist

import ranks

JOB_HANGS = 90  # seconds
LEFT_ALONE = 5  # seconds that other ranks have once a rank failed


class JobError(Exception):
    """A rank raised, died or did not end; the text has the last line that it printed."""


def _be_rank(rank, world, store, pipe):
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # threads of ranks that are ended print a lot
    dist.init_process_group(ranks.take_device(), init_method=f"file://{store}", rank=rank, world_size=world)
    while True:
        function, arguments = pipe.recv()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                answer = (True, function(*arguments))
        except BaseException as error:
            answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        torch._dynamo.reset()  # the next job compiles its own functions
        pipe.send(answer)


class Pool:
    """A pool of ranks: `run(function, ...)` returns what the function returned on each of `world` ranks."""

    def __init__(self, world):
        self.world = world
        self._ranks = []

    def _start(self):
        context = multiprocessing.get_context("fork")
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(self.world):
            here, there = context.Pipe()
            arguments = (rank, self.world, f"{self._folder.name}/store", there)
            process = context.Process(target=_be_rank, args=arguments, daemon=True)
            process.start()
            there.close()
            self._ranks.append((process, here))

    def end(self):
        for process, _ in self._ranks:
            process.kill()
            process.join()
        if self._ranks:
            self._folder.cleanup()
        self._ranks.clear()

    def run(self, function, *arguments):
        if not self._ranks:
            self._start()
        for _, pipe in self._ranks:
            pipe.send((function, arguments))
        answers, errors, deadline = {}, {}, time.monotonic() + JOB_HANGS
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(self._ranks)}
        while len(answers) + len(errors) < self.world:
            left = [pipe for pipe, rank in pipes.items() if rank not in answers and rank not in errors]
            ready = wait(left, max(0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                try:
                    ended, answer = pipe.recv()
                except EOFError:
                    ended, answer = False, "it died"
                (answers if ended else errors)[pipes[pipe]] = answer
                if not ended:
                    deadline = min(deadline, time.monotonic() + LEFT_ALONE)
        if len(answers) == self.world:
            return [answers[rank] for rank in range(self.world)]
        self.end()
        rank, said = next(iter(errors.items()), (None, f"did not end in {JOB_HANGS} s"))
        raise JobError(said if rank is None else f"rank {rank}: {said}")
