# SPDX-License-Identifier: Apache-2.0
"""Networks over the socket: two sources side by side, readiness, changes as they happen."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from pycni.client import CallFailed, Client
from pycni.errors import CniError, InvalidConfig
from pycni.kernel.netns import Netns
from pycni.service.pb.cni.v2alpha1 import config_pb2, networks_pb2
from tests.service_host import LOOPBACK, Service, eventually, network, status_of

pytestmark = pytest.mark.root

LIST = networks_pb2.ListNetworksRequest()
SICK = """#!/bin/sh
read -r _ || true
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
STATUS) echo asked >>"$0.log"; [ -e "$0.well" ] || {
    echo '{"code":50,"msg":"no uplink"}'; exit 1; } ;;
esac
"""

THINKS = """#!/bin/sh
read -r _ || true
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
STATUS) sleep 0.5 ;;
esac
"""

OLD = """#!/bin/sh
read -r _ || true
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
*) echo '{"code":3,"msg":"missing containerID"}'; exit 1 ;;
esac
"""


def events(client: Client, **request: Any) -> Iterator[networks_pb2.NetworkEvent]:
    """A watch that ends with the test."""
    return client.networks.Watch(networks_pb2.WatchNetworksRequest(**request), timeout=60)


def what(event: networks_pb2.NetworkEvent) -> tuple[str, str]:
    """The kind of an event and the network or file it is about."""
    kind: str = event.WhichOneof("event") or ""
    value: Any = getattr(event, kind)
    if kind in ("changed", "status"):
        return kind, value.name
    if kind == "broken":
        return kind, value.path
    return kind, value if isinstance(value, str) else ""


def test_put_replaces_what_its_caller_has_seen(service: Service) -> None:
    """Etags guard against another's change; validate_only and the same bytes change nothing."""
    tried = service.put(LOOPBACK, validate_only=True)
    assert tried.created
    assert [] == service.names()
    first = service.put(LOOPBACK, etag="")
    assert first.created
    with pytest.raises(CniError, match="has changed") as caught:
        service.put(LOOPBACK | {"x": 1}, etag="")
    assert grpc.StatusCode.ABORTED is status_of(caught)
    assert "lo" == caught.value.network
    assert service.put(LOOPBACK, etag=first.network.etag).unchanged
    second = service.put(LOOPBACK | {"x": 1}, etag=first.network.etag)
    assert not second.created
    assert second.network.etag != first.network.etag
    assert second.network.create_time == first.network.create_time


def test_what_is_probably_not_meant_is_a_warning(service: Service) -> None:
    """A misspelled key and a capability nobody uses: stored all the same."""
    config = network(
        {"type": "bridge", "isGatway": True, "capabilities": {"portMappings": True}},
        {"type": "loopback", "_comment": "fine", "extra": [], "cni.dev/x": 1},
    )
    found = service.put(config).warnings
    expected = {"plugins[0].isGatway", "plugins[0].capabilities.portMappings"}
    assert expected == {warning.path for warning in found}
    assert {networks_pb2.SEVERITY_WARNING} == {warning.severity for warning in found}
    assert 'did you mean "isGateway"?' in found[0].error.details
    ref = config_pb2.NetworkRef(name="net")
    answer = service.client.networks.Validate(networks_pb2.ValidateNetworkRequest(network=ref))
    assert answer.valid
    assert expected == {finding.path for finding in answer.findings}


def test_a_fault_has_the_path_of_its_plugin(service: Service) -> None:
    """Also where the text is libcni's and begins with no path."""
    missing = network({"type": "loopback"}, {"type": "nowhere"})
    request = networks_pb2.ValidateNetworkRequest()
    request.network.inline.json = json.dumps(missing).encode()
    [fault] = service.client.networks.Validate(request).findings
    assert 'failed to find plugin "nowhere"' in fault.error.msg
    assert "plugins[1]" == fault.path


def test_a_network_in_use_goes_only_by_force(
    service: Service, make_netns: Callable[..., Netns]
) -> None:
    """The refusal names the attachments; forced, they stay and can be checked and deleted."""
    service.put(LOOPBACK)
    service.add("c1", make_netns("c1").path, network="lo", ifname="lo")
    with pytest.raises(InvalidConfig, match="has 1 attachments") as caught:
        service.remove("lo")
    assert "c1/lo" in caught.value.details
    assert grpc.StatusCode.FAILED_PRECONDITION is status_of(caught)
    request = networks_pb2.DeleteNetworkRequest(name="lo", force=True)
    [remaining] = service.client.networks.Delete(request).remaining
    assert "c1" == remaining.container_id
    assert [] == service.names()
    assert service.delete("c1", network="lo", ifname="lo").existed


def test_files_stand_beside_what_was_put(service: Service) -> None:
    """Source, file and drop-ins are shown; a bad file is reported and hides no good one."""
    directory = service.conf_dir
    (directory / "filed").mkdir(parents=True)
    service.put(LOOPBACK)
    filed = network({"type": "loopback"}, name="filed")
    (directory / "10-filed.conflist").write_text(json.dumps(filed))
    (directory / "filed/tuned.conf").write_text('{"type": "tuning"}')
    (directory / "20-bad.conflist").write_text('{"name": "bad"')
    (directory / "30-lo.conflist").write_text(json.dumps(LOOPBACK))
    answer = service.client.networks.List(LIST)
    assert ["filed", "lo"] == [one.name for one in answer.networks]
    first, second = answer.networks
    assert networks_pb2.NETWORK_SOURCE_CONF_DIR == first.source
    assert str(directory / "10-filed.conflist") == first.source_path
    assert [str(directory / "filed/tuned.conf")] == list(first.dropin_paths)
    assert ["loopback", "tuning"] == [plugin.type for plugin in first.config.plugins]
    assert json.dumps(filed).encode() == first.config.json
    assert networks_pb2.NETWORK_SOURCE_STORE == second.source
    broken = {source.path.rpartition("/")[2]: source.error for source in answer.broken}
    assert ["20-bad.conflist", "30-lo.conflist"] == sorted(broken)
    assert 6 == broken["20-bad.conflist"].code
    assert "hides this file" in broken["30-lo.conflist"].msg
    with pytest.raises(InvalidConfig, match="is defined by") as caught:
        service.put(filed | {"x": 1})
    assert grpc.StatusCode.FAILED_PRECONDITION is status_of(caught)
    status = service.client.networks.Status(networks_pb2.NetworkStatusRequest())
    assert [("filed", True), ("lo", True)] == [(one.name, one.ready) for one in status.networks]
    assert list(answer.broken) == list(status.broken)
    only = networks_pb2.ListNetworksRequest(source=networks_pb2.NETWORK_SOURCE_CONF_DIR)
    assert ["filed"] == [one.name for one in service.client.networks.List(only).networks]
    pages = [networks_pb2.ListNetworksRequest(page_size=1)]
    page = service.client.networks.List(pages[0])
    assert ("filed", "filed") == (page.networks[0].name, page.next_page_token)
    again = networks_pb2.ListNetworksRequest(page_size=1, page_token=page.next_page_token)
    page = service.client.networks.List(again)
    assert ("lo", "") == (page.networks[0].name, page.next_page_token)


def test_changes_are_watched_as_they_happen(service: Service) -> None:
    """What is put, filed, broken, mended and gone, behind the present state."""
    directory = service.conf_dir
    directory.mkdir()
    service.put(LOOPBACK)
    stream = events(service.client)
    assert [("changed", "lo"), ("synced", "")] == [what(e) for e in itertools.islice(stream, 2)]
    file = directory / "10-filed.conflist"
    good = json.dumps(network({"type": "loopback"}, name="filed"))
    file.write_text(good)
    seen = next(stream)
    assert ("changed", "filed") == what(seen)
    assert str(file) == seen.changed.source_path
    file.write_text("{")
    assert {("deleted", "filed"), ("broken", str(file))} == {what(next(stream)) for _ in range(2)}
    file.write_text(good)
    mended = [next(stream) for _ in range(2)]
    assert {("changed", "filed"), ("mended", str(file))} == {what(event) for event in mended}
    file.unlink()
    assert ("deleted", "filed") == what(next(stream))
    service.remove("lo")
    last = next(stream)
    assert ("deleted", "lo") == what(last)
    # A cursor leads on from where it was given; one of another run is told that it is lost.
    resumed = events(service.client, cursor=mended[1].cursor)
    assert [("deleted", "filed"), ("deleted", "lo")] == [what(next(resumed)) for _ in range(2)]
    strange = next(events(service.client, cursor="0badc0de-7"))
    assert ("lost", "") == what(strange)
    assert "present run" in strange.lost.reason
    service.put(LOOPBACK)
    other = events(service.client, names=["other"])
    assert ("synced", "") == what(next(other))


def test_status_is_data_and_remembered(service: Service) -> None:
    """A plugin that is not well makes the network not ready; it is asked again when told to."""
    service.install("sick", SICK)
    asked, well = service.plugin_path / "sick.log", service.plugin_path / "sick.well"
    service.put(network({"type": "loopback"}, {"type": "sick"}))
    service.put(LOOPBACK)

    def ask(**more: Any) -> list[networks_pb2.NetworkStatus]:
        request = networks_pb2.NetworkStatusRequest(**more)
        return list(service.client.networks.Status(request).networks)

    lo, net = ask()
    assert (True, False) == (lo.ready, net.ready)
    assert [True, False] == [condition.ready for condition in net.conditions]
    error = net.conditions[1].error
    assert (50, "no uplink", "sick", 1) == (
        error.code, error.msg, error.plugin_type, error.plugin_index,
    )  # fmt: skip
    assert net == ask()[1]
    assert 1 == len(asked.read_text().split())
    changes = events(service.client, names=["net"])
    assert ("changed", "net") == what(next(changes))
    assert ("synced", "") == what(next(changes))
    well.touch()
    [now] = ask(
        networks=[config_pb2.NetworkRef(name="net")], max_age=duration_pb2.Duration(seconds=0)
    )
    assert now.ready
    assert 2 == len(asked.read_text().split())
    assert now.since.ToNanoseconds() > net.since.ToNanoseconds()
    event = next(changes)
    assert ("status", "net") == what(event)
    assert event.status.ready
    with pytest.raises(InvalidConfig, match="no net configuration") as caught:
        ask(networks=[config_pb2.NetworkRef(name="nowhere")])
    assert grpc.StatusCode.NOT_FOUND is status_of(caught)
    assert ("nowhere", "networks[0]") == (caught.value.network, caught.value.field)


def test_an_impatient_reader_makes_no_network_unready(service: Service) -> None:
    """Whose call ends before the plugin has answered; nobody else is told that it is not well."""
    service.install("thinks", THINKS)
    service.put(network({"type": "thinks"}))
    now = networks_pb2.NetworkStatusRequest(max_age=duration_pb2.Duration())
    assert service.client.networks.Status(now).networks[0].ready
    changes = events(service.client, names=["net"])
    assert [("changed", "net"), ("synced", "")] == [what(next(changes)), what(next(changes))]
    with pytest.raises(CallFailed):
        service.client.networks.Status(now, timeout=0.1)
    time.sleep(1)
    assert service.client.networks.Status(networks_pb2.NetworkStatusRequest()).networks[0].ready
    service.put(network({"type": "thinks"}) | {"x": 1})
    assert ("changed", "net") == what(next(changes))


def test_a_plugin_older_than_status_is_not_asked(service: Service) -> None:
    """It would take STATUS for something else; Status says what Add would say."""
    service.install("old", OLD)
    service.conf_dir.mkdir()
    (service.conf_dir / "10-net.conflist").write_text(json.dumps(network({"type": "old"})))
    [answer] = service.client.networks.Status(networks_pb2.NetworkStatusRequest()).networks
    assert not answer.ready
    [condition] = answer.conditions
    assert 'plugin old does not support config version "1.1.0"' == condition.error.msg
    assert 1 == condition.error.code


def test_a_file_is_used_as_soon_as_it_is_there(
    service: Service, make_netns: Callable[..., Netns]
) -> None:
    """Add by name finds a file written a moment ago, and its next version after an edit."""
    service.conf_dir.mkdir()
    file = service.conf_dir / "10-filed.conflist"
    netns = make_netns("c1").path
    for number in range(3):
        container_id = f"c{number}"
        file.write_text(json.dumps(network({"type": "loopback"}, name="filed") | {"n": number}))
        added = service.add(container_id, netns, network="filed", ifname="lo").attachment
        assert added.network_etag
        assert service.delete(container_id, network="filed", ifname="lo").existed
    file.unlink()
    eventually(lambda: "filed" not in service.names(), "the removal")


def test_install_writes_a_configuration_for_each_network_that_was_put(service: Service) -> None:
    """Those of files are other runtimes' already."""
    service.conf_dir.mkdir()
    file = {"cniVersion": "1.1.0", "name": "file", "plugins": [{"type": "loopback"}]}
    (service.conf_dir / "10-other.conflist").write_text(json.dumps(file))
    service.put(service.config())
    assert {"edge", "file"} == set(service.names())
    command = [sys.executable, "-m", "pycni.cli.main", "--socket", str(service.socket), "install"]
    where = ("--bin-dir", str(service.directory / "b"), "--conf-dir", str(service.directory / "c"))
    subprocess.run([*command, *where, "--python"], check=True, capture_output=True)
    (path,) = (service.directory / "c").iterdir()
    plugins = json.loads(path.read_text())["plugins"]
    assert ("10-edge.conflist", "edge") == (path.name, plugins[0]["network"])
