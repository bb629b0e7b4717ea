"""The task "exchange" with gloo: ranks exchange counts, then rows, and sort them by expert; then the same back."""
import itertools

import worker
import torch
import torch.distributed as dist

EXPERTS, WIDTH = 8, 512  # the same numbers as in lab/bench/routes.h
torch.set_num_threads(1)
held = {}


def counts(rows, rank):
    """The number of rows that a rank sends to each expert, as in lab/bench/routes.c."""
    ends = list(itertools.accumulate((1 + (3 * rank + 5 * e) % 7 for e in range(EXPERTS)), initial=0))
    starts = [rows * end // ends[-1] for end in ends]
    return [end - start for start, end in zip(starts, starts[1:])]


def prepare_rows(rows):
    own = EXPERTS // worker.RANKS
    sent = counts(rows, worker.RANK)
    come = [counts(rows, r)[worker.RANK * own : (worker.RANK + 1) * own] for r in range(worker.RANKS)]
    send_rows = [sum(sent[r * own : (r + 1) * own]) for r in range(worker.RANKS)]
    receive_rows = [sum(of_rank) for of_rank in come]
    expert = torch.cat([torch.arange(own).repeat_interleave(torch.tensor(of_rank)) for of_rank in come])
    order = torch.argsort(expert, stable=True)
    x = (worker.RANK * 65536 + torch.arange(rows)).float()[:, None].repeat(1, WIDTH)
    reported, per_expert = torch.empty(worker.RANKS * own, dtype=torch.int64), torch.tensor(sent)
    came, placed, left, back = (torch.zeros(n, WIDTH) for n in (len(order), len(order), len(order), rows))

    def there_and_back():
        dist.all_to_all_single(reported, per_expert)
        dist.all_to_all_single(came, x, receive_rows, send_rows)
        torch.index_select(came, 0, order, out=placed)
        left.index_copy_(0, order, placed)
        dist.all_to_all_single(back, left, send_rows, receive_rows)

    there_and_back()
    senders = (placed[:, 0] // 65536).int()
    expected = [r for e in range(own) for r in range(worker.RANKS) for _ in range(come[r][e])]
    if not torch.equal(back, x) or senders.tolist() != expected:
        raise RuntimeError("rows are not where they belong")
    return there_and_back


def prepare(task):
    if task.op != "exchange" or EXPERTS % worker.RANKS:
        return None
    if task.bytes not in held:
        held.clear()
        held[task.bytes] = prepare_rows(task.bytes // (4 * WIDTH))
    return held[task.bytes]


dist.init_process_group("gloo", rank=worker.RANK, world_size=worker.RANKS)
worker.work(prepare, dist.barrier)
dist.destroy_process_group()
