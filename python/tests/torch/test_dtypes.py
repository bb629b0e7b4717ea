"""Test that what the library says of its dtypes (core/base/dtypes.h) is what PyTorch means by these names: their sizes
and kinds, in memory, in files and in the process group."""

import json
import struct
import unittest

import torch

from addend._arrays import memory_of
from addend._dtypes import DTYPES, by_torch
from addend.torch._files import encode
from addend.torch._group_dtypes import moved
from addend.torch._sample import Box, Piece


class Names(unittest.TestCase):
    def test_pytorch_has_each_dtype_with_its_size_and_kind(self):
        self.assertEqual(set(by_torch().values()), {dtype for dtype in DTYPES if dtype.torch})
        for of, dtype in by_torch().items():
            self.assertEqual((of.itemsize, of.is_floating_point), (dtype.size, dtype.is_float), dtype)
            self.assertEqual(memory_of(torch.zeros(3, dtype=of), "tensor").dtype, dtype)

    def test_tensors_are_moved_as_their_own_dtype_and_averaged_in_the_wide_one(self):
        wide = {torch.float64: torch.float64, torch.float32: torch.float32}
        for of, dtype in by_torch().items():
            found = moved(of)
            self.assertEqual((found.dtype, found.parts, found.sums, found.combines), (dtype.number, 1, True, True))
            self.assertEqual(found.wide, wide.get(of, torch.float32) if dtype.is_float else None)

    def test_files_have_the_values_of_every_float(self):
        for of, dtype in by_torch().items():
            if not dtype.is_float:
                continue
            values = torch.tensor([0.5, -2.0, 3.0], dtype=of)
            piece = Piece(values, Box((0,), (3,)), (3,))
            data = encode({"w": piece}, {"addend.kind": "sum"}).whole()
            (length,) = struct.unpack("<Q", data[:8])
            entry = json.loads(data[8 : 8 + length])["w"]
            self.assertEqual(entry["dtype"], dtype.safetensors)
            begin, end = entry["data_offsets"]
            held = bytearray(data[8 + length + begin : 8 + length + end])
            self.assertTrue(torch.equal(torch.frombuffer(held, dtype=of), values))


if __name__ == "__main__":
    unittest.main()
