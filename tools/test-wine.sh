#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run tests/windows with the Windows CPython under wine, against stand-in DLLs.
#
#   tools/test-wine.sh [PYTEST ARGUMENTS]
#
# Installs what is missing (Debian: wine, the mingw compiler), keeps everything else below
# build/wine, and takes about half a minute the first time and a few seconds after that.
set -eu
cd "$(dirname "$0")/.."

tools/bootstrap.sh check

missing=
[ -x /usr/lib/wine/wine64 ] || missing="$missing wine wine64"
command -v x86_64-w64-mingw32-gcc >/dev/null 2>&1 || missing="$missing gcc-mingw-w64-x86-64-win32"
if [ -n "$missing" ]; then
    install="apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends$missing"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "missing system packages, install them as root: $install" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of words
    $install >/dev/null 2>&1 </dev/null || { apt-get update >/dev/null && $install >/dev/null </dev/null; }
    echo "installed$missing"
fi

exec .venv/bin/python tools/wine.py "$@"
