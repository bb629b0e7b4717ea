"""What a matrix is made of: layouts, cells, and the outcome of each."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Protocol, Union

MATCHES, WRONG, RUNS = "matches", "wrong", "runs"
CANNOT_TELL, CANNOT_RUN, NOT_TRIED = "cannot tell", "cannot run", "not tried"
Wanted = Union[str, Mapping[str, int]]  # a layout as the user asks for it: by its name, or by sizes of axes
VERDICTS = (MATCHES, WRONG, RUNS, CANNOT_TELL, CANNOT_RUN, NOT_TRIED)


def starred(name: str) -> str:
    """The class of a module's or parameter's name: layers' numbers become stars."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)


def shortened(text: str, width: int) -> str:
    """A text of at most so many characters; a longer one is cut after a word, and "..." follows."""
    if len(text) <= width:
        return text
    kept = text[: width - 2].rpartition(" ")[0] or text[: width - 3]
    return kept.rstrip(",;: ") + "..."


def without_rank(why: str) -> str:
    """A reason without the rank that was the first to give it."""
    return re.sub(r"^rank \d+: ", "", why)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How ranks share a model."""

    mesh: Mapping[str, int]  # the axes of ranks, as `check` has them
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what else the source asks for, as ep_size
    variant: str = ""  # "frozen", "lora", "no_sync", "bf16": what else differs from the plain job

    @property
    def name(self) -> str:
        """As the table has it: "fsdp=2 ep=2", "tp=2, frozen"."""
        sizes = " ".join(f"{name}={size}" for name, size in {**self.mesh, **self.options}.items())
        return ", ".join(filter(None, (sizes, self.variant)))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        size = 1
        for axis in self.mesh.values():
            size *= axis
        return size

    def fits(self, wanted: Wanted) -> bool:
        """Whether the user asks for this layout: by its sizes, by what the table calls it, or by its variant."""
        if isinstance(wanted, str):
            return wanted in (self.name, self.variant)
        return {**self.mesh, **self.options} == dict(wanted)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One model under one layout, with a number of microbatches in each step."""

    model: str
    layout: Layout
    microbatches: int
    even: bool = False  # the ranks that share the rows of a small model's vocabulary divide their number

    @property
    def name(self) -> str:
        """As progress and reproductions name it."""
        return f"{self.model}, {self.layout.name}, {self.microbatches} microbatch{'es' * (self.microbatches > 1)}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """An entry of a plan by which a framework makes a model parallel."""

    name: str  # plan, modules or parameters, and style: "tp `model.layers.*.mlp.up_proj`: colwise"
    leave_out: Callable[[], None]  # makes the framework work without it, for as long as the process lives


NOTICED, SURVIVED, NO_EFFECT = "noticed", "survived", "without effect"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A mutant of a cell that matches."""

    kind: str  # rule, hook or collective
    name: str
    how: str  # left out, run twice, ...
    result: str  # NOTICED: it matches no more; NO_EFFECT: nothing changes; SURVIVED: what changes is not noticed
    by: str = ""  # the first parameter that shows it, or the error; of a survivor, what changes
    known: bool = False  # whether a file says that it is known and accepted


@dataclasses.dataclass(frozen=True)
class Job:
    """What a source says of a cell."""

    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)  # of `check`
    work: Callable[[int, str], None] | None = (
        None  # work(rank, folder): what ranks do instead, only to see that it runs
    )
    ranks: int = 1  # that do `work`
    missing: tuple[str, ...] = ()  # kinds of layers and parameters of the full model that the small one does not have
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what a reproduction is written from
    rules: Callable[[], Sequence[Rule]] = tuple  # of the plans that the framework applies in this cell


class Source(Protocol):
    """Where models and layouts come from: a framework's declarations, or a project's own functions."""

    models: Sequence[str]

    def layouts(self, model: str) -> Sequence[Layout]:
        """The layouts that the model declares; raises an error that says why there are none."""

    def counts(self, layout: Layout, asked: Sequence[int]) -> Sequence[int]:
        """Those of the numbers of microbatches that the layout can have, or its own."""

    def layout(self, wanted: Wanted) -> Layout | None:
        """The layout that the user asks for and that a model does not declare; None if others of the source's models
        do. Raises InvalidError, which says what there is."""

    def note(self, asked: Sequence[Wanted] | None) -> str:
        """One line that says which layouts, of those asked for by their sizes or of all, are left out because a package
        is not installed, and how to have it; "" if none is. Called after `layouts`."""

    def job(self, cell: Cell, folder: str) -> Job:
        """The job of a cell; called in the cell's own process. `folder` is the cell's own, and is deleted with it."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a cell."""

    cell: Cell
    verdict: str
    why: str = ""  # one line: why it cannot run, or what is wrong
    report: dict[str, Any] | None = None  # the document of `check`
    text: str = ""  # the report as a table
    missing: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    mutants: tuple[Mutant, ...] = ()
    not_mutated: str = ""  # why no mutants were tried, or not all
    not_mutated_known: bool = False  # whether a file says that this is known and accepted

    @property
    def coverage(self) -> str:
        """The mutants killed: "rules 12 of 12, hooks 8 of 9, collectives 40 of 40; without effect: 3"; the last are in
        neither number. "" if no mutant was tried."""
        words = []
        for kind in ("rule", "hook", "collective"):
            felt = [one for one in self.mutants if one.kind == kind and one.result in (NOTICED, SURVIVED)]
            if felt:
                words.append(f"{kind}s {sum(one.result == NOTICED for one in felt)} of {len(felt)}")
        rest = [
            f"{result}: {count}"
            for result in (NO_EFFECT, NOT_TRIED)
            if (count := sum(one.result == result for one in self.mutants))
        ]
        return "; ".join([", ".join(words)] * bool(words) + rest)

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """The mutants that change a value and not the verdict."""
        return tuple(one for one in self.mutants if one.result == SURVIVED)

    @property
    def new_survivors(self) -> tuple[Mutant, ...]:
        """The survivors that are not known."""
        return tuple(one for one in self.survivors if not one.known)

    @property
    def is_untested(self) -> bool:
        """Whether mutants that should have been tried were not, and this is not known."""
        return self.verdict == MATCHES and bool(self.not_mutated) and not self.not_mutated_known

    @property
    def unobserved(self) -> tuple[str, ...]:
        """Trained parameters that no gradient reached: nothing is known of them."""
        return tuple(self.report["unreached"]) if self.report else ()
