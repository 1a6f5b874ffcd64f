# SPDX-License-Identifier: Apache-2.0
"""libcni's cache of attachments: one file for each, which libcni reads and so do we.

`<cache dir>/results/<network>-<container id>-<ifname>` holds what an ADD was given and what came of
it. A node can thus be taken over from libcni, and given back, with its containers running.

libcni writes these files in place and without syncing them, so a power loss leaves empty ones. A
file that cannot be read as a whole is as good as none, and is logged. The names are ambiguous
(network `a-b` with id `c` is network `a` with id `b-c`): whose a file is, its content tells.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from typing import Any

from msgspec import Raw, Struct

from pycni.errors import CniError, InvalidConfig, IOFailure
from pycni.log import Log
from pycni.model import jsonio, request
from pycni.model.config import NetworkConfigList
from pycni.model.names import ContainerId, IfName, NetworkName
from pycni.model.result import Result
from pycni.runtime.attachments import (
    RUNTIME_LABEL,
    Attachment,
    AttachmentKey,
    AttachmentParams,
    State,
)
from pycni.runtime.confdir import is_reference
from pycni.runtime.networks import parse_network

log = Log(__name__)

DEFAULT_DIR = "/var/lib/cni"
KIND = "cniCacheV1"
MAX_BYTES = 8 << 20  # of one file
_NAME_MAX = 255
# Caches older than libcni 0.8 hold the bare result; one of these keys tells it from other JSON.
_RESULT_KEYS = frozenset(
    map(jsonio.fold_key, ("cniVersion", "interfaces", "ips", "routes", "dns", "ip4", "ip6"))
)


class CachedAttachment(Struct, frozen=True, kw_only=True):
    """What an ADD was given and what came of it.

    `config` is the network's list as it came, without drop-ins, and empty in a legacy file, which
    holds only the `result`. `result` is JSON, empty if there was none.
    """

    network: str
    container_id: str
    ifname: str
    netns: str = ""
    config: bytes = b""
    cni_args: tuple[tuple[str, str], ...] = ()
    capability_args: dict[str, Raw] = {}
    result: bytes = b""

    def parse_result(self, default_version: str) -> Result:
        """The result, typed; one without a version has `default_version`."""
        return Result.parse(self.result or b"null", default_version=default_version)

    @property
    def entry(self) -> request.Attachment:
        """This attachment as a list of valid ones has it."""
        return request.Attachment(ContainerId(self.container_id), IfName(self.ifname))

    @property
    def params(self) -> AttachmentParams:
        """The parameters of its ADD."""
        return AttachmentParams(
            container_id=self.container_id,
            ifname=self.ifname,
            netns=self.netns,
            cni_args=self.cni_args,
            capability_args=self.capability_args,
        )


_NO_RESULT = Raw(b"")


class _CacheFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The file as libcni spells it, in its order."""

    kind: str
    containerId: str
    config: bytes
    ifName: str
    networkName: str
    netns: str = ""
    cniArgs: list[list[str]] = []
    capabilityArgs: dict[str, Raw] = {}
    result: Raw = _NO_RESULT


class _Kind(Struct, frozen=True):
    kind: Any = ""


class LibcniCache:
    """The cache in one directory; safe to share between threads and processes.

    With `durable` a written file survives a power loss, at the price of two syncs.
    """

    def __init__(self, path: str = DEFAULT_DIR, *, durable: bool = True) -> None:
        self.path = path
        self.results = os.path.join(path, "results")
        self._durable = durable

    def file(self, network: str, container_id: str, ifname: str) -> str:
        """The path of an attachment's file; the names are checked before they are joined."""
        NetworkName.parse(network)
        ContainerId.parse(container_id)
        IfName.parse(ifname)
        return os.path.join(self.results, f"{network}-{container_id}-{ifname}")

    def find(self, network: str, container_id: str, ifname: str) -> CachedAttachment | None:
        """The attachment's entry, or None if there is none that can be read."""
        path = self.file(network, container_id, ifname)
        entry = _read_entry(path)
        if isinstance(entry, bytes):  # legacy: the name is all that tells whose it is
            return CachedAttachment(
                network=network, container_id=container_id, ifname=ifname, result=entry
            )
        if entry is not None and _key(entry) != (network, container_id, ifname):
            log.warning("ignored cache file %s: it belongs to %s", path, "/".join(_key(entry)))
            return None
        return entry

    def write(self, entry: CachedAttachment) -> None:
        """Write the entry, all of it or nothing; raise IOFailure (libcni fails the ADD then)."""
        path = self.file(*_key(entry))
        if len(os.fsencode(os.path.basename(path))) > _NAME_MAX:
            raise IOFailure(f"cannot cache the result: {path} is too long a file name")
        try:
            os.makedirs(self.results, mode=0o700, exist_ok=True)
            self._replace(path, _encode_entry(entry))
        except OSError as exc:
            raise IOFailure(f"cannot write {path}: {exc.strerror}") from exc

    def remember(self, attachment: Attachment) -> None:
        """Write what libcni's callers should find of an attachment that is stored elsewhere too.

        A failure is only logged: the store is what the node itself relies on.
        """
        if RUNTIME_LABEL in attachment.labels:
            return
        entry = CachedAttachment(
            network=attachment.network,
            container_id=attachment.container_id,
            ifname=attachment.ifname,
            netns=attachment.netns,
            config=attachment.config,
            cni_args=attachment.cni_args,
            capability_args=attachment.capability_args,
            result=attachment.result or b"",
        )
        try:
            self.write(entry)
        except IOFailure as error:
            log.warning("%s is not in libcni's cache: %s", attachment.key, error)

    def adopt(
        self, key: AttachmentKey, network: NetworkConfigList | None, *, boot_id: str
    ) -> Attachment | None:
        """The entry as if this node had made the attachment, or None if too little is known.

        `network` is the network of that name as it is now: it counts where the entry has no
        configuration of its own (legacy files), and where the entry's lacks only the drop-ins.
        """
        entry = self.find(key.network, key.container_id, key.ifname)
        if entry is None:
            return None
        given = network.resolved if network is not None else b""
        own = entry.config
        if not own or (network is not None and own == network.json) or _refers(own):
            own = given
        if not own:
            return None
        path = self.file(key.network, key.container_id, key.ifname)
        return Attachment(
            network=key.network,
            container_id=key.container_id,
            ifname=key.ifname,
            # A path from before the last boot leads to some other namespace now, if to any.
            netns=entry.netns if _is_of_this_boot(path) else "",
            state=State.READY,
            config=own,
            source=network.source if network is not None and own == given else "",
            inline=network is None,
            cni_args=entry.cni_args,
            capability_args=entry.capability_args,
            result=entry.result or None,
            boot_id=boot_id,
        )

    def forget(self, attachment: Attachment) -> None:
        """Remove what `remember` wrote; a failure is only logged."""
        if RUNTIME_LABEL in attachment.labels:
            return
        try:
            self.remove(attachment.network, attachment.container_id, attachment.ifname)
        except IOFailure as error:
            log.warning("%s stays in libcni's cache: %s", attachment.key, error)

    def remove(self, network: str, container_id: str, ifname: str) -> None:
        """Remove the attachment's file, readable or not; absent, or another's, is fine."""
        path = self.file(network, container_id, ifname)
        entry = _read_entry(path)
        if isinstance(entry, CachedAttachment) and _key(entry) != (network, container_id, ifname):
            return
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise IOFailure(f"cannot remove {path}: {exc.strerror}") from exc

    def list(self, *, container_id: str = "", network: str = "") -> tuple[CachedAttachment, ...]:
        """The entries, sorted by file name, of one container or one network if given (L11).

        Legacy files are left out, as they do not say whose they are. A directory that does not
        exist, or cannot be read, has none.
        """
        return tuple(
            entry
            for entry in self._entries()
            if container_id in ("", entry.container_id) and network in ("", entry.network)
        )

    def attachments(self, network: str) -> frozenset[request.Attachment]:
        """Who is attached to the network, as far as libcni's callers are concerned (L12)."""
        return frozenset(cached.entry for cached in self.list(network=network))

    def _entries(self) -> Iterator[CachedAttachment]:
        try:
            names = sorted(os.listdir(self.results), key=os.fsencode)
        except FileNotFoundError:
            return
        except OSError as exc:
            log.warning("cannot list %s: %s", self.results, exc.strerror)
            return
        for name in names:
            entry = _read_entry(os.path.join(self.results, name))
            if isinstance(entry, CachedAttachment):
                yield entry

    def _replace(self, path: str, data: bytes) -> None:
        # Beside `results`, not in it: libcni takes any file in there for an attachment.
        temporary = os.path.join(self.path, f".pycni-{os.urandom(8).hex()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                if self._durable:
                    os.fsync(fd)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        if self._durable:
            _sync_directory(self.results)


def _key(entry: CachedAttachment) -> tuple[str, str, str]:
    return entry.network, entry.container_id, entry.ifname


def _encode_entry(entry: CachedAttachment) -> bytes:
    return jsonio.encode(
        _CacheFile(
            kind=KIND,
            containerId=entry.container_id,
            config=entry.config,
            ifName=entry.ifname,
            networkName=entry.network,
            netns=entry.netns,
            cniArgs=[list(pair) for pair in entry.cni_args],
            capabilityArgs=entry.capability_args,
            result=Raw(entry.result) if entry.result else _NO_RESULT,
        )
    )


def _read_entry(path: str) -> CachedAttachment | bytes | None:
    """The entry in a file, or a legacy file's result; None, with a warning, if it has neither."""
    try:
        return _decode_entry(_read(path))
    except FileNotFoundError:
        return None
    except OSError as exc:
        log.warning("ignored cache file %s: %s", path, exc.strerror)
    except CniError as error:
        log.warning("ignored cache file %s: %s", path, error)
    return None


def _decode_entry(data: bytes) -> CachedAttachment | bytes:
    if jsonio.decode(data, _Kind).kind != KIND:
        members = {jsonio.fold_key(key) for key in jsonio.decode_raw_object(data)}
        if members.isdisjoint(_RESULT_KEYS):
            raise InvalidConfig("not a cache file, nor a result")
        Result.parse(data)
        return data
    file = jsonio.decode(data, _CacheFile)
    pairs = []
    for index, pair in enumerate(file.cniArgs):
        if len(pair) != 2:
            raise InvalidConfig(f"cniArgs[{index}]: not a pair")
        pairs.append((pair[0], pair[1]))
    return CachedAttachment(
        network=NetworkName.parse(file.networkName),
        container_id=ContainerId.parse(file.containerId),
        ifname=IfName.parse(file.ifName),
        netns=file.netns,
        config=file.config,
        cni_args=tuple(pairs),
        capability_args=file.capabilityArgs,
        result=bytes(file.result),
    )


def _read(path: str) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidConfig("not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidConfig(f"larger than {MAX_BYTES >> 20} MiB")
    return data


def _refers(config: bytes) -> bool:
    """Whether the configuration is a reference to a network of a node."""
    try:
        return is_reference(parse_network(config))
    except CniError:
        return False


def _is_of_this_boot(path: str) -> bool:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:
        return True
    try:
        return os.stat(path).st_mtime >= time.time() - time.clock_gettime(clock)
    except OSError:
        return False


def _sync_directory(path: str) -> None:
    if os.name != "posix":  # elsewhere a directory cannot be opened, nor need it be
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
