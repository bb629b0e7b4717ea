"""Test `addend.torch.check`: what it says, what it refuses, and the mistakes that it plants itself."""

import contextlib
import json
import os
import re
import time
import unittest

import torch
import torch.distributed as dist
from says import raises, says
from torch import nn

import addend
from addend.torch import assert_matches_one_process, check

HANGS = 120  # seconds; many times what a job takes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def whole():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 5, generator=generator)


def batches(rank, mesh):
    x, y = whole()
    if rank is None:
        return [(x, y)]
    at, ranks = mesh.get_local_rank("dp"), mesh.size("dp")
    return [(x[at::ranks], y[at::ranks])]


def loss(model, batch):
    x, y = batch
    return (model(x) - y).square().sum(), y.numel()


def ddp(model, mesh):
    return nn.parallel.DistributedDataParallel(model)


def unused(model, mesh):
    return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.up)
    fully_shard(model)


def plain(model, mesh):
    return model


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def checked(make_model=Net, parallelize=ddp, batches=batches, loss=loss, mesh=2, **arguments):
    return check(make_model, parallelize, batches, loss, mesh, **{"timeout": HANGS, **arguments})


class Report(unittest.TestCase):
    def test_a_right_job(self):
        report = checked()
        self.assertTrue(report.ok, report)
        self.assertAlmostEqual(report.loss, report.loss_alone, delta=1e-12)
        self.assertEqual([param.name for param in report.params], ["up.weight", "up.bias", "down.weight", "down.bias"])
        self.assertTrue(all(0 <= param.error < 1e-12 for param in report.params), report)
        first, _, params, *_ = str(report).split("\n\n")
        says(self, params, "4 parameters")
        says(self, first, "4 parameters")
        self.assertEqual(str(report).rpartition("\n")[2], first)

    def test_a_wrong_job(self):
        report = checked(parallelize=plain)
        self.assertFalse(report.ok)
        self.assertEqual(report.begins.place, "reduction")
        cause = report["up.weight"].cause
        self.assertEqual((cause.kind, cause.axes), ("own_only", "dp"))
        self.assertEqual(report.begins.axes, ("dp",))
        says(self, report["up.weight"].text, "rank 0", "dp")
        says(self, str(report).rpartition("\n")[2], "NOT MATCH", "4 of", "4 parameters")

    def test_where_it_begins_has_a_line_and_the_collectives_inside(self):
        report = checked(parallelize=lambda model, mesh: ddp(halved(model), mesh))
        self.assertEqual((report.begins.module, report.begins.place), ("down", "backward"))
        self.assertEqual(report.begins.factor, 0.5)
        says(self, report.begins.text, "0.5 times")
        self.assertRegex(report.begins.where, r"test_check\.py:\d+$")

    def test_its_document_is_json(self):
        report = checked(parallelize=plain)
        document = json.loads(json.dumps(report.document, allow_nan=False))
        self.assertEqual((document["ok"], len(document["params"])), (False, 4))
        self.assertEqual(document["begins"]["place"], "reduction")

    def test_assert_matches_one_process(self):
        self.assertTrue(assert_matches_one_process(Net, ddp, batches, loss, 2, timeout=HANGS).ok)
        with raises(self, AssertionError, "NOT MATCH", "4 of", "4 parameters"):
            assert_matches_one_process(Net, plain, batches, loss, 2, timeout=HANGS)

    def test_a_pair_of_a_full_and_a_sharded_value(self):
        def cut(batch, rank, mesh):
            return [tuple(x.chunk(mesh.size())[rank] for x in batch)]

        self.assertTrue(checked(batches=(whole, cut)).ok)
        self.assertTrue(checked(batches=(whole(), cut)).ok)

    def test_a_scalar_loss_is_taken_as_it_is(self):
        def mean(model, batch):
            return (model(batch[0]) - batch[1]).square().mean()

        self.assertTrue(checked(loss=mean).ok)
        report = checked(
            loss=lambda model, batch: mean(model, batch) * len(batch[0])
        )  # 4 rows on a rank, 8 in one process
        self.assertEqual((report.ok, report.begins.place), (False, "loss"))

    def test_counts_that_differ_between_ranks(self):
        def uneven(rank, mesh):
            x, y = whole()
            return [(x, y)] if rank is None else [(x[:6], y[:6])] if rank == 0 else [(x[6:], y[6:])]

        self.assertTrue(checked(batches=uneven).ok)

    def test_copies_are_the_same_bits(self):
        def nudged(model, microbatches, loss_of):
            loss_of(model, microbatches[0]).backward()
            if dist.get_rank() == 1:
                model.module.up.weight.grad *= 1 + 2**-51

        report = checked(run=nudged)
        self.assertIs(report.ok, False)
        says(self, report["up.weight"].text, "ranks 0", "and 1")
        self.assertTrue(report["down.weight"].ok)

    def test_a_sum_that_is_lost_after_the_first_step(self):
        def once(model, mesh):
            done = []

            def reduce(*_):
                if not done:
                    for parameter in model.parameters():
                        dist.all_reduce(parameter.grad)
                done.append(1)

            model.reduce = reduce
            return model

        def run(model, microbatches, loss_of):
            loss_of(model, microbatches[0]).backward()
            model.reduce()

        report = checked(parallelize=once, run=run)
        self.assertIs(report.ok, False)
        says(self, report["up.weight"].text, "rank 0", "step 2")

    def test_a_shard_that_nobody_has(self):
        def half(model, mesh):
            model.up.weight = nn.Parameter(model.up.weight.detach()[:, :3].clone())
            model.up.forward = lambda x: nn.functional.linear(x[:, :3], model.up.weight, model.up.bias)
            return ddp(model, mesh)

        report = checked(parallelize=half)
        self.assertIs(report.ok, False)
        says(self, "\n".join(param.text for param in report.params), "24 of", "48 elements")

    def test_one_rank_alone(self):
        self.assertTrue(checked(parallelize=plain, mesh=1).ok)

    def test_parameters_after_steps(self):
        def adam(model):
            return torch.optim.AdamW(model.parameters(), 0.1)

        def other_decay(model):
            decay = 0.5 if dist.is_initialized() else 0.01
            return torch.optim.AdamW(model.parameters(), 0.1, weight_decay=decay)

        for parallelize in (ddp, sharded):
            self.assertTrue(checked(parallelize=parallelize, optimizer=adam, steps=3).ok)
        report = checked(optimizer=other_decay, steps=2)
        self.assertIs(report.ok, False)
        self.assertEqual((report.begins.place, report.begins.step), ("optimizer", 1))
        says(self, report["up.weight"].text, "rank 0", "step 1")

    def test_constants_are_varied_and_dropout_is_off_and_narrow_conversions_are_none(self):
        class Noisy(Net):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(6)

            def forward(self, x):
                x = nn.functional.dropout(self.norm(x.float()).to(torch.bfloat16), 0.5)
                return super().forward(x)

        report = checked(make_model=Noisy)
        self.assertTrue(report.ok, report)
        for facts in (["dropout"], ["f64"], ["weight", "bias"]):
            says(self, "\n".join(report.messages), *facts)

    def test_in_four_blocks_on_four_ranks(self):
        import right_jobs

        report = check(
            right_jobs.four_blocks,
            right_jobs.megatron,
            (right_jobs.whole, right_jobs.cut),
            right_jobs.loss,
            {"dp": 2, "tp": 2},
        )
        self.assertTrue(report.ok, report)
        says(self, report.tensors["blocks.3.mlp.up"], "dimension 0", "dp", "dimension 2", "tp")


class Half(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient / 2


class HalfLinear(nn.Linear):
    def forward(self, x):
        return super().forward(Half.apply(x))


def halved(model):
    model.down.__class__ = HalfLinear
    return model


class Models(unittest.TestCase):
    """Models that are no chain of linear layers."""

    def test_tied_weights(self):
        class Tied(Net):
            def __init__(self):
                super().__init__()
                self.back = nn.Linear(5, 8)
                self.again = nn.Linear(6, 8)
                self.again.weight = self.up.weight

            def forward(self, x):
                return self.down(torch.tanh(self.up(x)) + self.again(x))

        def untied(model, mesh):
            model.again.weight = nn.Parameter(model.again.weight.detach().clone())
            return unused(model, mesh)

        report = checked(make_model=Tied, parallelize=unused)
        self.assertTrue(report.ok, report)
        self.assertEqual(report.unreached, ("back.weight", "back.bias"))
        report = checked(make_model=Tied, parallelize=untied)
        self.assertIs(report.ok, False)
        says(self, "\n".join(report.messages), "again.weight")

    def test_fully_shard_of_tied_weights_and_of_a_module_without_any(self):
        class Tied(Net):
            def __init__(self):
                super().__init__()
                self.nothing, self.again = nn.Identity(), nn.Linear(6, 8, bias=False)
                self.again.weight = self.up.weight

            def forward(self, x):
                return self.down(self.nothing(torch.tanh(self.up(x)) + self.again(x)))

        def tied_afterwards(model, mesh):
            from torch.distributed.fsdp import fully_shard

            model.again.weight = nn.Parameter(torch.empty(8, 6))
            fully_shard(model.up)
            fully_shard([model.nothing, model.down])
            fully_shard(model)
            model.again.weight = model.up.weight  # two groups have it now

        report = checked(make_model=Tied, parallelize=tied_afterwards, optimizer=adam, steps=1)
        self.assertTrue(report.ok, report)

    def test_buffers_and_a_frozen_parameter(self):
        class Buffered(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("scale", torch.rand(6))
                self.up.bias.requires_grad_(False)

            def forward(self, x):
                return super().forward(x * self.scale)

        report = checked(make_model=Buffered)
        self.assertTrue(report.ok, report)
        self.assertEqual(len(report.params), 3)

    def test_inputs_that_are_no_tensors(self):
        def words(rank, mesh):
            found = ("a", "bb", "ccc", "dddd")
            return [found if rank is None else found[2 * rank : 2 * rank + 2]]

        def of_words(model, batch):
            x = torch.tensor([[float(len(word) * i % 5) for i in range(6)] for word in batch])
            return model(x).square().sum(), len(batch)

        self.assertTrue(checked(batches=words, loss=of_words).ok)

    def test_outputs_in_a_dictionary(self):
        class Named(Net):
            def forward(self, x):
                return {"logits": super().forward(x), "name": "it"}

        def of_named(model, batch):
            return (model(batch[0])["logits"] - batch[1]).square().sum(), batch[1].numel()

        self.assertTrue(checked(make_model=Named, loss=of_named).ok)


class Refused(unittest.TestCase):
    """Each wrong call is refused with a sentence."""

    def refuses(self, kind, *facts, **arguments):
        with raises(self, kind, *facts) as caught:
            checked(**arguments)
        return str(caught.exception)

    def test_calls_that_mean_nothing(self):
        self.refuses(addend.InvalidError, "mesh='dp'", mesh="dp")
        self.refuses(addend.InvalidError, "'dp': 0", mesh={"dp": 0})
        self.refuses(addend.InvalidError, "loss", loss=3)
        self.refuses(addend.InvalidError, "batches", batches=[1])
        self.refuses(addend.InvalidError, "steps=2", "optimizer=", steps=2)

    def test_functions_that_give_the_wrong_things(self):
        self.refuses(addend.InvalidError, "make_model", make_model=lambda: 3)
        self.refuses(addend.InvalidError, "batches", "None", batches=lambda rank, mesh: None)
        self.refuses(addend.InvalidError, "loss", "a Tensor", loss=lambda m, b: m(b[0]))
        self.refuses(addend.InvalidError, "loss", "3 values", loss=lambda m, b: (1, 2, 3))
        self.refuses(addend.InvalidError, "parallelize", parallelize=lambda m, mesh: 3)

    def test_parallelize_that_fails_on_one_rank(self):
        def fails(model, mesh):
            if dist.get_rank() == 1:
                raise KeyError("no such layer")
            return ddp(model, mesh)

        self.refuses(addend.RankDiedError, "rank 1", "KeyError", "no such layer", "test_check.py", parallelize=fails)

    def test_a_rank_that_dies(self):
        def dies(model, mesh):
            if dist.get_rank() == 1:
                os.write(2, b"out of luck\n")
                os._exit(5)
            return ddp(model, mesh)

        said = self.refuses(addend.RankDiedError, "rank 1", "status 5", parallelize=dies)
        self.assertIn("out of luck", said.splitlines()[1])

    def test_a_rank_that_hangs(self):
        def waits_for_nobody(model, mesh):
            if dist.get_rank() == 1:
                time.sleep(1000)
            dist.barrier()
            return ddp(model, mesh)

        said = self.refuses(
            addend.RankDiedError, "rank 0", "rank 1", "8 s", "timeout=", parallelize=waits_for_nobody, timeout=8
        )
        _, *stacks = re.split(r"\nrank [01]", said)
        self.assertEqual([stack.count("in waits_for_nobody") for stack in stacks], [1, 1], said)

    def test_a_model_that_does_not_fit(self):
        class Huge(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(1, dtype=torch.float64).expand(1 << 40))

        self.refuses(addend.NoMemoryError, "8192.0 GiB", "2 ranks", make_model=Huge)

    def test_ranks_whose_parameters_have_other_names_or_shapes(self):
        def renamed(model, mesh):
            model.top = model.up
            del model.up
            model.forward = lambda x: model.down(torch.tanh(model.top(x)))
            return model

        def redrawn(model, mesh):
            model.up = nn.Linear(6, 8)
            return ddp(model, mesh)

        report = checked(parallelize=renamed)
        self.assertIs(report.ok, False)
        says(self, report["up.weight"].text, "top.weight")
        report = checked(parallelize=redrawn)
        self.assertIsNot(report.ok, True)
        self.assertIsNone(report["up.weight"].ok)
        says(self, report["up.weight"].text, "rank 0", "[8, 6]")


class Mutant(unittest.TestCase):
    def test_all_of_ddps_collectives_are_noticed(self):
        report = checked(mutate=True)
        self.assertTrue(report.ok, report)
        self.assertEqual([mutants.operator for mutants in report.mutants], ["left out", "doubled", "averaged"])
        self.assertTrue(all(mutants.collective == "allreduce" and mutants.axes == "dp" for mutants in report.mutants))
        self.assertEqual(report.survivors, ())

    def test_what_makes_no_difference_is_said(self):
        """fully_shard gathers the first layer again in backward, which does not need its values."""
        report = checked(parallelize=sharded, mutate=True)
        self.assertTrue(report.ok, report)
        survivors = {(mutants.collective, mutants.operator) for mutants in report.survivors}
        self.assertEqual(survivors, {("allgather_base", word) for word in ("left out", "doubled", "averaged")})
        self.assertEqual(len(report.mutants), 9)
        says(self, str(report), "9", "6")
        self.assertTrue(str(report).startswith("CANNOT TELL: 4 parameters "), report)
        with raises(self, AssertionError, "allgather_base 0", "dp"):
            assert_matches_one_process(Net, sharded, batches, loss, 2, mutate=True, timeout=HANGS)

    def test_mutations_are_of_the_weights_before_the_optimizers_steps(self):
        def adam(model):
            return torch.optim.Adam(model.parameters(), lr=0.01)

        report = checked(parallelize=sharded, optimizer=adam, steps=1, mutate=True)
        self.assertTrue(report.ok, report)
        self.assertEqual({"allgather_base"}, {mutants.collective for mutants in report.survivors})

    def test_functional_collectives_of_tensor_parallelism(self):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        class Deep(Net):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(6, 6)

            def forward(self, x):
                return super().forward(self.first(x))

        def cut(model, mesh):
            return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

        def same(rank, mesh):
            return [whole()]

        report = checked(make_model=Deep, parallelize=cut, batches=same, mesh={"tp": 2}, mutate=True)
        self.assertTrue(report.ok, report)
        self.assertEqual([p.collective for p in report.mutants], ["all_reduce"] * 3)
        self.assertEqual(report.survivors, ())


class Quiet(unittest.TestCase):
    def test_this_process_keeps_its_state(self):
        before = (torch.get_default_dtype(), torch.random.initial_seed(), dict(os.environ), dist.is_initialized())
        with contextlib.redirect_stdout(None):
            checked()
        after = (torch.get_default_dtype(), torch.random.initial_seed(), dict(os.environ), dist.is_initialized())
        self.assertEqual(before, after)


if __name__ == "__main__":
    unittest.main()
