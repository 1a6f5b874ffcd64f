# SPDX-License-Identifier: Apache-2.0
"""What libcni is to a Go program: run networks without a service, remember them in its cache.

    cni = Libcni(["/opt/cni/bin"])
    network = cni.load("/etc/cni/net.d", "dbnet")
    result = cni.add(network, AttachmentParams(container_id="c1", ifname="eth0", netns=path))

The cache is libcni's: a container that one has attached the other can detach. What libcni does,
this does too (it stops a DEL at the first failure, and leaves the DEL after a failed ADD to its
caller), but for names, which are checked on every verb, and for what the SPEC says otherwise:
`capabilities` are not handed to plugins. As with libcni, nothing keeps two calls for one container
apart, nor a GC from an ADD: that is the caller's part, or the service's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from pycni.errors import CniError
from pycni.kernel.side import Side
from pycni.model.config import NetworkConfigList
from pycni.model.deadline import Deadline
from pycni.model.request import Attachment
from pycni.model.result import Result
from pycni.model.version import at_least
from pycni.runtime.attachments import AttachmentParams
from pycni.runtime.confdir import ConfDir
from pycni.runtime.errors import raise_all
from pycni.runtime.executors import Exec, Executors, InProcess
from pycni.runtime.libcni_cache import DEFAULT_DIR as CACHE_DIR
from pycni.runtime.libcni_cache import CachedAttachment, LibcniCache
from pycni.runtime.runtime import Runtime

__all__ = ["AttachmentParams", "CachedAttachment", "Libcni"]


class Libcni:
    """libcni's CNIConfig: plugins in the directories of `path`, then the built-in ones.

    With `builtin_first` it is the other way round: no process is started for a built-in plugin.
    """

    def __init__(
        self,
        path: Sequence[str] = (),
        *,
        cache_dir: str = CACHE_DIR,
        builtin_first: bool = False,
        keep_capabilities: bool = False,
        host: Side | None = None,
    ) -> None:
        """`keep_capabilities` leaves that key in what plugins are given, against the SPEC, as the
        Go library does."""
        self.cache = LibcniCache(cache_dir)
        self._host = host or Side()
        executables = Exec(path, self._host)
        executors = Executors(
            InProcess(self._host),
            executables,
            prefer_executables=() if builtin_first else executables.types(),
        )
        self.runtime = Runtime(
            executors,
            cleanup_on_failure=False,
            continue_on_error=False,
            keep_capabilities=keep_capabilities,
        )

    def load(self, conf_dir: str, name: str) -> NetworkConfigList:
        """The network of that name, drop-ins appended; libcni's LoadNetworkConf (L14, L15)."""
        return ConfDir(conf_dir).get(name)

    def parse(self, data: bytes) -> NetworkConfigList:
        """The network in a list's or a single plugin's JSON."""
        return NetworkConfigList.parse(data)

    def add(
        self,
        network: NetworkConfigList,
        params: AttachmentParams,
        *,
        deadline: Deadline | None = None,
    ) -> Result:
        """Attach a container and cache the result (L9: one that cannot be cached is a failure)."""
        outcome = self.runtime.add(network, params, deadline=deadline)
        self.cache.write(
            CachedAttachment(
                network=network.name,
                container_id=params.container_id,
                ifname=params.ifname,
                netns=params.netns,
                config=network.json,  # without the drop-ins, as libcni has it (L10)
                cni_args=params.cni_args,
                capability_args=params.capability_args,
                result=outcome.result,
            )
        )
        return Result.parse(outcome.result, default_version=network.cniVersion)

    def delete(
        self,
        network: NetworkConfigList,
        params: AttachmentParams,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        """Detach a container, with the cached result if there is one, and forget it."""
        params.check_names()
        cached = self._find(network, params) if at_least(network.cniVersion, "0.4.0") else None
        prev_result = (cached.result or None) if cached is not None else None
        self.runtime.delete(network, params, prev_result=prev_result, deadline=deadline)
        self.cache.remove(network.name, params.container_id, params.ifname)

    def check(
        self,
        network: NetworkConfigList,
        params: AttachmentParams,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        """Raise unless the container is attached as the cached result says (R18, R19)."""
        params.check_names()
        cached = self._find(network, params)
        prev_result = (cached.result or None) if cached is not None else None
        self.runtime.check(network, params, prev_result=prev_result, deadline=deadline)

    def gc(
        self,
        network: NetworkConfigList,
        valid: Collection[Attachment] | None,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        """Detach what the cache has and `valid` has not, then have the plugins collect (L12).

        None stands for Go's nil: every cached attachment is stale, but the plugins get no list
        and so remove nothing by themselves.
        """
        if network.disableGC:
            return
        keep = frozenset(valid or ())
        errors: list[CniError] = []
        for cached in self.cache.list(network=network.name):
            if cached.entry in keep:
                continue
            try:
                self.delete(network, cached.params, deadline=deadline)
            except CniError as error:
                errors.append(error)
        try:
            self.runtime.gc(network, valid, deadline=deadline)
        except CniError as error:
            errors.extend(getattr(error, "errors", [error]))
        raise_all("GC", errors)

    def status(self, network: NetworkConfigList, *, deadline: Deadline | None = None) -> None:
        """Raise the first plugin's reason why ADD could not be served (R21)."""
        self.runtime.status(network, deadline=deadline)

    def validate(self, network: NetworkConfigList) -> frozenset[str]:
        """Raise what is wrong with the network; return the capabilities it declares (L13)."""
        return self.runtime.validate(network)

    def cached_attachments(self, container_id: str = "") -> tuple[CachedAttachment, ...]:
        """What the cache knows of one container, or of all (L11)."""
        return self.cache.list(container_id=container_id)

    def close(self) -> None:
        """Close the sockets that built-in plugins opened."""
        self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _find(
        self, network: NetworkConfigList, params: AttachmentParams
    ) -> CachedAttachment | None:
        return self.cache.find(network.name, params.container_id, params.ifname)
