"""Watches one step of a PyTorch job and reports which ranks' addends its summed gradients contain
(python/docs/torch.md)."""

from addend.torch._calls import Call, Calls
from addend.torch._checks import assert_matches_one_process, check, write_reference
from addend.torch._frameworks import deepspeed, megatron
from addend.torch._matrix import matrix, matrix_cells
from addend.torch._mutate import mutate
from addend.torch._options import WatchOptions
from addend.torch._trainer import watch_trainer
from addend.torch._watch import assert_summed, dump, watch
from addend.torch.group import flight_recorder

__all__ = [
    "Call",
    "Calls",
    "WatchOptions",
    "assert_matches_one_process",
    "assert_summed",
    "check",
    "deepspeed",
    "dump",
    "flight_recorder",
    "matrix",
    "matrix_cells",
    "megatron",
    "mutate",
    "watch",
    "watch_trainer",
    "write_reference",
]
