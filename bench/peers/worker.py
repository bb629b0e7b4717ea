"""A rank's side of a measurement for peers written in Python: the same conversation as bench/worker.c. Usage of the peers:
PEER ADDRESS RANK RANKS PORT, one process per rank, one thread each."""
import os
import socket
import sys
import time

ADDRESS, RANK, RANKS, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1")  # no processes of its own that outlive a rank


class Task:
    def __init__(self, line):
        self.op, self.dtype, self.memory, self.storage, bytes_, in_place, iterations = line.split()
        self.bytes, self.in_place, self.iterations = int(bytes_), in_place == "1", int(iterations)


def seconds_of(task, prepare, barrier):
    """`prepare(task)` gives a function that runs the task once, or None where the peer cannot do it."""
    run = prepare(task)
    if run is None:
        return -1
    for _ in range(1 + task.iterations // 10 if task.iterations > 1 else 0):
        run()
    barrier()
    start = time.perf_counter()
    for _ in range(max(task.iterations, 1)):
        run()
    return (time.perf_counter() - start) / task.iterations if task.iterations else 0


def work(prepare, barrier):
    conductor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conductor.connect("\0" + ADDRESS)
    conductor.send(f"{RANK}\0".encode())
    while line := conductor.recv(256):
        task = Task(line.rstrip(b"\0").decode())
        try:
            seconds = seconds_of(task, prepare, barrier)
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            print(f"{sys.argv[0]}: {task.op} {task.dtype}: {error}".splitlines()[0], file=sys.stderr)
            seconds = -1
        conductor.send(f"{seconds:.9g}\0".encode())
