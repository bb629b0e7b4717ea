"""Test addend's types in the notation of spmd_types: both ways, for every layout, and annotations of parameters. One
process acts as rank 0 of eight; nothing is sent.
"""

import itertools
import subprocess
import sys
import unittest

import torch
import torch.distributed as dist
from says import raises_facts
from skips import skip_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import addend
import addend.types

try:
    import spmd_types as spmd
except ImportError:
    skip_file(__name__, "this python3 has no spmd_types")

NAMES = ("dp_replicate", "dp_shard", "tp")
KINDS = ("R", "I", "V", "P", "S0", "S1")
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
MESH = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=NAMES)
PLAIN = addend.Mesh("dp_replicate=2 dp_shard=2 tp=2")
DP = MESH["dp_replicate", "dp_shard"]._flatten("dp").get_group()


def layouts():
    """Yield every layout of the mesh, axes that shard one dimension in every order."""
    for kinds in itertools.product(KINDS, repeat=len(NAMES)):
        for words in itertools.permutations(f"{name}={kind}" for name, kind in zip(NAMES, kinds)):
            yield PLAIN.layout(" ".join(words))


def annotated(layout):
    """Return a tensor that assert_type annotated as a program would: with shards as a PartitionSpec."""
    tensor = torch.zeros(4, 4)
    kept = {key: kind for key, kind in addend.types.to_spmd(layout, MESH).items() if not isinstance(kind, spmd.Shard)}
    return spmd.assert_type(tensor, kept, partition_spec=addend.types.partition_spec(layout, 2, MESH))


class BothWays(unittest.TestCase):
    def test_types_are_those_of_the_other_notation(self):
        self.assertEqual(addend.types.to_spmd("dp=R tp=S1"), {"dp": spmd.R, "tp": spmd.S(1)})
        self.assertEqual(addend.types.to_spmd(PLAIN.layout("dp=P tp=I"), PLAIN)["dp_shard"], spmd.P)
        groups = addend.types.to_spmd("dp=R tp=S1", MESH)
        wanted = {"dp_replicate": spmd.R, "dp_shard": spmd.R, "tp": spmd.S(1)}
        self.assertEqual(groups, {MESH.get_group(name): kind for name, kind in wanted.items()})

    def test_every_layout_comes_back_from_a_dictionary_and_from_a_tensor(self):
        for layout in layouts():
            for mesh in (MESH, PLAIN):
                types = addend.types.to_spmd(layout, mesh)
                self.assertEqual(addend.types.from_spmd(types, mesh), layout)
            self.assertEqual(addend.types.from_spmd(annotated(layout), MESH), layout)

    def test_the_dual_is_what_spmd_types_takes_the_gradient_for(self):
        for layout in layouts():
            duals = {axis: kind.backward_type() for axis, kind in addend.types.to_spmd(layout).items()}
            self.assertEqual(str(addend.types.from_spmd(duals, PLAIN)), str(layout.dual))

    def test_the_order_of_axes_that_shard_one_dimension_is_kept(self):
        self.assertEqual(addend.types.partition_spec("tp=S0 dp_shard=S0 dp_replicate=R", 2), (("tp", "dp_shard"), None))
        self.assertEqual(
            addend.types.partition_spec("dp=S0 tp=S1", 3, PLAIN), (("dp_replicate", "dp_shard"), "tp", None)
        )
        kinds = {"dp_replicate": spmd.R, "dp_shard": spmd.V, "tp": spmd.V}
        layout = addend.types.from_spmd(spmd.SpmdType(kinds, spmd.PartitionSpec(None, ("tp", "dp_shard"))), PLAIN)
        self.assertEqual(layout, PLAIN.layout("dp_replicate=R tp=S1 dp_shard=S1"))

    def test_axes_are_found_by_their_ranks(self):
        axis = spmd.MeshAxis.of(2, 2)  # ranks 0 and 2: dp_shard, whatever its name
        types = {axis: spmd.I, MESH.get_group("dp_replicate"): spmd.R, "tp": spmd.R}
        self.assertEqual(addend.types.from_spmd(types, MESH), PLAIN.layout("dp_replicate=R dp_shard=I tp=R"))
        for kind in (spmd.R, spmd.I, spmd.S(1)):
            flat = addend.types.from_spmd({DP: kind, "tp": spmd.S(0)}, MESH)
            word = kind.value if isinstance(kind, spmd.PerMeshAxisLocalSpmdType) else "S1"
            self.assertEqual(flat, PLAIN.layout(f"dp_replicate={word} dp_shard={word} tp=S0"))

    def test_an_axis_of_one_rank_is_replicated(self):
        mesh = init_device_mesh("cpu", (4, 1, 2), mesh_dim_names=("dp_shard", "cp", "tp"))
        tensor = spmd.assert_type(torch.zeros(2), addend.types.to_spmd("dp_shard=R cp=I tp=I", mesh))
        layout = addend.types.from_spmd(tensor, mesh)
        self.assertEqual(layout, addend.Mesh("dp_shard=4 cp=1 tp=2").layout("dp_shard=R tp=I"))

    def test_what_the_other_notation_does_not_have_is_refused(self):
        for facts, call in {
            ("tp=S0z",): lambda: addend.types.to_spmd("tp=S0z"),
            ("cp", "dp_shard=2"): lambda: addend.types.to_spmd("cp=R", MESH),
            ("tp=S2", "2"): lambda: addend.types.partition_spec("tp=S2", 2),
            ("dp_replicate", "dp_shard"): lambda: addend.types.from_spmd({"tp": spmd.I}, PLAIN),
            ("S(-1)", "tp"): lambda: addend.types.from_spmd({"dp": spmd.R, "tp": spmd.S(-1)}, PLAIN),
            ("tp", "I", "R"): lambda: addend.types.from_spmd({MESH.get_group("tp"): spmd.I, "tp": spmd.R}, MESH),
            ("[0, 1, 2]",): lambda: addend.types.from_spmd({spmd.MeshAxis.of(3, 1): spmd.I}, MESH),
            ("DeviceMesh",): lambda: addend.types.from_spmd({MESH.get_group("tp"): spmd.I}, PLAIN),
            ("spmd_types", "Tensor"): lambda: addend.types.from_spmd(torch.zeros(2), MESH),
        }.items():
            with self.subTest(facts=facts), raises_facts(self, addend.InvalidError, *facts):
                call()

    def test_addend_is_imported_without_it(self):
        program = (
            "import sys; sys.modules['spmd_types'] = None\n"
            "import addend.types\n"
            "assert 'torch' not in sys.modules\n"
            "try: addend.types.to_spmd('tp=R')\n"
            "except ImportError as error: print(error)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        self.assertIn("pip install spmd-types", done.stdout)


class Annotations(unittest.TestCase):
    def setUp(self):
        self.model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    def test_the_last_pattern_that_fits_counts(self):
        addend.types.annotate(self.model, {"*": "dp=R tp=I", "0.*": "dp=R tp=S0", "0.bias": "dp=S0 tp=S0"}, MESH)
        found = {name: addend.types.from_spmd(p, MESH) for name, p in self.model.named_parameters()}
        self.assertEqual(found["1.weight"], PLAIN.layout("dp=R tp=I"))
        self.assertEqual(found["0.weight"], PLAIN.layout("dp=R tp=S0"))
        self.assertEqual(found["0.bias"], PLAIN.layout("dp_replicate=S0 dp_shard=S0 tp=S0"))

    def test_others_are_left_as_they_are(self):
        addend.types.annotate(self.model, {"1.weight": "tp=I"}, MESH)
        annotated = [name for name, p in self.model.named_parameters() if spmd.has_local_type(p)]
        self.assertEqual(annotated, ["1.weight"])
        self.assertEqual(spmd.get_local_type(self.model[1].weight), {spmd.MeshAxis.of(MESH.get_group("tp")): spmd.I})

    def test_a_pattern_that_fits_nothing_is_refused(self):
        with raises_facts(self, addend.InvalidError, "*.wq", "0.weight"):
            addend.types.annotate(self.model, {"*.wq": "tp=I"}, MESH)
        with raises_facts(self, addend.InvalidError, "tp=S1", "1"):
            addend.types.annotate(self.model, {"1.bias": "tp=S1"}, MESH)

    def test_another_annotation_is_not_overwritten(self):
        addend.types.annotate(self.model, {"*": "tp=I"}, MESH)
        with self.assertRaises(spmd.SpmdTypeError):
            addend.types.annotate(self.model, {"*": "tp=R"}, MESH)


if __name__ == "__main__":
    unittest.main()
