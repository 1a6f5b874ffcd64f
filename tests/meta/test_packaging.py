# SPDX-License-Identifier: Apache-2.0
"""What is installed: the locks, the wheel, the make targets and the deployed files."""

from __future__ import annotations

import configparser
import json
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from pycni.exec import shim_build
from tests.meta.source import ROOT

LOCKS = ("requirements.lock", "requirements-dev.lock")
REQUIREMENT = re.compile(r"^([a-z0-9-]+)==(\S+?)(?: ; .+)? \\$", re.MULTILINE)


def locked(name: str) -> dict[str, str]:
    """The packages a lock pins, with their versions."""
    return dict(REQUIREMENT.findall((ROOT / name).read_text()))


@pytest.fixture(scope="module")
def project() -> dict[str, dict[str, object]]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(requirements: object) -> set[str]:
    """The bare names of a requirement list, pycni itself left out."""
    assert isinstance(requirements, list)
    return {re.split(r"[\[>=<; ]", text)[0] for text in requirements} - {"pycni"}


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_hashes(name: str) -> None:
    """pip installs from a lock with --require-hashes."""
    blocks = re.split(r"\n(?=[a-z0-9])", (ROOT / name).read_text())[1:]
    assert [] == [block.split()[0] for block in blocks if "--hash=sha256:" not in block]


@pytest.mark.parametrize("name", LOCKS)
def test_locks_name_no_index(name: str) -> None:
    """Where packages come from is the machine's business, not the repository's."""
    text = (ROOT / name).read_text()
    assert None is re.search(r"https?:|--index|--extra-index|--find-links|file:", text)


def test_locks_hold_what_the_project_asks_for(project: dict[str, dict[str, object]]) -> None:
    """Each dependency of pyproject.toml is pinned: `make lock` was run after the last change."""
    table = project["project"]
    extras = table["optional-dependencies"]
    assert isinstance(extras, dict)
    runtime = names(table["dependencies"]) | names(project["dependency-groups"]["build"])
    assert set() == runtime - locked(LOCKS[0]).keys()
    everything = runtime | names(extras["test"]) | names(extras["dev"])
    assert set() == everything - locked(LOCKS[1]).keys()


def test_the_two_locks_agree() -> None:
    """The development environment holds the runtime's, version by version."""
    runtime, dev = map(locked, LOCKS)
    assert runtime == {name: dev.get(name) for name in runtime}


def test_generated_code_runs_with_the_oldest_runtime_allowed() -> None:
    """protoc's code refuses older runtimes than it was made for; pyproject.toml says the same."""
    code = (ROOT / "src/pycni/service/pb/cni/v2alpha1/networks_pb2_grpc.py").read_text()
    made_for = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", code)
    assert made_for is not None
    assert f'"grpcio>={made_for[1]}"' in (ROOT / "pyproject.toml").read_text()
    code = (ROOT / "src/pycni/service/pb/cni/v2alpha1/networks_pb2.py").read_text()
    made_for = re.search(r"Protobuf Python Version: ([\d.]+)", code)
    assert made_for is not None
    assert f'"protobuf>={made_for[1]}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
def test_the_wheel_is_complete(tmp_path: Path) -> None:
    """Proto sources, example networks, the shim's source and type information are installed too."""
    # A copy, because setuptools leaves its work beside the sources.
    tree = tmp_path / "tree"
    for folder in ("src", "proto", "deploy"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--quiet"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", tmp_path, tree], check=True, cwd=tmp_path
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        content = set(archive.namelist())
    wanted = {
        "pycni/py.typed",
        "pycni/exec/shim.c",
        "pycni/cli/networks/dbnet.jsonc",
        "pycni/cli/networks/edge.json",
        "pycni/service/pb/cni/v2alpha1/attachments_pb2.pyi",
        "pycni/service/proto/cni/v2alpha1/attachments.proto",
        "pycni/service/proto/pycni/plugins/v1/bridge.proto",
    }
    assert set() == wanted - content
    # Compiled where there is a compiler, and then a wheel for one kind of machine.
    shims = {name for name in content if name.startswith("pycni/exec/shim-")}
    compiled = platform.machine() in wheel.name
    assert ({f"pycni/exec/shim-{platform.machine()}.bin"} if compiled else set()) == shims
    assert any(map(shutil.which, shim_build.COMPILERS)) == compiled
    assert set() == {name for name in content if name.startswith(("tests", "proto/", "tools"))}


def test_make_offers_what_the_readme_promises() -> None:
    """Every `make X` of the documentation is a target."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
    named = {target for page in pages for target in re.findall(r"`make ([a-z]+)", page.read_text())}
    assert set() == named - targets


def strip_comments(text: str) -> str:
    """JSON with `//` comments on lines of their own, without them."""
    return re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def test_example_networks_do_not_collide() -> None:
    """dbnet and edge can be used side by side: names, bridges and subnets differ."""
    dbnet = json.loads(strip_comments((ROOT / "deploy/networks/dbnet.jsonc").read_text()))
    edge = json.loads((ROOT / "deploy/networks/edge.json").read_text())
    assert dbnet["name"] == "dbnet"
    assert edge["name"] == "edge"
    types = ["bridge", "tuning", "portmap"]
    assert types == [plugin["type"] for plugin in dbnet["plugins"]]
    assert types == [plugin["type"] for plugin in edge["plugins"]]
    assert dbnet["plugins"][0]["bridge"] != edge["plugins"][0]["bridge"]
    subnets = [one["subnet"] for ranges in edge["plugins"][0]["ipam"]["ranges"] for one in ranges]
    assert dbnet["plugins"][0]["ipam"]["subnet"] not in subnets


@pytest.mark.parametrize("name", ["pycni.service", "pycni.socket", "pycni-grpc.socket"])
def test_systemd_units_are_well_formed(name: str) -> None:
    """Each unit parses, says what it is, and is wanted by a target."""
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment,method-assign] # as its documentation says
    unit.read_string((ROOT / "deploy" / name).read_text())
    assert unit["Unit"]["Description"]
    assert unit["Install"]["WantedBy"]
