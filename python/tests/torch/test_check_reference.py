"""Test `reference=FILE` of check: results of one process are read from a file, and a file of another job is refused."""

import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch
from safetensors import safe_open
from says import raises
from torch import nn

import addend
import right_jobs
from addend.torch import check, write_reference

HANGS = 120  # seconds; many times what a check takes


def job(**others):
    found = {"parallelize": right_jobs.megatron, "mesh": {"dp": 2, "tp": 2}, "make_model": right_jobs.Decoder}
    return {
        **found,
        "batches": (right_jobs.whole, right_jobs.cut),
        "loss": right_jobs.loss,
        "timeout": HANGS,
        **others,
    }


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


class Other(right_jobs.Decoder):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(right_jobs.WIDTH, right_jobs.VOCABULARY, bias=False)


class Moved(right_jobs.Decoder):
    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.head.weight[0, 0] += 1


def other_batch():
    tokens, targets = right_jobs.whole()
    tokens[3, 2] = (tokens[3, 2] + 1) % right_jobs.VOCABULARY
    return tokens, targets


class Reference(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name, "one.safetensors")
        write_reference(cls.path, **job(optimizer=sgd, steps=1))

    def test_the_reports_are_those_without_a_file(self):
        for parallelize in (right_jobs.megatron, right_jobs.at("blocks.1.mlp.up", copies=False)):
            asked = job(parallelize=parallelize, optimizer=sgd, steps=1)
            self.assertEqual(str(check(**asked, reference=self.path)), str(check(**asked)))

    def test_one_process_does_not_run(self):
        with mock.patch("addend.torch._checks._job.alone", side_effect=AssertionError("it ran")):
            self.assertTrue(check(**job(), reference=self.path).ok)

    def test_it_is_safetensors(self):
        with safe_open(self.path, "np") as file:
            self.assertIn("gradient/head.weight", file.keys())
            self.assertEqual(file.get_tensor("weight/head.weight").dtype, "float64")

    def refuses(self, *facts, path=None, **others):
        path = path or self.path
        with raises(self, addend.InvalidError, path.name, *facts):
            check(**job(**others), reference=path)

    def test_a_file_of_something_else(self):
        self.refuses("make_model", make_model=Other)
        self.refuses("make_model", make_model=Moved)
        self.refuses("batches", batches=(other_batch, right_jobs.cut))
        self.refuses("seed=20", "21", seed=21)
        self.refuses("after 1", "steps=2", optimizer=sgd, steps=2)

    def test_a_file_that_is_damaged(self):
        data = self.path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        flipped = bytearray(data)
        flipped[-5] ^= 1
        foreign = b'{"__metadata__": {"format": "pt"}}'
        of, whole = "{} bytes".format, str(len(data))
        for text, *facts in (
            (data[: len(data) // 2], of(len(data) // 2), whole),
            (data[:-1], of(len(data) - 1), whole),
            (data + b"x", of(len(data) + 1), whole),
            (bytes(flipped), "SHA-256"),
            (data[: length // 2], of(length // 2)),
            (b"", of(0)),
            (b"weights of a model", of(18)),
            (struct.pack("<Q", len(foreign)) + foreign, "write_reference"),
            (data.replace(b'\\"format\\": 1,', b'\\"format\\": 9,', 1), "is 9,", "1"),
        ):
            path = pathlib.Path(self.folder.name, "damaged.safetensors")
            path.write_bytes(text)
            self.refuses(*facts, path=path)
        self.refuses("reference=", path=pathlib.Path(self.folder.name, "none.safetensors"))

    def test_integer_buffers_and_tied_weights(self):
        class Tied(right_jobs.Decoder):
            def __init__(self):
                super().__init__()
                self.register_buffer("seen", torch.tensor(3))
                self.register_buffer("mask", torch.tensor([True, False]))
                self.head.weight = self.embed.weight

        path = pathlib.Path(self.folder.name, "tied")
        asked = job(make_model=Tied, parallelize=right_jobs.ddp, mesh={"dp": 2})
        write_reference(path, **asked)
        report = check(**asked, reference=path)
        self.assertTrue(report.ok, report)

    def test_a_model_too_large_is_reported(self):
        class Huge(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(1, dtype=torch.float64).expand(1 << 40))

        with raises(self, addend.NoMemoryError, "4 ranks", "163840.0 GiB", "reference=FILE"):
            check(**job(make_model=Huge))
        with raises(self, addend.NoMemoryError, "32768.0 GiB"):
            write_reference(pathlib.Path(self.folder.name, "huge"), **job(make_model=Huge))

    def test_the_command(self):
        pathlib.Path(self.folder.name, "ajob.py").write_text(
            "import right_jobs\n"
            "def cut():\n"
            "    return dict(make_model=right_jobs.Decoder, parallelize=right_jobs.megatron, loss=right_jobs.loss,\n"
            "                batches=(right_jobs.whole, right_jobs.cut), mesh={'dp': 2, 'tp': 2})\n",
            encoding="utf-8",
        )
        for words, status, said in (
            (["--write-reference", "file"], 0, ""),
            (["--reference", "file"], 0, "matches"),
            (["--reference", "none"], 2, ""),
        ):
            code = "from addend.torch._checks import _command; import sys; _command.main(sys.argv[1:])"
            done = subprocess.run(
                [sys.executable, "-c", code, "ajob:cut", *words],
                cwd=self.folder.name,
                capture_output=True,
                text=True,
                timeout=HANGS,
                env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
            )
            self.assertEqual(done.returncode, status, done.stderr)
            last = done.stdout.strip().rpartition("\n")[2]
            self.assertTrue(last.startswith(said) if said else not last, done.stdout)


if __name__ == "__main__":
    unittest.main()
