"""The pytest plugin. A test with the fixture `addend_watch` runs on several ranks, which are started for it, and fails
if gradients are wrong (python/docs/torch.md). A test with the fixture `addend_ranks` runs on ranks that many tests
share (python/docs/torch-testing.md). Other tests run as before; neither PyTorch nor addend is imported for them."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

_FIXTURE = "addend_watch"
_SHARED = "addend_ranks"
_LEFT_ALONE = 5.0  # seconds after which the other ranks are ended, once one rank has failed
_MARKER = (
    "addend(ranks=2, seed=0, timeout=120): for a test with the fixture addend_watch or addend_ranks: the number of "
    "ranks, the seed of their random numbers, and the seconds after which they are ended"
)


def pytest_configure(config: Any) -> None:
    """Registers the marker `addend`."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def addend_watch() -> Any:
    """Runs the test on several ranks. In it, put `with addend_watch(model):` around one training step; options
    are those of addend.torch.watch, by name. If the report is not right, the test fails and shows the report's table.
    PyTorch's random numbers are the same on all ranks before the `with`, and different on each rank inside."""
    return None


@pytest.fixture
def addend_ranks() -> Any:
    """The number of ranks. The test runs on each of them, with torch.distributed initialised."""
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Runs a test with one of the two fixtures on ranks; leaves every other test to pytest."""
    asked = [name for name in (_FIXTURE, _SHARED) if name in pyfuncitem.fixturenames]
    if not asked:
        return None
    if len(asked) == 2:
        pytest.fail(f"a test can use the fixture {_FIXTURE} or {_SHARED}, not both", pytrace=False)
    if importlib.util.find_spec("torch") is None:
        pytest.skip(f"{asked[0]} needs PyTorch")
    (_run if asked[0] == _FIXTURE else _run_shared)(pyfuncitem, **_reported(pyfuncitem))
    return True


def _reported(item: Any) -> dict[str, Any]:
    marker = item.get_closest_marker("addend")
    reported: dict[str, Any] = {"ranks": 2, "seed": 0, "timeout": 120}
    given = dict(marker.kwargs) if marker else {}
    if marker and marker.args:
        given["ranks"] = marker.args[0]
    unknown = set(given) - set(reported)
    if unknown:
        names = ", ".join(f"`{name}`" for name in sorted(unknown))
        pytest.fail(f"the marker `addend` takes ranks, seed and timeout, not {names}", pytrace=False)
    reported.update(given)
    return reported


def _run_shared(item: Any, ranks: int, seed: int, timeout: float) -> None:
    from addend.torch.testing import RankError, _run_test

    names = item._fixtureinfo.argnames
    values = {name: ranks if name == _SHARED else item.funcargs[name] for name in names}
    try:
        _run_test(item.function, _pickled(((), values)), ranks, timeout, seed)
    except RankError as error:
        pytest.fail(str(error), pytrace=False)


def _pickled(values: Any) -> bytes:
    try:
        return pickle.dumps(values)
    except Exception as error:
        why = str(error)
    pytest.fail(f"an argument of the test cannot be pickled to send it to the ranks' processes: {why}", pytrace=False)
    raise AssertionError  # not reached, because pytest.fail raises


def _call_of(item: Any, seed: int) -> bytes:
    """The pickled description of the test for a rank: its place, and the values of its other fixtures."""
    names = item._fixtureinfo.argnames
    arguments = _pickled({name: item.funcargs[name] for name in names if name != _FIXTURE})
    place = {
        "path": sys.path,
        "module": item.module.__name__,
        "file": str(item.path),
        "name": item.function.__qualname__,
        "arguments": arguments,
        "asks": _FIXTURE in names,
        "seed": seed,
    }
    return pickle.dumps(place)


def _start(rank: int, ranks: int, call: bytes, folder: Path) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    environment.setdefault("OMP_NUM_THREADS", "1")
    with (folder / f"call{rank}").open("wb") as file:
        file.write(call)
    with (folder / f"said{rank}").open("wb") as said:
        command = [
            sys.executable,
            "-c",
            "import sys; sys.path[:0] = sys.argv[2:]; from addend._pytest_rank import main; main()",
        ]
        here = str(Path(__file__).resolve().parents[1])
        return subprocess.Popen([*command, str(folder), here], stdout=said, stderr=said, env=environment)


def _await(processes: list[subprocess.Popen[bytes]], timeout: float) -> bool:
    """Waits for the ranks. False: the time ran out; True: all ended, or one failed and the others got _LEFT_ALONE."""
    deadline = time.monotonic() + timeout
    failed = False
    while any(process.poll() is None for process in processes):
        if not failed and any(process.poll() for process in processes):
            failed, deadline = True, min(deadline, time.monotonic() + _LEFT_ALONE)
        if time.monotonic() > deadline:
            return failed
        time.sleep(0.02)
    return True


def _run(item: Any, ranks: int, seed: int, timeout: float) -> None:
    call = _call_of(item, seed)
    with tempfile.TemporaryDirectory(prefix="addend-") as name:
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                processes.append(_start(rank, ranks, call, folder))
            ended = _await(processes, timeout)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        said = [(folder / f"said{rank}").read_text(errors="replace") for rank in range(ranks)]
        answers = [_answer(folder / f"answer{rank}") for rank in range(ranks)]
    sys.stdout.write(said[0])
    if not ended:
        pytest.fail(f"{ranks} ranks did not end in {timeout} s", pytrace=False)
    _judge(answers, said)


def _answer(path: Path) -> Any:
    return pickle.loads(path.read_bytes()) if path.exists() else None


def _judge(answers: list[Any], said: list[str]) -> None:
    """Ends the test as the ranks answered. An answer is (outcome, text, time), or None if the rank died; the outcome is
    "passed", "failed" or "skipped". The earliest failure is shown, since later ones are often its consequence."""
    given = [(answer[2], rank) for rank, answer in enumerate(answers) if answer and answer[0] != "passed"]
    for _, rank in sorted(given):
        outcome, text, _ = answers[rank]
        if outcome == "skipped":
            pytest.skip(text)
        pytest.fail(f"on rank {rank} of {len(answers)}:\n{text}", pytrace=False)
    for rank, answer in enumerate(answers):
        if not answer:
            pytest.fail(f"rank {rank} of {len(answers)} died:\n{said[rank]}", pytrace=False)
