# SPDX-License-Identifier: Apache-2.0
"""`pycni add`, `del`, `check`, `gc` and `list`: containers on networks, by the SPEC's verbs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pycni.cli import output

if TYPE_CHECKING:
    from pycni.service.pb.cni.v2alpha1 import attachments_pb2, config_pb2, params_pb2

Network = Annotated[str, typer.Argument(help="The network's name.")]
Container = Annotated[str, typer.Argument(help="The container's id.")]
IfName = Annotated[
    str, typer.Option("--ifname", "-i", envvar="CNI_IFNAME", help="The interface in the container.")
]
Netns = Annotated[str, typer.Option(help="Path of the container's network namespace.")]
Args = Annotated[list[str] | None, typer.Option("--arg", help="One of CNI_ARGS, as KEY=VALUE.")]
Capabilities = Annotated[
    list[str] | None, typer.Option("--cap", help="A capability argument, as NAME=JSON.")
]
Ports = Annotated[
    list[str] | None,
    typer.Option("--port", "-p", help=r"Map a host port, as [IP:]HOST:CONTAINER\[/udp|/sctp]."),
]
Labels = Annotated[list[str] | None, typer.Option("--label", help="A label, as KEY=VALUE.")]

PORT = re.compile(
    r"(?:(?P<ip>\[[0-9A-Fa-f:.]+\]|[0-9.]+):)?(?P<host>\d+):(?P<container>\d+)"
    r"(?:/(?P<protocol>\w+))?"
)


def add(
    context: typer.Context,
    network: Network,
    container: Container,
    netns: Netns,
    ifname: IfName = "eth0",
    port: Ports = None,
    arg: Args = None,
    cap: Capabilities = None,
    label: Labels = None,
) -> None:
    """Attach a container to a network."""
    from pycni.service.pb.cni.v2alpha1 import attachments_pb2

    request = attachments_pb2.AddRequest(
        network=_ref(network),
        container_id=container,
        netns=netns,
        ifname=ifname,
        cni_args=_cni_args(arg),
        capability_args=_capability_args(cap, port),
        labels=dict(_pairs(label, "--label")),
    )
    with output.connected(context) as client:
        response = client.attachments.Add(request)
    result = response.attachment.result
    if context.obj.json:
        output.print_json(json.loads(result.json))
        return
    addresses = ", ".join(ip.address for ip in result.ips) or "no addresses"
    again = " (it was attached already)" if response.replayed else ""
    typer.echo(f"{container} {ifname} on {network}: {addresses}{again}")


def delete(
    context: typer.Context,
    network: Network,
    container: Container,
    ifname: IfName = "eth0",
    netns: Netns = "",
) -> None:
    """Detach a container; deleting what does not exist succeeds."""
    from pycni.service.pb.cni.v2alpha1 import attachments_pb2

    request = attachments_pb2.DelRequest(
        network=_ref(network), container_id=container, ifname=ifname, netns=netns
    )
    with output.connected(context) as client:
        response = client.attachments.Del(request)
    if context.obj.json:
        output.print_json({"existed": response.existed})
    else:
        typer.echo(
            f"{container} {ifname} on {network}: "
            + ("deleted" if response.existed else "was not attached; cleaned up all the same")
        )


def check(
    context: typer.Context, network: Network, container: Container, ifname: IfName = "eth0"
) -> None:
    """Verify that an attachment is as it was made."""
    from pycni.service.pb.cni.v2alpha1 import attachments_pb2

    request = attachments_pb2.CheckRequest(network=network, container_id=container, ifname=ifname)
    with output.connected(context) as client:
        response = client.attachments.Check(request)
    outcome = "not checked: the network disables CHECK" if response.skipped else "as it should be"
    if context.obj.json:
        output.print_json({"skipped": response.skipped})
    else:
        typer.echo(f"{container} {ifname} on {network}: {outcome}")


def gc(
    context: typer.Context,
    networks: Annotated[
        list[str] | None, typer.Argument(help="The networks to collect; none means all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be deleted.")] = False,
) -> None:
    """Remove what belongs to no attachment that the service knows."""
    from pycni.service.pb.cni.v2alpha1 import attachments_pb2

    request = attachments_pb2.GcRequest(
        networks=[attachments_pb2.GcNetwork(network=_ref(name)) for name in networks or ()],
        validate_only=dry_run,
    )
    with output.connected(context) as client:
        response = client.attachments.Gc(request)
    if context.obj.json:
        output.print_json(
            [
                {
                    "network": one.network,
                    "deleted": [f"{key.container_id}/{key.ifname}" for key in one.deleted],
                    "skipped": one.skipped,
                }
                for one in response.networks
            ]
        )
        return
    for one in response.networks:
        typer.echo(f"{one.network}: {collected(one, dry_run=dry_run)}")


def collected(one: attachments_pb2.GcResult, *, dry_run: bool = False) -> str:
    """What became of a network in a GC, in words."""
    keys = ", ".join(f"{key.container_id} {key.ifname}" for key in one.deleted)
    found = f"{'would delete' if dry_run else 'deleted'} {keys}" if keys else "nothing stale"
    # Disabled there, a file's (other runtimes use it too), or before version 1.1.0 of the SPEC.
    return f"{found}; its plugins were not asked" if one.skipped else found


def list_attachments(
    context: typer.Context,
    network: Annotated[str, typer.Option(help="Only of this network.")] = "",
    container: Annotated[str, typer.Option(help="Only of this container.")] = "",
    label: Labels = None,
) -> None:
    """List the attachments."""
    with output.connected(context) as client:
        from pycni.service.pb.cni.v2alpha1 import attachments_pb2

        request = attachments_pb2.ListAttachmentsRequest(
            network=network, container_id=container, labels=dict(_pairs(label, "--label"))
        )
        attachments = list(all_attachments(client, request))
    if context.obj.json:
        output.print_json([_summary(attachment) for attachment in attachments])
        return
    output.print_table(
        ("NETWORK", "CONTAINER", "INTERFACE", "STATE", "ADDRESSES", "NETNS"),
        (
            (
                attachment.key.network,
                attachment.key.container_id,
                attachment.key.ifname,
                state_name(attachment),
                " ".join(ip.address for ip in attachment.result.ips),
                attachment.netns,
            )
            for attachment in attachments
        ),
        empty="no attachments",
    )


def all_attachments(
    client: Any, request: attachments_pb2.ListAttachmentsRequest
) -> list[attachments_pb2.Attachment]:
    """Every page of a list."""
    found: list[attachments_pb2.Attachment] = []
    while True:
        page = client.attachments.List(request)
        found += page.attachments
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def state_name(attachment: attachments_pb2.Attachment) -> str:
    """READY, FAILED and so on."""
    from pycni.service.pb.cni.v2alpha1 import attachments_pb2

    name = attachments_pb2.AttachmentState.Name(attachment.state)
    return name.removeprefix("ATTACHMENT_STATE_")


def parse_port(text: str) -> dict[str, Any]:
    """A port mapping from [IP:]HOST:CONTAINER[/PROTOCOL]; exits with 2 on anything else."""
    match = PORT.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not [IP:]HOST:CONTAINER[/PROTOCOL]")
    mapping: dict[str, Any] = {
        "hostPort": int(match["host"]),
        "containerPort": int(match["container"]),
        "protocol": match["protocol"] or "tcp",
    }
    if match["ip"]:
        mapping["hostIP"] = match["ip"].strip("[]")
    return mapping


def _ref(network: str) -> config_pb2.NetworkRef:
    from pycni.service.pb.cni.v2alpha1 import config_pb2

    return config_pb2.NetworkRef(name=network)


def _cni_args(arguments: list[str] | None) -> list[params_pb2.CniArg]:
    from pycni.service.pb.cni.v2alpha1 import params_pb2

    return [params_pb2.CniArg(key=key, value=value) for key, value in _pairs(arguments, "--arg")]


def _capability_args(
    capabilities: list[str] | None, ports: list[str] | None
) -> params_pb2.CapabilityArgs:
    from pycni.service.pb.cni.v2alpha1 import params_pb2

    documents = {name: value.encode() for name, value in _pairs(capabilities, "--cap")}
    if ports:
        documents["portMappings"] = json.dumps([parse_port(port) for port in ports]).encode()
    return params_pb2.CapabilityArgs(json=documents)


def _pairs(texts: list[str] | None, option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{option} {text!r} is not KEY=VALUE")
        pairs.append((key, value))
    return pairs


def _summary(attachment: attachments_pb2.Attachment) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "network": attachment.key.network,
        "containerID": attachment.key.container_id,
        "ifname": attachment.key.ifname,
        "state": state_name(attachment),
        "netns": attachment.netns,
        "labels": dict(attachment.labels),
    }
    if attachment.HasField("result"):
        summary["result"] = json.loads(attachment.result.json)
    if attachment.HasField("error"):
        summary["error"] = {"code": attachment.error.code, "msg": attachment.error.msg}
    return summary
