# SPDX-License-Identifier: Apache-2.0
"""Runtime: order, derivation and failure of the verbs on a chain, by the SPEC's numbers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pycni.errors import (
    CniError,
    IncompatibleVersion,
    InvalidConfig,
    InvalidEnvironment,
    InvalidNetns,
    NotAvailable,
    TryAgain,
    UnknownContainer,
)
from pycni.model.deadline import Deadline
from pycni.model.request import Attachment, Verb
from pycni.runtime.errors import ChainFailed, PluginNotFound
from tests.unit.runtime.fakes import Lab, network, params

RESULT = b'{"cniVersion": "1.1.0", "interfaces": [{"name": "x"}]}'


def test_add_runs_the_chain_in_order(lab: Lab) -> None:
    """R14: forward; R15: each gets its predecessor's result, the first none."""
    outcome = lab.runtime.add(network("a", "b", "c"), params())
    assert ["ADD a", "ADD b", "ADD c"] == lab.log
    assert lab.a.last(Verb.ADD).prev_result is None
    assert ["a", "b"] == [i["name"] for i in lab.c.given(Verb.ADD)["prevResult"]["interfaces"]]
    assert ["a", "b", "c"] == [interface.name for interface in outcome.parse().interfaces]


def test_add_tells_what_ran(lab: Lab) -> None:
    """One step for each plugin, with how it was run."""
    outcome = lab.runtime.add(network("a", "b"), params())
    assert [("a", 0, "builtin", None), ("b", 1, "builtin", None)] == [
        (s.plugin_type, s.plugin_index, s.executor, s.error) for s in outcome.steps
    ]


def test_the_request_is_derived_from_the_network(lab: Lab) -> None:
    """Q1, Q2, Q4, Q8: name and version are the network's; capabilities become runtimeConfig."""
    plugin = {
        "type": "a",
        "name": "other",
        "capabilities": {"x": True, "y": False, "z": True},
        "unknown": 1.0,
    }
    given = {name: msgspec.Raw(b"1") for name in "xy"}
    lab.runtime.add(
        network(plugin, disableCheck=True, cniVersions=["1.0.0"]), params(capability_args=given)
    )
    assert {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "a",
        "unknown": 1.0,
        "runtimeConfig": {"x": 1},
    } == lab.a.given(Verb.ADD)


def test_the_environment_is_derived_from_the_parameters(lab: Lab) -> None:
    """R10, R12: the order of CNI_ARGS is kept."""
    given = params(netns="/run/netns/x", cni_args=(("K2", "b"), ("K1", "a")))
    lab.runtime.add(network("a"), given)
    request = lab.a.last(Verb.ADD).request
    assert ("c1", "eth0", "/run/netns/x", "K2=b;K1=a") == (
        request.container_id,
        request.ifname,
        request.netns,
        request.args,
    )


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"container_id": ""}, UnknownContainer),
        ({"container_id": "a b"}, InvalidEnvironment),
        ({"container_id": "c1\n"}, InvalidEnvironment),
        ({"container_id": "../c1"}, InvalidEnvironment),
        ({"ifname": ""}, InvalidEnvironment),
        ({"ifname": "a" * 16}, InvalidEnvironment),
        ({"ifname": "a/b"}, InvalidEnvironment),
        ({"ifname": ".."}, InvalidEnvironment),
        ({"netns": "/run\0"}, InvalidEnvironment),
        ({"cni_args": (("A;B", "1"),)}, InvalidEnvironment),
        ({"cni_args": (("A", "1;B=2"),)}, InvalidEnvironment),
        ({"cni_args": (("", "1"),)}, InvalidEnvironment),
    ],
)
def test_bad_names_are_refused_before_any_plugin(
    lab: Lab, given: dict[str, Any], error: type[CniError]
) -> None:
    """R8, L1 to L4."""
    with pytest.raises(error) as caught:
        lab.runtime.add(network("a"), params(**given))
    assert "NONE" == caught.value.residue
    assert [] == lab.log


def test_the_hosts_own_namespace_is_refused_before_any_plugin(lab: Lab) -> None:
    """P15: whoever runs the plugins; they may not look before they act."""
    with pytest.raises(InvalidNetns) as caught:
        lab.runtime.add(network("a"), params(netns="/proc/self/ns/net"))
    assert "NONE" == caught.value.residue
    assert [] == lab.log
    lab.runtime.add(network("a"), params(netns="/proc/self/ns/net", netns_override=True))


def test_an_unknown_plugin_is_refused_before_any_plugin(lab: Lab) -> None:
    """R14: missing is an error; it names the path and what there is."""
    lab.executors.path = ("/opt/cni/bin", "/usr/lib/cni")
    with pytest.raises(PluginNotFound) as caught:
        lab.runtime.add(network("a", "nonesuch"), params())
    assert (
        'failed to find plugin "nonesuch" in path [/opt/cni/bin /usr/lib/cni]' == caught.value.msg
    )
    assert "plugins[1]" in caught.value.details
    assert 7 == caught.value.wire_code
    assert ("nonesuch", 1) == (caught.value.plugin_type, caught.value.plugin_index)
    assert [] == lab.log


def test_a_fault_of_any_plugin_is_told_before_the_first_acts(lab: Lab) -> None:
    """Its path is one of the whole list."""
    with pytest.raises(InvalidConfig, match=r"^plugins\[1\]\.size: expected int, got str"):
        lab.runtime.add(network("a", {"type": "b", "size": "1"}), params())
    assert [] == lab.log


def test_a_fault_of_a_capability_argument_is_told_before_the_first_acts(lab: Lab) -> None:
    """It is only known at ADD, but it too is the user's."""
    plugin = {"type": "b", "capabilities": {"x": True}}
    with pytest.raises(InvalidConfig, match=r"^plugins\[1\]\.runtimeConfig\.x: expected int"):
        lab.runtime.add(network("a", plugin), params(capability_args={"x": msgspec.Raw(b'"one"')}))
    assert [] == lab.log


def test_a_failed_add_is_followed_by_del_of_the_whole_chain(lab: Lab) -> None:
    """R6, with the option on; the plugins get what result there was."""
    lab.b.failures[Verb.ADD] = TryAgain("busy")
    with pytest.raises(TryAgain) as caught:
        lab.runtime.add(network("a", "b", "c"), params())
    assert ["ADD a", "ADD b", "DEL c", "DEL b", "DEL a"] == lab.log
    assert ("ADD", "b", 1, "NONE") == (
        caught.value.verb,
        caught.value.plugin_type,
        caught.value.plugin_index,
        caught.value.residue,
    )
    assert ["a"] == [i["name"] for i in lab.a.given(Verb.DEL)["prevResult"]["interfaces"]]


def test_a_failed_clean_up_is_told_beside_the_cause(lab: Lab) -> None:
    """The cause stays the error; what is left is not known."""
    lab.b.failures |= {Verb.ADD: TryAgain("busy"), Verb.DEL: CniError("stuck")}
    with pytest.raises(TryAgain) as caught:
        lab.runtime.add(network("a", "b"), params())
    assert "busy" == caught.value.msg
    assert "clean-up: b: stuck" in caught.value.details
    assert "UNKNOWN" == caught.value.residue
    assert "DEL a" == lab.log[-1]


def test_clean_up_can_be_left_to_the_caller(lab: Lab) -> None:
    """As libcni does it."""
    lab.b.failures[Verb.ADD] = TryAgain("busy")
    with pytest.raises(TryAgain) as caught:
        lab.runtime.add(network("a", "b"), params(), cleanup_on_failure=False)
    assert ["ADD a", "ADD b"] == lab.log
    assert "UNKNOWN" == caught.value.residue


def test_a_cancelled_add_is_cleaned_up_on_time_of_its_own(lab: Lab) -> None:
    """The caller's deadline stops the ADD, not the DEL after it."""
    deadline = Deadline()
    lab.a.before = lambda call: deadline.cancel() if call.verb is Verb.ADD else None
    with pytest.raises(TryAgain, match="cancelled") as caught:
        lab.runtime.add(network("a", "b"), params(), deadline=deadline)
    assert ["ADD a", "DEL b", "DEL a"] == lab.log
    assert not lab.a.last(Verb.DEL).deadline.expired
    assert "NONE" == caught.value.residue


def test_a_bug_in_a_plugin_is_cleaned_up_too(lab: Lab) -> None:
    """999 is a failed ADD like any other."""
    lab.a.failures[Verb.ADD] = ZeroDivisionError()
    with pytest.raises(CniError, match="internal error"):
        lab.runtime.add(network("a"), params())
    assert ["ADD a", "DEL a"] == lab.log


def test_del_runs_in_reverse_with_the_final_result(lab: Lab) -> None:
    """R17."""
    outcome = lab.runtime.delete(network("a", "b"), params(), prev_result=RESULT)
    assert ["DEL b", "DEL a"] == lab.log
    assert [1, 0] == [step.plugin_index for step in outcome.steps]
    for plugin in (lab.a, lab.b):
        assert json.loads(RESULT) == plugin.given(Verb.DEL)["prevResult"]


def test_del_goes_on_past_a_failing_plugin_and_reports_every_failure(lab: Lab) -> None:
    """Del of the service; the first failure decides the code."""
    lab.c.failures[Verb.DEL] = TryAgain("c busy")
    lab.a.failures[Verb.DEL] = CniError("a stuck")
    with pytest.raises(ChainFailed) as caught:
        lab.runtime.delete(network("a", "b", "c"), params())
    assert ["DEL c", "DEL b", "DEL a"] == lab.log
    assert ["c busy", "a stuck"] == [error.msg for error in caught.value.errors]
    assert "plugins[2] c: c busy; plugins[0] a: a stuck" == caught.value.details
    assert 11 == caught.value.wire_code


def test_a_single_failure_is_raised_as_it_is(lab: Lab) -> None:
    """Its class and code are what the caller acts on."""
    lab.b.failures[Verb.DEL] = TryAgain("b busy")
    with pytest.raises(TryAgain) as caught:
        lab.runtime.delete(network("a", "b"), params())
    assert ("DEL", "b", 1) == (
        caught.value.verb,
        caught.value.plugin_type,
        caught.value.plugin_index,
    )


def test_del_can_stop_at_the_first_failure(lab: Lab) -> None:
    """R17 by the letter of the SPEC."""
    lab.b.failures[Verb.DEL] = TryAgain("b busy")
    with pytest.raises(TryAgain):
        lab.runtime.delete(network("a", "b"), params(), continue_on_error=False)
    assert ["DEL b"] == lab.log


def test_del_before_0_4_0_has_no_prev_result(lab: Lab) -> None:
    """R17 [L]."""
    lab.runtime.delete(network("a", cniVersion="0.3.1"), params(), prev_result=RESULT)
    assert "prevResult" not in lab.a.given(Verb.DEL)


@pytest.mark.parametrize("result", [b"{", b'{"cniVersion": "7.7.7"}', b"[]"])
def test_del_does_without_a_result_it_cannot_use(
    lab: Lab, result: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """L9, libcni #1171: an unusable stored result must not keep a container alive."""
    lab.runtime.delete(network("a"), params(), prev_result=result)
    assert "prevResult" not in lab.a.given(Verb.DEL)
    assert "DEL without prevResult" in caplog.text


def test_a_stored_result_is_converted_to_the_configs_version(lab: Lab) -> None:
    """L9."""
    old = b'{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.0.0.2/8"}]}'
    lab.runtime.check(network("a"), params(), prev_result=old)
    given = lab.a.given(Verb.CHECK)["prevResult"]
    assert {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/8"}]} == given


def test_check_runs_forward_and_stops_at_the_first_failure(lab: Lab) -> None:
    """R18."""
    lab.b.failures[Verb.CHECK] = CniError("drift")
    with pytest.raises(CniError, match="drift"):
        lab.runtime.check(network("a", "b", "c"), params(), prev_result=RESULT)
    assert ["CHECK a", "CHECK b"] == lab.log


def test_check_below_0_4_0_is_an_error_before_disable_check(lab: Lab) -> None:
    """R19 [L]."""
    with pytest.raises(IncompatibleVersion) as caught:
        lab.runtime.check(
            network("a", cniVersion="0.3.1", disableCheck=True), params(), prev_result=RESULT
        )
    assert 'configuration version "0.3.1" does not support the CHECK command' == caught.value.msg


def test_disabled_check_succeeds_without_running(lab: Lab) -> None:
    """C4."""
    outcome = lab.runtime.check(network("a", disableCheck=True), params(), prev_result=RESULT)
    assert outcome.skipped
    assert [] == lab.log


def test_check_without_a_result_is_refused(lab: Lab) -> None:
    """R19: there was no ADD."""
    with pytest.raises(UnknownContainer):
        lab.runtime.check(network("a"), params(), prev_result=None)


def test_check_of_an_unusable_result_is_an_error(lab: Lab) -> None:
    """L9: what DEL ignores, CHECK must not."""
    with pytest.raises(CniError):
        lab.runtime.check(network("a"), params(), prev_result=b"{")
    assert [] == lab.log


def test_gc_sends_both_keys_and_continues_past_errors(lab: Lab) -> None:
    """R20: forward, every failure reported; Q6: no runtimeConfig, no prevResult."""
    lab.a.failures[Verb.GC] = CniError("one")
    lab.b.failures[Verb.GC] = CniError("two")
    valid = [Attachment(container_id="c1", ifname="eth0")]  # type: ignore[arg-type]
    with pytest.raises(ChainFailed) as caught:
        lab.runtime.gc(network("a", "b", "c"), valid)
    assert ["GC a", "GC b", "GC c"] == lab.log
    assert ["one", "two"] == [error.msg for error in caught.value.errors]
    entries = [{"containerID": "c1", "ifname": "eth0"}]
    assert {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "c",
        "cni.dev/valid-attachments": entries,
        "cni.dev/attachments": entries,
    } == lab.c.given(Verb.GC)
    assert "" == lab.c.last(Verb.GC).request.container_id


def test_an_empty_list_is_sent_as_empty(lab: Lab) -> None:
    """Absent is not empty."""
    lab.runtime.gc(network("a"), [])
    assert [] == lab.a.given(Verb.GC)["cni.dev/valid-attachments"]


def test_gc_without_a_list_sends_no_key_and_removes_nothing(lab: Lab) -> None:
    """R20 [L]: nil args omit the key; our plugins then have nothing to go by."""
    lab.runtime.gc(network("a"), None)
    assert [] == lab.log


@pytest.mark.parametrize("members", [{"disableGC": True}, {"cniVersion": "1.0.0"}])
def test_gc_is_not_for_every_network(lab: Lab, members: dict[str, Any]) -> None:
    """C5, and 3.8: 1.1.0 or newer."""
    assert lab.runtime.gc(network("a", **members), []).skipped
    assert [] == lab.log


def test_status_runs_forward_and_keeps_the_code(lab: Lab) -> None:
    """R21: it stops at the first error."""
    lab.b.failures[Verb.STATUS] = NotAvailable("no addresses")
    with pytest.raises(NotAvailable) as caught:
        lab.runtime.status(network("a", "b", "c"))
    assert ["STATUS a", "STATUS b"] == lab.log
    assert 50 == caught.value.wire_code


def test_conditions_ask_every_plugin(lab: Lab) -> None:
    """For those who want to know all of it."""
    lab.a.failures[Verb.STATUS] = NotAvailable("no addresses")
    conditions = lab.runtime.conditions(network("a", "b"))
    assert [("a", "no addresses"), ("b", None)] == [
        (c.plugin_type, c.error.msg if c.error else None) for c in conditions
    ]


def test_status_below_1_1_0_is_success(lab: Lab) -> None:
    """R21 [L]."""
    assert lab.runtime.status(network("a", cniVersion="1.0.0")).skipped
    assert () == lab.runtime.conditions(network("a", cniVersion="1.0.0"))


def test_validate_returns_the_union_of_capabilities(lab: Lab) -> None:
    """L13: those that are on."""
    plugins = [
        {"type": "a", "capabilities": {"mac": True, "ips": False}},
        {"type": "b", "capabilities": {"portMappings": True}},
    ]
    assert {"mac", "portMappings"} == lab.runtime.validate(network(*plugins))


def test_validate_reports_a_plugin_that_lacks_the_version(lab: Lab) -> None:
    """L13."""
    lab.a.versions = ("0.3.0", "0.4.0")  # type: ignore[misc]
    with pytest.raises(IncompatibleVersion) as caught:
        lab.runtime.validate(network("a"))
    assert 'plugin a does not support config version "1.1.0"' == caught.value.msg


def test_validate_looks_at_the_delegate(lab: Lab) -> None:
    """An IPAM plugin that is not there would fail every ADD."""
    with pytest.raises(PluginNotFound, match='failed to find plugin "nonesuch"'):
        lab.runtime.validate(network({"type": "a", "ipam": {"type": "nonesuch"}}))
    lab.runtime.validate(network({"type": "a", "ipam": {"type": "b"}}))


def test_validate_reports_every_faulty_plugin(lab: Lab) -> None:
    """One round trip for an operator, not one for each fault."""
    faulty = network({"type": "a", "size": "1"}, "b", {"type": "c", "size": []})
    with pytest.raises(ChainFailed) as caught:
        lab.runtime.validate(faulty)
    assert [
        "plugins[0].size: expected int, got str",
        "plugins[2].size: expected int, got array",
    ] == [error.msg for error in caught.value.errors]
    assert 7 == caught.value.wire_code


def test_validate_asks_the_plugin_itself(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what types cannot express; a fault without a path is put behind the plugin's."""

    def refuse(config: object) -> None:
        raise InvalidConfig("hairpin and promisc exclude each other")

    monkeypatch.setattr(lab.a, "validate", refuse)
    with pytest.raises(InvalidConfig) as caught:
        lab.runtime.validate(network("a"))
    assert "plugins[0]: hairpin and promisc exclude each other" == caught.value.msg


def test_a_valid_network_is_validated_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADD asks every time."""
    asked = []
    monkeypatch.setattr(lab.a, "validate", asked.append)
    for _ in range(3):
        lab.runtime.validate(network("a"))
    assert 1 == len(asked)
    lab.runtime.forget_validated()
    lab.runtime.validate(network("a"))
    assert 2 == len(asked)


def test_a_network_without_plugins_is_refused(lab: Lab) -> None:
    """C8: zero plugins after loading."""
    from pycni.model.config import NetworkConfigList

    empty = NetworkConfigList.parse(b'{"cniVersion": "1.0.0", "name": "net"}')
    with pytest.raises(InvalidConfig, match="no plugin configs found"):
        lab.runtime.validate(empty)
