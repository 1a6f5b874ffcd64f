# SPDX-License-Identifier: Apache-2.0
"""A machine that nothing happens to: namespaces of our own, and files that are only borrowed.

Somebody else's executables are run as root here, and a directory named by mistake may hold
anything. So the program starts itself anew in fresh network, mount and process namespaces; there
/run is empty (no socket of a service can be reached) and every other directory of / is covered by
an overlay that keeps what is written in memory. All of it ends with the process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from pycni.errors import IOFailure

INSIDE = "PYCNI_CONFORMANCE_INSIDE"
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
RUN = Path("/run")
LAYERS = RUN / "pycni-conformance-layers"
KERNELS = ("proc", "sys", "dev", "run")
SEARCH = "/usr/sbin:/sbin:/usr/bin:/bin"


def enter() -> str:
    """Run this command again, inside, and exit as it does; return "" there.

    Otherwise: what keeps us from it.
    """
    if os.environ.pop(INSIDE, "") == "1":
        return ""
    if os.geteuid() != 0:
        return "not root: try sudo, or unshare --map-root-user"
    program = shutil.which("unshare", path=f"{os.environ.get('PATH', '')}:{SEARCH}")
    if program is None:
        return "unshare is missing: install util-linux"
    tried = subprocess.run([program, *NAMESPACES, "true"], capture_output=True, check=False)
    if tried.returncode:
        return f"no namespaces here: {tried.stderr.decode(errors='replace').strip()}"
    environment = {**os.environ, INSIDE: "1"}
    command = [program, *NAMESPACES, sys.executable, "-m", "pycni.cli.main", *sys.argv[1:]]
    return _exit_as(subprocess.Popen(command, env=environment))


def _exit_as(process: subprocess.Popen[bytes]) -> NoReturn:
    """Wait for it and exit with its status; it ends when we are told to.

    unshare itself ignores SIGTERM, but takes everything along when it is killed.
    """

    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    try:
        status = process.wait()
    except KeyboardInterrupt:  # the terminal has told the command too
        sys.exit(128 + signal.SIGINT)
    finally:
        process.kill()
        process.wait()
    sys.exit(status if status >= 0 else 128 - status)


def cover(bin_dir: Path) -> list[str]:
    """Cover the machine's files; return the directories that could only be made read-only.

    Plugins below /run are put back there. To be called inside, before anything is made.
    """
    os.chdir("/")  # the directory we were started in is below the overlays
    _mount("--make-rprivate", "/")
    real, kept = bin_dir.resolve(), ""
    if real.is_relative_to(RUN):
        kept = tempfile.mkdtemp(prefix="pycni-conformance-")
        _mount("--bind", str(real), kept)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(RUN))
    if kept:
        real.mkdir(parents=True)
        _mount("--move", kept, str(real))
        os.rmdir(kept)
    read_only = []
    mounts = _mount_points()
    for top in sorted(Path("/").iterdir()):
        if top.is_symlink() or not top.is_dir() or top.name in KERNELS:
            continue
        below = [point for point in mounts if point.is_relative_to(top) and point != top]
        if below or not _overlay(top):
            _protect(top, below)
            read_only.append(str(top))
    # The devices of /sys/class/net are those of the namespace it was mounted from.
    subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], capture_output=True, check=False)
    return read_only


def _overlay(top: Path) -> bool:
    upper, work = LAYERS / top.name / "upper", LAYERS / top.name / "work"
    for directory in (upper, work):
        directory.mkdir(parents=True)
    shutil.copystat(top, upper)
    options = f"lowerdir={top},upperdir={upper},workdir={work}"
    command = ["mount", "-t", "overlay", "-o", options, "overlay", str(top)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _protect(top: Path, below: list[Path]) -> None:
    """Make a directory and the file systems mounted below it read-only for us."""
    _mount("--rbind", str(top), str(top))
    for point in (top, *below):
        _mount("-o", "remount,bind,ro", str(point))


def _mount_points() -> list[Path]:
    lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    return [Path(line.split()[4].encode().decode("unicode_escape")) for line in lines]


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise IOFailure(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
