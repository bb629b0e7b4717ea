"""Numbers in a report's sentences: a difference or a factor that is reported is never rounded away."""

from __future__ import annotations


def apart(a: float, b: float) -> tuple[str, str]:
    """Two numbers that differ, with as many digits as show it, at least nine."""
    for digits in range(9, 17):
        texts = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return repr(a), repr(b)


def times(factor: float) -> str:
    """A factor other than 1 in words: "0.5 times", with as many digits as show that it is not 1, at least six."""
    text = next((text for digits in range(6, 17) if float(text := f"{factor:.{digits}g}") != 1), repr(factor))
    return f"{text} times"


def parameters(count: int) -> str:
    """A number of parameters in words."""
    return f"{count} parameter{'s' * (count != 1)}"
