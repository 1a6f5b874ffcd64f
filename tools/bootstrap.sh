#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Set up what a make target needs, and nothing else; say one line for each thing installed.
#
#   tools/bootstrap.sh check    .venv with the development dependencies
#   tools/bootstrap.sh demo     .venv with the runtime dependencies, the system packages of the demo
#   tools/bootstrap.sh test     .venv with the development dependencies, every system package
#   tools/bootstrap.sh bench    as test
#   tools/bootstrap.sh test-clients    as test, and the runtimes that run the plugins; also for
#                                      make bench-clients
#
# Python dependencies come from the hashed locks, system packages from the distribution's package
# manager. Running it again when nothing is missing takes a few milliseconds. Without root it says
# what is missing and how to get it, and exits with 1.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
unset PYTHONPATH PYTHONHOME

VENV=.venv
# What the service needs of an interpreter; distributions and version managers leave parts out.
USABLE='import sys, ssl, sqlite3, ctypes, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'

say() { printf '%s\n' "$*"; }
die() { printf '%s\n' "$@" >&2; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }

# --- the distribution's package manager ---

package_manager() {
    for manager in apt-get dnf apk; do
        if command -v "$manager" >/dev/null 2>&1; then say "$manager"; return; fi
    done
}
MANAGER=$(package_manager)

install_command() {
    case $MANAGER in
        apt-get) say "apt-get install -y --no-install-recommends" ;;
        dnf) say "dnf install -y --setopt=install_weak_deps=False" ;;
        apk) say "apk add" ;;
        *) say "install, with your distribution's package manager:" ;;
    esac
}

run_quietly() {
    log=$(mktemp)
    if "$@" >"$log" 2>&1 </dev/null; then rm -f "$log"; return 0; fi
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
}

# install_packages NAME... - install them, or say how to and exit.
install_packages() {
    [ $# -gt 0 ] || return 0
    if ! is_root || [ -z "$MANAGER" ]; then
        die "missing system packages: $*" "install them as root:" "    $(install_command) $*"
    fi
    command=$(install_command)
    if [ "$MANAGER" = apt-get ]; then
        export DEBIAN_FRONTEND=noninteractive
        # A fresh machine may be busy upgrading itself.
        command="$command -o DPkg::Lock::Timeout=600"
    fi
    # Old package lists name files that are gone: refresh them only when the first try fails.
    # shellcheck disable=SC2086 # the command is several words
    if ! $command "$@" >/dev/null 2>&1 </dev/null; then
        [ "$MANAGER" != apt-get ] || run_quietly apt-get update || die "apt-get update failed"
        # shellcheck disable=SC2086 # the command is several words
        run_quietly $command "$@" || die "could not install: $*"
    fi
    for name in "$@"; do say "installed $name"; done
}

# --- system packages ---

has_command() { command -v "$1" >/dev/null 2>&1; }
has_file() { for path in "$@"; do [ -e "$path" ] && return 0; done; return 1; }

# names APT DNF APK - the package's name here.
names() {
    case $MANAGER in
        dnf) say "$2" ;;
        apk) say "$3" ;;
        *) say "$1" ;;
    esac
}

missing_for_demo() {
    has_command ip || names iproute2 iproute iproute2
    has_command nft || names nftables nftables nftables
    has_file /usr/lib/*/libnftables.so.1 /usr/lib/libnftables.so.1 /usr/lib64/libnftables.so.1 ||
        names libnftables1 nftables nftables
    has_command iptables || names iptables iptables-nft iptables
    has_command ping || names iputils-ping iputils iputils
    has_command unshare || names util-linux util-linux util-linux
}

missing_for_test() {
    has_file /usr/lib/cni/bridge /usr/libexec/cni/bridge /opt/cni/bin/bridge ||
        names containernetworking-plugins containernetworking-plugins cni-plugins
    has_command conntrack || names conntrack conntrack-tools conntrack-tools
    has_command sysctl || names procps procps-ng procps
    has_command gcc || names gcc gcc gcc
    has_file /usr/include/stdio.h || names libc6-dev glibc-devel musl-dev
    # The public header that tests/windows checks our prototypes against.
    has_file /usr/share/mingw-w64/include/computenetwork.h \
        /usr/x86_64-w64-mingw32/sys-root/mingw/include/computenetwork.h \
        /usr/x86_64-w64-mingw32/include/computenetwork.h ||
        names mingw-w64-common mingw64-headers mingw-w64-headers
}

missing_for_clients() {
    has_command containerd || names containerd containerd containerd
    has_command runc || names runc runc runc
    has_command podman || names podman podman podman
    # Containers have no libraries.
    { has_file /bin/busybox && ! ldd /bin/busybox >/dev/null 2>&1; } ||
        names busybox-static busybox busybox-static
}

# --- Python ---

python_packages() { names "python3 python3-venv" python3 "python3 py3-pip"; }

find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if "$candidate" -c "$USABLE" >/dev/null 2>&1; then
            # A version manager's shim depends on the directory it is called in: take what it runs.
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
}

ensure_venv() {
    if "$VENV/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        return
    fi
    python=$(find_python)
    if [ -z "$python" ]; then
        # shellcheck disable=SC2046 # a list of words
        install_packages $(python_packages)
        python=$(find_python)
    fi
    [ -n "$python" ] || die "pycni needs Python 3.11 or newer with venv, ssl, sqlite3 and ctypes" \
        "found only: $(python3 --version 2>&1 || say none)" \
        "name a newer one with: make PYTHON=/path/to/python3 ..."
    run_quietly "$python" -m venv --clear "$VENV" || die "could not create $VENV with $python"
    say "created $VENV with $("$python" --version)"
}

pip() {
    "$VENV/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}

# pip_install ARG... - quiet, but one line for each package installed.
pip_install() {
    log=$(mktemp)
    if ! pip install --root-user-action ignore --progress-bar off "$@" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "pip could not install: $*"
    fi
    sed -n 's/^Successfully installed //p' "$log" | tr ' ' '\n' |
        sed -n 's/^\(.*\)-\([^-]*\)$/installed \1 \2/p'
    rm -f "$log"
}

# ensure_python LOCK - .venv holds what LOCK pins, and pycni itself.
ensure_python() {
    ensure_venv
    stamp="$VENV/.$1"
    wanted=$(sha256sum "$1" pyproject.toml src/pycni/__init__.py)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
    pip_install --require-hashes --requirement "$1"
    # From this checkout, with the build backend of the lock: nothing is fetched.
    pip_install --no-deps --no-index --no-build-isolation --editable .
    say "$wanted" >"$stamp"
}

# --- targets ---

require_root() {
    if ! is_root; then
        say "make $1 makes network namespaces and must run as root: sudo make $1" >&2
        missing=$(
            [ -n "$(find_python)" ] || python_packages
            missing_for_demo
            [ "$1" = demo ] || missing_for_test
        )
        # shellcheck disable=SC2086 # a list of words
        [ -z "$missing" ] || install_packages $missing
        exit 1
    fi
}

require_namespaces() {
    unshare --net --mount true 2>/dev/null ||
        die "root may not create namespaces here; in a container, start it with --privileged"
}

target=${1:-}
case $target in
    check)
        ensure_python requirements-dev.lock
        ;;
    demo)
        require_root demo
        # shellcheck disable=SC2046 # a list of words
        install_packages $(missing_for_demo)
        require_namespaces
        # The development environment holds all of the runtime's.
        if [ -f "$VENV/.requirements-dev.lock" ]; then
            ensure_python requirements-dev.lock
        else
            ensure_python requirements.lock
        fi
        ;;
    test | bench)
        require_root "$target"
        # shellcheck disable=SC2046 # a list of words
        install_packages $(missing_for_demo) $(missing_for_test)
        require_namespaces
        ensure_python requirements-dev.lock
        ;;
    test-clients)
        require_root "$target"
        # shellcheck disable=SC2046 # a list of words
        install_packages $(missing_for_demo) $(missing_for_test) $(missing_for_clients)
        require_namespaces
        ensure_python requirements-dev.lock
        ;;
    *)
        die "usage: tools/bootstrap.sh check|demo|test|bench|test-clients"
        ;;
esac
