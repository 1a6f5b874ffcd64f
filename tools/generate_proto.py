#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generate the Python modules of proto/ into src/pycni/service/pb/, or check that they are current.

    tools/generate_proto.py            write
    tools/generate_proto.py --check    exit 1 and name the files that differ

The generated code is committed, so that an installation needs no compiler. protoc names modules
by their proto path ("cni.v2alpha1.config_pb2"); the imports are rewritten to where the modules
live, so that neither a top-level `cni` package nor a second `pycni` package is installed.

proto/numbers.txt remembers every field number ever published. A number whose field is removed or
renamed must be `reserved` in its message, because old peers still send it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).resolve().parent.parent
PROTO_DIR = ROOT / "proto"
NUMBERS = PROTO_DIR / "numbers.txt"
OUTPUT_DIR = ROOT / "src" / "pycni" / "service" / "pb"
PACKAGE = "pycni.service.pb"

_HEADER = "# SPDX-License-Identifier: Apache-2.0\n"
_INIT_DOC = {
    "": '"""Code generated from proto/ by tools/generate_proto.py; not edited by hand."""\n',
    "cni/v2alpha1": '"""The public API."""\n',
    "pycni/plugins/v1": '"""Typed configurations of the built-in plugins."""\n',
}
# "from cni.v2alpha1 import x" and "import cni.v2alpha1.x" at the start of a line.
_OWN_IMPORT = re.compile(r"^(from|import) (?=(?:cni|pycni)\.)", re.MULTILINE)


def sources() -> list[str]:
    """Every proto file, as protoc names it."""
    return sorted(path.relative_to(PROTO_DIR).as_posix() for path in PROTO_DIR.rglob("*.proto"))


def run_protoc(*args: str) -> None:
    """Run protoc over every source, with the well-known types on its path."""
    include = resources.files("grpc_tools") / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO_DIR}", f"-I{include}"]
    subprocess.run([*command, *args, *sources()], check=True)


def generate() -> dict[str, str]:
    """The text of every generated file, by its path below OUTPUT_DIR."""
    plugins = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as scratch:
        run_protoc(
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            f"--python_out={scratch}",
            f"--grpc_python_out={scratch}",
            f"--mypy_out=quiet:{scratch}",
            f"--mypy_grpc_out=quiet,only_sync,generate_concrete_servicer_stubs:{scratch}",
        )
        found = {
            path.relative_to(scratch).as_posix(): path.read_text()
            for path in sorted(Path(scratch).rglob("*.py*"))
        }
    with_service = {
        name.removesuffix(".proto") for name in sources() if _has_service(PROTO_DIR / name)
    }
    files = {
        name: _HEADER + _OWN_IMPORT.sub(rf"\1 {PACKAGE}.", text)
        for name, text in found.items()
        # protoc writes an empty _grpc module for a file without services.
        if "_pb2_grpc." not in name or name.split("_pb2_grpc.")[0] in with_service
    }
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    for folder in folders:
        key = "" if folder == "." else folder
        files[f"{key}/__init__.py".lstrip("/")] = _HEADER + _INIT_DOC.get(key, "")
    return files


def descriptors() -> list[FileDescriptorProto]:
    """Every proto file as protoc understands it, with its comments."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "set.pb"
        run_protoc("--include_source_info", f"--descriptor_set_out={target}")
        return list(FileDescriptorSet.FromString(target.read_bytes()).file)


def numbers() -> dict[tuple[str, int], str]:
    """The field or value that each number of each message or enum stands for; "" if reserved."""
    found: dict[tuple[str, int], str] = {}
    for file in descriptors():
        for message in file.message_type:
            name = f"{file.package}.{message.name}"
            found |= {(name, field.number): field.name for field in message.field}
            for reserved in message.reserved_range:
                # Vendors' range, which this API never assigns, is not worth a thousand lines.
                if reserved.end - reserved.start < 100:
                    found |= {(name, n): "" for n in range(reserved.start, reserved.end)}
        for enum in file.enum_type:
            name = f"{file.package}.{enum.name}"
            found |= {(name, value.number): value.name for value in enum.value}
            for kept in enum.reserved_range:
                found |= {(name, n): "" for n in range(kept.start, kept.end + 1)}
    return found


def published() -> dict[tuple[str, int], str]:
    """What proto/numbers.txt remembers."""
    lines = [line.split() for line in NUMBERS.read_text().splitlines() if not line.startswith("#")]
    return {(owner, int(number)): name for owner, number, name in lines}


def reused() -> list[str]:
    """Published numbers that stand for something else now, or for nothing and are not reserved."""
    current = numbers()
    return [
        f"{owner} {number}: was {name}, is {current.get((owner, number), 'not reserved')}"
        for (owner, number), name in published().items()
        if current.get((owner, number), "gone") not in (name, "")
    ]


def remember_numbers() -> None:
    """Add new numbers to proto/numbers.txt."""
    known = published() | {key: name for key, name in numbers().items() if name}
    lines = [f"{owner} {number} {name}" for (owner, number), name in sorted(known.items())]
    header = (
        "# Every number ever published: message or enum, number, name. Written by `make proto`.\n"
    )
    NUMBERS.write_text(header + "\n".join(lines) + "\n")


def _has_service(path: Path) -> bool:
    return re.search(r"^service \w+ {", path.read_text(), re.MULTILINE) is not None


def differences(files: dict[str, str]) -> list[str]:
    """The paths below OUTPUT_DIR that are missing, stale or not generated any more."""
    present = {
        path.relative_to(OUTPUT_DIR).as_posix(): path.read_text()
        for path in OUTPUT_DIR.rglob("*.py*")
        if "__pycache__" not in path.parts
    }
    return sorted(
        name for name in files.keys() | present.keys() if files.get(name) != present.get(name)
    )


def write(files: dict[str, str]) -> None:
    """Make OUTPUT_DIR hold exactly `files`."""
    for name in differences(files):
        path = OUTPUT_DIR / name
        if name in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[name])
        else:
            path.unlink()


def main() -> int:
    """Write the generated files, or with --check report those that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 on a difference"
    )
    options = parser.parse_args()
    files = generate()
    if mistakes := reused():
        print("field numbers are never reused:", *mistakes, sep="\n    ")
        return 1
    if not options.check:
        write(files)
        remember_numbers()
        return 0
    stale = differences(files)
    for name in stale:
        print(f"not current: {OUTPUT_DIR.relative_to(ROOT) / name} (run: make proto)")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
