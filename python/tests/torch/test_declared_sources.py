"""Test what each source declares, and which of two that speak of one axis counts. One process acts as rank 0 of six;
nothing is sent.
"""

import itertools
import unittest

import torch
import torch.distributed as dist
from test_spmd import Stub
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from addend.torch import _declared, _expected, _names, _parameters, _pipeline, _plans, _shards
from addend.torch._declared import Declared
from addend.torch._meshes import Mesh
from addend.torch._parameters import Watched

MESH = Mesh(("dp", "tp"), (2, 3), {3 * dp + tp: (dp, tp) for dp in range(2) for tp in range(3)})
TP = ((3, 1),)  # the loops of the axis tp


def annotate(tensor, kind):
    """Annotate the tensor on tp: R, I, V, P or S0."""
    stub = Stub()
    axis = stub.axis(*TP)
    cut = kind[0] == "S"
    spec = [[axis] if cut and dim == int(kind[1:]) else [] for dim in range(tensor.ndim)]
    stub.annotate(tensor, {} if cut else {axis: kind}, spec)


class Shards(unittest.TestCase):
    def test_values_that_changed_once_are_being_trained(self):
        model = nn.Linear(3, 4, bias=False)
        entry = Watched("w", model.weight, model.weight)
        seen = []
        for change in (0, 1, 0, 0):
            with torch.no_grad():
                model.weight += change
            seen.append(_shards.look(model, [entry], {"w": {"tp": "S0"}})["w"].get("stepped", False))
        self.assertEqual(seen, [False, True, True, True])
        self.assertEqual(_shards.look(model, [entry], {"w": {"tp": "I"}}), {})


class Sources(unittest.TestCase):
    """A parameter of which sources speak, on the axis tp."""

    def setUp(self):
        dist.init_process_group("fake", rank=0, world_size=6, store=FakeStore())
        self.addCleanup(dist.destroy_process_group)
        self.device_mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("data", "tp"))
        self.gradients, self.given = {}, {}

    def entry(self, **said):
        """Return a parameter `w` of which each source says a type on tp."""
        placed = {"I": Replicate(), "R": Partial(), "S0": Shard(0)}
        tensor = nn.Parameter(torch.ones(2, 2))
        if "placement" in said:
            tensor = DTensor.from_local(tensor, self.device_mesh["tp"], (placed[said["placement"]],), run_check=False)
        entry = Watched("w", tensor, tensor)
        for source, kind in said.items():
            if source == "gradient":
                self.gradients = {"w": (self.device_mesh["tp"], (placed[kind],))}
            elif source == "stage":
                entry.stage = _pipeline.Stage(0, 3, [0, 1, 2], {}, None)
            elif source == "plan":
                entry.planned = lambda mesh, kind=kind: [Declared({"tp": kind}, "a plan")]
            elif source == "annotation":
                annotate(plain := torch.ones(2, 2), kind)
                entry.annotation = _parameters._spmd.annotation(plain)
            elif source == "wrapper":
                entry.data, entry.wrapper = [[0, 1, 2]], "DistributedDataParallel"
            elif source == "types":
                self.given = {"w": f"tp={kind}"}
        return entry

    def read(self, entry):
        """Return the type on tp, and {source: (types, whether they count)} of the rows."""
        declared = _declared.find([entry], MESH, self.gradients, self.given)
        types = _expected.types_of([entry], MESH, self.given, self.gradients, declared)
        rows = _declared.metadata(declared, types, types).get("w", [])
        return types["w"]["tp"], {row["by"]: (row["types"], row["counts"]) for row in rows}

    def test_of_two_sources_the_later_one_counts(self):
        order = {
            "placement": ("I", "R", "S0"),
            "gradient": ("I", "R", "S0"),
            "stage": ("I",),
            "plan": ("I", "R"),
            "annotation": ("I", "R", "S0"),
            "wrapper": ("R",),
            "types": ("I", "R", "S0"),
        }
        for first, second in itertools.combinations(order, 2):
            for one, other in itertools.product(order[first], order[second]):
                with self.subTest(**{first: one, second: other}):
                    self.gradients, self.given = {}, {}
                    self.assertEqual(self.read(self.entry(**{first: one, second: other}))[0], other)

    def test_each_source_alone(self):
        for source, kind, by in (
            ("placement", "S0", "a DTensor's placements"),
            ("gradient", "I", "its gradient's placements"),
            ("gradient", "R", "its gradient's placements"),
            ("plan", "R", "a plan"),
            ("annotation", "I", "spmd_types"),
        ):
            self.gradients, self.given = {}, {}
            found = self.read(self.entry(**{source: kind}))
            self.assertEqual(found, (kind, {by: (f"tp={kind}", True)}), source)

    def test_what_says_nothing_of_the_gradient(self):
        """A replicated parameter has equal values; wrappers and types= are named beside others alone."""
        for source, kind in ("placement", "I"), ("placement", "R"), ("wrapper", "R"), ("types", "I"), ("stage", "I"):
            self.gradients, self.given = {}, {}
            self.assertEqual(self.read(self.entry(**{source: kind}))[1], {}, (source, kind))

    def test_a_row_that_does_not_count(self):
        _, rows = self.read(self.entry(annotation="I", wrapper="R"))
        self.assertEqual(rows, {"spmd_types": ("tp=I", False), "DistributedDataParallel": ("tp=R", True)})
        _, rows = self.read(self.entry(annotation="I", types="R"))
        self.assertEqual(rows, {"spmd_types": ("tp=I", False), "types=": ("tp=R", True)})
        self.gradients, self.given = {}, {}
        _, rows = self.read(self.entry(gradient="I", annotation="R"))
        self.assertEqual(rows, {"its gradient's placements": ("tp=I", False), "spmd_types": ("tp=R", True)})

    def test_rows_say_what_sums_and_what_is_a_placement(self):
        entry = self.entry(gradient="I", annotation="R", wrapper="R")
        entry.data = [[0, 3]]  # it sums over dp
        declared = _declared.find([entry], MESH, self.gradients)
        rows = _declared.metadata(declared, ["w"], {"w": {"dp": "R", "tp": "R"}})["w"]
        self.assertEqual([row.get("placed", False) for row in rows], [True, False, False])
        self.assertEqual([row.get("sums", False) for row in rows], [False, False, True])

    def test_an_annotated_I_is_assumed_unless_the_caller_gives_it(self):
        for said, assumed in (({"annotation": "I"}, True), ({"annotation": "I", "types": "I"}, False)):
            self.given = {}
            entry = self.entry(**said)
            types = {"w": {"dp": "R", "tp": "I"}}
            self.assertEqual("w" in _expected.assumed_of([entry], MESH, self.given, types), assumed)

    def test_plain_parameters_beside_annotated_ones(self):
        """Along an axis on which others are shards or do the same work, a parameter of which nobody speaks does too."""
        for kind, beside in (("S0", "I"), ("I", "I"), ("R", "R")):
            other = self.entry()
            other.name = "v"
            watched = [self.entry(annotation=kind), other]
            types = _expected.types_of(watched, MESH, None, {}, _declared.find(watched, MESH))
            self.assertEqual(types["v"]["tp"], beside)
            self.assertEqual(_expected.said_axes(watched, MESH, None), {"tp"})

    def test_dtypes_that_are_promised(self):
        plain = nn.Parameter(torch.ones(2))
        model = nn.ParameterDict({"plain": plain, "wide": nn.Parameter(torch.ones(2, dtype=torch.bfloat16))})
        if not hasattr(plain, "grad_dtype"):
            self.skipTest("this PyTorch has no grad_dtype")
        model["wide"].grad_dtype = torch.float32
        found = {entry.name: entry for entry in _parameters.find(model)}
        self.assertEqual([found[name].promised for name in ("plain", "wide")], [None, torch.float32])
        declared = _declared.find(found.values(), MESH, reduce=torch.bfloat16)
        types = {name: {"dp": "R", "tp": "R"} for name in found}
        self.assertEqual(
            _declared.metadata(declared, found, types),
            {
                "wide": [
                    {"by": "grad_dtype", "dtype": "f32", "given": True, "counts": False},
                    {"by": "reduce=", "dtype": "bf16", "given": True, "counts": True},
                ]
            },
        )

    def test_a_plan_of_transformers(self):
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                for name in "q_norm", "q_proj", "kv_a", "own":
                    setattr(self, name, nn.Linear(2, 2, bias=name == "q_proj"))
                self.sinks = nn.Parameter(torch.ones(2))

        model = nn.Module()
        model.model = nn.Module()
        model.model.layers = nn.ModuleList([Layer(), Layer()])
        plan = {
            "q_norm": "replicated_with_grad_allreduce",
            "q_proj": "colwise",
            "kv_a": "mla_kv_a_proj",
            "sinks": "replicate",
            "own": "a style of the future",
        }
        model._tp_plan = {f"model.layers.*.{name}": style for name, style in plan.items()}
        expected = {
            f"model.layers.{at}.{name}": ({"tp": kind}, f"Transformers' plan ({plan[name.partition('.')[0]]})")
            for at in (0, 1)
            for name, kind in (("q_norm.weight", "R"), ("kv_a.weight", "I"), ("sinks", "I"))
        }
        self.assertEqual(_plans.of(model), {})  # a plan that is not in use
        for device_mesh in self.device_mesh, self.device_mesh["tp"]:
            model._device_mesh = device_mesh
            wrapped = nn.ModuleDict({"module": model})
            rows = {entry.name: list(entry.planned(MESH)) for entry in _parameters.find(wrapped)}
            found = {name: (said[0].types, said[0].by) for name, said in rows.items() if said}
            self.assertEqual(found, {f"module.{name}": said for name, said in expected.items()})

    def test_annotations_are_in_the_checksum_of_names(self):
        sums = []
        for kind in "R", "I", "S0", "S1", None:
            entry = self.entry(**({"annotation": kind} if kind else {}))
            sums.append(_names.checksum_of_names([entry], []))
        self.assertEqual(len(set(sums)), 5)


if __name__ == "__main__":
    unittest.main()
