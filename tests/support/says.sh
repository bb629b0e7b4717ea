# What a command says, in a script: facts of a line, whose sentence stands in tests/golden/cli.txt (tests/support/says.h).
#
#   . "$source/tests/support/says.sh"
#   says err step-2/index.json 9      a line of the file `err` has these facts, and tests/golden/cli.txt lists it
#   says_facts err "$process"         the same without the golden file, for lines that differ from run to run
#
# Ends the script with status 1, and tells the file, if not. A line is listed under the script's name and the
# facts without their numbers, so that two assertions of other facts never take each other's sentence.

says_support=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

says() {
  python3 "$says_support/says.py" "$(basename -- "$0" .sh)" "$@" || { echo "FAILED: line ${BASH_LINENO[0]} of $0" >&2 && exit 1; }
}

says_facts() {
  python3 "$says_support/says.py" --has "$@" || { echo "FAILED: line ${BASH_LINENO[0]} of $0" >&2 && exit 1; }
}
