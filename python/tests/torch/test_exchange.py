"""Test the exchange of values between ranks, however long the values are."""

import unittest
from unittest import mock

import torch.distributed as dist

import ranks
from addend.torch import _gather

SIZES = [
    0,
    1,
    8100,
    8150,
    8160,
    8165,
    8170,
    8175,
    8180,
    8184,
    8190,
    8192,
    8200,
    20000,
]  # sizes around the first collective's 8192 bytes


def value_of(rank, size):
    return [rank, bytes([65 + rank]) * size]


def run_reported(sizes):
    """Return (what all ranks told, what the first rank told, number of collectives)."""
    rank, calls = dist.get_rank(), []
    all_gather, broadcast = dist.all_gather, dist.broadcast

    def counted(call):
        return lambda *arguments, **options: (
            calls.append(1),
            call(*arguments, **options),
        )[1]

    with (
        mock.patch.object(dist, "all_gather", counted(all_gather)),
        mock.patch.object(dist, "broadcast", counted(broadcast)),
    ):
        reported = _gather.everyones(value_of(rank, sizes[rank]), None)
        first = _gather.from_first(lambda: value_of(rank, sizes[rank]), None)
    return reported, first, len(calls)


def run_all(sizes_of):
    return [run_reported(sizes) for sizes in sizes_of]


class Exchange(unittest.TestCase):
    def test_values_of_any_length_reach_all(self):
        cases = [[size, 3, 0] for size in SIZES] + [[0, size, 20001] for size in SIZES]
        for of_rank in ranks.run(3, run_all, cases):
            for sizes, (reported, first, _) in zip(cases, of_rank):
                self.assertEqual(reported, [value_of(rank, size) for rank, size in enumerate(sizes)])
                self.assertEqual(first, value_of(0, sizes[0]))

    def test_small_values_take_one_collective(self):
        cases = [[0, 5, 8000], [9000, 0, 0], [0, 0, 9000]]
        self.assertEqual([calls for _, _, calls in ranks.run(3, run_all, cases)[1]], [2, 4, 3])


if __name__ == "__main__":
    unittest.main()
