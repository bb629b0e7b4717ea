#!/usr/bin/env bash
# Tests that the mistakes of core/docs/laws.md are stopped with the messages printed there. These may differ: line numbers,
# ratios, which rank is the first to report, and which ranks had arrived when two calls did not match.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
for recipe in $(sed -n 's/^\(recipes\/[a-z0-9-]*\.yaml\): .*/\1/p' "$source/core/docs/laws.md" | sort -u); do
  name=$(basename "$recipe")
  "$addend" check "$source/$recipe" --mutate --all --out "$name.json" >"$name.txt" 2>progress || {
    cat progress "$name.txt" >&2
    echo "FAILED: addend check $recipe --mutate" >&2
    exit 1
  }
done
python3 - "$source/core/docs/laws.md" <<'P'
import json, re, sys

def plain(text):
    """One line without what differs between builds and runs: numbers of lines, ratios, the first rank, the way to the sources."""
    text = re.sub(r"(?:\.\./|/[\w./-]*/)(?=(?:core|audit|train|programs)/)", "", " ".join(text.split()))
    text = re.sub(r"(?<=\.c:)\d+|(?<=ratio )[-0-9.e+]+|^rank \d+: ", "", text)
    return without_late_ranks(text) if text.startswith("collectives do not match") else text

def without_late_ranks(text):
    """What is called, without who calls it: ranks that had not yet come when the mismatch was found are not among them."""
    calls = re.sub(r"\branks? [\d,]+ calls? |\(its call #\d+\)", "", text).split("; ")
    return "; ".join(sorted(calls))

laws = open(sys.argv[1]).read()
examples = re.findall(r"```text\n(recipes/([\w-]+\.yaml)): ([^\n]+)\n(.*?)```", laws, re.S)
assert len(examples) >= 11 and len(examples) == laws.count("```text"), len(examples)
wrong = []
for _, recipe, name, words in examples:
    printed = [plain(line) for line in open(recipe + ".txt")]
    said = [plain(each["message"] or "") for each in json.load(open(recipe + ".json"))["mutants"] if plain(each["name"]) == plain(name)]
    if plain(words) not in said + printed:
        wrong.append(f"core/docs/laws.md: {recipe}: {name}: " + (f"it is printed now: {said}\nnot: {words}" if said else "is not tried"))
assert not wrong, "\n".join(wrong)
P
echo "laws: all hold"
