#!/usr/bin/env bash
# The picture that the README shows is what the command prints.
set -eu
addend=$1 source=$2
python3 "$source/script/picture" --check "$addend"
