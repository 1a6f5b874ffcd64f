# SPDX-License-Identifier: Apache-2.0
"""host-local's directory: the Go plugin's format, and an index that is never believed too much."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from ipaddress import ip_address as ip
from pathlib import Path

import pytest

from pycni.errors import IOFailure, TryAgain
from pycni.kernel.directory import Directory
from pycni.model.deadline import Deadline
from pycni.net import leases

NET = "podnet"
A, B, C = ip("10.1.2.2"), ip("10.1.2.3"), ip("10.1.2.4")
V6 = ip("2001:db8::2")


def locked(data_dir: Path, *, create: bool = True, timeout_s: float | None = None):
    """The leases of the test network."""
    return leases.locked(str(data_dir), NET, Deadline(timeout_s), create=create)


def files(data_dir: Path) -> dict[str, bytes]:
    """Every lease file and its content."""
    return {
        path.name: path.read_bytes() for path in (data_dir / NET).iterdir() if path.name != "lock"
    }


def take(data_dir: Path, *addresses, container_id: str = "c1", ifname: str = "eth0") -> None:
    """Lease the addresses in a call of their own."""
    with locked(data_dir) as found:
        for address in addresses:
            assert found.take(address, container_id, ifname)


class Reads:
    """How many files were read, to see the index work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = Directory.read

        def counted(directory: Directory, name: str) -> bytes:
            self.count += 1
            return original(directory, name)

        monkeypatch.setattr(Directory, "read", counted)


def test_a_lease_is_a_file_as_the_go_plugin_writes_it(tmp_path: Path) -> None:
    """Named by the address, CR LF between id and interface, no newline at the end."""
    take(tmp_path, A, V6)
    with locked(tmp_path) as found:
        found.set_last(0, A)
        found.set_last(1, V6)

    assert {
        "10.1.2.2": b"c1\r\neth0",
        "2001:db8::2": b"c1\r\neth0",
        "last_reserved_ip.0": b"10.1.2.2",
        "last_reserved_ip.1": b"2001:db8::2",
    } == files(tmp_path)


def test_a_lease_can_be_given_back_and_taken_again_in_one_call(tmp_path: Path) -> None:
    """The leases of a call are links to one file, which must not have been forgotten meanwhile."""
    with locked(tmp_path) as found:
        assert found.take(A, "c1", "eth0")
        found.release(A)
        assert found.take(B, "c1", "eth0")
        assert found.take(V6, "c1", "eth0")

    assert {"10.1.2.3": b"c1\r\neth0", "2001:db8::2": b"c1\r\neth0"} == files(tmp_path)
    assert 2 == (tmp_path / NET / "10.1.2.3").stat().st_nlink


def test_an_address_is_leased_once(tmp_path: Path) -> None:
    """The second taker is refused and can ask who holds it."""
    take(tmp_path, A)
    with locked(tmp_path) as found:
        assert not found.take(A, "c2", "eth0")
        assert "c1 eth0" == str(found.find_holder(A))
        assert found.find_holder(B) is None


def test_owned_addresses_are_found_and_released_by_owner(tmp_path: Path) -> None:
    """Both parts of the owner count: another interface of the container keeps its own."""
    take(tmp_path, A, V6)
    take(tmp_path, B, ifname="eth1")
    with locked(tmp_path) as found:
        assert {A, V6} == set(found.find_owned("c1", "eth0"))
        assert {A, V6} == set(found.release_owned("c1", "eth0"))
        assert () == found.find_owned("c1", "eth0")

    assert {"10.1.2.3": b"c1\r\neth1"} == files(tmp_path)


def test_the_old_format_is_found_when_the_new_one_is_not(tmp_path: Path) -> None:
    """A bare container id stands for all its interfaces."""
    (tmp_path / NET).mkdir()
    (tmp_path / NET / "10.1.2.2").write_bytes(b"c1\n")
    (tmp_path / NET / "10.1.2.3").write_bytes(b"c2\r\neth0")
    (tmp_path / NET / "10.1.2.4").write_bytes(b"c2")
    with locked(tmp_path) as found:
        assert (A,) == found.release_owned("c1", "eth7")
        assert (B, C) == found.find_owned("c2", "eth0")
        assert (B,) == found.release_owned("c2", "eth0")
        assert (C,) == found.release_owned("c2", "eth0")


def test_the_index_spares_reading_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hundred leases a call reads the files it is about, not all of them."""
    for number in range(100):
        take(tmp_path, ip("10.1.3.0") + number, container_id=f"c{number}")
    reads = Reads(monkeypatch)
    with locked(tmp_path) as found:
        assert found.find_owned("c7", "eth0")
        assert not found.find_owned("nobody", "eth0")
        assert found.take(A, "c100", "eth0")
    with locked(tmp_path) as found:
        assert found.find_free(A, C) == B

    assert reads.count <= 2


def test_another_process_changing_the_directory_is_noticed(tmp_path: Path) -> None:
    """However fast it follows: no settling time of the timestamp is assumed."""
    for number in range(50):
        address = ip("10.1.4.0") + number
        take(tmp_path, address, container_id=f"ours{number}")
        (tmp_path / NET / str(address + 100)).write_bytes(f"theirs{number}\r\neth0".encode())
        with locked(tmp_path) as found:
            assert (address + 100,) == found.find_owned(f"theirs{number}", "eth0")
        (tmp_path / NET / str(address)).unlink()
        with locked(tmp_path) as found:
            assert () == found.find_owned(f"ours{number}", "eth0")


def test_a_file_rewritten_in_place_is_not_released_for_its_old_owner(tmp_path: Path) -> None:
    """That leaves the directory's time alone, so the file is read before it is acted upon."""
    take(tmp_path, A)
    (tmp_path / NET / "10.1.2.2").write_bytes(b"c2\r\neth0")
    with locked(tmp_path) as found:
        assert () == found.release_owned("c1", "eth0")
        assert (A,) == found.find_owned("c2", "eth0")


def test_the_disk_decides_even_when_the_index_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file made without the lock in the very moment is still nobody else's to take."""
    take(tmp_path, A)
    with locked(tmp_path) as found:
        (tmp_path / NET / "10.1.2.3").write_bytes(b"rude\r\neth0")
        assert B == found.find_free(B, C)
        assert not found.take(B, "c1", "eth0")
        assert C == found.find_free(B, C)


def test_exhaustion_is_confirmed_on_disk(tmp_path: Path) -> None:
    """A file removed without the lock in the very moment frees its address."""
    take(tmp_path, A)
    with locked(tmp_path) as found:
        (tmp_path / NET / "10.1.2.2").unlink()
        assert found.find_free(A, A) is None
        assert not found.confirm()
        assert A == found.find_free(A, A)
        assert found.confirm()


@pytest.mark.parametrize("content", [b"", b"\n", b"\0\0\0\0", b"-x\r\neth0", b"\xff\xfe"])
def test_a_file_without_an_owner_is_free(tmp_path: Path, content: bytes) -> None:
    """What a power loss leaves behind does not use the range up (plugins #498)."""
    (tmp_path / NET).mkdir()
    (tmp_path / NET / "10.1.2.2").write_bytes(content)
    with locked(tmp_path) as found:
        assert A == found.find_free(A, C)
        assert found.find_holder(A) is None
        assert found.take(A, "c1", "eth0")

    assert {"10.1.2.2": b"c1\r\neth0"} == files(tmp_path)


def test_stale_leases_are_released_and_valid_ones_kept(tmp_path: Path) -> None:
    """GC: by owner; old files live as long as their container; ownerless files go."""
    take(tmp_path, A, V6)
    take(tmp_path, B, container_id="gone")
    (tmp_path / NET / "10.1.2.4").write_bytes(b"c1")
    (tmp_path / NET / "10.1.2.5").write_bytes(b"gone")
    (tmp_path / NET / "10.1.2.6").write_bytes(b"")
    (tmp_path / NET / "10.1.2.7").write_bytes(b"c1\r\neth1")
    (tmp_path / NET / "notes").write_bytes(b"gone")
    with locked(tmp_path) as found:
        released = found.release_stale([("c1", "eth0")])

    assert {"10.1.2.3", "10.1.2.5", "10.1.2.6", "10.1.2.7"} == {str(each) for each in released}
    assert {"10.1.2.2", "2001:db8::2", "10.1.2.4", "notes"} == set(files(tmp_path))


def test_the_last_address_survives_nonsense(tmp_path: Path) -> None:
    """An unreadable hint is no hint."""
    with locked(tmp_path) as found:
        assert found.get_last(0) is None
        found.set_last(0, A)
        assert A == found.get_last(0)
    (tmp_path / NET / "last_reserved_ip.0").write_bytes(b"\0\xff")
    with locked(tmp_path) as found:
        assert found.get_last(0) is None


def test_nothing_is_made_for_a_reader(tmp_path: Path) -> None:
    """A network without a directory has no leases, and gets no directory."""
    with locked(tmp_path, create=False) as found:
        assert found is None
    assert [] == list(tmp_path.iterdir())


def test_below_a_file_there_are_no_leases(tmp_path: Path) -> None:
    """ADD fails there, so DEL has nothing to do and must succeed."""
    data_dir = tmp_path / "file"
    data_dir.touch()
    with locked(data_dir, create=False) as found:
        assert found is None
    with pytest.raises(IOFailure, match="Not a directory"), locked(data_dir):
        pass


@pytest.mark.skipif(os.name == "nt", reason="Windows has neither FIFOs nor such names")
def test_what_is_no_file_stands_in_nobodys_way(tmp_path: Path) -> None:
    """A FIFO is not waited for; an address whose name a directory has is not given out."""
    take(tmp_path, A)
    (tmp_path / NET / str(B)).mkdir()
    os.mkfifo(tmp_path / NET / str(C))
    with locked(tmp_path) as found:
        assert (A,) == found.find_owned("c1", "eth0")
        assert not found.take(B, "c2", "eth0")
        assert C == found.find_free(B, C)
        assert found.take(C, "c2", "eth0")
        assert found.confirm()
    with locked(tmp_path) as found:
        found.release_stale([])
    assert [str(B)] == names(tmp_path)


def names(data_dir: Path) -> list[str]:
    """The names left in the directory, but the lock's."""
    return [path.name for path in (data_dir / NET).iterdir() if path.name != "lock"]


def test_subdirectories_are_other_networks(tmp_path: Path) -> None:
    """A dataDir inside another network's directory keeps its leases."""
    take(tmp_path, A)
    take(tmp_path / NET, B)
    with locked(tmp_path) as found:
        assert (A,) == found.release_owned("c1", "eth0")

    assert b"c1\r\neth0" == (tmp_path / NET / NET / "10.1.2.3").read_bytes()


def test_waiting_for_the_lock_ends_with_the_deadline(tmp_path: Path) -> None:
    """TryAgain names the directory, whether a process or a thread is in the way."""
    path = tmp_path / NET
    path.mkdir()
    with Directory(str(path)) as holder:
        assert holder.try_lock("lock")
        with pytest.raises(TryAgain) as caught, locked(tmp_path, timeout_s=0.02):
            pass
    assert f"while waiting for the lock of {path}" == caught.value.details

    with locked(tmp_path), pytest.raises(TryAgain) as caught, locked(tmp_path, timeout_s=0.02):
        pass
    assert f"while waiting for the lock of {path}" == caught.value.details


def test_threads_take_distinct_addresses(tmp_path: Path) -> None:
    """One process, many calls at once: nobody gets what another got."""
    taken: list[str] = []

    def worker(name: str) -> None:
        for number in range(20):
            with locked(tmp_path) as found:
                free = found.find_free(A, ip("10.1.2.254"))
                assert found.take(free, f"{name}-{number}", "eth0")
                taken.append(str(free))

    threads = [threading.Thread(target=worker, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 160 == len(set(taken)) == len(files(tmp_path))


def test_a_directory_removed_under_us_is_made_again(tmp_path: Path) -> None:
    """podman clears its networks by removing the directory; the index goes with it."""
    take(tmp_path, A)
    for path in (tmp_path / NET).iterdir():
        path.unlink()
    (tmp_path / NET).rmdir()

    take(tmp_path, A, container_id="c2")
    assert {"10.1.2.2": b"c2\r\neth0"} == files(tmp_path)


def test_a_file_operation_that_fails_is_an_io_failure(tmp_path: Path) -> None:
    """Code 5, naming the directory."""
    (tmp_path / NET).write_bytes(b"")
    with pytest.raises(IOFailure, match=f"lease directory {tmp_path}/{NET}: Not a directory"):
        take(tmp_path, A)


def test_a_file_system_that_rounds_times_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a stamp does not survive, every call reads the directory anew."""
    take(tmp_path, A)
    stamp = Directory.stamp
    monkeypatch.setattr(Directory, "stamp", lambda self, ns: stamp(self, ns // 10**9 * 10**9))
    take(tmp_path, B)
    reads = Reads(monkeypatch)
    with locked(tmp_path) as found:
        found.find_owned("nobody", "eth0")
    assert 2 == reads.count


WINDOWS = """
import sys, os, types, random, ipaddress, threading, msgspec, tempfile, pathlib
locked = []
fake = types.SimpleNamespace(LK_NBLCK=2, locking=lambda fd, mode, size: locked.append((mode, size)))
sys.modules |= {"msvcrt": fake, "fcntl": None}
sys.platform, os.supports_dir_fd = "win32", set()
from pycni.net import leases
from pycni.model.deadline import Deadline
leases._WINDOWS = True
import pycni.plugins.host_local
directory = pathlib.Path(tempfile.mkdtemp())
with leases.locked(str(directory), "net", Deadline(), create=True) as found:
    assert found.take(ipaddress.ip_address("2001:db8::2"), "c1", "eth0")
    found.set_last(0, ipaddress.ip_address("2001:db8::2"))
with leases.locked(str(directory), "net", Deadline(), create=True) as found:
    assert [str(a) for a in found.find_owned("c1", "eth0")] == ["2001:db8::2"]
assert locked == [(2, 1)] * 2, locked
files = {path.name: path.read_bytes() for path in (directory / "net").iterdir()}
assert files == {
    "lock": b"", "2001_db8__2": b"c1\\r\\neth0", "last_reserved_ip.0": b"2001:db8::2"
}, files
"""


def test_windows_has_no_fcntl_and_no_colons() -> None:
    """There the module imports, locks through msvcrt and writes '_' for ':' in names."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS], env=environment, capture_output=True, check=False
    )

    assert b"" == done.stderr
