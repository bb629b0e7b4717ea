"""`addend.diff` finds how often each rank's addend was counted in the gradients of a dumped step."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Union

from addend._cause import Cause, causes
from addend._documents import read
from addend._library import checked, path_of, take_text, texts
from addend._progress import CProgress, progress

Path = Union[str, "os.PathLike[str]"]
_PASS = {"key": "pass"}  # the JSON document calls the field `ok` "pass", which is a keyword in Python


@dataclass(frozen=True)
class DiffReference:
    """The summed gradient of a parameter, compared with the reference's gradient."""

    ratio: float | None = None
    max_rel_err: float | None = None
    cause: Cause | None = None
    possible_causes: tuple[Cause, ...] = ()


@dataclass(frozen=True)
class DiffParam:
    """How often each addend was counted in the gradient of one parameter."""

    name: str
    ok: bool | None = field(metadata=_PASS)  # None: the dump does not allow a judgement
    verdict: str = "right"  # right, wrong, cannot_tell
    kind: str = "right"  # what the sum has: averaged, missing, doubled, ... (audit/docs/dumps.md)
    numel: int = 0
    sampled: int = 0
    types: str = ""
    expect: float | None = None
    axis: str | None = None
    ranks: tuple[int, ...] = ()
    factor: float | None = None  # the measured gradient divided by the expected one
    residual: float | None = None
    bound: float | None = None
    text: str = ""
    counts: tuple[tuple[float | None, ...], ...] | None = None  # [rank][microbatch]; None if all are right
    errors: tuple[tuple[float | None, ...], ...] | None = None  # standard errors of the counts
    reference: DiffReference | None = None
    cause: Cause | None = None
    possible_causes: tuple[Cause, ...] = ()  # all causes that fit, if more than one does; `cause` is None then


@dataclass(frozen=True)
class DiffNorm:
    """The gradient norm that the job reported, compared with the norm of the dumped sums."""

    reported: float | None = None
    computed: float | None = None
    ok: bool = field(default=False, metadata=_PASS)
    text: str = ""
    counted: tuple[Mapping[str, Any], ...] = ()
    cause: Cause | None = None
    possible_causes: tuple[Cause, ...] = ()


@dataclass(frozen=True)
class DiffDeclaration:
    """What a job declares of one parameter, and whether its addends agree. A declaration that does not hold is no wrong
    sum: `DiffReport.ok` does not hear it."""

    name: str
    by: str  # who declares it: "spmd_types", "fully_shard", "types="
    axis: str | None = None  # None: a dtype is declared
    type: str = ""  # R, I or S<dim> on the axis
    dtype: str = ""  # in which the sum is to be formed, as in files: "f32"
    where: str = ""  # file and line of the declaration, if they are known
    words: str = ""  # what the source says, if a type loses it
    stated: bool = True  # False: a wrapper, a placement, a default of PyTorch's or an option of the watch says it
    counts: bool = False  # the sum was read by it
    holds: bool | None = None  # None: the addends do not tell
    # A word for what the addends show: "differ", "values", "summed", "same", "copies", "bits", "calls" contradict it;
    # "unsummed": nobody does what it says; "stored": the sum's result was rounded after; "near", "partial", "seed":
    # what is open (audit/docs/dumps.md).
    why: str = ""
    text: str = ""  # a sentence; "": nothing is to be said


@dataclass(frozen=True)
class DiffCall:
    """Collectives of one step that differ in nothing but their time; addend.torch.Call with the ranks that made it."""

    operation: str
    axes: str = ""
    ranks: tuple[int, ...] = ()
    dtype: str = ""
    bytes: int = 0
    count: int = 0
    phase: str = ""
    line: str = ""
    params: tuple[str, ...] = ()
    backwards: tuple[int, ...] = ()  # the backwards in which it was called, from 0; (): in none
    made_by: tuple[int, ...] = ()  # the ranks that called it
    needed: int | None = None  # bytes that the declared types need of it; None: not known whose sum it is
    finding: str = ""  # twice, wider, for_nothing, no_axis; "": nothing
    text: str = ""  # a sentence on the finding


@dataclass(frozen=True)
class DiffReport:
    """The report of `addend diff`; str() gives it as a table. `ok` is None if nothing is wrong but some parameters
    cannot be judged."""

    ok: bool | None = field(metadata=_PASS)
    params: tuple[DiffParam, ...]
    norm: DiffNorm | None
    table: str
    verdict: str = "right"  # right, wrong, cannot_tell
    world: int = 0
    mesh: str = ""
    step: int | None = None
    microbatches: int = 0
    messages: tuple[str, ...] = ()
    declarations: tuple[DiffDeclaration, ...] = ()
    calls: tuple[DiffCall, ...] = ()
    calls_unseen: tuple[str, ...] = ()  # why there may be more calls
    modules: Mapping[str, DiffReport] = field(default_factory=dict, repr=False)  # a report for each, without table
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the JSON of `addend diff --json`

    def __str__(self) -> str:
        return self.table

    def full_table(self) -> str:
        """The table with a line for each parameter that is not right; `table` merges parameters with the same verdict
        into one line."""
        return _text_of(_list, self._json(), 0)

    def github(self) -> str:
        """The report as lines that GitHub's runners turn into annotations when a job prints them."""
        return _text_of(_github, self._json())

    def html(self) -> str:
        """The report as an HTML page with a map of parameters and ranks."""
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


def explain(name: str | None = None) -> str:
    """The page of `addend explain` on a verdict's kind or a cause.

    Args:
        name: a `kind` ("averaged", "missing", ...) or "norm"; None: the list of all pages.

    Returns:
        The page.

    Raises:
        InvalidError: there is no such page. The text lists similar names.

    Example:
        print(addend.explain(param.kind))
    """
    return _text_of(_explain, None if name is None else name.encode())


def _ok(document: Mapping[str, Any]) -> bool | None:
    return None if document["verdict"] == "cannot_tell" else bool(document["pass"])


def _param(document: Mapping[str, Any]) -> DiffParam:
    reference = document.get("reference")
    sentences = read(DiffReference, reference, **causes(reference)) if reference else None
    return read(DiffParam, document, ok=_ok(document), reference=sentences, **causes(document))


def _report(document: Mapping[str, Any], table: str) -> DiffReport:
    norm = document.get("norm")
    modules = {module["module"]: _report(module, "") for module in document.get("modules", ())}
    own = tuple(_param(param) for param in document.get("params", ()))
    declared = tuple(read(DiffDeclaration, row) for row in document.get("declarations", ()))
    called = tuple(read(DiffCall, row) for row in document.get("calls", ()))
    unseen = tuple(document.get("calls_unseen", ()))
    return read(
        DiffReport,
        document,
        ok=_ok(document),
        params=own + tuple(param for module in modules.values() for param in module.params),
        norm=read(DiffNorm, norm, **causes(norm)) if norm else None,
        declarations=declared + tuple(row for module in modules.values() for row in module.declarations),
        calls=called + tuple(call for module in modules.values() for call in module.calls),
        calls_unseen=unseen + tuple(why for module in modules.values() for why in module.calls_unseen),
        table=table,
        modules=modules,
        document=document,
    )


def of_document(document: Mapping[str, Any]) -> DiffReport:
    """The report whose JSON document this is."""
    return _report(document, _text_of(_table, json.dumps(document).encode(), 0))


def diff(
    files: Path | Iterable[Path],
    reference: Path | None = None,
    html: Path | None = None,
    allow_identical: bool = False,
    threads: int = 1,
    show: bool = False,
) -> DiffReport:
    """Finds for each parameter of a dumped step how often each rank's addend was counted in its gradient.

    Args:
        files: safetensors files (audit/docs/dumps.md), or folders that hold them.
        reference: a file with the unsharded gradients of a correct run, or another dump, to compare with.
        html: a file for the report as a page.
        allow_identical: say that equal addends on several ranks are intended; otherwise parameters with such addends
            cannot be judged.
        threads: how many threads judge parameters, from 1 to 64; the result does not depend on it.
        show: show the progress on standard error.

    Returns:
        The report. Its `ok` is False if a gradient is wrong, None if one cannot be judged.

    Raises:
        InvalidError: the files are no dump, or contradict each other. The text names every file that is wrong.
        FileError: a file could not be read or written.
        ValueError: `threads` is out of its range.

    Example:
        report = addend.diff("dumped", html="map.html")
        for param in report.params:
            print(param.name, param.verdict, param.text)
    """
    if isinstance(files, (str, os.PathLike)):
        files = [files]
    with progress("diff") if show else contextlib.nullcontext(CProgress()) as reported:
        return judged(files, reported, reference, html, allow_identical, threads=threads)


def judged(
    files: Iterable[Path],
    reported: Any,
    reference: Path | None = None,
    html: Path | None = None,
    allow_identical: bool = False,
    finite: bool = False,
    threads: int = 1,
) -> DiffReport:
    """Does the work of `diff`. `reported`: the callback for progress, a CProgress; `finite`: as in
    ad_diff_options of diff.h."""
    if not 1 <= threads <= 64:
        raise ValueError(f"`threads` takes a number from 1 to 64, not {threads}")
    paths = [path_of(path) for path in files]
    given = path_of(reference).encode() if reference is not None else None
    holds, out, table = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    options = _Options(ctypes.sizeof(_Options), given, reported, None, int(allow_identical), int(finite), threads)
    _diff(texts(paths), len(paths), options, holds, out)
    text = take_text(out)
    _table(text.encode(), 0, table)
    if html is not None:
        _page(text.encode(), path_of(html).encode())
    return _report(json.loads(text), take_text(table))
