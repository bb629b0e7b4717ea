"""Write the tables of torch.distributed.pipelining in this folder, by its own _dump_csv, without a process group.

  python3 generate.py FOLDER

NAME.compute.csv has compute actions alone, NAME.comms.csv also the communication that PyTorch adds when it lowers the
table.
"""
import csv
import pathlib
import sys

import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase


class Stage(_PipelineStageBase):
    """What a schedule asks of a stage to make its table."""

    def __init__(self, index, rank, ranks, stages):
        self.stage_index, self.group_rank, self.group_size, self.num_stages = index, rank, ranks, stages
        self.group = self.submod = None
        self.stage_index_to_group_rank = {}

    def _create_grad_recv_info(self, *args, **kwargs): ...
    def _prepare_forward_infra(self, *args, **kwargs): ...
    def _prepare_backward_infra(self, *args, **kwargs): ...
    def _get_init_p2p_neighbors_ops(self): return []


def stages_of(ranks, each):
    return [Stage(i * ranks, 0, ranks, ranks * each) for i in range(each)]


def stages_of_v(ranks):
    """The stages of rank 0 where each rank has two and the second ones come back from the last rank to the first."""
    return [Stage(i, 0, ranks, 2 * ranks) for i in (0, 2 * ranks - 1)]


def dump(folder, name, schedule):
    for form, word in (("compute_only", "compute"), ("compute_comms", "comms")):
        schedule._dump_csv(folder / f"{name}.{word}.csv", format=form)


def dump_single(folder, name, kind, ranks, microbatches):
    """Write the tables of GPipe and 1F1B, which have one stage a rank, contain REDUCE_GRAD, and have no _dump_csv."""
    schedule = object.__new__(kind)
    schedule._num_stages, schedule._n_microbatches = ranks, microbatches
    with open(folder / f"{name}.csv", "w", newline="") as file:
        csv.writer(file).writerows(schedule._get_pipeline_order().values())


def main():
    folder = pathlib.Path(sys.argv[1])
    def loss(*args): return torch.zeros(())
    dump_single(folder, "gpipe", schedules.ScheduleGPipe, 3, 4)
    dump_single(folder, "1f1b", schedules.Schedule1F1B, 4, 6)
    dump(folder, "interleaved", schedules.ScheduleInterleaved1F1B(stages_of(2, 2), 4, loss_fn=loss))
    dump(folder, "interleaved-zb", schedules.ScheduleInterleavedZeroBubble(stages_of(4, 1), 8, loss_fn=loss))
    dump(folder, "looped-bfs", schedules.ScheduleLoopedBFS(stages_of(2, 3), 3, loss_fn=loss))
    dump(folder, "zbv", schedules.ScheduleZBVZeroBubble(stages_of(3, 2), 6, loss_fn=loss))
    dump(folder, "dualpipev", schedules.ScheduleDualPipeV(stages_of(2, 2), 4, loss_fn=loss))
    deferred = schedules.ScheduleInterleaved1F1B(stages_of(2, 2), 4, loss_fn=loss, defer_pp_recv=True)
    deferred._dump_csv(folder / "interleaved-deferred.comms.csv", format="compute_comms")
    # Wrong: a rank receives from another in another order than that one sends.
    deferred = schedules.ScheduleInterleavedZeroBubble(stages_of(2, 2), 4, loss_fn=loss, defer_pp_recv=True)
    deferred._dump_csv(folder / "interleaved-zb-deferred.comms.csv", format="compute_comms")


if __name__ == "__main__":
    main()
