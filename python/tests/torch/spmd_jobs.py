"""Jobs that are annotated with spmd_types, each right and with a mistake of docs/catalogue.md: a small network on the
usual mesh axes. Jobs that are `typed` also give types to values in between: sums of gradients, counts, norms.
"""

import contextlib
import dataclasses
import functools
import typing

import spmd_types as spmd
import torch
import torch.distributed as dist
from torch import nn

import addend.types
from right_jobs import Job

ROWS, WIDTH, HIDDEN = 12, 6, 8


class Net(nn.Module):
    mesh = None

    def __init__(self):
        super().__init__()
        self.norm, self.bias = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.up, self.down = nn.Parameter(torch.randn(HIDDEN, WIDTH) / 2), nn.Parameter(torch.randn(WIDTH, HIDDEN) / 2)

    def forward(self, x):
        return torch.tanh((x * self.norm) @ self.up.T) @ self.down.T + self.bias


@dataclasses.dataclass
class Made:
    """How a job is made: with the mistake or without, and whether values in between are typed."""

    wrong: bool
    typed: bool


@dataclasses.dataclass
class Bug:
    numbers: tuple  # of docs/catalogue.md
    title: str
    make: typing.Callable  # make(Made) gives a Job
    by_numbers: bool = True  # whether check sees it
    by_types: bool = False  # whether the type checker refuses the job as it is
    where_typed: str = ""  # the values that must be typed for the checker to refuse it; "": that does not help


BUGS = []


def bug(*numbers, title, **found):
    def add(make):
        BUGS.append(Bug(numbers, title, make, **found))
        return make

    return add


# -- words


def say(x, text, mesh):
    """Give a value its types, while types are checked: what check compares without them is not to be stopped."""
    return spmd.assert_type(x, addend.types.to_spmd(text, mesh)) if spmd.is_type_checking() else x


def part_of(x, mesh, axis, dim):
    return nn.Parameter(x.detach().chunk(mesh[axis].size(), dim)[mesh.get_local_rank(axis)].clone())


def whole():
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))
    weight = torch.ones(ROWS)
    weight[1:4] = 0  # so that counts of ranks, and of their microbatches, differ
    return x, y, weight


def on_each(batch, rank, mesh):
    return [batch]


def rows_over(axis, microbatches=1):
    def cut(batch, rank, mesh):
        own = [part.chunk(mesh.size(axis))[mesh.get_local_rank(axis)] for part in batch]
        return list(zip(*(part.chunk(microbatches) for part in own)))

    return cut


def own_squares(model, batch):
    """The numerator and the count of this rank's rows."""
    x, y, weight = batch
    if model.mesh is not None:
        for value in batch:
            say(value, model.rows, model.mesh)
    return ((model(x) - y).square().sum(-1) * weight).sum(), weight.sum()


def squares(model, batch):
    value, count = own_squares(model, batch)
    return partial(value, model), count


def partial(value, model):
    """A loss of which each rank has a part, where rows are sharded."""
    for axis in model.sharded if model.mesh is not None else ():
        value = spmd.reinterpret(value, model.mesh.get_group(axis), src=spmd.V, dst=spmd.P)
    return value


def job(parallelize, mesh, cut, loss=squares, make_model=Net, **arguments):
    return Job(parallelize, mesh, arguments, make_model, (whole, cut), loss)


def typed_as(model, mesh, kind, types, rows):
    """Make a module that of one rank. `types`: of parameters; `rows`: of the batch, whose sharded axes the loss has."""
    model.__class__, model.mesh, model.rows = kind, mesh, rows
    model.sharded = [word.split("=")[0] for word in rows.split() if "S0" in word]
    addend.types.annotate(model, types, mesh)
    return model


# -- sums of gradients by hand, after the backward


def untyped(typed):
    """Sums of gradients are either typed or left out of the check."""
    return contextlib.nullcontext() if typed else spmd.no_typecheck()


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def summed(model, microbatches, loss_of, over, typed=False, times=lambda name: 1, divisor=lambda name: 1):
    """Run the backwards; then sum gradients. `over`: the axes for a gradient by its name; `times`: how often;
    `divisor`: by what it is divided."""
    for batch in microbatches:
        loss_of(model, batch).backward()
    with untyped(typed):
        for name, gradient in gradients(model).items():
            say_all(gradient, "P", over(name), model)
            for axis in over(name):
                for _ in range(times(name)):
                    dist.all_reduce(gradient, group=model.mesh.get_group(axis))
            gradient /= divisor(name)
            say_all(gradient, "R", over(name), model)


def say_all(gradient, kind, axes, model):
    return say(gradient, " ".join(f"{axis}={kind}" for axis in axes), model.mesh) if axes else gradient


# -- tensor parallelism: columns and rows of two matrices over tp; all else is the same on its ranks

TP = {"tp": 2}
DIMS = {"up": 0, "down": 1}  # along which the matrices are sharded
SHARDED = {"*": "tp=I", "up": "tp=S0", "down": "tp=S1"}


class Tensor(Net):
    def forward(self, x):
        tp = self.mesh.get_group("tp")
        x = spmd.convert(x * self.norm, tp, src=spmd.I, dst=spmd.R)
        y = torch.tanh(x @ self.up.T) @ self.down.T
        if self.adds_early:
            return spmd.all_reduce(y + self.bias, tp, src=spmd.V, dst=spmd.I)
        return spmd.all_reduce(y, tp, src=spmd.V, dst=spmd.I) + self.bias


def shard_matrices(model, mesh):
    for name, dim in DIMS.items():
        setattr(model, name, part_of(getattr(model, name), mesh, "tp", dim))


def tensor(model, mesh, kind=Tensor, types=SHARDED, **flags):
    shard_matrices(model, mesh)
    for name, value in {"adds_early": False, **flags}.items():
        setattr(model, name, value)
    return typed_as(model, mesh, kind, types, "tp=I")


@bug(8, title="a bias is added to a partial value on every rank", by_types=True)
def early_bias(made):
    return job(functools.partial(tensor, adds_early=made.wrong), TP, on_each)


class Routed(Net):
    """Experts' outputs, each times its score. The router is the same on all ranks of tp, its experts are not."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Parameter(torch.randn(4, WIDTH)), nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 2)

    def forward(self, x):
        return self.mixed(torch.softmax(x @ self.gate.T, -1), super().forward(x))

    def mixed(self, scores, x):
        return torch.einsum("be,bew->bw", scores, torch.tanh(torch.einsum("bv,evw->bew", x, self.experts)))


class RoutedTensor(Routed):
    def forward(self, x):
        tp = self.mesh.get_group("tp")
        scores = torch.softmax(x @ self.gate.T, -1)
        x = spmd.convert(Net.forward(self, x), tp, src=spmd.I, dst=spmd.R)
        if self.converts:
            scores = spmd.convert(scores, tp, src=spmd.I, dst=spmd.R)
        own, first = len(self.experts), len(self.experts) * dist.get_rank(tp)
        return spmd.all_reduce(self.mixed(scores[:, first : first + own], x), tp, src=spmd.V, dst=spmd.I)


def routed(model, mesh, converts):
    model.experts, model.converts = part_of(model.experts, mesh, "tp", 0), converts
    return typed_as(model, mesh, RoutedTensor, {"*": "tp=I", "experts": "tp=S0"}, "tp=I")


@bug(1, title="the gradient of a router that is replicated over tp is taken for final", by_types=True)
def router(made):
    return job(functools.partial(routed, converts=not made.wrong), TP, on_each, make_model=Routed)


class SharedHead(Net):
    """All columns of `up` are used with one shared vector, as heads of queries with a shared head of keys."""

    def __init__(self):
        super().__init__()
        self.key = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x):
        x = x * self.norm
        return (torch.tanh(x @ self.up.T) * (x @ self.key.T)) @ self.down.T + self.bias


class SharedHeadTensor(SharedHead):
    def forward(self, x):
        tp = self.mesh.get_group("tp")
        x = x * self.norm
        copied = spmd.convert(x, tp, src=spmd.I, dst=spmd.R)
        if self.by_hand:
            key = x @ self.key.T  # its weight's gradient is summed over tp by a hook, and that of x is not
        else:
            key = spmd.convert(x @ self.key.T, tp, src=spmd.I, dst=spmd.R)
        y = (torch.tanh(copied @ self.up.T) * key) @ self.down.T
        return spmd.all_reduce(y, tp, src=spmd.V, dst=spmd.I) + self.bias


def shared_head(model, mesh, by_hand):
    model = tensor(model, mesh, SharedHeadTensor, {**SHARDED, "key": "tp=R"} if by_hand else SHARDED, by_hand=by_hand)
    if by_hand:
        model.key.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=mesh.get_group("tp")))
    return model


@bug(3, title="of a shared head of keys the weight's gradient is summed over tp, the input's is not", by_types=True)
def shared_keys(made):
    return job(functools.partial(shared_head, by_hand=made.wrong), TP, on_each, make_model=SharedHead)


# -- sequence parallelism: between the matrices each rank of tp has its own rows


class Sequence(Net):
    def forward(self, x):
        tp = self.mesh.get_group("tp")
        x = spmd.all_gather(x * self.norm, tp, src=spmd.S(0), dst=self.gathered)
        y = torch.tanh(x @ self.up.T) @ self.down.T
        return spmd.reduce_scatter(y, tp, src=spmd.V, dst=spmd.S(0)) + self.bias


OWN_ROWS = ("norm", "bias")  # whose gradients are Partial over tp


def sequence(made=None, gathered=spmd.R, **sums):
    def parallelize(model, mesh):
        model.gathered = gathered
        shard_matrices(model, mesh)
        return typed_as(model, mesh, Sequence, {**SHARDED, "norm": "tp=R", "bias": "tp=R"}, "tp=S0")

    def over(name):
        return ("tp",) if name in OWN_ROWS else ()

    run = functools.partial(summed, over=over, typed=bool(made and made.typed), **sums)
    return job(parallelize, TP, rows_over("tp"), run=run)


@bug(2, title="the sum of a norm's gradient over tp is left out", where_typed="gradients, before the optimizer")
def norm_left_out(made):
    return sequence(made, times=lambda name: 0 if made.wrong and name == "norm" else 1)


@bug(5, title="the backward of an all-gather returns the local slice in place of the sum", by_types=True)
def sliced_gather(made):
    return sequence(gathered=spmd.I if made.wrong else spmd.R)


@bug(7, title="a norm's gradient is summed over tp twice", where_typed="gradients that are summed")
def norm_twice(made):
    return sequence(made, times=lambda name: 2 if made.wrong and name == "norm" else 1)


# -- data parallelism, with sums of gradients by hand


def data_job(run=summed, loss=squares, axis="dp", microbatches=1, **arguments):
    def parallelize(model, mesh):
        return typed_as(model, mesh, Net, {"*": f"{axis}=R"}, f"{axis}=S0")

    run = functools.partial(run, over=lambda name: (axis,))
    return job(parallelize, {axis: 2}, rows_over(axis, microbatches), loss, run=run, **arguments)


@bug(
    6, title="the first step is not reduced: a hook is attached too late", where_typed="gradients, before the optimizer"
)
def late_hook(made):
    def run(model, microbatches, loss_of, over):
        is_first, model.stepped = not getattr(model, "stepped", False), True
        summed(model, microbatches, loss_of, over, made.typed, lambda _: int(not (made.wrong and is_first)))

    return data_job(run)


@bug(14, title="ranks of one sequence are divided by as if they were data parallel")
def divided_by_cp(made):
    return data_job(functools.partial(summed, typed=made.typed, divisor=lambda _: 2 if made.wrong else 1), axis="cp")


@bug(15, title="the backward begins with a loss that is summed over ranks already", by_types=True)
def summed_loss(made):
    def loss(model, batch):
        value, count = squares(model, batch)
        if made.wrong and model.mesh is not None:
            value = spmd.all_reduce(value, model.mesh.get_group("dp"), src=spmd.P, dst=spmd.R)
        return value, count

    return data_job(loss=loss)


def mean_over(made, axis, terms=1):
    """A loss that is divided by its count: wrongly by the rank's own. With two terms, one of them is."""

    def loss(model, batch):
        value, own = own_squares(model, batch)
        if model.mesh is None:
            return value / own * terms
        with torch.no_grad():
            count = spmd.all_reduce(own, model.mesh.get_group(axis), src=spmd.V, dst=spmd.R)
        divisor = own.clamp(min=1) if made.wrong else count
        if made.typed:
            say(divisor, f"{axis}=R", model.mesh)
        term = value / divisor
        return partial(term + value / count if terms > 1 else term, model)

    return data_job(functools.partial(summed, typed=made.typed), loss, axis)


OWN_COUNT = "the count that the loss is divided by"


@bug(11, title="a term of the loss is divided by the rank's own count", where_typed=OWN_COUNT)
def term_by_own_count(made):
    return mean_over(made, "dp", 2)


@bug(17, title="the mean over ranks of the ranks' means", where_typed=OWN_COUNT)
def mean_of_means(made):
    return mean_over(made, "dp")


@bug(18, title="a masked loss is divided by each context-parallel rank's own count", where_typed=OWN_COUNT)
def mean_over_cp(made):
    return mean_over(made, "cp")


# -- microbatches


@bug(16, title="each microbatch is divided by its own count")
def mean_of_microbatch_means(made):
    def loss(model, batch):
        value, count = own_squares(model, batch)
        if made.wrong and model.mesh is not None:
            value = value / count.clamp(min=1)
        return partial(value, model), count

    return data_job(functools.partial(summed, typed=made.typed), loss, microbatches=2)


@bug(19, title="gradients are cleared in every microbatch")
def cleared(made):
    def run(model, microbatches, loss_of, over):
        for batch in microbatches[:-1]:
            loss_of(model, batch).backward()
            if made.wrong:
                model.zero_grad()
        summed(model, microbatches[-1:], loss_of, over, typed=made.typed)

    return data_job(run, microbatches=2)


def reduced_last(made, replaces):
    """The last microbatch's gradients are summed over ranks, and earlier ones added: before that, or wrongly after it.
    `replaces`: earlier ones are divided by the ranks first, as what a mean over replicas is added to."""

    def run(model, microbatches, loss_of, over):
        loss_of(model, microbatches[0]).backward()
        with untyped(made.typed):
            earlier = {
                name: say_all(gradient, "P", over(name), model).clone() for name, gradient in gradients(model).items()
            }
        model.zero_grad()
        loss_of(model, microbatches[1]).backward()
        with untyped(made.typed):
            for name, gradient in gradients(model).items():
                say_all(gradient, "P", over(name), model)
                if not made.wrong:
                    gradient += earlier[name]
                dist.all_reduce(gradient, group=model.mesh.get_group("dp"))
                if made.wrong:
                    gradient += earlier[name] / (2 if replaces else 1)

    return data_job(run, microbatches=2)


EARLIER = "gradients of each microbatch"


@bug(
    20, title="only the last microbatch is synchronised, and earlier ones of other ranks are lost", where_typed=EARLIER
)
def last_synchronised(made):
    return reduced_last(made, replaces=False)


@bug(21, title="what earlier microbatches left is added after the sum over replicas", where_typed=EARLIER)
def added_late(made):
    return reduced_last(made, replaces=True)


@bug(22, title="the factor of two reductions is applied where one of them runs")
def both_factors(made):
    return data_job(functools.partial(summed, typed=made.typed, divisor=lambda _: 2 if made.wrong else 1), averaged=1)


@bug(23, title="a factor is stored in one width and read in another: gradients are zero")
def wrong_width(made):
    factor = torch.tensor([1.0], dtype=torch.float64).view(torch.float32)[0].item() if made.wrong else 1.0
    return data_job(
        functools.partial(summed, typed=made.typed, divisor=lambda _: 1 / factor if factor else float("inf"))
    )


def narrowed(made, narrow):
    """The gradients on their way to the sum are `narrow`(gradient)."""

    def run(model, microbatches, loss_of, over):
        for batch in microbatches:
            loss_of(model, batch).backward()
        with untyped(made.typed):
            for name, p in model.named_parameters():
                gradient = say_all(p.grad, "P", over(name), model)
                sent = narrow(gradient) if made.wrong else gradient.clone()
                dist.all_reduce(sent, group=model.mesh.get_group("dp"))
                p.grad = sent.to(p.dtype)

    return data_job(run)


@bug(
    24,
    title="a gradient is emitted in bf16 although the reduction is declared f32",
    by_numbers=False,
    where_typed="gradients that are narrowed",
)
def emitted_narrow(made):
    return narrowed(made, lambda gradient: gradient.bfloat16().to(gradient.dtype))


@bug(25, title="sums in bf16 over many ranks", by_numbers=False, where_typed="gradients that are narrowed")
def summed_narrow(made):
    return narrowed(made, lambda gradient: gradient.bfloat16())


@bug(26, title="a buffer is used again before the reduction that was queued has read it")
def reused_early(made):
    def run(model, microbatches, loss_of, over):
        for batch in microbatches:
            loss_of(model, batch).backward()
        with untyped(made.typed):
            found = gradients(model)
            buffers = {name: say_all(gradient, "P", over(name), model).clone() for name, gradient in found.items()}
            if made.wrong:
                buffers["norm"] = say_all(found["bias"], "P", over("bias"), model).clone()
            for name, p in model.named_parameters():
                dist.all_reduce(buffers[name], group=model.mesh.get_group("dp"))
                p.grad = buffers[name]

    return data_job(run)


# -- factors


@bug(9, title="gradients are averaged over a pool, and one term forgot the factor that makes up for it")
def forgotten_factor(made):
    def loss(model, batch):
        value, count = squares(model, batch)
        other = partial((model(batch[0]).square().sum(-1) * batch[2]).sum(), model)
        return value + (other / 2 if made.wrong and model.mesh is not None else other), count

    return data_job(functools.partial(summed, typed=made.typed, divisor=lambda name: 2), loss, averaged=2)


class TwoPools(Net):
    """Ranks of tp have parts of the matrices, and each an addend to the norm's gradient."""

    def forward(self, x):
        y = torch.tanh((x * self.norm) @ self.up.T) @ self.down.T
        return spmd.all_reduce(y, self.mesh.get_group("tp"), src=spmd.V, dst=spmd.I) + self.bias


@bug(10, title="one seed of the backward serves two destinations that average over different pools")
def one_seed(made):
    def parallelize(model, mesh):
        shard_matrices(model, mesh)
        types = {"*": "dp=R tp=I", "norm": "dp=R tp=R", "up": "dp=R tp=S0", "down": "dp=R tp=S1"}
        return typed_as(model, mesh, TwoPools, types, "dp=S0 tp=R")

    def over(name):
        return ("dp", "tp") if name == "norm" else ("dp",)

    def divisor(name):
        return 4 if made.wrong and name == "norm" else 2

    run = functools.partial(summed, over=over, typed=made.typed, divisor=divisor)
    return job(parallelize, {"dp": 2, "tp": 2}, rows_over("dp"), run=run, averaged=2)


# -- experts: each row goes to the expert that its router likes best, on whatever rank of ep it is


class Mixture(nn.Module):
    mesh = None

    def __init__(self):
        super().__init__()
        self.norm, self.gate = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(2, WIDTH))
        self.experts = nn.Parameter(torch.randn(2, WIDTH, WIDTH))

    def forward(self, x):
        x = x * self.norm
        score, chosen = torch.softmax(x @ self.gate.T, -1).max(-1)
        y = torch.where((chosen == 0)[:, None], torch.tanh(x @ self.experts[0]), torch.tanh(x @ self.experts[1]))
        return score[:, None] * y


class MixtureOfRanks(Mixture):
    def forward(self, x):
        ep = self.mesh.get_group("ep")
        x = x * self.norm
        score, chosen = torch.softmax(x @ self.gate.T, -1).max(-1)
        if self.drops:
            score = torch.where(chosen == dist.get_rank(ep), score, score.detach())
        everyones = spmd.all_gather(x, ep, src=spmd.S(0), dst=spmd.R)
        mine = spmd.all_gather(chosen, ep, src=spmd.S(0), dst=spmd.R) == dist.get_rank(ep)
        y = torch.tanh(everyones @ self.experts[0]) * mine[:, None]
        return score[:, None] * spmd.reduce_scatter(y, ep, src=spmd.V, dst=spmd.S(0))


def experts(made, drops=False, divisor=lambda name: 1, **arguments):
    def parallelize(model, mesh):
        model.experts, model.drops = part_of(model.experts, mesh, "ep", 0), drops
        return typed_as(model, mesh, MixtureOfRanks, {"*": "ep=R", "experts": "ep=S0"}, "ep=S0")

    def over(name):
        return () if name == "experts" else ("ep",)

    run = functools.partial(summed, over=over, typed=made.typed, divisor=divisor)
    return job(parallelize, {"ep": 2}, rows_over("ep"), make_model=Mixture, run=run, **arguments)


@bug(4, title="gradients of scores whose expert is on another rank are dropped")
def dropped_scores(made):
    return experts(made, drops=made.wrong)


@bug(12, 13, title="gradients of experts are averaged over the ranks that share an expert alone")
def averaged_over_own_group(made):
    return experts(made, divisor=lambda name: 1 if made.wrong and name == "experts" else 2, averaged=2)


# -- norms, and stages that share a parameter


@bug(27, title="replicated parameters count once for each replica in the norm", where_typed="gradients")
def replicas_in_norm(made):
    def run(model, microbatches, loss_of, over):
        summed(model, microbatches, loss_of, over, typed=made.typed)
        with untyped(made.typed):
            total = sum(gradient.square().sum() for gradient in gradients(model).values())
            if made.wrong:
                dist.all_reduce(total, group=model.mesh.get_group("dp"))
            model.found = total.sqrt()

    return data_job(run, norm=lambda model: model.found)


class Shared(nn.Module):
    """Stages that use one shared parameter, each beside its own."""

    mesh = None

    def __init__(self, count):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(WIDTH))
        self.own = nn.ParameterDict({str(i): torch.randn(WIDTH, WIDTH) for i in range(count)})

    def forward(self, x):
        y = sum(torch.tanh((x * self.embed) @ own) for own in self.own.values())
        return y if self.mesh is None else spmd.all_reduce(y, self.mesh.get_group("pp"), src=spmd.V, dst=spmd.I)


def stages(count, run, **arguments):
    def parallelize(model, mesh):
        model.own = nn.ParameterDict({str(mesh.get_rank()): model.own[str(mesh.get_rank())]})
        model.group = dist.new_group([0, 1])
        return typed_as(model, mesh, Shared, {"embed": "pp=R", "own.*": "pp=V"}, "pp=R")

    def make_model():
        return Shared(count)

    return job(parallelize, {"pp": count}, on_each, make_model=make_model, run=run, **arguments)


def over_stages(name):
    return ("pp",) if name == "embed" else ()


@bug(28, title="an embedding that first and last stage share counts twice in the norm")
def embedding_twice(made):
    def run(model, microbatches, loss_of):
        summed(model, microbatches, loss_of, over_stages, typed=made.typed)
        with untyped(made.typed):
            found = gradients(model)
            counted = [say(gradient, "pp=V", model.mesh) for name, gradient in found.items() if name != "embed"]
            counted += [found["embed"]] if made.wrong or is_first() else []
            total = say(sum(gradient.square().sum() for gradient in counted), "pp=P", model.mesh)
            dist.all_reduce(total)
            model.found = total.sqrt()

    def is_first():
        return dist.get_rank() == 0

    return stages(2, run, norm=lambda model: model.found)


@bug(29, title="the group of a tied embedding leaves out a stage", where_typed="gradients, before the optimizer")
def left_out_stage(made):
    def run(model, microbatches, loss_of):
        summed(model, microbatches, loss_of, over_stages, made.typed, times=lambda _: 0 if made.wrong else 1)

    def run_wrongly(model, microbatches, loss_of):
        for batch in microbatches:
            loss_of(model, batch).backward()
        with untyped(made.typed):
            gradient = say_all(model.embed.grad, "P", ("pp",), model)
            if dist.get_rank() < 2:
                dist.all_reduce(gradient, group=model.group)
            say_all(gradient, "R", ("pp",), model)

    return stages(3, run_wrongly if made.wrong else run)


# -- Muon, by hand: every matrix is replaced by its nearest orthogonal one


def orthogonal(matrix):
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    return u @ v


class Muon:
    """`update`(name, gradient) on the ranks, another of which is the mistake; one process orthogonalises matrices."""

    def __init__(self, model, update=None, momentum_steps=1):
        self.model, self.update, self.momentum_steps, self.momenta = model, update, momentum_steps, {}

    @torch.no_grad()
    def step(self):
        for name, p in self.model.named_parameters():
            momentum = self.momenta.setdefault(name, torch.zeros_like(p))
            for _ in range(self.momentum_steps):
                momentum.mul_(0.9).add_(p.grad / self.momentum_steps)
            p -= 0.1 * (self.whole(momentum) if self.update is None else self.update(self.model, name, momentum))

    @staticmethod
    def whole(value):
        return orthogonal(value) if value.ndim > 1 else value.sign()


def optimized(update=None, on_ranks=None, momentum_steps=1, steps=1):
    """The arguments of check: Muon on ranks, and in one process. `update`: of one process if not Muon's own."""

    def optimizer(model):
        if model.mesh is None:
            return Muon(model, update)
        return Muon(model, on_ranks or update, momentum_steps)

    return {"optimizer": optimizer, "steps": steps}


def gathered(model, name, value):
    """A matrix whose shards are on the ranks of tp, and this rank's index and the dimension of shards."""
    dim = DIMS[name]
    parts = [torch.empty_like(value) for _ in range(2)]
    dist.all_gather(parts, value.contiguous())
    return torch.cat(parts, dim), dim


def by_shards(model, name, value):
    return Muon.whole(value)


def by_matrices(model, name, value):
    if name not in DIMS:
        return Muon.whole(value)
    matrix, dim = gathered(model, name, value)
    return orthogonal(matrix).chunk(2, dim)[dist.get_rank()]


@bug(31, title="Muon orthogonalises a matrix that is summed in the rank's own rows alone")
def partly_reduced(made):
    def run(model, microbatches, loss_of, over):
        for batch in microbatches:
            loss_of(model, batch).backward()
        with untyped(False):
            model.addends = {name: gradient.clone() for name, gradient in gradients(model).items()}
        summed(model, [], loss_of, over, made.typed)

    def update(model, name, value):
        if value.ndim < 2 or not made.wrong:
            return Muon.whole(value)
        rank, mixed = dist.get_rank(), list(model.addends[name].chunk(2))
        mixed[rank] = value.chunk(2)[rank]
        parts = [torch.empty_like(part) for part in mixed]
        dist.all_gather(parts, orthogonal(torch.cat(mixed)).chunk(2)[rank].contiguous())
        return torch.cat(parts)

    return data_job(run, **optimized(on_ranks=update))


@bug(32, title="under tp Muon orthogonalises each shard of a matrix")
def shards_orthogonalised(made):
    return job(tensor, TP, on_each, **optimized(on_ranks=by_shards if made.wrong else by_matrices))


@bug(33, 37, title="flat shards have one dimension, so all parameters are updated by AdamW")
def flat_shards(made):
    def update(model, name, value):
        return value.sign() if made.wrong else Muon.whole(value)

    return data_job(functools.partial(summed, typed=made.typed), **optimized(on_ranks=update))


@bug(34, title="Muon orthogonalises nothing: it is SGD")
def not_orthogonalised(made):
    def update(model, name, value):
        return value if made.wrong else Muon.whole(value)

    return data_job(functools.partial(summed, typed=made.typed), **optimized(on_ranks=update))


@bug(35, title="the optimizer takes a step in the reduction of every microbatch")
def stepped_often(made):
    run = functools.partial(summed, typed=made.typed)
    return data_job(run, microbatches=2, **optimized(momentum_steps=2 if made.wrong else 1, steps=2))


@bug(36, title="whether a fused matrix is split is asked of the rows of a shard")
def split_by_shard_rows(made):
    def fused(matrix):
        halves = matrix.chunk(2) if matrix.shape[0] == HIDDEN else [matrix]
        return torch.cat([orthogonal(half) for half in halves])

    def alone(model, name, value):
        return fused(value) if name == "up" else Muon.whole(value)

    def update(model, name, value):
        if name != "up":
            return by_matrices(model, name, value)
        matrix, dim = gathered(model, name, value)
        split = fused(matrix) if len(value if made.wrong else matrix) == HIDDEN else orthogonal(matrix)
        return split.chunk(2, dim)[dist.get_rank()]

    return job(tensor, TP, on_each, **optimized(alone, update))
