"""The report of `check`, as an object, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import addend
from addend._cause import Cause
from addend._verdict import CANNOT_TELL, DOES_NOT_MATCH, MATCHES, NOT_CHECKED, Verdict
from addend.torch._checks import _words

# what random numbers the ranks draw in a step: those of one process, or others, which constants may replace
SAME, OTHERS, CONSTANTS = "same", "others", "constants"


@dataclasses.dataclass(frozen=True)
class Param:
    """The comparison of one parameter's gradient (and its values after optimizer steps) with one process's."""

    name: str
    ok: bool | None  # None: it cannot be judged
    error: float | None = None  # the largest difference, divided by the largest element in one process
    text: str = ""
    cause: Cause | None = None
    possible_causes: tuple[Cause, ...] = ()


@dataclasses.dataclass(frozen=True)
class Begins:
    """Where the first error arises."""

    module: str  # the module's name without wrappers; "": the whole model
    place: str  # loaded, forward, loss, backward, reduction or optimizer
    text: str
    axes: tuple[str, ...] = ()
    factor: float | None = None
    where: str = ""  # file:line of the module's forward
    collectives: tuple[str, ...] = ()  # collectives inside the module: phase, operation, axes, file:line
    calls: tuple[str, ...] = ()  # calls (autograd Functions, conversions, collectives) one of which is wrong
    step: int | None = None  # of the optimizer, counted from 1
    param: str = ""  # the parameter or buffer whose values are wrong before the first step
    readings: tuple[str, ...] = ()  # "missing sum", "lost gradient": what may be the matter with addends, if any


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A mutant: a mistake in a collective of the backward. `noticed`: a parameter that shows it; "": it survived."""

    collective: str
    axes: str
    number: int
    operator: str  # left out, doubled, averaged
    noticed: str = ""
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Typecheck:
    """What spmd_types' type checker says of the job's first step."""

    ok: bool | None  # None: something has no type, so that types do not tell; or the step could not be checked
    text: str = ""  # why it is not True, in the checker's words
    where: str = ""  # file:line of the job's call
    checked: bool = True  # False: the ranks' further step failed for another reason, which `text` has


@dataclasses.dataclass(frozen=True)
class MatchReport:
    """Whether the ranks compute what one process does. str() gives a table. `ok` is None if it cannot be judged."""

    ok: bool | None
    world: int
    mesh: str
    loss: float | None  # of all ranks together
    loss_alone: float | None
    bound: float
    params: tuple[Param, ...]
    begins: Begins | None = None
    unreached: tuple[str, ...] = ()  # trained parameters whose gradient is none or zero everywhere: not judged
    factor: float | None = None  # all gradients are this many times those of one process
    causes: tuple[str, ...] = ()  # what may have made the factor
    tensors: dict[str, str] = dataclasses.field(default_factory=dict)  # by module: what its outputs are
    mutants: tuple[Mutant, ...] = ()
    messages: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()  # those of the messages that say why `ok` is not True, besides parameters
    diff: addend.DiffReport | None = None  # how often addends were counted in wrong sums
    drawn: str = ""  # in the step: SAME, OTHERS or CONSTANTS; "": no random numbers
    typecheck: Typecheck | None = None  # None: it was not asked for
    seconds: float = 0.0

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        """Mutants that the comparison did not notice."""
        return tuple(mutants for mutants in self.mutants if not mutants.noticed)

    def __getitem__(self, name: str) -> Param:
        for param in self.params:
            if param.name == name:
                return param
        raise KeyError(name)

    def __str__(self) -> str:
        return table(self)

    @property
    def document(self) -> dict[str, Any]:
        """The report as `addend torch-check --json` prints it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "diff"}
        return {
            "format": 1,
            **{key: _plain(value) for key, value in fields.items()},
            "survivors": len(self.survivors),
            "diff": dict(self.diff.document) if self.diff else None,
        }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


_WORDS = {True: "ok ", False: "BAD", None: "?  "}


def _head(report: MatchReport) -> str:
    ranks = "1 rank" if report.world == 1 else f"{report.world} ranks"
    return f"{ranks}, mesh {report.mesh}, against one process; f64, within {report.bound:g} of each largest element"


def _factor(report: MatchReport) -> str:
    """The factor of all gradients; its causes are in the text on where the error begins, if that has a factor."""
    causes = report.causes if report.begins is None or report.begins.factor is None else ()
    words = f"; possible cause{'s' * (len(causes) > 1)}: {'; '.join(causes)}" if causes else ""
    return f"all gradients are {_words.times(report.factor or 0.0)} those of one process{words}"


def _params(report: MatchReport) -> str:
    right = [param for param in report.params if param.ok]
    lines = []
    if right:
        worst = max(param.error or 0.0 for param in right)
        lines.append(
            f"  ok   {_words.parameters(len(right))}: the gradients are those of one process (worst {worst:.1e})"
        )
    rest = [param for param in report.params if not param.ok and param.name not in report.unreached]
    width = max((len(param.name) for param in rest), default=0)
    lines += [f"  {_WORDS[param.ok]}  {param.name:<{width}}  {param.text}" for param in rest]
    if report.unreached:
        names = ", ".join(report.unreached[:3]) + ", ..." * (len(report.unreached) > 3)
        count = _words.parameters(len(report.unreached))
        lines.append(f"  -    no gradient reached {count}, in one process or on a rank: {names}")
    return "\n".join(lines)


def _begins(begins: Begins) -> str:
    what = f"`{begins.module}`" if begins.module else "the model itself"
    lines = [f"begins at {what}, in its {begins.place}: {begins.text}"]
    if begins.place == "loss":
        lines = [f"begins {'after the model' if begins.module else 'at the loss'}: {begins.text}"]
    if begins.place == "optimizer":
        lines = [f"begins: the optimizer, step {begins.step}: {begins.text}"]
    if begins.place == "reduction":
        lines = [f"begins where the gradient of {what} is summed: {begins.text}"]
    if begins.place == "loaded":
        lines = [f"begins in `{begins.param}`, before the first step: {begins.text}"]
    if begins.where:
        lines.append(f"  {begins.where}")
    if len(begins.calls) == 1:
        lines.append(f"  in the call of {begins.calls[0]}")
    elif begins.calls:
        lines.append("  in one of these calls, or in what is between them:")
        lines += [f"    {call}" for call in begins.calls]
    return "\n".join(lines + [f"  inside it: {call}" for call in begins.collectives])


def _mutants(report: MatchReport) -> str:
    killed = len(report.mutants) - len(report.survivors)
    those = (
        "collectives and sends" if any(mutants.collective == "send" for mutants in report.mutants) else "collectives"
    )
    count = f"{len(report.mutants)} mutant{'s' * (len(report.mutants) != 1)}"
    lines = [f"{count} of the backward's {those}: {killed} killed, {len(report.survivors)} survived"]
    for mutants in report.survivors:
        lines.append(f"  SURVIVED  {mutants.collective} {mutants.number} over {mutants.axes} {mutants.operator}")
        lines[-1] += f" ({mutants.where})" if mutants.where else ""
    return "\n".join(lines)


_TYPES = {True: "the step passes", False: "the step is refused", None: "cannot tell, for something has no type"}
_UNCHECKED = "the types could not be checked, for the step under the type checker failed otherwise"
_NUMBERS = {True: "match one process", False: "do not match one process", None: "do not tell"}


def _by_types(found: Typecheck) -> str:
    return _TYPES[found.ok] if found.checked else _UNCHECKED


def failure(report: MatchReport) -> str:
    """What a failing test says first of a report that types are part of: which of the two failed. "": they are not."""
    if report.typecheck is None:
        return ""
    survivors = f", but {len(report.survivors)} mutants survived" if report.survivors else ""
    return f"numbers {_NUMBERS[report.ok]}{survivors}; by types: {_by_types(report.typecheck)}"


def _typecheck(found: Typecheck) -> str:
    lines = [f"by types (spmd_types): {_by_types(found)}", f"{found.text}" * bool(found.text), found.where]
    return "\n  ".join(line for line in lines if line)


def _ended(report: MatchReport) -> tuple[Verdict, str]:
    """The verdict, and what it is about."""
    count = len(report.params)
    failed = sum(param.ok is False for param in report.params)
    unknown = sum(param.ok is None for param in report.params) - len(report.unreached)
    right = sum(param.ok is True for param in report.params)
    if report.ok and report.survivors:
        mutants = f"{len(report.survivors)} mutant{'s' * (len(report.survivors) > 1)}"
        match = f"{_words.parameters(right)} match{'es' * (right == 1)}"
        return CANNOT_TELL, f": {match} one process, but {mutants} survived"
    if report.ok and report.typecheck is not None and report.typecheck.ok is False:
        match = f"{_words.parameters(right)} match{'es' * (right == 1)}"
        return CANNOT_TELL, f": {match} one process, but its types are refused"
    if report.ok:
        worst = max((param.error or 0.0 for param in report.params), default=0.0)
        return MATCHES, f" one process (worst {worst:.1e}): {_words.parameters(right)}"
    if report.ok is None and unknown:
        return CANNOT_TELL, f": {unknown} of {_words.parameters(count)}"
    if report.ok is None and any(param.ok for param in report.params):
        return CANNOT_TELL, ": the loss or the norm"
    if report.ok is None:
        return NOT_CHECKED, ": no gradient reached any parameter"
    if failed:
        return DOES_NOT_MATCH, f" one process: {failed} of {_words.parameters(count)}"
    return DOES_NOT_MATCH, " one process: the parameters match, but not the loss, the norm or the names"


def status_of(report: MatchReport) -> int:
    """The exit status of `addend torch-check`."""
    return _ended(report)[0].status


def table(report: MatchReport) -> str:
    """The report as the table that the command prints; its first line and its last are the verdict."""
    verdict, about = _ended(report)
    parts = [verdict.words + about, _head(report), _params(report)]
    if report.factor is not None:
        parts.append(_factor(report))
    if report.begins:
        parts.append(_begins(report.begins))
    if report.mutants:
        parts.append(_mutants(report))
    if report.typecheck is not None:
        parts.append(_typecheck(report.typecheck))
    parts += ["\n".join(report.messages)] * bool(report.messages)
    return "\n\n".join([*parts, parts[0]])
