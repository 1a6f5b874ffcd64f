# SPDX-License-Identifier: Apache-2.0
"""`pycni network`: the networks a node can attach containers to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pycni.cli import output
from pycni.errors import DecodeFailure, IOFailure

if TYPE_CHECKING:
    from pycni.service.pb.cni.v2alpha1 import config_pb2, networks_pb2

app = typer.Typer(help="List, show, put, delete and validate networks.", no_args_is_help=True)

File = Annotated[
    Path, typer.Argument(help='A network configuration, comments allowed; "-" is stdin.')
]
WARNING = 2  # networks_pb2.SEVERITY_WARNING, whose module takes long to import
Name = Annotated[str, typer.Argument(help="The network's name.")]


@app.command("list")
def list_networks(context: typer.Context) -> None:
    """List the networks and where they come from."""
    networks, broken = fetch(context)
    if context.obj.json:
        output.print_json([_summary(network) for network in networks])
    else:
        output.print_table(
            ("NETWORK", "VERSION", "PLUGINS", "ATTACHMENTS", "SOURCE"),
            (
                (
                    network.name,
                    network.config.cni_version,
                    " → ".join(plugin.type for plugin in network.config.plugins),
                    str(network.attachment_count),
                    network.source_path or "put",
                )
                for network in networks
            ),
            empty="no networks; put one with `pycni network put FILE`",
        )
    for source in broken:
        sys.stderr.write(f"pycni: {source.path}: {source.error.msg}\n")


def fetch(
    context: typer.Context,
) -> tuple[list[networks_pb2.Network], list[networks_pb2.BrokenSource]]:
    """The service's networks, and the files that are none because of a fault."""
    from pycni.service.pb.cni.v2alpha1 import networks_pb2

    networks: list[networks_pb2.Network] = []
    request = networks_pb2.ListNetworksRequest()
    with output.connected(context) as client:
        while True:
            page = client.networks.List(request)
            networks += page.networks
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return networks, list(page.broken)


@app.command("get")
def get(context: typer.Context, name: Name) -> None:
    """Print a network's configuration, byte for byte as it was put."""
    from pycni.service.pb.cni.v2alpha1 import networks_pb2

    with output.connected(context) as client:
        network = client.networks.Get(networks_pb2.GetNetworkRequest(name=name))
    if context.obj.json:
        output.print_json({**_summary(network), "config": json.loads(network.config.json)})
    else:
        sys.stdout.write(network.config.json.decode().rstrip("\n") + "\n")


@app.command("put")
def put(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(help='Network configurations, comments allowed; "-" is stdin.')
    ],
    etag: Annotated[
        str | None, typer.Option(help='Only if this is its etag; "" means it must be new.')
    ] = None,
) -> None:
    """Create or replace networks."""
    from pycni.service.pb.cni.v2alpha1 import networks_pb2

    outcomes = []
    with output.connected(context) as client:
        for file in files:
            request = networks_pb2.PutNetworkRequest(config=read_config(file), etag=etag)
            response = client.networks.Put(request)
            done = "unchanged" if response.unchanged else "replaced"
            done = "created" if response.created else done
            outcomes.append({**_summary(response.network), "outcome": done})
            if not context.obj.json:
                typer.echo(f"network {response.network.name} {done}")
            for warning in response.warnings:
                hint = f"; {warning.error.details}" if warning.error.details else ""
                typer.echo(f"warning: {warning.error.msg}{hint}", err=True)
    if context.obj.json:
        output.print_json(outcomes)


@app.command("delete")
def delete(
    context: typer.Context,
    name: Name,
    force: Annotated[bool, typer.Option(help="Even while containers are attached.")] = False,
) -> None:
    """Delete a network that was put."""
    from pycni.service.pb.cni.v2alpha1 import networks_pb2

    request = networks_pb2.DeleteNetworkRequest(name=name, force=force)
    with output.connected(context) as client:
        response = client.networks.Delete(request)
    if context.obj.json:
        remaining = [f"{key.container_id}/{key.ifname}" for key in response.remaining]
        output.print_json({"deleted": name, "remaining": remaining})
    else:
        typer.echo(f"network {name} deleted")
        for key in response.remaining:
            typer.echo(f"  still attached: {key.container_id} {key.ifname}")


@app.command("validate")
def validate(context: typer.Context, file: File) -> None:
    """Check a configuration; nothing is stored and nothing touched."""
    from pycni.service.pb.cni.v2alpha1 import config_pb2, networks_pb2

    network = config_pb2.NetworkRef(inline=read_config(file))
    with output.connected(context) as client:
        response = client.networks.Validate(networks_pb2.ValidateNetworkRequest(network=network))
    if context.obj.json:
        output.print_json(
            {
                "valid": response.valid,
                "capabilities": list(response.capabilities),
                "findings": [
                    {
                        "severity": "warning" if f.severity == WARNING else "error",
                        "path": f.path,
                        "code": f.error.code,
                        "msg": f.error.msg,
                    }
                    for f in response.findings
                ],
            }
        )
    else:
        for finding in response.findings:
            kind = "warning: " if finding.severity == WARNING else ""
            typer.echo(f"{kind}{finding.error.msg} (code {finding.error.code})", err=True)
        if response.valid:
            typer.echo(f"network {response.config.name} is valid")
    if not response.valid:
        raise typer.Exit(output.FAILED)


def read_config(file: Path) -> config_pb2.NetworkConfig:
    """The configuration in `file` as strict JSON: as it stands, or without its comments."""
    from pycni.service.pb.cni.v2alpha1 import config_pb2

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except OSError as exc:
        raise IOFailure(f"cannot read {file}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise DecodeFailure(f"{file} is not UTF-8 text: {exc.reason}") from exc
    return config_pb2.NetworkConfig(json=strict_json(text, str(file)))


def strict_json(text: str, where: str) -> bytes:
    """JSON unchanged; JSON with comments as the same document without them."""
    import json5

    from pycni.model import jsonio

    try:
        jsonio.loads(text.encode())
    except DecodeFailure:
        try:
            document: Any = json5.loads(text)
        except (ValueError, RecursionError) as exc:
            raise DecodeFailure(f"{where} is neither JSON nor JSON with comments: {exc}") from exc
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False).encode()
    return text.encode()


def _summary(network: networks_pb2.Network) -> dict[str, Any]:
    return {
        "name": network.name,
        "cniVersion": network.config.cni_version,
        "plugins": [plugin.type for plugin in network.config.plugins],
        "capabilities": list(network.capabilities),
        "attachments": network.attachment_count,
        "source": network.source_path or "put",
        "etag": network.etag,
    }
