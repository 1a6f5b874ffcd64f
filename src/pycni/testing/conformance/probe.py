# SPDX-License-Identifier: Apache-2.0
"""What a case has at hand: to call the plugin, to judge its answers, to have a container."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pycni.errors import CniError, KernelError
from pycni.kernel import netns
from pycni.kernel.netns import Netns
from pycni.kernel.side import Side
from pycni.model import jsonio
from pycni.model.addresses import parse_cidr
from pycni.model.result import Interface, IPConfig, Result, Route
from pycni.model.version import GATES, SUPPORTED, at_least, parse_version
from pycni.testing.conformance.execution import Exchange, Execute, Outcome
from pycni.testing.conformance.place import Place
from pycni.testing.conformance.samples import STATE, Role, Sample

NETWORK = "conformance"
NOWHERE = "/run/netns/conformance-nowhere"
OLDEST = ("0.1.0", "0.2.0")


class Failure(Exception):
    """The plugin did otherwise than the case demands."""

    def __init__(self, expected: str, got: str, exchange: Exchange | None = None) -> None:
        super().__init__(f"expected {expected}; {got}")
        self.expected = expected
        self.got = got
        self.exchange = exchange


class NotApplicable(Exception):
    """The case makes no sense for this plugin; the text says why."""


class Subject:
    """One plugin under test."""

    def __init__(
        self,
        name: str,
        sample: Sample,
        versions: Collection[str] = SUPPORTED,
        *,
        is_plugin: bool = True,
    ) -> None:
        self.name = name
        self.sample = sample
        self.is_plugin = is_plugin
        self.hangs = 0
        # Of those we know; what VERSION said is a case of its own.
        self.versions = tuple(v for v in SUPPORTED if v in versions) or SUPPORTED[:1]

    @property
    def version(self) -> str:
        """The newest version it supports."""
        return self.versions[-1]

    def has(self, verb: str) -> bool:
        """Whether it supports a version that has the verb."""
        return any(at_least(self.version, floor) for v, floor in GATES.items() if v == verb)

    def config(self, state: str, version: str = "", /, **members: Any) -> dict[str, Any]:
        """A valid configuration; a member of None is left out."""
        text = json.dumps(dict(self.sample.config or {}))
        config = {
            "cniVersion": version or self.version,
            "name": NETWORK,
            "type": self.name,
            **json.loads(text.replace(STATE, state)),
            **members,
        }
        return {key: value for key, value in config.items() if value is not None}


class Reply:
    """The outcome of one call, and what may be demanded of it."""

    def __init__(self, exchange: Exchange, *, strict: bool) -> None:
        self.exchange = exchange
        self.outcome: Outcome = exchange.outcome
        self._strict = strict

    def fail(self, expected: str, got: str = "") -> Failure:
        """The failure to raise."""
        return Failure(expected, got or f"got {self.outcome}", self.exchange)

    def expect_error(
        self, *codes: int, mentions: tuple[str, ...] = (), msg: str = "", details: str = ""
    ) -> None:
        """An error object on stdout and a non-zero exit status.

        No codes: any will do. `msg` and `details` are the reference implementation's, and count
        only where its texts are asked for.
        """
        wanted = f"error code {' or '.join(map(str, codes))}" if codes else "an error"
        if mentions:
            wanted += f" that names {', '.join(mentions)}"
        expected = f"a non-zero exit status and {wanted} as JSON on stdout"
        if self.outcome.fault or self.outcome.status == 0:
            raise self.fail(expected)
        document = self._object(expected)
        code = document.get("code")
        if type(code) is not int or code < 0 or (codes and code not in codes):
            raise self.fail(expected)
        if not isinstance(document.get("msg"), str) or not document["msg"]:
            raise self.fail(f"{expected}, with `msg`")
        if not isinstance(document.get("details", ""), str):
            raise self.fail(f"{expected}, with `details` a string")
        said = f"{document['msg']} {document.get('details', '')}"
        if any(mention not in said for mention in mentions):
            raise self.fail(expected)
        if self._strict:
            for key, text in (("msg", msg), ("details", details)):
                if text and document.get(key) != text:
                    raise self.fail(f"{key} {text!r}, as the reference implementation has it")

    def expect_success(self) -> None:
        """Exit status 0."""
        if self.outcome.fault or self.outcome.status:
            raise self.fail("success: exit status 0")

    def expect_silence(self) -> None:
        """Exit status 0 and nothing on stdout."""
        if self.outcome.fault or self.outcome.status or self.outcome.stdout.strip():
            raise self.fail("success: exit status 0 and nothing on stdout")

    def expect_answer(self) -> None:
        """Success or an error: but an answer."""
        if self.outcome.fault or self.outcome.status < 0:
            raise self.fail("an answer: success, or an error as JSON on stdout")
        if self.outcome.status:
            self.expect_error()

    def expect_result(self, version: str) -> Result:
        """A result on stdout and nothing else, in the layout of the version."""
        expected = f"exit status 0 and a result of version {version} on stdout, and nothing else"
        self.expect_success()
        document = self._object(expected)
        if document.get("cniVersion") != version:
            raise self.fail(f'a result with "cniVersion": "{version}", the configuration\'s')
        fault = layout_fault(document, version)
        if fault:
            raise self.fail(f"a result in the layout of {version}", f"{fault}; got {self.outcome}")
        try:
            result = Result.parse(self.outcome.stdout, default_version=version)
        except CniError as error:
            raise self.fail(expected, f"{error.msg}; got {self.outcome}") from None
        if self._strict:
            reference = jsonio.go_layout(result.encode(version), indent=4)
            if self.outcome.stdout != reference:
                raise self.fail(f"the reference implementation's layout: {reference.decode()}")
        return result

    def _object(self, expected: str) -> dict[str, Any]:
        try:
            document = json.loads(self.outcome.stdout)
        except (ValueError, RecursionError):
            raise self.fail(expected) from None
        if not isinstance(document, dict):
            raise self.fail(f"{expected}, a JSON object")
        return document


def layout_fault(document: dict[str, Any], version: str) -> str:
    """What is not as the version has it, or ""."""
    old = version in OLDEST
    for key in ("interfaces", "ips", "routes") if old else ("ip4", "ip6"):
        if document.get(key):
            return f"`{key}` does not exist in {version}"
    if old:
        return ""
    interfaces = document.get("interfaces") or []
    for number, ip in enumerate(document.get("ips") or []):
        where = f"ips[{number}]"
        if not isinstance(ip, dict) or not isinstance(ip.get("address"), str):
            return f"{where} has no `address`"
        family = "6" if ":" in ip["address"] else "4"
        if at_least(version, "1.0.0"):
            if "version" in ip:
                return f"{where}.version does not exist since 1.0.0"
        elif ip.get("version") != family:
            return f'{where}.version must be "{family}" before 1.0.0'
        index = ip.get("interface")
        if index is not None and not (isinstance(index, int) and -1 <= index < len(interfaces)):
            return f"{where}.interface is {index!r}, and there are {len(interfaces)} interfaces"
    for number, interface in enumerate(interfaces):
        if not isinstance(interface, dict) or not interface.get("name"):
            return f"interfaces[{number}] has no `name`"
    return ""


class Probe:
    """A subject in a place, for one case."""

    def __init__(
        self, subject: Subject, execute: Execute, place: Place, *, path: str, strict: bool = False
    ) -> None:
        self.subject = subject
        self.place = place
        self.strict = strict
        self.last: Exchange | None = None
        self._execute = execute
        self._path = path

    def call(self, verb: str | None, config: Any = b"", /, **env: str | None) -> Reply:
        """Execute the plugin; `None` leaves a variable out, a config is JSON unless it is bytes."""
        variables = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "conformance-0",
            "CNI_NETNS": NOWHERE,
            "CNI_IFNAME": self.subject.sample.ifname,
            "CNI_PATH": self._path,
            **env,
        }
        given = {name: value for name, value in variables.items() if value is not None}
        stdin = config if isinstance(config, bytes) else json.dumps(config).encode()
        outcome = self._execute(self.subject.name, given, stdin)
        self.last = Exchange(self.subject.name, given, stdin, outcome)
        return Reply(self.last, strict=self.strict)

    def config(self, version: str = "", /, **members: Any) -> dict[str, Any]:
        """A valid configuration of the subject, as far as one is known."""
        return self.subject.config(self.place.state, version, **members)

    def failure(self, expected: str, got: str) -> Failure:
        """The failure to raise where it is not one answer that is wrong."""
        return Failure(expected, got, self.last)

    def need(self, verb: str) -> None:
        """The case is about a verb that came with a later version than some plugins support."""
        if not self.subject.has(verb):
            raise NotApplicable(f"the plugin supports no version that has {verb}")

    def verbs(self, *verbs: str) -> list[str]:
        """Those of the verbs that the plugin's versions have."""
        return [verb for verb in verbs if self.subject.has(verb)]

    @contextlib.contextmanager
    def container(self, container_id: str = "") -> Iterator[Container]:
        """A fresh container with what the subject takes for granted; removed afterwards."""
        sample = self.subject.sample
        number = self.place.number()
        namespace = self.place.make_netns(number) if self.place.isolated else None
        container = Container(self, container_id or f"conformance-{number}", number, namespace)
        try:
            if namespace is not None and sample.host_link:
                self.place.ensure_link(sample.host_link)
            if namespace is not None and sample.role is Role.ADJUSTS:
                container.furnish()
            yield container
        finally:
            container.remove()

    def creates(self) -> bool:
        """Whether ADD makes the interface; an unknown plugin is asked for one to see."""
        role = self.subject.sample.role
        if role is not Role.UNKNOWN:
            return role is Role.CREATES
        with self.container() as container:
            result = container.call("ADD").expect_result(self.subject.version)
            names = [interface.name for interface in result.interfaces if interface.sandbox]
            return container.ifname in names and container.ifname != "lo"

    def need_created(self) -> None:
        """The case is about plugins that make the interface."""
        if not self.creates():
            raise NotApplicable("ADD does not create the interface")


class Container:
    """A namespace, an identity, and the result of its ADD."""

    def __init__(
        self, probe: Probe, container_id: str, number: int, namespace: Netns | None
    ) -> None:
        self.id = container_id
        self.netns = namespace
        self.ifname = probe.subject.sample.ifname
        self.result: Any = None
        self._probe = probe
        self._number = number
        self._version = probe.subject.version
        self._touched = False

    @property
    def path(self) -> str:
        """CNI_NETNS."""
        return NOWHERE if self.netns is None else self.netns.path

    def call(
        self,
        verb: str,
        version: str = "",
        members: Mapping[str, Any] | None = None,
        **env: str | None,
    ) -> Reply:
        """Call the plugin for this container, with the prevResult the verb has."""
        probe = self._probe
        self._version = version or probe.subject.version
        self._touched = self._touched or verb == "ADD"
        config = probe.config(self._version, **self._prev_result(verb), **(members or {}))
        self._number_ports(config)
        if verb == "ADD" and probe.subject.sample.delegates:
            probe.place.answer(self._version)
        variables: dict[str, str | None] = {"CNI_CONTAINERID": self.id, "CNI_NETNS": self.path}
        reply = probe.call(verb, config, **{**variables, **env})
        if verb == "ADD" and reply.outcome.status == 0:
            with contextlib.suppress(ValueError):
                self.result = json.loads(reply.outcome.stdout)
        return reply

    def find_link(self, name: str = "") -> bool:
        """Whether the interface is in the container."""
        if self.netns is None:
            return False
        side = Side(self.netns)
        try:
            return side.links.find(name or self.ifname) is not None
        finally:
            side.close()

    def take_name(self) -> None:
        """Put an interface of CNI_IFNAME into the container."""
        assert self.netns is not None
        side = Side(self.netns)
        try:
            side.links.add_veth(self.ifname, "cnf-other", container_netns=self.netns)
        finally:
            side.close()

    def drop_link(self) -> None:
        """Take the interface out of the container, behind the plugin's back."""
        assert self.netns is not None
        side = Side(self.netns)
        try:
            side.links.remove(self.ifname)
        finally:
            side.close()

    def vanish(self) -> None:
        """The namespace goes away, as when a machine restarts."""
        if self.netns is not None:
            netns.remove_named(self.netns.path)
            self.netns.close()

    def furnish(self) -> None:
        """What an earlier plugin would have made: a veth pair, with an address inside."""
        assert self.netns is not None
        host = self._probe.place.host
        host.links.add_veth(self._host_end, self.ifname, container_netns=self.netns)
        side = Side(self.netns)
        try:
            link = side.links.get(self.ifname)
            side.links.set(link.index, up=True)
            side.addresses.add(link.index, parse_cidr(self._address))
            self._mac = link.mac
        finally:
            side.close()

    def remove(self) -> None:
        """Whatever is still there."""
        if self._touched:
            self.call("DEL", self._version)
        self.vanish()
        if self._probe.subject.sample.role is Role.ADJUSTS and self._probe.place.isolated:
            links = self._probe.place.host.links
            with contextlib.suppress(KernelError):  # gone with the namespace
                links.remove(self._host_end)

    @property
    def _host_end(self) -> str:
        return f"cnf-h{self._number}"

    @property
    def _address(self) -> str:
        return f"10.88.{self._number >> 8}.{self._number & 255}/16"

    def _prev_result(self, verb: str) -> dict[str, Any]:
        if verb == "ADD":
            if self._probe.subject.sample.role is not Role.ADJUSTS:
                return {}
            return {"prevResult": json.loads(self.earlier_result().encode(self._version))}
        if self.result is None or parse_version(self._version) < (0, 4, 0):
            return {}
        return {"prevResult": self.result}

    def earlier_result(self) -> Result:
        """What an earlier plugin of the chain would have answered."""
        return Result(
            cniVersion="1.1.0",
            interfaces=(
                Interface(name=self._host_end),
                Interface(name=self.ifname, mac=str(self._mac or ""), sandbox=self.path),
            ),
            ips=(IPConfig(address=parse_cidr(self._address), interface=1),),
            routes=(Route(dst=parse_cidr("10.99.0.0/16")),),
        )

    _mac: Any = None

    def _number_ports(self, config: dict[str, Any]) -> None:
        """No two containers may ask for one port of the host."""
        given = copy.deepcopy(config.get("runtimeConfig"))
        if isinstance(given, dict):
            for mapping in given.get("portMappings") or []:
                mapping["hostPort"] += self._number
            config["runtimeConfig"] = given
