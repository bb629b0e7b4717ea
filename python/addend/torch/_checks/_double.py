"""Makes a job compute in f64 only and without dropout: conversions to narrower dtypes become conversions to f64."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import (
    Any,
    Callable,
)

import torch
from torch import nn
from torch.autograd import graph
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_map

from addend._dtypes import by_torch
from addend.torch import _sharded
from addend.torch._checks import _names
from addend.torch._checks._draws import Draws
from addend.torch._loaded import is_dtensor, is_fsdp

_DIVISORS = "_get_gradient_divide_factors"  # private: by what fully_shard divides before and after a sum
_SHORT = {of: dtype.name for of, dtype in by_torch().items() if dtype.is_float and of != torch.float64}
NARROW = (*_SHORT, torch.complex64, torch.complex32)
_METHODS = {"float", "half", "bfloat16"}
_DROPOUT_P = 4  # which argument of scaled_dot_product_attention is the probability of dropout


def doubled(value: Any) -> Any:
    """The value with all floating tensors converted to f64, inside tuples, lists, dictionaries and dataclasses too."""
    return _mapped(value, lambda leaf: leaf.to(_wide(leaf.dtype)))


def widened(model: nn.Module) -> nn.Module:
    """The module with all its floating parameters and buffers in f64, complex ones of two f64."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_complex():  # double() leaves these as they are
            tensor.data = tensor.data.to(torch.complex128)
    return model.double()


def _mapped(value: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, convert) for item in value))
    if type(value) in (tuple, list):
        return type(value)(_mapped(item, convert) for item in value)
    if type(value) is dict:
        return {key: _mapped(item, convert) for key, item in value.items()}
    copied: Any = copy.copy(value) if isinstance(value, MutableMapping) or dataclasses.is_dataclass(value) else None
    if isinstance(value, MutableMapping):  # such as the BatchEncoding that tokenizers return
        for key, item in list(value.items()):
            copied[key] = _mapped(item, convert)
        return copied
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                object.__setattr__(copied, field.name, _mapped(getattr(value, field.name), convert))
        return copied
    return tree_map(lambda leaf: convert(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


_ULPS = 2  # of f32: how far rounding to it in each of a few operations may take a buffer's element
MANY_ULPS = 8  # the same of powers and exponentials, as rotary frequencies are made; a mistake may be as small


def buffers_of(parts: Iterable[nn.Module]) -> dict[str, torch.Tensor]:
    """The floating buffers by their names without wrappers."""
    return {
        f"{name}.{key}" if name else key: buffer
        for part in parts
        for name, module in _names.modules(part)
        for key, buffer in module._buffers.items()
        if buffer is not None and (buffer.is_floating_point() or buffer.is_complex())
    }


def unify_buffers(parts: Iterable[nn.Module], wanted: Mapping[str, torch.Tensor]) -> tuple[set[str], dict[str, str]]:
    """Gives the parts' buffers the values in `wanted`, those of one process in f64, where every element differs by
    rounding alone: a model that `parallelize` made anew rounds otherwise. Returns a note if there were any, and the
    dtypes of buffers that stay narrow, by their names; "" for one in f64 that is so near that it may have been f32."""
    found: list[str] = []
    narrow: dict[str, str] = {}
    for name, buffer in buffers_of(parts).items():
        right = wanted.get(name)
        if right is not None and right.shape == buffer.shape and not is_dtensor(buffer):
            is_same = buffer.dtype == right.dtype and torch.allclose(buffer, right, 0.0, 0.0, equal_nan=True)
            if not is_same and _is_rounded(buffer, right, _ULPS):
                buffer.data = right.clone()
                found.append(name)
            elif not is_same and buffer.dtype not in NARROW and _is_rounded(buffer, right, MANY_ULPS):
                narrow[name] = ""
        if buffer.dtype in NARROW:
            narrow[name] = _SHORT.get(buffer.dtype, str(buffer.dtype).removeprefix("torch."))
    more = f" and {len(found) - 1} more" if found[1:] else ""
    said = (
        f"buffers that `parallelize` rounded otherwise have one process's values: `{found[0]}`{more}" if found else ""
    )
    return {said} - {""}, narrow


def _is_rounded(buffer: torch.Tensor, right: torch.Tensor, ulps: int) -> bool:
    """Whether each element is that of `right`, of the same shape and in f64, or what rounding makes of it: rounding to
    the buffer's dtype, if that is narrow, and to f32 by at most `ulps`. Infinities and NaN are not rounded."""
    if buffer.is_complex() != right.is_complex():
        return False
    if right.is_complex():
        buffer, right = (torch.view_as_real(value.resolve_conj()) for value in (buffer, right))
    found, rounded = buffer.to(right.dtype), right.to(buffer.dtype).to(right.dtype)
    size = rounded.float().abs()
    ulp = size.double() - torch.nextafter(size, torch.zeros_like(size)).double()
    is_same = (found == right) | (found.isnan() & right.isnan())
    is_near = found.isfinite() & size.isfinite() & ((found - rounded).abs() <= ulps * ulp)
    return bool((is_same | is_near).all())


class Buffers:
    """Copies of the modules' buffers (such as running statistics), so that every step can begin with equal values."""

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        found = {id(buffer): buffer for part in parts for buffer in part.buffers()}
        self._held = [(buffer, buffer.detach().clone()) for buffer in found.values()]

    def restore(self) -> None:
        """Sets all buffers to the values that they had at first."""
        with torch.no_grad():
            for buffer, value in self._held:
                buffer.copy_(value)


_BACKWARDS = {"backward", "grad"}
_RUN = "_engine_run_backward"  # what runs a backward, under a private name in two modules of PyTorch's
_NO_DOUBLE = re.compile(r"\bdouble\b|float64|\bf64\b|fp64", re.I)
_PROPAGATION = "Sharding propagation failed"  # with which DTensor lists the arguments, dtypes too, whatever it refuses
_EPSILON = 2.0**-24  # half a unit of f32


class Double(TorchFunctionMode):
    """A context in which floating operations compute in f64. `said`: notes on what is done differently from the job.
    `narrow`: operations that have no f64 and are computed in f32, with the place where they were called. With
    `rounding`, a generator, the inputs of these are changed at random by a rounding error of f32. `draws` notes what
    random numbers are drawn."""

    def __init__(
        self,
        modules: Sequence[str] = (),
        rounding: torch.Generator | None = None,
        draws: Draws | None = None,
    ) -> None:
        super().__init__()
        self.said: set[str] = set()
        self.draws = draws
        self.narrow: dict[str, str] = {}
        self._modules, self._rounding = modules, rounding
        self._apply: Any = None
        self._engine: Any = None
        self._inside = False  # inside an operation: notes name it, not the autograd Functions that it consists of
        self._through = False  # inside an operation that is computed in f32: its own conversions stay

    def __enter__(self) -> Double:
        self._apply = own = vars(torch.autograd.Function).get("apply")
        mode = self

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            above: Any = super
            apply = above(torch.autograd.Function, cls).apply if own is None else own.__get__(None, cls)
            if mode._inside:
                return apply(*args, **kwargs)
            return mode._call(cls.__name__, apply, args, kwargs)

        setattr(torch.autograd.Function, "apply", classmethod(applied))  # noqa: B010  modes do not see apply
        self._engine = getattr(graph, _RUN)
        for module in (graph, torch.autograd):
            setattr(module, _RUN, functools.partial(self._run_backward, self._engine))
        enter: Any = super().__enter__
        enter()
        return self

    def _run_backward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a backward, with Functions, hooks and recomputation in it, inside the mode, which PyTorch takes
        off while the mode looks at the call of `backward`."""
        if any(mode is self for mode in _get_current_function_mode_stack()):
            return run(*args, **kwargs)
        enter: Any = super().__enter__
        leave: Any = super().__exit__
        enter()
        try:
            return run(*args, **kwargs)
        finally:
            leave(None, None, None)

    def __exit__(self, *error: Any) -> None:
        for module in (graph, torch.autograd):
            setattr(module, _RUN, self._engine)
        if self._apply is None:
            delattr(torch.autograd.Function, "apply")
        else:
            setattr(torch.autograd.Function, "apply", self._apply)  # noqa: B010
        leave: Any = super().__exit__
        leave(*error)

    def _call(self, name: str, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Runs the operation in f64; or in f32 if its error message says that it has no f64."""
        if self._through:
            return func(*args, **kwargs)
        if name not in self.narrow:
            try:
                return func(*args, **kwargs)
            except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError) as error:
                said = str(error).partition(_PROPAGATION)[0]
                if not _NO_DOUBLE.search(said) or torch.float64 not in _dtypes((args, kwargs)):
                    raise
                if any(
                    dtype in NARROW for dtype in _dtypes((args, kwargs))
                ):  # the error may come from a tensor that was narrow from the start, so convert all to f64
                    return func(*doubled(args), **doubled(kwargs))
        self._through = True
        try:
            found = self._in_f32(func, args, kwargs)
        finally:
            self._through = False
        module = self._modules[-1] if self._modules else ""
        place = _names.caller()
        self.narrow.setdefault(name, f"in `{module}`, {place}" if module else place)
        return found

    def _in_f32(self, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Runs the operation on copies in f32. What it writes in place is written to the tensors themselves."""
        copies: list[tuple[torch.Tensor, torch.Tensor, int]] = []

        def narrowed(tensor: torch.Tensor) -> torch.Tensor:
            narrow = self._narrowed(tensor)
            if narrow is not tensor:
                copies.append((tensor, narrow, narrow._version))
            return narrow

        found = func(*_mapped(args, narrowed), **_mapped(kwargs, narrowed))
        own = {id(narrow): tensor for tensor, narrow, _ in copies}
        for tensor, narrow, version in copies:
            if narrow._version != version:
                tensor.copy_(narrow)
        return doubled(_mapped(found, lambda tensor: own.get(id(tensor), tensor)))

    def _narrowed(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float64:
            return tensor
        if self._rounding is not None:
            drawn = torch.randint(-1, 2, tensor.shape, generator=self._rounding, device="cpu").to(tensor.dtype)
            tensor = tensor * (1 + _EPSILON * 2 * drawn)
        return tensor.float()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self._through or _is_repeated(func):
            return func(*args, **kwargs)
        if self.draws is None:
            return self._doubled(func, args, kwargs)
        return self.draws.call(self._doubled, func, args, kwargs)

    def _doubled(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """The operation in f64, and without dropout."""
        name = getattr(func, "__name__", "")
        if name in _METHODS and isinstance(args[0], torch.Tensor):
            self.said.add("conversions to a narrower dtype are conversions to f64")
            return args[0].double()
        if any(value in NARROW for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)):
            self.said.add("conversions to a narrower dtype are conversions to f64")
            args = tuple(_wide(value) for value in args)
            kwargs = {key: _wide(value) for key, value in kwargs.items()}
        if name == "dropout" or (name.endswith("_dropout") and name != "native_dropout"):  # that gives its mask, too
            self.said.add("`dropout` is off")
            return args[0] if args else kwargs["input"]
        if kwargs.get("dropout_p"):
            self.said.add("`dropout` is off")
            kwargs["dropout_p"] = 0.0
        if name == "scaled_dot_product_attention" and len(args) > _DROPOUT_P and args[_DROPOUT_P]:
            self.said.add("`dropout` is off")
            args = (*args[:_DROPOUT_P], 0.0, *args[_DROPOUT_P + 1 :])
        if name in _BACKWARDS:
            return func(*args, **kwargs)  # not through _call, which may run it twice: a backward frees its graph
        self._inside, before = True, self._inside
        try:
            if not torch.is_autocast_enabled("cpu"):
                return self._call(name, func, args, kwargs)
            self.said.add("`autocast` was off: f64")
            with torch.autocast("cpu", enabled=False):
                return self._call(name, func, args, kwargs)
        finally:
            self._inside = before


def _is_repeated(func: Callable[..., Any]) -> bool:
    """Whether a dispatch mode calls again what autograd called in a backward: its dtypes are those of the forward."""
    return isinstance(func, torch._ops.OpOverload) and torch._C._current_graph_task_id() != -1


def _dtypes(value: Any) -> list[torch.dtype]:
    found: list[torch.dtype] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor.dtype)
        return tensor

    _mapped(value, note)
    return found


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.dtype) or value not in NARROW:
        return value
    return torch.complex128 if value.is_complex else torch.float64


def quiet(model: nn.Module) -> set[str]:
    """Turns dropout modules off; returns a note if there were any."""
    is_found = False
    for module in model.modules():
        held = {"p": isinstance(module, nn.modules.dropout._DropoutNd)}
        held["dropout"] = isinstance(getattr(module, "dropout", None), float)  # in nn.MultiheadAttention and nn.LSTM
        for name in (name for name, is_held in held.items() if is_held and getattr(module, name)):
            setattr(module, name, 0.0)
            is_found = True
    return {"`dropout` is off"} if is_found else set()


def widen_policies(parts: Iterable[nn.Module]) -> set[str]:
    """Takes the dtypes out of `fully_shard`'s mixed precision, part of which it applies where no mode looks. Returns a
    note if there were any. A PyTorch without these private names keeps its own."""
    said = set()
    for module in (module for part in parts for module in part.modules() if is_fsdp(module)):
        held: list[tuple[Any, str]] = [(module._get_fsdp_state(), "_mp_policy")]
        held += [(param, "mp_policy") for group in _sharded.fsdp_groups(module) for param in group.fsdp_params]
        for holder, name in held:
            policy: Any = getattr(holder, name, None)
            if policy is not None and any((policy.param_dtype, policy.reduce_dtype, policy.output_dtype)):
                wide = dataclasses.replace(policy, param_dtype=None, reduce_dtype=None, output_dtype=None)
                setattr(holder, name, wide)
                said.add("`fully_shard`'s mixed precision was off: f64")
    return said


def divide_as_f32() -> None:
    """Makes `fully_shard`, in this process from now on, divide gradients in f64 as it does those in f32. It takes f64
    for a dtype that overflows, as f16 is: where shards are on one rank, and the job gives a divisor, PyTorch 2.15 then
    divides twice. A PyTorch without this private name is left as it is."""
    module = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    asked = getattr(module, _DIVISORS, None)
    if asked is None or hasattr(asked, "__wrapped__"):
        return
    signature = inspect.signature(asked)

    @functools.wraps(asked)
    def divisors(scatter: Any, *args: Any, **kwargs: Any) -> Any:
        found = asked(scatter, *args, **kwargs)
        given = signature.bind(scatter, *args, **kwargs).arguments
        is_alone = scatter is None or scatter.size() == 1
        is_summed = given.get("force_sum_reduction_for_comms")
        if is_alone and given.get("factor") is not None and given["reduce_dtype"] == torch.float64 and not is_summed:
            return (None, None, *found[2:])
        return found

    setattr(module, _DIVISORS, divisors)


def vary_constants(model: nn.Module) -> set[str]:
    """Adds random numbers to parameters whose elements are all equal: zeros and ones hide mistakes, and do not show
    which part of the parameter a rank has. Returns a note on these."""
    generator = torch.Generator().manual_seed(5)
    varied: dict[str, None] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.reshape(-1)[0]).all()):
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.1)
                varied[name.rpartition(".")[2]] = None
    names = ", ".join(f"`{name}`" for name in varied)
    return {f"parameters that held one number were varied: {names}"} if varied else set()
