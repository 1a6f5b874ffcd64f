# SPDX-License-Identifier: Apache-2.0
"""Typed client of the schema 1 API (HNSCall), of the features, and of container hot plugging."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from pycni.windows import calls, errors, schemas
from pycni.windows.features import Features


class Rest:
    """HNSCall: method, path, body; the answer's Output, typed."""

    def __init__(self, native: calls.Calls) -> None:
        self._calls = native

    def call(self, method: str, path: str, body: object = None, *, output: Any = Any) -> Any:
        text = "" if body is None else schemas.encode(body)
        reply = self._calls.run(
            "HNSCall",
            texts=(method, path, text),
            judge=lambda reply: calls.judge_response(method, path, reply),
        )
        said = msgspec.json.decode(reply.text, type=errors.Record).Output
        try:
            return schemas.decode(bytes(said) or b"null", output)
        except msgspec.DecodeError as exc:
            raise errors.HnsError(
                f"HNSCall {method} {path}", 0x803B001B, detail=f"{exc}: {reply.text[:200]}"
            ) from exc


class NetworksV1:
    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def list(self) -> tuple[schemas.NetworkV1, ...]:
        found = self._rest.call("GET", "/networks/", output=tuple[schemas.NetworkV1, ...] | None)
        return tuple(found or ())

    def get(self, ident: uuid.UUID) -> schemas.NetworkV1:
        found = self._rest.call("GET", f"/networks/{ident}", output=schemas.NetworkV1)
        assert isinstance(found, schemas.NetworkV1)
        return found

    def find_named(self, name: str) -> schemas.NetworkV1 | None:
        """By exact name: schema 1 has no filter, and compares with regard to case."""
        return next((one for one in self.list() if one.Name == name), None)

    def create(self, network: schemas.NetworkV1) -> schemas.NetworkV1:
        made = self._rest.call("POST", "/networks/", network, output=schemas.NetworkV1)
        assert isinstance(made, schemas.NetworkV1)
        return made

    def remove(self, ident: uuid.UUID) -> None:
        with contextlib.suppress(errors.HnsNotFound):
            self._rest.call("DELETE", f"/networks/{ident}")


class EndpointsV1:
    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def list(self) -> tuple[schemas.EndpointV1, ...]:
        found = self._rest.call("GET", "/endpoints/", output=tuple[schemas.EndpointV1, ...] | None)
        return tuple(found or ())

    def get(self, ident: uuid.UUID) -> schemas.EndpointV1:
        found = self._rest.call("GET", f"/endpoints/{ident}", output=schemas.EndpointV1)
        assert isinstance(found, schemas.EndpointV1)
        return found

    def find_all_named(self, name: str) -> tuple[schemas.EndpointV1, ...]:
        return tuple(one for one in self.list() if one.Name == name)

    def create(self, endpoint: schemas.EndpointV1) -> schemas.EndpointV1:
        made = self._rest.call("POST", "/endpoints/", endpoint, output=schemas.EndpointV1)
        assert isinstance(made, schemas.EndpointV1)
        return made

    def apply_policies(self, endpoint: schemas.EndpointV1) -> None:
        """Give the endpoint the policies of `endpoint`, which replace what it had."""
        self._rest.call("POST", f"/endpoints/{endpoint.ID}", endpoint)

    def attach_host(self, ident: uuid.UUID, *, compartment: int = 1) -> None:
        """Give the host an interface on the endpoint's network."""
        body = schemas.ContainerAttach(SystemType="Host", CompartmentId=compartment)
        self._rest.call("POST", f"/endpoints/{ident}/attach", body)

    def detach(self, ident: uuid.UUID, container_id: str) -> None:
        """Take a container off a shared endpoint; absent is success."""
        body = schemas.ContainerAttach(ContainerId=container_id, SystemType="Container")
        with contextlib.suppress(errors.HnsNotFound):
            self._rest.call("POST", f"/endpoints/{ident}/detach", body)

    def remove(self, ident: uuid.UUID) -> None:
        with contextlib.suppress(errors.HnsNotFound):
            self._rest.call("DELETE", f"/endpoints/{ident}")


class Hns:
    """The schema 1 service."""

    def __init__(self, native: calls.Calls) -> None:
        self._calls = native
        self.rest = Rest(native)
        self.networks = NetworksV1(self.rest)
        self.endpoints = EndpointsV1(self.rest)
        self._features: Features | None = None

    @property
    def features(self) -> Features:
        """What the service can do, asked once. One too old to answer can do none of it."""
        if self._features is None:
            try:
                version = self.rest.call("GET", "/globals/version", output=schemas.Version)
            except errors.HnsError as exc:
                if isinstance(exc, errors.HnsTransient | errors.HnsDenied):
                    raise
                version = schemas.Version()
            self._features = Features(version)
        return self._features

    def hot_attach(self, endpoint: uuid.UUID, container_id: str) -> None:
        """Plug the endpoint into a running container; once is enough."""
        shared = self.endpoints.get(endpoint).SharedContainers
        if container_id.casefold() not in (one.casefold() for one in shared):
            self._hot_plug("Add", endpoint, container_id)

    def hot_detach(self, endpoint: uuid.UUID, container_id: str) -> None:
        """Pull the endpoint out of a running container, if it is there and runs."""
        try:
            shared = self.endpoints.get(endpoint).SharedContainers
        except errors.HnsNotFound:
            return
        if container_id.casefold() in (one.casefold() for one in shared):
            try:
                self._hot_plug("Remove", endpoint, container_id)
            except errors.HnsError as exc:
                if exc.hresult != errors.NO_COMPUTE_SYSTEM:
                    raise

    def _hot_plug(self, request: str, endpoint: uuid.UUID, container_id: str) -> None:
        change = schemas.ComputeModify(Settings=str(endpoint), RequestType=request)
        with self._compute_system(container_id) as handle:
            self._calls.run(
                "HcsModifyComputeSystem",
                handle=handle,
                texts=(schemas.encode(change),),
                judge=lambda reply: calls.judge_compute("HcsModifyComputeSystem", reply),
            )

    @contextlib.contextmanager
    def _compute_system(self, container_id: str) -> Iterator[int]:
        reply = self._calls.run(
            "HcsOpenComputeSystem",
            texts=(container_id,),
            judge=lambda reply: calls.judge_compute("HcsOpenComputeSystem", reply),
        )
        try:
            yield reply.handle
        finally:
            self._calls.close("HcsCloseComputeSystem", reply.handle)
