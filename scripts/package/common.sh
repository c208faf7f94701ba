# shellcheck shell=bash
# What the proofs of a package share; they read it with `.`.

step() { printf -- '-- %s (%d s)\n' "$*" "$SECONDS"; }

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# within SECONDS WHAT COMMAND...: repeats the command until it succeeds; fails with WHAT if it doesn't in time.
within() {
    local seconds=$1 what=$2 end=$((SECONDS + $1))
    shift 2
    until "$@" > /tmp/within.$$ 2>&1; do
        ((SECONDS < end)) || fail "not within $seconds s: $what; the last attempt said: $(cat /tmp/within.$$)"
        sleep 0.2
    done
    rm -f /tmp/within.$$
}

# skip WHY: notes for `make test-all` what can't be tested on this machine.
skip() {
    echo "skipped: $*"
    test -z "${SHALE_SKIPPED:-}" || echo "test-deb: $*" >> "$SHALE_SKIPPED"
}

# older PACKAGE OLDER: makes a package of the same program with a lower version.
older() {
    local folder=$2.content
    dpkg-deb --raw-extract "$1" "$folder"
    sed -i 's/^Version: .*/Version: 0.0.1/' "$folder/DEBIAN/control"
    dpkg-deb --root-owner-group -Znone --build "$folder" "$2" > /dev/null
    rm -r "$folder"
}
