#!/usr/bin/env bash
# Makes a Debian package of a built program: scripts/package/build.sh PROGRAM FOLDER. The folder gets
# shale_VERSION_ARCHITECTURE.deb. Needs dpkg-dev; what the package depends on is read from the program.
set -euo pipefail
program=$(realpath "$1")
out=$(realpath -m "$2")
repository=$(cd "$(dirname "$0")/../.." && pwd)
here=$repository/scripts/package
version=$("$program" --version | cut -d' ' -f2)
architecture=$(dpkg --print-architecture)
# The same sources give the same package.
SOURCE_DATE_EPOCH=$(git -C "$repository" log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Where dpkg-shlibdeps expects what it looks at.
root=$work/debian/shale
make -s -C "$repository" install SHALE="$program" DESTDIR="$root" PREFIX=/usr SBINDIR=/usr/sbin \
    ZSHDIR=/usr/share/zsh/vendor-completions

# Line numbers of backtraces are half of the program's size and in none of its messages.
strip --strip-unneeded "$root/usr/bin/shale"
gzip -9n "$root"/usr/share/man/man1/*.1

documents=$root/usr/share/doc/shale
install -d "$documents"
install -m 644 "$repository"/{README,ARCHITECTURE}.md "$documents"
cp -r --no-preserve=mode,ownership "$repository"/docs "$documents/docs"
gzip -9nc "$repository/CHANGELOG.md" > "$documents/changelog.gz"
cat > "$documents/copyright" <<EOF
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: shale

Files: *
Copyright: the authors of Shale
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
EOF

# dpkg-shlibdeps wants the trees of a source package and of its package around the program.
install -d "$root/DEBIAN"
printf 'Source: shale\n\nPackage: shale\nArchitecture: any\n' > "$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O "$root/usr/bin/shale" | sed 's/^shlibs:Depends=//')

for script in postinst prerm postrm; do
    install -m 755 "$here/$script" "$root/DEBIAN/$script"
done
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
cat > "$root/DEBIAN/control" <<EOF
Package: shale
Version: $version
Architecture: $architecture
Maintainer: the authors of Shale <shale@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: $libraries, fuse3
Recommends: etcd-server, iproute2
Section: admin
Priority: optional
Description: parallel file system in user space
 Shale makes one POSIX file system of one or more disks, checksums every byte, and keeps
 copies or parity so that disks may fail. It needs no kernel module: the file system is
 mounted through FUSE. It runs on one machine, or as one file system on many.
 .
 This package has the program, the helpers that mount(8) and umount(8) call for type
 shale, systemd units, manual pages and completions for bash, zsh and fish. Of what it
 recommends, etcd-server is for quorum nodes of a cluster, and iproute2 for \`shale lab\`.
EOF
install -d "$out"
find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
chmod -R u=rwX,go=rX "$root"
dpkg-deb --root-owner-group --build "$root" "$out" >/dev/null
echo "$out/shale_${version}_${architecture}.deb"
