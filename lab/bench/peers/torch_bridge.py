"""The task "bridge" with gloo: a batch goes over a bridge between pairs of ranks and its gradient back (lab/bench/sides.h)."""
import worker
import torch
import torch.distributed as dist

torch.set_num_threads(1)
held = {}


def prepare_sides(direction, numel):
    own, before = numel // worker.RANKS, worker.RANK // 2 * 2
    one, pair = (torch.arange(first * own, first * own + count * own) % 1021 for first, count in ((worker.RANK, 1), (before, 2)))
    one, pair = one.float(), pair.float()
    source, gradient = (one, pair) if direction == "fan_in" else (pair, one)
    destination, back = torch.empty_like(gradient), torch.empty_like(source)
    place = slice((worker.RANK - before) * own, (worker.RANK - before + 1) * own)

    def fan_in():
        dist.all_gather_into_tensor(destination, source, group=pairs[worker.RANK // 2])
        dist.reduce_scatter_tensor(back, gradient, group=pairs[worker.RANK // 2])

    def fan_out():
        destination.copy_(source[place])
        dist.all_gather_into_tensor(back, gradient, group=pairs[worker.RANK // 2])

    run, addends = (fan_in, 2) if direction == "fan_in" else (fan_out, 1)
    run()
    if not torch.equal(destination, gradient) or not torch.equal(back, addends * source):
        raise RuntimeError("the batch is not where it belongs")
    return run


def prepare(task):
    if task.op != "bridge" or task.storage == "equal" or worker.RANKS % 2:
        return None
    key = (task.storage, task.bytes)
    if key not in held:
        held.clear()
        held[key] = prepare_sides(task.storage, task.bytes // 4)
    return held[key]


dist.init_process_group("gloo", rank=worker.RANK, world_size=worker.RANKS)
pairs = [dist.new_group([rank, rank + 1]) for rank in range(0, worker.RANKS - 1, 2)]
worker.work(prepare, dist.barrier)
dist.destroy_process_group()
