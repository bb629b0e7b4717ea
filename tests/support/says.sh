# What a command says, in a script: facts of a line, whose sentence is in tests/golden/AREA.txt (tests/support/says.h),
# where AREA is the script's folder.
#
#   . "$source/tests/support/says.sh"
#   says err step-2/index.json 9      a line of the file `err` has these facts, and the golden file lists it
#   says_all err "rank 1|SIGKILL"     the same, the facts with | between them
#   says err                          its first line has no facts, and the golden file lists it
#   says_facts err "$process"         the same without the golden file, for lines that differ from run to run
#   says_nothing_of err "rank 1"      no line of it has these facts
#
# If not, prints the file and ends the script with status 1. A line is listed under the script's name and the
# facts without their numbers, so that two assertions of other facts never take each other's sentence.

says_support=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
says_script=$(cd -- "$(dirname -- "$0")" && basename -- "$PWD")/$(basename -- "$0" .sh)
says_script=${says_script/\/test_/\/}

says_failed() { # the lines of the calls, the innermost first
  echo "FAILED: line ${BASH_LINENO[*]:1:${#BASH_LINENO[@]}-2} of $0" >&2
  exit 1
}

says() {
  python3 "$says_support/says.py" "$says_script" "$@" || says_failed
}

says_nothing_of() {
  python3 "$says_support/says.py" --lacks "$@" || says_failed
}

says_all() {
  local facts
  IFS='|' read -ra facts <<<"$2"
  says "$1" "${facts[@]}"
}

says_facts() {
  python3 "$says_support/says.py" --has "$@" || says_failed
}
