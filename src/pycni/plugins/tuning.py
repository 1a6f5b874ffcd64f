# SPDX-License-Identifier: Apache-2.0
"""Meta plugin `tuning`: sysctls of the container's namespace and attributes of its interface.

The attributes it changes are saved in `<dataDir>/<container id>_<ifname>.json`, the Go plugin's
file, and given back by DEL. The file names no network, so ours carries one more key, `network`,
which the Go plugin ignores: GC removes only files that say they are of its network.

Sysctls are not given back by DEL: they die with the namespace, or belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, structs

from pycni.errors import CniError, InvalidConfig, KernelError, NotAvailable
from pycni.kernel.directory import Directory, find_obstacle, io_faults, make_directories
from pycni.kernel.side import Side
from pycni.kernel.sysctl import Sysctl
from pycni.kernel.types import Link
from pycni.log import Log
from pycni.model import jsonio
from pycni.model.names import FilePath, Mac
from pycni.model.request import CniArgs
from pycni.model.result import Result
from pycni.net.undo import Gather, Undo
from pycni.plugins.sdk import Call, Config, Plugin

log = Log(__name__)

DEFAULT_DATA_DIR = "/run/cni/tuning"
ALLOWLIST = "/etc/cni/tuning/allowlist.conf"

_NONE = Raw(b"{}")

# As wide as the kernel has them; what a device can do with them is the device's to say.
Mtu = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Uint32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Attributes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What can be set on the interface; the defaults mean "leave it alone"."""

    mac: Mac | None = None
    promisc: bool | None = None
    mtu: Mtu = 0
    allmulti: bool | None = None
    txQLen: Uint32 | None = None


class Backup(Attributes, frozen=True, kw_only=True):
    """The backup file: the attributes as they were, in the Go plugin's keys, and the network."""

    network: str = ""


class CniKeys(Attributes, frozen=True, kw_only=True):
    """`args.cni`: overrides everything else. `sysctl` is kept as text to see duplicate keys."""

    sysctl: Raw = _NONE


class Args(Struct, frozen=True, kw_only=True):
    """The `args` key (CONVENTIONS.md)."""

    cni: CniKeys = CniKeys()


class Capabilities(Struct, frozen=True, kw_only=True):
    """`runtimeConfig`: capability `mac`."""

    mac: Mac | None = None


class TuningConfig(Config, frozen=True, kw_only=True):
    """Configuration of tuning. `sysctl` maps names to values; IFNAME stands for the interface."""

    sysctl: Raw = _NONE
    mac: Mac | None = None
    promisc: bool | None = None
    mtu: Mtu = 0
    allmulti: bool | None = None
    txQLen: Uint32 | None = None
    dataDir: FilePath = FilePath(DEFAULT_DATA_DIR)
    args: Args = Args()
    runtimeConfig: Capabilities = Capabilities()


class EnvArgs(CniArgs, frozen=True, kw_only=True):
    """CNI_ARGS: `MAC`."""

    MAC: Mac | None = None


class Tuning(Plugin[TuningConfig], type="tuning", config=TuningConfig):
    """Change what an earlier plugin made."""

    def add(self, call: Call[TuningConfig]) -> Result:
        """Write the sysctls, save and set the attributes; all of it, or nothing stays changed."""
        attributes = parse_attributes(call)
        sysctls = parse_sysctls(call.config, call.ifname, allowlist=read_allowlist())
        prev_result = call.get_prev_result()
        with Undo() as undo:
            write_sysctls(call.container, sysctls, undo)
            if attributes != Attributes():
                before = take_from(call.container.links.get(call.ifname), attributes)
                save_backup(call, before, undo)
                set_attributes(call, attributes, before, undo)
            undo.commit()
        return show_attributes(prev_result, call.ifname, attributes)

    def delete(self, call: Call[TuningConfig]) -> None:
        """Give back what the backup says, as far as the interface is still there."""
        backup = find_backup(call)
        container = call.find_container() if backup is not None else None
        if backup is not None and container is not None and container.links.find(call.ifname):
            give_back(container, call.ifname, backup)
        remove_backups(call.config, [backup_name(call.container_id, call.ifname)])

    def check(self, call: Call[TuningConfig]) -> None:
        """Raise if a sysctl or an attribute is not what the configuration says."""
        call.get_prev_result()
        attributes = parse_attributes(call)
        expect_sysctls(call.container, parse_sysctls(call.config, call.ifname))
        if attributes != Attributes():
            expect_attributes(call.container.links.get(call.ifname), attributes)

    def gc(self, call: Call[TuningConfig]) -> None:
        """Remove the backups of this network's attachments that are not valid any more."""
        if call.valid_attachments is None:
            return
        valid = {backup_name(each.container_id, each.ifname) for each in call.valid_attachments}
        remove_backups(call.config, set(list_backups(call.config)) - valid)

    def status(self, call: Call[TuningConfig]) -> None:
        """Raise NotAvailable (50) if a sysctl is not allowed or no backup could be saved."""
        try:
            parse_sysctls(call.config, "IFNAME", allowlist=read_allowlist())
        except CniError as exc:
            raise NotAvailable(exc.msg, exc.details) from exc
        obstacle = find_obstacle(call.config.dataDir or DEFAULT_DATA_DIR)
        if obstacle is not None:
            raise NotAvailable(f"tuning cannot save interface attributes: {obstacle}")

    def validate(self, config: TuningConfig) -> None:
        """Raise for sysctls that are none; what the node allows is a question of the node."""
        parse_sysctls(config, "IFNAME")
        for path, mac in (
            ("mac", config.mac),
            ("runtimeConfig.mac", config.runtimeConfig.mac),
            ("args.cni.mac", config.args.cni.mac),
        ):
            expect_mac(path, mac)


# -- configuration ---------------------------------------------------------------------------------


def parse_attributes(call: Call[TuningConfig]) -> Attributes:
    """The attributes to set; a MAC is taken from `args`, the capability, CNI_ARGS, the config."""
    config, args = call.config, call.config.args.cni
    env = EnvArgs.parse(call.request.args)
    mac = args.mac or config.runtimeConfig.mac or env.MAC or config.mac
    expect_mac("mac", mac)
    return Attributes(
        mac=mac,
        # false does not switch it off, as in the Go plugin; allmulti does.
        promisc=(config.promisc if args.promisc is None else args.promisc) or None,
        mtu=args.mtu or config.mtu,
        allmulti=config.allmulti if args.allmulti is None else args.allmulti,
        txQLen=config.txQLen if args.txQLen is None else args.txQLen,
    )


def expect_mac(path: str, mac: Mac | None) -> None:
    """Raise for the MAC of a group, and for one that is all zero."""
    if mac is not None and not mac.is_of_host:
        raise InvalidConfig(f'{path}: not a MAC address of one host: "{mac}"')


def parse_sysctls(
    config: TuningConfig, ifname: str, *, allowlist: list[str] | None = None
) -> dict[str, str]:
    """The sysctls to write as slash paths with their values; those of `args.cni` win."""
    sysctls: dict[str, str] = {}
    for path, raw in (("sysctl", config.sysctl), ("args.cni.sysctl", config.args.cni.sysctl)):
        named = jsonio.decode(raw, dict[str, str], where=path)
        if _has_duplicates(bytes(raw), named):
            raise InvalidConfig(f"{path}: duplicated sysctl keys are not allowed")
        for key, value in named.items():
            sysctls[parse_sysctl(path, key, ifname, allowlist)] = value
    return sysctls


def _has_duplicates(raw: bytes, named: dict[str, str]) -> bool:
    """Whether the text shows more keys than a parser's dict, which keeps the last of equal ones."""
    if raw.count(b":") == len(named):
        return False  # one for each key, as it nearly always is: no need for another parser
    import json

    return len(named) < len(json.loads(raw, object_pairs_hook=list) or ())


def parse_sysctl(path: str, key: str, ifname: str, allowlist: list[str] | None) -> str:
    """The slash path of one sysctl, IFNAME replaced after the dots so that eth0.100 stays whole."""
    if allowlist is not None and not any(re.search(pattern, key) for pattern in allowlist):
        raise InvalidConfig(
            f"{path}.{key}: Sysctl {key} is not allowed. "
            f"Only the following sysctls are allowed: [{' '.join(allowlist)}]"
        )
    parts = [part for part in key.replace(".", "/").split("/") if part]
    name = "/".join(parts).replace("IFNAME", ifname, 1)
    if parts[:1] != ["net"] or len(parts) < 2 or "\0" in key:
        raise InvalidConfig(f'{path}.{key}: invalid net sysctl key: "{key}"')
    return name


def read_allowlist() -> list[str] | None:
    """The node's allowlist: regular expressions, one a line; None when there is none."""
    try:
        with io_faults(f"read {ALLOWLIST}"), open(ALLOWLIST, encoding="utf-8") as file:
            patterns = [line.strip() for line in file if line.strip()]
    except CniError as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            return None
        raise
    except UnicodeDecodeError as exc:
        raise CniError(f"{ALLOWLIST}: not UTF-8 text: {exc.reason}") from exc
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as exc:
            raise CniError(f'{ALLOWLIST}: not a regular expression: "{pattern}": {exc}') from exc
    return patterns


# -- sysctls ---------------------------------------------------------------------------------------


def write_sysctls(container: Side, sysctls: dict[str, str], undo: Undo) -> None:
    """Write all of them in the container's namespace."""
    if not sysctls:
        return
    before = container.run(partial(read_readable, container.sysctl, sysctls))
    undo.push(container.sysctl.write_all, before)  # before writing, which may stop half way
    container.sysctl.write_all(sysctls)


def expect_sysctls(container: Side, sysctls: dict[str, str]) -> None:
    """Raise unless each has its value, blanks not counted: the kernel prints tabs for spaces."""
    if not sysctls:
        return
    found = container.run(partial(read_readable, container.sysctl, sysctls))
    for key, value in sysctls.items():
        if key in found and found[key].split() != value.split():
            raise CniError(f"sysctl {key} is {found[key]}, not {value}")
    missing = [key for key in sysctls if not container.sysctl.exists(key)]
    if missing:
        raise CniError(f"sysctl {missing[0]} does not exist any more")


def read_readable(sysctl: Sysctl, keys: Iterable[str]) -> dict[str, str]:
    """The values, less those that cannot be read (route/flush)."""
    found: dict[str, str] = {}
    for key in keys:
        try:
            found[key] = sysctl.read(key)
        except KernelError as exc:
            log.debug("sysctl not readable: %s", exc)
    return found


# -- attributes of the interface -------------------------------------------------------------------


def take_from(link: Link, wanted: Attributes) -> Attributes:
    """The link's values of the attributes that `wanted` sets."""
    return Attributes(
        mac=link.mac if wanted.mac else None,
        promisc=link.promisc if wanted.promisc is not None else None,
        mtu=link.mtu if wanted.mtu else 0,
        allmulti=link.allmulti if wanted.allmulti is not None else None,
        txQLen=link.txqlen if wanted.txQLen is not None else None,
    )


def set_attributes(
    call: Call[TuningConfig], wanted: Attributes, before: Attributes, undo: Undo
) -> None:
    """Set them in one message, which the kernel may refuse half way: the undo comes first."""
    undo.push(set_link, call.container, call.ifname, before)
    set_link(call.container, call.ifname, wanted)


def set_link(container: Side, ifname: str, values: Attributes) -> None:
    """Set what `values` has."""
    container.links.set(
        ifname,
        mac=values.mac,
        promisc=values.promisc,
        mtu=values.mtu or None,
        allmulti=values.allmulti,
        txqlen=values.txQLen,
    )


def give_back(container: Side, ifname: str, backup: Attributes) -> None:
    """Set each attribute of `backup` on its own: one that the kernel refuses stops no other.

    A failure is only logged. The interface may be gone, renamed or somebody else's by now, and
    none of that may keep a container from being deleted.
    """
    saved = structs.asdict(backup)
    for key, untouched in structs.asdict(Attributes()).items():
        if saved[key] != untouched:
            try:
                set_link(container, ifname, Attributes(**{key: saved[key]}))
            except KernelError as exc:
                log.warning("tuning did not give back %s of %s: %s", key, ifname, exc)


def expect_attributes(link: Link, wanted: Attributes) -> None:
    """Raise unless the link has every attribute that `wanted` sets."""
    found = structs.asdict(take_from(link, wanted))
    for key, value in structs.asdict(wanted).items():
        if found[key] != value:
            raise CniError(f"{key} of {link.name} is {found[key]}, not {value}")


def show_attributes(result: Result, ifname: str, attributes: Attributes) -> Result:
    """The result with the new MAC, and the new MTU where the result tells one."""
    interfaces = tuple(
        structs.replace(
            each,
            mac=attributes.mac or each.mac,
            mtu=(attributes.mtu or each.mtu) if each.mtu else 0,
        )
        if each.name == ifname
        else each
        for each in result.interfaces
    )
    return structs.replace(result, interfaces=interfaces)


# -- backups ---------------------------------------------------------------------------------------


def backup_name(container_id: str, ifname: str) -> str:
    """The backup file of an attachment."""
    return f"{container_id}_{ifname}.json"


def save_backup(call: Call[TuningConfig], before: Attributes, undo: Undo) -> None:
    """Save `before`, unless an earlier ADD has done so: its values are the original ones."""
    path = call.config.dataDir or DEFAULT_DATA_DIR
    name = backup_name(call.container_id, call.ifname)
    backup = Backup(**structs.asdict(before), network=call.config.name)
    with io_faults(f"save {path}/{name}"):
        make_directories(path, 0o700)
        with Directory(path) as directory:
            try:
                directory.create(name, jsonio.encode_go(backup, indent=1))
            except FileExistsError:
                return
    undo.push(remove_backups, call.config, [name])


def find_backup(call: Call[TuningConfig]) -> Backup | None:
    """The attachment's backup; None if there is none, or none that can be read."""
    path = call.config.dataDir or DEFAULT_DATA_DIR
    name = backup_name(call.container_id, call.ifname)
    try:
        with Directory(path) as directory:
            return jsonio.decode(directory.read(name), Backup)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, CniError) as exc:
        log.warning("tuning cannot read the backup %s/%s: %s", path, name, exc)
        return None


def list_backups(config: TuningConfig) -> list[str]:
    """The backup files that say they are of this network."""
    found: list[str] = []
    with io_faults(f"list {config.dataDir}"):
        try:
            directory = Directory(config.dataDir or DEFAULT_DATA_DIR)
        except (FileNotFoundError, NotADirectoryError):
            return found
        with directory:
            for name in directory.names():
                if not name.endswith(".json"):
                    continue
                try:
                    backup = msgspec.json.decode(directory.read(name), type=Owned)
                except (OSError, msgspec.MsgspecError):
                    continue
                if backup.network == config.name:
                    found.append(name)
    return found


class Owned(Struct, frozen=True, kw_only=True):
    """The key of a backup that the Go plugin does not write."""

    network: str = ""


def remove_backups(config: TuningConfig, names: Iterable[str]) -> None:
    """Remove the files; absent is fine, and so is an absent directory."""
    path = config.dataDir or DEFAULT_DATA_DIR
    with io_faults(f"remove backups from {path}"), Gather("remove backups") as gather:
        try:
            directory = Directory(path)
        except (FileNotFoundError, NotADirectoryError):
            return  # no backup was ever made there
        with directory:
            for name in names:
                gather.run(directory.remove, name)
