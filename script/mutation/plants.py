"""What script/mutate can plant in a C or Python file, as (start, end, new text, kind). It reads tokens, so that
comments, strings and preprocessor lines are left alone. Much of it does not compile, as the compiler will say."""

import collections
import functools
import itertools
import random
import re

C_TOKEN = re.compile(
    r"(?P<blank>\s+|//[^\n]*|/\*.*?\*/|\#(?:\\\n|[^\n])*)|(?P<string>\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')"
    r"|(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)|(?P<word>\w+)"
    r"|(?P<mark><<=|>>=|->|\+\+|--|<<|>>|[<>=!+\-*/%&|^]=|&&|\|\||.)",
    re.S,
)
PYTHON_TOKEN = re.compile(
    r"(?P<blank>\s+|\#[^\n]*)|(?P<string>\w*(?:\"\"\".*?\"\"\"|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'))"
    r"|(?P<number>\d[\w.]*(?:(?<=e)-\d+)?)|(?P<mark>\b(?:is not|not in|is|in|and|or)\b|//|\*\*|<<|>>|[<>=!+\-*/%&|^:]=)"
    r"|(?P<word>\w+)|(?P<other>.)",
    re.S,
)
# fmt: off
TURNED = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
          "&&": ("||",), "||": ("&&",), "and": ("or",), "or": ("and",), "is": ("is not",), "is not": ("is",),
          "in": ("not in",), "not in": ("in",)}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "//": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
              "+=": "=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "="}
# fmt: on
EXCHANGED = {*TURNED, *ARITHMETIC}
OPENING = set("if for while do switch else case default try with def class elif except finally @".split()) | {""}
NO_CALL = OPENING | {"sizeof", "return", "_Static_assert"}
NOT_LEFT_OUT = OPENING | set("return goto const static struct import from raise global nonlocal pass".split())
DECLARATION = re.compile(r"\w+( \**|\*+ )\w+( \w+)*\s*[=;,\[]")

Token = collections.namedtuple("Token", "kind text start end")
# before, after: the whole lines; start: where in the file; function: its first and last line, None outside of one.
Mutant = collections.namedtuple("Mutant", "file line column kind old new before after start function")


class Source:
    """A file's tokens, and what can be planted in it as (start, end, new text, kind)."""

    def __init__(self, text, token):
        self.text = text
        found = (Token(m.lastgroup, m.group(), m.start(), m.end()) for m in token.finditer(text))
        self.tokens, self.partner, opened = [t for t in found if t.kind != "blank"], {}, []
        for i, each in enumerate(self.tokens):
            if each.kind != "string" and each.text in "([{":
                opened.append(i)
            elif each.kind != "string" and each.text in ")]}" and opened:
                self.partner[i], self.partner[opened[-1]] = opened[-1], i
                opened.pop()

    def functions(self):
        return []

    def is_call(self, i):
        return not {self.tokens[i].text, self.tokens[i - 1].text} & NO_CALL

    def mutations(self):
        for i, (token, after) in enumerate(itertools.pairwise(self.tokens)):
            if token.kind == "number":
                yield from ((token.start, token.end, new, "constant") for new in constants(token.text))
            elif token.text in EXCHANGED and self.text[token.start - 1] == " " and self.text[token.end] in " \n":
                yield from ((token.start, token.end, new, "comparison turned") for new in TURNED.get(token.text, ()))
                if token.text in ARITHMETIC:
                    yield token.start, token.end, ARITHMETIC[token.text], "arithmetic operator"
            elif token.kind == "word" and after.text == "(" and self.is_call(i):
                yield from self.swapped(i + 1, self.partner[i + 1])
        yield from self.conditions()
        yield from self.statements()

    def swapped(self, opening, closing):
        spans, first, i = [], opening + 1, opening + 1
        while i <= closing and closing > opening + 1:
            if self.tokens[i].text == "," or i == closing:
                spans.append((self.tokens[first].start, self.tokens[i - 1].end))
                first = i + 1
            i = max(i, self.partner.get(i, i) if i != closing else i) + 1
        for (a, b), (c, d) in itertools.pairwise(spans):
            if self.text[a:b] != self.text[c:d] and not (re.match(r"\w+=", self.text[a:b]) and "=" in self.text[c:d]):
                yield a, d, self.text[c:d] + self.text[b:c] + self.text[a:b], "argument swapped with its neighbour"

    def left_out(self, i, last, instead):
        start, end = self.tokens[i].start, self.tokens[last].end
        if self.tokens[i].text not in NOT_LEFT_OUT and not DECLARATION.match(self.text[start:end]):
            yield start, end, instead + "\n" * self.text.count("\n", start, end), "statement left out"


class CSource(Source):
    """Of C, as clang-format lays it out: an operator between two operands stands between blanks."""

    @functools.cached_property
    def bodies(self):
        """The tokens that open and close each function's body, and the type it returns."""
        first, i, found = 0, 0, []
        while i < len(self.tokens):
            if self.tokens[i].text == "{" and i in self.partner:
                if self.tokens[i - 1].text == ")":
                    words = [t.text for t in self.tokens[first:i]]
                    kept = [w for w in words[: words.index("(") - 1] if w not in ("static", "inline", "AD_API")]
                    found.append((i, self.partner[i], " ".join(kept)))
                    first = self.partner[i] + 1
                i = self.partner[i]
            elif self.tokens[i].text == ";":
                first = i + 1
            i += 1
        return found

    def functions(self):
        return [tuple(self.text.count("\n", 0, self.tokens[i].start) + 1 for i in body[:2]) for body in self.bodies]

    def is_call(self, i):
        return self.tokens[i].text not in NO_CALL and any(start < i < end for start, end, _ in self.bodies)

    def conditions(self):
        for i, token in enumerate(self.tokens[:-1]):
            if token.text in ("if", "while") and token.kind == "word" and self.tokens[i + 1].text == "(":
                start, end = self.tokens[i + 1].start, self.tokens[self.partner[i + 1]].end
                yield start, end, f"({self.text[start:end]} && 0)", "condition always false"
                if token.text == "if":
                    yield start, end, f"({self.text[start:end]} || 1)", "condition always true"

    def last_of(self, i):
        """The semicolon of a statement that starts with token i; None if it is an initialiser's value."""
        while i < len(self.tokens) and self.tokens[i].text not in (";", ")", "]", "}"):
            i = self.partner.get(i, i) + 1
        return i if i < len(self.tokens) and self.tokens[i].text == ";" else None

    def statements(self):
        for opening, closing, returned in self.bodies:
            early, depth = "return; " if returned == "void" else f"return ({returned}){{0}}; ", 0
            for i in range(opening + 1, closing):
                before, token = self.tokens[i - 1], self.tokens[i]
                depth += (before.text in ("(", "[")) - (before.text in (")", "]"))
                control = self.tokens[self.partner[i - 1] - 1].text if before.text == ")" else ""
                fresh = before.text in (";", "{", "}")
                starts = fresh or before.text == "else" or control in ("if", "for", "while")
                last = self.last_of(i) if token.text not in OPENING else i
                if depth or not starts or last is None or token.kind == "mark" and token.text in "{};":
                    continue
                if fresh and token.text not in ("else", "while", "case", "default"):
                    yield token.start, token.start, early, "early return"
                yield from self.left_out(i, last, "{}")


class PythonSource(Source):
    """Of Python: a statement is a logical line."""

    @functools.cached_property
    def lines(self):
        """The first and last token of each."""
        outside, end, starts = 0, 0, []
        for i, token in enumerate(self.tokens):
            if i >= outside and (i == 0 or "\n" in self.text[end : token.start]):
                starts.append(i)
            outside, end = max(outside, self.partner.get(i, 0)), token.end
        return [(i, after - 1) for i, after in itertools.pairwise([*starts, len(self.tokens)])]

    def conditions(self):
        for first, last in self.lines:
            if self.tokens[first].text in ("if", "elif") and self.tokens[last].text == ":":
                start, end = self.tokens[first + 1].start, self.tokens[last - 1].end
                for word, new in (("true", "or True"), ("false", "and False")):
                    yield start, end, f"(({self.text[start:end]}) {new})", f"condition always {word}"

    def statements(self):
        for first, last in self.lines:
            token = self.tokens[first]
            indent = self.text[self.text.rfind("\n", 0, token.start) + 1 : token.start]
            if indent and token.kind != "string" and token.text not in ("else", "elif", "except", "finally"):
                yield token.start, token.start, f"return None\n{indent}", "early return"
                yield from self.left_out(first, last, "pass")


def constants(text):
    if re.fullmatch(r"\d+", text):
        return sorted({str(int(text) + 1), str(abs(int(text) - 1)), str(int(text) * 10 or 1)})
    return [f"({text} * 10)", f"({text} + 1)"]


def made(source, file, function, edit):
    """A mutant of an edit (start, end, new text, kind), with the whole lines that it touches."""
    start, end, new, kind = edit
    text = source.text
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    before, after = text[first:last], text[first:start] + new + text[end:last]
    line = text.count("\n", 0, start) + 1
    return Mutant(file, line, start - first, kind, text[start:end], new, before, after, start, function)


def mutants_of(file, text, wanted=None):
    """All mutants of a file, line by line; wanted: the lines that may have one, None for all."""
    source = CSource(text, C_TOKEN) if file.endswith(".c") else PythonSource(text, PYTHON_TOKEN)
    functions, found = source.functions(), collections.defaultdict(set)
    for edit in source.mutations():
        line = text.count("\n", 0, edit[0]) + 1
        if wanted is None or line in wanted:
            function = next((each for each in functions if each[0] <= line <= each[1]), None)
            found[line].add(made(source, file, function, edit))
    return [sorted(found[line], key=str) for line in sorted(found)]


def draw(rows, seed):
    """Mutants in the order in which they are tried: one of each line, lines in any order, then another of each. A kind
    that has many in a line takes no more turns than one that has few; an early return, which nearly every statement can
    have before it, comes last in three lines of four."""
    rng = random.Random(seed)
    for row in [*rows, rows]:
        rng.shuffle(row)
    for row in rows:
        seen = collections.Counter()
        row.sort(key=lambda mutant: (seen.update([mutant.kind]), seen[mutant.kind])[1])
        if row[0].kind == "early return" and rng.random() < 0.75:
            row[:] = [*row[1:], None, row[0]]
    return [mutant for turn in itertools.zip_longest(*rows) for mutant in turn if mutant]
