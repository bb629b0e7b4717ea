"""Tests that the examples of train/python/README.md run and print what the page shows."""

import unittest

import pages


class Examples(unittest.TestCase):
    def test_every_example_prints_what_stands_behind_it(self):
        pages.hold(self, "train/python/README.md")


if __name__ == "__main__":
    unittest.main()
