"""Run PyTorch's own tests of process groups on backend "addend" or on gloo.

Some of them come with PyTorch's wheel (torch/testing/_internal/distributed/distributed_test.py); those of its
repository's test/distributed are given as files. They are written for backends by name: the name stays gloo, which
decides what they skip, but a group made by that name gets the backend that is asked for. They need PyPI's expecttest.

    python3 python/tests/torch/theirs.py addend --only all_reduce
    python3 python/tests/torch/theirs.py gloo pytorch/test/distributed/test_functional_api.py --world 4
"""

import argparse
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import unittest


def settle(world):
    """Set the environment variables that the tests read, before they are imported."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world), TEMP_DIR=tempfile.mkdtemp(), INIT_METHOD="")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def replaced(name, backend):
    return name.lower().replace("gloo", backend) if isinstance(name, str) and "gloo" in name.lower() else name


def replace_backend(backend):
    """Make groups by gloo's name use `backend`."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    for where in ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"):
        made = getattr(c10d, where, None)
        if made is None:
            continue

        def make(*args, _made=made, **named):
            args = tuple(replaced(one, backend) for one in args)
            return _made(*args, **{key: replaced(value, backend) for key, value in named.items()})

        setattr(c10d, where, make)
        setattr(dist, where, make)


def fork_ranks():
    """Fork the ranks, so that each need not import PyTorch anew."""
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    def fork(self, *args):
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    MultiProcessTestCase._spawn_processes = fork


def theirs():
    """Return the class of tests in PyTorch's wheel."""
    from torch.testing._internal.distributed import distributed_test

    class TestGroup(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._spawn_processes()

    return unittest.defaultTestLoader.loadTestsFromTestCase(TestGroup)


def of_file(path):
    """Return the tests of a file of PyTorch's repository (test/distributed)."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


class Reported(unittest.TextTestResult):
    def __init__(self, *args):
        super().__init__(*args)
        self.seen, self.began = {}, 0

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def tell(self, test, outcome, why=""):
        name = ".".join(test.id().split(".")[-2:])
        self.seen[name] = {"outcome": outcome, "why": why[-2000:], "seconds": round(time.monotonic() - self.began, 2)}
        print(f"{outcome} {name} {self.seen[name]['seconds']} s", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.tell(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.tell(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.tell(test, "failed", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        super().addError(test, err)
        self.tell(test, "failed", self._exc_info_to_string(err, test))


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("backend", choices=("addend", "gloo"))
    words.add_argument("--world", type=int, default=3)
    words.add_argument("--only", default="", help="a regular expression for names")
    words.add_argument("files", nargs="*", help="of PyTorch's test/distributed; without: the tests in its wheel")
    words.add_argument("--json", help="where the outcomes go")
    given = words.parse_args()
    settle(given.world)
    if given.backend != "gloo":
        import addend.torch.group  # noqa: F401

        replace_backend(given.backend)
    fork_ranks()
    suites = [of_file(path) for path in given.files] or [theirs()]
    tests = [test for suite in suites for test in flat(suite) if re.search(given.only, test.id())]
    runner = unittest.TextTestRunner(resultclass=Reported, stream=open(os.devnull, "w"), verbosity=0)
    seen = runner.run(unittest.TestSuite(tests)).seen
    outcomes = [one["outcome"] for one in seen.values()]
    counts = ", ".join(f"{outcomes.count(one)} {one}" for one in ("passed", "failed", "skipped"))
    print(f"{given.backend}, {given.world} ranks: {counts}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump(seen, file, indent=1)


if __name__ == "__main__":
    main()
