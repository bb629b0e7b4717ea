"""Test the table of conventions in programs/docs/pools.md: compute it from all ranks' addends in exact arithmetic."""

import re
import unittest
from fractions import Fraction
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[3] / "programs" / "docs" / "pools.md"
ROW = re.compile(r"^\| (\d+), (\d+) \|(.*)\|$", re.M)


def added(addends, averages):
    """Return what every rank has after the reduction."""
    return sum(addends) / (len(addends) if averages else 1)


def shares(whole, ranks):
    """Return a different part of the whole for each rank."""
    parts = [Fraction(i + 1) for i in range(ranks)]
    return [whole * part / sum(parts) for part in parts]


def ratios(ci, block, averages, stochastic, adversarial, own_seed):
    """Return the ratios of the gradients that arrive to the right ones: of importances and of V, U for the stochastic
    loss, and of importances for the adversary's.

    Each gradient is 1. `stochastic` and `adversarial` are the factors that the producing pools apply; `own_seed` is the
    factor for V and U, if they have a separate one.
    """
    importances = added(shares(Fraction(stochastic), ci), averages)
    matrices = added(shares(Fraction(own_seed or stochastic), block), averages)
    attacked = added(shares(Fraction(adversarial), ci), averages)
    return importances, matrices, attacked


def conventions(ci, block):
    yield ratios(ci, block, True, ci, 1, None)  # the original convention
    yield ratios(ci, block, True, ci, ci, None)  # with the interim repair
    yield ratios(ci, block, True, ci, ci, block)  # with a scale for each destination
    yield ratios(ci, block, False, 1, 1, None)  # with sums instead of averages


class Table(unittest.TestCase):
    def test_every_number_is_what_the_addends_give(self):
        rows = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
        pools = {(int(ci), int(block)): cells for ci, block, cells in rows}
        self.assertEqual(len(pools), len(rows))
        for sizes in [(1, 1), (2, 2), (4, 4), (4, 2), (2, 4), (6, 4), (32, 2)]:
            self.assertIn(sizes, pools)
        for (ci, block), cells in pools.items():
            said = [[Fraction(number) for number in cell.split(",")] for cell in cells.split("|")]
            self.assertEqual(said, [list(ratios_of) for ratios_of in conventions(ci, block)], (ci, block))


if __name__ == "__main__":
    unittest.main()
