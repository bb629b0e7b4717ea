"""The pool of ranks that run one test body after another, as seen from the test's process: starts the ranks, sends them
what to run, and reports how each one ended. _testing_rank.py is the ranks' side.

A server process imports PyTorch once, without starting threads, and forks the ranks, so that new ranks after a failure
need no import. The server and all ranks end when this process ends, in whatever way."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from addend._errors import SystemRefusedError

_IMPORTS = 300.0  # seconds that starting the ranks may take
_ANSWER = 60.0  # seconds in which a process that waits for its next body answers, on a machine however loaded
_OTHERS = 5.0  # seconds after which the other ranks are ended, once one rank has failed
_GENTLY = 10.0  # seconds that the server has to end by itself; it is killed after them
_STACKS = 2.0  # seconds to wait for the stack of a rank that hangs
_LINES = 12  # lines of such a stack that are shown
_PACKAGES = str(Path(__file__).resolve().parents[2])
_SERVE = "import sys; sys.path[:0] = [sys.argv[1]]; from addend.torch._testing_rank import serve; serve(*sys.argv[2:])"
_FOLLOWS = ("PeerFailedError", "RankLeftError", "RankDiedError")  # errors that follow from another rank's failure
_IN_A_CALL = "_group_calls.py"
_BELOW_THE_BODY = "_testing_rank.py"


class Ended(NamedTuple):
    """How a body ended on a rank."""

    outcome: str  # passed, failed, skipped, died or hung
    text: Any  # the pickled result; the traceback; the reason for skipping; how it died; the stack
    when: float  # time.monotonic() at the end

    def order(self) -> tuple[int, float]:
        """A sort key by which the likely cause comes first: failures, then errors that follow from another rank's
        failure, then ranks that hang outside collectives, then ranks that wait in one."""
        if self.outcome == "passed":
            return 4, self.when
        if self.outcome == "hung":
            return 3 if _IN_A_CALL in self.text else 2, self.when
        follows = self.outcome == "failed" and any(name in self.text for name in _FOLLOWS)
        return (1 if follows else 0), self.when


class Pool:
    """`size` ranks, which are started for the first body."""

    def __init__(self, size: int):
        self.size = size
        self._server: subprocess.Popen[bytes] | None = None
        self._pipes: list[socket.socket] = []  # one to each rank
        self._pids: list[int] = []
        self._bodies = 0

    # ---- running a body on all ranks ----

    def run(self, place: dict[str, Any], seconds: float) -> tuple[str, Any, list[str]]:
        """Runs a body: ("passed", the ranks' pickled results, output), ("skipped", reason, output) or ("failed",
        message, output), where output is what each rank printed."""
        try:
            self._start()
            ended = self._play(place, seconds)
        except BaseException:  # KeyboardInterrupt in this process
            self.close()
            raise
        said = [self._read(f"said{rank}") for rank in range(self.size)]
        if all(one.outcome == "passed" for one in ended):
            return "passed", [one.text for one in ended], said
        ended = self._end_ranks(ended)
        first = min(range(self.size), key=lambda rank: ended[rank].order())
        if ended[first].outcome == "skipped":
            return "skipped", ended[first].text, said
        return "failed", _reported(ended, first, seconds), said

    def _play(self, place: dict[str, Any], seconds: float) -> list[Ended]:
        self._bodies += 1
        call = dict(
            place,
            path=sys.path,
            folder=os.getcwd(),
            environment=dict(os.environ),
            store=(self._port, str(self._bodies)),
        )
        (self._folder / "call").write_bytes(pickle.dumps(call))
        for rank in range(self.size):
            os.truncate(self._folder / f"said{rank}", 0)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # the rank died, which _await() finds
                pipe.sendall(b"c")
        return self._await(time.monotonic() + seconds)

    def _await(self, deadline: float) -> list[Ended]:
        found: dict[int, Ended] = {}
        while len(found) < self.size:
            left = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            ready = wait(left, max(0.0, deadline - time.monotonic()))
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                found[rank] = self._ended(rank)
                if found[rank].outcome != "passed":
                    deadline = min(deadline, time.monotonic() + _OTHERS)
            if not ready:
                break
        return [found.get(rank) or self._where(rank) for rank in range(self.size)]

    def _ended(self, rank: int) -> Ended:
        """How a rank ended, once its pipe is readable; a closed pipe means that it died."""
        with contextlib.suppress(OSError):
            if self._pipes[rank].recv(1):
                return Ended(*pickle.loads((self._folder / f"answer{rank}").read_bytes()))
        return Ended("died", "", time.monotonic())

    def _where(self, rank: int) -> Ended:
        """The stack of a rank that does not end; SIGUSR1 makes it write one."""
        os.kill(self._pids[rank], signal.SIGUSR1)  # it cannot be another process's id before the server's waitpid
        end, before = time.monotonic() + _STACKS, ""
        while time.monotonic() < end:
            time.sleep(0.05)
            text = self._read(f"stack{rank}")
            if text and text == before:
                break
            before = text
        lines = list(itertools.takewhile(lambda line: _BELOW_THE_BODY not in line, before.splitlines()[1:]))[:_LINES]
        return Ended("hung", "\n".join(lines) or "  an unknown place: it is stopped, or in a system call", end)

    def _read(self, name: str) -> str:
        return (self._folder / name).read_text(errors="replace")

    # ---- starting and ending the ranks and their server ----

    def _start(self) -> None:
        """Makes sure that all ranks run and wait for a body. Asks the server and every rank: one that was killed cannot
        answer, even if its end is not to be seen yet."""
        if self._pipes and self._all_answer():
            return
        if self._pipes:
            self._end_ranks([])
        if self._server is None:
            self._start_server()
        pairs = [socket.socketpair() for _ in range(self.size)]
        self._pipes = [here for here, _ in pairs]
        with contextlib.suppress(OSError):  # the server died, which _hear() finds
            socket.send_fds(self._control, [b"s"], [there.fileno() for _, there in pairs])
        for _, there in pairs:
            there.close()
        try:
            said = [self._hear(pipe) for pipe in self._pipes]
        except BaseException:
            self.close()
            raise
        self._pids = [pid for pid, _ in said]
        self._port = said[0][1]

    def _all_answer(self) -> bool:
        for peer in (self._control, *self._pipes):  # the server first, since the ranks end with it
            peer.settimeout(_ANSWER)
            try:
                peer.sendall(b"p")
                if not peer.recv(1):
                    return False
            except OSError:  # no answer in time, or its end was closed
                return False
            peer.settimeout(None)
        return True

    def _hear(self, pipe: socket.socket) -> tuple[int, int]:
        """Waits until a rank has started: its process id, and the port of the TCPStore if it is rank 0 (else 0)."""
        pipe.settimeout(_IMPORTS)
        try:
            said = pipe.recv(32)
        except TimeoutError:
            said = b""
        if not said:
            raise SystemRefusedError(f"the ranks of a test did not start:\n{self._read('started')}")
        pipe.settimeout(None)
        pid, port = said.split()
        return int(pid), int(port)

    def _start_server(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="addend-"))
        self._control, there = socket.socketpair()
        environment = dict(os.environ)
        environment.setdefault("OMP_NUM_THREADS", "1")
        command = [sys.executable, "-c", _SERVE, _PACKAGES, str(there.fileno()), str(self._folder), str(self.size)]
        with there, (self._folder / "started").open("wb") as said:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                pass_fds=[there.fileno()],
                start_new_session=True,  # Ctrl-C reaches only the test's process, which then ends the ranks
            )
        self._owner = os.getpid()
        atexit.register(self.close)

    def _end_ranks(self, ended: list[Ended]) -> list[Ended]:
        """Ends all ranks. Returns `ended` with, for each rank that had died, how it died."""
        try:
            self._control.sendall(b"e")
            self._control.settimeout(_IMPORTS)
            hows = json.loads(self._control.recv(1 << 16) or b"null") or ["its server died"] * self.size
            self._control.settimeout(None)
        except OSError:
            hows = ["its server died"] * self.size
        self._forget_ranks()
        if hows[0] == "its server died":
            self.close()
        return [one._replace(text=how) if one.outcome == "died" else one for one, how in zip(ended, hows)]

    def _forget_ranks(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._pids = [], []

    def close(self) -> None:
        """Ends the ranks and the server; does nothing in a process forked from the one that started them."""
        if self._server is None or os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self._control.close()  # makes the server end
        self._forget_ranks()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(_GENTLY)
        finally:
            self._server.kill()  # does nothing if it has ended; else the ranks end with it
            self._server.wait()
            self._server = None
            shutil.rmtree(self._folder, ignore_errors=True)


def _reported(ended: list[Ended], first: int, seconds: float) -> str:
    """The failure's message: all of what rank `first` said, and one line for each different end of the other ranks."""
    size, one = len(ended), ended[first]
    head = {
        "failed": f"rank {first} of {size} failed:\n{one.text}",
        "died": f"rank {first} of {size} died: {one.text}",
        "hung": f"rank {first} of {size} did not end in {seconds:g} s; it is in\n{one.text}",
    }[one.outcome]
    others: dict[str, list[str]] = {}
    for rank, other in enumerate(ended):
        if rank != first:
            others.setdefault(_line(other), []).append(str(rank))
    lines = [f"rank{'s' * (len(who) > 1)} {', '.join(who)} {line}" for line, who in others.items()]
    return "\n".join([head.rstrip("\n"), *lines])


def _line(one: Ended) -> str:
    if one.outcome == "hung":
        return f"did not end either, in\n{one.text}"
    if one.outcome == "failed":
        return f"failed: {one.text.strip().splitlines()[-1]}"
    return {"passed": "passed", "died": f"died: {one.text}", "skipped": f"skipped: {one.text}"}[one.outcome]
