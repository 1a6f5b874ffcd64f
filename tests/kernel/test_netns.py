# SPDX-License-Identifier: Apache-2.0
"""Handles on namespaces, work inside them, and names that `ip netns` understands."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from pycni.errors import InvalidNetns, KernelError, NamespaceGone
from pycni.kernel import netns
from pycni.kernel.netns import Netns
from tests.fix_netns import NETNS_DIR, json_in, run_in

pytestmark = pytest.mark.root

MakeNetns = Callable[..., Netns]


def own() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def test_run_is_inside_and_the_caller_stays_outside(make_netns: MakeNetns) -> None:
    """The function sees the namespace; afterwards the calling thread is where it was."""
    before = own()
    namespace = make_netns()
    inside = namespace.run(own)
    assert f"net:[{namespace.identity[1]}]" == inside
    assert before == own()
    assert before != inside


def test_run_raises_what_the_function_raised(make_netns: MakeNetns) -> None:
    """An exception crosses over as itself, and the thread is back outside."""
    before = own()

    def fail() -> None:
        raise ZeroDivisionError("inside")

    with pytest.raises(ZeroDivisionError, match="inside"):
        make_netns().run(fail)
    assert before == own()


def test_a_visit_concerns_its_own_thread_only(make_netns: MakeNetns) -> None:
    """Other threads of the process stay where they are meanwhile."""
    before = own()
    inside, seen = threading.Event(), []

    def look() -> None:
        inside.wait(5)
        seen.append(own())

    other = threading.Thread(target=look)
    other.start()
    make_netns().run(lambda: (inside.set(), other.join(5)))
    assert [before] == seen


STRANDED = """
import sys
from pycni.kernel import netns
netns.RETURN_TRIES, real, visits = 2, netns._libc, []
class Libc:
    def setns(self, *arguments):
        visits.append(arguments)
        return real.setns(*arguments) if len(visits) == 1 else -1
netns._libc = Libc()
try:
    netns.Netns.open(sys.argv[1]).run(lambda: None)
finally:
    print("alive")
"""


def test_a_thread_that_cannot_return_ends_the_process(make_netns: MakeNetns) -> None:
    """It must not serve another container from the wrong namespace."""
    done = subprocess.run(
        [sys.executable, "-c", STRANDED, make_netns().path], capture_output=True, check=False
    )
    assert -signal.SIGABRT == done.returncode
    assert b"" == done.stdout


def test_a_visit_inside_a_visit_stays_on_its_thread(make_netns: MakeNetns) -> None:
    """To the same namespace; one to another is a visit of its own, and leads back."""
    first, second = make_netns(), make_netns()

    def inside() -> tuple[bool, str, str]:
        here = threading.get_ident()
        return here == first.run(threading.get_ident), second.run(own), own()

    expected = [f"net:[{namespace.identity[1]}]" for namespace in (second, first)]
    assert (True, *expected) == first.run(inside)


def test_children_are_inside(make_netns: MakeNetns) -> None:
    """A process started by the function lives in the namespace."""
    namespace = make_netns()
    command = ("readlink", "/proc/self/ns/net")
    printed = namespace.run(lambda: subprocess.run(command, capture_output=True, check=True).stdout)
    assert f"net:[{namespace.identity[1]}]\n".encode() == printed


def test_a_missing_path_is_a_namespace_gone() -> None:
    """DEL recognises a container that is no more."""
    with pytest.raises(NamespaceGone, match="No such file"):
        Netns.open(f"{NETNS_DIR}/none")


def test_an_empty_path_is_a_namespace_gone() -> None:
    """CNI_NETNS may be empty on DEL."""
    with pytest.raises(NamespaceGone):
        Netns.open("")


def test_a_file_is_not_a_namespace(tmp_path: os.PathLike[str]) -> None:
    """The error names the filesystem as the Go plugins do."""
    path = os.path.join(tmp_path, "file")
    with open(path, "w", encoding="ascii"):
        pass
    with pytest.raises(InvalidNetns, match=f'unknown FS magic on "{path}": [0-9a-f]+') as caught:
        Netns.open(path)
    assert 8 == caught.value.code


def test_a_fifo_does_not_hang(tmp_path: os.PathLike[str]) -> None:
    """Opening never waits for a writer."""
    path = os.path.join(tmp_path, "fifo")
    os.mkfifo(path)
    with pytest.raises(InvalidNetns, match="unknown FS magic"):
        Netns.open(path)


def test_a_path_that_cannot_be_opened_is_invalid(tmp_path: os.PathLike[str]) -> None:
    """Any other failure to open is code 8 with the reason in the details."""
    path = os.path.join(tmp_path, "loop")
    os.symlink(path, path)
    with pytest.raises(InvalidNetns, match="cannot open") as caught:
        Netns.open(path)
    assert "symbolic links" in caught.value.details


def test_another_kind_of_namespace_is_invalid() -> None:
    """A mount namespace has the right filesystem and the wrong kind."""
    with pytest.raises(InvalidNetns, match="not a network namespace"):
        Netns.open("/proc/self/ns/mnt")


def test_handles_compare_by_namespace(make_netns: MakeNetns) -> None:
    """Two handles on one namespace are the same, whatever their paths."""
    namespace = make_netns()
    with Netns.open(namespace.path) as again, Netns.current() as here:
        assert namespace.same_as(again)
        assert not namespace.same_as(here)


def test_a_closed_handle_cannot_be_entered(make_netns: MakeNetns) -> None:
    """Entering fails as an error of ours, named by the path; closing twice does nothing."""
    with Netns.open(make_netns().path) as namespace:
        path = namespace.path
    namespace.close()
    with pytest.raises(KernelError, match=path) as caught:
        namespace.run(own)
    assert errno.EBADF == caught.value.errno


def test_ip_netns_sees_names_made_here() -> None:
    """`ip netns` lists, enters and deletes a namespace of ours."""
    netns.create_named(f"{NETNS_DIR}/ours")
    assert "ours" in [entry["name"] for entry in json_in(None, "ip", "-j", "netns")]
    assert ["lo"] == [link["ifname"] for link in json_in(None, "ip", "-j", "-n", "ours", "link")]
    run_in(None, "ip", "netns", "delete", "ours")
    assert not os.path.exists(f"{NETNS_DIR}/ours")


def test_names_made_by_ip_netns_can_be_removed() -> None:
    """And the other way round."""
    run_in(None, "ip", "netns", "add", "theirs")
    with Netns.open(f"{NETNS_DIR}/theirs") as namespace:
        assert own() != namespace.run(own)
    netns.remove_named(f"{NETNS_DIR}/theirs")
    assert [] == json_in(None, "ip", "-j", "netns")


def test_a_taken_name_is_refused(make_netns: MakeNetns) -> None:
    """An existing namespace is not covered by a new one."""
    namespace = make_netns()
    with pytest.raises(KernelError, match="exists") as caught:
        netns.create_named(namespace.path)
    assert errno.EEXIST == caught.value.errno


def test_removing_twice_is_fine() -> None:
    """Absent is success, also when only the file is left."""
    path = f"{NETNS_DIR}/twice"
    netns.create_named(path)
    netns.remove_named(path)
    netns.remove_named(path)
    with open(path, "w", encoding="ascii"):
        pass
    netns.remove_named(path)
    assert not os.path.exists(path)


def test_the_directory_becomes_a_shared_mount(tmp_path: os.PathLike[str]) -> None:
    """A plain directory is made into what /run/netns is, so that removal reaches everywhere."""
    directory = os.path.join(tmp_path, "made", "here")
    path = f"{directory}/one"
    netns.create_named(path)
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        entries = [line.split() for line in mounts if line.split()[4] == directory]
    assert [True] == [any(field.startswith("shared:") for field in entry) for entry in entries]
    netns.remove_named(path)
    run_in(None, "umount", directory)
