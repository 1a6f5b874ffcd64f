# SPDX-License-Identifier: Apache-2.0
"""Cases about the verbs themselves: what they make, undo, pass on and print."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from pycni.model.result import Result
from pycni.testing.conformance.probe import NotApplicable, Probe
from pycni.testing.conformance.samples import DEVICE, Role
from pycni.testing.conformance.table import case

CROWD = 4
VALID = "cni.dev/valid-attachments"


@case(
    "P3-add-interface", "ADD makes CNI_IFNAME in CNI_NETNS and lists it", acts=True, isolated=True
)
def add_interface(probe: Probe) -> None:
    """With CNI_NETNS as its sandbox; a plugin that adjusts an interface leaves it there."""
    with probe.container() as container:
        reply = container.call("ADD")
        result = reply.expect_result(probe.subject.version)
        role = probe.subject.sample.role
        if role is Role.ADDRESSES:
            raise NotApplicable("it only hands out addresses")
        if not container.find_link():
            raise reply.fail(f"an interface {container.ifname} in CNI_NETNS", "there is none")
        inside = [one.name for one in result.interfaces if one.sandbox == container.path]
        if container.ifname not in inside:
            raise reply.fail(f"{container.ifname} among the result's interfaces, with its sandbox")


@case(
    "P4-name-taken",
    "ADD is an error if the interface exists, and leaves it",
    acts=True,
    isolated=True,
)
def name_taken(probe: Probe) -> None:
    """It is somebody else's."""
    probe.need_created()
    with probe.container() as container:
        container.take_name()
        reply = container.call("ADD")
        reply.expect_error()
        if not container.find_link():
            raise reply.fail(f"the interface {container.ifname} as it was", "it is gone")


@case("P5b-prev-result", "a chained ADD passes prevResult on", acts=True, isolated=True)
def prev_result(probe: Probe) -> None:
    """What it does not change is still there: interfaces, addresses, routes."""
    if probe.subject.sample.role is not Role.ADJUSTS:
        raise NotApplicable("it stands first in its chain")
    with probe.container() as container:
        reply = container.call("ADD")
        result = reply.expect_result(probe.subject.version)
        earlier = container.earlier_result()
        for topic in ("interfaces", "ips", "routes"):
            if lost(earlier, result, topic):
                raise reply.fail(f"{topic} of prevResult in the result")


def lost(earlier: Result, result: Result, topic: str) -> bool:
    """Whether something of the earlier result is not in the later one."""
    key = {"interfaces": "name", "ips": "address", "routes": "dst"}[topic]
    before = {str(getattr(one, key)) for one in getattr(earlier, topic)}
    return not before <= {str(getattr(one, key)) for one in getattr(result, topic)}


@case("P6-del-undoes", "DEL removes the interface that ADD made", acts=True, isolated=True)
def del_undoes(probe: Probe) -> None:
    """And prints nothing."""
    probe.need_created()
    with probe.container() as container:
        container.call("ADD").expect_success()
        reply = container.call("DEL")
        reply.expect_silence()
        if container.find_link():
            raise reply.fail(f"no interface {container.ifname} in CNI_NETNS", "it is still there")


@case(
    "P6-del-leaves-nothing", "what an ADD and its DEL leave does not grow", acts=True, isolated=True
)
def del_leaves_nothing(probe: Probe) -> None:
    """A bridge or a table may stay; the second container must not add to it."""

    def attach() -> None:
        with probe.container() as container:
            container.call("ADD").expect_success()
            container.call("DEL").expect_silence()

    attach()
    before = probe.place.settled_world()
    attach()
    left = [line for line in before.diff(probe.place.settled_world()) if line.startswith("+")]
    if left:
        raise probe.failure("the host as it was before the second ADD", "; ".join(left))


@case("P6-del-twice", "DEL can be repeated", acts=True)
def del_twice(probe: Probe) -> None:
    """A runtime that was interrupted does."""
    with probe.container() as container:
        container.call("ADD").expect_success()
        for _ in range(3):
            container.call("DEL").expect_silence()


@case("P6-del-unknown", "DEL of what was never added succeeds", acts=True)
def del_unknown(probe: Probe) -> None:
    """And after an ADD that failed, which the plugin may not even have seen."""
    with probe.container() as container:
        container.call("DEL").expect_silence()


@case("P6-del-no-prev-result", "DEL succeeds without prevResult", acts=True)
def del_no_prev_result(probe: Probe) -> None:
    """The runtime's cache may be lost."""
    with probe.container() as container:
        container.call("ADD").expect_success()
        container.result = None
        container.call("DEL").expect_silence()


@case("P6-del-netns-gone", "DEL succeeds when the namespace is gone", acts=True)
def del_netns_gone(probe: Probe) -> None:
    """The machine was restarted."""
    with probe.container() as container:
        container.call("ADD").expect_success()
        container.vanish()
        for _ in range(2):
            container.call("DEL").expect_silence()


@case("P6-del-no-netns", "DEL succeeds without CNI_NETNS, or with an empty one", acts=True)
def del_no_netns(probe: Probe) -> None:
    """It is optional there (R10b)."""
    with probe.container() as container:
        container.call("ADD").expect_success()
        container.call("DEL", CNI_NETNS=None).expect_silence()
        container.call("DEL", CNI_NETNS="").expect_silence()


@case("P7c-check-after-add", "CHECK right after ADD succeeds and prints nothing", acts=True)
def check_after_add(probe: Probe) -> None:
    """With the result of the ADD as prevResult."""
    probe.need("CHECK")
    with probe.container() as container:
        container.call("ADD").expect_success()
        container.call("CHECK").expect_silence()


@case("P7d-check-missing", "CHECK is an error when the interface is gone", acts=True, isolated=True)
def check_missing(probe: Probe) -> None:
    """What ADD created and the result lists."""
    probe.need("CHECK")
    probe.need_created()
    with probe.container() as container:
        container.call("ADD").expect_success()
        container.drop_link()
        container.call("CHECK").expect_error()


@case("P8a-status", "STATUS succeeds, or is error 50 or 51; it prints no result", acts=True)
def status(probe: Probe) -> None:
    """ADD works here, or these cases fail: so it should succeed."""
    probe.need("STATUS")
    probe.call("STATUS", probe.config()).expect_silence()


@case("P9a-gc-keeps", "GC keeps what is a valid attachment", acts=True, isolated=True)
def gc_keeps(probe: Probe) -> None:
    """CHECK still succeeds afterwards."""
    probe.need("GC")
    with probe.container() as container:
        container.call("ADD").expect_success()
        valid = [{"containerID": container.id, "ifname": container.ifname}]
        probe.call("GC", probe.config(**{VALID: valid})).expect_silence()
        container.call("CHECK").expect_silence()


@case("P9c-gc-empty", "GC without a valid attachment succeeds, and so does DEL after it", acts=True)
def gc_empty(probe: Probe) -> None:
    """What it removed is not missed."""
    probe.need("GC")
    with probe.container() as container:
        container.call("ADD").expect_success()
        container.vanish()
        probe.call("GC", probe.config(**{VALID: []})).expect_silence()
        container.call("DEL").expect_silence()


@case("P11-parallel", f"{CROWD} containers can be added and deleted at once", acts=True)
def parallel(probe: Probe) -> None:
    """Shared state is locked; addresses that the plugin chose are different ones."""
    if probe.subject.sample.host_link == DEVICE:
        raise NotApplicable("there is one device")
    with ExitStack() as stack, ThreadPoolExecutor(CROWD) as pool:
        crowd = [stack.enter_context(probe.container()) for _ in range(CROWD)]
        replies = list(pool.map(lambda one: one.call("ADD"), crowd))
        results = [reply.expect_result(probe.subject.version) for reply in replies]
        for reply in pool.map(lambda one: one.call("DEL"), crowd):
            reply.expect_silence()
    addresses = [str(ip.address) for result in results for ip in result.ips]
    if probe.subject.name == "host-local" and len(set(addresses)) < len(addresses):
        raise replies[-1].fail("a different address for each container", f"got {addresses}")
