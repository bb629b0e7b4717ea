# Checks one recipe, for command line tests that make many checks; they have set $addend, $source and fail().
check_recipe() { # recipe, KEY=VALUE... with + for a space, arguments of check with --: the document is proof.json
  local recipe=$1 status=0 arguments=() argument; shift
  for argument in "$@"; do
    case $argument in
      [a-z]*=*) arguments+=(--set "${argument//+/ }") ;;
      *) arguments+=("$argument") ;;
    esac
  done
  "$addend" check "$source/recipes/$recipe.yaml" "${arguments[@]}" --json >proof.json 2>proof.err || status=$?
  [ $status -eq 0 ] || { cat proof.err >&2; tail -8 proof.json >&2; fail "$recipe $*: exit $status"; }
}
