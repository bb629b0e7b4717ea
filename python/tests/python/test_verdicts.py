"""Test that the verdicts of the Python package are those of the C library, and those that the pages document."""

import ctypes
import unittest
from pathlib import Path

from addend import _verdict
from addend._library import _library as library

ROOT = Path(__file__).resolve().parents[3]


class Verdicts(unittest.TestCase):
    def test_they_are_those_of_the_library(self):
        words, status = library.ad_verdict_words, library.ad_verdict_status
        words.restype = ctypes.c_char_p
        found = [(words(i).decode(), status(i)) for i in range(len(_verdict.ALL))]
        self.assertEqual(found, [(verdict.words, verdict.status) for verdict in _verdict.ALL])
        self.assertEqual(words(len(_verdict.ALL)), b"unknown")

    def test_torch_matrix_has_a_status_of_its_own_only_where_cells_are_left(self):
        for verdict in _verdict.ALL:
            left = verdict in (_verdict.CANNOT_TELL, _verdict.NOT_CHECKED)
            self.assertEqual(verdict.of_matrix, 3 if left else verdict.status)

    def test_they_are_documented(self):
        page = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
        for verdict in _verdict.ALL:
            self.assertIn(f"| `{verdict.words}` | {verdict.status} | {verdict.of_matrix} |", page)


if __name__ == "__main__":
    unittest.main()
