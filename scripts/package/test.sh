#!/usr/bin/env bash
# Proves a package: scripts/package/test.sh PACKAGE. Installs it in a clean root made from the
# distribution's archive, uses it there, purges it, and looks at what is left. Needs root, the
# archive, and mmdebstrap; where there is no /dev/fuse, nothing is mounted.
set -euo pipefail
package=$(realpath "$1")
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
# What differs between before and after must come from the package alone.
dependencies=$(dpkg-deb -f "$package" Depends | tr ',' '\n' | sed 's/(.*//; s/|.*//' | xargs | tr ' ' ',')

work=$(mktemp -d /var/tmp/shale-package.XXXXXX)
root=$work/root
end() {
    chroot "$root" /bin/sh -c 'test ! -x /usr/bin/shale || shale down --dir /srv/node --force' >/dev/null 2>&1 || true
    umount "$root/proc" "$root/dev/fuse" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap end EXIT

step() { printf -- '-- %s\n' "$*"; }
step "a clean root of $suite with what the package depends on"
mmdebstrap --quiet --mode=root --variant=minbase --include="$dependencies" "$suite" "$root"
mount -t proc proc "$root/proc"
list() { (cd "$root" && find . -xdev -not -path './var/lib/dpkg/*' -not -path './var/log/*' -not -path './var/cache/*' -not -path './srv/*' -not -path './dev/*' -not -path './run/*' | sort); }
list > "$work/before"

step "install"
cp "$package" "$root/tmp/shale.deb"
chroot "$root" dpkg --install /tmp/shale.deb
rm "$root/tmp/shale.deb"
chroot "$root" shale --version
chroot "$root" shale --help > "$work/help"
grep -q '^Shale is a parallel file system' "$work/help"
for name in mount.shale umount.shale mount.fuse.shale umount.fuse.shale; do
    test "$(chroot "$root" readlink -f "/sbin/$name")" = /usr/bin/shale
done
dpkg-deb -c "$package" > "$work/content"
# Documents, pages too, are left out of small roots by dpkg's settings; the package has them.
for path in bin/shale share/man/man1/shale.1.gz share/man/man1/shale-fs-check.1.gz \
    share/bash-completion/completions/shale share/zsh/vendor-completions/_shale \
    share/fish/vendor_completions.d/shale.fish lib/systemd/system/shale@.service \
    lib/systemd/user/shale@.service share/doc/shale/copyright; do
    grep -q " ./usr/$path\$" "$work/content" || { echo "the package lacks /usr/$path"; exit 1; }
done
grep -q '^ExecStart=/usr/bin/shale daemon' "$root/usr/lib/systemd/system/shale@.service"

mkdir -p "$root/srv/node"
if [ -c /dev/fuse ]; then
    step "a file system in there, over mount(8) too"
    touch "$root/dev/fuse"
    mount --bind /dev/fuse "$root/dev/fuse"
    chroot "$root" sh -ec '
        shale up --dir /srv/node --nsd-size 512M
        echo "kept" > /srv/node/mnt/file
        shale fs check --dir /srv/node
        shale down --dir /srv/node
        mkdir /srv/mounted
        mount -t shale /srv/node /srv/mounted
        grep -q kept /srv/mounted/file
        umount /srv/mounted
        shale up --dir /srv/node'
    if chroot "$root" dpkg --remove shale 2> "$work/refusal"; then
        echo "the package was removed although a node runs"
        exit 1
    fi
    grep -q 'shale still runs (process [0-9]*); end its nodes first' "$work/refusal" || { cat "$work/refusal"; exit 1; }
    chroot "$root" shale down --dir /srv/node
    umount "$root/dev/fuse"
else
    echo "there is no /dev/fuse here: nothing was mounted"
    # `make test-all` counts what couldn't be tested.
    test -z "${SHALE_SKIPPED:-}" || echo "test-deb: there is no /dev/fuse here" >> "$SHALE_SKIPPED"
    echo "data" > "$root/srv/node/data"
fi
(cd "$root/srv" && find . | sort) > "$work/data-before"

step "purge"
chroot "$root" dpkg --purge shale
list > "$work/after"
diff "$work/before" "$work/after" || { echo "the package left something, or took something along"; exit 1; }
(cd "$root/srv" && find . | sort) | diff "$work/data-before" - || { echo "data was touched"; exit 1; }
step "installed, used, purged: nothing is left but the data"
