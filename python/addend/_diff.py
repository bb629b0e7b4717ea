"""`addend.diff`: which addends the gradients of a dumped step hold."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, Optional, Tuple, Union

from addend._cause import Cause, causes
from addend._documents import read
from addend._library import checked, path_of, take_text, texts
from addend._progress import CProgress, progress

Path = Union[str, "os.PathLike[str]"]
_PASS = {"key": "pass"}  # the document's name for `ok`


@dataclass(frozen=True)
class DiffReference:
    """A sum against the reference's whole gradient."""

    ratio: Optional[float] = None
    max_rel_err: Optional[float] = None
    cause: Optional[Cause] = None
    possible_causes: Tuple[Cause, ...] = ()


@dataclass(frozen=True)
class DiffParam:
    """How often each addend was counted in the gradient of one parameter."""

    name: str
    ok: Optional[bool] = field(metadata=_PASS)  # None: cannot tell
    verdict: str = "right"  # right, wrong, cannot_tell
    kind: str = "right"  # what the sum holds: averaged, missing, doubled, ... (docs/dumps.md)
    numel: int = 0
    sampled: int = 0
    types: str = ""
    expect: Optional[float] = None
    axis: Optional[str] = None
    ranks: Tuple[int, ...] = ()
    factor: Optional[float] = None  # measured, on what was expected
    residual: Optional[float] = None
    bound: Optional[float] = None
    text: str = ""
    counts: Optional[Tuple[Tuple[Optional[float], ...], ...]] = None  # [rank][microbatch]; None where all is right
    errors: Optional[Tuple[Tuple[Optional[float], ...], ...]] = None  # standard errors of the counts
    reference: Optional[DiffReference] = None
    cause: Optional[Cause] = None
    possible_causes: Tuple[Cause, ...] = ()  # where several fit; cause is None then


@dataclass(frozen=True)
class DiffNorm:
    """The norm that the job reported, against that of the sums."""

    reported: Optional[float] = None
    computed: Optional[float] = None
    ok: bool = field(default=False, metadata=_PASS)
    text: str = ""
    counted: Tuple[Mapping[str, Any], ...] = ()
    cause: Optional[Cause] = None
    possible_causes: Tuple[Cause, ...] = ()


@dataclass(frozen=True)
class DiffReport:
    """What `addend diff` says; str() is its table. `ok` is None where nothing is wrong and not all can be told."""

    ok: Optional[bool] = field(metadata=_PASS)
    params: Tuple[DiffParam, ...]
    norm: Optional[DiffNorm]
    table: str
    verdict: str = "right"  # right, wrong, cannot_tell
    world: int = 0
    mesh: str = ""
    step: Optional[int] = None
    microbatches: int = 0
    messages: Tuple[str, ...] = ()
    modules: Mapping[str, DiffReport] = field(default_factory=dict, repr=False)  # of several, without tables
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)  # as `addend diff --json` prints it

    def __str__(self) -> str:
        return self.table

    def full_table(self) -> str:
        """The table with a line for each parameter that is not right; `table` has one for all that are alike."""
        return _text_of(_list, self._json(), 0)

    def github(self) -> str:
        """The report as lines that GitHub's runners make annotations of, once a job has printed them."""
        return _text_of(_github, self._json())

    def html(self) -> str:
        """The page with the map of parameters and ranks."""
        return _text_of(_html, self._json())

    def _json(self) -> bytes:
        return json.dumps(self.document).encode()

    def __getitem__(self, name: str) -> DiffParam:
        """The parameter of that name."""
        for param in self.params:
            if param.name == name:
                return param
        raise KeyError(name)


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("reference", ctypes.c_char_p),
        ("progress", CProgress),
        ("context", ctypes.c_void_p),
        ("allow_identical", ctypes.c_int),
        ("finite", ctypes.c_int),
        ("threads", ctypes.c_int),
    ]


_int_p, _text_p = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_void_p)
_diff = checked("ad_diff", ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.POINTER(_Options), _int_p, _text_p)
_table = checked("ad_diff_table", ctypes.c_char_p, ctypes.c_int, _text_p)
_page = checked("ad_diff_page", ctypes.c_char_p, ctypes.c_char_p)
_list = checked("ad_diff_list", ctypes.c_char_p, ctypes.c_int, _text_p)
_github = checked("ad_diff_github", ctypes.c_char_p, _text_p)
_html = checked("ad_diff_html", ctypes.c_char_p, _text_p)
_explain = checked("ad_explain", ctypes.c_char_p, _text_p)


def _text_of(make: Callable[..., None], *arguments: Any) -> str:
    out = ctypes.c_void_p()
    make(*arguments, out)
    return take_text(out)


def explain(name: Optional[str] = None) -> str:
    """The page for the `kind` of a parameter or a cause, or for "norm", as `addend explain` prints it; without a name
    the list of all pages. InvalidError names those that are near."""
    return _text_of(_explain, None if name is None else name.encode())


def _ok(document: Mapping[str, Any]) -> Optional[bool]:
    return None if document["verdict"] == "cannot_tell" else bool(document["pass"])


def _param(document: Mapping[str, Any]) -> DiffParam:
    reference = document.get("reference")
    told = read(DiffReference, reference, **causes(reference)) if reference else None
    return read(DiffParam, document, ok=_ok(document), reference=told, **causes(document))


def _report(document: Mapping[str, Any], table: str) -> DiffReport:
    norm = document.get("norm")
    modules = {module["module"]: _report(module, "") for module in document.get("modules", ())}
    own = tuple(_param(param) for param in document.get("params", ()))
    return read(
        DiffReport,
        document,
        ok=_ok(document),
        params=own + tuple(param for module in modules.values() for param in module.params),
        norm=read(DiffNorm, norm, **causes(norm)) if norm else None,
        table=table,
        modules=modules,
        document=document,
    )


def diff(
    files: Union[Path, Iterable[Path]],
    reference: Optional[Path] = None,
    html: Optional[Path] = None,
    allow_identical: bool = False,
    threads: int = 1,
) -> DiffReport:
    """Says for each parameter of a dumped step how often each addend was counted.

    `files`: safetensors files (docs/dumps.md), or folders that hold them. `reference`: a file of whole gradients, or
    another dump. `html`: where the page of the map goes. `allow_identical`: addends that are the same are meant to be;
    else what was counted of them cannot be told. `threads`: at most so many judge parameters at a time; what is found
    is the same with any number. Gradients that do not hold are no error: look at `ok`, which is None
    where it cannot be told."""
    if isinstance(files, (str, os.PathLike)):
        files = [files]
    with progress("diff") as told:
        return judged(files, told, reference, html, allow_identical, threads=threads)


def judged(
    files: Iterable[Path],
    told: Any,
    reference: Optional[Path] = None,
    html: Optional[Path] = None,
    allow_identical: bool = False,
    finite: bool = False,
    threads: int = 1,
) -> DiffReport:
    """`told`: a CProgress; `finite`, `threads`: as of ad_diff_options."""
    if not 1 <= threads <= 64:
        raise ValueError(f"threads: 1 to 64, not {threads}")
    paths = [path_of(path) for path in files]
    given = path_of(reference).encode() if reference is not None else None
    holds, out, table = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    options = _Options(ctypes.sizeof(_Options), given, told, None, int(allow_identical), int(finite), threads)
    _diff(texts(paths), len(paths), options, holds, out)
    text = take_text(out)
    _table(text.encode(), 0, table)
    if html is not None:
        _page(text.encode(), path_of(html).encode())
    return _report(json.loads(text), take_text(table))
