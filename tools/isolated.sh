#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run a command in network and mount namespaces of its own, with an empty /run: it cannot disturb
# the machine's links, routes, rules, sockets and named namespaces, or be disturbed by them.
#
#   tools/isolated.sh COMMAND [ARG...]
set -eu
PATH=$PATH:/usr/sbin:/sbin
# shellcheck disable=SC2016 # expanded by the inner shell
exec unshare --net --mount --propagation private -- sh -eu -c '
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir /run/netns /run/lock
    ip link set lo up
    exec "$@"
' isolated "$@"
