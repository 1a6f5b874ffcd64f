# SPDX-License-Identifier: Apache-2.0
"""`pycni tree`: the node's topology, network by network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from pycni.cli import output
from pycni.cli.attachment import all_attachments, state_name

if TYPE_CHECKING:
    from rich.tree import Tree

    from pycni.client import Client
    from pycni.service.pb.cni.v2alpha1 import attachments_pb2

COLOURS = {"READY": "green", "FAILED": "red", "ADDING": "yellow", "DELETING": "yellow"}


def tree(context: typer.Context) -> None:
    """Show networks, host links, containers, addresses and mapped ports as a tree."""
    with output.connected(context) as client:
        if context.obj.json:
            output.print_json(_document(client))
        else:
            output.console().print(build_tree(client))


def build_tree(client: Client) -> Tree:
    """The topology as it is now."""
    from rich.tree import Tree

    root = Tree("[bold]node")
    by_network = _by_network(client)
    for name, attachments in by_network.items():
        branch = root.add(f"[bold]{name}[/]" if attachments else f"[bold]{name}[/] (empty)")
        by_link: dict[str, Tree] = {}
        for attachment in attachments:
            host = [i.name for i in attachment.result.interfaces if not i.sandbox]
            parent = branch
            if host:
                if host[0] not in by_link:
                    by_link[host[0]] = branch.add(host[0])
                parent = by_link[host[0]]
            _add_container(parent, attachment, host[1] if len(host) > 1 else "")
    return root


def _add_container(parent: Tree, attachment: attachments_pb2.Attachment, host_link: str) -> None:
    state = state_name(attachment)
    link = f"{host_link} ↔ " if host_link else ""
    node = parent.add(
        f"{link}[cyan]{attachment.key.container_id}[/] {attachment.key.ifname}"
        f" [{COLOURS.get(state, 'white')}]{state}[/]"
    )
    for ip in attachment.result.ips:
        node.add(ip.address)
    for mapping in port_mappings(attachment):
        node.add(mapping)
    if attachment.HasField("error"):
        node.add(f"[red]{attachment.error.msg}[/]")


def port_mappings(attachment: attachments_pb2.Attachment) -> list[str]:
    """The ports of the host that lead here, for people."""
    document = attachment.capability_args.json.get("portMappings", b"[]")
    shown = []
    for mapping in json.loads(document):
        folded = {key.lower(): value for key, value in mapping.items()}
        host = f"{folded['hostip']}:" if folded.get("hostip") else ""
        protocol = folded.get("protocol", "tcp")
        shown.append(f"{host}{folded['hostport']} → {folded['containerport']}/{protocol}")
    return shown


def _by_network(client: Client) -> dict[str, list[attachments_pb2.Attachment]]:
    from pycni.service.pb.cni.v2alpha1 import attachments_pb2, networks_pb2

    found: dict[str, list[attachments_pb2.Attachment]] = {}
    for network in client.networks.List(networks_pb2.ListNetworksRequest()).networks:
        found[network.name] = []
    request = attachments_pb2.ListAttachmentsRequest()
    for attachment in all_attachments(client, request):
        found.setdefault(attachment.key.network, []).append(attachment)
    return found


def _document(client: Client) -> list[dict[str, Any]]:
    return [
        {
            "network": name,
            "attachments": [
                {
                    "containerID": attachment.key.container_id,
                    "ifname": attachment.key.ifname,
                    "state": state_name(attachment),
                    "hostInterfaces": [
                        i.name for i in attachment.result.interfaces if not i.sandbox
                    ],
                    "addresses": [ip.address for ip in attachment.result.ips],
                    "ports": port_mappings(attachment),
                }
                for attachment in attachments
            ],
        }
        for name, attachments in _by_network(client).items()
    ]
