"""The mutants that lab/mutate can make of a C or Python file. Each kind is a function in KINDS, which reads the
text without comments, strings and preprocessor lines and yields (start, end, new text). Many results do not compile."""

import collections
import itertools
import random
import re

STRING = r"\"\"\".*?\"\"\"|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
C_MASKED = re.compile(STRING + r"|//[^\n]*|/\*.*?\*/|\#(?:\\\n|[^\n])*", re.S)
PYTHON_MASKED = re.compile(STRING + r"|\#[^\n]*", re.S)
C_FUNCTION = re.compile(r"^(\w[^;{}]*?)(\w+)\([^;{}]*\) \{(?:[^\n]*\} *|.*?^\})$", re.M | re.S)
WORDS = "and|or|is not|not in|is|in"  # operators of Python
OPERATOR = re.compile(rf"(?<= )(?:[<>=!]=|<<|>>|&&|\|\||[-+*]=|//|[<>*/%+&|-]|{WORDS})(?=\s)")  # between two operands
PAIRS = (
    ("==", "!="),
    ("is", "is not"),
    ("in", "not in"),
    ("&&", "||"),
    ("and", "or"),
    ("+", "-"),
    ("*", "/"),
    ("<<", ">>"),
    ("&", "|"),
    ("+=", "-="),
)
TURNED = {old: [new] for pair in PAIRS for old, new in (pair, pair[::-1])}
TURNED.update({"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "%": ["*"], "//": ["*"]})
NO_START = r"(?!(?:else|elif|except|finally|case|default)\b)"
KEPT = NO_START + r"(?!(?:if|for|while|do|switch|try|with|def|class|return|goto|import|from|raise)\b)"
C_STATEMENT = re.compile(rf"(?:^ +|[{{)] |\belse ){KEPT}(?!\w+(?: \**|\*+ )\w+[^(]*[=;,])([\w*(][^;{{}}]*;)", re.M)
PYTHON_STATEMENT = re.compile(rf"^ +{KEPT}(\w.*)$", re.M)

Source = collections.namedtuple("Source", "text bare is_c functions")  # functions: matches of C_FUNCTION


def read_source(file, text):
    bare = (C_MASKED if file.endswith(".c") else PYTHON_MASKED).sub(lambda m: re.sub(".", '"', m[0]), text)
    return Source(text, bare, file.endswith(".c"), list(C_FUNCTION.finditer(bare)) if file.endswith(".c") else [])


def function_at(source, at):
    return next((each for each in source.functions if each.start() <= at < each.end()), None)


def arguments(text, start):
    """The spans of the arguments between commas, from after an opening bracket to its closing one."""
    marks, depth, i = [start - 1], 0, start
    while depth >= 0 and i < len(text):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        marks += [i] if depth < 0 or (depth == 0 and text[i] == ",") else []
        i += 1
    return [(before + 1, mark) for before, mark in itertools.pairwise(marks)]


def operator_turned(source):
    return ((*m.span(), new) for m in OPERATOR.finditer(source.bare) for new in TURNED.get(m[0], ()))


def constant(source):
    for found in () if source.is_c else re.finditer(r"\b(?:True|False)\b", source.bare):
        yield *found.span(), str(found[0] == "False")
    for found in re.finditer(r"(?<![\w.])\.?\d(?:(?<=[eE])[+-]|[\w.])*", source.bare):
        for new in ("+ 1", "- 1", "* 10")[: 2 if found[0] == "0" else 3]:
            yield *found.span(), f"({found[0]} {new})"


def condition(source):
    true, false = ("({}) || 1", "({}) && 0") if source.is_c else ("({}) or True", "({}) and False")
    for found in re.finditer(
        r"\b(if|while) \(" if source.is_c else r"^ *(if|elif) (?!TYPE_CHECKING)(?=.*:$)", source.bare, re.M
    ):
        start = found.end()
        end = arguments(source.bare, start)[-1][1] if source.is_c else source.bare.index(":\n", start)
        for new in [false] if found[1] == "while" else [false, true]:  # an endless loop would only cost time
            yield start, end, new.format(source.text[start:end])


def left_out(source):
    for found in (C_STATEMENT if source.is_c else PYTHON_STATEMENT).finditer(source.bare):
        yield *found.span(1), ("{}" if source.is_c else "pass") + "\n" * found[1].count("\n")


def arguments_swapped(source):
    for found in re.finditer(r"(?<!def )(?<!class )\b(?!(?:if|for|while|switch|return|sizeof)\b)\w+\(", source.bare):
        for (a, b), (c, d) in itertools.pairwise(arguments(source.bare, found.end())):
            yield a, d, source.text[c:d] + source.text[b:c] + source.text[a:b]


def early_return(source):
    for found in re.finditer(rf"(?:^( +)|\) \{{ ){NO_START}(?=\w)", source.bare, re.M):
        at, function = found.end(), function_at(source, found.start())
        returned = re.sub(r"\b(static|inline|AD_API) ", "", function[1]).strip() if function else "void"
        now = "return; " if returned == "void" else f"return ({returned}){{0}}; "
        yield at, at, now if source.is_c else f"return None\n{found[1]}"


KINDS = (operator_turned, constant, condition, left_out, arguments_swapped, early_return)


def mutants_of(file, text, wanted=None):
    """All mutants of a file as dictionaries, with the lines before and after. `wanted`: lines that may be changed."""
    source = read_source(file, text)
    for kind in KINDS:
        for start, end, new in sorted(kind(source)):
            line, function = text.count("\n", 0, start) + 1, function_at(source, start)
            first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
            before, after = text[first:last], text[first:start] + new + text[end:last]
            if before != after and (wanted is None or line in wanted):
                name, top = (function[2], text.count("\n", 0, function.start())) if function else (None, 0)
                place = {"file": file, "line": line, "function": name, "offset": line - top - 1, "start": first}
                yield {**place, "kind": kind.__name__.replace("_", " "), "before": before, "after": after}


def draw(mutants, seed):
    """The mutants in the order of trying: one of each remaining kind in turn."""
    turns = collections.defaultdict(itertools.count)
    return sorted(random.Random(seed).sample(mutants, len(mutants)), key=lambda mutant: next(turns[mutant["kind"]]))
