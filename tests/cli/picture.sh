#!/usr/bin/env bash
# The pictures of docs/ are what the command prints and draws.
set -eu
addend=$1 source=$2
python3 "$source/script/picture" --check "$addend"
