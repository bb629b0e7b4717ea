"""All ranks' files in a folder of the first rank, some parameters at a time: what that takes, in memory and on disk,
does not grow with the model."""

from __future__ import annotations

import ctypes
import os
from typing import Sequence, Tuple

from addend.torch import _gather
from addend.torch._files import Encoded, file_name
from addend.torch._gather import Group

File = Tuple[str, "int | None", Encoded]  # kind, microbatch
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 4096  # bytes; only whole ones are given back
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None)


def _punch(path: str, kept: int, begin: int, end: int) -> None:
    """What was written there takes no room any more, where the file system can do that. But for the first bytes, which
    are `kept`, all that stands before it was punched: so the block that it begins in goes as well."""
    begin = max(kept, begin - begin % _BLOCK)
    if _fallocate is None or begin >= end:
        return
    with open(path, "r+b") as file:
        _fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(begin), ctypes.c_long(end - begin))


class Collection:
    """`files`: this rank's, of the same kinds on all ranks. `names`: all parameters that any rank's files have, in
    order of their bytes. Every rank calls bring() once for each of `chunks`."""

    def __init__(self, folder: str, files: Sequence[File], names: Sequence[str], group: Group):
        self._folder, self._files, self._group = folder, files, group
        own = [[len(file.data.get(name, b"")) for _, _, file in files] for name in names]
        told = _gather.everyones(([len(file.header) for _, _, file in files], own), group)
        self._headers, self._lengths = [headers for headers, _ in told], [lengths for _, lengths in told]
        self._names = names
        self.chunks = self._cut()
        self._brought = 0
        self._at = [[0] * len(headers) for headers in self._headers]  # where each rank's files go on

    def _cut(self) -> list[tuple[int, int]]:
        """Parameters first <= i < end: as many as are received at a time, one at least."""
        chunks, first, sizes = [], 0, [0] * len(self._lengths)
        for i in range(len(self._names)):
            grown = [size + sum(lengths[i]) for size, lengths in zip(sizes, self._lengths)]
            if i > first and max(grown) * len(sizes) > _gather.AT_ONCE:
                chunks.append((first, i))
                first, grown = i, [sum(lengths[i]) for lengths in self._lengths]
            sizes = grown
        return [*chunks, (first, len(self._names))]  # the headers at least

    def _path(self, rank: int, file: int) -> str:
        kind, microbatch, _ = self._files[file]
        return os.path.join(self._folder, file_name(rank, kind, microbatch))

    def _whole(self, rank: int, file: int) -> int:
        """A file's length."""
        return self._headers[rank][file] + sum(of_name[file] for of_name in self._lengths[rank])

    def _write(self, rank: int, file: int, part: memoryview) -> None:
        """What comes next of a file; those with bytes to come have room for them."""
        at = self._at[rank][file]
        with open(self._path(rank, file), "r+b" if at else "wb", buffering=0) as opened:
            opened.seek(at)
            opened.write(part)
            if not at and len(part) < self._whole(rank, file):
                opened.truncate(self._whole(rank, file))

    def _send(self, data: bytes, lengths: Sequence[Sequence[int]]) -> None:
        """Every rank's bytes of each of its files (`lengths`), to where these go on, on the first rank."""
        received = [bytearray() for _ in lengths]
        _gather.to_first(
            data, [sum(own) for own in lengths], self._group, lambda rank, part: received[rank].extend(part)
        )
        for rank in range(len(lengths)) if _gather.rank_in(self._group) == 0 else ():
            begin = 0
            for file, length in enumerate(lengths[rank]):
                if length:
                    self._write(rank, file, memoryview(received[rank])[begin : begin + length])
                begin += length

    def _of_chunk(self, at: int) -> list[list[int]]:
        """By rank and file, bytes of parameters."""
        first, end = self.chunks[at]
        of_files = range(len(self._files))
        return [[sum(own[i][file] for i in range(first, end)) for file in of_files] for own in self._lengths]

    def _sent(self, at: int) -> list[list[int]]:
        """The same with the headers, which come before the first chunk."""
        chunk = self._of_chunk(at)
        return chunk if at else [list(map(sum, zip(*both))) for both in zip(self._headers, chunk)]

    def bring(self) -> None:
        """The next chunk."""
        first, end = self.chunks[self._brought]
        lengths = self._sent(self._brought)
        parts = []
        for _, _, file in self._files:
            parts += [] if self._brought else [file.header]
            parts += [file.data[name] for name in self._names[first:end] if name in file.data]
        self._send(b"".join(parts), lengths)
        self._at = [[at + length for at, length in zip(*own)] for own in zip(self._at, lengths)]
        self._brought += 1

    def drop(self) -> None:
        """The last one that was brought; of the first rank."""
        lengths = self._of_chunk(self._brought - 1)
        for rank, (ends, own) in enumerate(zip(self._at, lengths)):
            for file, (end, length) in enumerate(zip(ends, own)):
                if length:
                    _punch(self._path(rank, file), self._headers[rank][file], end - length, end)

    def bring_all(self) -> None:
        """What is left."""
        while self._brought < len(self.chunks):
            self.bring()

    def told(self, what: bytes) -> None:
        """A parameter is judged: of the first rank. After a chunk's last one comes the next chunk."""
        if self._brought < len(self.chunks) and what == self._names[self.chunks[self._brought - 1][1] - 1].encode():
            self.drop()
            self.bring()
