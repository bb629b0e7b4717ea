#!/usr/bin/env bash
# Tests script/torch, and script/test --torch, which .ci/run calls: an environment that exists is found again; one that
# cannot be made is reported and stops nothing. A python3 made by this test represents the package index.
set -eu
source=$1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
. "$source/tests/support/says.sh"
mkdir -p "$work/bin" "$work/home"
# This python3 notes its arguments; it has the packages that are listed in the file `has`, and installs those that the
# file `index` allows.
cat >"$work/bin/python3" <<P
#!/usr/bin/env bash
work=$work
printf '%s\n' "\$*" >>"\$work/asked"
case "\$*" in
  *urlopen*) exit 1 ;;
  "-m venv "*) mkdir -p "\$3/bin" && cp "\$0" "\$3/bin/python3" ;;
  "-m pip install "*)
    [ -e "\$work/index" ] || { echo "ERROR: No matching distribution found" >&2; exit 1; }
    printf '%s\n' "\$@" | sed 's/[>=].*//' >>"\$work/has" ;;
  *print*) echo 2.9.0 ;;
  *importlib.metadata*) # python.sh names them in the program, script/torch behind it
    wanted=\$(grep -oE 'version\("[a-z]+"\)' <<<"\$2" | grep -oE '"[a-z]+"' | tr -d '"' || true)
    for name in \$wanted "\${@:3}"; do grep -qx -e "\$name" "\$work/has" 2>/dev/null || exit 1; done ;;
  *) exec $(command -v python3) "\$@" ;;
esac
P
chmod +x "$work/bin/python3"
export PATH=$work/bin:$PATH XDG_CACHE_HOME=$work/home ADDEND_PEER_PYTHON=
asked() { grep -c -e "$1" "$work/asked" || true; }

status=0
bash "$source/script/torch" >"$work/said" || status=$?
[ $status -eq 1 ] || fail "no index: exit $status"
grep -q '3 GB' "$work/said" || says "$work/said" PyTorch ERROR:
[ ! -e "$work/home/addend/torch" ] || fail "nothing is left of what could not be had"
if grep -q '3 GB' "$work/said"; then echo "torch: less than 12 GB are free here, so nothing more was tried" && exit 0; fi

touch "$work/index"
bash "$source/script/torch" >"$work/said" || fail "an index: $(cat "$work/said")"
says "$work/said" PyTorch 2.9.0 "$work/home/addend/torch"
for name in torch numpy safetensors pytest transformers accelerate; do grep -qx "$name" "$work/has" || fail "it has $name"; done

# The second time the environment is found, and nothing is fetched.
before=$(asked "-m pip") && rm "$work/index"
bash "$source/script/torch" >"$work/said" || fail "the second time: $(cat "$work/said")"
[ "$(asked "-m pip")" = "$before" ] || fail "the second time nothing is fetched"

# An environment of an earlier version gets the packages that it does not have, and is kept if they cannot be had.
sed -i '/^pytest$/d' "$work/has"
bash "$source/script/torch" >"$work/said" || fail "without pytest: $(cat "$work/said")"
says "$work/said" PyTorch "$work/home/addend/torch" 2.9.0
grep -q ' pytest transformers accelerate' "$work/said" || fail "what is missing is not named: $(cat "$work/said")" # packages
touch "$work/index"
bash "$source/script/torch" >"$work/said" && grep -qx pytest "$work/has" || fail "it gets what it does not have"
[ "$(asked "-m venv")" -le 4 ] || fail "it is not made anew"

# If no environment can be had, the other tests run.
rm -rf "$work/home/addend" "$work/index" "$work/has"
cd "$source"
prepared=$(sed -n '/^prepare_torch()/,/^}/p' script/test)
skips=()
eval "$prepared"
prepare_torch >"$work/said"
grep -q 'PyTorch .*: /usr/bin' "$work/said" ||
  { [ "${#skips[@]}" -eq 1 ] && [[ ${skips[0]} == "script/test --torch: "*PyTorch* ]]; } ||
  fail "script/test continues and says what it skipped: ${skips[*]-} $(cat "$work/said")"
grep -q 'script/test" --torch' .ci/run || fail "continuous integration asks for PyTorch"
echo "torch: all hold"
