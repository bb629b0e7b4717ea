"""Test that ctypes structures are laid out as the C structures that they stand for."""

import ctypes
import re
import unittest
from pathlib import Path

from says import raises

import addend._diff
import addend_train._plan
from addend._layout import _CTransition
from addend._library import held, same_layout

ABI = Path(__file__).resolve().parents[3] / "tests" / "abi"
# Structures that the core's table of offsets cannot have, since their headers belong to folders that use the core.
LISTED = {"ad_diff_options": addend._diff._Options, "ad_plan_options": addend_train._plan._Options}


class Structures(unittest.TestCase):
    def test_fields_that_changed_their_places_are_named(self):
        fields = list(_CTransition._fields_)
        names = {"source": "from", "backward_source": "backward_from"}
        same_layout("ad_transition", **names)(type("Same", (ctypes.Structure,), {"_fields_": fields}))
        fields[-2:] = fields[:-3:-1]
        with raises(self, ImportError, "ad_transition", "backward_from", "backward_to") as caught:
            same_layout("ad_transition", **names)(type("Other", (ctypes.Structure,), {"_fields_": fields}))
        self.assertNotIn("moves_bytes", str(caught.exception))

    def test_another_size_is_named(self):
        with raises(self, ImportError, "ad_span"):
            same_layout("ad_span")(type("Span", (ctypes.Structure,), {"_fields_": [("first", ctypes.c_int64)]}))

    def test_fields_of_options_are_where_the_list_of_the_abi_has_them(self):
        listed = "".join(path.read_text() for path in ABI.glob("*.abi"))
        for name, structure in LISTED.items():
            for field, *_ in structure._fields_:
                at = re.search(rf"^struct {name} \.{field} at (\d+)$", listed, re.MULTILINE)
                self.assertTrue(at, f"{name}.{field}")
                self.assertEqual(getattr(structure, field).offset, int(at[1]), f"{name}.{field}")

    def test_every_structure_is_held(self):
        every = {kind for kind in ctypes.Structure.__subclasses__() if kind.__module__.startswith("addend")}
        others = {kind.__name__ for kind in every - {*LISTED.values(), *held}}
        self.assertEqual(others, {"_DLTensor"})  # of dlpack.h, which is no part of addend


if __name__ == "__main__":
    unittest.main()
