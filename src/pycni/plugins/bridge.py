# SPDX-License-Identifier: Apache-2.0
"""bridge: a veth pair into a Linux bridge, with or without addresses.

Without `ipam` the container gets a layer 2 port and nothing else. With it the interface gets what
the IPAM plugin hands out, and the host may be its gateway (`isGateway`) and hide it behind its own
addresses (`ipMasq`). The bridge outlives its containers: DEL leaves the device, its address and
forwarding as they are, for the next ADD.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta, Struct, structs

from pycni.errors import (
    CniError,
    Exhausted,
    InvalidConfig,
    InvalidEnvironment,
    KernelError,
    NotAvailable,
    UnsupportedField,
)
from pycni.kernel import iptables
from pycni.kernel.side import Side
from pycni.kernel.types import Link
from pycni.model import jsonio
from pycni.model.addresses import IPAddress, IPInterface, parse_cidr
from pycni.model.names import IfName, Mac
from pycni.model.request import CniArgs
from pycni.model.result import DNS, Interface, Result, Route
from pycni.net import (
    addressing,
    bridges,
    golang_leftovers,
    iptables_backend,
    masquerade,
    ruleset,
    veth,
)
from pycni.net.owner import Owner
from pycni.net.undo import Gather, Undo
from pycni.net.veth import BridgePort, Pair
from pycni.plugins.sdk import Call, Config, Plugin

DEFAULT_ROUTES = {4: parse_cidr("0.0.0.0/0"), 6: parse_cidr("::/0")}

BRIDGE_TRIES = 5
MIN_MTU, MIN_MTU6, MAX_MTU = 68, 1280, 65535  # ETH_MIN_MTU, IPV6_MIN_MTU, ETH_MAX_MTU
CONTAINER = 2  # the container's place in the result's interfaces: bridge, host end, container


class CniKeys(Struct, frozen=True, kw_only=True):
    """`args.cni`: what the orchestrator asks for."""

    mac: Mac | None = None


class Args(Struct, frozen=True, kw_only=True):
    """The `args` key (CONVENTIONS.md)."""

    cni: CniKeys = CniKeys()


class Capabilities(Struct, frozen=True, kw_only=True):
    """`runtimeConfig`: capability `mac`."""

    mac: Mac | None = None


class EnvArgs(CniArgs, frozen=True, kw_only=True):
    """CNI_ARGS."""

    MAC: Mac | None = None


class VlanTrunk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """VLANs that pass a port tagged: one id, or a range."""

    minID: int | None = None
    maxID: int | None = None
    id: int | None = None


class BridgeConfig(Config, frozen=True, kw_only=True):
    """Keys of the bridge plugin."""

    bridge: IfName = IfName("cni0")
    isGateway: bool = False
    isDefaultGateway: bool = False
    forceAddress: bool = False
    ipMasq: bool = False
    ipMasqBackend: str = ""
    mtu: Annotated[int, Meta(ge=0, le=MAX_MTU)] = 0
    hairpinMode: bool = False
    promiscMode: bool = False
    vlan: int = 0
    vlanTrunk: tuple[VlanTrunk, ...] = ()
    preserveDefaultVlan: bool = False
    macspoofchk: bool = False
    enabledad: bool = False
    disableContainerInterface: bool = False
    portIsolation: bool = False
    args: Args = Args()
    runtimeConfig: Capabilities = Capabilities()

    @property
    def is_gateway(self) -> bool:
        """The host routes for the containers."""
        return self.isGateway or self.isDefaultGateway


class Bridge(Plugin[BridgeConfig], type="bridge", config=BridgeConfig):
    """The five verbs of the bridge plugin."""

    def add(self, call: Call[BridgeConfig]) -> Result:
        """Plug the container into the bridge and address it; a failure leaves nothing behind."""
        config = call.config
        self.validate(config)
        mac = requested_mac(call)
        container = call.container  # before anything is made: a wrong path costs nothing
        with Undo() as undo:
            bridge, pair = plug_in(call, mac, undo)
            leased = Result()
            if call.ipam is not None:
                # Released also when its ADD failed half-way (SPEC section 4, D5).
                undo.push(call.ipam.delete)
                leased = call.ipam.add()
                pair = choose_mac(call, pair, leased, mac)
            result = Result(interfaces=interfaces(call, bridge, pair), dns=config.dns)
            if call.ipam is not None:
                result = with_addresses(result, leased, config)
            announce = is_news(call, bridge, pair, result)
            later = bring_up(call, container, pair, result, announce=announce)
            serve_gateways(call, bridge, pair, result, undo)
            hide_addresses(call, result, undo)
            if not config.disableContainerInterface:
                bridges.wait_for_port(call.host.links, pair.host, bridge, call.deadline)
            if result.ips:
                finish_addresses(call, pair, result, later, announce=announce)
            call.deadline.check(f"ADD of {call.ifname}")  # nobody would take the result
            undo.commit()
        return result

    def delete(self, call: Call[BridgeConfig]) -> None:
        """Remove the pair, release the addresses, stop masquerading; with or without a netns."""
        with Gather(f"delete {call.ifname} of {call.container_id}") as gather:
            addresses = addresses_made(call)
            # Before the pair: the kernel frees the rules while it waits for the pair to go. An
            # executable's end would otherwise wait for that too, another 14 ms.
            gather.run(masquerade.remove, call.host.nft, call.owner, addresses)
            ips = [address.ip for address in addresses]
            gather.run(golang_leftovers.remove_masquerade, call.host, call.owner, addresses=ips)
            gather.run(remove_pair, call)
            # After it: who is given the addresses next must be the only one to have them.
            if call.ipam is not None:
                gather.run(call.ipam.delete)

    def check(self, call: Call[BridgeConfig]) -> None:
        """Raise if a part of the path from the container to the bridge is gone or changed."""
        config = call.config
        self.validate(config)
        made = expected_interface(call)
        bridge = expect_bridge(call)
        container_link = expect_container_link(call, made)
        expect_port(call, bridge, container_link)
        addresses = addresses_made(call)
        addressing.expect_addresses(call.container.addresses, container_link.index, addresses)
        if call.ipam is not None:
            addressing.expect_routes(call.container.routes, call.get_prev_result().routes)
            if config.ipMasq:
                expect_masquerade(call, addresses)
            call.ipam.check()

    def gc(self, call: Call[BridgeConfig]) -> None:
        """Remove the pairs, rules and addresses of this network's vanished attachments."""
        network = call.config.name
        valid = frozenset(
            Owner(network, kept.container_id, kept.ifname)
            for kept in call.valid_attachments or frozenset()
        )
        with Gather(f"collect garbage of {network}") as gather:
            gather.run(veth.remove_stale, call.host, network, valid)
            gather.run(masquerade.gc, call.host.nft, network, valid)
            gather.run(golang_leftovers.gc_masquerade, call.host, network, valid)
            gather.run(bridges.remove_idle, call.host, call.config.bridge)
            gather.run(ruleset.remove_idle_table, call.host)
            if call.ipam is not None:
                gather.run(call.ipam.gc)

    def status(self, call: Call[BridgeConfig]) -> None:
        """Raise 50 if the kernel, the bridge's name or the IPAM plugin stand in ADD's way."""
        config = call.config
        self.validate(config)
        with needed_for_add():
            bridges.expect_kinds(call.host.links, "bridge", "veth")
            bridges.expect_usable_name(call.host.links, config.bridge)
            if config.is_gateway:
                addressing.expect_forwarding_possible(call.host.sysctl)
            if config.ipMasq and config.ipMasqBackend == "iptables":
                iptables.probe()
            elif config.ipMasq:
                call.host.nft.list_json("list tables")
        if call.ipam is not None:
            call.ipam.status()

    def validate(self, config: BridgeConfig) -> None:
        """Raise for what cannot be combined (7) or is not supported (2)."""
        if not 0 <= config.vlan <= 4094:
            raise InvalidConfig(f"invalid VLAN ID {config.vlan} (must be between 0 and 4094)")
        for key in ("vlan", "vlanTrunk", "preserveDefaultVlan", "macspoofchk"):
            if value := getattr(config, key):
                raise UnsupportedField(f"{key}: {jsonio.encode(value).decode()} is not supported")
        if 0 < config.mtu < MIN_MTU:
            raise InvalidConfig(f"mtu: expected at least {MIN_MTU}, or 0 for the kernel's default")
        for path, mac in (
            ("runtimeConfig.mac", config.runtimeConfig.mac),
            ("args.cni.mac", config.args.cni.mac),
        ):
            if mac is not None and not is_usable(mac):
                raise InvalidConfig(f'{path}: not a MAC address of one host: "{mac}"')
        if config.hairpinMode and config.promiscMode:
            raise InvalidConfig(
                "cannot set hairpin mode and promiscuous mode at the same time",
                "hairpinMode and promiscMode are both true",
            )
        if config.ipam.type and config.disableContainerInterface:
            raise InvalidConfig("cannot use IPAM when DisableContainerInterface flag is set")
        match config.ipMasqBackend:
            case "" | "nftables" | "iptables":
                pass
            case other:
                raise InvalidConfig(f'unknown ipmasq backend "{other}"')


# -- ADD -------------------------------------------------------------------------------------------


def requested_mac(call: Call[BridgeConfig]) -> Mac | None:
    """The MAC asked for: capability, then `args`, then CNI_ARGS; None for any."""
    environment = EnvArgs.parse(call.request.args)
    if environment.MAC is not None and not is_usable(environment.MAC):
        raise InvalidEnvironment(f'CNI_ARGS: MAC: not of one host: "{environment.MAC}"')
    return call.config.runtimeConfig.mac or call.config.args.cni.mac or environment.MAC


def is_usable(mac: Mac) -> bool:
    """Whether a veth can have it."""
    return mac.is_of_host and len(mac.packed) == 6


def plug_in(call: Call[BridgeConfig], mac: Mac | None, undo: Undo) -> tuple[Link, Pair]:
    """Make the pair, its host end a port of the bridge; and the bridge, if there is none."""
    config = call.config
    for tries_left in reversed(range(BRIDGE_TRIES)):
        bridge = bridges.ensure(
            call.host, config.bridge, mtu=config.mtu, promisc=config.promiscMode, undo=undo
        )
        port = BridgePort(
            master=bridge.index,
            hairpin=config.hairpinMode,
            isolated=config.portIsolation,
            locked=starts_locked(call, mac),
        )
        try:
            pair = veth.make(
                call.host,
                call.container,
                call.owner,
                mtu=config.mtu,
                mac=mac,
                port=port,
                keep_down=config.disableContainerInterface,
            )
        except Exhausted as exc:
            raise bridges.BridgeFull(bridge.name) from exc
        except KernelError:
            if not tries_left or call.host.links.find_index(bridge.index) is not None:
                raise
            # The call that made the bridge has failed and taken it away before we had a port.
        else:
            undo.push(veth.remove, call.host, call.owner)
            if not (config.is_gateway and call.ipam and bridge.mac and any(bridge.mac.packed)):
                # A bridge's MAC may follow its ports, ours included; a gateway's is pinned. One
                # that somebody else made has none (all zero) while it has no port.
                bridge = call.host.links.get(bridge.index)
            return bridge, pair
    raise AssertionError("the last try returns or raises")


def starts_locked(call: Call[BridgeConfig], mac: Mac | None) -> bool:
    """Is the port to let nothing in before the container has its addresses?

    The kernel's reports of multicast groups would go to every port, and hold up all of networking
    for it; they are repeated. Where there may be routers, its solicitation must get out at once.
    """
    return call.config.is_gateway and not (call.ipam is None or mac or call.config.enabledad)


def choose_mac(call: Call[BridgeConfig], pair: Pair, leased: Result, requested: Mac | None) -> Pair:
    """The pair with the MAC that goes with its address, if nothing speaks for the one it has.

    An address that others may have is looked for with a MAC that nobody else has. And an IPAM
    plugin that has the interface up has used it (dhcp): its lease is the MAC's.
    """
    if requested or call.config.enabledad or not leased.ips:
        return pair
    if call.container.links.get(pair.container_index).up:
        return pair
    mac = veth.address_mac(ip.address for ip in leased.ips)
    return structs.replace(pair, container_mac=mac)


def is_news(call: Call[BridgeConfig], bridge: Link, pair: Pair, result: Result) -> bool:
    """Must neighbours be told the container's MAC, because they may know another one?

    Telling costs every port of the bridge a delivery. They know the one that goes with the
    address, unless who had it before was given another; of that the gateway has heard, if anybody.
    """
    if not result.ips or pair.container_mac != veth.address_mac(ip.address for ip in result.ips):
        return bool(result.ips)
    if not call.config.is_gateway:
        return False
    known = (call.host.neighbours.find(bridge.index, ip.address.ip) for ip in result.ips)
    return any(each and each.mac not in (None, pair.container_mac) for each in known)


def interfaces(call: Call[BridgeConfig], bridge: Link, pair: Pair) -> tuple[Interface, ...]:
    """The result's interfaces, in the order the reference gives them."""
    return (
        Interface(name=bridge.name, mac=bridge.mac or ""),
        Interface(name=pair.host.name, mac=pair.host.mac or ""),
        Interface(name=call.ifname, mac=pair.container_mac, sandbox=call.request.netns),
    )


def with_addresses(made: Result, leased: Result, config: BridgeConfig) -> Result:
    """`made` with the leased addresses on the container's interface and the gateways filled in."""
    if not leased.ips:
        raise CniError("IPAM plugin returned missing IP config")
    if 0 < config.mtu < MIN_MTU6 and any(ip.address.version == 6 for ip in leased.ips):
        raise InvalidConfig(f"mtu: IPv6 needs at least {MIN_MTU6}, not {config.mtu}")
    ips = tuple(
        structs.replace(
            ip,
            interface=CONTAINER,
            gateway=first_address(ip.address)
            if ip.gateway is None and config.is_gateway
            else ip.gateway,
        )
        for ip in leased.ips
    )
    routes = list(leased.routes)
    for ip in ips if config.isDefaultGateway else ():
        default = DEFAULT_ROUTES[ip.address.version]
        if not any(route.dst == default and route.gw is not None for route in routes):
            routes.append(Route(dst=default, gw=ip.gateway))
    dns = made.dns if made.dns != DNS() else leased.dns
    return structs.replace(made, ips=ips, routes=tuple(routes), dns=dns)


def first_address(address: IPInterface) -> IPAddress:
    """The first host address of the address's network: the gateway's, unless told."""
    return address.network.network_address + 1


def serve_gateways(
    call: Call[BridgeConfig], bridge: Link, pair: Pair, result: Result, undo: Undo
) -> None:
    """Make the host the containers' gateway, where the configuration wants it."""
    if not (call.config.is_gateway and result.ips):
        return
    bridges.ensure_gateways(
        call.host,
        bridge,
        gateways(result),
        own_port=pair.host.index,
        force=call.config.forceAddress,
        undo=undo,
    )
    addressing.enable_forwarding(call.host.sysctl, {ip.address.version for ip in result.ips})


def gateways(result: Result) -> list[IPInterface]:
    """The gateways with the prefix lengths of the networks they serve."""
    return [
        parse_cidr(f"{ip.gateway}/{ip.address.network.prefixlen}")
        for ip in result.ips
        if ip.gateway is not None
    ]


def hide_addresses(call: Call[BridgeConfig], result: Result, undo: Undo) -> None:
    """Masquerade what the container sends beyond its networks, where the configuration wants it."""
    if call.config.ipMasq and result.ips:
        addresses = [ip.address for ip in result.ips]
        if call.config.ipMasqBackend == "iptables":
            ips = [address.ip for address in addresses]
            undo.push(golang_leftovers.remove_masquerade, call.host, call.owner, addresses=ips)
            iptables_backend.ensure_masquerade(call.host, call.owner, addresses)
            return
        undo.push(masquerade.remove, call.host.nft, call.owner, addresses)
        masquerade.ensure(call.host.nft, call.owner, addresses)


def bring_up(
    call: Call[BridgeConfig], container: Side, pair: Pair, result: Result, *, announce: bool
) -> dict[str, str]:
    """Have the container's end up, with its addresses too if there is nothing to `announce`.

    Returns the parameters to set in the end.
    """
    config, index = call.config, pair.container_index
    later: dict[str, str] = {}
    if config.disableContainerInterface:
        return later
    if result.ips:
        later = addressing.prepare(
            container,
            call.ifname,
            result,
            detect_duplicates=config.enabledad,
            announce=announce,
            # The host routes, and sends no advertisements.
            solicit_routers=not config.is_gateway,
        )
    if announce or not result.ips:
        container.links.set(index, up=True, mac=pair.container_mac)
    else:
        addressing.assign(
            container, index, call.ifname, result, mac=pair.container_mac, announce=False
        )
    return later


def finish_addresses(
    call: Call[BridgeConfig],
    pair: Pair,
    result: Result,
    later: Mapping[str, str],
    *,
    announce: bool,
) -> None:
    """Have the container's addresses ready for use, now that the bridge forwards for it.

    What an interface announces, and whom it asks for duplicates, before that is lost.
    """
    container, index = call.container, pair.container_index
    if announce:
        veth.unlock(call.host, pair)
        addressing.assign(container, index, call.ifname, result, mac=pair.container_mac)
    addressing.settle(container, index, call.ifname, result, later, deadline=call.deadline)
    if not announce:
        veth.unlock(call.host, pair)


# -- DEL -------------------------------------------------------------------------------------------


def remove_pair(call: Call[BridgeConfig]) -> None:
    """Remove the attachment's pair, ours by its owner or one the reference plugin made."""
    if veth.remove(call.host, call.owner):
        return
    container = call.find_container()
    foreign = None if container is None else find_untagged_port(call, container)
    if foreign is not None:
        veth.remove_link(call.host, foreign)


def find_untagged_port(call: Call[BridgeConfig], container: Side) -> Link | None:
    """The host end of a pair the reference plugin made for this interface; it tags nothing.

    It must be a port of our bridge: CNI_NETNS may name a stranger's namespace by now, if it went
    through a process id that was used again (plugins #714).
    """
    inside = container.links.find(call.ifname)
    bridge = call.host.links.find(call.config.bridge)
    if inside is None or inside.kind != "veth" or bridge is None:
        return None
    port = call.host.links.find_index(inside.peer_index)
    if port is None or port.peer_index != inside.index or port.master != bridge.index:
        return None
    return port if port.kind == "veth" and not port.alias else None


def addresses_made(call: Call[BridgeConfig]) -> list[IPInterface]:
    """The addresses ADD gave the interface, as far as the runtime remembers."""
    if call.prev_result is None:
        return []
    return addressing.addresses_on(call.prev_result, call.ifname)


# -- CHECK -----------------------------------------------------------------------------------------


def expected_interface(call: Call[BridgeConfig]) -> Interface:
    """The container's interface as the chain's result has it, later plugins' changes included."""
    for interface in call.get_prev_result().interfaces:
        if interface.name == call.ifname and interface.sandbox:
            return interface
    raise InvalidConfig(f"prevResult.interfaces: {call.ifname} is not among them")


def expect_bridge(call: Call[BridgeConfig]) -> Link:
    """The bridge; raise if it cannot carry the container's traffic any more."""
    config = call.config
    bridge = bridges.expect(call.host.links, config.bridge)
    if config.promiscMode and not bridge.promisc:
        raise CniError(f"bridge {bridge.name} is not in promiscuous mode")
    if config.is_gateway:
        result = call.get_prev_result()
        addressing.expect_addresses(call.host.addresses, bridge.index, gateways(result))
        # Pinned when the gateway's address was added. Without one it follows the ports' MACs.
        for made in result.interfaces:
            if made.name == bridge.name and not made.sandbox and made.mac.lower() != bridge.mac:
                raise CniError(f"bridge {bridge.name} has MAC {bridge.mac}, not {made.mac}")
    return bridge


def expect_container_link(call: Call[BridgeConfig], made: Interface) -> Link:
    """The container's end; its MTU is a later plugin's business (tuning)."""
    link = call.container.links.find(call.ifname)
    if link is None:
        raise CniError(f"interface {call.ifname} is missing in {call.request.netns}")
    if link.kind != "veth":
        raise CniError(f"interface {call.ifname} is not of type veth but {link.kind}")
    if made.mac and link.mac != made.mac.lower():
        raise CniError(f"interface {call.ifname} has MAC {link.mac}, not {made.mac}")
    if not (link.up or call.config.disableContainerInterface):
        raise CniError(f"interface {call.ifname} is down")
    return link


def expect_port(call: Call[BridgeConfig], bridge: Link, container_link: Link) -> None:
    """Raise unless the host's end is up, a port of the bridge, and set as configured."""
    config = call.config
    port = veth.find_host(call.host.links, call.owner) or find_untagged_port(call, call.container)
    if port is None or port.peer_index != container_link.index:
        raise CniError(f"the host end of {call.ifname} is missing")
    if port.master != bridge.index:
        raise CniError(f"{port.name} is not a port of bridge {bridge.name}")
    if not port.up:
        raise CniError(f"{port.name} is down")
    for mode, wanted in (("hairpin", config.hairpinMode), ("isolated", config.portIsolation)):
        if (port.port or {}).get(mode) != wanted:
            raise CniError(f"{port.name} is {'not ' if wanted else ''}in {mode} mode")


def expect_masquerade(call: Call[BridgeConfig], addresses: list[IPInterface]) -> None:
    """Raise unless the addresses are masqueraded: by our table, or by the reference's rules."""
    try:
        masquerade.expect(call.host.nft, call.owner, addresses)
    except CniError:
        if not golang_leftovers.has_masquerade(call.host, call.owner, addresses):
            raise


# -- STATUS ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def needed_for_add() -> Iterator[None]:
    """Turn whatever is wrong into NotAvailable (50)."""
    try:
        yield
    except CniError as exc:
        raise NotAvailable(exc.msg, exc.details) from exc
