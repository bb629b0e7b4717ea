"""Test that the first rank receives every rank's bytes, however many rounds that takes."""

import unittest
from unittest import mock

import torch.distributed as dist

import ranks
from addend.torch import _gather


def run_gathered(lengths, at_once):
    """Return what arrived from each rank, and the sizes of what was sent."""
    rank, received, sent = dist.get_rank(), {}, []
    gather = dist.gather

    def send(piece, *arguments, **options):
        sent.append(piece.numel())
        return gather(piece, *arguments, **options)

    def write(of, piece):
        received[of] = received.get(of, b"") + piece

    with mock.patch.object(_gather, "AT_ONCE", at_once), mock.patch.object(dist, "gather", send):
        _gather.to_first([bytes([rank]) * lengths[rank]], lengths, None, write)
    return received, sent


class Gather(unittest.TestCase):
    def hold(self, lengths, at_once, sent):
        reported = ranks.run(len(lengths), run_gathered, lengths, at_once)
        for rank, length in enumerate(lengths):
            self.assertEqual(reported[0][0].get(rank, b""), bytes([rank]) * length)
            self.assertEqual(reported[rank][1], sent)

    def test_no_more_is_sent_than_there_is(self):
        self.hold([5000, 0, 4999], 64 << 20, [5000])
        self.hold([0, 0], 64 << 20, [])

    def test_much_is_sent_in_rounds(self):
        self.hold([10, 7, 0], 12, [4, 4, 4])
        self.hold([8, 1], 8, [4, 4])

    def test_the_others_receive_nothing(self):
        reported = ranks.run(2, run_gathered, [3, 3], 1 << 20)
        self.assertEqual(reported[1][0], {})


if __name__ == "__main__":
    unittest.main()
