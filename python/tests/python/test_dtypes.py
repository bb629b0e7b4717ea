"""Test that what the library says of its dtypes (core/base/dtypes.h) is what NumPy and DLPack mean by these names."""

import unittest

import numpy

from addend._arrays import memory_of
from addend._dtypes import DTYPES
from addend._library import constant


class ByDLPackAlone:
    """An array of which nothing but the DLPack interface is seen."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self):
        return self._array.__dlpack__()

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Names(unittest.TestCase):
    def test_each_dtype_is_there_once_by_its_number_in_the_headers(self):
        self.assertEqual([dtype.number for dtype in DTYPES], list(range(1, len(DTYPES) + 1)))
        self.assertEqual(len({dtype.name for dtype in DTYPES}), len(DTYPES))
        for dtype in DTYPES:
            self.assertEqual(constant(f"AD_{dtype.name.upper()}"), dtype.number)

    def test_numpy_s_dtypes_of_these_names_have_their_size_and_kind(self):
        for dtype in DTYPES:
            if dtype.numpy is None:
                continue
            own = numpy.dtype(dtype.numpy)
            self.assertEqual((own.itemsize, own.kind == "f"), (dtype.size, dtype.is_float), dtype)
            self.assertEqual(own.name, dtype.torch)  # NumPy and PyTorch have the same names

    def test_arrays_have_them_by_both_interfaces(self):
        for dtype in DTYPES:
            if dtype.numpy:
                array = numpy.zeros(3, dtype.numpy)
                self.assertEqual(memory_of(array, "array").dtype, dtype)
                self.assertEqual(memory_of(ByDLPackAlone(array), "array").dtype, dtype)


if __name__ == "__main__":
    unittest.main()
