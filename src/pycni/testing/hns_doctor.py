# SPDX-License-Identifier: Apache-2.0
"""What only a Windows node can prove: the plugins and the simulator's rules on a real service.

`examine` makes a NAT network and a namespace of its own, attaches, checks, pings and detaches
with the built-in plugin `nat`, asks the service everything the simulator only supposes of it, and
removes what it made. Each step gives one `Finding`; a step that fails does not stop the others, and
the last one says what could not be removed.
It runs on the simulator as well, where nothing may differ; `pycni doctor` runs it on Windows.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from pycni import plugins
from pycni.errors import CniError
from pycni.kernel.side import Side
from pycni.model.deadline import Deadline
from pycni.model.request import Request, Verb
from pycni.runtime.dispatch import dispatch
from pycni.testing import hns_rules
from pycni.windows import errors, schemas
from pycni.windows.features import Feature
from pycni.windows.schemas import Endpoint, IpConfiguration, Policy
from pycni.windows.service import Service, connect

NETWORK = "pycni-doctor"
CONTAINER = "pycni-doctor"
PREFIX = "172.31.254"
PROBES = ("doctor-1", "doctor-2", "doctor-bad")
CLEANUP_S = 60.0
OWNER_KEPT = "the service keeps an endpoint's Owner"
CONFIG: dict[str, Any] = {
    "cniVersion": "1.1.0",
    "name": NETWORK,
    "type": "nat",
    "ipam": {"subnet": f"{PREFIX}.0/24", "routes": [{"GW": f"{PREFIX}.1"}]},
    "runtimeConfig": {"portMappings": [{"hostPort": 47999, "containerPort": 80}]},
}


class Verdict(enum.StrEnum):
    """How a step went."""

    OK = "ok"
    FAILED = "failed"
    DIFFERS = "differs"  # works, but not as the simulator supposes


class Finding(msgspec.Struct, frozen=True):
    """One step and how it went."""

    what: str
    verdict: Verdict
    detail: str = ""


Ping = Callable[[str], bool]


def examine(*, ping: Ping, timeout_s: float = 300.0) -> Iterator[Finding]:
    """Every finding in turn; what was made is removed even if the caller stops early."""
    deadline = Deadline(timeout_s)
    service = connect(deadline)
    found = _attempt("the service answers", lambda: _version(service))
    yield found
    if found.verdict is not Verdict.OK:
        return
    yield _attempt("its networks", lambda: _networks(service))
    namespaces: list[uuid.UUID] = []
    left: list[str] = []
    try:
        yield from _exercise(service, deadline, ping, namespaces)
        yield from _probe(service)
    finally:
        # With time of its own, or nothing could be removed once the time is over.
        left += _remove_all(connect(Deadline(CLEANUP_S)), namespaces)
    verdict = Verdict.FAILED if left else Verdict.OK
    yield Finding("what was made is removed", verdict, "; ".join(left))


def _attempt(what: str, step: Callable[[], str]) -> Finding:
    """Run one step; its text is the detail."""
    try:
        return Finding(what, Verdict.OK, step())
    except CniError as error:
        return Finding(what, Verdict.FAILED, str(error))


def _attempt_finding(what: str, step: Callable[[], Finding]) -> Finding:
    """Run a step that judges for itself; an error is a failure of `what`."""
    try:
        return step()
    except CniError as error:
        return Finding(what, Verdict.FAILED, str(error))


def _version(service: Service) -> str:
    features = service.hns.features
    missing = [feature.name for feature in Feature if not features.has(feature)]
    version = f"{features.version.Major}.{features.version.Minor}"
    return f"version {version}, without {', '.join(missing) or 'nothing'}"


def _networks(service: Service) -> str:
    found = service.hcn.networks.list()
    return ", ".join(f"{network.Name} ({network.kind})" for network in found) or "none"


# -- the plugin ------------------------------------------------------------------------------------


class _Plugin:
    """The built-in plugin `nat`, called as a runtime calls it."""

    def __init__(self, namespace: str, deadline: Deadline) -> None:
        self._namespace = namespace
        self._deadline = deadline
        self.result = b""

    def run(self, verb: Verb) -> str:
        """One verb; CHECK and DEL get the result of ADD."""
        config = dict(CONFIG)
        if verb in (Verb.CHECK, Verb.DEL) and self.result:
            config["prevResult"] = msgspec.json.decode(self.result)
        if verb is Verb.GC:
            valid = {"containerID": CONTAINER, "ifname": "eth0"}
            config["cni.dev/valid-attachments"] = [valid]
        request = Request(
            verb=verb,
            container_id=CONTAINER,
            netns=self._namespace,
            ifname="eth0",
            config=msgspec.json.encode(config),
        )
        stdout = dispatch(
            plugins.load("nat"), request, host=Side(), delegate=_NoIpam(), deadline=self._deadline
        )
        if verb is Verb.ADD:
            self.result = stdout
        return stdout.decode()

    @property
    def address(self) -> str:
        """The container's address by the result; empty if it names none."""
        ips = msgspec.json.decode(self.result).get("ips") or [{"address": ""}]
        return str(ips[0]["address"]).partition("/")[0]


class _NoIpam:
    """The configuration names no IPAM plugin."""

    def run(self, plugin_type: str, request: Request, deadline: Deadline) -> bytes:
        raise errors.HnsUnsupported(f"plugin {plugin_type}")


def _exercise(
    service: Service, deadline: Deadline, ping: Ping, namespaces: list[uuid.UUID]
) -> Iterator[Finding]:
    """Create, attach, ping, delete; `namespaces` gets what is to be removed in the end."""
    ident = uuid.uuid4()
    namespaces.append(ident)  # before: a create may fail, and leave one all the same
    wish = schemas.Namespace(ID=str(ident), SchemaVersion=schemas.V2)
    try:
        namespace = service.hcn.namespaces.create(wish)
    except CniError as error:
        yield Finding("create a namespace", Verdict.FAILED, str(error))
        return
    if namespace.ID.casefold() != str(ident):  # the service may choose another one
        ident = uuid.UUID(namespace.ID)
        namespaces.append(ident)
    yield Finding("create a namespace", Verdict.OK, f"compartment {namespace.NamespaceId}")
    plugin = _Plugin(str(ident), deadline)
    added = _attempt("ADD makes network and endpoint", lambda: plugin.run(Verb.ADD))
    yield added
    if added.verdict is Verdict.OK:
        yield _attempt("a second ADD changes nothing", lambda: _add_again(plugin))
        yield _attempt("CHECK passes", lambda: plugin.run(Verb.CHECK))
        yield _attempt("STATUS passes", lambda: plugin.run(Verb.STATUS))
        yield _attempt("GC spares what is valid", lambda: _collect(plugin))
        yield _answers(plugin, ping)
        yield _attempt_finding(OWNER_KEPT, lambda: _owner(service))
    yield _attempt("DEL removes the endpoint", lambda: _delete(service, plugin))
    yield _attempt("a second DEL succeeds", lambda: plugin.run(Verb.DEL))


def _add_again(plugin: _Plugin) -> str:
    before = plugin.result
    plugin.run(Verb.ADD)
    if before != plugin.result:
        raise CniError(f"the results differ: {before.decode()} and {plugin.result.decode()}")
    return ""


def _collect(plugin: _Plugin) -> str:
    plugin.run(Verb.GC)
    return plugin.run(Verb.CHECK)


def _delete(service: Service, plugin: _Plugin) -> str:
    plugin.run(Verb.DEL)
    left = service.hcn.endpoints.find_all_named(f"{CONTAINER}_{NETWORK}")
    if left:
        raise CniError(f"{len(left)} endpoints are left")
    return ""


def _answers(plugin: _Plugin, ping: Ping) -> Finding:
    """The namespace has a network stack of its own, which should answer without a container."""
    if not plugin.address:
        return Finding("the result names an address", Verdict.FAILED, plugin.result.decode())
    what = f"{plugin.address} answers pings from the node"
    if ping(plugin.address):
        return Finding(what, Verdict.OK)
    return Finding(what, Verdict.DIFFERS, "no answer; a firewall may drop them")


def _owner(service: Service) -> Finding:
    """GC tells its own endpoints by the Owner, if the service keeps it."""
    found = service.hcn.endpoints.find_all_named(f"{CONTAINER}_{NETWORK}")
    owner = ", ".join(endpoint.Owner for endpoint in found)
    if owner:
        return Finding(OWNER_KEPT, Verdict.OK, owner)
    return Finding(OWNER_KEPT, Verdict.DIFFERS, "GC will go by names only")


# -- the simulator's suppositions ------------------------------------------------------------------


def _probe(service: Service) -> Iterator[Finding]:
    """Ask the service what the simulator answers from inference."""
    what = "a network to try the simulator's rules on"
    try:
        found = service.hcn.networks.find_all_named(NETWORK)
    except CniError as error:
        yield Finding(what, Verdict.FAILED, str(error))
        return
    if not found:
        yield Finding(what, Verdict.FAILED, "there is none")
        return
    network = found[0].ident
    yield _expect_code(
        "an unknown id", hns_rules.E_NOTFOUND, lambda: service.hcn.networks.get(uuid.uuid4())
    )
    yield _expect_code(
        "a network name twice",
        hns_rules.NETWORK_EXISTS,
        lambda: service.hcn.networks.create(_fresh(found[0])),
    )
    for what, code, endpoint in _bad_endpoints():
        yield _expect_code(what, code, _creating(service, network, endpoint))
    yield from _probe_twice(service, network)


def _probe_twice(service: Service, network: uuid.UUID) -> Iterator[Finding]:
    """What no second endpoint may have, and whether a network in use can be removed."""
    try:
        first = service.hcn.endpoints.create(network, _endpoint("doctor-1", port=47998))
    except CniError as error:
        yield Finding("an endpoint with a port mapping", Verdict.FAILED, str(error))
        return
    if first.IpConfigurations:
        twin = _endpoint("doctor-2", first)
        create = _creating(service, network, twin)
        yield _expect_code("an address twice", hns_rules.RESERVED_ADDRESS, create)
    create = _creating(service, network, _endpoint("doctor-2", port=47998))
    yield _expect_code("a host port twice", hns_rules.PORT_EXISTS, create)
    yield _expect_code(
        "a network in use removed",
        hns_rules.HAS_REFERENCES,
        lambda: service.hcn.networks.remove(network),
    )


def _fresh(network: schemas.Network) -> schemas.Network:
    """The same network to be made anew."""
    return schemas.Network(
        Name=network.Name, Type=network.Type, Ipams=network.Ipams, SchemaVersion=schemas.V2
    )


def _bad_endpoints() -> Iterator[tuple[str, int, Endpoint]]:
    """Endpoints the simulator refuses, with the code it answers."""

    def with_address(address: str) -> Endpoint:
        return _endpoint("doctor-bad", address=address)

    def with_policy(kind: str, **settings: object) -> Endpoint:
        endpoint = _endpoint("doctor-bad")
        return msgspec.structs.replace(endpoint, Policies=(Policy(Type=kind, Settings=settings),))

    yield "an address of no subnet", hns_rules.INVALID_IP, with_address("203.0.113.9")
    yield "no address at all", hns_rules.INVALID_IP, with_address("nonsense")
    yield "the gateway's address", hns_rules.RESERVED_ADDRESS, with_address(f"{PREFIX}.1")
    yield "the network's address", hns_rules.RESERVED_ADDRESS, with_address(f"{PREFIX}.0")
    yield "an unknown policy", hns_rules.INVALID_POLICY_TYPE, with_policy("Bogus")
    yield (
        "an exception with host bits",
        hns_rules.INVALID_POLICY,
        with_policy("OutBoundNAT", Exceptions=["10.0.0.1/8"]),
    )
    yield (
        "a port mapping without container port",
        hns_rules.NO_INTERNAL_PORT,
        with_policy("PortMapping", ExternalPort=47997, Protocol=6),
    )
    yield (
        "a MAC with colons",
        hns_rules.INVALID_ENDPOINT,
        msgspec.structs.replace(_endpoint("doctor-bad"), MacAddress="00:15:5d:00:00:01"),
    )


def _endpoint(
    name: str, like: Endpoint | None = None, *, address: str = "", port: int = 0
) -> Endpoint:
    """An endpoint of the network under test, at the address of `like` if given."""
    if like is not None:
        address = like.IpConfigurations[0].IpAddress
    settings = {"InternalPort": 80, "ExternalPort": port, "Protocol": 6}
    return Endpoint(
        Name=name,
        IpConfigurations=(IpConfiguration(IpAddress=address),) if address else (),
        Policies=(Policy(Type="PortMapping", Settings=settings),) if port else (),
        SchemaVersion=schemas.V2,
    )


def _creating(service: Service, network: uuid.UUID, endpoint: Endpoint) -> Callable[[], object]:
    """Create the endpoint on the network under test."""
    asked = msgspec.structs.replace(endpoint, HostComputeNetwork=str(network))

    def create() -> None:
        made = service.hcn.endpoints.create(network, asked)
        service.hcn.endpoints.remove(made.ident)

    return create


def _expect_code(what: str, code: int, step: Callable[[], object]) -> Finding:
    """Whether the service refuses the step with the code the simulator answers."""
    title = f"{what}: {code:#010x}"
    try:
        step()
    except errors.HnsError as error:
        if error.hresult == code:
            return Finding(title, Verdict.OK)
        return Finding(title, Verdict.DIFFERS, error.msg)
    except CniError as error:
        return Finding(title, Verdict.FAILED, str(error))
    return Finding(title, Verdict.DIFFERS, "it was accepted")


# -- cleaning up -----------------------------------------------------------------------------------


def _remove_all(service: Service, namespaces: list[uuid.UUID]) -> list[str]:
    """Everything of ours, also what an interrupted run left; what went wrong, in words.

    Endpoints are ours by their names on our network: elsewhere somebody else may use them.
    """
    hcn = service.hcn
    left = [text for one in namespaces for text in _gather(hcn.namespaces.remove, one, "namespace")]
    try:
        networks = hcn.networks.find_all_named(NETWORK)
    except CniError as error:
        return [*left, f"network {NETWORK}: {error}"]

    def empty_and_remove(network: uuid.UUID) -> None:
        for endpoint in hcn.endpoints.list_on(network):
            if endpoint.Name in (f"{CONTAINER}_{NETWORK}", *PROBES):
                hcn.endpoints.remove(endpoint.ident)
        hcn.networks.remove(network)

    for network in networks:
        left += _gather(empty_and_remove, network.ident, f"network {NETWORK}")
    return left


def _gather(remove: Callable[[uuid.UUID], None], ident: uuid.UUID, what: str) -> list[str]:
    try:
        remove(ident)
    except CniError as error:
        return [f"{what} {ident}: {error}"]
    return []
