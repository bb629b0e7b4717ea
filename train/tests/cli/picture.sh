#!/usr/bin/env bash
# Tests that the pictures of docs/ are what the commands print and draw.
set -eu
addend=$1 source=$2
python3 "$source/script/picture" --check "$addend"
