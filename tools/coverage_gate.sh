#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Judge the coverage of the test run before: all branches of what parses foreign bytes or decides
# between errors, 90% overall. Prints one line if it is good, the missing lines if it is not.
set -eu
cd "$(dirname "$0")/.."
COVERAGE=.venv/bin/coverage
EVERYTHING='src/pycni/errors.py,src/pycni/model/*,src/pycni/kernel/nlwire/*,src/pycni/exec/framing.py'

gate() { # gate FLOOR [REPORT-OPTION...]
    floor=$1
    shift
    if total=$($COVERAGE report --format=total --precision=1 --fail-under="$floor" "$@"); then
        printf '%s' "$total"
        return
    fi
    $COVERAGE report --precision=1 --fail-under="$floor" "$@" >&2
}

core=$(gate 100 --include="$EVERYTHING")
overall=$(gate 90)
echo "coverage: $overall% overall, $core% of errors, model, nlwire and framing"
