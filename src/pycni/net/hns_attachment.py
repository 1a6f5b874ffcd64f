# SPDX-License-Identifier: Apache-2.0
"""The five verbs of the Windows plugins, on either schema of the host networking service.

The endpoint is the truth and IPAM follows it: an address is asked for after it is known that no
endpoint exists, and given back after the endpoint is gone. So a repeated ADD never touches the
address of a living container, and a failed DEL never frees an address that is still configured.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from pycni.errors import CniError, NotAvailable, doing
from pycni.model.request import Attachment
from pycni.model.result import DNS, Result
from pycni.net.hns_plan import (
    Spec,
    Step,
    has_dsr,
    needs_features,
    plan,
    plan_policies,
    result_of,
    takes_gateway,
)
from pycni.net.undo import Gather, Undo
from pycni.windows import errors, policies
from pycni.windows.dialects import OWNER, V1, Dialect, Endpoint, Network, Plan
from pycni.windows.sandbox import Sandbox, endpoint_name
from pycni.windows.service import Service

log = logging.getLogger(__name__)


class Ipam(Protocol):
    """The delegated address management of one call."""

    def add(self) -> Result: ...
    def delete(self) -> None: ...
    def check(self) -> None: ...
    def gc(self) -> None: ...
    def status(self) -> None: ...


class EndpointMismatch(CniError):
    """CHECK: the endpoint is not what ADD made."""


class NetworkNotFound(CniError):
    """The network does not exist in the host networking service."""


def add(service: Service, spec: Spec, sandbox: Sandbox, ipam: Ipam | None) -> Result:
    """Attach the container; the same attachment again returns its result and changes nothing."""
    dialect = service.dialect(spec.apiVersion, sandbox)
    network = get_network(dialect, spec)
    name = endpoint_name(sandbox.ident, spec.network)
    existing = _find_existing(dialect, network, name, sandbox)
    if existing is not None:
        _attach_existing(dialect, existing, sandbox)
        return result_of(spec, network, existing)
    if sandbox.shares:
        raise CniError(f"failed to find HNSEndpoint {name}: Endpoint {name} not found")
    with Undo() as undo:
        addresses = None
        if ipam is not None:
            # SPEC section 4: a delegate that failed is called again with DEL.
            undo.push(ipam.delete)
            addresses = _ask_ipam(spec, network, ipam)
        wanted = _plan(dialect, spec, network, name, addresses)
        undo.commit()
        # By name: a create may fail, and leave an endpoint all the same.
        undo.push(_unwind, service.for_rollback(dialect), network, name, sandbox, ipam)
        try:
            endpoint = dialect.create_endpoint(wanted)
        except errors.HnsTimeout as exc:
            # Whether the endpoint exists, or will, is not known. DEL finds it by its name.
            undo.commit()
            exc.add_note("the address stays reserved until DEL: the endpoint may still appear")
            raise
        _add_late_policies(dialect, spec, endpoint)
        with doing(f"attaching endpoint {name} to {sandbox.netns or sandbox.container_id}"):
            dialect.attach(endpoint, sandbox)
        result = result_of(spec, network, endpoint)
        undo.commit()
    return result


def delete(
    service: Service, configured: int | None, network: str, sandbox: Sandbox, ipam: Ipam | None
) -> None:
    """Remove the container's endpoints, then its addresses; absent is success.

    Found by name, whether or not network, namespace and CNI_NETNS still exist. A container that
    shares another one's network is taken off the endpoint, which stays.
    """
    dialect = service.lenient_dialect(configured, sandbox)
    found = dialect.find_endpoints(endpoint_name(sandbox.ident, network))
    if sandbox.shares:
        for endpoint in found:
            dialect.detach(endpoint, sandbox)
        return
    with Gather(f"remove the endpoints of {sandbox.container_id}") as gather:
        for endpoint in found:
            gather.run(_remove, dialect, endpoint, sandbox)
    if ipam is not None:
        ipam.delete()


def check(
    service: Service, spec: Spec, sandbox: Sandbox, ipam: Ipam | None, expected: Result | None
) -> None:
    """Raise unless the endpoint is there, attached, sound, and as ADD said."""
    dialect = service.dialect(spec.apiVersion, sandbox)
    network = get_network(dialect, spec)
    name = endpoint_name(sandbox.ident, spec.network)
    found = [one for one in dialect.find_endpoints(name) if one.network == network.ident]
    if not found:
        raise EndpointMismatch(f"endpoint {name} does not exist on network {spec.network}")
    endpoint = next((one for one in found if dialect.is_attached(one, sandbox)), found[0])
    if not dialect.is_attached(endpoint, sandbox):
        place = sandbox.netns or sandbox.container_id
        raise EndpointMismatch(f"endpoint {name} is not attached to {place}")
    if endpoint.degraded:
        raise EndpointMismatch(f"endpoint {name} is degraded")
    if expected is not None:
        _expect_result(spec, network, endpoint, expected)
    _expect_policies(dialect, spec, network, endpoint)
    if ipam is not None and not sandbox.shares:
        ipam.check()


def gc(service: Service, spec: Spec, ipam: Ipam | None, valid: Iterable[Attachment]) -> None:
    """Remove this network's endpoints whose container is not valid any more, then their addresses.

    Only endpoints that are certainly an attachment's: named `<container id>_<network>`, on this
    network, and either marked as ours or, as the reference does not mark them, in no living
    namespace. So never a node's own (`cbr0_ep`), a source VIP's or another plugin's.
    """
    dialect = service.own_dialect(spec.apiVersion)
    keep = {endpoint_name(one.container_id, spec.network) for one in valid}
    suffix = f"_{spec.network}"
    spared = False
    with Gather(f"collect the garbage of network {spec.network}") as gather:
        for network in dialect.find_networks(spec.network):
            for endpoint in dialect.list_endpoints(network.ident):
                if endpoint.name in keep or not endpoint.name.endswith(suffix):
                    continue
                if not _may_collect(dialect, endpoint):
                    log.warning("GC: endpoint left alone: name=%s", endpoint.name)
                    spared = True
                    continue
                sandbox = Sandbox("", endpoint.name.removesuffix(suffix))
                gather.run(_remove, dialect, endpoint, sandbox)
    if ipam is not None and not spared:  # a spared endpoint keeps its address
        ipam.gc()


def status(service: Service, spec: Spec, ipam: Ipam | None, *, creates: bool = False) -> None:
    """Raise NotAvailable (50) unless the service answers and has the network.

    `creates`: ADD makes a missing network itself, as NAT networks need after a reboot.
    """
    try:
        dialect = service.own_dialect(spec.apiVersion)
        found = dialect.find_networks(spec.network)
    except CniError as exc:
        raise NotAvailable("the host networking service does not answer", str(exc)) from exc
    if not found and not creates:
        raise NotAvailable(
            f"network {spec.network} does not exist",
            hint="create it, or restart whatever creates it (flanneld, Docker)",
        )
    if found and not any(network.kind in spec.kinds for network in found):
        kinds = ", ".join(network.kind for network in found)
        raise NotAvailable(f"network {spec.network} is of unexpected type: {kinds}")
    if ipam is not None:
        ipam.status()


def get_network(dialect: Dialect, spec: Spec) -> Network:
    """The network of the configuration; raise unless it exists and has the right type."""
    found = dialect.find_networks(spec.network)
    if not found:
        raise NetworkNotFound(
            f'error while getting network {spec.network}: Network name "{spec.network}" not found'
        )
    for network in found:
        if network.kind in spec.kinds:
            return network
    raise CniError(f"network {spec.network} is of unexpected type: {found[0].kind}")


# -- steps -----------------------------------------------------------------------------------------


def _find_existing(
    dialect: Dialect, network: Network, name: str, sandbox: Sandbox
) -> Endpoint | None:
    """The endpoint of this attachment if it lives; what is left of dead ones is removed.

    There may be several of one name. One on another network (recreated under its old name) or in
    no living namespace carries no traffic, and its address may be another container's by now.
    """
    alive = None
    for endpoint in dialect.find_endpoints(name):
        here = endpoint.network == network.ident
        if here and (isinstance(dialect, V1) or dialect.is_attached(endpoint, sandbox)):
            alive = alive or endpoint
        elif here and dialect.in_use(endpoint):
            raise errors.HnsConflict(
                f"attach endpoint {name}",
                errors.ALREADY_IN_NAMESPACE,
                detail=f"it is attached to {_place(endpoint)}",
            )
        else:
            log.warning("stale endpoint removed: name=%s id=%s", name, endpoint.ident)
            _remove(dialect, endpoint, sandbox)
    return alive


def _place(endpoint: Endpoint) -> str:
    """Where an endpoint in use is, in words."""
    if endpoint.namespace is not None:
        return f"namespace {endpoint.namespace}"
    return "a container without a namespace"


def _attach_existing(dialect: Dialect, endpoint: Endpoint, sandbox: Sandbox) -> None:
    if dialect.is_attached(endpoint, sandbox):
        return
    try:
        dialect.attach(endpoint, sandbox)
    except errors.HnsError as exc:
        # kubelet asks for workload containers before they run; they are attached when they start.
        if exc.hresult != errors.NO_COMPUTE_SYSTEM:
            raise


def _ask_ipam(spec: Spec, network: Network, ipam: Ipam) -> Result:
    """IPAM's addresses, asked for once more if it gave the container its gateway's.

    flannel's host-gw configuration lets it: host-local keeps the first address of the subnet for
    the gateway, which on Windows is the second. host-local's next answer is another one.
    """
    with doing("executing IPAM addition"):
        given = ipam.add()
    if not takes_gateway(spec, network, given):
        return given
    log.info("IPAM gave the gateway's address and is asked again: network=%s", spec.network)
    with doing("executing IPAM addition a second time"):
        ipam.delete()
        return ipam.add()


def _plan(
    dialect: Dialect, spec: Spec, network: Network, name: str, addresses: Result | None
) -> Plan:
    features = dialect.hns.features if needs_features(spec, addresses) else None
    return plan(
        spec,
        network,
        name,
        ipam=addresses,
        features=features,
        management_ip=_management_ip(dialect, spec, network),
    )


def _add_late_policies(dialect: Dialect, spec: Spec, endpoint: Endpoint) -> None:
    """Policies on an address that the service chose can only come now."""
    if not spec.loopback_dsr or not has_dsr(dialect.hns.features):
        return
    present = [one for one in endpoint.policies if "Destinations" in one.Settings]
    late = policies.PolicyList(present)
    late.add_destinations(endpoint.addresses)
    missing = late.freeze()[len(present) :]
    if missing:
        dialect.add_policies(endpoint, missing)


def _unwind(
    dialect: Dialect, network: Network, name: str, sandbox: Sandbox, ipam: Ipam | None
) -> None:
    """Undo a failed ADD: the endpoint if there is one, and when that is gone its addresses."""
    with Gather(f"remove endpoint {name}") as gather:
        for endpoint in dialect.find_endpoints(name):
            if endpoint.network == network.ident:
                gather.run(_remove, dialect, endpoint, sandbox)
    if ipam is not None:
        ipam.delete()


def _management_ip(dialect: Dialect, spec: Spec, network: Network) -> str:
    """The node's address for encapsulated packets, unless the configuration names one."""
    if Step.PROVIDER_ADDRESS not in spec.steps:
        return ""
    if any(policy.Type == policies.PROVIDER_ADDRESS for policy in spec.policies):
        return ""
    return dialect.management_ip(network)


def _remove(dialect: Dialect, endpoint: Endpoint, sandbox: Sandbox) -> None:
    """Detach and delete. Deleting detaches too, so a failure to detach alone is no failure."""
    detach_error: CniError | None = None
    try:
        dialect.detach(endpoint, sandbox)
    except CniError as exc:
        detach_error = exc
        log.warning("endpoint not detached: name=%s error=%s", endpoint.name, exc)
    try:
        dialect.remove(endpoint)
    except CniError as exc:
        if detach_error is not None:
            exc.add_note(f"detaching failed too: {detach_error}")
        raise


def _may_collect(dialect: Dialect, endpoint: Endpoint) -> bool:
    if endpoint.owner:
        return endpoint.owner == OWNER
    return not dialect.in_use(endpoint)


def _expect_result(spec: Spec, network: Network, endpoint: Endpoint, expected: Result) -> None:
    """Raise unless addresses, MAC and DNS are those of the result; more than them is fine."""
    actual = result_of(spec, network, endpoint)
    for ip in expected.ips:
        if ip.address.ip not in endpoint.addresses:
            shown = ", ".join(map(str, endpoint.addresses)) or "none"
            raise EndpointMismatch(
                f"endpoint {endpoint.name} does not have address {ip.address.ip}, but {shown}"
            )
    for interface in expected.interfaces:
        ours = interface.name == actual.interfaces[0].name
        if ours and interface.mac and interface.mac.casefold() != endpoint.mac.casefold():
            raise EndpointMismatch(
                f"endpoint {endpoint.name} has MAC {endpoint.mac}, not {interface.mac}"
            )
    _expect_dns(endpoint, spec.dns, expected.dns)


def _expect_dns(endpoint: Endpoint, wanted: DNS, told: DNS) -> None:
    """Raise unless the endpoint has the configured DNS.

    Domain and options count if the service showed them to ADD; schema 1 has neither.
    """
    given = endpoint.dns
    for what, expected, actual in (
        ("nameservers", list(wanted.nameservers), list(given.nameservers)),
        ("search", list(wanted.search), list(given.search)),
        ("domain", wanted.domain if wanted.domain == told.domain else "", given.domain),
        (
            "options",
            list(wanted.options if wanted.options == told.options else ()),
            list(given.options),
        ),
    ):
        if expected and expected != actual:
            raise EndpointMismatch(
                f"endpoint {endpoint.name} has DNS {what} {actual}, not {expected}"
            )


def _expect_policies(dialect: Dialect, spec: Spec, network: Network, endpoint: Endpoint) -> None:
    """Raise unless every policy ADD would give is there; other programs may have added more."""
    features = dialect.hns.features if spec.loopback_dsr else None
    management_ip = _management_ip(dialect, spec, network)
    for wanted in plan_policies(spec, network, endpoint.addresses, features, management_ip):
        if not policies.contains(endpoint.policies, wanted):
            raise EndpointMismatch(
                f"endpoint {endpoint.name} lacks policy {wanted.Type} {wanted.Settings}"
            )
