"""Test that gradients saved by Megatron-LM and by SGLang's dumper become dumps. The files are made here, named and
filled as the two sources say (Megatron-LM: save_grads in megatron/training; SGLang: srt/debug_utils/dumper.py).
"""

import os
import tempfile
import unittest

import torch
from says import raises

import dumped
from addend import convert

FC1, NORM = "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.norm.weight"


def save_megatron(folder, parts):
    for name, tensors in parts.items():
        torch.save({"model_chunk0": tensors}, os.path.join(folder, f"{name}.pth"))


def save_sglang(folder, rank, index, name, value, step=0, parallel=None):
    tags = dict(step=step, rank=rank, dump_index=index, name=f"grad__{name}", recompute_status="disabled")
    meta = dict(tags, world_rank=rank, world_size=4)
    if parallel:
        meta["megatron_parallel_info"] = parallel
    path = os.path.join(folder, "___".join(f"{key}={text}" for key, text in tags.items()) + ".pt")
    torch.save({"value": value, "meta": meta}, path)


class Convert(unittest.TestCase):
    def setUp(self):
        self.from_folder, self.to_folder = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
        self.addCleanup(self.from_folder.cleanup)
        self.addCleanup(self.to_folder.cleanup)
        self.whole = {FC1: torch.randn(6, 4), NORM: torch.randn(4)}

    def halves(self):
        return [{FC1: self.whole[FC1][3 * i : 3 * i + 3].clone(), NORM: self.whole[NORM]} for i in range(2)]

    def test_megatron_sums_of_tensor_parallel_ranks_are_parts(self):
        save_megatron(self.from_folder.name, {f"mp_rank_0{i}": half for i, half in enumerate(self.halves())})
        files = convert.megatron(self.from_folder.name, self.to_folder.name, types={"*.linear_fc1.weight": "tp=S0"})
        self.assertEqual(len(files), 2)
        step = dumped.Step(self.to_folder.name)
        self.assertEqual(step.last["addend.mesh"], "pp=1 ep=1 tp=2")
        self.assertEqual([part.box for part in step.sums[FC1]], [((0, 0), (3, 4)), ((3, 0), (3, 4))])
        found = {flat: value for part in step.sums[FC1] for flat, value in part.values.items()}
        self.assertEqual([found[i] for i in range(24)], self.whole[FC1].double().flatten().tolist())
        self.assertEqual([len(part.values) for part in step.sums[NORM]], [4, 4])

    def test_megatron_ranks_are_put_together_as_a_reference(self):
        save_megatron(self.from_folder.name, {f"mp_rank_0{i}": half for i, half in enumerate(self.halves())})
        path = os.path.join(self.to_folder.name, "reference.safetensors")
        convert.megatron(self.from_folder.name, path, types={"*.linear_fc1.weight": "tp=S0"}, reference=True)
        metadata, tensors = dumped.read(path)
        self.assertEqual(metadata, {"addend.version": "1", "addend.kind": "reference"})
        self.assertEqual(tensors[FC1].tolist(), self.whole[FC1].double().flatten().tolist())

    def test_megatron_stages_are_in_the_names(self):
        save_megatron(self.from_folder.name, {f"mp_rank_00_00{i}": self.whole for i in range(2)})
        with raises(self, ValueError, "mp_rank_00_000.pth", 'second="pp"', 'second="ep"'):
            convert.megatron(self.from_folder.name, self.to_folder.name)
        convert.megatron(self.from_folder.name, self.to_folder.name, second="pp")
        self.assertEqual(
            sorted(dumped.Step(self.to_folder.name).sums),
            sorted(f"pp{i}.{name}" for i in range(2) for name in self.whole),
        )

    def test_megatron_ranks_of_experts_are_no_stages(self):
        save_megatron(self.from_folder.name, {f"mp_rank_00_00{i}": self.whole for i in range(2)})
        convert.megatron(self.from_folder.name, self.to_folder.name, second="ep")
        step = dumped.Step(self.to_folder.name)
        self.assertEqual(step.last["addend.mesh"], "pp=1 ep=2 tp=1")
        self.assertEqual(sorted(step.sums), sorted(self.whole))

    def test_a_reference_is_not_made_of_replicas_that_differ(self):
        halves = self.halves()
        halves[1][NORM] = halves[1][NORM] + 1
        save_megatron(self.from_folder.name, {f"mp_rank_0{i}": half for i, half in enumerate(halves)})
        path = os.path.join(self.to_folder.name, "reference.safetensors")
        with raises(self, ValueError, NORM, "tp=1"):
            convert.megatron(self.from_folder.name, path, types={"*.linear_fc1.weight": "tp=S0"}, reference=True)
        self.assertFalse(os.path.exists(path))

    def test_a_file_that_is_wrong_is_named(self):
        save_megatron(self.from_folder.name, {"mp_rank_00": self.whole})
        path = os.path.join(self.from_folder.name, "mp_rank_00.pth")
        with open(path, "r+b") as file:
            file.truncate(100)
        with raises(self, ValueError, "mp_rank_00.pth", "torch.save"):
            convert.megatron(self.from_folder.name, self.to_folder.name)
        torch.save([self.whole], path)
        with raises(self, ValueError, "mp_rank_00.pth", "Megatron"):
            convert.megatron(self.from_folder.name, self.to_folder.name)
        torch.save({"value": torch.zeros(1)}, os.path.join(self.from_folder.name, "rank=0___name=grad__param__w.pt"))
        with raises(self, ValueError, "rank=0___name=grad__param__w.pt", "SGLang"):
            convert.sglang(self.from_folder.name, self.to_folder.name)

    def test_sglang_gradients_before_and_after_the_sum(self):
        addends = [[torch.randn(3, 4) for _ in range(2)] for _ in range(4)]
        for rank, own in enumerate(addends):
            parallel = dict(
                tp_rank=rank % 2, tp_size=2, dp_rank=rank // 2, dp_size=2, pp_rank=0, pp_size=1, cp_rank=0, cp_size=1
            )
            for m, value in enumerate(own):
                save_sglang(self.from_folder.name, rank, m + 1, f"addend__{FC1}", value, parallel=parallel)
            total = sum(addends[rank % 2] + addends[rank % 2 + 2]) / 2
            save_sglang(self.from_folder.name, rank, 3, f"param__{FC1}", total, parallel=parallel)
        convert.sglang(self.from_folder.name, self.to_folder.name, types={"*fc1*": "tp=S0"}, expect=0.5)
        step = dumped.Step(self.to_folder.name)
        self.assertEqual(step.last["addend.mesh"], "pp=1 dp=2 cp=1 tp=2")
        self.assertLess(step.residual(FC1), 1e-6)
        self.assertEqual(len(step.counts(FC1)), 4)

    def test_sglang_without_parallel_ranks_is_one_axis(self):
        values = [torch.randn(5) for _ in range(4)]
        for rank, value in enumerate(values):
            save_sglang(self.from_folder.name, rank, 1, "addend__w", value)
            save_sglang(self.from_folder.name, rank, 2, "param__w", sum(values))
        convert.sglang(self.from_folder.name, self.to_folder.name)
        self.assertLess(dumped.Step(self.to_folder.name).residual("w"), 1e-6)

    def test_what_cannot_be_read_is_said(self):
        with raises(self, ValueError, self.from_folder.name, "mp_rank_*.pth"):
            convert.megatron(self.from_folder.name, self.to_folder.name)
        with raises(self, ValueError, self.from_folder.name):
            convert.sglang(self.from_folder.name, self.to_folder.name)
        for step in range(2):
            save_sglang(self.from_folder.name, 0, step, "param__w", torch.zeros(1), step=step)
        with raises(self, ValueError, self.from_folder.name, "[0, 1]"):
            convert.sglang(self.from_folder.name, self.to_folder.name)
        save_megatron(self.from_folder.name, {"mp_rank_00": self.whole, "mp_rank_01_001": self.whole})
        with raises(self, ValueError, "pp=0", "tp=1", "pp=2", "tp=2"):
            convert.megatron(self.from_folder.name, self.to_folder.name, second="pp")


if __name__ == "__main__":
    unittest.main()
