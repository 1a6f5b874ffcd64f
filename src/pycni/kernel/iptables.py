# SPDX-License-Identifier: Apache-2.0
"""The nat tables of iptables and ip6tables: who has one, what is in it, and one change at a time.

The only place that starts iptables programs. There are two kinds of tables, and a node may have
both: those of the old iptables, and those that today's keeps in nftables (`ip nat`, `ip6 nat`).
Each is read and changed by programs of its own kind. Where those are not installed there is
nothing to read: who made a table has them.

`in_use` starts nothing: two nf_tables messages and two small files of /proc answer for a node that
has no nat tables, 0.03 ms in all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pycni.errors import KernelError, Unsupported
from pycni.kernel import netns
from pycni.kernel.netns import Netns
from pycni.kernel.nlsocket import failure

if TYPE_CHECKING:
    from pycni.kernel.nft import Nft

_SBIN = ("/usr/sbin", "/sbin")
_LOCK_WAIT_S = 20
_PROGRAM_LIMIT_S = 60


class Nat(NamedTuple):
    """One nat table: an address family's (4 or 6), of the old iptables or in nftables.

    With `legacy` None it is the one that the node's `iptables` uses.
    """

    version: int
    legacy: bool | None

    def find_program(self, verb: str) -> str | None:
        """The path of the `save` or `restore` program for this table; None if there is none."""
        prefix = "iptables" if self.version == 4 else "ip6tables"
        names = [f"{prefix}-{verb}"]
        if self.legacy is not None:
            names.insert(0, f"{prefix}-{'legacy' if self.legacy else 'nft'}-{verb}")
        for name in names:
            for directory in (*os.get_exec_path(), *_SBIN):
                path = os.path.join(directory, name)
                if os.access(path, os.X_OK):
                    return path
        return None


def in_use(
    namespace: Netns | None, nft: Nft, *, has_chain: Callable[[str], bool] | Sequence[str]
) -> list[Nat]:
    """The nat tables worth reading: those that have one of these chains.

    Or one whose name the function approves. The old iptables cannot be asked for less than the
    whole table, so any table of its own is worth it.
    """
    found = []
    for version, family in ((4, "ip"), (6, "ip6")):
        maps = nft.maps(family, "nat")
        if callable(has_chain):
            known = maps.table_exists() and any(map(has_chain, maps.list_chains()))
        else:
            known = any(uses is not None for uses in maps.chain_uses(has_chain))
        if known:
            found.append(Nat(version, legacy=False))
    legacy = netns.run(namespace, _legacy_versions)
    return found + [Nat(version, legacy=True) for version in legacy]


def read(namespace: Netns | None, nat: Nat) -> list[str]:
    """The rules of the table as `-A CHAIN …`, and its own chains as `:CHAIN`."""
    program = nat.find_program("save")
    if program is None:
        return []
    saved = _run(namespace, [program, "-t", "nat"], "")
    return [
        line.split(" ", 1)[0] if line.startswith(":") else line
        for line in saved.splitlines()
        if line.startswith(("-A ", ":"))
    ]


def change(namespace: Netns | None, nat: Nat, commands: Iterable[str]) -> None:
    """Apply commands (`-A CHAIN …`, `-D CHAIN …`, `-N CHAIN`, `-X CHAIN`) whole or not at all.

    KernelError also when a rule or chain to be removed is gone, or one to be made is there: the old
    iptables does not say why.
    """
    program = _need_program(nat)
    text = "\n".join(["*nat", *commands, "COMMIT", ""])
    _run(namespace, [program, "--noflush", "--wait", str(_LOCK_WAIT_S)], text)


@contextlib.contextmanager
def exclusive(namespace: Netns | None) -> Iterator[None]:
    """Keep everybody else who asks for this out, in whatever process, from reading to changing.

    iptables' own lock lasts for one program, and today's iptables has none: two who find a rule
    missing both add it. The lock is on the namespace itself, so that there is no file to agree on.
    """
    path = "/proc/thread-self/ns/net"
    fd = netns.run(namespace, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def probe() -> None:
    """Raise Unsupported unless there are programs to change IPv4's table with."""
    _need_program(Nat(4, legacy=None))


def _need_program(nat: Nat) -> str:
    program = nat.find_program("restore")
    if program is None:
        raise Unsupported(
            "run",
            "iptables-restore",
            errno.ENOENT,
            "it is not installed",
            hint="install the package iptables, or choose the nftables backend",
        )
    return program


def _legacy_versions() -> list[int]:
    versions = []
    for version, family in ((4, "ip"), (6, "ip6")):
        try:
            # /proc/net would be the main thread's.
            with open(f"/proc/thread-self/net/{family}_tables_names", encoding="ascii") as names:
                if "nat" in names.read().split():
                    versions.append(version)
        except OSError:
            continue  # the kernel has none, or has not loaded them
    return versions


def _run(namespace: Netns | None, command: list[str], stdin: str) -> str:
    import subprocess  # 9 ms, which a node without these tables need not pay

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - a program of `find_program`, the rules on stdin
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_LIMIT_S,
            check=False,
        )

    name = os.path.basename(command[0])
    try:
        done = netns.run(namespace, run)
    except subprocess.TimeoutExpired as exc:
        reason = f"no end after {_PROGRAM_LIMIT_S} s"
        raise KernelError("run", name, errno.ETIMEDOUT, reason) from exc
    except OSError as exc:
        raise failure("run", name, exc.errno or errno.EIO, str(exc)) from exc
    if done.returncode:
        raise failure("run", name, errno.EINVAL, " ".join(done.stderr.split()))
    return done.stdout
