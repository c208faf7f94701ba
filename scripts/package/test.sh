#!/usr/bin/env bash
# Proves a package: scripts/package/test.sh PACKAGE. In a clean root made from the distribution's archive apt installs it
# with what it needs; a node runs there, a cluster of three, and a lab; the package is upgraded, removed and purged, and
# what is left is looked at. Needs root, the archive, and mmdebstrap; where there is no /dev/fuse, nothing is mounted.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/common.sh"
package=$(realpath "$1")
if [ -z "${SHALE_PACKAGE_WORK:-}" ]; then
    work=$(mktemp -d /var/tmp/shale-package.XXXXXX)
    trap 'rm -rf --one-file-system "$work"' EXIT
    # Mounts and daemons end with these namespaces, however this ends.
    SHALE_PACKAGE_WORK=$work unshare --mount --pid --fork --kill-child --mount-proc "$0" "$package"
    exit
fi
work=$SHALE_PACKAGE_WORK
root=$work/root
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
within_root() { chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }

step "a clean root of $suite"
# The shells for which the package has completions, to read them.
mmdebstrap --quiet --mode=root --variant=minbase --include=zsh,fish "$suite" "$root"
# `ip netns` changes how things are mounted below /, so that must be a mount.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
cp -r "$here" "$root/srv/package"
cp "$package" "$root/srv/package/shale.deb"

step "apt installs it with what it needs"
within_root apt-get update -qq
within_root apt-get install -y -qq /srv/package/shale.deb
for program in fusermount3 etcd ip; do
    within_root sh -c "command -v $program" > /dev/null || fail "$program isn't installed with the package"
done
within_root apt-get purge -y -qq shale
# From here on, what differs between before and after comes from the package alone.
list() {
    (cd "$root" && find . -xdev -not -path './var/lib/dpkg/*' -not -path './var/lib/apt/*' -not -path './var/log/*' \
        -not -path './var/cache/*' -not -path './srv/*' -not -path './dev/*' -not -path './run/*' | sort)
}
list > "$work/before"
within_root dpkg --install /srv/package/shale.deb

step "what is in it"
within_root shale --version
within_root shale --help > "$work/help"
grep -q '^Shale is a parallel file system' "$work/help"
for name in mount.shale umount.shale mount.fuse.shale umount.fuse.shale; do
    test "$(within_root readlink -f "/sbin/$name")" = /usr/bin/shale
done
dpkg-deb -c "$package" | awk '{ print $6 }' > "$work/content"
mkdir "$root/srv/manual"
within_root shale man --out /srv/manual
# Documents, pages too, are left out of small roots by dpkg's settings; the package has them: a page for each command.
for path in bin/shale share/bash-completion/completions/shale share/zsh/vendor-completions/_shale \
    share/fish/vendor_completions.d/shale.fish lib/systemd/system/shale@.service lib/systemd/user/shale@.service \
    share/doc/shale/copyright share/doc/shale/docs/operations/package.md \
    $(cd "$root/srv/manual" && printf 'share/man/man1/%s.gz ' *); do
    grep -qx "./usr/$path" "$work/content" || fail "the package lacks /usr/$path"
done
rm -r "$root/srv/manual"
grep -q '^ExecStart=/usr/bin/shale daemon' "$root/usr/lib/systemd/system/shale@.service"
completes() { grep -qw "$2" <<< "$1" || fail "$3 doesn't complete \`shale cl\`: $1"; }
completes "$(within_root bash -c '. /usr/share/bash-completion/completions/shale
    COMP_WORDS=(shale cl) COMP_CWORD=1; _shale shale cl shale; echo "${COMPREPLY[@]}"')" cluster bash
# fish keeps files at home.
completes "$(within_root env HOME=/srv/package fish -c 'complete -C "shale cl"')" cluster fish
completes "$(within_root zsh -fc 'autoload -U compinit; compinit -u -D; echo "$_comps[shale]"')" _shale zsh
within_root zsh -n /usr/share/zsh/vendor-completions/_shale

mkdir -p "$root/srv/node"
if [ -c /dev/fuse ]; then
    touch "$root/dev/fuse"
    mount --bind /dev/fuse "$root/dev/fuse"

    step "a node alone, over mount(8) too"
    within_root sh -ec '
        shale up --dir /srv/node --nsd-size 512M
        echo "kept" > /srv/node/mnt/file
        shale fs check --dir /srv/node
        shale down --dir /srv/node
        mkdir /srv/mounted
        mount -t shale /srv/node /srv/mounted
        grep -q kept /srv/mounted/file
        umount /srv/mounted
        shale up --dir /srv/node'
    if within_root dpkg --remove shale 2> "$work/refusal"; then
        fail "the package was removed although a node runs"
    fi
    grep -q 'shale still runs (process [0-9]*); end its nodes first' "$work/refusal" || fail "$(cat "$work/refusal")"
    within_root shale down --dir /srv/node

    step "the lab of the README, as it stands there"
    sed -n '/^shale lab up --nodes 5/,/^shale lab down --purge/{s/   .*//;p}' "$here/../../README.md" > "$root/srv/package/lab"
    test "$(wc -l < "$root/srv/package/lab")" = 5 || fail "the README has other lines: $(cat "$root/srv/package/lab")"
    within_root bash -e /srv/package/lab | tee "$work/said"
    grep -qx "node 2 has all of it" "$work/said"

    within_root dpkg --purge shale
    older "$package" "$root/srv/package/older.deb"
    within_root dpkg --install /srv/package/older.deb
    unshare --net chroot "$root" /srv/package/cluster.sh /srv/package/shale.deb
else
    skip "there is no /dev/fuse here: nothing was mounted"
    echo "data" > "$root/srv/node/data"
fi
rm -r "$root/srv/package"
(cd "$root/srv" && find . | sort) > "$work/data-before"

step "purge"
within_root dpkg --purge shale
list > "$work/after"
diff "$work/before" "$work/after" || fail "the package left something, or took something along"
(cd "$root/srv" && find . | sort) | diff "$work/data-before" - || fail "data was touched"
step "installed, used, upgraded, purged: nothing is left but the data"
