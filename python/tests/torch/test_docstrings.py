"""Test that docstrings of the package's public functions have the sections that a reader looks for, and name every
argument.
"""

import inspect
import re
import unittest

import addend
import addend.convert
import addend.torch
import addend.torch.testing
import addend.types

MODULES = {
    addend: addend.__all__,
    addend.torch: addend.torch.__all__,
    addend.convert: ["megatron", "sglang"],
    addend.torch.testing: ["ranks"],
    addend.types: ["annotate", "from_spmd", "partition_spec", "to_spmd"],
}
CONTEXTS = [addend.torch.watch, addend.torch.dump, addend.torch.mutate]  # classes that are called like functions
CANNOT_FAIL = {"transitions"}


def functions():
    """Yield every public function."""
    for module, names in MODULES.items():
        for name in names:
            value = getattr(module, name)
            if inspect.isfunction(value) or value in CONTEXTS:
                yield value


def arguments_of(function):
    """Return the names of what a caller may pass; those of a TypedDict where it is passed as keywords."""
    found = []
    for name, argument in inspect.signature(function).parameters.items():
        if name != "misplaced":
            found.append({argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "") + name)
    if function is addend.torch.watch:
        found = [*found[:-1], *addend.torch.WatchOptions.__annotations__]
    return found


def sections_of(function):
    """Return the text of each section of the docstring."""
    parts = re.split(r"^(Args|Returns|Raises|Example):$", inspect.getdoc(function), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


class Docstrings(unittest.TestCase):
    def test_every_argument_is_explained(self):
        for function in functions():
            with self.subTest(function=function.__qualname__):
                explained = re.findall(r"^    (\*{0,2}\w+): \S", sections_of(function).get("Args", ""), re.MULTILINE)
                self.assertEqual(sorted(explained), sorted(arguments_of(function)))

    def test_what_comes_back_and_what_is_raised_are_said_and_there_is_an_example(self):
        count = 0
        for function in functions():
            with self.subTest(function=function.__qualname__):
                sections, count = sections_of(function), count + 1
                is_silent = inspect.isfunction(function) and inspect.signature(function).return_annotation == "None"
                wanted = {"Example", *([] if is_silent else ["Returns"])}
                wanted |= set() if function.__name__ in CANNOT_FAIL else {"Raises"}
                self.assertEqual(wanted - set(sections), set())
                self.assertTrue(all(text.strip() for text in sections.values()))
        self.assertGreater(count, 15)


if __name__ == "__main__":
    unittest.main()
