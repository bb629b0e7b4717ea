#!/usr/bin/env bash
# Tests that the manual page has every command, every long option of each, and every environment variable that users may
# set, and no option that does not exist; that README's table has every command; and that groff reads the page without a
# warning.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
"$addend" --help >all
commands=$(sed -n 's/^  \([a-z][a-z-]*\)  *[^ ].*/\1/p' all)
[ "$(wc -w <<<"$commands")" -ge 7 ] || { echo "FAILED: help names the commands: $commands" >&2; exit 1; }
for command in $commands; do
  "$addend" $command --help >"$command.help"
  [ "$("$addend" $command --version)" = "$("$addend" --version)" ] || { echo "FAILED: $command says its version" >&2; exit 1; }
done
grep -q -- --version all || { echo "FAILED: help names --version" >&2; exit 1; }
! grep -n "(null)" all ./*.help || { echo "FAILED: help prints what is not there" >&2; exit 1; }
json=
for command in $commands; do
  grep -q "^| \`addend $command[ \`]" "$source/README.md" || { echo "FAILED: README's table has no $command" >&2; exit 1; }
  ! grep -q -e --json "$command.help" || json="$json $command"
done
said=$(grep -o '`--json`[^:]*:' "$source/README.md" | grep -o '`[a-z][a-z-]*`' | tr -d '`' | sort | xargs)
[ "$said" = "$(xargs -n 1 <<<"$json" | sort | xargs)" ] || { echo "FAILED: README names who takes --json: $json, not $said" >&2; exit 1; }
if command -v groff >/dev/null; then
  groff -ww -man -Tutf8 -z "$source/docs/addend.1" 2>warnings || true
  [ ! -s warnings ] || { cat warnings >&2; echo "FAILED: the manual page is read without a warning" >&2; exit 1; }
else
  echo "manual: SKIPPED: groff is not installed, so it did not read the page"
fi
python3 - "$source" <<'P'
import glob, re, sys
page = open(sys.argv[1] + "/docs/addend.1").read()
options = page.split("\n.SH OPTIONS\n")[1].split("\n.SH ")[0]
common, *parts = re.split(r"\n\.SS ([\w-]+)\n", options.replace("SS torch\\-", "SS torch-"))
sections = dict(zip(parts[::2], parts[1::2]))
def named(text): return {name.replace("\\-", "-") for name in re.findall(r"\\-\\-([a-z][a-z\\-]*)", text)}
missing, known = [], {"help"} | set(re.findall(r"`addend --([a-z-]+)", open("all").read()))
for path in sorted(glob.glob("*.help")):
    command = path.split(".")[0]
    assert re.search(r'"?%s ?' % command, page.split("\n.SH COMMANDS\n")[1].split("\n.SH ")[0]), command
    for short, name in re.findall(r"^ +(-\S, +)?--([a-z-]+)", open(path).read(), re.M):
        if name in ("usage", "help"): continue
        known.add(name)
        letter_alone = command == "run" and name == "ranks" and r"\-n" in sections["run"]
        if name not in named(common) | named(sections.get(command, "")) and not letter_alone:
            missing.append(f"addend {command} --{name}")
assert not missing, missing
heads = "\n".join(line for line in options.splitlines() if line.startswith(".B"))
assert named(heads) <= known, named(heads) - known
variables = set()
for path in [path for folder in ("core", "audit", "train", "cli", "bench") for path in glob.glob(f"{sys.argv[1]}/{folder}/**/*.c", recursive=True) if "/tests/" not in path]:
    variables |= set(re.findall(r'getenv\("(ADDEND_\w+)"\)', open(path).read()))
own = {"ADDEND_SHM_FD", "ADDEND_PEER_ERRORS"}  # what addend passes to the processes that it starts
assert len(variables) > 5, variables
missing = [name for name in sorted(variables - own) if name not in page]
assert not missing, missing

# Every mutant that is tried: the operators of derived ones, and the known bugs by name.
mutants = page.split("\n.SH MUTANTS\n")[1].split("\n.SH ")[0].replace("\\-", "-")
derived = re.findall(r'X\([A-Z_]+, *"(\w+)"', open(sys.argv[1] + "/train/check/mutation.h").read())
known = []
mistakes = [path for folder in ("core", "train") for path in glob.glob(f"{sys.argv[1]}/{folder}/**/*known_bugs.c", recursive=True) if "/tests/" not in path]
for path in mistakes: known += re.findall(r'\.name = "([a-z0-9-]+)"', open(path).read())
missing = [name for name in derived + known if f"\n.B {name}\n" not in mutants]
assert len(derived) >= 9 and len(known) > 20 and not missing, (len(derived), len(known), missing)

# How long ranks are waited for, as the program has it.
signals = page.split("\n.SH SIGNALS\n")[1].split("\n.SH ")[0]
def constant(file, name): return int(re.search(r"\b" + name + r"\s*=\s*(\d+)", open(sys.argv[1] + file).read()).group(1))
launcher = "/core/comm/launch.c"
patience = constant("/train/commands/train.c", "PATIENCE_SECONDS")
one_signal = constant(launcher, "ONE_SIGNAL_MILLISECONDS")
grace, grace_of_signals = (constant(launcher, name) // 1000 for name in ("GRACE_MILLISECONDS", "SIGNAL_GRACE_MILLISECONDS"))
# Paragraphs in their order: a signal that ranks get, under train and under the others; a rank that fails by itself.
first, *_ = paragraphs = signals.split("\n.PP\n")
under_train, under_others = re.split(r"^\.B train$", first, flags=re.M)[1].split("\\-\\-resume", 1)
for text, duration in (
    (under_train, f"{patience} seconds"),
    (under_others, f"{grace_of_signals} seconds"),
    (under_others, f"{one_signal} milliseconds"),
    ("\n".join(paragraphs[1:]), f"{grace} seconds"),
):
    assert re.search(rf"(?<!\d){duration}\b", text), (duration, text)
P
echo "manual: all hold"
