"""Names of modules and parameters without the parts that wrappers add, as in the model of one process."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Iterator

from torch import nn

from addend.torch import _wrappers

_ATTRIBUTES = frozenset(("_orig_mod", "_checkpoint_wrapped_module"))  # of torch.compile and of checkpoints
_MOST = 3  # wrappers around each other that are looked for together
_TRIED = 4  # parameters whose names are looked at for one more wrapper

Edges = dict[str, frozenset[str]]  # by the path of a wrapper: its attributes that are no part of a name
_learnt: weakref.WeakKeyDictionary[nn.Module, frozenset[str]] = weakref.WeakKeyDictionary()


def edges(model: nn.Module) -> Edges:
    """The wrappers in a model: those of the table, and those that learn() found."""
    found = {}
    for path, module in model.named_modules(remove_duplicate=False):
        own = _wrappers.attributes(module) | _learnt.get(module, frozenset())
        if own:
            found[path] = own
    return found


def plain(name: str, wrappers: Edges) -> str:
    """The name, as PyTorch gives it, without the attributes of wrappers."""
    return ".".join(
        part for path, part in _steps(name) if part not in _ATTRIBUTES and part not in wrappers.get(path, ())
    )


def _steps(name: str) -> Iterator[tuple[str, str]]:
    """(the path of a module, the next part of the name) from the model on."""
    path = ""
    for part in name.split(".") if name else []:
        yield path, part
        path = f"{path}.{part}" if path else part


def learn(model: nn.Module, known: Collection[str]) -> None:
    """Finds wrappers by the names that parameters have in one process: where names are known without an attribute, and
    not with it, its module is a wrapper. The fewest such attributes are taken, and no parameter loses its name, or gets
    that of another, by them."""
    modules = dict(model.named_modules(remove_duplicate=False))
    params = {name: id(param) for name, param in model.named_parameters(remove_duplicate=False)}
    wrappers = edges(model)
    while True:
        unknown = [name for name in params if plain(name, wrappers) not in known]
        tries = ((name, more) for name in unknown[:_TRIED] for more in _tries(name, modules, wrappers))
        more = next((more for name, more in tries if _fits(name, params, known, wrappers, more)), ())
        if not more:
            return
        for path, attribute in more:
            _learnt[modules[path]] = _learnt.get(modules[path], frozenset()) | {attribute}
        wrappers = edges(model)


def _tries(name: str, modules: dict[str, nn.Module], wrappers: Edges) -> Iterator[tuple[tuple[str, str], ...]]:
    """The sets of attributes in a name that may be those of wrappers: of modules that have no parameters themselves
    and are no container; the smallest sets first."""
    may_wrap = [
        (path, part)
        for path, part in list(_steps(name))[:-1]
        if part not in _ATTRIBUTES
        and part not in wrappers.get(path, ())
        and not isinstance(modules[path], (nn.Sequential, nn.ModuleList, nn.ModuleDict))
        and not any(True for _ in modules[path].parameters(recurse=False))
    ]
    for count in range(1, _MOST + 1):
        yield from itertools.combinations(may_wrap, count)


def _fits(
    name: str, params: dict[str, int], known: Collection[str], wrappers: Edges, more: Collection[tuple[str, str]]
) -> bool:
    """Whether a parameter is known without these attributes, and every other one that was known still is."""
    every = dict(wrappers)
    for path, attribute in more:
        every[path] = every.get(path, frozenset()) | {attribute}
    if plain(name, every) not in known:
        return False
    owners: dict[str, int] = {}
    for one, param in params.items():
        before, after = plain(one, wrappers), plain(one, every)
        if before in known and after != before or owners.setdefault(after, param) != param:
            return False
    return True
