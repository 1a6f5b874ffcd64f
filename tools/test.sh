#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run every test but those of real clients, in two halves side by side: one waits for the service
# most of the time, the other for the kernel. Each is in namespaces of its own; both must pass.
#
# The first half is shown as it runs, the second when it has ended.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=.venv/bin/python
SERVICE=(tests/service tests/unit tests/meta)

half() { # half NAME PYTEST-ARGUMENT...
    local name=$1
    shift
    COVERAGE_FILE=.coverage-$name tools/isolated.sh $PYTHON -m pytest -m "" --fail-on-skip \
        -o "cache_dir=.pytest_cache/$name" --cov --cov-report= "$@"
}

rm -f .coverage .coverage-*
shown=$(mktemp)
trap 'kill "$second" 2>/dev/null; rm -f "$shown"' EXIT
half kernel tests --ignore=tests/clients "${SERVICE[@]/#/--ignore=}" >"$shown" 2>&1 &
second=$!
half service "${SERVICE[@]}"
first_failed=$?
wait "$second"
second_failed=$?
cat "$shown"
((first_failed == 0 && second_failed == 0)) || exit 1
$PYTHON -m coverage combine --quiet .coverage-service .coverage-kernel
tools/coverage_gate.sh
