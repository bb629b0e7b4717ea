#!/usr/bin/env bash
# Tests that what the documents name exists: paths, files, functions of the laws and their tests. Every law that is
# cited is one of core/docs/laws.md, and each law there says where it is checked, what it stops and which test holds it. The
# catalogue of published bugs has thirty-seven rows, each with what tries it, and every number that is cited is one of them.
set -eu
source=$2
python3 - "$source" <<'P'
import glob, os, re, sys
os.chdir(sys.argv[1])
FOLDERS = "core audit python train programs lab cli tests script cmake docs examples recipes".split()
DOCS = "docs|core/docs|audit/docs|python/docs|train/docs|programs/docs|lab/docs" # folders of pages that comments send readers to
PAGES = sorted(glob.glob("*.md") + glob.glob("docs/*.md") + glob.glob("*/docs/*.md") + glob.glob("lab/measured/*.md") + glob.glob("*/README.md"))
wrong = []
found = dict.fromkeys("paths pages names links functions laws cases".split(), 0) # how many each pattern below finds
def complain(page, sentence): wrong.append(f"{page}: {sentence}")
def read(path): return open(path, encoding="utf-8", errors="replace").read()
files = [os.path.join(folder, name) for top in FOLDERS for folder, _, names in os.walk(top) for name in names]
names = {os.path.basename(path) for path in files}

# Every path, relative to the project's folder or the page's, or the name of a test as ctest has it. LAYER, NAME and R represent any; globs are allowed.
def exists(path):
    path = re.sub(r"\b(?:LAYER|NAME|R)\b|(?<=_)NAME\b", "*", path.rstrip("/"))
    alternatives = re.search(r"\{([^{}]*)\}", path)
    if alternatives:
        return all(exists(path.replace(alternatives[0], each, 1)) for each in alternatives[1].split(","))
    return any(map(glob.glob, (path, *(f"{top}tests/%s/{test}%s.*" % os.path.split(path) for top in ("", "*/") for test in ("", "test_")))))
def check_paths(page, folders):
    for path in set(re.findall(r"(?<![\w./*-])(?:%s)/[\w./*{},-]*[\w/*}]" % folders, read(page))):
        found["pages" if folders == DOCS else "paths"] += 1
        if not exists(path) and not exists(os.path.join(os.path.dirname(page), path)): complain(page, f"there is no {path}")
for page in files: # comments, and what is built of which file
    if page.endswith((".c", ".h", ".cmake", ".map")) and "tests/" not in page or page.startswith("script/"): check_paths(page, "core|audit|train|programs")
for page in files: # pages that comments send readers to
    if page.endswith((".c", ".h", ".py", ".sh", ".cmake", ".yaml")): check_paths(page, DOCS)
for page in PAGES:
    text = read(page)
    check_paths(page, "|".join(FOLDERS))
    for name in set(re.findall(r"`([\w-]+\.(?:c|h|js|css|cmake))`", text)):
        found["names"] += 1
        if name not in names: complain(page, f"there is no file {name}")
    for link in set(re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", text)):
        found["links"] += 1
        if not os.path.exists(os.path.join(os.path.dirname(page), link)): complain(page, f"links to {link}, which is not there")

# Every fuzzer is in SECURITY.md.
fuzzers = glob.glob("*/tests/fuzz/fuzz_*.c")
assert fuzzers, "no folder has a fuzzer"
for path in fuzzers:
    if path not in read("SECURITY.md"): complain("SECURITY.md", f"does not name {path}")

# The laws: their numbers, their parts, and every `file` (`function`, ...).
LAWS = "core/docs/laws.md"
sections = re.split(r"^## (\d+)\. ", read(LAWS), flags=re.M)[1:]
numbers = [int(number) for number in sections[::2]]
assert numbers == list(range(1, 12)), numbers
for number, text in zip(numbers, sections[1::2]):
    parts = re.split(r"^\*\*(Checked|Stops|Held by):\*\*", text, flags=re.M)
    if parts[1::2] != ["Checked", "Stops", "Held by"]: complain(LAWS, f"law {number} has the parts {parts[1::2]}")
    elif not all("`" in part for part in parts[2::2]): complain(LAWS, f"law {number} has a part that names nothing")
    for path, listed in re.findall(r"`((?:core|audit|train|tests)/[\w/.-]+)`\s+\(([^()]*)\)", text):
        for function in re.findall(r"`(\w+)`", listed):
            found["functions"] += 1
            if os.path.exists(path) and not re.search(r"^\w[^;\n]*\b%s\(" % function, read(path), re.M):
                complain(LAWS, f"law {number}: {path} has no function {function}")
for path in files + PAGES:
    if not path.endswith((".c", ".h", ".py", ".md", ".sh", ".cmake", ".yaml", ".css", ".js")): continue
    for words in re.findall(r"\b[Ll]aws?\s+(\d+(?:(?:, | and |, and )\d+)*)", read(path)):
        for number in map(int, re.findall(r"\d+", words)):
            found["laws"] += 1
            if number not in numbers: complain(path, f"cites law {number}")
# The catalogue: its rows, what each is tried by, and the mutants and cases that are cited by its numbers.
CATALOGUE = "docs/catalogue.md"
rows = {int(number): cells.split(" | ") for number, cells in re.findall(r"^\| (\d+) \| (.*) \|$", read(CATALOGUE), re.M)}
if list(rows) != list(range(1, 38)) or any(len(cells) != 4 for cells in rows.values()): complain(CATALOGUE, f"has the rows {list(rows)}")
mutants = {}
for path in files:
    if path.endswith("known_bugs.c") and "tests/" not in path:
        for name, number in re.findall(r'\.name = "([\w-]+)",\s+(?:\.catalogue = (\d+))?', read(path)): mutants[name] = int(number or 0)
for name, number in mutants.items():
    if number and f"`{name}`" not in rows[number][2]: complain(CATALOGUE, f"row {number} does not name {name}")
for number, (_, published, caught, tried) in rows.items():
    for name in re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", caught):
        if name not in mutants or mutants[name] not in (0, number): complain(CATALOGUE, f"row {number} names {name}")
    if not re.search(r"`(?:addend check recipes|[\w/]*tests)/[\w./-]+", tried): complain(CATALOGUE, f"row {number} is tried by nothing")
    for path, name in re.findall(r"`([\w/]+\.c)` \(`(\w+)`\)", tried):
        found["functions"] += 1
        if not re.search(r"^static void %s\(" % name, read(path), re.M): complain(CATALOGUE, f"row {number}: {path} has no function {name}")
    if "](https://github.com/" not in published and "no public thread" not in published: complain(CATALOGUE, f"row {number} has no reference")
for page in glob.glob("audit/docs/explain/*.md"):
    for number, name in re.findall(r"\bCase (\d+)(?:\s+\(([^)]*)\))?:", read(page)):
        found["cases"] += 1
        if int(number) not in rows or name and f"[{name}]" not in rows[int(number)][1]: complain(page, f"cites case {number}, {name}")
least = {"cases": 20, "paths": 400, "pages": 50, "names": 50, "links": 100, "functions": 50, "laws": 80}
assert all(found[what] > least[what] for what in least), found
assert not wrong, "\n".join(wrong)
P
echo "docs: all hold"
