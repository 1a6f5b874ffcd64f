# SPDX-License-Identifier: Apache-2.0
"""The plugin executables of a directory: laid out, told from other people's, taken away again.

Every executable is the same shim under another name. The compiled one has three fields, found by
their marks: the socket of the service, the interpreter to fall back to and where its packages are.
The Python one has a shebang and two assignments. A foreign file of a plugin's name is never lost:
with `force` it is kept beside ours as NAME.pycni-backup, and `uninstall` puts it back.
"""

from __future__ import annotations

import importlib.resources
import os
import platform
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

import pycni
from pycni.errors import InvalidConfig, IOFailure
from pycni.exec import shim_build
from pycni.exec.whole_network import CAPABILITIES, TYPE
from pycni.model.names import NetworkName
from pycni.plugins import BUILTIN

DEFAULT_BIN_DIR = Path("/opt/cni/bin")
BACKUP_SUFFIX = ".pycni-backup"

# As in shim.c: a field is a mark, a path and zeros.
FIELD_SIZE = 1024
SOCKET_MARK = b"@pycni-socket--@"
INTERPRETER_MARK = b"@pycni-python--@"
PACKAGES_MARK = b"@pycni-packages@"

# The second line of an executable that is the Python shim.
PYTHON_MARK = b"# A plugin executable of pycni.\n"
SOCKET_LIMIT = 107  # bytes: sockaddr_un has one more, for the zero
SHEBANG_LIMIT = 127  # bytes the oldest kernels supported read of the first line

PLUGINS = (*(name for name in BUILTIN if not name.startswith("win-")), TYPE)


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation or its removal did; what is in none was as it should be."""

    written: tuple[Path, ...] = ()
    removed: tuple[Path, ...] = ()
    backed_up: tuple[Path, ...] = ()
    restored: tuple[Path, ...] = ()


def prebuilt() -> bytes | None:
    """The compiled shim that came with the package, if it has one for this machine."""
    resource = importlib.resources.files("pycni.exec") / shim_build.prebuilt_name(
        platform.machine()
    )
    try:
        return resource.read_bytes()
    except OSError:
        return None


def packages() -> str:
    """Where pycni and what its plugins import are; "" if that cannot stand in an executable."""
    roots = dict.fromkeys(
        str(Path(module.__file__ or "").parents[1]) for module in (pycni, msgspec)
    )
    return "" if ":" in "".join(roots) else ":".join(roots)


def compiled_shim(binary: bytes, *, socket: str, interpreter: str, packages: str = "") -> bytes:
    """A compiled shim with its fields filled in.

    Without the `packages` of the interpreter it looks for them each time, which takes 2 ms.
    """
    _check_socket(socket)
    for mark, value in (
        (SOCKET_MARK, socket),
        (INTERPRETER_MARK, interpreter),
        (PACKAGES_MARK, packages),
    ):
        binary = _fill(binary, mark, value)
    return binary


def python_shim(*, socket: str, interpreter: str, packages: str = "") -> bytes:
    """The Python shim for this interpreter; raise InvalidConfig if no shebang can name it."""
    _check_socket(socket)
    shebang = f"#!{interpreter} -IS\n".encode()
    if len(shebang) > SHEBANG_LIMIT or any(char.isspace() for char in interpreter):
        raise InvalidConfig(
            f"the interpreter's path cannot stand in a first line: {interpreter}",
            hint="install a C compiler, or pycni at a shorter path",
        )
    text = (importlib.resources.files("pycni.exec") / "shim.py").read_text()
    for name, value in (("SOCKET", socket), ("PACKAGES", packages)):
        before, found, rest = text.partition(f"\n{name} = ")
        assert found, f"shim.py assigns {name}"
        text = f"{before}\n{name} = {value!r}\n{rest.partition(chr(10))[2]}"
    return shebang + PYTHON_MARK + text.encode()


def is_ours(path: Path) -> bool:
    """Whether the file is an executable that `install` wrote."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise IOFailure(f"cannot read {path}: {exc.strerror}") from exc
    head, _, rest = content.partition(b"\n")
    if head.startswith(b"#!"):
        return rest.startswith(PYTHON_MARK)
    return SOCKET_MARK in content and INTERPRETER_MARK in content


def install(
    directory: Path, shim: bytes, *, names: Iterable[str] = PLUGINS, force: bool = False
) -> Changes:
    """Make each name an executable that is `shim`; all or, before the first one, none.

    Raises IOFailure naming every foreign file in the way, unless `force` is given.
    """
    targets = [directory / name for name in names]
    foreign = [path for path in targets if os.path.lexists(path) and not is_ours(path)]
    blocked = foreign if not force else [path for path in foreign if _is_directory(path)]
    if blocked:
        raise IOFailure(
            f"not pycni's: {', '.join(map(str, blocked))}",
            hint="" if force else f"--force replaces them and keeps each as NAME{BACKUP_SUFFIX}",
        )
    backed_up, written = [], []
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path in targets:
            if path in foreign:
                backup = path.with_name(path.name + BACKUP_SUFFIX)
                _keep(path, backup)
                backed_up.append(backup)
            elif _is_current(path, shim):
                continue
            _replace(path, shim, 0o755)
            written.append(path)
    except OSError as exc:
        raise IOFailure(f"cannot install into {directory}: {exc}") from exc
    return Changes(written=tuple(written), backed_up=tuple(backed_up))


def uninstall(directory: Path) -> Changes:
    """Remove every executable of ours, and give back what was in its place before."""
    removed, restored = [], []
    try:
        entries = sorted(directory.iterdir()) if directory.is_dir() else []
        for path in entries:
            if path.name.endswith(BACKUP_SUFFIX) or not is_ours(path):
                continue
            backup = path.with_name(path.name + BACKUP_SUFFIX)
            if os.path.lexists(backup):
                backup.replace(path)
                restored.append(path)
            else:
                path.unlink()
            removed.append(path)
    except OSError as exc:
        raise IOFailure(f"cannot uninstall from {directory}: {exc}") from exc
    return Changes(removed=tuple(removed), restored=tuple(restored))


# -- configurations that name a network of the service ---------------------------------------------


def check_reference(directory: Path, network: str, *, force: bool = False) -> Path:
    """Where `write_reference` would write; raise what it would raise, before anything is done."""
    path = directory / f"10-{NetworkName.parse(network)}.conflist"
    if os.path.lexists(path) and not is_reference(path) and (not force or _is_directory(path)):
        raise IOFailure(
            f"not pycni's: {path}",
            hint="" if force else f"--force keeps it as NAME{BACKUP_SUFFIX}",
        )
    return path


def write_reference(directory: Path, network: str, *, force: bool = False) -> Changes:
    """Write a configuration list for other runtimes whose one plugin runs the whole `network`."""
    path = check_reference(directory, network, force=force)
    content = reference(network)
    if is_reference(path):
        return Changes()
    backed_up: tuple[Path, ...] = ()
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if os.path.lexists(path):
            backup = path.with_name(path.name + BACKUP_SUFFIX)
            _keep(path, backup)
            backed_up = (backup,)
        _replace(path, content, 0o644)
    except OSError as exc:
        raise IOFailure(f"cannot write {path}: {exc.strerror}") from exc
    return Changes(written=(path,), backed_up=backed_up)


def remove_references(directory: Path) -> Changes:
    """Remove what `write_reference` wrote; a file edited since is somebody else's."""
    removed, restored = [], []
    try:
        for path in sorted(directory.glob("10-*.conflist")):
            if not is_reference(path):
                continue
            backup = path.with_name(path.name + BACKUP_SUFFIX)
            if os.path.lexists(backup):
                backup.replace(path)
                restored.append(path)
            else:
                path.unlink()
            removed.append(path)
    except OSError as exc:
        raise IOFailure(f"cannot remove from {directory}: {exc}") from exc
    return Changes(removed=tuple(removed), restored=tuple(restored))


def reference(network: str) -> bytes:
    """The configuration list of `write_reference`.

    Old runtimes read cniVersion alone, and know 1.0.0; newer ones choose 1.1.0, with GC and STATUS.
    Every conventional capability is declared: the network takes those its own plugins declare.
    """
    plugin = {"type": TYPE, "network": network, "capabilities": dict.fromkeys(CAPABILITIES, True)}
    return (
        msgspec.json.format(
            msgspec.json.encode(
                {
                    "cniVersion": "1.0.0",
                    "cniVersions": ["1.0.0", "1.1.0"],
                    "name": network,
                    "plugins": [plugin],
                }
            ),
            indent=2,
        )
        + b"\n"
    )


def is_reference(path: Path) -> bool:
    """Whether the file is what `write_reference` writes under that name."""
    network = path.name.removeprefix("10-").removesuffix(".conflist")
    return path.is_file() and path.read_bytes() == reference(network)


# -- files -----------------------------------------------------------------------------------------


def _fill(binary: bytes, mark: bytes, value: str) -> bytes:
    encoded = os.fsencode(value)
    start = binary.find(mark)
    if start < 0 or binary.count(mark) != 1:
        raise InvalidConfig(f"the compiled shim has no single field {mark.decode()}")
    if len(encoded) >= FIELD_SIZE - len(mark) or b"\0" in encoded:
        raise InvalidConfig(f"too long for the shim: {value}")
    field = (mark + encoded).ljust(FIELD_SIZE, b"\0")
    return binary[:start] + field + binary[start + FIELD_SIZE :]


def _check_socket(path: str) -> None:
    """Else every execution would do without the service, and nobody be told."""
    if len(os.fsencode(path)) > SOCKET_LIMIT:
        raise InvalidConfig(f"too long for a socket: {path}")


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_current(path: Path, content: bytes) -> bool:
    return (
        path.is_file()
        and path.read_bytes() == content
        and stat.S_IMODE(path.stat().st_mode) == 0o755
    )


def _keep(path: Path, backup: Path) -> None:
    """Give the file a second name: until it is replaced, runtimes find the old plugin."""
    if path.is_symlink():
        os.replace(path, backup)  # a link to a link is not portable
        return
    spare = backup.with_name(f".{backup.name}.{secrets.token_hex(4)}")
    os.link(path, spare)
    os.replace(spare, backup)


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Write beside and rename: a runtime finds the old file or the new one, and never a part."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            os.fchmod(fd, mode)
            file.flush()
            os.fsync(fd)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
