#!/usr/bin/env bash
# Proves a package on machines: scripts/package/machines.sh PACKAGE. Three clean roots are booted, each with a systemd and
# a network of its own; apt installs the package there; its units run a cluster, which outlives a machine that loses
# power, a daemon that dies, an upgrade, and the loss of power of all machines. Needs root, the distribution's archive,
# mmdebstrap, iproute2 and systemd-container; does nothing where containers can't be made.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/common.sh"
package=$(realpath "$1")
if [ -z "${SHALE_MACHINES_WORK:-}" ]; then
    work=$(mktemp -d /var/tmp/shale-machines.XXXXXX)
    trap 'rm -rf --one-file-system "$work"' EXIT
    # Networks and mounts end with the namespace.
    SHALE_MACHINES_WORK=$work unshare --mount "$0" "$package"
    exit
fi
work=$SHALE_MACHINES_WORK
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
unit=shale@var-lib-shale.service
machines=(m1 m2 m3)
declare -A supervisor

address() { echo "10.84.0.${1#m}"; }

# Groups of processes, of which a machine needs its own, are made by the host's systemd where there is one.
if [ -d /run/systemd/system ]; then
    groups=()
    how=(--property=DeviceAllow='/dev/fuse rw')
else
    mapfile -t groups < <(awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts)
    how=(--keep-unit)
fi
group_of() { echo "$1/shale-package-$$-$2"; }

contain() {
    local machine=$1 group
    shift
    for group in "${groups[@]}"; do
        mkdir -p "$(group_of "$group" "$machine")"
        # Groups of processors say first which they have.
        for what in cpuset.cpus cpuset.mems; do
            test ! -e "$group/$what" || cat "$group/$what" > "$(group_of "$group" "$machine")/$what"
        done
        echo 0 > "$(group_of "$group" "$machine")/cgroup.procs"
    done
    exec systemd-nspawn --quiet --directory="$work/$machine" --machine="shale-package-$$-$machine" --register=no \
        "${how[@]}" --network-namespace-path="/run/netns/$machine" --bind=/dev/fuse --console=pipe "$@"
}

leader() { ps -o pid= --ppid "${supervisor[$1]}" | tr -d ' '; }

# on MACHINE COMMAND...: runs a command there.
on() {
    local machine=$1 leader
    shift
    leader=$(leader "$machine")
    test -n "$leader" || { echo "$machine doesn't run" >&2; return 1; }
    nsenter --target "$leader" --mount --uts --ipc --net --pid --cgroup --root --wdns=/ \
        env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}

boot() {
    local machine=$1
    (contain "$machine" --boot) < /dev/null > "$work/$machine.log" 2>&1 &
    supervisor[$machine]=$!
}

# Waits until a machine has started all that starts with it.
booted() {
    within 120 "$1 has started" on "$1" systemctl is-active multi-user.target
}

# Takes the power of machines away.
power_off() {
    local machine
    # With its first process the kernel kills all others of a machine.
    for machine in "$@"; do kill -KILL "$(leader "$machine")" || true; done
    for machine in "$@"; do wait "${supervisor[$machine]}" || true; done
}

end() {
    local machine group
    power_off "${!supervisor[@]}" 2> /dev/null
    for group in "${groups[@]}"; do
        for machine in "${machines[@]}"; do
            find "$(group_of "$group" "$machine")" -depth -type d -exec rmdir {} \; 2> /dev/null || true
        done
    done
}
trap end EXIT

is_up() { on "$1" systemctl is-active "$unit" && on "$1" mountpoint /mnt/shale; }
healthy() { on m1 shale health --all; }

if [ ! -c /dev/fuse ]; then
    skip "there is no /dev/fuse here: no machine was booted"
    exit
fi

step "three clean machines of $suite, without a network to the archive"
mmdebstrap --quiet --mode=root --variant=minbase --include=systemd,systemd-sysv,dbus,procps "$suite" "$work/m1"
cp "$package" "$work/m1/srv/shale.deb"
older "$package" "$work/m1/srv/older.deb"
chroot "$work/m1" sh -ec 'apt-get update -qq; apt-get install -qq --download-only /srv/shale.deb' > /dev/null
# What a machine says lasts.
mkdir -p "$work/m1/var/log/journal"
for machine in m2 m3; do cp -a "$work/m1" "$work/$machine"; done
# Names of networks that nobody else has.
mkdir -p /run/netns
mount -t tmpfs networks /run/netns
ip netns add hub
ip -n hub link add name bridge up type bridge
for machine in "${machines[@]}"; do
    ip netns add "$machine"
    ip link add name "$machine" up netns hub type veth peer name eth0 netns "$machine"
    ip -n hub link set "$machine" master bridge
    ip -n "$machine" address add "$(address "$machine")/24" dev eth0
    ip -n "$machine" link set lo up
    ip -n "$machine" link set eth0 up
    echo "$machine" > "$work/$machine/etc/hostname"
    tr -d - < /proc/sys/kernel/random/uuid > "$work/$machine/etc/machine-id"
done
if ! (contain m1 true) < /dev/null > "$work/m1.log" 2>&1; then
    cat "$work/m1.log"
    skip "systemd-nspawn makes no containers here: no machine was booted"
    exit
fi
for machine in "${machines[@]}"; do boot "$machine"; done
for machine in "${machines[@]}"; do booted "$machine"; done

step "apt installs an older version"
for machine in "${machines[@]}"; do
    on "$machine" apt-get install -y -qq /srv/older.deb > "$work/$machine.apt" 2>&1 ||
        fail "$(cat "$work/$machine.apt")"
    on "$machine" systemd-analyze verify --man=no "/usr/lib/systemd/system/$unit" > "$work/said" 2>&1 || fail "$(cat "$work/said")"
    ! grep shale "$work/said" || fail "systemd finds faults with the unit"
done

step "a cluster, handed over to systemd"
on m1 shale up --nsd-size 512M --mount /mnt/shale
on m1 shale cluster create --address "$(address m1)"
for machine in m2 m3; do
    on m1 shale cluster join-token --quorum > "$work/token"
    on "$machine" shale node join - --quorum --address "$(address "$machine")" --nsd-size 512M --mount /mnt/shale < "$work/token"
done
on m1 shale pool change --scheme 'replicate(2)'
for machine in "${machines[@]}"; do
    within 120 "all nodes are healthy" healthy
    on "$machine" shale down
    on "$machine" systemctl enable --quiet --now "$unit"
    is_up "$machine" > /dev/null
done
within 120 "all nodes are healthy" healthy
on m1 shale node list

step "what one machine writes the others read"
on m1 sh -c 'echo "from m1" > /mnt/shale/file'
for machine in m2 m3; do on "$machine" grep -qx "from m1" /mnt/shale/file; done

step "what its processes may use"
on m1 systemctl --no-pager --lines=0 status "$unit" | cut -c1-80
property() { on "$1" systemctl show --value --property="$2" "$unit"; }
processes=$(on m1 sh -c "cat /sys/fs/cgroup/systemd$(property m1 ControlGroup)/cgroup.procs 2> /dev/null ||
    cat /sys/fs/cgroup$(property m1 ControlGroup)/cgroup.procs")
test "$(wc -w <<< "$processes")" = 3 || fail "not a daemon, its etcd and its watchdog: $processes"
if prlimit --nofile=1048576:1048576 true 2> /dev/null; then
    for process in $processes; do
        on m1 cat "/proc/$process/limits" > "$work/limits"
        for limit in 'open files  *1048576' 'locked memory  *unlimited'; do
            grep -q "^Max $limit " "$work/limits" || fail "limits of process $process: $(cat "$work/limits")"
        done
        test "$(on m1 cat "/proc/$process/oom_score_adj")" = -900
    done
else
    skip "root may not raise limits here: those of the unit were not looked at"
fi

step "a daemon that dies is started again"
first=$(property m2 MainPID)
on m2 kill -KILL "$first"
restarted() { test "$(property m2 NRestarts)" = 1 && is_up m2; }
within 60 "the daemon of m2 runs again" restarted
on m2 grep -qx "from m1" /mnt/shale/file

step "an upgrade while a program writes on m1"
on m1 sh -c 'exec 9>> /mnt/shale/lines
    line=0
    until test -e /run/enough; do
        line=$((line + 1))
        echo $line >&9
        sleep 0.05
    done
    echo $line > /run/enough' &
writer=$!
within 10 "the program writes" on m3 test -s /mnt/shale/lines
for machine in "${machines[@]}"; do
    daemon=$(property "$machine" MainPID)
    on "$machine" apt-get install -y -qq /srv/shale.deb > "$work/said" 2>&1 || fail "$(cat "$work/said")"
    grep -q "process $daemon: /var/lib/shale" "$work/said" || fail "the node of $machine isn't named: $(cat "$work/said")"
    test "$(property "$machine" MainPID)" = "$daemon" || fail "the node of $machine was started again"
done
for machine in m3 m2; do
    within 120 "all nodes are healthy" healthy
    on "$machine" systemctl restart "$unit"
    is_up "$machine" > /dev/null
done
kill -0 "$writer"
on m1 touch /run/enough
wait "$writer"
on m1 systemctl restart "$unit"
lines=$(on m1 cat /run/enough)
within 60 "m1 is up" is_up m1
seq "$lines" > "$work/lines"
on m2 cat /mnt/shale/lines | cmp - "$work/lines"
echo "$lines lines, none is missing"

step "m3 loses its power while files are copied on m1"
on m1 find /usr/share -type f > "$work/files"
on m1 cp -a /usr/share /mnt/shale/copy &
copying=$!
arrived() { test "$(on m2 find /mnt/shale/copy -type f | wc -l)" -ge $(($(wc -l < "$work/files") / 20)); }
within 120 "files arrive" arrived
power_off m3
kill -0 "$copying" || fail "the copy ended before m3 lost its power"
wait "$copying"
step "the copy has ended"
same() { on "$1" diff -r --no-dereference /usr/share /mnt/shale/copy; }
same m2
echo "$(wc -l < "$work/files") files, also on m2"

step "it starts, and takes part again by itself"
boot m3
booted m3
within 60 "the node of m3 is up" is_up m3
same m3

step "m2 is shut down and starts"
on m2 systemctl poweroff
wait "${supervisor[m2]}" || true
boot m2
booted m2
within 60 "the node of m2 is up" is_up m2
on m2 journalctl --boot=-1 --unit="$unit" --no-pager > "$work/said"
grep -q "everything is durable" "$work/said" || fail "$(cat "$work/said")"
same m2

step "all machines lose their power, and start"
power_off "${machines[@]}"
for machine in "${machines[@]}"; do boot "$machine"; done
for machine in "${machines[@]}"; do booted "$machine"; done
for machine in "${machines[@]}"; do within 60 "the node of $machine is up" is_up "$machine"; done
for machine in "${machines[@]}"; do same "$machine"; done

step "a node that was expelled by hand waits, and isn't started again and again"
on m1 shale node expel n3
waits() {
    on m3 shale health > "$work/said" || true
    grep -q "shale node unexpel" "$work/said"
}
within 60 "the daemon of m3 waits" waits
test "$(property m3 ActiveState)" = active
on m3 systemctl stop "$unit"
! on m3 systemctl start "$unit" 2> "$work/said" || fail "a node that was expelled by hand started"
test "$(property m3 ExecMainStatus) $(property m3 ActiveState)" = "78 failed" ||
    fail "not failed with code 78: $(on m3 systemctl --no-pager status "$unit")"
on m1 shale node unexpel n3
on m3 systemctl start "$unit"
is_up m3 > /dev/null
for machine in "${machines[@]}"; do
    on "$machine" journalctl --unit="$unit" --no-pager > "$work/said"
    ! grep "Got notification message" "$work/said" || fail "etcd tells systemd of itself, on $machine"
done

step "the package is purged on m3"
on m3 apt-get purge -y -qq shale > "$work/said" 2>&1 || fail "$(cat "$work/said")"
grep -q "/var/lib/shale is left" "$work/said" || fail "$(cat "$work/said")"
on m3 test -s /var/lib/shale/node.toml
! on m3 mountpoint -q /mnt/shale || fail "the mount is still there"
test -z "$(on m3 find /etc/systemd -name 'shale@*')" || fail "the unit is still enabled"
same m1
step "installed, run, upgraded and purged on machines"
