"""gloo through torch.distributed, on flat tensors."""
import worker
import torch
import torch.distributed as dist

torch.set_num_threads(1)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
held = {}


def buffer(name, numel, dtype):
    if name not in held or held[name].numel() != numel or held[name].dtype != dtype:
        held[name] = torch.zeros(numel, dtype=dtype)
    return held[name]


def prepare(task):
    if task.dtype not in DTYPES:
        return None
    dtype, ranks = DTYPES[task.dtype], worker.RANKS
    numel = task.bytes // dtype.itemsize
    block = numel // ranks
    whole = buffer("whole", numel, dtype)
    own = whole[worker.RANK * block : (worker.RANK + 1) * block] if task.in_place else buffer("own", block, dtype)
    if task.op == "all_reduce" and task.in_place:
        return lambda: dist.all_reduce(whole)
    if task.op == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, own)
    if task.op == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(own, whole)
    if task.op == "all_to_all":
        out = buffer("out", numel, dtype)
        return lambda: dist.all_to_all_single(out, whole)
    return None


dist.init_process_group("gloo", rank=worker.RANK, world_size=worker.RANKS)
worker.work(prepare, dist.barrier)
dist.destroy_process_group()
