#!/usr/bin/env bash
# Tests shell completions: every command, every option that --help names, the values of options that take certain words,
# and the keys of recipes. Also tests that a mistyped word is answered with the word that was probably meant.
set -eu
addend=$1 source=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
same() { # arguments: what is compared, expected, found
  [ "$2" = "$3" ] || { diff <(echo "$2") <(echo "$3") >&2 || true; fail "$1"; }
}
mkdir -p some/folder && touch some/recipe.yaml some/dump.safetensors some/other.txt
for shell in bash zsh fish; do "$addend" --completions $shell >completions.$shell; done
for wrong in "" ksh; do
  status=0
  "$addend" --completions $wrong >out 2>err || status=$?
  [ $status -eq 2 ] && [ ! -s out ] || fail "another shell is refused"
  says err --completions
done
bash -n completions.bash || fail "bash reads it"
# shellcheck disable=SC1091
source ./completions.bash

# The commands that --help names, one a line.
commands=$("$addend" --help | sed -n 's/^  \([a-z][a-z-]*\)  *[^ ].*/\1/p')
[ "$(wc -w <<<"$commands")" -ge 7 ] || fail "help names the commands"
options_of() { "$addend" "$1" --help | grep -oE '^ +(-[^ ]+, +)?--[a-z-]+' | grep -oE -- '--[a-z-]+'; }

compopt() { :; } # bash's own compopt works only during a completion, and here there is none
bash_completes() { # arguments: words, the last of which is completed
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
  _addend
  printf '%s\n' "${COMPREPLY[@]}"
}
same "bash: commands" "$(sort <<<"$commands")" "$(bash_completes addend "" | grep -v ^-- | sort)"
for command in $commands; do
  found=$(bash_completes addend "$command" -- | grep -vx -e --)
  same "bash: options of $command" "$(options_of "$command" | sort)" "$(sort <<<"$found")"
done
operations=$("$addend" bench --help | tr -s '\n ' ' ' | sed -n 's/.*--op=NAME [^:]*: \([^-]*\) -.*/\1/p' | sed 's/, \| or /\n/g' | sort)
[ "$(wc -l <<<"$operations")" -gt 15 ] || fail "help names the operations"
same "bash: operations" "$operations" "$(bash_completes addend bench --op "" | sort)"
same "bash: dtypes" "f32 f64 recipe" "$(bash_completes addend check R.yaml --dtype "" | sort | xargs)"
same "bash: dtypes behind =" "f64" "$(bash_completes addend check R.yaml --dtype = f6)"
same "bash: dtypes by the letter" "recipe" "$(bash_completes addend check -d r)"

# Every key of every kind of recipe, as the manual page has them.
keys=$(python3 - "$source/docs/addend.1" <<'P'
import re, sys
section = open(sys.argv[1]).read().split("\n.SH RECIPE KEYS\n")[1].split("\n.SH ")[0]
paths = re.findall(r"^\.TP\n\.BR? (\S+)", section, re.M)
print(*sorted({path.split("[]")[0] for path in paths}), sep="\n")
P
)
for command in train check plan; do
  same "bash: keys of $command" "$keys" "$(bash_completes addend $command --set "" | sed 's/=$//' | LC_ALL=C sort)"
done
same "bash: no key's value" "" "$(bash_completes addend check --set train.lr = 3)"

# File names are completed to files of the kind that the command takes.
same "bash: recipes" "some/folder some/recipe.yaml" "$(bash_completes addend plan some/ | xargs)"
same "bash: dumps" "some/dump.safetensors some/folder" "$(bash_completes addend diff some/ | xargs)"
same "bash: pages" "$("$addend" explain | awk '{print $1}')" "$(bash_completes addend explain "")"
same "bash: pages by their beginning" "replicas_differ" "$(bash_completes addend explain re)"
same "bash: schedules" "accumulate" "$(bash_completes addend schedule make ac)"
same "bash: tables" "some/dump.safetensors some/folder some/other.txt some/recipe.yaml" "$(bash_completes addend schedule check some/ | sort | xargs)"
same "bash: formats" "github html json text" "$(bash_completes addend diff --format "" | sort | xargs)"
same "bash: runs" "some/folder" "$(bash_completes addend report some/ | xargs)"
same "bash: folders" "some/folder" "$(bash_completes addend check --dump some/ | xargs)"
same "bash: files" "4" "$(bash_completes addend diff --html some/ | wc -l)"
same "bash: one's own program" "some/recipe.yaml" "$(bash_completes addend run -n 2 -- some/r)"
same "bash: its own options" "" "$(bash_completes addend run -n 2 -- ./program --s)"

if command -v fish >/dev/null; then
  fish_completes() { HOME=$work fish --no-config -c 'source completions.fish; complete -C $argv[1]' "$1" | cut -f 1; }
  same "fish: commands" "$(sort <<<"$commands")" "$(fish_completes "addend " | sort)"
  for command in $commands; do
    same "fish: options of $command" "$(options_of "$command" | sort)" "$(fish_completes "addend $command --" | sort)"
  done
  same "fish: dtypes" "f32 f64 recipe" "$(fish_completes "addend check --dtype " | sort | xargs)"
  same "fish: operations" "$operations" "$(fish_completes "addend bench --op " | sort)"
  same "fish: pages" "$("$addend" explain | awk '{print $1}')" "$(fish_completes "addend explain " | sort)"
  same "fish: keys" "$keys" "$(fish_completes "addend plan --set " | sed 's/=$//' | LC_ALL=C sort)"
else
  echo "completions: SKIPPED: fish is not installed, so it completed nothing"
fi
if command -v zsh >/dev/null; then
  zsh -n completions.zsh || fail "zsh reads it"
  # The zsh completion calls _arguments, which here prints its own arguments.
  zsh_asks() { # argument: command
    # shellcheck disable=SC2016
    zsh -f -c '_arguments() { print -rl -- "$@" }; _describe() {}; compadd() {}
      words=(addend $2); CURRENT=3; source $1' zsh ./completions.zsh "$1"
  }
  for command in $commands; do
    found=$(zsh_asks "$command" | grep -oE '^\*?--[a-z-]+' | tr -d '*')
    same "zsh: options of $command" "$(options_of "$command" | sort)" "$(sort <<<"$found")"
  done
  zsh_asks explain | grep -q '^\*:page:(averaged .*)$' || fail "zsh: pages"
  zsh_asks check | grep -qx -e '--dtype=\[.*\]:DTYPE:(f64 f32 recipe)' || fail "zsh: dtypes"
else
  echo "completions: SKIPPED: zsh is not installed, so it was not asked"
fi

# A mistyped word is answered with the word that was probably meant.
meant() { # arguments: facts of the answer with | between them, words of the call
  local status=0
  "$addend" "${@:2}" >out 2>err || status=$?
  [ $status -eq 2 ] && [ ! -s out ] || fail "exit $status: ${*:2}"
  says_all err "$1"
}
meant "traim|addend" traim
meant "something|addend" something
meant "--stesp|--steps" check R.yaml --stesp 3
meant "--stesp=3|--steps" check --stesp=3 R.yaml
meant "--jsno|--json" plan --set a=b -j R.yaml --jsno
meant "--opp|--op" bench --opp products
meant "--hepl|--help" report --hepl
meant "prodcuts" bench --op prodcuts
meant "--sabotage=3|--mutate" check --sabotage=3 R.yaml # the option's name before 0.1.0
meant "--nonsense" check R.yaml --nonsense
meant "--se|--seed|--set" check R.yaml --se 3
meant "R.yaml" check --out --stesp R.yaml # --stesp is the value of --out, though it looks like an option
says_nothing_of err --steps

"$addend" check --help --stesp >out || fail "help ends a call"
"$addend" run -n 1 -- "$(command -v true)" --rnaks >out 2>err || { cat err >&2; fail "the words after -- are the program's"; }
echo "completions: all hold"
