# SPDX-License-Identifier: Apache-2.0
"""Meta plugin `portmap`: ports of the node lead to the container (capability `portMappings`).

Mappings are elements of maps in one nftables table (net/hostports.py), tagged with their owner, or
the reference's rules where `backend` is "iptables" (net/iptables_backend.py): DEL and GC find both,
whatever the configuration says by then, and without a prevResult.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from pycni.errors import CniError, InvalidConfig, NotAvailable, Unsupported
from pycni.kernel import iptables
from pycni.kernel.nft import Nft
from pycni.log import Log
from pycni.model.addresses import IPInterface
from pycni.model.request import PortMapping
from pycni.model.result import Result
from pycni.net import golang_leftovers, hostports, iptables_backend, owner, ruleset
from pycni.net.hostports import Options
from pycni.net.iptables_backend import DEFAULT_MARK_BIT, PortOptions
from pycni.net.owner import Owner
from pycni.net.undo import Gather, Undo
from pycni.plugins.sdk import Call, Config, Plugin

log = Log(__name__)

PROTOCOLS = ("tcp", "udp", "sctp")
MAX_PORT = 65535
MAX_MARK_BIT = 31
# What iptables takes for one (XT_EXTENSION_MAXNAMELEN), less what would need quotes; "" is none.
CHAIN_NAME = re.compile(r"(?:[a-zA-Z0-9_.:][a-zA-Z0-9_.:\-]{0,27})?")


class Capabilities(Struct, frozen=True, kw_only=True):
    """`runtimeConfig`: capability `portMappings`."""

    portMappings: tuple[PortMapping, ...] = ()


class PortmapConfig(Config, frozen=True, kw_only=True):
    """Configuration of portmap.

    `markMasqBit` and `externalSetMarkChain` are about marks, which only the iptables backend needs.
    """

    backend: str = ""
    snat: bool = True
    masqAll: bool = False
    markMasqBit: int | None = None
    externalSetMarkChain: str | None = None
    conditionsV4: tuple[str, ...] = ()
    conditionsV6: tuple[str, ...] = ()
    runtimeConfig: Capabilities = Capabilities()


class Portmap(Plugin[PortmapConfig], type="portmap", config=PortmapConfig):
    """Forward ports of the node."""

    def add(self, call: Call[PortmapConfig]) -> Result:
        """Map the ports, let the node's loopback addresses in, forget UDP flows from before."""
        options = parse_options(call.config)
        mappings = parse_mappings(call.config)
        addresses = container_addresses(call.get_prev_result(), call.ifname)
        if not mappings or not addresses:
            return call.pass_through()
        host = call.host
        with Undo() as undo:
            if choose_backend(call.config) == "iptables":
                undo.push(golang_leftovers.remove_ports, host, call.owner)
                map_by_iptables(call, mappings, addresses)
            else:
                hostports.ensure(
                    host.nft,
                    call.owner,
                    mappings,
                    addresses,
                    is_sibling=lambda tag: is_of_container(tag, call),
                    **options,
                )
                undo.push(hostports.remove, host.nft, call.owner)
                if call.config.snat:
                    hostports.open_loopback(host, addresses)
            # A flow to the port from before would go on to where it went (plugins #123).
            hostports.forget_flows(host.conntrack, map(hostports.host_port, mappings))
            undo.commit()
        return call.pass_through()

    def delete(self, call: Call[PortmapConfig]) -> None:
        """Unmap all that the attachment has, and forget the UDP flows there (plugins #1190)."""
        host = call.host
        mappings, options = find_hints(call.config)
        prev_result = call.prev_result
        addresses = container_addresses(prev_result, call.ifname) if prev_result else ()
        with Gather("unmap ports") as gather:
            ips = [address.ip for address in addresses]
            gather.run(golang_leftovers.remove_ports, host, call.owner, addresses=ips)
            if not has_nftables(host.nft):
                return
            unmapped = gather.run(
                hostports.remove, host.nft, call.owner, mappings, addresses, **options
            )
            ports = (*map(hostports.host_port, mappings), *(unmapped or ()))
            gather.run(hostports.forget_flows, host.conntrack, ports)

    def check(self, call: Call[PortmapConfig]) -> None:
        """Raise unless every port is mapped for this attachment."""
        options = parse_options(call.config)
        mappings = parse_mappings(call.config)
        addresses = container_addresses(call.get_prev_result(), call.ifname)
        if not mappings or not addresses:
            return
        try:
            hostports.expect(call.host.nft, call.owner, mappings, addresses, **options)
        except CniError:
            # Mapped before this node was switched over, and as good as ever.
            if not golang_leftovers.has_ports(call.host, call.owner, mappings, addresses):
                raise

    def gc(self, call: Call[PortmapConfig]) -> None:
        """Unmap the ports of attachments that are not valid any more."""
        if call.valid_attachments is None:
            return
        network = call.config.name
        valid = [Owner(network, each.container_id, each.ifname) for each in call.valid_attachments]
        with Gather("unmap ports") as gather:
            gather.run(golang_leftovers.gc_ports, call.host, network, valid)
            if not has_nftables(call.host.nft):
                return
            gather.run(hostports.gc, call.host.nft, network, valid)
            gather.run(ruleset.remove_idle_table, call.host)

    def status(self, call: Call[PortmapConfig]) -> None:
        """Raise NotAvailable (50) if nftables does not work here or the options are wrong."""
        try:
            parse_options(call.config)
            if choose_backend(call.config) == "iptables":
                iptables.probe()
            else:
                call.host.nft.probe()
        except CniError as exc:
            raise NotAvailable(f"portmap cannot map ports: {exc.msg}", exc.details) from exc

    def validate(self, config: PortmapConfig) -> None:
        """Raise for options that contradict each other, and for mappings if there are any."""
        parse_options(config)
        parse_mappings(config)


# -- configuration ---------------------------------------------------------------------------------


def parse_options(config: PortmapConfig) -> Options:
    """How to map; raise for what nftables cannot do and for keys that exclude each other."""
    if config.externalSetMarkChain is not None and config.markMasqBit is not None:
        raise InvalidConfig(
            "externalSetMarkChain: Cannot specify externalSetMarkChain and markMasqBit"
        )
    if config.markMasqBit is not None and not 0 <= config.markMasqBit <= MAX_MARK_BIT:
        raise InvalidConfig("markMasqBit: MasqMarkBit must be between 0 and 31")
    if config.backend not in ("", "nftables", "iptables"):
        raise InvalidConfig(f'backend: unrecognized backend "{config.backend}"')
    if not CHAIN_NAME.fullmatch(config.externalSetMarkChain or ""):
        raise InvalidConfig(
            f'externalSetMarkChain: not the name of a chain: "{config.externalSetMarkChain}"'
        )
    backend = choose_backend(config)
    for key in ("conditionsV4", "conditionsV6"):
        conditions = getattr(config, key)
        if backend == "nftables":
            hostports.expression(key, conditions)
        elif not all(map(str.isprintable, conditions)):
            raise InvalidConfig(f"{key}: a line break or another control character")
    if backend == "iptables":
        return Options()
    return Options(
        snat=config.snat,
        masq_all=config.masqAll,
        conditions_v4=config.conditionsV4,
        conditions_v6=config.conditionsV6,
    )


def choose_backend(config: PortmapConfig) -> str:
    """Who maps: what is named, else whose conditions these are, else nftables."""
    special: dict[str, list[str]] = {"iptables": [], "nftables": []}
    if config.externalSetMarkChain is not None:
        special["iptables"].append("externalSetMarkChain")
    for key in ("conditionsV4", "conditionsV6"):
        conditions = getattr(config, key)
        if conditions:
            # An iptables match begins with an option or its negation; nft has neither.
            spelling = "iptables" if conditions[0][:1] in ("-", "!") else "nftables"
            special[spelling].append(key)
    backend = config.backend or ("iptables" if special["iptables"] else "nftables")
    other = "nftables" if backend == "iptables" else "iptables"
    if special[other]:
        raise InvalidConfig(
            f"{special[other][0]}: {backend} backend was requested but configuration contains "
            f"{other}-specific options [{' '.join(special[other])}]"
        )
    return backend


def parse_mappings(config: PortmapConfig) -> tuple[PortMapping, ...]:
    """The mappings, every one of them possible."""
    for number, mapping in enumerate(config.runtimeConfig.portMappings):
        fault = find_fault(mapping)
        if fault is not None:
            key, message = fault
            raise InvalidConfig(f"runtimeConfig.portMappings[{number}].{key}: {message}")
    return config.runtimeConfig.portMappings


def find_fault(mapping: PortMapping) -> tuple[str, str] | None:
    """The key that is wrong and why."""
    if not 0 < mapping.hostPort <= MAX_PORT:
        return "hostPort", f"Invalid host port number: {mapping.hostPort}"
    if not 0 < mapping.containerPort <= MAX_PORT:
        return "containerPort", f"Invalid container port number: {mapping.containerPort}"
    if mapping.protocol.lower() not in PROTOCOLS:
        known = ", ".join(PROTOCOLS)
        return "protocol", f'invalid protocol "{mapping.protocol}", not one of {known}'
    return None


def find_hints(config: PortmapConfig) -> tuple[list[PortMapping], Options]:
    """What of a configuration can serve to find mappings quickly; nothing, if it is wrong."""
    mappings = [each for each in config.runtimeConfig.portMappings if find_fault(each) is None]
    try:
        return mappings, parse_options(config)
    except CniError as exc:
        log.warning("DEL with options that no ADD would take: %s", exc)
        return mappings, Options()


def map_by_iptables(
    call: Call[PortmapConfig],
    mappings: Iterable[PortMapping],
    addresses: tuple[IPInterface, ...],
) -> None:
    """Map the ports as the reference does by default, rule for rule."""
    config = call.config
    options = PortOptions(
        snat=config.snat,
        masq_all=config.masqAll,
        mark_bit=DEFAULT_MARK_BIT if config.markMasqBit is None else config.markMasqBit,
        external_chain=config.externalSetMarkChain or "",
        conditions={4: config.conditionsV4, 6: config.conditionsV6},
    )
    iptables_backend.ensure_ports(call.host, call.owner, mappings, addresses, options)
    if config.snat:
        try:
            hostports.open_loopback(call.host, [each for each in addresses if each.version == 4])
        except Unsupported as exc:
            # The guard that must come with it is nftables'.
            log.warning("127.0.0.1 of the node does not reach mapped ports: %s", exc)


# -- the container and the node --------------------------------------------------------------------


def container_addresses(result: Result, ifname: str) -> tuple[IPInterface, ...]:
    """The addresses of the container's interface, and those that name no interface."""

    def addresses() -> Iterator[IPInterface]:
        for ip in result.ips:
            if ip.interface is not None and 0 <= ip.interface < len(result.interfaces):
                interface = result.interfaces[ip.interface]
                if interface.name != ifname or not interface.sandbox:
                    continue
            yield ip.address

    return tuple(addresses())


def is_of_container(tag: str, call: Call[PortmapConfig]) -> bool:
    """Whether the holder of a port is the call's own container, through another network."""
    names = [link.name for link in call.container.links.list()]
    return owner.is_of_container(tag, call.container_id, names)


def has_nftables(nft: Nft) -> bool:
    """Whether anything can be mapped at all: a node without nf_tables still deletes containers."""
    try:
        nft.maps("inet", ruleset.TABLE).generation()
    except Unsupported as exc:
        log.warning("nothing to unmap: %s", exc)
        return False
    return True
