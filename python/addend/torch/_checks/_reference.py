"""Writes and reads what one process computed: for models that fit into memory only once, and for references that many
checks use. The file is safetensors; its metadata has checksums of the model, the batch and the tensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy
import torch

import addend
from addend._dtypes import DTYPES
from addend.torch._checks._draws import Draw, Drawn
from addend.torch._checks._job import Whole
from addend.torch._checks._trace import Record
from addend.torch._replace import replacing

_FORMAT = 1
_DTYPES = {dtype.safetensors: numpy.dtype(dtype.numpy) for dtype in DTYPES if dtype.numpy and dtype.safetensors}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class _Damaged(Exception):
    """Says what is wrong with a reference file."""


def _put(path: str, metadata: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    header: dict[str, Any] = {}
    at, digest = 0, hashlib.sha256()
    for name, values in found.items():
        header[name] = {
            "dtype": _NAMES[values.dtype],
            "shape": list(values.shape),
            "data_offsets": [at, at + values.nbytes],
        }
        digest.update(values.tobytes())
        at += values.nbytes
    header["__metadata__"] = {"addend.reference": json.dumps({**metadata, "sha256": digest.hexdigest()})}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in found.values():
            file.write(values.tobytes())


def _get(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length + 8 > size:
            raise _Damaged(f"its {size} bytes are no safetensors file, or only the beginning of one")
        try:
            header = json.loads(file.read(length))
            metadata = json.loads(header.pop("__metadata__")["addend.reference"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _Damaged("it was not written by `write_reference`") from error
    if metadata.get("format") != _FORMAT:
        raise _Damaged(f"its format is {metadata.get('format')}, this addend reads {_FORMAT}")
    at = length + 8
    wanted = at + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != wanted:
        raise _Damaged(
            f"it has {size} bytes of {wanted}: it is {'cut off' if size < wanted else 'longer than its header says'}"
        )
    data = numpy.memmap(path, dtype=numpy.uint8, mode="c")
    digest, found = hashlib.sha256(), {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        piece = data[at + begin : at + end]
        digest.update(piece.data)
        found[name] = piece.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    if digest.hexdigest() != metadata["sha256"]:
        raise _Damaged("its tensors were changed after writing: their SHA-256 differs")
    return metadata, found


def write(path: str, whole: Whole, seed: int) -> None:
    """Writes the file that `read` reads."""
    found: dict[str, Any] = {}
    for name, values in whole.weights.items():
        found[f"weight/{name}"] = values
    for name, tensor in whole.state.items():
        if isinstance(tensor, torch.Tensor) and name not in whole.weights:
            found[f"state/{name}"] = tensor.detach().contiguous().numpy()
    for name, values in whole.gradients.items():
        found[f"gradient/{name}"] = values
    for step, after in enumerate(whole.after):
        found.update({f"after/{step}/{name}": values for name, values in after.items()})
    record = whole.record
    if record is not None:
        found.update({f"record/{i}": record.values[key] for i, key in enumerate(record.order)})
    metadata = {
        "format": _FORMAT,
        "addend": addend.__version__,
        "torch": torch.__version__,
        "seed": seed,
        "steps": len(whole.after),
        "model": whole.model_mark,
        "batch": whole.batch_mark,
        "loss": whole.loss,
        "count": whole.count,
        "aliases": whole.aliases,
        "said": sorted(whole.said),
        "batches": whole.batches,
        "drawn": [[dataclasses.astuple(draw) for draw in step.draws] for step in whole.drawn or ()],
        "own_error": whole.own_error,
        "record": None if record is None else {
            "order": record.order, "places": record.places, "kinds": record.kinds, "collectives": record.collectives,
            "evaluates": record.evaluates,
        },
    }  # fmt: skip
    try:
        _put(
            path,
            metadata,
            {name: numpy.ascontiguousarray(values).reshape(values.shape) for name, values in found.items()},
        )
    except (OSError, KeyError) as error:
        raise addend.SystemRefusedError(f"{path} could not be written: {error}") from error


def _tensors(found: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {name[len(kind) :]: values for name, values in found.items() if name.startswith(kind)}


def _record(metadata: Mapping[str, Any], found: Mapping[str, Any]) -> Any:
    reported = metadata["record"]
    if reported is None:
        return None
    order: list[Any] = [tuple(key) for key in reported["order"]]
    values = {key: found[f"record/{i}"] for i, key in enumerate(order)}
    collectives = [tuple(entry) for entry in reported["collectives"]]
    return Record(
        values, order, reported["places"], reported["kinds"], collectives, evaluates=reported.get("evaluates", True)
    )  # earlier files do not have it


def read(path: str, seed: int, steps: int) -> Whole:
    """Reads what `write` wrote. The ranks then check that it is of this job's model and batch."""
    try:
        metadata, found = _get(path)
    except OSError as error:
        raise addend.InvalidError(f"reference={path!r} could not be read: {error.strerror or error}") from error
    except _Damaged as error:
        raise addend.InvalidError(f"{path} is not a reference file: {error}") from error
    if metadata["seed"] != seed:
        raise addend.InvalidError(
            f"{path} was written with seed={metadata['seed']}, but this check has seed={seed}: write the reference "
            "again, or set the same seed"
        )
    if metadata["steps"] < steps:
        raise addend.InvalidError(
            f"{path} has parameters after {metadata['steps']} optimizer steps, but this check has steps={steps}: "
            "write the reference again"
        )
    weights = _tensors(found, "weight/")
    state = {name: torch.from_numpy(values) for name, values in {**weights, **_tensors(found, "state/")}.items()}
    after = [_tensors(found, f"after/{step}/") for step in range(steps)]
    said = set(metadata["said"])
    if metadata["torch"] != torch.__version__:
        said.add(f"the reference was written with PyTorch {metadata['torch']}, the ranks have {torch.__version__}")
    reported = metadata.get("drawn")  # earlier files do not have it
    drawn = None if reported is None else [Drawn([Draw(*draw) for draw in step]) for step in reported]
    return Whole(
        metadata["loss"], metadata["count"], weights, state, _tensors(found, "gradient/"), metadata["aliases"], after,
        _record(metadata, found), said, metadata["batches"], drawn, metadata["own_error"], metadata["model"],
        metadata["batch"], path,
    )  # fmt: skip
