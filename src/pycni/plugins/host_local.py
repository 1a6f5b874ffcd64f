# SPDX-License-Identifier: Apache-2.0
"""IPAM `host-local`: addresses from ranges of this node, leased in a directory of small files.

Both this plugin and the Go plugin can use one directory at the same time (net/leases.py).

Codes: a wrong configuration is 7, a wrong CNI_ARGS 4, a failing file 5, a lock that cannot be had
in time 11. A range without a free address is 999 on ADD, as in the Go plugin: it is not known to
clear up by waiting, and 11 would have runtimes hammer the node. STATUS says 50 for it beforehand.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from msgspec import Struct

from pycni.errors import CniError, InvalidConfig, InvalidEnvironment, IOFailure, NotAvailable
from pycni.kernel.directory import find_obstacle, io_faults
from pycni.model.addresses import IPAddress, parse_cidr, parse_ip
from pycni.model.names import FilePath
from pycni.model.request import CniArgs
from pycni.model.result import DNS, IPConfig, Result, Route
from pycni.model.version import at_least
from pycni.net import leases
from pycni.net.leases import DEFAULT_DATA_DIR, Leases
from pycni.net.ranges import Range, RangeSet, RangeText, parse_range_sets
from pycni.net.undo import Undo
from pycni.plugins.sdk import IPAM, Call, Config, Plugin


class HostLocalIPAM(IPAM, frozen=True, kw_only=True):
    """The `ipam` key. The first four are one range, the old spelling of `ranges`."""

    subnet: str = ""
    rangeStart: str = ""
    rangeEnd: str = ""
    gateway: str = ""
    ranges: tuple[tuple[RangeText, ...], ...] = ()
    routes: tuple[Route, ...] = ()
    dataDir: FilePath = FilePath(DEFAULT_DATA_DIR)
    resolvConf: FilePath = FilePath("")


class CniKeys(Struct, frozen=True, kw_only=True):
    """`args.cni`: what the orchestrator asks for."""

    ips: tuple[str, ...] = ()


class Args(Struct, frozen=True, kw_only=True):
    """The `args` key (CONVENTIONS.md)."""

    cni: CniKeys = CniKeys()


class Capabilities(Struct, frozen=True, kw_only=True):
    """`runtimeConfig`: capabilities `ipRanges` and `ips`."""

    ipRanges: tuple[tuple[RangeText, ...], ...] = ()
    ips: tuple[str, ...] = ()


class HostLocalConfig(Config, frozen=True, kw_only=True):
    """Configuration of a network whose IPAM plugin is host-local."""

    ipam: HostLocalIPAM = HostLocalIPAM()
    args: Args = Args()
    runtimeConfig: Capabilities = Capabilities()


class EnvArgs(CniArgs, frozen=True, kw_only=True):
    """CNI_ARGS: `IP`, with or without a prefix length."""

    IP: str = ""


class HostLocal(Plugin[HostLocalConfig], type="host-local", config=HostLocalConfig):
    """Address management on one node."""

    def add(self, call: Call[HostLocalConfig]) -> Result:
        """Lease one address of every range set, all of them or none."""
        range_sets = parse_ranges(call.config)
        requests = parse_requests(call)
        dns = read_resolv_conf(call.config.ipam.resolvConf)
        with self._locked(call, create=True) as found, Undo() as undo:
            assert found is not None
            ips = [
                lease_one(found, number, range_set, requests, call, undo)
                for number, range_set in enumerate(range_sets)
            ]
            if requests:
                left = " ".join(str(address) for address in requests)
                raise CniError(f"failed to allocate all requested IPs: {left}")
            undo.commit()
        return Result(
            cniVersion=call.config.cniVersion,
            ips=tuple(ips),
            routes=call.config.ipam.routes,
            dns=dns,
        )

    def delete(self, call: Call[HostLocalConfig]) -> None:
        """Release what the attachment holds: by owner, whatever the ranges say now."""
        with self._locked(call) as found:
            if found is not None:
                found.release_owned(call.container_id, call.ifname)

    def check(self, call: Call[HostLocalConfig]) -> None:
        """Raise unless the attachment holds the addresses of its result that are of our ranges."""
        with self._locked(call) as found:
            owned = found.find_owned(call.container_id, call.ifname) if found else ()
        if not owned:
            raise CniError(
                f"host-local: Failed to find address added by container {call.container_id}"
            )
        range_sets = parse_ranges(call.config)
        for ip in call.prev_result.ips if call.prev_result else ():
            ours = any(range_set.find_range(ip.address.ip) for range_set in range_sets)
            if ours and ip.address.ip not in owned:
                raise CniError(
                    f"host-local: {ip.address.ip} is not leased to container {call.container_id}"
                )

    def gc(self, call: Call[HostLocalConfig]) -> None:
        """Release the addresses of attachments that are not valid any more, and ownerless files."""
        if call.valid_attachments is None:
            return
        valid = {(each.container_id, each.ifname) for each in call.valid_attachments}
        with self._locked(call) as found:
            if found is not None:
                found.release_stale(valid)

    def status(self, call: Call[HostLocalConfig]) -> None:
        """Raise NotAvailable (50) if an ADD would fail: bad ranges, no free address, no disk."""
        try:
            range_sets = parse_ranges(call.config)
            read_resolv_conf(call.config.ipam.resolvConf)
        except (InvalidConfig, IOFailure) as exc:
            raise NotAvailable(exc.msg, exc.details) from exc
        obstacle = find_obstacle(leases.directory_of(call.config.ipam.dataDir, call.config.name))
        if obstacle is not None:
            raise NotAvailable(f"host-local cannot lease addresses: {obstacle}")
        with self._locked(call) as found:
            for range_set in range_sets:
                if found is not None and find_free(found, range_set) is None:
                    raise NotAvailable(*exhaustion(found, range_set))

    def validate(self, config: HostLocalConfig) -> None:
        """Raise for wrong ranges; that there are any may be the runtime's business."""
        parse_ranges(config, required=False)

    def _locked(
        self, call: Call[HostLocalConfig], *, create: bool = False
    ) -> AbstractContextManager[Leases | None]:
        """The network's leases under its lock; None if it has no directory and needs none."""
        config = call.config
        return leases.locked(config.ipam.dataDir, config.name, call.deadline, create=create)


def parse_ranges(config: HostLocalConfig, *, required: bool = True) -> tuple[RangeSet, ...]:
    """The range sets in the order that numbers them: capability, old spelling, `ranges`."""
    ipam = config.ipam
    texts = [
        (f"runtimeConfig.ipRanges[{number}]", ranges)
        for number, ranges in enumerate(config.runtimeConfig.ipRanges)
    ]
    if ipam.subnet:
        keys = {key: getattr(ipam, key) for key in RangeText.__struct_fields__}
        texts.append(("ipam", (RangeText(**keys),)))
    texts.extend((f"ipam.ranges[{number}]", ranges) for number, ranges in enumerate(ipam.ranges))
    if required and not texts:
        if ipam == HostLocalIPAM():
            raise InvalidConfig("ipam: IPAM config missing 'ipam' key")
        raise InvalidConfig("ipam.ranges: no IP ranges specified")
    range_sets = parse_range_sets(tuple(texts))
    families = [range_set.version for range_set in range_sets]
    if len(families) > len(set(families)) and not at_least(config.cniVersion, "0.3.0"):
        raise InvalidConfig(
            f"ipam.ranges: CNI version {config.cniVersion} does not support more than 1 address "
            "per family"
        )
    return range_sets


def parse_requests(call: Call[HostLocalConfig]) -> list[IPAddress]:
    """The addresses asked for by CNI_ARGS, `args` and the `ips` capability, all together."""
    asked: list[IPAddress] = []
    if text := EnvArgs.parse(call.request.args).IP:
        try:
            asked.append(parse_request("IP", text))
        except InvalidConfig as exc:
            raise InvalidEnvironment(f"CNI_ARGS: {exc.msg}") from exc
    for path, texts in (
        ("args.cni.ips", call.config.args.cni.ips),
        ("runtimeConfig.ips", call.config.runtimeConfig.ips),
    ):
        asked.extend(parse_request(f"{path}[{i}]", text) for i, text in enumerate(texts))
    return list(dict.fromkeys(asked))


def parse_request(path: str, text: str) -> IPAddress:
    """One address, with or without a prefix length; the length is the subnet's anyway."""
    try:
        return parse_cidr(text).ip if "/" in text else parse_ip(text)
    except InvalidConfig as exc:
        raise InvalidConfig(f"{path}: {exc.msg}") from exc


def lease_one(
    found: Leases,
    number: int,
    range_set: RangeSet,
    requests: list[IPAddress],
    call: Call[HostLocalConfig],
    undo: Undo,
) -> IPConfig:
    """Lease an address of `range_set`: the one of `requests` that is in it, else the next free."""
    wanted = next((address for address in requests if range_set.find_range(address)), None)
    try:
        if wanted is not None:
            requests.remove(wanted)
            within, address = take_requested(found, range_set, wanted, call)
        else:
            within, address = take_next(found, number, range_set, call)
    except CniError as exc:
        exc.msg = f"failed to allocate for range {number}: {exc.msg}"
        raise
    undo.push(found.release, address)
    found.set_last(number, address)
    return IPConfig(
        address=parse_cidr(f"{address}/{within.subnet.prefixlen}"), gateway=within.gateway
    )


def take_requested(
    found: Leases, range_set: RangeSet, address: IPAddress, call: Call[HostLocalConfig]
) -> tuple[Range, IPAddress]:
    """Lease `address` itself, whatever else the attachment holds; name the holder if taken."""
    within = range_set.find_range(address)
    assert within is not None
    if address == within.gateway:
        raise CniError(f"requested ip {address} is subnet's gateway")
    if not found.take(address, call.container_id, call.ifname):
        raise CniError(
            f"requested IP address {address} is not available in range set {range_set}",
            f"held by {found.find_holder(address)} in {found.path}",
        )
    return within, address


def take_next(
    found: Leases, number: int, range_set: RangeSet, call: Call[HostLocalConfig]
) -> tuple[Range, IPAddress]:
    """Lease the free address that comes after the last one given out."""
    for address in found.find_owned(call.container_id, call.ifname):
        if range_set.find_range(address):
            raise CniError(
                f"{address} has been allocated to {call.container_id}, "
                "duplicate allocation is not allowed"
            )
    last = found.get_last(number)
    while (free := find_free(found, range_set, last)) is not None:
        if found.take(free[1], call.container_id, call.ifname):
            return free
    raise CniError(*exhaustion(found, range_set))


def find_free(
    found: Leases, range_set: RangeSet, last: IPAddress | None = None
) -> tuple[Range, IPAddress] | None:
    """The next free address of the set and its range; None only if the disk says so too."""
    while True:
        for within, first, final in range_set.stretches(last):
            address = found.find_free(first, final)
            if address is not None:
                return within, address
        if found.confirm():
            return None


def exhaustion(found: Leases, range_set: RangeSet) -> tuple[str, str]:
    """Message and details for a set without a free address."""
    leased = sum(found.count(each.first, each.last) for each in range_set.ranges)
    return (
        f"no IP addresses available in range set: {range_set}",
        f"{leased} of its addresses are leased in {found.path}; "
        "run GC to release those of containers that are gone, or widen the range",
    )


LIMITS = {"nameserver": 1, "domain": 1}  # values a line of resolv.conf may give; more are ignored


def read_resolv_conf(path: str) -> DNS:
    """The resolver settings of the file `path`; none if the path is empty."""
    if not path:
        return DNS()
    found: dict[str, list[str]] = {"nameserver": [], "domain": [], "search": [], "options": []}
    with io_faults(f"ipam.resolvConf: open {path}"), open(path, errors="replace") as file:
        for line in file:
            key, *values = line.split() or [""]
            if key in found:
                found[key].extend(values[: LIMITS.get(key)])
    return DNS(
        nameservers=tuple(found["nameserver"]),
        domain=" ".join(found["domain"][-1:]),
        search=tuple(found["search"]),
        options=tuple(found["options"]),
    )
