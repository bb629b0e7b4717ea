"""Test how a watch reads spmd_types' annotations: of plain parameters, from spmd_types itself and from a stub that has
its attributes alone, and of parameters that fully_shard took.
"""

import contextlib
import dataclasses
import enum
import functools
import itertools
import json
import unittest

import torch
import torch.distributed as dist
import torch.nn.functional as F
from says import raises_facts
from torch import nn
from torch.autograd import Function
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel

import addend.torch
import ranks
from addend.torch import _declared, _expected, _names, _shards, _spmd
from addend.torch._meshes import Mesh
from addend.torch._parameters import Watched

try:
    import spmd_types as spmd
    from torch.distributed.fsdp import DataParallelMeshDims
except ImportError:
    spmd = None

D, HIDDEN, TOKENS = 8, 16, 6


# -- what is kept at a tensor


class Kind(enum.Enum):
    """Types of values, as spmd_types has them."""

    R = "R"
    I = "I"  # noqa: E741
    V = "V"
    P = "P"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Ranks in several loops of (count, stride)."""

    loops: tuple

    def all_ranks_from_zero(self):
        counts = [range(0, count * stride, stride) for count, stride in self.loops]
        return [sum(at) for at in itertools.product(*counts)]


@dataclasses.dataclass(frozen=True)
class Axis:
    """What is read of a MeshAxis."""

    layout: Layout


class Stub:
    """Annotates as spmd_types does, with the attributes that are read and nothing else."""

    kinds = {kind.value: kind for kind in Kind}

    def axis(self, *loops):
        return Axis(Layout(tuple(loop for loop in loops if loop[0] > 1)))

    def annotate(self, tensor, local, spec):
        large = {axis: self.kinds[kind] for axis, kind in local.items() if axis.layout.loops}
        tensor._local_type = {**large, **{axis: Kind.V for cuts in spec for axis in cuts}}
        tensor._partition_spec = tuple(cuts[0] if len(cuts) == 1 else tuple(cuts) or None for cuts in spec)


class Real:
    """Annotates by spmd_types."""

    def axis(self, *loops):
        counts, strides = zip(*loops)
        from spmd_types._mesh_axis import _make_axis_layout

        return spmd.MeshAxis(_make_axis_layout(tuple(counts), tuple(strides)))

    def annotate(self, tensor, local, spec):
        kinds = {axis: getattr(spmd, kind) for axis, kind in local.items()}
        entries = [cuts[0] if len(cuts) == 1 else tuple(cuts) or None for cuts in spec]
        spmd.assert_type(tensor, kinds, partition_spec=spmd.PartitionSpec(*entries) if any(spec) else None)


SOURCES = [Stub(), *([Real()] if spmd else [])]


def mesh_of(**sizes):
    """Return a mesh, and each axis' stride."""
    coords = dict(enumerate(itertools.product(*map(range, sizes.values()))))
    strides, stride = {}, 1
    for name, size in reversed(sizes.items()):
        strides[name], stride = stride, stride * size
    return Mesh(tuple(sizes), tuple(sizes.values()), coords), strides


class Annotations(unittest.TestCase):
    """From the attributes of a tensor to types on the axes of a mesh."""

    def declared(self, source, mesh, strides, local, spec=(), shape=(8, 8)):
        """Return what is read of a parameter of a type {axes: kind} and a PartitionSpec of axes' names."""
        sizes = dict(zip(mesh.names, mesh.sizes))
        axis = lambda names: source.axis(*((sizes[name], strides[name]) for name in names.split()))  # noqa: E731
        tensor = nn.Parameter(torch.ones(shape))
        cuts = [[axis(name) for name in names] for names in spec] or [[] for _ in shape]
        source.annotate(tensor, {axis(names): kind for names, kind in local.items()}, cuts)
        return _spmd.annotation(tensor).declared(mesh)

    def types(self, *arguments, **more):
        found = self.declared(*arguments, **more)
        return _expected.text(found[0].types) if found else ""

    def test_every_type_on_every_axis(self):
        meshes = (
            {"dp": 2},
            {"dp": 2, "tp": 2},
            {"dp": 2, "tp": 1},
            {"dp": 2, "cp": 2, "tp": 2},
            {"dp": 3, "tp": 4},
        )
        meant = {"R": "R", "I": "I", "V": "S0", "P": "I"}
        for source, sizes in itertools.product(SOURCES, meshes):
            mesh, strides = mesh_of(**sizes)
            large = [name for name, size in sizes.items() if size > 1]
            for kinds in itertools.product("RIVP", repeat=len(sizes)):
                expected = {name: meant[kind] for name, kind in zip(sizes, kinds) if name in large}
                found = self.declared(source, mesh, strides, dict(zip(sizes, kinds)))
                self.assertEqual(dict(found[0].types), expected, (source, sizes, kinds))
                said = [f"{kind} on {name}" for name, kind in zip(sizes, kinds) if name in large and kind in "VP"]
                self.assertEqual(found[0].words, ", ".join(said))

    def test_a_shard_is_one_of_its_dimension(self):
        for source in SOURCES:
            mesh, strides = mesh_of(dp=2, tp=2)
            cut = lambda *spec, **local: self.types(source, mesh, strides, local, spec)  # noqa: E731, B023
            self.assertEqual(self.declared(source, mesh, strides, {"dp": "R"}, [["tp"], []])[0].words, "")
            self.assertEqual(cut(["tp"], [], dp="R"), "dp=R tp=S0")
            self.assertEqual(cut([], ["tp"], dp="I"), "dp=I tp=S1")
            self.assertEqual(cut(["dp"], ["tp"]), "dp=S0 tp=S1")

    def test_the_order_of_axes_that_cut_one_dimension(self):
        shapes = dict.fromkeys(range(4), (2, 8))
        for source in SOURCES:
            mesh, strides = mesh_of(dp=2, tp=2)
            for order, rows in ((["dp", "tp"], [0, 2, 4, 6]), (["tp", "dp"], [0, 4, 2, 6])):
                (said,) = self.declared(source, mesh, strides, {}, [order, []])
                found = [_expected.place(said.types, mesh, rank, shapes, said.order) for rank in range(4)]
                self.assertEqual([whole for whole, _ in found], [(8, 8)] * 4)
                self.assertEqual([box.first[0] for _, box in found], rows)
                self.assertIn(f"S(0) over ({', '.join(order)})", said.words)

    def test_a_folded_axis_speaks_for_its_parts(self):
        for source in SOURCES:
            mesh, strides = mesh_of(dp_replicate=2, dp_shard=2, cp=2, tp=2)
            table = {
                ("dp_replicate dp_shard", "R"): "dp_replicate=R dp_shard=R",
                ("dp_shard cp", "I"): "dp_shard=I cp=I",
                ("dp_replicate cp", "R"): "dp_replicate=R cp=R",
                ("dp_replicate dp_shard cp tp", "R"): "dp_replicate=R dp_shard=R cp=R tp=R",
            }
            for (names, kind), text in table.items():
                self.assertEqual(self.types(source, mesh, strides, {names: kind}), text)

    def test_a_scalar_that_varies_is_not_judged(self):
        for source in SOURCES:
            mesh, strides = mesh_of(dp=2, tp=2)
            (said,) = self.declared(source, mesh, strides, {"dp": "R", "tp": "V"}, shape=())
            self.assertEqual((dict(said.types), said.words), ({"dp": "R"}, "V on tp"))
            self.assertIn("tp", said.unjudged)

    def test_ranks_that_are_no_axis_are_refused(self):
        for source in SOURCES:
            (one,) = _spmd.annotation(self.annotated(source, (2, 2))).declared(mesh_of(dp=2, tp=2)[0])
            self.assertEqual(dict(one.types), {"dp": "I"})
            entry = Watched("norm.weight", (tensor := self.annotated(source, (2, 2))), tensor)
            entry.annotation = _spmd.annotation(tensor)
            with raises_facts(self, ValueError, "norm.weight", "0, 2", "dp=4", "mesh="):
                _declared.find([entry], mesh_of(dp=4)[0])
            # of an axis whose other ranks are not watched, nothing is said
            alone = Mesh(("dp",), (2,), {0: (0,), 1: (1,)})
            self.assertEqual(_spmd.annotation(tensor).declared(alone), [])

    def annotated(self, source, loop):
        tensor = nn.Parameter(torch.ones(2))
        source.annotate(tensor, {source.axis(loop): "I"}, [[]])
        return tensor

    def test_axes_are_found_by_their_ranks_from_every_rank(self):
        mesh, _ = mesh_of(a=2, b=3, c=1, d=2)
        for names in itertools.chain.from_iterable(itertools.combinations("abd", n) for n in (1, 2, 3)):
            for rank in range(12):
                group = sorted(mesh.along(rank, names))
                self.assertEqual(mesh.pattern(rank, tuple(at - group[0] for at in group)), [*names])
        self.assertIsNone(mesh.pattern(0, (0, 5)))
        # axes that are not in the order of the ranks: the one whose neighbours are further apart is the outer one
        turned = Mesh(("a", "b"), (2, 2), {0: (0, 0), 2: (0, 1), 1: (1, 0), 3: (1, 1)})
        self.assertEqual(turned.pattern(0, (0, 1, 2, 3)), ["b", "a"])
        # a part of the ranks that does not begin at rank 0
        later = Mesh(("dp", "tp"), (2, 2), {4 + rank: divmod(rank, 2) for rank in range(4)})
        self.assertEqual([later.pattern(6, (0, 1)), later.pattern(5, (0, 2))], [["tp"], ["dp"]])

    def test_what_is_no_annotation(self):
        self.assertIsNone(_spmd.annotation(torch.ones(2)))
        tensor = torch.ones(2)
        tensor._local_type = {}
        self.assertIsNone(_spmd.annotation(tensor))
        tensor._local_type = {object(): Kind.R}  # of a release that keeps something else
        entry = Watched("w", tensor, tensor, annotation=_spmd.annotation(tensor))
        for read in (lambda: _declared.find([entry], mesh_of(dp=2)[0]), lambda: _names.checksum_of_names([entry], [])):
            with raises_facts(self, ValueError, "w", "spmd_types"):
                read()


# -- jobs


class Gather(Function):
    """All-gather rows; the gradient is summed and cut."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


class Scatter(Function):
    """Sum and cut rows; the gradient is all-gathered."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, x = group, x.clone()
        dist.all_reduce(x, group=group)
        return x.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(parts, grad.contiguous(), group=ctx.group)
        return torch.cat(parts), None


class Block(nn.Module):
    """norm, up cut by rows, down cut by columns. With `sequence` the norm sees this rank's tokens alone."""

    def __init__(self, tp, sequence, norm=None, dp=()):
        super().__init__()
        torch.manual_seed(1)
        up, bias, down = torch.randn(HIDDEN, D), torch.randn(HIDDEN), torch.randn(D, HIDDEN)
        count, at = tp.size(), tp.get_local_rank()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, HIDDEN // count), nn.Linear(HIDDEN // count, D)
        self.down.bias = None
        with torch.no_grad():
            self.up.weight.copy_(up.chunk(count)[at])
            self.up.bias.copy_(bias.chunk(count)[at])
            self.down.weight.copy_(down.chunk(count, 1)[at])
        self.group, self.sequence = tp.get_group(), sequence
        kinds = {"norm.weight": norm, "norm.bias": norm, "up.weight": spmd.S(0), "up.bias": spmd.S(0)}
        for name, parameter in self.named_parameters() if norm else ():
            kind = kinds.get(name, spmd.S(1))
            spmd.assert_type(parameter, {self.group: kind, **dict.fromkeys(dp, spmd.R)})

    def forward(self, x):
        x = self.norm(x)
        if self.sequence:
            return Scatter.apply(self.down(torch.tanh(self.up(Gather.apply(x, self.group)))), self.group)
        x = spmd.invariant_to_replicate(x, self.group)
        return spmd.all_reduce(self.down(torch.tanh(self.up(x))), self.group, src=spmd.P, dst=spmd.I)


def rows(mesh, sequence, data, microbatch=0):
    generator = torch.Generator().manual_seed(10 + data + 100 * microbatch)
    x = torch.randn(TOKENS, D, generator=generator)
    return x.chunk(2)[mesh.get_local_rank("tp")].clone() if sequence else x


def told(model, step, **options):
    """Return the report's verdicts, and the rows of addend.declared of a watched step."""
    with addend.torch.watch(model, **options) as watch:
        step()
    rows = _declared.metadata(watch._declared, watch._kinds, watch._kinds)
    kinds = {name: _expected.text(kinds) for name, kinds in watch._kinds.items()}
    return {p.name: p.kind for p in watch.report.params}, kinds, json.loads(json.dumps(rows)), str(watch.report)


def sharded(sequence, norm, warm=0, typecheck="", microbatches=1, world=2, **options):
    """A block in fully_shard over the axes before tp, the norm annotated I or R on tp."""
    names = ("dp_replicate", "dp_shard", "tp") if world == 4 else ("dp", "tp")
    mesh = init_device_mesh(ranks.DEVICE.type, (2,) * len(names), mesh_dim_names=names)
    norm = getattr(spmd, norm)
    model = Block(mesh["tp"], sequence, norm)
    dims = DataParallelMeshDims(shard=names[-2], replicate=names[0] if world == 4 else None)
    with spmd.set_current_mesh(mesh):
        fully_shard(model, mesh=mesh, dp_mesh_dims=dims, **options)
    around = checked(mesh, typecheck)

    def step():
        for m in range(microbatches):
            model.set_is_last_backward(m == microbatches - 1)
            x = rows(mesh, sequence, dist.get_rank() // 2, m)
            groups = {name: mesh.get_group(name) for name in names}
            kinds = {group: spmd.V for group in groups.values()}
            spmd.assert_type(x, kinds if sequence else {**kinds, groups["tp"]: spmd.I})
            with around("step"):
                loss = model(x).square().sum() / 100
                for group in groups.values() if typecheck else ():
                    if sequence or group is not groups["tp"]:
                        loss = spmd.reinterpret(loss, group, src=spmd.V, dst=spmd.P)
                loss.backward()

    for _ in range(warm):
        step()
        model.zero_grad()
    with around("watch"):
        return told(model, step)


def checked(mesh, where):
    """Return what gives a context with type checks where they are wanted: around the "step" or the "watch"."""
    import spmd_types.checker

    def around(place):
        stack = contextlib.ExitStack()
        if where == place:
            stack.enter_context(spmd.set_current_mesh(mesh))
            stack.enter_context(spmd_types.checker.typecheck(local=True))
        return stack

    return around


def by_hand(sequence, norm, summed=("norm.weight", "norm.bias"), ddp=False, types=None):
    """A block whose sums over dp, and over tp of the parameters in `summed`, the job makes itself."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    model = block = Block(mesh["tp"], sequence, getattr(spmd, norm), () if ddp else [dp])
    if ddp:
        model = DistributedDataParallel(block, process_group=dp)

    def step():
        model(rows(mesh, sequence, mesh.get_local_rank("dp"))).square().sum().backward()
        for name, parameter in block.named_parameters():
            for group in [*([] if ddp else [dp]), *([tp] if name in summed else [])]:
                dist.all_reduce(parameter.grad, group=group)

    return told(model, step, mesh=mesh, types=types)


def folded():
    """One FSDP axis of two, which the annotation names as one."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp_shard", "cp"))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D))
    for parameter in model.parameters():
        spmd.assert_type(parameter, {mesh["dp_shard", "cp"]._flatten("dp").get_group(): spmd.R})
    with spmd.set_current_mesh(mesh):
        fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard=("dp_shard", "cp")))
    generator = torch.Generator().manual_seed(dist.get_rank())
    return told(model, lambda: model(torch.randn(TOKENS, D, generator=generator)).square().sum().backward())


def experts():
    """Experts on a second mesh of the same ranks, of which no axis is the first mesh's."""
    world = init_device_mesh(ranks.DEVICE.type, (4,), mesh_dim_names=("world",))
    dense, sparse = world, world._unflatten(0, (2, 2), ("efsdp", "ep"))
    torch.manual_seed(1)
    group = sparse.get_group("ep")

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, D, D).chunk(2)[sparse.get_local_rank("ep")].clone())

        def forward(self, x):
            return Scatter.apply(torch.einsum("td,edf->tf", Gather.apply(x, group), self.w), group)

    model = nn.Sequential()
    model.norm, model.experts = nn.LayerNorm(D), Experts()
    spmd.assert_type(model.experts.w, {sparse.get_group("efsdp"): spmd.R, group: spmd.S(0)})
    for parameter in model.norm.parameters():
        spmd.assert_type(parameter, {dense.get_group(): spmd.R})
    with spmd.set_current_mesh(sparse):
        fully_shard(model.experts, mesh=sparse, dp_mesh_dims=DataParallelMeshDims(shard="efsdp"))
    with spmd.set_current_mesh(dense):
        fully_shard(model, mesh=dense, dp_mesh_dims=DataParallelMeshDims(shard="world"))

    def step():
        generator = torch.Generator().manual_seed(dist.get_rank())
        model(torch.randn(TOKENS, D, generator=generator)).square().sum().backward()

    return told(model, step, expect={"*": 0.25, "experts.w": 0.5})


def two_cuts():
    """Rows that two axes cut, the inner one of the mesh first, beside fully_shard, which takes the mesh's order."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2, 2), mesh_dim_names=("dp", "ep", "tp"))
    ep, tp = mesh.get_group("ep"), mesh.get_group("tp")
    torch.manual_seed(1)
    model = nn.Linear(D, 2, bias=False)
    model.weight = nn.Parameter(torch.randn(4, 2, D)[2 * mesh.get_local_rank("tp") + mesh.get_local_rank("ep")].clone())
    spmd.assert_type(model.weight, {}, partition_spec=spmd.PartitionSpec((tp, ep), None))
    with spmd.set_current_mesh(mesh):
        fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
    generator = torch.Generator().manual_seed(dist.get_rank())
    return told(model, lambda: model(torch.randn(TOKENS, D, generator=generator)).square().sum().backward())


def refused(what):
    """Return the error with which every rank's watch is refused."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    tp, options = mesh.get_group("tp"), {"mesh": mesh}
    model = nn.Module()
    at = mesh.get_local_rank("tp")
    model.w = nn.Parameter(torch.ones(3 - at if what in ("uneven", "unlike") else 3, 2))
    if what == "differ":
        spmd.assert_type(model.w, {tp: spmd.I if mesh.get_local_rank("dp") else spmd.R})
    elif what == "some" and dist.get_rank():
        spmd.assert_type(model.w, {tp: spmd.R})
    elif what in ("uneven", "unlike"):
        spmd.assert_type(model.w, {tp: spmd.S(0) if what == "uneven" else spmd.S(1)})
    elif what == "no mesh":
        spmd.assert_type(model.w, {tp: spmd.R})
        options = {}
    if what == "uneven":
        with spmd.set_current_mesh(mesh):
            fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
    try:
        with addend.torch.watch(model, **options):
            return "opened"
    except ValueError as error:
        return str(error)


def trained(same):
    """Return what two watched steps say of shards' values, an optimizer's step between them."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2,), mesh_dim_names=("tp",))
    torch.manual_seed(0 if same else dist.get_rank())
    model = nn.ParameterDict({"w": torch.randn(3, 2), "ones": torch.ones(3), "own": torch.randn(3)})
    for name in "w", "ones":
        spmd.assert_type(model[name], {mesh.get_group(): spmd.S(0)})
    spmd.assert_type(model["own"], {mesh.get_group(): spmd.R})
    found, optimizer = [], torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        watch = addend.torch.watch(model, mesh=mesh)
        with watch:
            sum(parameter.square().sum() for parameter in model.values()).backward()
        found.append(watch._shards)
        optimizer.step()
    return found


@unittest.skipIf(spmd is None or not hasattr(torch.distributed.fsdp, "DataParallelMeshDims"), "no spmd_types here")
def partial_values(same, summed=False):
    """A parameter that says P on tp: each rank has a part of its values, and the gradient of all of it."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2,), mesh_dim_names=("tp",))
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(D, HIDDEN, bias=False)
    spmd.assert_type(model.weight, {mesh.get_group("tp"): spmd.P})
    with addend.torch.watch(model, mesh=mesh) as watch:
        x = torch.randn(4, D, generator=torch.Generator().manual_seed(0 if same else dist.get_rank()))
        model(x).sum().backward()
        if summed:
            dist.all_reduce(model.weight.grad)
    (row,) = watch.report.declarations
    return watch.report.ok, (row.type, row.words, row.holds, row.why)


def partial_gradient(same):
    """A gradient that is Partial on tp; `same`: every rank did the whole work, so that its part is reduced already."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = nn.Module()
    model.weight = nn.Parameter(DTensor.from_local(torch.randn(HIDDEN, D), mesh, (Replicate(),)))
    with addend.torch.watch(model) as watch:
        x = torch.randn(4, D, generator=torch.Generator().manual_seed(0 if same else dist.get_rank()))
        (x @ model.weight.to_local(grad_placements=(Partial(),)).T).square().mean().backward()
    (row,) = watch.report.declarations
    return watch.report.ok, (row.type, row.holds, row.why)


class Partials(unittest.TestCase):
    @unittest.skipUnless(spmd, "this Python has no spmd_types, or PyTorch does not read them")
    def test_a_parameter_in_parts(self):
        for arguments, expected in (
            ((True,), (True, ("I", "P on tp", True, ""))),
            ((True, True), (None, ("I", "P on tp", None, "same"))),
            ((False,), (False, ("I", "P on tp", False, "differ"))),
            ((False, True), (True, ("I", "P on tp", False, "summed"))),
        ):
            self.assertEqual(ranks.run(2, partial_values, *arguments)[0], expected, arguments)

    def test_a_gradient_in_parts(self):
        self.assertEqual(ranks.run(2, partial_gradient, False)[0], (True, ("R", None, "partial")))
        self.assertEqual(ranks.run(2, partial_gradient, True)[0], (None, ("R", None, "same")))


class Jobs(unittest.TestCase):
    """What a watch makes of whole jobs."""

    def hold(self, told, wrong=(), **types):
        verdicts, kinds, _, text = told
        for name, kind in verdicts.items():
            if name not in wrong:
                self.assertEqual(kind, "right", text)
        for name in wrong:
            self.assertIn(verdicts[name], ("own_only", "partial"), text)
        for name, kind in types.items():
            self.assertEqual(kinds[name.replace("_", ".")], kind)

    def rows(self, told, name, by):
        return [row for row in told[2][name] if row["by"] == by]

    def test_fully_shard_sums_what_is_annotated_R(self):
        for sequence, norm in (False, "I"), (True, "R"):
            for warm in 0, 1:  # before the first forward no parameter has an unsharded tensor
                found = ranks.run(4, sharded, sequence, norm, warm)
                self.assertEqual(*(answer[:2] for answer in found[:2]))
                self.hold(found[0], norm_weight=f"dp=R tp={norm}", up_weight="dp=R tp=S0", down_weight="dp=R tp=S1")
                (row,) = self.rows(found[0], "norm.weight", "spmd_types")
                self.assertEqual((row["types"], row["counts"]), (f"tp={norm}", True))
                (row,) = self.rows(found[0], "norm.weight", "fully_shard")
                self.assertEqual((row["types"], row["sums"]), ("dp=R", True))

    def test_an_I_whose_addends_differ_is_found(self):
        for found in ranks.run(4, sharded, True, "I"):
            self.hold(found, ["norm.weight", "norm.bias"], norm_weight="dp=R tp=I")

    def test_the_dtypes_that_fully_shard_promises(self):
        for reduce, row in (
            (torch.float32, ("f32", True, "fully_shard's reduce_dtype")),
            (torch.bfloat16, ("bf16", True, "fully_shard's reduce_dtype")),
            (None, ("f32", False, "fully_shard's default")),
        ):
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
            found = ranks.run(4, functools.partial(sharded, mp_policy=policy), True, "R", 0, "", 3)[0]
            self.hold(found)
            (said,) = [row for row in found[2]["norm.weight"] if "dtype" in row]
            self.assertEqual((said["dtype"], said["given"], said["by"]), row)
            self.assertEqual(said["axes"], "dp")

    def test_replicas_of_shards(self):
        found = ranks.run(8, sharded, True, "R", 0, "", 1, 4)[0]
        self.hold(found, norm_weight="dp_replicate=R dp_shard=R tp=R", up_bias="dp_replicate=R dp_shard=R tp=S0")
        (row,) = self.rows(found, "up.bias", "fully_shard")
        self.assertEqual(row["words"], "all-reduce over dp_replicate, reduce-scatter over dp_shard")

    def test_an_order_of_cuts_that_fully_shard_does_not_know(self):
        self.hold(ranks.run(8, two_cuts)[0], weight="dp=R ep=S0 tp=S0")

    def test_axes_that_fully_shard_joins(self):
        found = ranks.run(4, folded)[0]
        self.hold(found, **{"0_weight": "dp_shard=R cp=R"})

    def test_experts_on_a_second_mesh(self):
        found = ranks.run(4, experts)[0]
        self.hold(found, experts_w="efsdp=R ep=S0", norm_weight="efsdp=R ep=R")

    def test_types_are_checked_while_a_step_is_watched(self):
        for typecheck in "step", "watch":
            self.hold(ranks.run(4, sharded, False, "I", 0, typecheck)[0])

    def test_plain_parameters(self):
        self.hold(ranks.run(4, by_hand, False, "I", ())[0], norm_weight="dp=R tp=I", up_weight="dp=R tp=S0")
        self.hold(ranks.run(4, by_hand, True, "R")[0], norm_weight="dp=R tp=R", down_weight="dp=R tp=S1")
        self.hold(ranks.run(4, by_hand, True, "R", ("norm.weight",))[0], ["norm.bias"])
        self.hold(ranks.run(4, by_hand, True, "I", ())[0], ["norm.weight", "norm.bias"])
        self.hold(ranks.run(4, by_hand, True, "I")[0])  # a right sum stays right, whatever the annotation says
        self.hold(ranks.run(4, by_hand, True, "R", ("norm.weight", "norm.bias"), True)[0], norm_weight="dp=R tp=R")

    def test_types_of_the_caller_count_before_an_annotation(self):
        found = ranks.run(4, functools.partial(by_hand, types={"norm.*": "tp=R"}), True, "I")[0]
        self.hold(found, norm_weight="dp=R tp=R")
        said = {row["by"]: (row["types"], row["counts"]) for row in found[2]["norm.weight"]}
        self.assertEqual(said, {"spmd_types": ("tp=I dp=R", False), "types=": ("tp=R", True)})

    def test_what_ranks_must_agree_on(self):
        facts = {
            "differ": ("w", "on tp", "R on ranks 0 and 1", "I on ranks 2 and 3", "spmd_types"),
            "some": ("w", "on tp", "not annotated on rank 0", "R on ranks 1, 2 and 3", "spmd_types"),
            "uneven": ("w", "[6, 2]", "[4, 2]", "spmd_types"),
            "unlike": ("w", "tp=S1 (spmd_types)", "[3, 2] on rank 0", "[2, 2] on rank 1"),
            "no mesh": ("w", "spmd_types", "dp=4", "mesh="),
        }
        for what, words in facts.items():
            said = ranks.run(4, refused, what)
            self.assertEqual(len(set(said)), 1)
            for word in words:
                self.assertIn(word, said[0], what)

    def test_values_of_shards(self):
        for same in True, False:
            first, second = zip(*ranks.run(2, trained, same))
            for step, is_later in (first, False), (second, True):
                self.assertEqual([set(shards) for shards in step], [{"w", "ones"}] * 2)
                self.assertEqual(step[0]["w"]["values"] == step[1]["w"]["values"], same)
                self.assertEqual([shards["w"].get("stepped", False) for shards in step], [is_later] * 2)
                self.assertEqual([shards["ones"]["constant"] for shards in step], [True] * 2)
                self.assertEqual([shards["w"]["constant"] for shards in step], [False] * 2)


class Shards(unittest.TestCase):
    """Which elements of a shard's values are looked at."""

    def test_some_elements_of_a_large_shard(self):
        for count in 1, 4096, 4097, 100_000:
            self.assertLessEqual(len(_shards._some(torch.arange(count))), 4096)
            self.assertGreater(len(_shards._some(torch.arange(count))), min(count, 2048) - 1)
        self.assertEqual(len(_shards._some(torch.empty(0, 3))), 0)
        self.assertEqual(_shards._some(F.one_hot(torch.tensor(1)).T).tolist(), [0, 1])


if __name__ == "__main__":
    unittest.main()
