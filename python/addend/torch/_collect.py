"""Collects all ranks' dump files in a folder of the first rank, a chunk of parameters at a time, so that the memory and
disk space needed do not grow with the model."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from addend.torch import _gather
from addend.torch._files import Encoded, file_name
from addend.torch._gather import Group

File = tuple[str, "int | None", Encoded]  # kind, microbatch
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 4096  # bytes; the file system frees whole blocks only
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None)


def _punch(path: str, kept: int, begin: int, end: int) -> None:
    """Frees the disk space of bytes `begin` to `end` of a file, if the file system can. The first `kept` bytes stay.
    Everything between these and `begin` was freed before, so the block in which `begin` lies is freed as well."""
    begin = max(kept, begin - begin % _BLOCK)
    if _fallocate is None or begin >= end:
        return
    with open(path, "r+b") as file:
        _fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(begin), ctypes.c_long(end - begin))


class Collection:
    """Brings the ranks' files to the first rank. `files`: this rank's, of the same kinds on all ranks. `names`: all
    parameters that any rank's files have, sorted by their bytes. Every rank calls bring() once for each of `chunks`."""

    def __init__(self, folder: str, files: Sequence[File], names: Sequence[str], group: Group):
        self._folder, self._files, self._group = folder, files, group
        own = [[len(file.data.get(name, b"")) for _, _, file in files] for name in names]
        reported = _gather.everyones(([len(file.header) for _, _, file in files], own), group)
        self._headers, self._lengths = [headers for headers, _ in reported], [lengths for _, lengths in reported]
        self._names = names
        self.chunks = self._cut()
        self._brought = 0
        self._at = [[0] * len(headers) for headers in self._headers]  # [rank][file]: bytes written so far

    def _cut(self) -> list[tuple[int, int]]:
        """The chunks, as (first, end) of parameters: each as many as fit in AT_ONCE bytes, but at least one."""
        chunks, first, sizes = [], 0, [0] * len(self._lengths)
        for i in range(len(self._names)):
            grown = [size + sum(lengths[i]) for size, lengths in zip(sizes, self._lengths)]
            if i > first and max(grown) * len(sizes) > _gather.AT_ONCE:
                chunks.append((first, i))
                first, grown = i, [sum(lengths[i]) for lengths in self._lengths]
            sizes = grown
        return [*chunks, (first, len(self._names))]  # even without parameters one chunk, which brings the headers

    def _path(self, rank: int, file: int) -> str:
        kind, microbatch, _ = self._files[file]
        return os.path.join(self._folder, file_name(rank, kind, microbatch))

    def _whole(self, rank: int, file: int) -> int:
        """The length of a file in bytes."""
        return self._headers[rank][file] + sum(of_name[file] for of_name in self._lengths[rank])

    def _write(self, rank: int, file: int, part: memoryview) -> None:
        """Appends `part` to a rank's file. The first write gives the file its final length."""
        at = self._at[rank][file]
        with open(self._path(rank, file), "r+b" if at else "wb", buffering=0) as opened:
            opened.seek(at)
            opened.write(part)
            if not at and len(part) < self._whole(rank, file):
                opened.truncate(self._whole(rank, file))

    def _send(self, parts: Sequence[bytes], lengths: Sequence[Sequence[int]]) -> None:
        """Sends this rank's `parts` to the first rank, which appends every rank's bytes to that rank's files.
        lengths[rank][file]: how many of the rank's bytes belong to each file."""
        received: list[list[memoryview]] = [[] for _ in lengths]
        _gather.to_first(
            parts, [sum(own) for own in lengths], self._group, lambda rank, part: received[rank].append(part)
        )
        for rank in range(len(lengths)) if _gather.rank_in(self._group) == 0 else ():
            pieces, begin = received[rank], 0
            whole = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
            for file, length in enumerate(lengths[rank]):
                if length:
                    self._write(rank, file, whole[begin : begin + length])
                begin += length

    def _of_chunk(self, at: int) -> list[list[int]]:
        """[rank][file]: the number of bytes that the parameters of chunk `at` have."""
        first, end = self.chunks[at]
        of_files = range(len(self._files))
        return [[sum(own[i][file] for i in range(first, end)) for file in of_files] for own in self._lengths]

    def _sent(self, at: int) -> list[list[int]]:
        """[rank][file]: the number of bytes sent with chunk `at`; the first chunk brings the file's header too."""
        chunk = self._of_chunk(at)
        return chunk if at else [list(map(sum, zip(*both))) for both in zip(self._headers, chunk)]

    def bring(self) -> None:
        """Sends the next chunk to the first rank."""
        first, end = self.chunks[self._brought]
        lengths = self._sent(self._brought)
        parts = []
        for _, _, file in self._files:
            parts += [] if self._brought else [file.header]
            parts += [file.data[name] for name in self._names[first:end] if name in file.data]
        self._send(parts, lengths)
        self._at = [[at + length for at, length in zip(*own)] for own in zip(self._at, lengths)]
        self._brought += 1

    def drop(self) -> None:
        """Frees the disk space of the chunk that was brought last; called on the first rank."""
        lengths = self._of_chunk(self._brought - 1)
        for rank, (ends, own) in enumerate(zip(self._at, lengths)):
            for file, (end, length) in enumerate(zip(ends, own)):
                if length:
                    _punch(self._path(rank, file), self._headers[rank][file], end - length, end)

    def bring_all(self) -> None:
        """Sends all remaining chunks."""
        while self._brought < len(self.chunks):
            self.bring()

    def reported(self, what: bytes) -> None:
        """Called on the first rank when parameter `what` is judged; after a chunk's last one, brings the next chunk."""
        if self._brought < len(self.chunks) and what == self._names[self.chunks[self._brought - 1][1] - 1].encode():
            self.drop()
            self.bring()
