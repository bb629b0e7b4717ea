"""Test that the types that `addend plan --spmd` prints are, read back by addend.types, the layouts of the plan."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

from skips import skip_file

import addend
import addend.types

SOURCES = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(SOURCES / "python" / "tests" / "torch"))

import draws  # noqa: E402

try:
    import spmd_types as spmd
except ImportError:
    skip_file(__name__, "this python3 has no spmd_types")

PROGRAM = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve().parent / "addend"
RECIPES = SOURCES / "recipes"
NEED_FILES = {"finetune"}  # a folder of Transformers, which is downloaded
TAKEN = 12
TYPES = {"R": spmd.R, "I": spmd.I, **{f"S({dim})": spmd.S(dim) for dim in range(6)}}


def plan(recipe, *options):
    words = [PROGRAM, "plan", RECIPES / f"{recipe}.yaml", "--json", *options]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def spec_of(entries):
    return spmd.PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in entries))


class Types(unittest.TestCase):
    def test_they_are_the_layouts_of_the_plan(self):
        names = [path.stem for path in sorted(RECIPES.glob("*.yaml")) if path.stem not in NEED_FILES]
        for name in draws.draw_cases("recipes whose types are read back", names, TAKEN):
            with self.subTest(recipe=name):
                printed, params = plan(name, "--spmd")["spmd"], plan(name)["params"]
                self.assertEqual([entry["name"] for entry in printed], [param["name"] for param in params])
                for entry, param in zip(printed, params):
                    self.hold(entry, param)

    def hold(self, entry, param):
        self.assertEqual(entry["mesh"], param["mesh"])
        mesh = addend.Mesh(entry["mesh"])
        layout = mesh.layout(param["layout"])
        types = {axis: TYPES[text] for axis, text in entry["types"].items()}
        self.assertEqual(str(addend.types.from_spmd(types, mesh)), str(layout), entry)
        spec = spec_of(entry["partition_spec"])
        self.assertEqual(addend.types.partition_spec(layout, len(spec)), spec, entry)


if __name__ == "__main__":
    unittest.main()
