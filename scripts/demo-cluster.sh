#!/usr/bin/env bash
# Brings up five nodes, kills one while a tree is copied to another, and checks every byte on both:
# scripts/demo-cluster.sh PROGRAM DIR. Needs root and iproute2; removes everything at its end.
set -euo pipefail
shale=$(realpath "$1")
dir=$(realpath -m "$2")
repo=$(cd "$(dirname "$0")/.." && pwd)
export SHALE_LAB_DIR=$dir

begun=$SECONDS
step() { printf '\n\033[1m%s\033[0m (%d s)\n' "$*" $((SECONDS - begun)); }
trap '"$shale" lab down --purge > /dev/null' EXIT

step 1. "Five nodes, erasure(2+1): any one may be lost"
"$shale" lab up --nodes 5 --scheme 'erasure(2+1)' --nsd-size 1G
"$shale" lab status

step 2. "Copy this source tree ten times on n2, and kill n4 meanwhile"
cd "$repo"
tree=(README.md Cargo.toml Cargo.lock LICENSE crates docs scripts)
sums=$(find "${tree[@]}" -type f -print0 | sort -z | xargs -0 sha256sum)
"$shale" lab exec n2 -- sh -ec '
    for copy in 0 1 2 3 4 5 6 7 8 9; do mkdir "$copy" && cp -r "$@" "$copy"; done
' sh "${tree[@]/#/$repo/}" &
copying=$!
until [ -e "$dir/n2/mnt/2" ] || ! kill -0 "$copying" 2> /dev/null; do sleep 0.1; done
kill -0 "$copying" || { echo "the copy ended before n4 could be killed"; wait "$copying"; exit 1; }
"$shale" lab kill n4
wait "$copying"
echo "the copy has ended, without an error"

step 3. "Check every file on n2, which copied, and on n3, which didn't"
for node in n2 n3; do
    for copy in 0 1 2 3 4 5 6 7 8 9; do
        (cd "$dir/$node/mnt/$copy" && sha256sum --quiet -c - <<< "$sums")
    done
    echo "$node: $(($(wc -l <<< "$sums") * 10)) files, every checksum right"
done

step 4. "n4 comes back"
"$shale" lab start n4
"$shale" lab status

step Done. "Nothing is left of it. By hand: $shale lab up --nodes 5"
