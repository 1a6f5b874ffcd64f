# SPDX-License-Identifier: Apache-2.0
"""A directory held open: whole files, one lock, one identity."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pycni.errors import IOFailure
from pycni.kernel import directory as module
from pycni.kernel.directory import Directory, find_obstacle, io_faults, make_directories


@pytest.fixture(params=["O_TMPFILE", "temporary file", "no openat"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A directory, with each way of working a platform may leave us."""
    if request.param != "O_TMPFILE":
        monkeypatch.setattr(module, "_O_TMPFILE", 0)
    if request.param == "no openat":
        monkeypatch.setattr(module, "_HAS_OPENAT", False)
    with Directory(str(tmp_path)) as directory:
        yield directory


def test_a_file_is_created_whole_and_only_once(opened: Directory, tmp_path: Path) -> None:
    """Its content and mode are there with its name; an existing file is never overwritten."""
    opened.create("10.0.0.2", b"one\r\neth0")

    with pytest.raises(FileExistsError):
        opened.create("10.0.0.2", b"two")
    assert b"one\r\neth0" == opened.read("10.0.0.2")
    assert 0o600 == (tmp_path / "10.0.0.2").stat().st_mode & 0o777
    assert ["10.0.0.2"] == opened.names()


def test_a_file_system_without_tmpfile_is_served_by_a_temporary_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused O_TMPFILE falls back to link(2), and the temporary name is gone."""
    monkeypatch.setattr(module, "_O_TMPFILE", os.O_DIRECTORY)  # as an old kernel reads it: EISDIR
    with Directory(str(tmp_path)) as directory:
        directory.create("a", b"content")

        assert b"content" == directory.read("a")
        assert ["a"] == directory.names()


def test_overwriting_leaves_exactly_the_new_content(opened: Directory) -> None:
    """Longer or shorter than before, and made when absent."""
    for content in (b"10.1.2.200", b"10.1.2.3", b"10.1.2.201"):
        opened.overwrite("last", content)

        assert content == opened.read("last")


def test_removing_tells_whether_it_was_there(opened: Directory) -> None:
    """Absent is an answer, not an error."""
    opened.create("a", b"")

    assert opened.remove("a")
    assert not opened.remove("a")


def test_the_lock_excludes_every_other_holder(opened: Directory) -> None:
    """Another open file of this process counts as another holder, as flock has it."""
    with Directory(opened.path) as other:
        assert opened.try_lock("lock")
        assert opened.try_lock("lock")
        assert not other.try_lock("lock")
        opened.close()
        assert other.try_lock("lock")


def test_the_stamp_is_part_of_the_identity(opened: Directory) -> None:
    """A stamped directory has the stamped time until an entry comes or goes."""
    stamped = opened.stamp(1_700_000_000_123_456_789)

    assert 1_700_000_000_123_456_789 == stamped.mtime_ns
    assert stamped == opened.identity()
    opened.create("a", b"")
    assert stamped != opened.identity()


def test_missing_parents_are_made(tmp_path: Path) -> None:
    """As the Go plugins make them: 0755 each, less the umask."""
    path = str(tmp_path / "a" / "b" / "c")
    umask = os.umask(0o022)
    try:
        make_directories(path)
        make_directories(path)
    finally:
        os.umask(umask)

    assert [0o755] * 2 == [
        os.stat(each).st_mode & 0o777 for each in (path, str(tmp_path / "a" / "b"))
    ]


def test_an_absent_directory_is_told_from_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening does not make it unless asked."""
    for has_openat in (True, False):
        monkeypatch.setattr(module, "_HAS_OPENAT", has_openat)
        with pytest.raises(FileNotFoundError):
            Directory(str(tmp_path / "absent"))


def test_obstacles_are_named_without_writing(tmp_path: Path) -> None:
    """A missing directory is no obstacle if it can be made; a file in its place is one."""
    (tmp_path / "file").write_bytes(b"")

    assert find_obstacle(str(tmp_path / "a" / "b")) is None
    assert f"{tmp_path}/file is not a directory" == find_obstacle(str(tmp_path / "file" / "a"))
    assert ["file"] == os.listdir(tmp_path)


def test_a_directory_without_write_permission_is_an_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is the file system that is read-only, which access(2) knows."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    assert f"{tmp_path} is not writable" == find_obstacle(str(tmp_path))


def test_what_fails_is_reported_as_an_io_failure() -> None:
    """Code 5, beginning with what was tried."""
    with pytest.raises(IOFailure) as caught, io_faults("save the backup"):
        raise FileNotFoundError(2, "No such file or directory", "x")

    assert "save the backup: No such file or directory" == caught.value.msg
