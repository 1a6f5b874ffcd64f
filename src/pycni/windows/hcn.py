# SPDX-License-Identifier: Apache-2.0
"""Typed client of the schema 2 API: networks, endpoints, namespaces, load balancers.

`find` answers None for what is not there, `get` raises, `list` skips what vanishes while it looks.
An error is never taken for absence: only the not-found codes of `errors` mean that.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Any, Generic, TypeVar

import msgspec

from pycni.windows import calls, errors, schemas

T = TypeVar("T", bound=schemas.Document)


class Objects(Generic[T]):
    """One type of object of the service: what all types can do."""

    noun = ""
    document: type[T]

    def __init__(self, native: calls.Calls) -> None:
        self._calls = native

    def list(self, **matches: str) -> tuple[T, ...]:
        """All objects whose fields equal `matches`; those that vanish meanwhile are left out."""
        query = schemas.query(schemas.V2, **matches)
        found: tuple[T, ...] = ()
        for ident in self.list_ids(**matches):
            with contextlib.suppress(errors.HnsNotFound):
                found += (self._query(ident, query, self.document),)
        return found

    def list_ids(self, **matches: str) -> tuple[uuid.UUID, ...]:
        reply = self._calls.run(
            f"HcnEnumerate{self.noun}s", texts=(schemas.query(schemas.V2, **matches),)
        )
        names = decode(reply.text, tuple[str, ...]) if reply.text else ()
        return tuple(uuid.UUID(name) for name in names)

    def get(self, ident: uuid.UUID) -> T:
        found: T = self._query(ident, schemas.query(), self.document)
        return found

    def find(self, ident: uuid.UUID) -> T | None:
        try:
            return self.get(ident)
        except errors.HnsNotFound:
            return None

    def find_all_named(self, name: str) -> tuple[T, ...]:
        """Every object of that name; the service does not keep names unique everywhere."""
        return tuple(one for one in self.list(Name=name) if getattr(one, "Name", "") == name)

    def remove(self, ident: uuid.UUID) -> None:
        """Delete; absent is success. A failed delete of something that is gone is one too."""
        try:
            self._calls.run(f"HcnDelete{self.noun}", guid=ident)
        except errors.HnsNotFound:
            return
        except errors.HnsError:
            if self.find(ident) is not None:
                raise

    def modify(self, ident: uuid.UUID, change: schemas.Modify) -> None:
        with self._calls.opened(self.noun, ident) as handle:
            self._calls.run(f"HcnModify{self.noun}", handle=handle, texts=(schemas.encode(change),))

    def _create(self, settings: T, *, owner: int = 0) -> T:
        """Create, and read back what the service made of it."""
        reply = self._calls.run(
            f"HcnCreate{self.noun}", handle=owner, texts=(schemas.encode(settings),)
        )
        try:
            made: T = self._read(reply.handle, schemas.query(), self.document)
            return made
        finally:
            self._calls.close(f"HcnClose{self.noun}", reply.handle)

    def _query(self, ident: uuid.UUID, query: str, document: type[Any]) -> Any:
        with self._calls.opened(self.noun, ident) as handle:
            return self._read(handle, query, document)

    def _read(self, handle: int, query: str, document: type[Any]) -> Any:
        reply = self._calls.run(f"HcnQuery{self.noun}Properties", handle=handle, texts=(query,))
        return decode(reply.text, document)


class Networks(Objects[schemas.Network]):
    noun = "Network"
    document = schemas.Network

    def create(self, network: schemas.Network) -> schemas.Network:
        """Create, after the checks Go's client makes too, for the service's errors name nothing."""
        for subnet in network.subnets:
            if subnet.IpAddressPrefix and not any(route.NextHop for route in subnet.Routes):
                raise errors.HnsError(
                    "hcnCreateNetwork",
                    0x803B000A,
                    detail="network create error, subnet has address prefix but no gateway"
                    " specified",
                )
        return self._create(network)

    def get_v1(self, ident: uuid.UUID) -> schemas.NetworkV1:
        """The schema 1 view, which alone tells the management address. No second DLL needed."""
        view = self._query(ident, schemas.query(schemas.V1), schemas.NetworkV1)
        assert isinstance(view, schemas.NetworkV1)
        return view


class Endpoints(Objects[schemas.Endpoint]):
    noun = "Endpoint"
    document = schemas.Endpoint

    def create(self, network: uuid.UUID, endpoint: schemas.Endpoint) -> schemas.Endpoint:
        with self._calls.opened("Network", network) as owner:
            return self._create(endpoint, owner=owner)

    def list_on(self, network: uuid.UUID) -> tuple[schemas.Endpoint, ...]:
        """The endpoints of one network. The filter's key is schema 1's name for it."""
        found = self.list(VirtualNetwork=str(network))
        return tuple(one for one in found if schemas.parse_id(one.HostComputeNetwork) == network)

    def find_containers(self, ident: uuid.UUID) -> tuple[str, ...]:
        """The containers plugged in without a namespace, which only the schema 1 view tells."""
        with contextlib.suppress(errors.HnsNotFound):
            view = self._query(ident, schemas.query(schemas.V1), schemas.EndpointV1)
            assert isinstance(view, schemas.EndpointV1)
            return view.SharedContainers
        return ()

    def apply_policies(self, ident: uuid.UUID, policies: tuple[schemas.Policy, ...]) -> None:
        settings = {"Policies": [msgspec.to_builtins(policy) for policy in policies]}
        self.modify(
            ident,
            schemas.Modify(ResourceType="Policy", RequestType="Add", Settings=settings),
        )


class Namespaces(Objects[schemas.Namespace]):
    noun = "Namespace"
    document = schemas.Namespace

    def create(self, namespace: schemas.Namespace) -> schemas.Namespace:
        return self._create(namespace)

    def add_endpoint(self, namespace: uuid.UUID, endpoint: uuid.UUID) -> None:
        self._change("Add", namespace, endpoint)

    def remove_endpoint(self, namespace: uuid.UUID, endpoint: uuid.UUID) -> None:
        """Detach; namespace or endpoint absent is success."""
        with contextlib.suppress(errors.HnsNotFound):
            self._change("Remove", namespace, endpoint)

    def _change(self, request: str, namespace: uuid.UUID, endpoint: uuid.UUID) -> None:
        self.modify(
            namespace,
            schemas.Modify(
                ResourceType="Endpoint",
                RequestType=request,
                Settings={"EndpointId": str(endpoint)},
            ),
        )


class LoadBalancers(Objects[schemas.LoadBalancer]):
    noun = "LoadBalancer"
    document = schemas.LoadBalancer

    def create(self, balancer: schemas.LoadBalancer) -> schemas.LoadBalancer:
        return self._create(balancer)


class Hcn:
    """The schema 2 service."""

    def __init__(self, native: calls.Calls) -> None:
        self.networks = Networks(native)
        self.endpoints = Endpoints(native)
        self.namespaces = Namespaces(native)
        self.load_balancers = LoadBalancers(native)


def decode(text: str, document: Any) -> Any:
    """The service's JSON as `document`; what it should not say is an error of the service."""
    try:
        return schemas.decode(text, document)
    except msgspec.DecodeError as exc:
        raise errors.HnsError("read reply", 0x803B001B, detail=f"{exc}: {text[:200]}") from exc
