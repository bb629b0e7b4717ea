"""Test mistakes that a matrix plants in its cells: in rules of plans, in hooks, and in collectives. What comes of each
is known, because the hooks of these jobs are made for it."""

import contextlib
import dataclasses
import functools
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from addend.torch._matrix import _mutants, _run
from addend.torch._matrix._cells import (
    MATCHES,
    NO_EFFECT,
    NOT_TRIED,
    NOTICED,
    SURVIVED,
    WRONG,
    Cell,
    Job,
    Layout,
    Mutant,
    Outcome,
    Rule,
)
from addend.torch._matrix._hooks import ACCUMULATED, LEFT_OUT, TWICE, Hooks, hooks_of

# -- a model whose hooks have known effects


def double(module, inputs):
    return (inputs[0] * 2,)


def shift(module, inputs, keywords):
    return inputs, {**keywords, "by": keywords["by"] + 1}


def triple(module, inputs, output):
    return output * 3


def ten_times(gradient):
    return gradient * 10


def halve(parameter):
    parameter.grad.mul_(0.5)


def add_seven(module):
    forward = module.forward

    def added(x, by=0):
        return forward(x, by=by) + 7

    module.forward = added


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x, by=0):
        return self.weight * x + by


def layers():
    return nn.ModuleDict({"0": Shifted(), "1": Shifted(), "other": Shifted()})


PUT_ON = {
    "double": lambda module: module.register_forward_pre_hook(double),
    "shift": lambda module: module.register_forward_pre_hook(shift, with_kwargs=True),
    "triple": lambda module: module.register_forward_hook(triple),
    "added": add_seven,
    "ten_times": lambda module: module.weight.register_hook(ten_times),
    "halve": lambda module: module.weight.register_post_accumulate_grad_hook(halve),
}
OF = {
    "double": "forward pre-hook double of `*`",
    "shift": "forward pre-hook shift of `*`",
    "triple": "forward hook triple of `*`",
    "added": "forward add_seven.added of `*`",
    "ten_times": "hook ten_times of `*.weight`",
    "halve": "post-accumulate hook halve of `*.weight`",
}
# (the hook, what becomes of it): a layer's outputs in two steps for the input 5 and `by` 1, and its accumulated
# gradient
WITHOUT_HOOK, WITHOUT = [6.0, 6.0], 10.0
EXPECTED = {
    ("double", None): ([11.0, 11.0], 20.0),
    ("double", LEFT_OUT): (WITHOUT_HOOK, WITHOUT),
    ("double", TWICE): ([21.0, 21.0], 40.0),
    ("shift", None): ([7.0, 7.0], WITHOUT),
    ("shift", LEFT_OUT): (WITHOUT_HOOK, WITHOUT),
    ("shift", TWICE): ([8.0, 8.0], WITHOUT),
    ("triple", None): ([18.0, 18.0], 30.0),
    ("triple", LEFT_OUT): (WITHOUT_HOOK, WITHOUT),
    ("triple", TWICE): ([54.0, 54.0], 90.0),
    ("added", None): ([13.0, 13.0], WITHOUT),
    ("added", LEFT_OUT): (WITHOUT_HOOK, WITHOUT),
    ("added", TWICE): ([20.0, 20.0], WITHOUT),
    ("ten_times", None): (WITHOUT_HOOK, 100.0),
    ("ten_times", LEFT_OUT): (WITHOUT_HOOK, WITHOUT),
    ("ten_times", TWICE): (WITHOUT_HOOK, 1000.0),
    ("ten_times", ACCUMULATED): (WITHOUT_HOOK, 50.0 + 10 * (5 + 50)),
    ("halve", None): (WITHOUT_HOOK, (5 / 2 + 5) / 2),
    ("halve", LEFT_OUT): (WITHOUT_HOOK, WITHOUT),
    ("halve", TWICE): (WITHOUT_HOOK, (5 / 4 + 5) / 4),
}


def two_steps(hook, mutants):
    """([the output of each step of layer 0], its gradient, what can be planted), with the hook on layers 0 and 1."""
    with Hooks(mutants) as hooks:
        model = layers()
        own = hooks_of(model)
        for name in "01":
            PUT_ON[hook](model[name])
        hooks.attach([model], dict(model.named_parameters()), own)
        outputs = []
        for _ in range(2):
            outputs.append(model["0"](torch.tensor(5.0), by=1))
            outputs[-1].backward()
        for name in ("1", "other"):
            model[name](torch.tensor(5.0), by=1).backward()
    return [float(output.detach()) for output in outputs], float(model["0"].weight.grad), list(hooks.mutations)


class HooksAreChanged(unittest.TestCase):
    def test_each_mutation_does_what_its_name_says(self):
        for (hook, how), (outputs, gradient) in EXPECTED.items():
            with self.subTest(hook, how=how):
                found = two_steps(hook, [(OF[hook], how)] if how else [])
                self.assertEqual((outputs, gradient), found[:2])

    def test_a_hook_on_layers_of_a_class_is_one_and_all_its_mutations_are_known(self):
        for hook in OF:
            with self.subTest(hook):
                wanted = {(OF[one], how) for one, how in EXPECTED if one == hook and how}
                self.assertEqual(wanted, set(two_steps(hook, [])[2]))

    def test_a_hook_of_the_model_itself_is_none_of_the_framework(self):
        model = layers()
        for hook in ("double", "triple", "added"):
            PUT_ON[hook](model["0"])
        hooks = Hooks()
        hooks.attach([model], dict(model.named_parameters()), hooks_of(model))
        model["0"](torch.tensor(5.0))
        self.assertEqual({}, hooks.mutations)

    def test_after_the_context_hooks_are_put_on_as_ever(self):
        kept = torch.Tensor.register_hook
        with Hooks():
            self.assertIsNot(kept, torch.Tensor.register_hook)
        self.assertIs(kept, torch.Tensor.register_hook)

    def test_a_forward_that_keeps_no_other_is_not_run_twice(self):
        model = layers()
        model["0"].forward = lambda x: x
        hooks = Hooks()
        hooks.attach([model], dict(model.named_parameters()), {})
        model["0"](torch.tensor(5.0))
        self.assertEqual({LEFT_OUT}, {how for _, how in hooks.mutations})


# -- a job of two ranks whose rules, hooks and collectives have known effects

HANGS = 300.0  # seconds; many times what all mistakes take

PLAN = {"sums": "", "spare": "", "seen": "", "needed": "", "meets": ""}


def summed(gradient):
    gradient = gradient.clone()
    dist.all_reduce(gradient)
    return gradient


def see(module, inputs, output):
    module.seen.add_(output.detach().sum())


def count(module, inputs):
    module.calls += 1


def compare(module, inputs, output):
    module.compared += 1
    if module.compared != module.calls:
        raise RuntimeError(f"{module.calls} calls, {module.compared} compared")


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))
    model[1].register_buffer("seen", torch.zeros(()))
    return model


def sum_late(module, inputs):
    if "sums" in PLAN and not module.is_summed:
        module.is_summed = True
        sum_over_ranks(module)


def sum_over_ranks(module):
    for parameter in module.parameters():
        parameter.register_hook(summed)


def parallelize(model, mesh):
    PLAN["needed"]
    if "meets" in PLAN or dist.get_rank():
        dist.barrier()
    if "sums" in PLAN:
        sum_over_ranks(model[0])
    model[2].is_summed = False
    model[2].register_forward_pre_hook(sum_late)
    if "seen" in PLAN:
        model[1].register_forward_hook(see)


def counting(model, mesh):
    parallelize(model, mesh)
    model[0].calls = model[0].compared = 0
    model[0].register_forward_pre_hook(count)
    model[0].register_forward_hook(compare)


def batches(rank, mesh, microbatches):
    draw = torch.Generator().manual_seed(1)
    rows = [(torch.randn(4, 6, generator=draw), torch.randint(3, (4,), generator=draw)) for _ in range(microbatches)]
    return [(x, y) if rank is None else (x[rank::2], y[rank::2]) for x, y in rows]


def loss(model, batch):
    return cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])


def job(microbatches, names=PLAN, **more):
    arguments = {
        "make_model": make_model,
        "parallelize": parallelize,
        "batches": functools.partial(batches, microbatches=microbatches),
        "loss": loss,
        "mesh": {"dp": 2},
        **more,
    }
    return Job(arguments, rules=lambda: [Rule(name, functools.partial(PLAN.pop, name)) for name in names])


def cell(count=1):
    return Cell("m", Layout({"dp": 2}), count)


@contextlib.contextmanager
def waiting(seconds):
    kept, _mutants._WAIT = _mutants._WAIT, seconds
    try:
        yield
    finally:
        _mutants._WAIT = kept


class CellsAreMutated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with waiting(6.0):
            cls.found = _mutants.mutants(job(2, parallelize=counting), HANGS)
        cls.of = {(one.kind, one.name.split(" in the ")[0], one.how): one for one in cls.found}

    def result(self, kind, name, how):
        return self.of[kind, name, how].result

    def test_what_comes_of_rules(self):
        wanted = {"sums": NOTICED, "spare": NO_EFFECT, "seen": SURVIVED, "needed": NOTICED, "meets": NOTICED}
        self.assertEqual(wanted, {one.name: one.result for one in self.found if one.kind == "rule"})

    def test_by_what_a_rule_is_noticed(self):
        by = {one.name: one.by for one in self.found if one.kind == "rule"}
        self.assertIn("0.weight", by["sums"])
        self.assertIn("KeyError", by["needed"])
        self.assertIn("1.seen", by["seen"])
        self.assertEqual("", by["spare"])

    def test_a_sum_is_noticed_when_left_out_run_twice_or_given_what_has_accumulated(self):
        for how in (LEFT_OUT, TWICE, ACCUMULATED):
            with self.subTest(how):
                self.assertEqual(NOTICED, self.result("hook", "hook summed of `*.weight`", how))

    def test_what_changes_a_buffer_alone_survives(self):
        for how in (LEFT_OUT, TWICE):
            one = self.of["hook", "forward hook see of `*`", how]
            self.assertEqual((SURVIVED, "buffer `1.seen`"), (one.result, one.by.partition(" on rank")[0]))

    def test_a_bug_that_stays_does_not_spoil_what_comes_after_it(self):
        for name, how, result in (
            ("forward pre-hook count of `*`", LEFT_OUT, NOTICED),
            ("forward pre-hook count of `*`", TWICE, NOTICED),
            ("forward hook compare of `*`", LEFT_OUT, NO_EFFECT),  # the next step fails, if it is not left out there
            ("forward hook compare of `*`", TWICE, NOTICED),
        ):
            self.assertEqual(result, self.result("hook", name, how))
        self.assertNotIn(NOT_TRIED, {one.result for one in self.found})

    def test_a_hook_that_puts_on_another_is_left_out_from_the_first_step_on(self):
        name = "forward pre-hook sum_late of `*`"
        self.assertEqual(NOTICED, self.result("hook", name, LEFT_OUT))
        self.assertIn("2.weight", self.of["hook", name, LEFT_OUT].by)
        self.assertEqual(NO_EFFECT, self.result("hook", name, TWICE))

    def test_every_collective_is_tried_and_noticed(self):
        places = [one for one in self.found if one.kind == "collective"]
        self.assertEqual(4 * 3 + 2, len(places))  # two parameters in two microbatches; the second may accumulate
        self.assertEqual({NOTICED}, {one.result for one in places})
        self.assertEqual(2, sum(one.how == ACCUMULATED for one in places))


class TheRun(unittest.TestCase):
    def outcome(self, one):
        return _run.run(lambda cell, folder: one, [cell()], mutate=True)[0]

    def test_the_outcome_has_the_mutants(self):
        found = self.outcome(job(1, ["sums"]))
        self.assertEqual((MATCHES, ""), (found.verdict, found.not_mutated))
        self.assertEqual({"hook"}, {one.kind for one in found.survivors})
        self.assertTrue(all("`1.seen`" in one.by for one in found.survivors), found.survivors)
        self.assertIn("rules 1 of 1, hooks", found.coverage)

    def test_a_cell_that_is_wrong_is_not_mutated(self):
        def forgets(model, mesh):
            parallelize(model, mesh)
            model[0].weight._backward_hooks.clear()

        found = self.outcome(job(1, parallelize=forgets))
        self.assertEqual((WRONG, (), True), (found.verdict, found.mutants, bool(found.not_mutated)))

    def test_a_job_of_which_the_rules_are_not_known_keeps_its_verdict(self):
        def failing():
            raise KeyError("no plan")

        found = self.outcome(dataclasses.replace(job(1), rules=failing))
        self.assertEqual((MATCHES, ()), (found.verdict, found.mutants))
        self.assertIn("no plan", found.not_mutated)

    def test_what_there_is_no_time_for_is_not_tried(self):
        found = _mutants.mutants(job(1, ["sums"]), 0.0)
        self.assertEqual({NOT_TRIED}, {one.result for one in found})
        self.assertEqual({"rule", "hook", "collective"}, {one.kind for one in found})


class Coverage(unittest.TestCase):
    def test_it_counts_what_was_noticed_of_what_has_an_effect(self):
        def some(kind, **counts):
            results = {"noticed": NOTICED, "survived": SURVIVED, "silent": NO_EFFECT, "late": NOT_TRIED}
            return [Mutant(kind, "n", "h", results[word]) for word, n in counts.items() for _ in range(n)]

        for mutants, text in (
            ([], ""),
            (some("rule", noticed=2), "rules 2 of 2"),
            (some("rule", noticed=2, survived=1) + some("hook", noticed=1), "rules 2 of 3, hooks 1 of 1"),
            (some("rule", silent=2), "without effect: 2"),
            (some("collective", noticed=1, silent=2, late=3), "collectives 1 of 1; without effect: 2; not tried: 3"),
        ):
            self.assertEqual(text, Outcome(cell(), MATCHES, mutants=tuple(mutants)).coverage)


if __name__ == "__main__":
    unittest.main()
