"""A measured rank of a peer in Python: receives tasks from the conductor and answers as lab/bench/worker.c does. Usage of the peers:
PEER ADDRESS RANK RANKS PORT, one process per rank, one thread each."""
import os
import socket
import sys
import time

ADDRESS, RANK, RANKS, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", MASTER_PORT=PORT)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # already set if ranks are on several hosts
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1")  # no compile processes, which would outlive a rank


def bind():
    """Binds this rank to a core if there is one for every rank, as lab/bench/worker.c does."""
    cores = sorted(os.sched_getaffinity(0))
    if RANKS <= len(cores):
        os.sched_setaffinity(0, cores[RANK : RANK + 1])


def repeat(run, times):
    """Runs a task repeatedly; a peer in another language has its own loop, run.repeat."""
    if hasattr(run, "repeat"):
        return run.repeat(times)
    for _ in range(times):
        run()


class Task:
    def __init__(self, line):
        self.op, self.dtype, self.memory, self.storage, bytes_, in_place, iterations = line.split()
        self.bytes, self.in_place, self.iterations = int(bytes_), in_place == "1", int(iterations)


def seconds_of(task, prepare, barrier):
    """(seconds, processor seconds) of one iteration. prepare(task) gives a function that runs the task once, or None if the peer cannot do it."""
    run = prepare(task)
    if run is None:
        return -1, 0
    repeat(run, 1 + task.iterations // 10 if task.iterations > 1 else 0)
    barrier()
    start, started = time.perf_counter(), time.process_time()
    repeat(run, max(task.iterations, 1))
    if not task.iterations:
        return 0, 0
    return (time.perf_counter() - start) / task.iterations, (time.process_time() - started) / task.iterations


def work(prepare, barrier):
    conductor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conductor.connect(ADDRESS if ADDRESS.startswith("/") else "\0" + ADDRESS)
    conductor.send(f"{RANK}\0".encode())
    while line := conductor.recv(256):
        task = Task(line.rstrip(b"\0").decode())
        try:
            seconds, busy = seconds_of(task, prepare, barrier)
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            print(f"{sys.argv[0]}: {task.op} {task.dtype}: {error}".splitlines()[0], file=sys.stderr)
            seconds, busy = -1, 0
        conductor.send(f"{seconds:.9g} {busy:.9g}\0".encode())
