"""Test the examples, as torchrun starts them: each prints a report that passes, and with --bug a report that
names it. The dump of four_mistakes.py has its four mistakes and no other.
"""

import pathlib
import sys
import tempfile

import addend
import ranks

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SAYS = {"ddp": "own addend only", "fsdp2": "has no sum", "tensor_parallel": "own addend only along tp"}
FOUR = {  # parameters, and their verdicts
    "blocks.1.attn.": ("last_microbatch", None, None),
    "blocks.2.norm2.": ("doubled", None, 2),  # there are two replicas and two microbatches
    "blocks.3.norm1.": ("partial", "dp_replicate", None),
    "head.weight": ("averaged", "dp_shard", 0.25),
}


def hold(name, arguments, words):
    said = ranks.play(4, EXAMPLES / f"{name}.py", *arguments)
    holds = words in said[0] and not any(said[1:])
    print(f"{'held  ' if holds else 'FAILED'} {name} {' '.join(arguments)}\n{said[0]}", flush=True)
    return holds


def expected_of(name):
    return next((said for start, said in FOUR.items() if name.startswith(start)), ("right", None, None))


def found_of(param):
    factor = expected_of(param.name)[2]
    near = factor is not None and param.factor is not None and abs(param.factor - factor) < 1e-3
    return param.kind, param.axis, factor if near else None


def hold_four_bugs():
    with tempfile.TemporaryDirectory() as folder:
        ranks.play(8, EXAMPLES / "four_mistakes.py", folder)
        report = addend.diff(folder)
    off = [param for param in report.params if found_of(param) != expected_of(param.name)]
    seen = all(any(param.name.startswith(start) for param in report.params) for start in FOUR)
    print(f"{'held  ' if seen and not off else 'FAILED'} four_mistakes\n{report}\n", *off, flush=True)
    return seen and not off


def main():
    names = [name for name in SAYS if ranks.FSDP2 or name == "ddp"]
    held = [
        hold(name, arguments, words)
        for name in names
        for arguments, words in (((), "matches"), (("--bug",), SAYS[name]))
    ]
    if ranks.FSDP2:
        held.append(hold_four_bugs())
    return 0 if all(held) else 1


def test_all():
    assert main() == 0


if __name__ == "__main__":
    sys.exit(main())
