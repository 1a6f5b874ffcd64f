# SPDX-License-Identifier: Apache-2.0
"""The conf directory: libcni's order and strictness, and a load that no broken file spoils."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pycni.errors import CniError, DecodeFailure, InvalidConfig, IOFailure
from pycni.runtime import confdir
from pycni.runtime.confdir import ConfDir, read_network


def put(path: Path, name: str, **members: Any) -> None:
    """Write a list (or, without `plugins`, whatever the members say) that names a network."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": name, **members}))


def put_list(path: Path, name: str, *types: str, **members: Any) -> None:
    """Write a network of these plugins."""
    put(path, name, plugins=[{"type": kind} for kind in types], **members)


def types(network: Any) -> list[str]:
    """The plugins of a network, by type."""
    return [str(plugin.type) for plugin in network.plugins]


# -- as libcni -----------------------------------------------------------------------------------


def test_the_first_list_of_that_name_is_loaded(tmp_path: Path) -> None:
    """L14: sorted by bytes, lists before single plugins whatever their names."""
    put(tmp_path / "00-a.conf", "net", type="single")
    put_list(tmp_path / "20-b.conflist", "net", "second")
    put_list(tmp_path / "10-c.conflist", "net", "first")
    put_list(tmp_path / "9-d.conflist", "net", "last")
    put_list(tmp_path / "05-other.conflist", "other", "x")
    network = ConfDir(str(tmp_path)).get("net")
    assert (["first"], str(tmp_path / "10-c.conflist")) == (types(network), network.source)


def test_single_plugins_are_looked_at_last(tmp_path: Path) -> None:
    """L14: `.conf` and `.json` together."""
    put_list(tmp_path / "10-x.conflist", "x", "bridge")
    put(tmp_path / "20-b.conf", "net", type="later")
    put(tmp_path / "10-a.json", "net", type="sooner")
    assert ["sooner"] == types(ConfDir(str(tmp_path)).get("net"))


def test_a_directory_without_files_has_no_configurations(tmp_path: Path) -> None:
    """L14: subdirectories and other endings are no candidates."""
    put_list(tmp_path / "sub.conflist" / "10-a.conflist", "net", "bridge")
    put_list(tmp_path / "10-a.conflist.bak", "net", "bridge")
    put_list(tmp_path / "10-a.CONFLIST", "net", "bridge")
    (tmp_path / "conflist").write_text("{}")
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidConfig) as caught:
            ConfDir(str(path)).get("net")
        assert f"no net configurations found in {path}" == caught.value.msg


def test_a_name_nobody_has_is_not_found(tmp_path: Path) -> None:
    """L14: with the name and the directory in the message."""
    put_list(tmp_path / "10-a.conflist", "other", "bridge")
    with pytest.raises(InvalidConfig) as caught:
        ConfDir(str(tmp_path)).get("net")
    assert f'no net configuration with name "net" in {tmp_path}' == caught.value.msg


@pytest.mark.parametrize(
    "broken", ["{", "[]", "{}", '{"name": "net"}', '{"name": "n", "plugins": []}']
)
def test_a_broken_list_stands_before_those_after_it(tmp_path: Path, broken: str) -> None:
    """L14: malformed or without plugins; those before it are found."""
    put_list(tmp_path / "10-a.conflist", "first", "bridge")
    (tmp_path / "20-b.conflist").write_text(broken)
    put_list(tmp_path / "30-c.conflist", "last", "bridge")
    conf = ConfDir(str(tmp_path))
    assert "first" == conf.get("first").name
    with pytest.raises(CniError):
        conf.get("last")


def test_a_single_plugin_needs_a_type(tmp_path: Path) -> None:
    """A list under the wrong ending is not one."""
    put_list(tmp_path / "10-a.conf", "net", "bridge")
    with pytest.raises(InvalidConfig) as caught:
        ConfDir(str(tmp_path)).get("net")
    expected = ("type: missing", f"while reading {tmp_path}/10-a.conf")
    assert expected == (caught.value.msg, caught.value.details)


# -- drop-ins ------------------------------------------------------------------------------------


def test_dropins_are_appended_in_name_order(tmp_path: Path) -> None:
    """L15: `*.conf` in the directory named like the network."""
    put_list(tmp_path / "10-a.conflist", "net", "bridge")
    put(tmp_path / "net" / "20-b.conf", "ignored", type="sbr")
    put(tmp_path / "net" / "10-a.conf", "ignored", type="tuning")
    put(tmp_path / "net" / "30-c.json", "ignored", type="no")
    put(tmp_path / "net" / "40.conf" / "x.conf", "ignored", type="no")
    put(tmp_path / "other" / "10-a.conf", "ignored", type="no")
    assert ["bridge", "tuning", "sbr"] == types(ConfDir(str(tmp_path)).get("net"))


def test_a_network_may_have_dropins_only(tmp_path: Path) -> None:
    """C8: but none at all is an error."""
    put(tmp_path / "10-a.conflist", "net")
    with pytest.raises(InvalidConfig, match="no plugin configs found in "):
        ConfDir(str(tmp_path)).get("net")
    put(tmp_path / "net" / "10-a.conf", "ignored", type="bridge")
    assert ["bridge"] == types(ConfDir(str(tmp_path)).get("net"))


def test_inlined_plugins_only_are_left_alone(tmp_path: Path) -> None:
    """C7: a broken drop-in does no harm then."""
    put_list(tmp_path / "10-a.conflist", "net", "bridge", loadOnlyInlinedPlugins=True)
    put(tmp_path / "net" / "10-a.conf", "ignored")
    assert ["bridge"] == types(ConfDir(str(tmp_path)).get("net"))


def test_a_single_plugin_has_no_dropins(tmp_path: Path) -> None:
    """L15: they are a matter of lists."""
    put(tmp_path / "10-a.conf", "net", type="bridge")
    put(tmp_path / "net" / "10-a.conf", "ignored", type="tuning")
    assert ["bridge"] == types(ConfDir(str(tmp_path)).get("net"))


def test_a_broken_dropin_fails_the_load_and_is_named(tmp_path: Path) -> None:
    """L15: both the place in the chain and the file."""
    put_list(tmp_path / "10-a.conflist", "net", "bridge")
    put(tmp_path / "net" / "10-a.conf", "ignored", type="a/b")
    with pytest.raises(InvalidConfig) as caught:
        ConfDir(str(tmp_path)).get("net")
    expected = (
        "plugins[1].type: invalid plugin name: a/b",
        f"while reading {tmp_path}/net/10-a.conf",
    )
    assert expected == (caught.value.msg, caught.value.details)


# -- all that is good ----------------------------------------------------------------------------


def test_no_broken_file_hides_a_good_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each fault is told with its file, and logged."""
    (tmp_path / "05-cut.conflist").write_text("{")
    (tmp_path / "06-link.conf").symlink_to(tmp_path / "nowhere")
    (tmp_path / "07-dir.conf").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "08-pipe.conf")
    put_list(tmp_path / "10-a.conflist", "a", "bridge")
    put_list(tmp_path / "20-b.conflist", "b", "a/b")
    put(tmp_path / "30-c.conf", "c", type="ptp")
    put(tmp_path / "40-a.conf", "a", type="hidden")
    conf = ConfDir(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        loaded = conf.load()
    assert (
        ["a", "c"] == [network.name for network in loaded.networks] == [n.name for n in conf.list()]
    )
    faults = {os.path.basename(fault.path): fault for fault in loaded.faults}
    assert {
        "05-cut.conflist": (DecodeFailure, ""),
        "06-link.conf": (IOFailure, ""),
        "07-dir.conf": (IOFailure, ""),
        "08-pipe.conf": (InvalidConfig, ""),
        "20-b.conflist": (InvalidConfig, "b"),
        "40-a.conf": (InvalidConfig, ""),
    } == {name: (type(fault.error), fault.name) for name, fault in faults.items()}
    hidden = f'network "a" is defined by {tmp_path}/10-a.conflist'
    assert hidden == faults["40-a.conf"].error.msg
    assert f"ignored {tmp_path}/05-cut.conflist: not valid JSON" in caplog.text


def test_a_network_is_found_beside_broken_ones(tmp_path: Path) -> None:
    """The broken one itself is an error, not an absence."""
    (tmp_path / "05-cut.conflist").write_text("{")
    put_list(tmp_path / "10-a.conflist", "a", "bridge")
    put_list(tmp_path / "20-b.conflist", "b", "x/y")
    conf = ConfDir(str(tmp_path))
    network = conf.find("a")
    assert network is not None
    assert ["bridge"] == types(network)
    assert conf.find("missing") is None
    for _ in range(2):
        with pytest.raises(InvalidConfig) as caught:
            conf.find("b")
        assert f"while reading {tmp_path}/20-b.conflist" == caught.value.details


def test_the_default_network_is_the_first_of_all_files(tmp_path: Path) -> None:
    """L16: all endings sort together, and broken files are passed over."""
    (tmp_path / "05-cut.conflist").write_text("{")
    put_list(tmp_path / "20-b.conflist", "b", "bridge")
    put(tmp_path / "10-a.json", "a", type="ptp")
    put(tmp_path / "30-c.conf", "c", type="ptp")
    conf = ConfDir(str(tmp_path))
    assert ["a"] == [network.name for network in conf.defaults()]
    assert ["a", "b"] == [network.name for network in conf.defaults(2)]
    assert () == ConfDir(str(tmp_path / "missing")).defaults()


@pytest.mark.parametrize("names", [("10-a", "50-a"), ("50-a", "10-a")])
def test_a_reference_hides_no_network(tmp_path: Path, names: tuple[str, str]) -> None:
    """What `pycni install --network` writes has the network's name and may stand beside it."""
    reference, real = names
    put_list(tmp_path / f"{reference}.conflist", "a", "pycni")
    conf = ConfDir(str(tmp_path))
    assert [["pycni"]] == [types(network) for network in conf.list()]
    put_list(tmp_path / f"{real}.conflist", "a", "bridge", "portmap")
    loaded = conf.load()
    assert ([["bridge", "portmap"]], ()) == (list(map(types, loaded.networks)), loaded.faults)


# -- reading again -------------------------------------------------------------------------------


def settle() -> None:
    """Let so much time pass that a further change has another time."""
    time.sleep(confdir.RACY_NS / 1e9 * 1.2)


def test_files_are_read_again_only_when_one_has_changed(tmp_path: Path) -> None:
    """New, changed and removed files and drop-ins are all seen."""
    put_list(tmp_path / "10-a.conflist", "a", "bridge")
    conf = ConfDir(str(tmp_path))
    settle()
    first = conf.load()
    assert first is conf.load()
    put(tmp_path / "a" / "10-x.conf", "ignored", type="tuning")
    assert ["bridge", "tuning"] == types(conf.list()[0])
    settle()
    assert conf.load() is conf.load()
    put(tmp_path / "a" / "10-x.conf", "ignored", type="sbr")
    assert ["bridge", "sbr"] == types(conf.list()[0])
    (tmp_path / "a" / "10-x.conf").unlink()
    assert ["bridge"] == types(conf.list()[0])
    (tmp_path / "10-a.conflist").unlink()
    assert () == conf.list()
    (tmp_path / "20-b.conf").symlink_to(tmp_path / "late")
    settle()
    assert conf.load() is conf.load()
    put(tmp_path / "late", "b", type="ptp")
    assert ["b"] == [network.name for network in conf.list()]


def test_what_has_just_been_written_is_read_again(tmp_path: Path) -> None:
    """A second write within one tick of the clock leaves size and times as they are."""
    conf = ConfDir(str(tmp_path))
    for index in range(20):
        put_list(tmp_path / "10-a.conflist", "a", f"plugin{index:03}")
        assert [f"plugin{index:03}"] == types(conf.list()[0])


def test_a_directory_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the same as an empty one."""
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(IOFailure) as caught:
        ConfDir(str(file)).load()
    assert f"cannot list {file}: Not a directory" == caught.value.msg


def test_a_dropin_directory_that_cannot_be_listed_is_a_fault_of_its_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others load."""
    put_list(tmp_path / "10-a.conflist", "a", "bridge")
    put_list(tmp_path / "20-b.conflist", "b", "bridge")
    (tmp_path / "a").mkdir()
    scan = os.scandir

    def refuse(path: str) -> Any:
        if path == str(tmp_path / "a"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    loaded = ConfDir(str(tmp_path)).load()
    assert ["b"] == [network.name for network in loaded.networks]
    assert ["a"] == [fault.name for fault in loaded.faults]


def test_a_file_may_not_be_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configurations are small; something else has got there."""
    monkeypatch.setattr(confdir, "MAX_BYTES", 1 << 20)
    (tmp_path / "10-a.conf").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(InvalidConfig, match="is larger than 1 MiB"):
        read_network(str(tmp_path / "10-a.conf"))
