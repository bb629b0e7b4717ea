"""Random numbers that are drawn in a step: every step of a process begins with the generators as they were in its first
one, and each call that draws is noted, so that the draws of two processes can be compared."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import inspect
import pickle
import random
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import addend
from addend.torch._checks import _names
from addend.torch._checks._trace import array


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random numbers that one call drew."""

    name: str  # of the call, or of the generator: "torch.rand", "numpy.random"
    where: str  # file:line of the job's call; "": unknown
    mark: str  # checksum of the generator's states before and after it, and of the shapes that it gave


@dataclasses.dataclass
class Drawn:
    """What a process drew in one step, in order."""

    draws: list[Draw] = dataclasses.field(default_factory=list)
    is_constant: bool = True  # whether a constant took the place of every number that was drawn

    def repeats(self, other: Drawn) -> bool:
        """Whether the calls that drew are those of another process's step, once or several times: for its microbatches,
        which need other numbers."""
        own, theirs = [draw.name for draw in self.draws], [draw.name for draw in other.draws]
        return bool(own and theirs) and own == theirs * (len(own) // len(theirs))

    def differs(self, other: Drawn) -> Draw | None:
        """The first draw that `other`, another process's step, does not have in its place; None: they are the same."""
        for own, theirs in zip(self.draws, other.draws):
            if own.mark != theirs.mark:
                return own
        count, others = len(self.draws), len(other.draws)
        return None if count == others else self.draws[others] if count > others else other.draws[count]


@dataclasses.dataclass
class _Source:
    """A generator."""

    name: str
    read: Callable[[], bytes]
    write: Callable[[bytes], None]
    first: bytes  # its state when the first step began
    last: bytes  # its state when it was last looked at
    seen: set[bytes] = dataclasses.field(default_factory=set)  # checksums of the states that it had in the step

    def moved(self, is_called: bool) -> bytes:
        """Its state when it was last looked at, if it is another now; else b"". Without a call that may have drawn, it
        may have been given a state that it had in the step, as recomputation in a backward does: that is no draw."""
        state, before = self.read(), self.last
        if state == before:
            return b""
        known = hashlib.sha256(state).digest()
        is_again, self.last = known in self.seen, state
        self.seen.add(known)
        return b"" if is_again and not is_called else before

    def begin(self) -> None:
        """Gives it the state that it had when the first step began."""
        self.write(self.first)
        self.last, self.seen = self.first, {hashlib.sha256(self.first).digest()}


def _of_torch(generator: torch.Generator) -> _Source:
    def read() -> bytes:
        with torch._C.DisableTorchFunction():
            state = generator.get_state()
            return ctypes.string_at(state.data_ptr(), state.numel())  # no operation, which a mode might refuse

    def write(state: bytes) -> None:
        with torch._C.DisableTorchFunction():
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    now = read()
    return _Source("PyTorch's generator", read, write, now, now)


def _of_others(name: str, get: Callable[[], Any], put: Callable[[Any], None]) -> _Source:
    def read() -> bytes:
        return pickle.dumps(get())

    now = read()
    return _Source(name, read, lambda state: put(pickle.loads(state)), now, now)


def _source(generator: Any) -> _Source:
    if isinstance(generator, random.Random):
        return _of_others("random.Random", generator.getstate, generator.setstate)
    if isinstance(generator, numpy.random.RandomState):
        return _of_others("numpy.random.RandomState", generator.get_state, generator.set_state)
    bits = generator.bit_generator
    return _of_others("numpy.random.Generator", lambda: bits.state, lambda state: setattr(bits, "state", state))


def seed(number: int) -> None:
    """Seeds PyTorch's, NumPy's and Python's own generators in this process."""
    torch.manual_seed(number)
    numpy.random.seed(number % 2**32)
    random.seed(number)


@contextlib.contextmanager
def kept(*, others: bool = False) -> Iterator[None]:
    """A context after which PyTorch's generator is as it was before, unless it was seeded in between; with `others`,
    those of NumPy and Python too."""
    seeded, state = torch.initial_seed(), torch.get_rng_state()
    theirs = numpy.random.get_state(), random.getstate()
    yield
    if torch.initial_seed() == seeded:
        torch.set_rng_state(state)
    if others:
        numpy.random.set_state(theirs[0])
        random.setstate(theirs[1])


_FLOATS: dict[str, Any] = {  # by calls that draw floating-point numbers: the constant in their place
    "rand": 0.6, "rand_like": 0.6, "randn": 1.0, "randn_like": 1.0, "exponential_": 1.0,
    "uniform_": lambda low=0.0, high=1.0: low + 0.6 * (high - low), "normal_": lambda mean=0.0, std=1.0: mean + std,
}  # fmt: skip
_MANY = 10000  # with constants, more draws in one step may be those of a loop that ends by chance
_ORDERS = {"sort", "argsort", "topk", "argmax", "argmin"}  # these see where equal elements are
_COUNTS = {  # these see how many elements there are, or where
    "sum", "mean", "prod", "std", "var", "norm", "vector_norm", "linalg_norm", "linalg_vector_norm", "logsumexp",
    "softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "count_nonzero",
}  # fmt: skip


class Draws:
    """The generators of a process and what its steps drew. `held`: functions and modules of the job, where its own
    generators of NumPy and Python are looked for; PyTorch's are known from the calls that they are given to. With
    `constant`, floating-point numbers that are drawn become constants, which are the same in every process."""

    def __init__(self, held: Iterable[Any] = (), constant: bool = False) -> None:
        self.steps: list[Drawn] = []
        self._now = Drawn()
        self._is_on = False
        self._constant = constant
        self._torch: dict[int, tuple[Any, _Source]] = {}
        self._add(torch.default_generator)
        self._others = [_of_others("numpy.random", numpy.random.get_state, numpy.random.set_state)]
        self._others.append(_of_others("random", random.getstate, random.setstate))
        self._others += [_source(generator) for generator in _generators(held)]
        self._made: list[_Source] = []  # generators of NumPy and Python that were made in the step

    def _add(self, generator: torch.Generator) -> None:
        if id(generator) not in self._torch:
            self._torch[id(generator)] = generator, (source := _of_torch(generator))
            source.begin()

    @property
    def _sources(self) -> list[_Source]:
        return [source for _, source in self._torch.values()] + self._others + self._made

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A context for one step, whose draws are noted."""
        self._made.clear()
        for source in self._sources:
            source.begin()
        self._now, self._is_on = Drawn(), True
        try:
            with _noted(lambda generator: self._made.append(_source(generator))):
                yield
            self._look(self._sources)
        finally:
            self._is_on = False
        self.steps.append(self._now)

    @contextlib.contextmanager
    def loss(self) -> Iterator[None]:
        """A context for the forward and loss of one microbatch: what NumPy and Python draw in it is one draw."""
        if not self._is_on:
            yield
            return
        self._look(self._sources)
        yield
        self._look(self._sources)

    def call(self, run: Callable[..., Any], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs run(func, args, kwargs), a call of an operation, and notes what it draws."""
        if not self._is_on or torch.compiler.is_compiling():
            return run(func, args, kwargs)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator):
                self._add(value)
        sources = [source for _, source in self._torch.values()]
        self._look(sources)
        name = getattr(func, "__name__", "")
        found = run(func, args, kwargs)
        before = len(self._now.draws)
        if self._constant and before > _MANY:
            raise addend.InvalidError(
                f"the model drew more than {_MANY} random numbers in a step: perhaps it draws until a condition "
                "holds, which the check cannot follow"
            )
        self._look(sources, name, found)
        if self._constant and len(self._now.draws) > before:
            self._now.is_constant &= _made_constant(name, found, args, kwargs)
        elif self._constant and self._now.draws and name in _ORDERS | _COUNTS:
            self._now.is_constant &= not _sees_constants(args[0] if args else kwargs.get("input"), name in _ORDERS)
        return found

    def _look(self, sources: Sequence[_Source], name: str = "", found: Any = None) -> None:
        """Notes a draw if the state of a generator is another than when it was last looked at. `name` and `found`: the
        call that was made since, and what it gave; "": unknown."""
        for source in sources:
            before = source.moved(bool(name))
            if before:
                mark = hashlib.sha256(before + source.last + repr(_shapes(found)).encode()).hexdigest()
                where = _names.caller() if name else ""
                self._now.draws.append(Draw(f"torch.{name}" if name else source.name, where, mark))
                self._now.is_constant &= bool(name)


def _is_of_the_job(code: types.CodeType) -> bool:
    """Whether code is a function, which module and class bodies of a library that is imported are not, and neither
    PyTorch's nor of Python's own library, which draws names of files."""
    file, paths = code.co_filename, sysconfig.get_paths()
    is_installed = file.startswith((paths["purelib"], paths["platlib"]))
    is_a_library = _names.is_inside(file) or (file.startswith(paths["stdlib"]) and not is_installed)
    return not is_a_library and bool(code.co_flags & inspect.CO_OPTIMIZED)


@contextlib.contextmanager
def _noted(note: Callable[[Any], None]) -> Iterator[None]:
    """A context in which note(generator) is called with each one that `numpy.random.default_rng` or `random.Random`
    makes."""
    make, init = numpy.random.default_rng, random.Random.__init__

    def made(*args: Any, **kwargs: Any) -> Any:
        generator = make(*args, **kwargs)
        if _is_of_the_job(sys._getframe(1).f_code):
            note(generator)
        return generator

    def inited(self: random.Random, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if _is_of_the_job(sys._getframe(1).f_code) and not isinstance(self, random.SystemRandom):  # it has no state
            note(self)

    setattr(numpy.random, "default_rng", made)  # noqa: B010
    setattr(random.Random, "__init__", inited)  # noqa: B010
    try:
        yield
    finally:
        setattr(numpy.random, "default_rng", make)  # noqa: B010
        setattr(random.Random, "__init__", init)  # noqa: B010


def _shapes(value: Any) -> list[tuple[int, ...]]:
    if isinstance(value, torch.Tensor):
        return [tuple(value.shape)]
    return [shape for item in value for shape in _shapes(item)] if isinstance(value, (tuple, list)) else []


def _made_constant(name: str, found: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Writes a constant over what a call drew. False: which numbers these are, or where, is unknown."""
    if not isinstance(found, torch.Tensor) or not found.is_floating_point() or found.requires_grad:
        return False
    if name == "bernoulli" and isinstance(args[0], torch.Tensor):
        found.copy_((args[0] >= 0.5).to(found.dtype))
    elif name == "normal" and len(args) == 2 and not kwargs:
        found.copy_(torch.as_tensor(args[0]) + args[1])
    elif name in _FLOATS:
        value: Any = _FLOATS[name]
        given = {key: kwargs[key] for key in ("from", "to", "mean", "std") if key in kwargs}
        if callable(value) and (given or not all(isinstance(number, (int, float)) for number in args[1:])):
            return False
        found.fill_(value(*args[1:]) if callable(value) else value)
    else:
        return False
    return True


def _sees_constants(tensor: Any, orders: bool) -> bool:
    """Whether what a call gives may depend on how many equal elements its input has, or where: if all are equal, or,
    with `orders`, two are. Random numbers are not equal, and a rank has others at its places than one process."""
    if isinstance(tensor, torch.Tensor) and (tensor.is_meta or isinstance(tensor, FakeTensor)):
        return False
    values = array(tensor) if isinstance(tensor, torch.Tensor) else numpy.zeros(2)
    kinds = numpy.unique(values).size
    return bool(values.size > 1 and (kinds < values.size if orders else kinds == 1))


def _generators(held: Iterable[Any]) -> list[Any]:
    """The generators of NumPy and Python that modules and functions hold: in attributes, closures, arguments that are
    bound, and globals of the file."""
    kinds = (random.Random, numpy.random.RandomState, numpy.random.Generator)
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    queue = list(held)
    while queue:
        one = queue.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        inside = _inside(one)
        found.update({id(value): value for value in inside if isinstance(value, kinds)})
        queue += [value for value in inside if isinstance(value, (types.FunctionType, types.MethodType, nn.Module))]
    own = {id(getattr(random, "_inst", None)), id(getattr(numpy.random.mtrand, "_rand", None))}
    return [one for key, one in found.items() if key not in own and not isinstance(one, random.SystemRandom)]


def _inside(one: Any) -> list[Any]:
    """What a function, bound method, partial or module holds."""
    if isinstance(one, types.MethodType):
        return [one.__self__, one.__func__, *vars(one.__self__).values()] if hasattr(one.__self__, "__dict__") else []
    if isinstance(one, types.FunctionType):
        cells = [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
        if _names.is_inside(one.__code__.co_filename):
            return cells
        names = one.__code__.co_names
        return [
            *cells,
            *(one.__defaults__ or ()),
            *(one.__globals__[name] for name in names if name in one.__globals__),
        ]
    if isinstance(one, nn.Module):
        return [*vars(one).values(), *one.modules(), type(one).forward]
    wrapped = getattr(one, "func", None)  # functools.partial
    return [wrapped, *one.args, *one.keywords.values()] if wrapped is not None and hasattr(one, "keywords") else []


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
