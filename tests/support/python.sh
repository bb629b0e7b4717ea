#!/usr/bin/env bash
# Runs a Python test with the first Python that has the packages it needs: $ADDEND_PEER_PYTHON, that of the environment
# which `script/test --torch` makes, python3 of the PATH, Debian's.
#   python.sh numpy|torch LIBRARY SCRIPT [ARGUMENT...]     status 77 and a reason if no Python has them
#   python.sh --find numpy|torch                           prints the Python that it would take
set -uo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
environment=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/addend/torch

# Which packages are installed, found without importing PyTorch, which takes seconds.
declare -A probes=(
  [numpy]='from importlib.metadata import version; version("numpy")'
  [torch]='from importlib.metadata import version; version("numpy"); version("safetensors"); assert tuple(map(int, version("torch").split(".")[:2])) >= (2, 6)'
)
declare -A words=([numpy]="NumPy" [torch]="PyTorch 2.6 or later, NumPy and safetensors")

find_python() {
  local candidate
  for candidate in "${ADDEND_PEER_PYTHON:-}" "$environment/bin/python3" python3 /usr/bin/python3; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null && "$candidate" -c "${probes[$1]}" 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

if [ "$1" = --find ]; then
  find_python "$2"
  exit
fi
need=$1 library=$(realpath -m -- "$2") # tests change their folder
shift 2
if ! python=$(find_python "$need"); then
  echo "skipped: no python3 here has ${words[$need]} (\$ADDEND_PEER_PYTHON names one; script/test --torch makes one)"
  exit 77
fi
export ADDEND_LIBRARY=$library OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$here/../../python:$here/../../train/python:$here${PYTHONPATH:+:$PYTHONPATH}
echo "with $python"
exec "$python" "$@"
