#!/usr/bin/env python3
"""page_texts.py FILE: the texts of a page as chromium dumped it, one line for each, in which <b> and <code> do not end a
line; then a line `name: value` for each attribute data-NAME of the page's main element."""

import html.parser
import pathlib
import sys


class Texts(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.line, self.lines = "", []

    def handle_starttag(self, tag, attributes):
        self.end_line_at(tag)
        if tag == "main":
            self.lines += [f"{name.removeprefix('data-')}: {value}" for name, value in attributes if name.startswith("data-")]

    def handle_endtag(self, tag):
        self.end_line_at(tag)

    def handle_data(self, data):
        if self.cdata_elem is None:  # no script
            self.line += data

    def end_line_at(self, tag):
        if tag in ("b", "code"):
            return
        if self.line.strip():
            self.lines.append(" ".join(self.line.split()))
        self.line = ""


texts = Texts()
texts.feed(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
texts.close()
texts.end_line_at("")
print("\n".join(texts.lines))
