"""`check` compares what the ranks of a PyTorch job compute with one process, and finds where the first error arises."""

from addend.torch._checks._check import assert_matches_one_process, check, write_reference

__all__ = ["assert_matches_one_process", "check", "write_reference"]
