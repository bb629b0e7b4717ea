"""`check`: do n ranks of a PyTorch job compute what one process computes, and where does it begin to be wrong?"""

from addend.torch._proof._check import assert_matches_one_process, check, write_reference

__all__ = ["assert_matches_one_process", "check", "write_reference"]
