"""Test the collectives that a watch notes: each function of torch.distributed and each functional collective once,
whose gradients a call sums, and that nothing stays replaced.
"""

import contextlib
import sys
import threading
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from says import says_facts
from torch import nn
from torch.distributed import ProcessGroup, all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import addend.torch
import ranks
from addend.torch import _meshes, _recorder
from addend.torch._checks import _axes, _collectives

try:
    import spmd_types
    from torch.distributed.fsdp import DataParallelMeshDims
except ImportError:
    spmd_types = None

IN, HIDDEN, OUT = 8, 16, 4
captured = all_reduce


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def batch(microbatch=0, rank=None):
    seed = 100 * (dist.get_rank() if rank is None else rank) + microbatch
    return torch.randn(4, IN, generator=torch.Generator().manual_seed(seed))


def backward(model, microbatches=1, first=0):
    for m in range(first, first + microbatches):
        model(batch(m)).square().mean().backward()


def rows_of(calls):
    return [(r.operation, r.axes, r.dtype, r.bytes, r.count, r.phase, r.backwards, r.params) for r in calls.rows]


def watched(model, step, **options):
    watch = addend.torch.watch(model, **options)
    with watch:
        step()
    return watch.calls, watch.report


@contextlib.contextmanager
def recording(model=None):
    """A recorder without a watch; at the end its `calls`."""
    recorder = _recorder.Recorder(model or nn.Module(), [], lambda: 0)
    recorder.attach()
    try:
        yield recorder
    finally:
        recorder.remove()
    world = list(range(dist.get_world_size()))
    recorder.calls = recorder.settle(_meshes.find(None, [], [], world), dist.get_rank())


# -- every collective. Each has a number of elements that no other one has, by which it is found.

X = torch.ones


def each_method():
    me, size = dist.get_rank(), dist.get_world_size()
    first = me == 0
    one_way = dist.isend if first else dist.irecv
    group = dist.group.WORLD
    return {
        "all_reduce": lambda n: dist.all_reduce(X(n)),
        "captured": lambda n: captured(X(n)),
        "async": lambda n: dist.all_reduce(X(n), async_op=True).wait(),
        "coalesced": lambda n: dist.all_reduce_coalesced([X(n - 3), X(3)]),
        "method": lambda n: group.allreduce(X(n)).wait(),
        "reduce": lambda n: dist.reduce(X(n), 0),
        "broadcast": lambda n: dist.broadcast(X(n), 0),
        "all_gather": lambda n: dist.all_gather([X(n) for _ in range(size)], X(n)),
        "all_gather_into_tensor": lambda n: dist.all_gather_into_tensor(X(n * size), X(n)),
        "reduce_scatter": lambda n: dist.reduce_scatter(X(n), [X(n) for _ in range(size)]),
        "reduce_scatter_tensor": lambda n: dist.reduce_scatter_tensor(X(n), X(n * size)),
        "all_to_all_single": lambda n: dist.all_to_all_single(X(n * size), X(n * size)),
        "gather": lambda n: dist.gather(X(n), [X(n) for _ in range(size)] if first else None, 0),
        "scatter": lambda n: dist.scatter(X(n), [X(n) for _ in range(size)] if first else None, 0),
        "exchange": lambda n: dist.send(X(n), 1) if first else dist.recv(X(n), 0),
        "batched": lambda n: dist.batch_isend_irecv([dist.P2POp(one_way, X(n), 1 - me)])[0].wait(),
        "funcol.all_reduce": lambda n: functional.all_reduce(X(n), "sum", group).wait(),
        "funcol.all_reduce_coalesced": lambda n: functional.all_reduce_coalesced([X(n - 3), X(3)], "sum", group),
        "funcol.all_gather_tensor": lambda n: functional.all_gather_tensor(X(n), 0, group).wait(),
        "funcol.reduce_scatter_tensor": lambda n: functional.reduce_scatter_tensor(X(n * size), "sum", 0, group).wait(),
        "funcol.all_to_all_single": lambda n: functional.all_to_all_single(X(n * size), None, None, group).wait(),
        "funcol.broadcast": lambda n: functional.broadcast(X(n), 0, group).wait(),
    }


# The operation, and how many times n elements are the input on rank 0 and on rank 1
EXPECTED = {
    "all_reduce": ("all_reduce", 1, 1),
    "captured": ("all_reduce", 1, 1),
    "async": ("all_reduce", 1, 1),
    "coalesced": ("all_reduce", 1, 1),
    "method": ("all_reduce", 1, 1),
    "reduce": ("reduce", 1, 1),
    "broadcast": ("broadcast", 1, 1),
    "all_gather": ("all_gather", 1, 1),
    "all_gather_into_tensor": ("all_gather", 1, 1),
    "reduce_scatter": ("reduce_scatter", 2, 2),
    "reduce_scatter_tensor": ("reduce_scatter", 2, 2),
    "all_to_all_single": ("all_to_all", 2, 2),
    "gather": ("gather", 1, 1),
    "scatter": ("scatter", 2, 1),
    "funcol.all_reduce": ("all_reduce", 1, 1),
    "funcol.all_reduce_coalesced": ("all_reduce", 1, 1),
    "funcol.all_gather_tensor": ("all_gather", 1, 1),
    "funcol.reduce_scatter_tensor": ("reduce_scatter", 2, 2),
    "funcol.all_to_all_single": ("all_to_all", 2, 2),
    "funcol.broadcast": ("broadcast", 1, 1),
}


def run_each():
    """Return for each way to call: what was noted of it, or why it does not run here."""
    found = {}
    for at, (name, call) in enumerate(each_method().items()):
        try:
            with recording() as recorder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(100 + at)
        except (RuntimeError, NotImplementedError) as error:
            found[name] = str(error).splitlines()[0]
            continue
        found[name] = [(r.operation, r.axes, r.dtype, r.bytes / 4 / (100 + at), r.count) for r in recorder.calls.rows]
        found[name] += list(recorder.calls.unseen)
    return found


def dtypes():
    with recording() as recorder:
        for dtype in (torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool):
            dist.broadcast(torch.ones(6, dtype=dtype), 0)
        dist.all_reduce(torch.eye(3).to_sparse())
    return [(r.dtype, r.bytes) for r in recorder.calls.rows], recorder.calls.unseen


def together():
    with recording() as recorder, _coalescing_manager():
        for n in (3, 4):
            dist.all_reduce(X(n))
    return rows_of(recorder.calls)


def sum_often(group):
    for _ in range(50):
        dist.all_reduce(X(5), group=group)


def from_threads():
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)]
    with recording() as recorder:
        threads = [
            threading.Thread(target=lambda g=g: [dist.all_reduce(X(5), group=g) for _ in range(50)]) for g in groups
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return rows_of(recorder.calls)


def groups():
    """Groups of 4 ranks on a mesh of 2 by 2: both axes, one axis, and one that is none."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    odd = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])][dist.get_rank() in (1, 2)]
    alone = [dist.new_group([rank]) for rank in range(4)][dist.get_rank()]
    recorder = _recorder.Recorder(nn.Module(), [], lambda: 0)
    recorder.attach()
    for group in (None, mesh.get_group("tp"), mesh.get_group("dp"), odd, alone):
        dist.all_reduce(X(5), group=group)
    recorder.remove()
    calls = recorder.settle(_meshes.find(mesh, [], [], [0, 1, 2, 3]), dist.get_rank())
    return [(row.axes, row.ranks) for row in calls.rows]


def own_backend():
    with recording() as recorder:
        dist.all_reduce(X(5))
        dist.all_reduce_coalesced([X(2), X(4)])
        dist.all_gather_into_tensor(X(4), X(2))
    return rows_of(recorder.calls)


def in_another_call():
    """A method in Python that calls another one, as those of a job's own process group may."""
    call = _recorder._method(lambda group, tensors: group.allreduce(tensors).wait(), "all_reduce", 0)
    with recording() as recorder:
        call(dist.group.WORLD, [X(5)])
        dist.all_reduce(X(5))
    return [row.count for row in recorder.calls.rows]


# -- what stays


def replaced():
    """Everything that a recorder replaces, as it is now."""
    found = {}
    for kind in _recorder._classes():
        found.update({(kind, name): vars(kind)[name] for name in _recorder._METHODS if name in vars(kind)})
    for namespace, names in _recorder._OPERATORS.items():
        found.update({(namespace, name): vars(getattr(torch.ops, namespace)).get(name) for name in names})
    found[dist, "_broadcast_coalesced"] = dist._broadcast_coalesced
    return found


def nothing_stays():
    functional.all_reduce(X(2), "sum", dist.group.WORLD).wait()
    with recording():
        pass
    before = replaced()
    model = Net()
    left = []
    with recording():
        left.append([key for key, value in replaced().items() if before[key] is value])
    watched(model, lambda: backward(model))
    left.append([key for key, value in replaced().items() if before[key] is not value])
    model.zero_grad()
    with contextlib.suppress(KeyError), addend.torch.watch(model):
        raise KeyError
    left.append([key for key, value in replaced().items() if before[key] is not value])
    watch = addend.torch.watch(model, every=1000)
    with watch:
        left.append([key for key, value in replaced().items() if before[key] is not value])
    try:
        _ = watch.calls
    except RuntimeError as error:
        left.append(str(error))
    return [[str(key) for key in some] if isinstance(some, list) else some for some in left]


# -- whose gradients a call sums


def empty():
    model = Net()
    return rows_of(watched(model, lambda: None)[0])


def by_hand(changed=False):
    """The sum of each gradient after the backward, in its memory; `changed`: of a copy."""
    model = Net()

    def step():
        dist.all_reduce(X(3))
        backward(model, 2)
        for p in model.parameters():
            gradient = p.grad.clone() if changed else p.grad
            dist.all_reduce(gradient)
            p.grad = gradient.clone() if changed else gradient

    calls, report = watched(model, step)
    assert report.ok, report
    return rows_of(calls), [row.line for row in calls.rows]


def sum_in_place_of(p):
    p.grad = functional.all_reduce(p.grad, "sum", dist.group.WORLD).wait()


def in_new_tensors(kind):
    """Sums whose new tensors, or copies of them, become the gradients."""
    model = Net()
    size = dist.get_world_size()
    params = [*model.parameters()]
    main = {p: torch.zeros_like(p) for p in params}
    if kind == "functional_in_backward":
        for p in params:
            p.register_post_accumulate_grad_hook(sum_in_place_of)

    def summed(gradient, **options):
        gradient = gradient.clone()
        dist.all_reduce(gradient, **options)
        return gradient

    def bucket(shift=0):
        whole = summed(torch.cat([torch.ones(shift), *(p.grad.flatten() for p in params)]))[shift:]
        for p, part in zip(params, whole.split([p.numel() for p in params])):
            p.grad.copy_(part.view_as(p))

    def step():
        backward(wrapped)
        for p in params if kind not in ("bucket", "shifted", "functional_in_backward") else ():
            if kind == "functional":
                p.grad = functional.all_reduce(p.grad, "sum", dist.group.WORLD).wait()
            elif kind == "functional_copied":
                p.grad.copy_(functional.all_reduce(p.grad, "sum", dist.group.WORLD).wait())
            elif kind == "mean":
                p.grad = summed(p.grad) / size
            elif kind == "given":
                main[p].copy_(summed(p.grad))
            elif kind in ("dropped", "too_large", "largest"):
                options = {"op": dist.ReduceOp.MAX} if kind == "largest" else {}
                p.grad.copy_(summed(p.grad, **options)) if kind != "dropped" else dist.all_reduce(p.grad)
            elif kind == "dropped_first":
                summed(p.grad)
            elif kind == "beside_ddp":
                summed(p.grad, op=dist.ReduceOp.SUM).div_(size)
        if kind in ("bucket", "shifted"):
            bucket(int(kind == "shifted"))
        for p in params if kind in ("dropped", "dropped_first") else ():
            summed(p.grad).div_(size) if kind == "dropped" else dist.all_reduce(p.grad)

    wrapped = DistributedDataParallel(model) if kind == "beside_ddp" else model
    options = {"gradient": main.__getitem__} if kind == "given" else {}
    options.update({"expect": 1 / size} if kind == "mean" else {})
    with mock.patch.object(_recorder, "_KEPT", 10 if kind == "too_large" else _recorder._KEPT):
        calls, report = watched(wrapped, step, **options)
    rows = [row for row in calls.rows if row.line]
    return [row.params for row in rows for _ in range(row.count)], report.ok


def twins():
    """Two parameters with one gradient; the sum of a copy may be of either."""
    model = nn.ModuleList([nn.Linear(IN, OUT, bias=False) for _ in range(2)])

    def step():
        x = batch()
        sum(layer(x).sum() for layer in model).backward()
        for p in model.parameters():
            copy = p.grad.clone()
            dist.all_reduce(copy)
            p.grad.copy_(copy)

    return [row.params for row in watched(model, step)[0].rows]


def in_one_bucket():
    """One sum of a buffer in which all gradients lie."""
    model = Net()

    def step():
        backward(model)
        bucket = torch.cat([p.grad.flatten() for p in model.parameters()])
        at = 0
        for p in model.parameters():
            p.grad = bucket[at : at + p.numel()].view_as(p)
            at += p.numel()
        dist.all_reduce(bucket)

    return rows_of(watched(model, step)[0])


def reused_memory():
    """A sum of a tensor whose memory a gradient gets later is none of the gradient."""
    model = Net()
    found = []

    def step():
        for _ in range(50):
            backward(model)
            statistics = X(IN * HIDDEN)
            dist.all_reduce(statistics)
            at = statistics.data_ptr()
            del statistics
            gradient = torch.empty(HIDDEN, IN)
            found.append(gradient.data_ptr() == at)
            model.up.weight.grad = gradient.copy_(model.up.weight.grad)
            del gradient

    with mock.patch.object(_recorder, "_KEPT", 0):  # what is kept would not be freed
        calls, _ = watched(model, step)
    return any(found), [row.params for row in calls.rows]


def main_grads():
    """Sums of what gradient= gives."""
    model = Net()
    main = {p: torch.zeros_like(p) for p in model.parameters()}

    def step():
        backward(model)
        for p in model.parameters():
            main[p] += p.grad
            dist.all_reduce(main[p])

    return rows_of(watched(model, step, gradient=lambda p: main[p])[0])


def hooks(kind, late=False):
    model = Net()

    def summed(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

    def sum_grad(p):
        summed = p.grad.clone()
        dist.all_reduce(summed)
        p.grad = summed

    def attach():
        for p in model.parameters():
            p.register_hook(summed) if kind == "tensor" else p.register_post_accumulate_grad_hook(sum_grad)

    def step():
        if late:
            attach()
        backward(model)

    if not late:
        attach()
    calls, report = watched(model, step)
    return rows_of(calls), [row.line for row in calls.rows], report.ok


class Dispatched(_collectives.Collectives):
    """Notes (dtype, bytes) of what the dispatcher sees, which DDP's calls in C++ reach."""

    def __init__(self):
        super().__init__(_axes.Axes(["dp"], [dist.get_world_size()]))
        self.sent = []

    def _run(self, func, name, group, args, kwargs):
        tensors = _collectives._tensors(args[0])
        self.sent.append((_recorder._dtype(tensors[0].dtype), sum(tensor.nbytes for tensor in tensors)))
        return func(*args, **kwargs)


def ddp_log(options, steps=4):
    """Return for each step what the watch has of DDP, and what the dispatcher saw. The first microbatch is not summed,
    but where the graph is static.
    """
    model, first = DistributedDataParallel(Net(), **options), 0 if options.get("static_graph") else 1
    found = []
    for _ in range(steps):
        model.zero_grad()
        dispatched = Dispatched()

        def step(dispatched=dispatched):
            with model.no_sync():
                backward(model, first)
            with dispatched:
                backward(model, first=first)

        calls, report = watched(model, step)
        assert report.ok, report
        found.append((rows_of(calls), dispatched.sent, calls.unseen))
    return first, found


def ddp_without_sums():
    model = DistributedDataParallel(Net())

    def step():
        with model.no_sync():
            backward(model, 2)

    return rows_of(watched(model, step)[0])


def ddp_with_hook():
    model = DistributedDataParallel(Net())

    def narrow(state, bucket):
        sent = bucket.buffer().to(torch.bfloat16)
        return dist.all_reduce(sent, async_op=True).get_future().then(lambda future: future.value()[0].float() / 2)

    model.register_comm_hook(None, narrow)
    return rows_of(watched(model, lambda: backward(model), reduce=torch.bfloat16)[0])


def fully_sharded(microbatches=1):
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("rep", "shard"))
    model = Net()
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float64))
    fully_shard(model, mesh=mesh)
    calls, report = watched(model, lambda: backward(model, microbatches))
    assert report.ok, report
    return rows_of(calls), {row.line.rpartition(" in ")[2] for row in calls.rows}


def fsdp_hook():
    """A hook of the job on what fully_shard reduced."""
    model = fully_shard(Net())
    further = dist.new_group([0, 1])

    def hook(reduced):
        dist.all_reduce(reduced, group=further)

    model.set_all_reduce_hook(hook)
    return [
        (row.operation, row.line.rpartition(" in ")[2], row.params)
        for row in watched(model, lambda: backward(model))[0].rows
    ]


def fsdp_hook_of_one():
    """A hook of the job on one parameter, which fully_shard calls."""
    model = fully_shard(Net())
    further = dist.new_group([0, 1])
    model.up.weight.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad.to_local(), group=further))
    return [row.params for row in watched(model, lambda: backward(model))[0].rows if row.operation == "all_reduce"]


def of_a_step_that_failed():
    """Calls of a step, and whether there are any after a further step that ended with an error on all ranks."""
    model = Net()
    watch = addend.torch.watch(model)
    with watch:
        backward(model)
        dist.all_reduce(X(3))
    rows = len(watch.calls.rows)
    model.zero_grad()
    with contextlib.suppress(KeyError), watch:
        raise KeyError
    with contextlib.suppress(RuntimeError):
        return rows, len(watch.calls.rows)
    return rows, None


def destroyed_group():
    """Sums over a group that is gone when the step ends."""
    model = Net()
    group = dist.new_group([0, 1])

    def step():
        backward(model)
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
        dist.destroy_process_group(group)

    calls, report = watched(model, step)
    return len(calls.rows), len(calls.unseen), report.ok


def fsdp1():
    model = FullyShardedDataParallel(Net(), device_id=ranks.DEVICE)
    return rows_of(watched(model, lambda: backward(model))[0])


def annotated():
    """FSDP2's own sum over tp of a parameter that is R there (spmd_types)."""
    mesh = init_device_mesh(ranks.DEVICE.type, (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.LayerNorm(IN))
    types = {mesh.get_group("tp"): spmd_types.R, mesh.get_group("dp"): spmd_types.R}
    for p in model.parameters():
        spmd_types.assert_type(p, types)
    fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
    calls, report = watched(model, lambda: backward(model))
    return rows_of(calls), report.ok


def tensor_parallel():
    mesh = init_device_mesh(ranks.DEVICE.type, (2,), mesh_dim_names=("tp",))
    model = parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    calls, _ = watched(model, lambda: model(batch(rank=0)).square().mean().backward())
    return rows_of(calls)


def compiled():
    torch._dynamo.reset()
    model = Net()
    model.up.compile(backend="eager")

    def step():
        backward(model)
        functional.all_reduce(X(7), "sum", dist.group.WORLD).wait()
        for p in model.parameters():
            dist.all_reduce(p.grad)

    calls, _ = watched(model, step)
    return len(calls.rows), calls.unseen


def compiled_function():
    """A compiled function outside the model is compiled as before, and runs."""
    torch._dynamo.reset()

    def doubled(x):
        return functional.all_reduce(x, "sum", dist.group.WORLD) * 2

    call = torch.compile(doubled, backend="eager", fullgraph=True)
    call(X(3))
    with recording() as recorder:
        first = call(X(3)).tolist()
    call(X(3))
    return first, torch._dynamo.utils.counters["stats"]["unique_graphs"], recorder.calls.unseen


def compiled_while_watched():
    """A function that is compiled in a watched step for the first time."""
    torch._dynamo.reset()
    call = torch.compile(lambda x: functional.all_reduce(x, "sum", dist.group.WORLD) * 2, backend="eager")
    with recording() as recorder:
        first = call(X(3)).tolist()
    return first, recorder.calls.unseen


def unreadable():
    with recording() as recorder:
        recorder.note = lambda *_: 1 / 0
        value = X(2)
        dist.all_reduce(value)
    return value.tolist(), recorder.calls.unseen


def table():
    model = Net()

    def step():
        backward(model)
        for p in model.parameters():
            dist.all_reduce(p.grad)

    calls, _ = watched(model, step)
    return str(calls), calls.bytes, calls.document, [row.params for row in calls.of("up.weight")]


NAMES = ("up.weight", "up.bias", "down.weight", "down.bias")
BYTES = {"up.weight": 512, "up.bias": 64, "down.weight": 256, "down.bias": 16}


class Every(unittest.TestCase):
    def test_each_collective_is_noted_once(self):
        """What this PyTorch or gloo does not have is left out; it is told how many that are."""
        zero, one = ranks.run(2, run_each)
        absent = []
        for name, (operation, on_zero, on_one) in EXPECTED.items():
            if isinstance(zero[name], str):
                absent.append(f"{name}: {zero[name]}")
                continue
            with self.subTest(name):
                self.assertEqual(zero[name], [(operation, "dp", "f32", on_zero, 1)])
                self.assertEqual(one[name], [(operation, "dp", "f32", on_one, 1)])
        for name in ("exchange", "batched"):
            self.assertEqual((zero[name], one[name]), ([("send", "dp", "f32", 1, 1)], [("recv", "dp", "f32", 1, 1)]))
        self.assertLessEqual(len(absent), 3, absent)

    def test_dtypes_and_sparse_tensors(self):
        found, unseen = ranks.run(2, dtypes)[0]
        self.assertEqual(found, [("bf16", 12), ("f64", 48), ("i64", 48), ("u8", 6), ("bool", 6), ("f32", 12)])
        self.assertEqual(unseen, ())

    def test_coalesced_calls_are_one(self):
        self.assertEqual(ranks.run(2, together)[0], [("all_reduce", "dp", "f32", 28, 1, "forward", (), ())])

    def test_threads(self):
        self.assertEqual(ranks.run(2, from_threads)[0], [("all_reduce", "dp", "f32", 20, 100, "forward", (), ())])

    def test_groups(self):
        found = ranks.run(4, groups)
        common = [("dp tp", ()), ("tp", ()), ("dp", ())]
        self.assertEqual(found[0], [*common, ("", (0, 3))])
        self.assertEqual(found[1], [*common, ("", (1, 2))])

    def test_addends_own_backend(self):
        found = ranks.run(2, own_backend, backend="addend")[0]
        self.assertEqual(
            [(row[0], row[3], row[4]) for row in found],
            [("all_reduce", 20, 1), ("all_reduce", 24, 1), ("all_gather", 8, 1)],
        )

    def test_a_call_in_another_one_is_part_of_it(self):
        self.assertEqual(ranks.run(2, in_another_call)[0], [1, 1])


class Stays(unittest.TestCase):
    def test_nothing_stays_replaced(self):
        untouched, *left, said = ranks.run(2, nothing_stays)[0]
        self.assertEqual(untouched, [])
        self.assertEqual(left, [[], [], []])
        self.assertIn("watched", said)

    def test_a_call_that_cannot_be_read_runs(self):
        value, unseen = ranks.run(2, unreadable)[0]
        self.assertEqual(value, [2.0, 2.0])
        says_facts(self, unseen[0], "ZeroDivisionError")


class Whose(unittest.TestCase):
    def sums(self, rows, phase, backwards=(), dtype="f32"):
        """Whether there is one row for each parameter's sum over dp, and no other."""
        expected = {("all_reduce", "dp", dtype, BYTES[name], 1, phase, backwards, (name,)) for name in NAMES}
        self.assertEqual({*rows}, expected)
        self.assertEqual(len(rows), len(expected))

    def test_a_step_without_calls(self):
        self.assertEqual(ranks.run(2, empty)[0], [])

    def test_sums_in_the_memory_of_gradients(self):
        rows, lines = ranks.run(2, by_hand)[0]
        self.assertEqual(rows[0], ("all_reduce", "dp", "f32", 12, 1, "forward", (), ()))
        self.sums(rows[1:], "after")
        self.assertTrue(all(line.endswith(" in step") and "test_calls.py:" in line for line in lines), lines)
        rows, _ = ranks.run(2, by_hand, True)[0]
        self.assertEqual(rows[0][-1], ())
        self.sums(rows[1:], "after")

    def test_sums_that_become_gradients_by_their_values(self):
        for kind in ("functional", "functional_in_backward", "functional_copied", "bucket", "mean", "given"):
            with self.subTest(kind):
                found, ok = ranks.run(2, in_new_tensors, kind)[0]
                self.assertEqual(sorted(found), [NAMES] if kind == "bucket" else sorted((name,) for name in NAMES))
                self.assertTrue(ok)

    def test_values_that_tell_nothing(self):
        """The sum of a copy that is dropped beside the real one, one of two equal gradients, a maximum, a tensor that
        is not like a gradient, and one that is too large to be kept."""
        each = [(name,) for name in NAMES]
        for kind, expected in (
            ("dropped", [*each, *[()] * 4]),
            ("dropped_first", [*[()] * 4, *each]),
            ("beside_ddp", [NAMES, *[()] * 4]),
            ("largest", [()] * 4),
            ("shifted", [()]),
            ("too_large", [()] * 4),
        ):
            with self.subTest(kind):
                found, _ = ranks.run(2, in_new_tensors, kind)[0]
                self.assertEqual(sorted(found), sorted(expected))
        self.assertEqual({*ranks.run(2, twins)[0]}, {()})

    def test_a_bucket(self):
        self.assertEqual(ranks.run(2, in_one_bucket)[0], [("all_reduce", "dp", "f32", 848, 1, "after", (), NAMES)])

    def test_memory_that_a_gradient_gets_later(self):
        is_reused, params = ranks.run(2, reused_memory)[0]
        self.assertTrue(is_reused)
        self.assertEqual({*params}, {()})

    def test_what_gradient_gives(self):
        self.sums(ranks.run(2, main_grads)[0], "after")

    def test_hooks(self):
        for kind, late in (("tensor", False), ("tensor", True), ("accumulated", False)):
            with self.subTest(kind, late=late):
                rows, lines, _ = ranks.run(2, hooks, kind, late)[0]
                self.sums(rows, "backward", (0,))
                self.assertEqual(
                    {line.rpartition(" in ")[2] for line in lines}, {"summed" if kind == "tensor" else "sum_grad"}
                )

    def test_the_log_of_ddp_is_what_the_dispatcher_sees(self):
        for options in (
            {},
            {"static_graph": True},
            {"find_unused_parameters": True},
            {"gradient_as_bucket_view": True},
            {"bucket_cap_mb": 0.0002},
        ):
            first, steps = ranks.run(2, ddp_log, options)[0]
            for at, (rows, sent, unseen) in enumerate(steps):
                with self.subTest(options, step=at):
                    noted = [(row[2], row[3]) for row in rows for _ in range(row[4])]
                    if "find_unused_parameters" not in options:  # what DDP says of itself in its first steps
                        sent = [of_one for of_one in sent if of_one[0] != "i32"]
                    self.assertEqual(sorted(noted), sorted(sent))
                    self.assertEqual({row[6] for row in rows}, {(first,)})
                    self.assertEqual(len(unseen), 1)
                    summed = [name for row in rows if row[2] == "f32" for name in row[-1]]
                    self.assertEqual(sorted(summed), sorted(NAMES))
        self.assertEqual(ranks.run(2, ddp_without_sums)[0], [])

    def test_a_communication_hook_of_ddp(self):
        (row,) = ranks.run(2, ddp_with_hook)[0]
        self.assertEqual(
            (*row[:-1], sorted(row[-1])), ("all_reduce", "dp", "bf16", 424, 1, "backward", (0,), sorted(NAMES))
        )

    @unittest.skipUnless(ranks.FSDP2, "this PyTorch's fully_shard is not right on gloo")
    def test_fully_shard(self):
        rows, functions = ranks.run(4, fully_sharded, 2)[0]
        summing = {row for row in rows if row[0] != "all_gather"}
        up, down = ("up.weight", "up.bias"), ("down.weight", "down.bias")
        self.assertEqual(
            summing,
            {
                ("reduce_scatter", "shard", "f64", 2 * 576, 2, "backward", (0, 1), up),
                ("all_reduce", "rep", "f64", 576, 2, "backward", (0, 1), up),
                ("reduce_scatter", "shard", "f64", 2 * 272, 2, "backward", (0, 1), down),
                ("all_reduce", "rep", "f64", 272, 2, "backward", (0, 1), down),
            },
        )
        self.assertEqual({(row[1], row[2], row[-1]) for row in rows if row[0] == "all_gather"}, {("shard", "f32", ())})
        self.assertLessEqual(functions, {"backward", "forward"})

    @unittest.skipUnless(ranks.FSDP2, "this PyTorch's fully_shard is not right on gloo")
    def test_a_hook_on_what_fully_shard_reduced(self):
        rows = [row for row in ranks.run(2, fsdp_hook)[0] if row[0] != "all_gather"]
        self.assertEqual(
            [(row[0], row[1], sorted(row[2])) for row in rows],
            [("reduce_scatter", "backward", sorted(NAMES)), ("all_reduce", "hook", sorted(NAMES))],
        )

    @unittest.skipUnless(ranks.FSDP2, "this PyTorch's fully_shard is not right on gloo")
    def test_a_hook_that_fully_shard_calls(self):
        self.assertEqual(ranks.run(2, fsdp_hook_of_one)[0], [("up.weight",)])

    def test_a_group_that_was_destroyed_ends_no_step(self):
        self.assertEqual(ranks.run(2, destroyed_group)[0], (0, 1, True))

    def test_a_step_that_failed_has_no_calls(self):
        self.assertEqual(ranks.run(2, of_a_step_that_failed)[0], (1, None))

    def test_fsdp1(self):
        rows = [row for row in ranks.run(2, fsdp1)[0] if row[0] == "reduce_scatter"]
        self.assertEqual([(row[1], row[2], row[5], row[-1]) for row in rows], [("dp", "f32", "backward", NAMES)])

    @unittest.skipUnless(spmd_types, "this Python has no spmd_types, or PyTorch does not read them")
    def test_fully_shards_own_sum_by_an_annotation(self):
        rows, ok = ranks.run(4, annotated)[0]
        over_tp = {row for row in rows if row[1] == "tp"}
        each = {("all_reduce", "tp", "f32", 32, 1, "backward", (0,), (name,)) for name in ("0.weight", "0.bias")}
        self.assertEqual(over_tp, each)
        self.assertTrue(ok)

    def test_tensor_parallelism(self):
        rows = ranks.run(2, tensor_parallel)[0]
        self.assertEqual([row[:3] + row[5:6] for row in rows], [("all_reduce", "tp", "f32", "forward")])

    def test_compiled_regions(self):
        count, unseen = ranks.run(2, compiled)[0]
        self.assertEqual(count, 4)
        self.assertEqual(unseen, (_recorder._COMPILED,))
        self.assertEqual(ranks.run(2, compiled_function)[0], ([4.0] * 3, 1, (_recorder._COMPILED,)))
        self.assertEqual(ranks.run(2, compiled_while_watched)[0], ([4.0] * 3, (_recorder._COMPILED,)))

    def test_the_table(self):
        text, size, document, of_one = ranks.run(2, table)[0]
        self.assertEqual(size, 848)
        self.assertEqual(of_one, [("up.weight",)])
        self.assertEqual(document[0]["params"], ("up.weight",))
        for line in ("848 B", "all_reduce  dp    f32      512      1"):
            self.assertIn(line, text)


class Cost(unittest.TestCase):
    def test_a_call_runs_few_instructions(self):
        """Instructions of Python that a call runs more than without a watch; times depend on the machine."""
        noted, plain = ranks.run(2, instructions)[0]
        self.assertLess(noted - plain, 400)

    def test_few_classes_are_looked_at(self):
        """All classes of PyTorch's bindings have one base; looking at each of them takes 60 ms a step."""
        self.assertIn(ProcessGroup, _recorder._classes())
        self.assertLess(len(_recorder._classes()), 30)


def instructions():
    """Return how many instructions of Python a call with and one without a recorder run, in a deep stack."""
    group, value = dist.group.WORLD, X(3)

    def count():
        counted = 0

        def trace(frame, event, _):
            nonlocal counted
            frame.f_trace_opcodes = True
            counted += event == "opcode"
            return trace

        def deep(depth):
            if depth:
                deep(depth - 1)
            else:
                sys.settrace(trace)
                group.allreduce([value])
                sys.settrace(None)

        deep(20)
        return counted

    plain = count()
    recorder = _recorder.Recorder(nn.Module(), [], lambda: 0)
    recorder.attach()
    count()
    noted = count()
    recorder.remove()
    return noted, plain


if __name__ == "__main__":
    unittest.main()
