"""Writes the shortest program that shows a bug, for readers who do not have this package."""

from __future__ import annotations

import math
import os
import re
from typing import Any, List, Mapping, Union

import addend
from addend.torch._matrix._bugs import Bug

_WIDTH = 110  # characters of a line of the program
_FINE = 1e-2  # an error that is a smaller part of the largest element is shown in f64, others in f32

_PROGRAM = '''"""{title}

{about}

Run: python3 {file}   (CPU, {ranks} processes on gloo; needs torch and transformers only)
"""

import os
import sys
import tempfile

os.environ.update(CUDA_VISIBLE_DEVICES="", MASTER_ADDR="localhost", OMP_NUM_THREADS="1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import transformers
from transformers.distributed import DistributedConfig

CONFIG = {config}
LAYOUT = {layout}
RANKS, REPLICAS, MICROBATCHES = {ranks}, {replicas}, {microbatches}  # a replica has rows of its own
NAME, STEPS = "{name}", {steps}
MODEL = dict(dtype=torch.{dtype}, attn_implementation="eager", experts_implementation="eager")
AUTO = transformers.{auto}
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def gradient(model, microbatches):
    """The gradient of NAME, after STEPS steps, for the mean over microbatches of the mean loss of the next token."""
    for step in range(STEPS + 1):
        model.zero_grad()
        for tokens in microbatches:
            logits = model(input_ids=tokens).{output}
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            (loss / len(microbatches)).backward()
        if step < STEPS:
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    grad = model.get_parameter(NAME).grad
    return grad.full_tensor() if hasattr(grad, "full_tensor") else grad


def one_rank(rank, folder, tokens, expected, bad):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/store", rank=rank, world_size=RANKS)
    model = AUTO.from_pretrained(folder, distributed_config=DistributedConfig(**LAYOUT), **MODEL).train()
    found = gradient(model, tokens[:, rank * REPLICAS // RANKS])
    if rank == 0:
        worst = (found - expected).abs().nan_to_num(torch.inf).argmax()
        right, wrong = (float(value.flatten()[worst]) for value in (expected, found))
        print(f"{{NAME}}, element {{int(worst)}}: expected {{right:.6g}}, found {{wrong:.6g}}")
        bad.value = not torch.allclose(found, expected, rtol=0, atol={bound} * float(expected.abs().max()))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = AUTO.from_config(transformers.AutoConfig.for_model(**CONFIG), **MODEL).train()
    with torch.no_grad():  # parameters away from ones and zeros
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    tokens = torch.randint(5, {vocabulary}, (MICROBATCHES, REPLICAS, 1, 9))
    bad = mp.get_context("spawn").Value("b", False)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        expected = gradient(model, tokens.flatten(1, 2))
        mp.spawn(one_rank, (folder, tokens, expected, bad), RANKS)
    if bad.value:
        sys.exit(f"WRONG: the gradient of {{NAME}} on {{RANKS}} ranks ({{LAYOUT}})")
    print("right")
'''


def _lines(value: Any, indent: str = "") -> str:
    """A literal in lines of at most _WIDTH characters: dictionaries and lists are broken where they are too long."""
    flat = repr(value)
    if len(indent) + len(flat) < _WIDTH - 10 or not isinstance(value, dict) or not value:
        return flat
    items: List[str] = []
    for key, item in value.items():
        text = f"{key!r}: {_lines(item, indent + '    ')}"
        joined = f"{items[-1]}, {text}" if items else text
        if items and "\n" not in joined and len(indent) + 5 + len(joined) < _WIDTH:
            items[-1] = joined
        else:
            items.append(text)
    inner = "".join(f"{indent}    {item},\n" for item in items)
    return f"{{\n{inner}{indent}}}"


def _wrapped(text: str) -> str:
    """A paragraph in lines of at most _WIDTH characters."""
    lines: List[str] = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= _WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _slug(bug: Bug) -> str:
    cell = bug.smallest.cell
    last = bug.param.rpartition(".")[0].rpartition(".")[2] if bug.param else bug.module.rpartition(".")[2]
    words = f"{cell.model} {cell.layout.name} {last or 'model'}"
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")


def _error(bug: Bug) -> float:
    report = bug.smallest.report or {}
    found = [param["error"] for param in report.get("params", ()) if param["name"] == bug.param]
    return math.inf if not found or found[0] is None else float(found[0])


def _steps(bug: Bug) -> int:
    """How many steps of the optimizer come before a wrong gradient; -1 if gradients are right, and a step is wrong."""
    if bug.place != "optimizer":
        return 0
    begins = (bug.smallest.report or {}).get("begins") or {}
    return int(begins.get("step") or 1) - 1 or -1


def _vocabulary(config: Mapping[str, Any]) -> int:
    return int((config.get("text_config") or config).get("vocab_size", 97))


def program(bug: Bug, file: str) -> str:
    """The text of the program. Raises InvalidError for a bug of which no parameter is known, or that comes from another
    source than Transformers' declarations."""
    outcome = bug.smallest
    recipe, cell = outcome.recipe, outcome.cell
    steps = _steps(bug)
    if not bug.param or steps < 0 or "auto" not in recipe:
        raise addend.InvalidError(f"no program can be written for {cell.name}: {outcome.why}")
    layout = cell.layout
    versions = recipe.get("versions", {})
    sizes = {f"{axis}_size": size for axis, size in {**layout.mesh, **layout.options}.items()}
    is_fine, cause = _error(bug) < _FINE, bug.cause.replace("`", "")
    what = ", ".join(bug.params) or f"{bug.module or 'the model'}, {bug.place}"
    about = f"{what}: {cause}. Also seen in: {', '.join(bug.models)}; {'; '.join(bug.layouts)}."
    return _PROGRAM.format(
        title=f"A wrong gradient in {', '.join(f'{name} {version}' for name, version in versions.items())}.",
        about=_wrapped(about),
        file=file,
        ranks=layout.ranks,
        replicas=layout.ranks // layout.mesh.get("tp", 1),
        microbatches=cell.microbatches,
        config=_lines(recipe["config"]),
        layout=_lines(sizes),
        name=bug.param,
        steps=steps,
        dtype="float64" if is_fine else "float32",
        bound="1e-5" if is_fine else "1e-3",
        auto=recipe["auto"],
        output="last_hidden_state" if recipe["auto"] == "AutoModel" else "logits",
        vocabulary=_vocabulary(recipe["config"]),
    )


def write(bug: Bug, folder: Union[str, os.PathLike[str]]) -> str:
    """Writes the program into the folder, which is made if it does not exist; returns its path. It needs PyTorch and
    Transformers alone, and exits with 1 while the bug is there."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(os.fspath(folder), f"{_slug(bug)}.py")
    text = program(bug, os.path.basename(path))
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.part", path)
    return path
