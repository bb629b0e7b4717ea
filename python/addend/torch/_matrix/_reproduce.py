"""Writes the shortest program that shows a bug, for readers who do not have this package."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable

import addend
from addend.torch import _replace
from addend.torch._matrix import _variants
from addend.torch._matrix._bugs import Bug

_WIDTH = 110  # characters of a line of the program
_VARIANTS = ("", _variants.FROZEN, _variants.NO_SYNC)  # for which a program can be written
_HANGS = 300  # seconds; many times what a program takes
_FINE = 1e-2  # an error that is a smaller part of the largest element is shown in f64, others in f32

_PROGRAM = '''"""{title}

{about}

Run: python3 {file}   (CPU, {ranks} processes on gloo; needs torch and transformers only)
Exit status: 1 the bug is there, 0 it is not, 2 it cannot run.
"""

import datetime
import os
import sys
import tempfile
import traceback

os.environ.update(CUDA_VISIBLE_DEVICES="", MASTER_ADDR="localhost", OMP_NUM_THREADS="1")
if __name__ == "__main__":  # an error is not the bug
    sys.excepthook = lambda *error: (traceback.print_exception(*error, file=sys.__stderr__), os._exit(2))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
{functional}import transformers
from transformers.distributed import DistributedConfig

CONFIG = {config}
LAYOUT = {layout}
RANKS, REPLICAS, MICROBATCHES = {ranks}, {replicas}, {microbatches}
ROWS = (MICROBATCHES, REPLICAS)  # each replica has its own row in each microbatch
NAME, STEPS = "{name}", {steps}
MODEL = dict(dtype=torch.{dtype}, attn_implementation="eager", experts_implementation="eager")
AUTO = transformers.{auto}
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

{freeze}
def gradient(model, inputs):
    """The gradient of NAME, after STEPS steps, for the mean over microbatches of {loss_is}."""
    for step in range(STEPS + 1):
        model.zero_grad()
        for i in range(MICROBATCHES):
            batch = {{name: value[i] for name, value in inputs.items()}}
{sync}{loss}
            (loss / MICROBATCHES).backward()
        if step < STEPS:
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    param = model.get_parameter(NAME)
    grad = torch.zeros_like(param) if param.grad is None else param.grad
    return (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).detach()


def one_rank(rank, folder, inputs, expected, bad):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", f"file://{{folder}}/store", datetime.timedelta(minutes=5), RANKS, rank)
    model = AUTO.from_pretrained(folder, distributed_config=DistributedConfig(**LAYOUT), **MODEL).{mode}()
{divided}    own = {{name: value[:, rank * REPLICAS // RANKS] for name, value in inputs.items()}}
    found = gradient({model}, own)
    if rank == 0:
        worst = (found - expected).abs().nan_to_num(torch.inf).argmax()
        right, wrong = (float(value.flatten()[worst]) for value in (expected, found))
        print(f"{{NAME}}, element {{int(worst)}}: expected {{right:.6g}}, found {{wrong:.6g}}")
        bad.value = not torch.allclose(found, expected, rtol=0, atol={bound} * float(expected.abs().max()))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = AUTO.from_config(transformers.AutoConfig.for_model(**CONFIG), **MODEL).{mode}()
    with torch.no_grad():  # parameters away from ones and zeros
        for p in model.parameters():
            p.copy_(p + torch.randn_like(p) * 0.3 if p.ndim < 2 else torch.randn_like(p) / p.shape[-1] ** 0.5)
{inputs}
    bad = mp.get_context("spawn").Value("b", False)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        expected = gradient({model}, {{name: value.flatten(1, 2) for name, value in inputs.items()}})
        assert 0 < expected.abs().max() < torch.inf, f"the inputs show nothing of {{NAME}}"
        mp.spawn(one_rank, (folder, inputs, expected, bad), RANKS)
    if bad.value:
        sys.exit(f"WRONG: the gradient of {{NAME}} on {{RANKS}} ranks ({{LAYOUT}})")
    print(f"right: the gradient of {{NAME}}")
'''

_FREEZE = '''
def frozen(model):
    """The model, whose every second parameter by the order of names is not trained."""
    for name in sorted(dict(model.named_parameters()))[::2]:
        model.get_parameter(name).requires_grad_(False)
    return model

'''
_SYNC = """            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(i == MICROBATCHES - 1)
"""
_DIVIDED = """    assert hasattr(model, "unshard"), "fsdp_size is without effect in this release of Transformers"
"""
_LOGITS = """            logits = model(**batch).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())"""
_HIDDEN = """            hidden = model(**batch).last_hidden_state
            loss = (hidden - torch.arange(hidden.shape[-1]).sin()).square().mean()"""


def _lines(value: Any, indent: str = "", beside: int = 10) -> str:
    """A literal in lines of at most _WIDTH characters, `beside` of them for what is around it: dictionaries and lists
    are broken where they are too long."""
    flat = repr(value)
    if len(indent) + len(flat) < _WIDTH - beside or not isinstance(value, (dict, list)) or not value:
        return flat
    if isinstance(value, list):
        inner = _wrapped(flat[1:-1], _WIDTH - len(indent) - 4).replace("\n", f"\n{indent}    ")
        return f"[\n{indent}    {inner},\n{indent}]"
    items: list[str] = []
    for key, item in value.items():
        text = f"{key!r}: {_lines(item, indent + '    ')}"
        joined = f"{items[-1]}, {text}" if items else text
        if items and "\n" not in joined and len(indent) + 5 + len(joined) < _WIDTH:
            items[-1] = joined
        else:
            items.append(text)
    inner = "".join(f"{indent}    {item},\n" for item in items)
    return f"{{\n{inner}{indent}}}"


def _wrapped(text: str, width: int = _WIDTH) -> str:
    """A paragraph in lines of at most `width` characters."""
    lines: list[str] = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _slug(bug: Bug) -> str:
    cell = bug.smallest.cell
    last = bug.param.rpartition(".")[0].rpartition(".")[2] if bug.param else bug.module.rpartition(".")[2]
    words = f"{cell.model} {cell.layout.name} {last or 'model'} {bug.place} {cell.microbatches}"
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")


def _free_name(bug: Bug, taken: Collection[str]) -> str:
    """The file's name: model, layout, module, place and number of microbatches; a number if that is taken."""
    slug = _slug(bug)
    numbered = (f"{slug}-{i}.py" for i in itertools.count(2))
    return next(name for name in itertools.chain([f"{slug}.py"], numbered) if name not in taken)


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


def _inputs(inputs: Mapping[str, Any]) -> str:
    """The lines that make the inputs: tokens, and what else the model takes, as `_recipe.inputs` has it."""
    first, vocabulary, head, length = (inputs[name] for name in ("first", "vocabulary", "head", "length"))
    lines = [f"tokens = torch.randint({first}, {vocabulary}, (*ROWS, 1, {length}))"]
    if head:
        lines.append(f"tokens[..., :{len(head)}] = torch.tensor({_lines(head, '    ', 50)})  # an image")
    lines.append('inputs = {"input_ids": tokens}')
    for name, (kind, value) in inputs["more"].items():
        if kind == "drawn":
            shape = ", ".join(map(str, value))
            made = f'torch.randn(*ROWS, {shape}, dtype=MODEL["dtype"])'
        elif kind == "constant":
            ones = ", ".join("1" * _depth(value))
            made = f"torch.tensor({_lines(value, '    ', 60 + len(name))}).repeat(*ROWS, {ones})"
        else:
            made = "tokens"
        lines.append(f'inputs["{name}"] = {made}')
    return "\n".join(f"    {line}" for line in lines)


def _depth(value: Any) -> int:
    return 1 + _depth(value[0]) if isinstance(value, list) else 0


def _of_variant(variant: str) -> dict[str, str]:
    """The parts of the program that differ between what a job does beside the plain one."""
    is_frozen, is_late = variant == _variants.FROZEN, variant == _variants.NO_SYNC
    return {
        "freeze": _FREEZE if is_frozen else "",
        "model": "frozen(model)" if is_frozen else "model",
        "sync": _SYNC if is_late else "",
    }


def _of_output(auto: str) -> dict[str, str]:
    """The parts of the program that differ between models with logits and those without a head."""
    if auto == "AutoModel":
        return {"functional": "", "loss": _HIDDEN, "loss_is": "a loss of hidden states"}
    functional = "import torch.nn.functional as F\n"
    return {"functional": functional, "loss": _LOGITS, "loss_is": "the mean loss of the next token"}


def _need_program(bug: Bug) -> None:
    """Raises InvalidError if no program can show the bug."""
    outcome = bug.smallest
    variant = outcome.cell.layout.variant
    for refused, why in (
        ("auto" not in outcome.recipe, "it is not of an architecture of Transformers"),
        (variant not in _VARIANTS, f"programs have no {variant}"),
        (not bug.param, "no wrong parameter is known"),
        (_steps(bug) < 0, "gradients are right, and a step is wrong"),
    ):
        if refused:
            raise addend.InvalidError(f"no program is written for {outcome.cell.name}: {why}: {outcome.why}")


def program(bug: Bug, file: str) -> str:
    """The text of the program. Raises InvalidError for a bug of which no parameter is known, or that comes from another
    source than Transformers' declarations."""
    _need_program(bug)
    outcome = bug.smallest
    recipe, cell = outcome.recipe, outcome.cell
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
        steps=_steps(bug),
        dtype="float64" if is_fine else "float32",
        bound="1e-5" if is_fine else "1e-3",
        auto=recipe["auto"],
        mode="train" if recipe.get("training", True) else "eval",
        inputs=_inputs(recipe["inputs"]),
        divided=_DIVIDED * (layout.mesh.get("fsdp", 1) > 1),
        **_of_variant(layout.variant),
        **_of_output(recipe["auto"]),
    )


def write(bug: Bug, folder: str | os.PathLike[str], taken: Collection[str] = ()) -> str:
    """Writes the program into the folder, which is made if it does not exist, under a name that is not `taken`; returns
    its path. It needs PyTorch and Transformers alone, and exits with 1 while the bug is there, with 0 if it is not, and
    with 2 if the program cannot run."""
    path = os.path.join(os.fspath(folder), _free_name(bug, taken))
    text = program(bug, os.path.basename(path))
    os.makedirs(folder, exist_ok=True)
    _replace.write(path, text)
    return path


def write_all(bugs: Sequence[Bug], folder: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """Writes a program for each bug; returns their paths, and why others have none."""
    paths: list[str] = []
    without = []
    for bug in bugs:
        try:
            paths.append(write(bug, folder, [os.path.basename(path) for path in paths]))
        except addend.InvalidError as error:
            without.append(str(error))
    return paths, without


def first_run(path: str, stopped: Callable[[], str] = str) -> str:
    """Runs a program; returns "" if it shows its bug, else why not. `stopped` says why to end it, or ""."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ADDEND_LIBRARY")}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        running = subprocess.Popen(
            [sys.executable, path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        began, status = time.monotonic(), None
        try:
            while status is None and not stopped() and time.monotonic() - began < _HANGS:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = running.wait(0.5)
        finally:  # its ranks end with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        output.seek(0)
        lines = output.read().strip().splitlines()
    if status is None:
        return stopped() or f"no end in {_HANGS} s"
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)] if status else []
    return "" if status == 1 else f"exit status {status}: {(errors or lines or ['it prints nothing'])[-1]}"
