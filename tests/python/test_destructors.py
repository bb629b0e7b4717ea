"""Test that every public function that frees, closes or releases something takes NULL: it does nothing. The functions
are found in the headers, so none is forgotten.
"""

import ctypes
import functools
import os
import pathlib
import re
import unittest

LIBRARY = pathlib.Path(os.environ["ADDEND_LIBRARY"]).resolve()
HEADERS = sorted(pathlib.Path(__file__).resolve().parents[2].glob("*/include/addend/*.h"))
ENDS = r"^AD_API (?:AD_CHECKED )?(\w+) \*?(ad_\w+_(?:destroy|close|release|free|end|clear)|ad_release)\(([^;{]*)\);"


def destructors():
    """Yield (function, its parameters) of all public headers."""
    for header in HEADERS:
        for kind, name, parameters in re.findall(ENDS, header.read_text(), re.M):
            yield header.name, kind, name, [" ".join(one.split()) for one in parameters.split(",")]


def find(name):
    for path in (LIBRARY, LIBRARY.with_name("libaddend_train.so")):
        if path.exists() and hasattr(ctypes.CDLL(str(path)), name):
            return getattr(ctypes.CDLL(str(path)), name)
    return None


def status_of(call):
    """Return the wait status of a process that only makes the call."""
    pid = os.fork()
    if not pid:
        call()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


class Destructors(unittest.TestCase):
    def test_null_is_nothing(self):
        called = 0
        for header, kind, name, parameters in destructors():
            function = find(name)
            if function is None:
                continue  # of the trainer, which is not built
            with self.subTest(f"{header}: {name}"):
                self.assertEqual(kind, "void")
                arguments = [ctypes.c_void_p() if "*" in one else ctypes.c_size_t(0) for one in parameters]
                function.restype = None
                self.assertEqual(status_of(functools.partial(function, *arguments)), 0)
            called += 1
        self.assertGreater(called, 12)

    def test_every_destroy_is_in_the_list(self):
        found = {name for _, _, name, _ in destructors()}
        text = "\n".join(header.read_text() for header in HEADERS)
        every = set(re.findall(r"\b(ad_\w+_(?:destroy|close))\(", re.sub(r"/\*.*?\*/", "", text, flags=re.S)))
        self.assertEqual(every - found, set())


if __name__ == "__main__":
    unittest.main()
