"""Gives parameters names that are the same on all ranks. Two pipeline stages may use one name for different parameters,
and the first and last stage may have one tied parameter under two names."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

import torch

from addend.torch import _gather, _meshes, _parameters, _sample
from addend.torch._gather import Group
from addend.torch._parameters import Watched
from addend.torch._pipeline import Stage

Tied = Optional[Sequence[Collection[str]]]
_Reported = list[tuple[str, int]]  # one rank's parameters: name, and index of the pipeline stage (-1: none)
Checked = tuple[_sample.Box, str]  # box, checksum
_Key = tuple[tuple[int, ...], _sample.Box, str, str]  # global shape, box, dtype, checksum


class _Annotated(NamedTuple):
    """What one rank says of an annotated parameter."""

    kinds: list[tuple[tuple[int, ...], str]]  # by how the ranks of an axis lie from the first of them
    whole: tuple[int, ...]  # the shape of the whole parameter, if fully_shard has it


def checksums(tensors: Sequence[torch.Tensor]) -> list[str]:
    """A checksum of each tensor's bytes; all tensors of a device are copied to the CPU together."""
    found = [""] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        here = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        flat = [tensors[i].detach().contiguous().reshape(-1).view(torch.uint8) for i in here]
        data = torch.cat(flat).cpu().numpy().tobytes()
        at = 0
        for i, part in zip(here, flat):
            found[i] = hashlib.sha256(data[at : at + part.numel()]).hexdigest()[:16]
            at += part.numel()
    return found


def checksum(values: torch.Tensor) -> str:
    return checksums([values])[0]


def _find_stages(watched: Sequence[Watched], stages: Sequence[Stage]) -> _Reported:
    for entry in watched:
        for stage in stages:
            if id(entry.owned) in stage.names or id(entry.used) in stage.names:
                entry.stage = stage
    return [(entry.name, entry.stage.index if entry.stage else -1) for entry in watched]


def _name_in_stage(entry: Watched) -> str:
    stage = entry.stage
    assert stage is not None
    raw = stage.names.get(id(entry.owned)) or stage.names[id(entry.used)]
    return f"stage{stage.index}.{_parameters.plain_names(stage.module)[raw]}"


def _keep_apart(watched: Sequence[Watched], everyones: Iterable[_Reported]) -> list[str]:
    """If two stages use the same name, puts the stage's number before the names of all stages' parameters."""
    owners: dict[str, set[int]] = {}
    for reported in everyones:
        for name, stage in reported:
            owners.setdefault(name, set()).add(stage)
    if any(len(stages) > 1 for stages in owners.values()):
        for entry in watched:
            if entry.stage is not None:
                entry.name = _name_in_stage(entry)
    return [entry.name for entry in watched]


def _unlike(name: str) -> str:
    """The name without numbers. Tied parameters differ in it; parameters of two equal layers do not."""
    return re.sub(r"\d+", "", name)


def _key(entry: Watched) -> _Key | None:
    """The key by which equal parameters are found; None if all values are equal, as initial biases' are."""
    local, box = _meshes.local_part(entry.owned)
    if not local.numel() or local.is_meta or bool((local == local.reshape(-1)[0]).all()):
        return None
    return tuple(entry.owned.shape), box, str(local.dtype), checksum(local)


def _given(tied: Sequence[Collection[str]], holders: dict[str, set[int]]) -> list[list[str]]:
    return [[_resolve(name, holders) for name in names] for names in tied]


def _resolve(name: str, holders: dict[str, set[int]]) -> str:
    """The full name of a parameter that the caller named with or without its stage."""
    found = [name] if name in holders else [own for own in holders if re.sub(r"^stage\d+\.", "", own) == name]
    if len(found) != 1:
        names = sorted(found or holders)
        raise ValueError(
            f"tied: {name} is {'a parameter of several stages' if found else 'no parameter of any rank'}; name one "
            f"of {', '.join(names[:5])}{' ...' * (len(names) > 5)}"
        )
    return found[0]


def _equal(watched: Sequence[Watched], holders: dict[str, set[int]], world: int, group: Group) -> list[list[str]]:
    """Sets of names that are taken for one tied parameter: their values are equal, and no rank has two of them."""

    def mine() -> dict[str, _Key | None]:
        return {entry.name: _key(entry) for entry in watched if len(holders[entry.name]) < world}

    identical: dict[_Key, list[str]] = {}
    for reported in _gather.together(mine, group).values():
        for name, key in reported.items():
            if key is not None and name not in identical.setdefault(key, []):
                identical[key].append(name)
    found = []
    for names in identical.values():
        ranks = [rank for name in names for rank in holders[name]]
        if len(names) > 1 and len({_unlike(name) for name in names}) > 1 and len(ranks) == len(set(ranks)):
            found.append(names)
    return found


def _annotations(watched: Sequence[Watched]) -> dict[tuple[str, int], _Annotated]:
    """What spmd_types says of each annotated parameter, which all ranks that have it should say."""
    found: dict[tuple[str, int], _Annotated] = {}
    for entry in watched:
        if entry.annotation is not None:
            try:
                kinds = entry.annotation.kinds()
            except ValueError as error:
                raise ValueError(f"`{entry.name}` {error}") from None
            whole = entry.part[2] if entry.part else ()  # which fully_shard finds from this rank's part alone
            found[entry.name, entry.stage.index if entry.stage else -1] = _Annotated(sorted(kinds.items()), whole)
    return found


def _by_rank(values: Mapping[int, str]) -> str:
    """Words for a value of each rank: "R on ranks 0 and 1, I on rank 2"."""
    distinct = dict.fromkeys(values.values())
    of = {value: [rank for rank, own in values.items() if own == value] for value in distinct}
    return ", ".join(f"{value} on {_gather.ranks_text(ranks)}" for value, ranks in of.items())


def _need_equal_annotations(
    reported: Sequence[_Reported],
    annotations: Sequence[Mapping[tuple[str, int], _Annotated]],
    ranks: Sequence[int],
    mesh: _meshes.Mesh | None,
) -> None:
    """Raises ValueError if ranks annotated a parameter differently, or if its parts are not equal. `mesh`: names the
    axes, if it is known already."""
    for name in dict.fromkeys(name for of_rank in annotations for name in of_rank):
        every = zip(ranks, reported, annotations)
        having = {rank: found.get(name, _Annotated([], ())) for rank, has, found in every if name in has}
        kinds = {rank: dict(found.kinds) for rank, found in having.items()}
        for offsets in sorted({offsets for of_rank in kinds.values() for offsets in of_rank}):
            said = {rank: of_rank.get(offsets, "not annotated") for rank, of_rank in kinds.items()}
            if len(set(said.values())) > 1:
                axes = mesh.pattern(ranks[0], offsets) if mesh is not None else None
                axis = " ".join(axes or ()) or f"the axis of ranks {', '.join(map(str, offsets))}"
                raise ValueError(
                    f"`{name[0]}` on {axis} (spmd_types): {_by_rank(said)}; all ranks should have the same"
                )
        if len({found.whole for found in having.values()}) > 1:
            wholes = _by_rank({rank: str(list(found.whole)) for rank, found in having.items()})
            raise ValueError(
                f"`{name[0]}` is a shard (spmd_types) whose parts differ in size, and fully_shard takes its whole for "
                f"{wholes}"
            )


def checksum_of_names(watched: Sequence[Watched], stages: Sequence[Stage]) -> int:
    """A checksum that is equal on ranks with the same parameters, stages and annotations. Also sets each entry's
    stage."""
    return zlib.crc32(repr((_find_stages(watched, stages), _annotations(watched))).encode())


def settle(
    watched: Sequence[Watched], stages: Sequence[Stage], tied: Tied, group: Group, mesh: _meshes.Mesh | None = None
) -> tuple[list[list[int]], list[list[str]]]:
    """Sets each entry's final name. `mesh`: the job's mesh, if it is known already. Returns the ranks of each pipeline,
    and the sets of names that are one tied parameter; all entries of a set get the set's first name."""
    mine = (_find_stages(watched, stages), _annotations(watched))
    reported, annotations = zip(*_gather.everyones(mine, group))
    _need_equal_annotations(reported, annotations, _gather.group_ranks(group), mesh)
    everyones = list(_gather.together(lambda: _keep_apart(watched, reported), group).values())
    holders: dict[str, set[int]] = {}
    for rank, names in enumerate(everyones):
        for name in names:
            holders.setdefault(name, set()).add(rank)
    sets = _equal(watched, holders, len(everyones), group) if tied is None else _given(tied, holders)
    for names in sets:
        for entry in watched:
            if entry.name in names:
                entry.name, entry.tied = names[0], tuple(names)
    lines = _gather.everyones([stage.ranks for stage in stages], group)
    return [ranks for of_rank in lines for ranks in of_rank], sets
