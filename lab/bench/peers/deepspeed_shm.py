"""Measures DeepSpeed's all_reduce through shared memory. Its csrc/cpu/comm/shm.cpp is fetched from the package index and compiled with the
options of DeepSpeed's builder at the first measurement. It sums f32 and bf16 in place."""
import ctypes
import fcntl
import hashlib
import os
import pathlib
import subprocess
import sys
import tarfile

import torch_backend
import torch_buffers
import worker
import torch
import torch.distributed as dist

VERSION = "0.19.8"
FOLDER = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "addend" / "deepspeed"
HARNESS = pathlib.Path(__file__).with_suffix(".cpp")
# Replaces PyTorch's header by the parts that shm.cpp uses, since the whole header takes a minute to compile.
HEADER = "#include <ATen/ATen.h>\nnamespace torch { using at::Tensor; }\n"
ADDRESS, PREFIX = "127.0.0.1", "/dev/shm/deepspeed_allreduce_buffer"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def do(*words):
    result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise RuntimeError(f"{words[0]} fails: {result.stdout.strip().splitlines()[-1:]}")


def fetch():
    """Fetches the source distribution, if it is not there yet; returns the folder of shm.cpp."""
    comm = FOLDER / f"deepspeed-{VERSION}" / "csrc" / "cpu" / "comm"
    if not comm.exists():
        do(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:",
           "--no-build-isolation", "--dest", str(FOLDER), f"deepspeed=={VERSION}")
        with tarfile.open(FOLDER / f"deepspeed-{VERSION}.tar.gz") as archive:
            within = f"deepspeed-{VERSION}/csrc/cpu/comm/"
            archive.extractall(FOLDER, [member for member in archive if member.name.startswith(within)])
    return comm


def compile_to(library):
    comm, include = fetch(), pathlib.Path(torch.__file__).parent / "include"
    header = FOLDER / "include" / "torch" / "extension.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(HEADER)
    made = f"{library}.{os.getpid()}"
    do(os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-fopenmp", "-fPIC", "-shared", f"-I{header.parent.parent}", f"-I{comm}", f"-I{include}",
       f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", str(comm / "shm.cpp"), str(HARNESS),
       f"-L{include.parent / 'lib'}", "-lc10", "-ltorch_cpu", "-o", made)
    os.rename(made, library)


def library():
    """The compiled library. One rank compiles it, the others wait."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    made_of = hashlib.sha256(f"{VERSION} {torch.__version__} {HEADER}".encode() + HARNESS.read_bytes()).hexdigest()[:16]
    path = FOLDER / f"shm-{made_of}.so"
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            compile_to(path)
    return ctypes.CDLL(str(path))


def start():
    """Starts DeepSpeed's shared memory, and deletes its files once all ranks have opened them, since it leaves them."""
    found = library()
    dist.barrier()
    found.peer_start(worker.RANKS, worker.RANK, ADDRESS.encode(), worker.PORT.encode())
    dist.barrier()
    os.unlink(f"{PREFIX}_{os.getuid()}_{ADDRESS}_{worker.PORT}_{worker.RANK}")
    return found


class AllReduce:
    def __init__(self, tensor):
        self.tensor = tensor

    def repeat(self, times):
        tensor = self.tensor
        held["library"].peer_all_reduce(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel()), tensor.itemsize, times)


def look(run, tensor):
    tensor.copy_(torch_buffers.numbers(worker.RANK + 1, 0, tensor))
    run.repeat(1)
    torch_buffers.check(tensor, torch_buffers.numbers(worker.RANKS * (worker.RANKS + 1) // 2, 0, tensor))
    tensor.zero_()


def prepare(task):
    if task.op != "all_reduce" or not task.in_place or task.dtype not in DTYPES:
        return None
    if "library" not in held:
        held["library"] = start()
    dtype = DTYPES[task.dtype]
    tensor = torch_buffers.buffer("whole", task.bytes // dtype.itemsize, dtype)
    run = AllReduce(tensor)
    if not task.iterations:
        look(run, tensor)
    return run


held = {}
torch.set_num_threads(1)
worker.bind()
torch_backend.start("gloo")
worker.work(prepare, dist.barrier)
dist.destroy_process_group()
