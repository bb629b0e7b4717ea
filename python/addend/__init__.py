"""addend: typed gradients in distributed training, and the proofs of them. docs/python.md has examples of everything."""
from addend._diff import DiffNorm, DiffParam, DiffReference, DiffReport, diff
from addend._errors import (AddendError, CycleError, FileError, GradientError, InvalidError, LayoutError,
                            MismatchError, NoMemoryError, NumberError, PeerFailedError, RankDiedError, RankLeftError,
                            StoppedError, SystemRefusedError)

__all__ = [
    "AddendError", "CycleError", "DiffNorm", "DiffParam", "DiffReference", "DiffReport", "FileError", "GradientError",
    "InvalidError", "LayoutError", "MismatchError", "NoMemoryError", "NumberError", "PeerFailedError", "RankDiedError",
    "RankLeftError", "StoppedError", "SystemRefusedError", "diff",
]
