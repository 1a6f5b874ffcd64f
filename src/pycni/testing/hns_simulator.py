# SPDX-License-Identifier: Apache-2.0
"""An in-memory host networking service, for tests of anything that speaks to one.

`HnsSimulator` has the service's functions (`pycni.windows.abi.Native`). A typed client works on it
directly; `pycni.testing.hns_forwarder` puts it behind the real DLL interface. What it accepts is
written in `hns_rules`, which tells documented rules from inferred ones. It says nothing about
packets: a policy here is a document, not a data path.

A test may look at `calls` (every call with its documents and answer), count `open_handles`, and
put a `hook` on a function: something that runs before it and may answer in its place.
"""

from __future__ import annotations

import copy
import ipaddress
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from pycni.testing import hns_rules as rules
from pycni.testing import hns_views as views
from pycni.testing.hns_rules import Refused
from pycni.windows.abi import NIL, Reply
from pycni.windows.errors import NO_COMPUTE_SYSTEM, TEXTS

Doc = dict[str, Any]
Hook = Callable[["NativeCall"], Reply | None]

NOUNS = ("Network", "Endpoint", "Namespace", "LoadBalancer")
_HCN = re.compile(r"Hcn(Enumerate|Create|Open|Modify|Query|Delete|Close)([A-Za-z]+)")
_V2 = {"Major": 2, "Minor": 0}


class NativeCall(msgspec.Struct):
    """One call as it arrived, and the HRESULT it was answered with."""

    function: str
    guid: uuid.UUID
    handle: int
    texts: tuple[str, ...]
    hresult: int = 0


class HnsSimulator:
    """Networks, endpoints, namespaces, load balancers and compute systems in dictionaries.

    `version` is the service's version; `management_ip` the node's address; schema 1 shows it
    only after `management_ip_delay` looks, since the real one appears some time after a create.
    """

    def __init__(
        self,
        *,
        version: tuple[int, int] = (13, 2),
        management_ip: str = "192.168.1.10",
        management_ip_delay: int = 0,
    ) -> None:
        self.version = version
        self.management_ip = management_ip
        self.management_ip_delay = management_ip_delay
        self.objects: dict[str, dict[uuid.UUID, Doc]] = {noun: {} for noun in NOUNS}
        self.compute_systems: set[str] = set()
        self.calls: list[NativeCall] = []
        self.handles: dict[int, tuple[str, Any]] = {}
        self._hooks: dict[str, list[tuple[Hook, list[int]]]] = {}
        self._lock = threading.RLock()
        self._next_handle = 0x1000
        self._next_mac = 1
        self._next_compartment = 2

    # The port

    def invoke(
        self,
        function: str,
        *,
        guid: uuid.UUID = NIL,
        handle: int = 0,
        texts: tuple[str, ...] = (),
    ) -> Reply:
        """Answer one call; every outcome is a reply."""
        call = NativeCall(function, guid, handle, texts)
        with self._lock:
            self.calls.append(call)
        reply = self._hooked(call)
        if reply is None:
            with self._lock:
                reply = self._answer(call)
        call.hresult = reply.hresult
        return reply

    def _answer(self, call: NativeCall) -> Reply:
        try:
            if call.function == "HNSCall":
                return self._rest(*call.texts)
            if call.function.startswith("Hcs"):
                return self._compute(call)
            return self._hcn(call)
        except Refused as refused:
            return refusal(refused.hresult)

    # What tests say and ask

    def hook(self, function: str, hook: Hook, *, times: int = 1) -> None:
        """Run `hook` before the next `times` calls of `function`; its reply is the answer."""
        self._hooks.setdefault(function, []).append((hook, [times]))

    def fail(self, function: str, hresult: int, *, times: int = 1) -> None:
        """Answer the next `times` calls of `function` with `hresult`."""
        self.hook(function, lambda _call: refusal(hresult), times=times)

    def hang(self, function: str, *, after: bool = False) -> threading.Event:
        """Make the next call of `function` wait for the event, before its work or after it."""
        release = threading.Event()

        def wait(call: NativeCall) -> Reply | None:
            reply = None
            if after:
                with self._lock:
                    reply = self._answer(call)
            release.wait(60)
            return reply

        self.hook(function, wait)
        return release

    @property
    def open_handles(self) -> int:
        """Handles given out and not closed."""
        return len(self.handles)

    def add_network(self, doc: Doc) -> uuid.UUID:
        """Make a network by the service's own hand, from a document of either schema."""
        with self._lock:
            kept = doc if "Ipams" in doc or "SchemaVersion" in doc else views.network_from_v1(doc)
            return uuid.UUID(self._create_network(kept)["ID"])

    def add_namespace(self) -> uuid.UUID:
        """Make a namespace, as containerd does before it calls a plugin."""
        with self._lock:
            return uuid.UUID(self._create_namespace({"Type": "Guest"})["ID"])

    def add_endpoint(self, network: uuid.UUID, doc: Doc) -> uuid.UUID:
        """Make an endpoint that belongs to somebody else."""
        with self._lock:
            return uuid.UUID(self._create_endpoint(self.objects["Network"][network], doc)["ID"])

    def named(self, noun: str, name: str) -> list[Doc]:
        """The objects of that name."""
        return [doc for doc in self.objects[noun].values() if doc.get("Name") == name]

    def restart_node(self) -> None:
        """What a reboot leaves: no endpoint or namespace, and no NAT network (since 2019)."""
        with self._lock:
            self.objects["Endpoint"].clear()
            self.objects["Namespace"].clear()
            self.compute_systems.clear()
            networks = self.objects["Network"]
            for ident in [i for i, doc in networks.items() if rules.network_type(doc) == "NAT"]:
                del networks[ident]

    def _hooked(self, call: NativeCall) -> Reply | None:
        with self._lock:
            waiting = self._hooks.get(call.function, [])
            if not waiting:
                return None
            hook, left = waiting[0]
            left[0] -= 1
            if left[0] <= 0:
                waiting.pop(0)
        return hook(call)

    # Schema 2

    def _hcn(self, call: NativeCall) -> Reply:
        match = _HCN.fullmatch(call.function)
        if match is None:
            raise Refused(rules.UNSUPPORTED)
        verb, noun = match.groups()
        noun = noun.removesuffix("Properties") if verb == "Query" else noun
        noun = noun.removesuffix("s") if verb == "Enumerate" else noun
        if noun not in NOUNS or self.version < (9, 2):
            raise Refused(rules.UNSUPPORTED)
        match verb:
            case "Enumerate":
                return Reply(text=dump(self._enumerate(noun, load(call.texts[0]))))
            case "Create":
                return self._create(noun, call)
            case "Open":
                self._get(noun, call.guid)
                return Reply(handle=self._new_handle(noun, call.guid))
            case "Modify":
                self._modify(noun, self._by_handle(noun, call.handle), load(call.texts[0]))
            case "Query":
                doc = self._by_handle(noun, call.handle)
                return Reply(text=dump(self._show(noun, doc, load(call.texts[0]))))
            case "Delete":
                self._delete(noun, call.guid)
            case "Close":
                if self.handles.pop(call.handle, None) is None:
                    raise Refused(rules.E_HANDLE)
        return Reply()

    def _enumerate(self, noun: str, query: Doc) -> list[str]:
        rules.check_schema(query, self.version)
        wanted = load(query["Filter"]) if query.get("Filter") else {}
        found = []
        for ident, doc in self.objects[noun].items():
            facts = {
                "ID": str(ident),
                "Name": doc.get("Name"),
                "VirtualNetwork": str(doc.get("HostComputeNetwork", "")),
            }
            if all(same(facts.get(key), value) for key, value in wanted.items()):
                found.append(str(ident))
        return found

    def _create(self, noun: str, call: NativeCall) -> Reply:
        doc = load(call.texts[0])
        rules.check_schema(doc, self.version)
        if call.guid.int:
            doc["ID"] = str(call.guid)
        match noun:
            case "Network":
                made = self._create_network(doc)
            case "Endpoint":
                network = self._by_handle("Network", call.handle)
                made = self._create_endpoint(network, doc)
            case "Namespace":
                made = self._create_namespace(doc)
            case _:
                made = self._create_balancer(doc)
        return Reply(handle=self._new_handle(noun, uuid.UUID(made["ID"])))

    def _keep(self, noun: str, doc: Doc) -> Doc:
        """Store under the id of the document, or a new one."""
        ident = rules.check_id(doc["ID"]) if doc.get("ID") else uuid.uuid4()
        # A copy: what becomes of the object must not change the caller's document.
        kept = copy.deepcopy(doc) | {"ID": str(ident), "SchemaVersion": _V2}
        self.objects[noun][ident] = kept
        return kept

    def _create_network(self, doc: Doc) -> Doc:
        rules.check_network(doc, [one["Name"] for one in self.objects["Network"].values()])
        return self._keep("Network", doc | {"Type": rules.network_type(doc), "Looks": 0})

    def _create_namespace(self, doc: Doc) -> Doc:
        rules.check_namespace(doc)
        self._next_compartment += 1
        return self._keep(
            "Namespace", doc | {"NamespaceId": self._next_compartment, "Resources": []}
        )

    def _create_balancer(self, doc: Doc) -> Doc:
        for endpoint in doc.get("HostComputeEndpoints") or ():
            self._get("Endpoint", rules.check_id(endpoint))
        return self._keep("LoadBalancer", doc)

    def _create_endpoint(self, network: Doc, doc: Doc) -> Doc:
        others = list(self.objects["Endpoint"].values())
        rules.check_endpoint(doc, network, others, self.version)
        configurations = [c for c in doc.get("IpConfigurations") or () if c.get("IpAddress")]
        routes = [r for r in doc.get("Routes") or () if r.get("NextHop")]
        if not configurations and (home := self._first_subnet(network)) is not None:
            configurations, gateway = [{"IpAddress": self._free_address(network, home)}], home[1]
            default = "::/0" if ":" in gateway else "0.0.0.0/0"
            routes = routes or [{"NextHop": gateway, "DestinationPrefix": default}]
        mac = doc.get("MacAddress")
        if not mac:
            mac = f"00-15-5D-52-C0-{self._next_mac:02X}"
            self._next_mac += 1
        return self._keep(
            "Endpoint",
            doc
            | {
                "HostComputeNetwork": network["ID"],
                "HostComputeNamespace": views.ZERO,  # [documented: antrea 2306]
                "IpConfigurations": [
                    {"IpAddress": one["IpAddress"], "PrefixLength": self._length(network, one)}
                    for one in configurations
                ],
                "Routes": routes,
                "MacAddress": mac,
                "Policies": list(doc.get("Policies") or ()),
                "Dns": doc.get("Dns") or {},
                "SharedContainers": [],
                "State": views.STATE_CREATED,
            },
        )

    @staticmethod
    def _first_subnet(network: Doc) -> tuple[str, str] | None:
        """Prefix and gateway of the first subnet."""
        for subnet in rules.subnets(network):
            gateways = [r["NextHop"] for r in subnet.get("Routes") or () if r.get("NextHop")]
            return subnet["IpAddressPrefix"], next(iter(gateways), "")
        return None

    def _free_address(self, network: Doc, home: tuple[str, str]) -> str:
        """[inferred] The lowest address that no other endpoint and no gateway has."""
        taken = {
            one["IpAddress"]
            for other in self.objects["Endpoint"].values()
            if other["HostComputeNetwork"] == network["ID"]
            for one in other["IpConfigurations"]
        }
        for address in ipaddress.ip_network(home[0]).hosts():
            if str(address) not in taken | {home[1]}:
                return str(address)
        raise Refused(rules.INVALID_IP)

    @staticmethod
    def _length(network: Doc, configuration: Doc) -> int:
        """The prefix length the service shows: the one given, else its subnet's."""
        if configuration.get("PrefixLength"):
            return int(configuration["PrefixLength"])
        address = ipaddress.ip_address(configuration["IpAddress"])
        for subnet in rules.subnets(network):
            prefix = ipaddress.ip_network(subnet["IpAddressPrefix"])
            if address in prefix:
                return prefix.prefixlen
        return address.max_prefixlen

    def _modify(self, noun: str, doc: Doc, change: Doc) -> None:
        request, settings = change.get("RequestType"), change.get("Settings") or {}
        match noun, change.get("ResourceType"):
            case "Namespace", "Endpoint":
                endpoint = self._get("Endpoint", rules.check_id(settings.get("EndpointId")))
                self._attach(doc, endpoint, add=request == "Add")
            case (("Endpoint" | "Network"), "Policy"):
                self._modify_policies(noun, doc, request, settings.get("Policies") or [])
            case _:
                raise Refused(rules.UNSUPPORTED)

    def _modify_policies(self, noun: str, doc: Doc, request: object, policies: list[Doc]) -> None:
        if noun == "Endpoint":
            network = self._get("Network", uuid.UUID(doc["HostComputeNetwork"]))
            for policy in policies:
                rules.check_endpoint_policy(policy, network, self.version)
        kept = list(doc.get("Policies") or ())
        match request:
            case "Add":
                kept += policies
            case "Remove":
                kept = [one for one in kept if one not in policies]
            case "Update":  # [inferred] replaces what there is
                kept = policies
            case _:
                raise Refused(rules.UNSUPPORTED)
        doc["Policies"] = kept

    def _attach(self, namespace: Doc, endpoint: Doc, *, add: bool) -> None:
        """[documented] 0x803b002b: an endpoint is in one namespace at most."""
        if add:
            if endpoint["HostComputeNamespace"] != views.ZERO:
                raise Refused(rules.IN_NAMESPACE)
            endpoint["HostComputeNamespace"] = namespace["ID"]
            endpoint["State"] = views.STATE_ATTACHED
            namespace["Resources"].append(
                {"Type": "Endpoint", "Data": {"ID": endpoint["ID"].upper()}}
            )
            return
        if endpoint["HostComputeNamespace"] != namespace["ID"]:
            raise Refused(rules.E_NOTFOUND)
        self._detach(endpoint)

    def _detach(self, endpoint: Doc) -> None:
        namespace = self.objects["Namespace"].get(uuid.UUID(endpoint["HostComputeNamespace"]))
        if namespace is not None:
            namespace["Resources"] = [
                one for one in namespace["Resources"] if not same(one["Data"]["ID"], endpoint["ID"])
            ]
        endpoint["HostComputeNamespace"] = views.ZERO
        endpoint["State"] = views.STATE_CREATED

    def _delete(self, noun: str, ident: uuid.UUID) -> None:
        doc = self._get(noun, ident)
        if noun == "Endpoint":
            self._detach(doc)
        if noun == "Namespace":  # [inferred] its endpoints stay, detached
            for endpoint in self.objects["Endpoint"].values():
                if endpoint["HostComputeNamespace"] == doc["ID"]:
                    self._detach(endpoint)
        if noun == "Network" and any(  # [documented] code; [inferred] that endpoints count
            one["HostComputeNetwork"] == doc["ID"] for one in self.objects["Endpoint"].values()
        ):
            raise Refused(rules.HAS_REFERENCES)
        del self.objects[noun][ident]

    def _show(self, noun: str, doc: Doc, query: Doc) -> Doc:
        """The document in the schema asked for."""
        rules.check_schema(query, self.version)
        if (query.get("SchemaVersion") or _V2)["Major"] == 1:
            return self._show_v1(noun, doc)
        hidden = {"Looks", "SharedContainers"}
        if noun == "Network" and doc["Type"] == "NAT":
            hidden.add("Type")  # [documented: hcsshim] its number is 0 and is left out
        shown = {key: value for key, value in doc.items() if key not in hidden}
        return shown | {"Health": {"LastErrorCode": 0}}

    def _show_v1(self, noun: str, doc: Doc) -> Doc:
        if noun == "Network":
            doc["Looks"] += 1
            seen = doc["Looks"] > self.management_ip_delay
            return views.network_to_v1(doc, self.management_ip if seen else "")
        if noun == "Endpoint":
            network = self.objects["Network"].get(uuid.UUID(doc["HostComputeNetwork"]), {})
            return views.endpoint_to_v1(doc, network.get("Name", ""))
        return doc

    # Handles and look-ups

    def _new_handle(self, noun: str, what: Any) -> int:
        self._next_handle += 8
        self.handles[self._next_handle] = (noun, what)
        return self._next_handle

    def _get(self, noun: str, ident: uuid.UUID) -> Doc:
        """[documented] 0x80070490 for an id nobody has."""
        if ident not in self.objects[noun]:
            raise Refused(rules.E_NOTFOUND)
        return self.objects[noun][ident]

    def _by_handle(self, noun: str, handle: int) -> Doc:
        """[inferred] A handle of the wrong type is invalid; its object may be gone meanwhile."""
        held = self.handles.get(handle)
        if held is None or held[0] != noun:
            raise Refused(rules.E_HANDLE)
        return self._get(noun, held[1])

    # Compute systems

    def _compute(self, call: NativeCall) -> Reply:
        match call.function:
            case "HcsOpenComputeSystem":
                (name,) = call.texts
                if name not in self.compute_systems:
                    return compute_refusal(NO_COMPUTE_SYSTEM)
                return Reply(handle=self._new_handle("ComputeSystem", name))
            case "HcsModifyComputeSystem":
                change = load(call.texts[0])
                endpoint = self._get("Endpoint", rules.check_id(change.get("Settings")))
                shared = endpoint["SharedContainers"]
                name = self.handles[call.handle][1]
                if change.get("RequestType") == "Add":
                    shared.append(name)
                elif name in shared:
                    shared.remove(name)
                endpoint["State"] = views.STATE_SHARED if shared else views.STATE_CREATED
            case "HcsCloseComputeSystem":
                if self.handles.pop(call.handle, None) is None:
                    raise Refused(rules.E_HANDLE)
        return Reply()

    # Schema 1

    def _rest(self, method: str, path: str, body: str) -> Reply:
        parts = [part for part in path.split("/") if part]
        try:
            output = self._route(method, parts, load(body) if body else {})
        except Refused as refused:
            # Older builds answer so; newer ones with a failing HRESULT (see `fail`).
            text = TEXTS.get(refused.hresult, "The parameter is incorrect.")
            return Reply(text=dump({"Success": False, "Error": f"{text} "}))
        return Reply(text=dump({"Success": True, "Output": output}))

    def _route(self, method: str, parts: list[str], doc: Doc) -> Any:
        match method, parts:
            case "GET", ["globals", "version"]:
                if self.version < (7, 0):  # [documented: hcsshim] before 1803 nobody answers
                    raise Refused(rules.UNSUPPORTED)
                return {"Major": self.version[0], "Minor": self.version[1]}
            case "GET", ["networks"]:
                return [self._show_v1("Network", one) for one in self.objects["Network"].values()]
            case "POST", ["networks"]:
                made = self._create_network(views.network_from_v1(doc))
                return self._show_v1("Network", made)
            case "GET", ["endpoints"]:
                return [self._show_v1("Endpoint", one) for one in self.objects["Endpoint"].values()]
            case "POST", ["endpoints"]:
                return self._create_endpoint_v1(doc)
            case _, ["networks" | "endpoints" as kind, ident, *rest]:
                return self._route_object(method, kind, ident, rest, doc)
        raise Refused(rules.UNSUPPORTED)

    def _create_endpoint_v1(self, doc: Doc) -> Doc:
        for policy in doc.get("Policies") or ():
            if str(policy.get("Type", "")).casefold() not in rules.ENDPOINT_POLICIES_V1:
                raise Refused(rules.INVALID_POLICY_TYPE)
        kept = views.endpoint_from_v1(doc)
        network = self._object_v1("networks", kept["HostComputeNetwork"])
        return self._show_v1("Endpoint", self._create_endpoint(network, kept))

    def _route_object(self, method: str, kind: str, ident: str, rest: list[str], doc: Doc) -> Any:
        noun = "Network" if kind == "networks" else "Endpoint"
        found = self._object_v1(kind, ident)
        match method, rest:
            case "GET", []:
                return self._show_v1(noun, found)
            case "DELETE", []:
                self._delete(noun, uuid.UUID(found["ID"]))
                return {}
            case "POST", [] if noun == "Endpoint":
                found["Policies"] = [views.policy_from_v1(one) for one in doc.get("Policies") or ()]
                return self._show_v1(noun, found)
            case "POST", ["attach"] if noun == "Endpoint":
                found["SharedContainers"].append(doc.get("ContainerId") or "host")
                found["State"] = views.STATE_SHARED
                return {}
            case "POST", ["detach"] if noun == "Endpoint":
                if doc.get("ContainerId") in found["SharedContainers"]:
                    found["SharedContainers"].remove(doc["ContainerId"])
                return {}
        raise Refused(rules.UNSUPPORTED)

    def _object_v1(self, kind: str, ident: str) -> Doc:
        """[documented] Schema 1 has a not-found text of its own for each type."""
        noun = "Network" if kind == "networks" else "Endpoint"
        found = self.objects[noun].get(rules.check_id(ident))
        if found is None:
            missing = rules.NETWORK_NOT_FOUND if noun == "Network" else rules.ENDPOINT_NOT_FOUND
            raise Refused(missing)
        return found


def refusal(hresult: int) -> Reply:
    """[documented] A failing HRESULT comes with a record; its text ends in ". "."""
    text = TEXTS.get(hresult, "Unspecified error.")
    record = dump({"Success": False, "Error": f"{text} ", "ErrorCode": hresult})
    return Reply(hresult=hresult, record=record)


def compute_refusal(hresult: int) -> Reply:
    """The compute service's record is another one, with a signed HRESULT."""
    signed = hresult - (1 << 32) if hresult & 0x80000000 else hresult
    record = dump({"Error": signed, "ErrorMessage": TEXTS.get(hresult, ""), "ErrorEvents": []})
    return Reply(hresult=hresult, record=record)


def same(one: object, other: object) -> bool:
    """Ids compare without regard to case; so do names, as far as is known [inferred]."""
    return str(one).casefold() == str(other).casefold()


def load(text: str) -> Doc:
    """[documented] 0x803b001b for what is not a JSON object."""
    try:
        return msgspec.json.decode(text, type=Doc)
    except msgspec.DecodeError:
        raise Refused(rules.INVALID_JSON) from None


def dump(document: object) -> str:
    return msgspec.json.encode(document).decode()
