#!/usr/bin/env bash
# Shows why tests have failed, in few lines each, so that the end of a long run says it: failures.sh OUTPUT...
# OUTPUT is what `cargo test` has printed. Says nothing if nothing has failed. What a failed test has printed beside
# its panics, logs of daemons for instance, is only in OUTPUT.
set -euo pipefail
awk '
    # From here on a test program repeats what its failed tests have printed.
    /^failures:$/ { repeats = 1; lines = 0 }
    /^ +Running / { repeats = 0 }
    repeats && /^---- .* stdout ----$/ { print "FAILED: " $2; lines = 0 }
    repeats && /panicked at / { lines = 9 }
    repeats && lines > 0 { print "  " substr($0, 1, 1000); lines-- }
' "$@"
