"""Test that a rank that ends, or does not come, before a watch is over keeps the others waiting no longer than that can
be seen: they report which rank it was, wherever in the watch it ended.
"""

import contextlib
import datetime
import io
import os
import signal
import subprocess
import sys
import time
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from says import says
from torch import nn

import addend.torch
import ranks
from addend.torch import _alive, _gather, _meeting, _step

WORLD = 3


def dies_in(owner, name, dead, nth=1):
    """A context in which the nth call of owner.name on rank `dead` ends its process."""
    original, calls = getattr(owner, name), []

    def call(*arguments, **options):
        calls.append(1)
        if dist.get_rank() == dead and len(calls) == nth:
            os._exit(9)
        return original(*arguments, **options)

    return mock.patch.object(owner, name, call)


PLACES = {  # where in the watch the rank ends: the function that it calls, and in which call
    "begin": (_gather, "together", 1),
    "end": (_meeting.Meeting, "end", 1),
    "look": (_step.Step, "_look", 1),
    "headers": (_gather, "everyones", 3),
    "files": (_gather, "to_first", 1),
    "report": (_gather, "from_first", 1),
}


def run_dying(place, dead):
    """Return what the watch says on a rank that lives."""
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 4)
    owner, name, nth = PLACES[place]
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        dies_in(owner, name, dead, nth),
    ):
        warnings.simplefilter("ignore")
        with addend.torch.watch(model) as watch:
            model(torch.randn(3, 4)).square().mean().backward()
    store = dist.distributed_c10d._get_default_store()
    store.add("told", 1)
    while store.add("told", 0) < WORLD - 1:
        time.sleep(0.05)  # the process of a rank that has its report ends once all have it
    return watch.report.ok, "".join(watch.report.messages)


def run_late():
    """The second rank ends its watch after the first has waited as long as the group does."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=4))
    model, store = nn.Linear(4, 4), dist.distributed_c10d._get_default_store()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        addend.torch.watch(model, group=group) as watch,
    ):
        model(torch.ones(3, 4)).square().mean().backward()
        if dist.get_rank():
            store.wait(["the first waited"])
    store.set("the first waited", "")
    return watch.report.ok, watch.report.messages[0]


class Deaths(unittest.TestCase):
    def test_a_rank_that_ends_is_named_wherever_it_was(self):
        for place in PLACES:
            for dead in 0, 1:
                with self.subTest(place=place, dead=dead):
                    reported = ranks.run(WORLD, run_dying, place, dead, dead=(dead,))
                    for ok, text in reported:
                        if ok is False and (place, dead) == ("report", 1):
                            continue  # the first rank had sent the report: that nothing was summed
                        self.assertIsNone(ok)
                        says(self, text.partition(":")[0], f"rank {dead}")

    def test_a_rank_that_is_late_is_waited_for_as_long_as_the_group_waits(self):
        for ok, text in ranks.run(2, run_late):
            self.assertIsNone(ok)
            self.assertEqual(
                text,
                "rank 1 did not end the watch within the group's timeout of 4 s: this step is not judged",
            )


class Processes(unittest.TestCase):
    def test_a_process_runs_until_it_ends(self):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            of_other = _alive.identity().replace(
                f" {os.getpid()} {_alive._started(os.getpid())}",
                f" {other.pid} {_alive._started(other.pid)}",
            )
            self.assertFalse(_alive.has_ended(of_other))
            other.send_signal(signal.SIGKILL)
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet reaped
            self.assertTrue(_alive.has_ended(of_other))
        self.assertTrue(_alive.has_ended(of_other))

    def test_another_process_with_the_number_of_one_that_ended_is_not_taken_for_it(
        self,
    ):
        machine, pid, started = _alive.identity().split(" ")
        self.assertFalse(_alive.has_ended(f"{machine} {pid} {started}"))
        self.assertTrue(_alive.has_ended(f"{machine} {pid} {int(started) + 1}"))

    def test_what_cannot_be_seen_has_not_ended(self):
        _, pid, started = _alive.identity().split(" ")
        for identity in (
            f"elsewhere {pid} 1",
            f" {pid} {started}",
            "elsewhere 99999999 5",
            "here",
            "",
        ):
            self.assertFalse(_alive.has_ended(identity))


if __name__ == "__main__":
    unittest.main()
