"""Meshes, layouts and the rules of types, for your own tools. Only arithmetic: nothing here communicates."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from addend._errors import InvalidError
from addend._library import checked, constant, function, same_layout

_AXES = constant("AD_AXIS_COUNT")
_DIMS = constant("AD_DIMS_MAX")
_LINEARITY = {name: constant(f"AD_{name.upper()}") for name in ("multilinear", "additive", "nonlinear")}
_TYPES = {name: constant(f"AD_{name}") for name in "RIVP"}
_CUT, _ZIGZAG = constant("AD_S(0)"), constant("AD_S_ZIGZAG(0)")
_BUFFER = 512


@same_layout("ad_layout")
class CLayout(ctypes.Structure):
    _fields_ = [("mesh", ctypes.c_void_p), ("type", ctypes.c_uint8 * _AXES), ("depth", ctypes.c_uint8 * _AXES)]


@same_layout("ad_shape")
class CShape(ctypes.Structure):
    _fields_ = [("ndim", ctypes.c_int), ("dim", ctypes.c_int64 * _DIMS)]


@same_layout("ad_group")
class CGroup(ctypes.Structure):
    _fields_ = [("mesh", ctypes.c_void_p), ("axes", ctypes.c_uint32), ("base", ctypes.c_int64)]


@same_layout("ad_transition", source="from", backward_source="backward_from")
class _CTransition(ctypes.Structure):
    _fields_ = [
        ("move", ctypes.c_int),
        ("source", ctypes.c_uint8),
        ("to", ctypes.c_uint8),
        ("moves_bytes", ctypes.c_int),
        ("backward", ctypes.c_int),
        ("backward_source", ctypes.c_uint8),
        ("backward_to", ctypes.c_uint8),
    ]


@same_layout("ad_path_step", source="from")
class _CStep(ctypes.Structure):
    _fields_ = [("move", ctypes.c_int), ("axes", ctypes.c_uint32), ("source", ctypes.c_uint8), ("to", ctypes.c_uint8)]


@same_layout("ad_rule")
class _CRule(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dims", ctypes.c_char_p),
        ("linearity", ctypes.c_int),
        ("full", ctypes.c_char_p),
    ]


_mesh_p, _layout_p, _i64 = ctypes.c_void_p, ctypes.POINTER(CLayout), ctypes.c_int64
_mesh_create = checked("ad_mesh_create", ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
_mesh_destroy = function("ad_mesh_destroy", None, _mesh_p)
_mesh_text = function("ad_mesh_text", ctypes.c_char_p, _mesh_p)
_mesh_size = function("ad_mesh_size", _i64, _mesh_p)
_mesh_named = function("ad_mesh_named", ctypes.c_uint32, _mesh_p)
_mesh_axis_size = function("ad_mesh_axis_size", _i64, _mesh_p, ctypes.c_int)
_mesh_position = function("ad_mesh_position", _i64, _mesh_p, _i64, ctypes.c_int)
_mesh_rank_at = function("ad_mesh_rank_at", _i64, _mesh_p, ctypes.POINTER(_i64))
_mesh_group = function("ad_mesh_group", CGroup, _mesh_p, ctypes.c_uint32, _i64)
_group_size = function("ad_group_size", _i64, ctypes.POINTER(CGroup))
_group_rank = function("ad_group_rank", _i64, ctypes.POINTER(CGroup), _i64)
_axis_name = function("ad_axis_name", ctypes.c_char_p, ctypes.c_int)
_axes_parse = checked("ad_axes_parse", ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint32))
_axes_print = function("ad_axes_print", ctypes.c_char_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)
_type_print = function("ad_type_print", ctypes.c_char_p, ctypes.c_uint8, ctypes.c_char_p, ctypes.c_size_t)
_move_name = function("ad_move_name", ctypes.c_char_p, ctypes.c_int)
_layout_parse = checked("ad_layout_parse", _mesh_p, ctypes.c_char_p, _layout_p)
_layout_print = function("ad_layout_print", ctypes.c_char_p, _layout_p, ctypes.c_char_p, ctypes.c_size_t)
_layout_dual = function("ad_layout_dual", CLayout, _layout_p)
_layout_equal = function("ad_layout_equal", ctypes.c_int, _layout_p, _layout_p)
_layout_local_shape = function("ad_layout_local_shape", CShape, _layout_p, ctypes.POINTER(CShape), _i64)
_layout_after = checked(
    "ad_layout_after_at",
    _layout_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_uint8,
    ctypes.c_int,
    _layout_p,
    ctypes.c_char_p,
)
_layout_path = checked("ad_layout_path", _layout_p, _layout_p, ctypes.POINTER(_CStep), ctypes.POINTER(ctypes.c_int))
_layout_view = checked("ad_layout_view_at", _layout_p, _mesh_p, _layout_p, ctypes.c_char_p)
_layout_propagate = checked(
    "ad_layout_propagate_at",
    ctypes.POINTER(_CRule),
    ctypes.POINTER(_layout_p),
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_size_t,
    _layout_p,
    ctypes.c_char_p,
)
_transition_table = function("ad_transition_table", ctypes.POINTER(_CTransition), ctypes.POINTER(ctypes.c_size_t))

_MOVES = {_move_name(move).decode(): move for move in range(constant("AD_MOVE_COUNT"))}


def _printed(function_: Any, value: Any) -> str:
    buffer = ctypes.create_string_buffer(_BUFFER)
    text: bytes = function_(value, buffer, _BUFFER)
    return text.decode()


def axes_of(text: str) -> int:
    """The set of axes that a text like "tp" or "dp_replicate,dp_shard" names."""
    out = ctypes.c_uint32()
    _axes_parse(text.encode(), out)
    return out.value


def call_site(depth: int) -> bytes:
    """The file and line of the caller `depth` frames up, for messages: "job.py:12"."""
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}".encode(errors="replace")


def _move_of(name: str) -> int:
    if name not in _MOVES:
        raise InvalidError(f"there is no move {name!r}; the moves are {', '.join(_MOVES)}")
    return _MOVES[name]


def _type_of(text: str) -> int:
    """The C code of a type as layouts write it: R, I, V, P, S0, S1z."""
    if text in _TYPES:
        return _TYPES[text]
    cut = re.fullmatch("S([0-9])(z?)", text)
    if cut and int(cut[1]) < _DIMS:
        return (_ZIGZAG if cut[2] else _CUT) + int(cut[1])
    raise InvalidError(f"{text!r} is not a type; types are R, I, V, P, S0 to S{_DIMS - 1}, and S0z to S{_DIMS - 1}z")


class Mesh:
    """Ranks laid out on named axes: Mesh("dp=2 tp=4"). The last axis is the fastest; dp is short for dp_shard."""

    def __init__(self, text: str):
        self.handle = ctypes.c_void_p()
        _mesh_create(text.encode(), self.handle)

    def __del__(self) -> None:
        if self.handle:
            _mesh_destroy(self.handle)

    def __str__(self) -> str:
        text: bytes = _mesh_text(self.handle)
        return text.decode()

    def __repr__(self) -> str:
        return f"Mesh({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(_mesh_size(self.handle))

    @property
    def axes(self) -> dict[str, int]:
        """The axes that the mesh's text names, with their sizes."""
        named = _mesh_named(self.handle)
        return {name: int(_mesh_axis_size(self.handle, axis)) for axis, name in _axis_names(named)}

    def position(self, rank: int) -> dict[str, int]:
        """The rank's index on each named axis."""
        self._need(rank)
        return {
            name: int(_mesh_position(self.handle, rank, axis)) for axis, name in _axis_names(_mesh_named(self.handle))
        }

    def group(self, axes: str, rank: int) -> list[int]:
        """The ranks that differ from `rank` on `axes` only, in mesh order."""
        self._need(rank)
        group = self.c_group(axes_of(axes), rank)
        return [int(_group_rank(group, i)) for i in range(_group_size(group))]

    def c_group(self, axes: int, rank: int) -> CGroup:
        group: CGroup = _mesh_group(self.handle, axes, rank)
        return group

    def layout(self, text: str) -> Layout:
        """The layout on this mesh that a text like "dp=R tp=S1" describes."""
        return Layout(self, text)

    def _need(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise InvalidError(f"the mesh {str(self)!r} has ranks 0 to {self.size - 1}, but rank {rank} was asked for")


def _axis_names(axes: int) -> list[tuple[int, str]]:
    return [(axis, _axis_name(axis).decode()) for axis in range(_AXES) if axes >> axis & 1]


@dataclass(frozen=True)
class PathStep:
    """One reduction between a gradient's layout and its storage layout: `move` over `axes` turns `source` into `to`."""

    move: str
    axes: str
    source: str
    to: str


class Layout:
    """The types of one value on all axes of a mesh: Layout(Mesh("dp=2 tp=4"), "dp=R tp=S1")."""

    def __init__(self, mesh: Mesh, text: str = ""):
        self.mesh = mesh
        self.c = CLayout()
        _layout_parse(mesh.handle, text.encode(), self.c)

    def _with(self, c: CLayout, mesh: Mesh | None = None) -> Layout:
        layout = object.__new__(Layout)
        layout.mesh, layout.c = mesh or self.mesh, c
        return layout

    def __str__(self) -> str:
        named = self.mesh.axes  # an axis that the mesh does not name has size 1, and its type means nothing
        return " ".join(word for word in _printed(_layout_print, self.c).split() if word.split("=")[0] in named)

    def __repr__(self) -> str:
        return f"Layout({str(self.mesh)!r}, {str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and bool(_layout_equal(self.c, other.c))

    def __hash__(self) -> int:
        return hash((self.mesh, str(self)))

    @property
    def dual(self) -> Layout:
        """The layout that the gradient of a value with this layout has."""
        return self._with(_layout_dual(self.c))

    def local_shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """The shape of the part that `rank` holds of a value with the global shape `shape`."""
        if len(shape) > _DIMS:
            raise InvalidError(f"a shape can have at most {_DIMS} dimensions, but this one has {len(shape)}")
        self.mesh._need(rank)
        whole = CShape(len(shape), (ctypes.c_int64 * _DIMS)(*shape))
        local = _layout_local_shape(self.c, whole, rank)
        return tuple(local.dim[: local.ndim])

    def after(self, move: str, axes: str, to: str, ndim: int = 2) -> Layout:
        """The layout after a transition (`move` over `axes`, to type `to`) of a value with `ndim` dimensions.

        If the table of transitions does not have this one, LayoutError lists those that it has."""
        out = CLayout()
        _layout_after(self.c, _move_of(move), axes_of(axes), _type_of(to), ndim, out, call_site(2))
        return self._with(out)

    def path_to(self, storage: Layout) -> tuple[PathStep, ...]:
        """The reductions that turn a gradient of this layout into one of the storage layout."""
        steps, count = (_CStep * _AXES)(), ctypes.c_int()
        _layout_path(self.c, storage.c, steps, count)
        return tuple(
            PathStep(
                _move_name(step.move).decode(),
                _printed(_axes_print, step.axes),
                _printed(_type_print, step.source),
                _printed(_type_print, step.to),
            )
            for step in steps[: count.value]
        )

    def view(self, mesh: Mesh) -> Layout:
        """The layout of the same value on another factorisation of the same ranks into axes."""
        out = CLayout()
        _layout_view(self.c, mesh.handle, out, call_site(2))
        return self._with(out, mesh)


@dataclass(frozen=True)
class Transition:
    """One row of the table of transitions between types; "S(0)" means sharded on any dimension."""

    move: str
    source: str
    to: str
    moves_bytes: bool
    backward: str
    backward_source: str
    backward_to: str


def transitions() -> tuple[Transition, ...]:
    """Every operation that may change a type, with its backward operation.

    Returns:
        The rows of the table.

    Example:
        for row in addend.transitions():
            print(row.move, row.source, "->", row.to)
    """
    count = ctypes.c_size_t()
    rows = _transition_table(count)
    return tuple(_transition(row) for row in rows[: count.value])


def _transition(row: _CTransition) -> Transition:
    return Transition(
        _move_name(row.move).decode(),
        _printed(_type_print, row.source),
        _printed(_type_print, row.to),
        bool(row.moves_bytes),
        _move_name(row.backward).decode(),
        _printed(_type_print, row.backward_source),
        _printed(_type_print, row.backward_to),
    )


def propagate(
    dims: str,
    *operands: Layout,
    linearity: str = "multilinear",
    whole: str = "",
    constant: Sequence[int] = (),
    name: str = "operation",
) -> Layout:
    """The layout of the result of an operation without communication.

    Args:
        dims: the dimensions of operands and result by letters, as in an einsum.
        *operands: the layout of each operand.
        linearity: "multilinear" (a product), "additive" (a sum) or "nonlinear".
        whole: letters of dimensions that must not be sharded.
        constant: indices of operands that carry no gradient.
        name: what messages call the operation.

    Returns:
        The layout.

    Raises:
        LayoutError: the layouts do not fit. The text names the operand, the axis and the conversion that is needed.
        InvalidError: an argument is not what it must be.

    Example:
        y = addend.propagate("bk,kn->bn", x, w)
    """
    if linearity not in _LINEARITY:
        raise InvalidError(f"`linearity` takes one of {', '.join(_LINEARITY)}, not {linearity!r}")
    if not operands:
        raise InvalidError("propagate got no operand: pass the layout of every operand")
    rule = _CRule(ctypes.sizeof(_CRule), name.encode(), dims.encode(), _LINEARITY[linearity], whole.encode())
    layouts = (_layout_p * len(operands))(*[ctypes.pointer(operand.c) for operand in operands])
    constants = (ctypes.c_int * len(operands))(*[int(i in constant) for i in range(len(operands))])
    out = CLayout()
    _layout_propagate(rule, layouts, constants, len(operands), out, call_site(2))
    return operands[0]._with(out)
