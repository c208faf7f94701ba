#!/usr/bin/env bash
# Brings up a file system, does some real work on it, and shows how to continue and how to stop.
set -euo pipefail
shale=$(realpath "$1")
dir=$(realpath -m "$2")
mnt=$dir/mnt
repo=$(cd "$(dirname "$0")/.." && pwd)

# Says what comes next, and how long the last step took.
begun=$(date +%s%N)
step() {
    local now; now=$(date +%s%N)
    [ "$1" = "1." ] || printf '(%d.%02d s)\n' $(((now - begun) / 1000000000)) $(((now - begun) / 10000000 % 100))
    printf '\n\033[1m%s\033[0m\n' "$*"
    begun=$(date +%s%N)
}

# Small, because it is in the checkout. What an NSD has is allocated at once, so that it can't run
# out later; `shale up` by itself makes 20 GiB.
size=()
[ -e "$dir/node.toml" ] || size=(--nsd-size 2G)
step 1. "A file system on one NSD, a file of 2 GiB: $dir"
"$shale" up --dir "$dir" "${size[@]}"

work=$mnt/demo.$$
mkdir "$work"
step 2. "Unpack a real source tree (this one) and checksum it on both sides"
(cd "$repo" && tar -cf - README.md Cargo.toml Cargo.lock LICENSE crates docs scripts) > "$work/tree.tar"
mkdir "$work/tree" && tar -xf "$work/tree.tar" -C "$work/tree"
(cd "$repo" && find README.md Cargo.toml Cargo.lock LICENSE crates docs scripts -type f -print0 | xargs -0 sha256sum) > "$work/sums"
(cd "$work/tree" && sha256sum --quiet -c ../sums)
echo "$(wc -l < "$work/sums") files, every checksum right"

step 3. "Search it"
grep -rn --include='*.rs' 'fn main' "$work/tree" | sed "s|$work/||" | head -5

step 4. "Compile a program on it"
cat > "$work/hello.c" <<'C'
#include <stdio.h>
int main(void) { puts("built and run on Shale"); return 0; }
C
cc -O2 -o "$work/hello" "$work/hello.c"
"$work/hello"

step 5. "Everything durable, everything verified"
"$shale" fs sync --dir "$dir"
"$shale" fs check --dir "$dir"

step 6. "Delete it"
rm -rf "$work"
"$shale" fs df --dir "$dir"

step "Done."
cat <<EOF
The file system is yours: $mnt
  look     $shale status --dir $dir
           $shale health --dir $dir
  stop     $shale down --dir $dir        (or: make stop)
  again    $shale up --dir $dir
  forget   $shale down --dir $dir && rm -rf $dir
EOF
