#!/usr/bin/env bash
# Runs a cluster of three daemons, in a root where an older package is installed and in a network of its own:
# scripts/package/cluster.sh NEWER. What one node writes the others read; the package is upgraded under the nodes,
# which are restarted one after the other while a program writes; one is killed while files are copied.
set -euo pipefail
. "$(dirname "$0")/common.sh"
newer=$1
ip link set lo up
cd /

node() {
    local number=$1
    shift
    shale "$@" --dir "/srv/n$number"
}
mounted() { echo "/srv/n$1/mnt"; }
healthy() { node 1 health --all; }
# Processes that run the program of a package that was replaced. Others end while they are looked at, which find calls a failure.
old_daemons() { { find /proc -maxdepth 2 -name exe -lname '/usr/bin/shale (deleted)' 2> /dev/null || true; } | wc -l; }

step "three nodes, all of them quorum nodes"
node 1 up --nsd-size 512M
node 1 cluster create --address 127.0.0.1
for number in 2 3; do
    node 1 cluster join-token --quorum > /srv/token
    node "$number" node join --token-file /srv/token --quorum --address "127.0.0.$number" --nsd-size 512M
done
rm /srv/token
node 1 pool change --scheme 'replicate(2)'
within 120 "all nodes are healthy" healthy
node 1 node list

step "what one node writes the others read"
echo "from node 1" > "$(mounted 1)/file"
for number in 2 3; do
    grep -qx "from node 1" "$(mounted "$number")/file"
    echo "from node $number" >> "$(mounted "$number")/file"
done
test "$(wc -l < "$(mounted 1)/file")" = 3

step "an upgrade while a program writes on node 1"
write() {
    local line=0
    exec 9>> "$(mounted 1)/lines"
    until test -e /srv/enough; do
        line=$((line + 1))
        echo "$line" >&9
        sleep 0.05
    done
    echo "$line" > /srv/enough
}
write &
writer=$!
# Anybody may run the old program, with words that would command a terminal. It waits for a token.
shale node join --address 127.0.0.9 --dir "$(printf '/x daemon --dir \033]0;a title\007\\033[2J')" - \
    < <(exec sleep 600 2> /dev/null) > /dev/null 2>&1 &
stranger=$!
within 10 "the program writes" test -s "$(mounted 3)/lines"
before=$(old_daemons)
dpkg --install "$newer" | tee /srv/said
for number in 1 2 3; do
    grep -q "process [0-9]*: /srv/n$number\b" /srv/said || fail "the upgrade doesn't name the node in /srv/n$number"
done
grep -q "process $stranger: .*?]0;a title?" /srv/said || fail "the upgrade doesn't name process $stranger"
! grep -q $'\033' /srv/said || fail "the upgrade commands the terminal"
rm /srv/said
kill "$stranger"
wait "$stranger" || true
# A daemon and its watchdog on each node.
test "$before" = 0 && test "$(old_daemons)" = 6
kill -0 "$writer"
if dpkg --remove shale 2> /srv/refusal; then
    fail "the package was removed although nodes run its old program"
fi
grep -q 'shale still runs (process' /srv/refusal || fail "$(cat /srv/refusal)"
rm /srv/refusal

step "each node starts the new program, one after the other; the program goes on"
for number in 2 3; do
    within 120 "all nodes are healthy" healthy
    node "$number" down
    node "$number" up
done
within 120 "all nodes are healthy" healthy
kill -0 "$writer"
touch /srv/enough
wait "$writer"
node 1 down
node 1 up
test "$(old_daemons)" = 0
lines=$(cat /srv/enough)
rm /srv/enough
seq "$lines" | cmp - "$(mounted 2)/lines"
echo "$lines lines, none is missing"
within 120 "all nodes are healthy" healthy

step "node 3 is killed while files are copied on node 1"
copied=/usr/share
files=$(find "$copied" -type f | wc -l)
cp -a "$copied" "$(mounted 1)/copy" &
copying=$!
arrived() { test "$(find "$(mounted 2)/copy" -type f | wc -l)" -ge $((files / 20)); }
within 120 "files arrive" arrived
node 3 down --kill
kill -0 "$copying" || fail "the copy ended before node 3 was killed"
wait "$copying"
diff -r --no-dereference "$copied" "$(mounted 2)/copy"
echo "$files files, also on node 2"

step "it comes back"
node 3 up
diff -r --no-dereference "$copied" "$(mounted 3)/copy"
within 60 "all members of etcd work" sh -c "! shale health --dir /srv/n1 | grep -q 'members of etcd'"

# All at once: who is last would wait for others, which don't come.
node 1 fs sync
for number in 1 2 3; do node "$number" down --kill; done
