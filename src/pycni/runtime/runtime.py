# SPDX-License-Identifier: Apache-2.0
"""The verbs on a whole network: which plugins run, in which order, with what; libcni's counterpart.

`Runtime` keeps no state: who calls it remembers the result of ADD and brings it back for CHECK
and DEL. `runtime.node` does that, serialises the calls and survives crashes.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
from msgspec import Raw

from pycni.errors import CniError, IncompatibleVersion, InvalidConfig, UnknownContainer
from pycni.log import Log
from pycni.model import jsonio
from pycni.model.config import NetworkConfigList, PluginConfig, request_config
from pycni.model.deadline import Deadline
from pycni.model.request import Attachment, Request, Verb
from pycni.model.result import Result
from pycni.model.version import CURRENT, GATES, at_least
from pycni.runtime.attachments import AttachmentParams
from pycni.runtime.dispatch import VALID_ATTACHMENTS, fold, guard_netns, text_field
from pycni.runtime.errors import ChainFailed, PluginNotFound, raise_all
from pycni.runtime.executors import CLEANUP_TIMEOUT_S, Executor, ExecutorKind, Executors

log = Log(__name__)

VALIDATED = 256  # networks remembered as valid
LEADING_PATH = re.compile(r"[\w.\[\]/@-]+:")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin of a chain that ran, in the order of running."""

    verb: Verb
    plugin_type: str
    plugin_index: int
    executor: ExecutorKind
    duration_s: float
    error: CniError | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb came to; `skipped` when the network rules it out and nothing ran."""

    steps: tuple[Step, ...] = ()
    skipped: bool = False


class AddOutcome(Outcome, frozen=True, kw_only=True):
    """What an ADD came to; `result` is the last plugin's JSON, in the network's version."""

    result: bytes

    def parse(self) -> Result:
        """The result as a typed value."""
        return Result.parse(self.result)


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What one plugin says of itself on STATUS; no error means it can serve ADD."""

    plugin_type: str
    plugin_index: int
    error: CniError | None = None


class Runtime:
    """Runs the verbs of CNI on networks.

    `cleanup_on_failure`: a failed ADD is followed by a DEL of the whole chain before it returns.
    `continue_on_error`: DEL goes on past a failing plugin and reports every failure; the SPEC,
    and so libcni, stops at the first. `plugin_timeout_s` limits each plugin of a DEL, whose
    caller's own deadline does not count. `keep_capabilities` as in `request_config`.
    """

    def __init__(
        self,
        executors: Executors,
        *,
        cleanup_on_failure: bool = True,
        continue_on_error: bool = True,
        plugin_timeout_s: float = CLEANUP_TIMEOUT_S,
        keep_capabilities: bool = False,
    ) -> None:
        self.executors = executors
        self.path = executors.path
        self.cleanup_on_failure = cleanup_on_failure
        self.continue_on_error = continue_on_error
        self.plugin_timeout_s = plugin_timeout_s
        self._request_config = partial(request_config, keep_capabilities=keep_capabilities)
        self._validated: OrderedDict[bytes, None] = OrderedDict()

    def add(
        self,
        network: NetworkConfigList,
        params: AttachmentParams,
        *,
        deadline: Deadline | None = None,
        cleanup_on_failure: bool | None = None,
        validated: bool = False,
    ) -> AddOutcome:
        """Attach a container: each plugin gets its predecessor's result (SPEC R14, R15).

        `validated` says that `validate_params` has been called.
        """
        if not validated:
            self.validate_params(network, params)
        deadline = deadline or Deadline()
        result: bytes | None = None
        steps: list[Step] = []
        try:
            with self.executors.in_process.staying_in(params.netns, params.netns_fd):
                for index, plugin in enumerate(network.plugins):
                    config = self._config(network, plugin, params, result)
                    result = self._run(Verb.ADD, index, plugin, config, params, deadline, steps)
        except CniError as error:
            error.residue = "UNKNOWN"
            if _default(cleanup_on_failure, self.cleanup_on_failure):
                self._undo_add(network, params, result, error)
            raise
        return AddOutcome(result=result or Result().encode(network.cniVersion), steps=tuple(steps))

    def delete(
        self,
        network: NetworkConfigList,
        params: AttachmentParams,
        *,
        prev_result: bytes | None = None,
        deadline: Deadline | None = None,
        continue_on_error: bool | None = None,
    ) -> Outcome:
        """Detach a container: every plugin in reverse with ADD's final result (SPEC R17).

        Without a `deadline` each plugin has `plugin_timeout_s` for itself.
        """
        params.check_names()
        go_on = _default(continue_on_error, self.continue_on_error)
        steps = self._delete(network, params, prev_result, deadline, go_on)
        _raise_all(Verb.DEL, steps)
        return Outcome(steps=tuple(steps))

    def check(
        self,
        network: NetworkConfigList,
        params: AttachmentParams,
        *,
        prev_result: bytes | None,
        deadline: Deadline | None = None,
    ) -> Outcome:
        """Raise unless the attachment is still as ADD left it (SPEC R18, R19, C4)."""
        # libcni: the version is looked at before disableCheck is.
        if not at_least(network.cniVersion, GATES[Verb.CHECK]):
            raise IncompatibleVersion(
                f'configuration version "{network.cniVersion}" does not support the CHECK command'
            )
        if network.disableCheck:
            return Outcome(skipped=True)
        params.check_names()
        if prev_result is None:
            raise UnknownContainer(
                "CHECK without the result of an ADD",
                f"{params.container_id}/{params.ifname} on {network.name}",
            )
        prev_result = in_version(prev_result, network.cniVersion)
        deadline = deadline or Deadline()
        steps: list[Step] = []
        with self.executors.in_process.staying_in(params.netns, params.netns_fd):
            for index, plugin in enumerate(network.plugins):
                config = self._config(network, plugin, params, prev_result)
                self._run(Verb.CHECK, index, plugin, config, params, deadline, steps)
        return Outcome(steps=tuple(steps))

    def gc(
        self,
        network: NetworkConfigList,
        valid: Collection[Attachment] | None,
        *,
        deadline: Deadline | None = None,
    ) -> Outcome:
        """Have every plugin remove what belongs to no attachment in `valid` (SPEC R20, C5).

        None is not the empty list: the plugins get no list, and those that need one do nothing.
        Networks older than 1.1.0, or with disableGC, have no GC.
        """
        if network.disableGC or not at_least(network.cniVersion, GATES[Verb.GC]):
            return Outcome(skipped=True)
        listed = {} if valid is None else _listed(valid)
        deadline = deadline or Deadline()
        steps: list[Step] = []
        for index, plugin in enumerate(network.plugins):
            with contextlib.suppress(CniError):  # it is in the steps
                config = self._request_config(network, plugin, extra=listed)
                self._run(Verb.GC, index, plugin, config, None, deadline, steps)
        _raise_all(Verb.GC, steps)
        return Outcome(steps=tuple(steps))

    def retire(self, network: NetworkConfigList, valid: Collection[Attachment]) -> None:
        """Have the built-in plugins remove what attachments of a deleted network shared.

        It is a GC, also for networks older than that verb: our own plugins understand it all the
        same, and nobody else's is asked. Failures are logged, for nobody could repeat the call.
        """
        if network.disableGC:
            return
        current = msgspec.structs.replace(network, cniVersion=CURRENT)
        steps: list[Step] = []
        for index, plugin in enumerate(network.plugins):
            try:
                if self.executors.choose(plugin) is not self.executors.in_process:
                    continue
                config = request_config(current, plugin, extra=_listed(valid))
                self._run(Verb.GC, index, plugin, config, None, Deadline(CLEANUP_TIMEOUT_S), steps)
            except CniError as error:
                log.warning("retiring network %s: %s: %s", network.name, plugin.type, error)

    def status(self, network: NetworkConfigList, *, deadline: Deadline | None = None) -> Outcome:
        """Raise the first plugin's reason why ADD could not be served (SPEC R21)."""
        if not at_least(network.cniVersion, GATES[Verb.STATUS]):
            return Outcome(skipped=True)
        deadline = deadline or Deadline()
        steps: list[Step] = []
        for index, plugin in enumerate(network.plugins):
            config = self._request_config(network, plugin)
            self._run(Verb.STATUS, index, plugin, config, None, deadline, steps)
        return Outcome(steps=tuple(steps))

    def conditions(
        self, network: NetworkConfigList, *, deadline: Deadline | None = None
    ) -> tuple[Condition, ...]:
        """What each plugin says of itself; nothing stops at the first that is not well."""
        asked = at_least(network.cniVersion, GATES[Verb.STATUS])
        deadline = deadline or Deadline()
        steps: list[Step] = []
        for index, plugin in enumerate(network.plugins if asked else ()):
            with contextlib.suppress(CniError):  # it is in the steps
                config = self._request_config(network, plugin)
                self._run(Verb.STATUS, index, plugin, config, None, deadline, steps)
        return tuple(
            Condition(plugin_type=s.plugin_type, plugin_index=s.plugin_index, error=s.error)
            for s in steps
        )

    def validate(self, network: NetworkConfigList) -> frozenset[str]:
        """The capabilities the network declares, if it has no faults (SPEC C10, L13)."""
        key = network.resolved
        if key not in self._validated:
            faults = self.find_faults(network)
            if faults:
                raise faults[0] if len(faults) == 1 else ChainFailed("validation", faults)
            self._validated[key] = None
            while len(self._validated) > VALIDATED:
                self._validated.popitem(last=False)
        return network.capabilities

    def find_faults(self, network: NetworkConfigList) -> list[CniError]:
        """What is wrong with the network, at most one fault for each plugin: that it and its
        delegate exist, support the version, and accept the configuration."""
        if not network.plugins:
            return [InvalidConfig(f'network "{network.name}": no plugin configs found')]
        faults: list[CniError] = []
        for index, plugin in enumerate(network.plugins):
            try:
                self._validate_plugin(network, index, plugin, request_config(network, plugin))
            except CniError as error:
                faults.append(error)
        return faults

    def forget_validated(self) -> None:
        """Validate every network anew from now on: plugins have come or gone."""
        self._validated.clear()

    def validate_params(self, network: NetworkConfigList, params: AttachmentParams) -> None:
        """Raise every fault of an ADD that can be told before the kernel is touched."""
        with _leaving_nothing():
            params.check_names()
            # Before the first plugin: other people's act before they look (plugins #714).
            guard_netns(_request(Verb.ADD, b"", params, ()), self.executors.in_process.host)
            self.validate(network)
            given = params.capability_args
            for index, plugin in enumerate(network.plugins if given else ()):
                if any(plugin.capabilities.get(name) for name in given):
                    config = request_config(network, plugin, runtime_config=given)
                    self._validate_plugin(network, index, plugin, config)

    def _validate_plugin(
        self, network: NetworkConfigList, index: int, plugin: PluginConfig, config: bytes
    ) -> None:
        with _placed(None, index, plugin), _at(f"plugins[{index}]"):
            executor = self.executors.choose(plugin)
            delegates = executor.validate(plugin.type, config)
            _expect_version(executor, plugin.type, network.cniVersion)
            for delegate in delegates:
                self.executors.validate(delegate, config)
                _expect_version(self.executors, delegate, network.cniVersion)

    def _undo_add(
        self,
        network: NetworkConfigList,
        params: AttachmentParams,
        result: bytes | None,
        error: CniError,
    ) -> None:
        """DEL the whole chain, on time of our own; say on `error` whether anything is left."""
        steps = self._delete(network, params, result, None, continue_on_error=True)
        failures = [step.error for step in steps if step.error is not None]
        for failure in failures:
            error.add_note(f"clean-up: {failure.plugin_type}: {failure}")
        if not failures:
            error.residue = "NONE"

    def _delete(
        self,
        network: NetworkConfigList,
        params: AttachmentParams,
        prev_result: bytes | None,
        deadline: Deadline | None,
        continue_on_error: bool,
    ) -> list[Step]:
        prev_result = _for_delete(network, prev_result)
        steps: list[Step] = []
        for index, plugin in reversed(list(enumerate(network.plugins))):
            try:
                config = self._config(network, plugin, params, prev_result)
                limit = deadline or Deadline(self.plugin_timeout_s)
                self._run(Verb.DEL, index, plugin, config, params, limit, steps)
            except CniError:
                if not continue_on_error:
                    break
        return steps

    def _config(
        self,
        network: NetworkConfigList,
        plugin: PluginConfig,
        params: AttachmentParams,
        prev_result: bytes | None,
    ) -> bytes:
        given: Mapping[str, Raw] = params.capability_args
        return self._request_config(network, plugin, prev_result=prev_result, runtime_config=given)

    def _run(
        self,
        verb: Verb,
        index: int,
        plugin: PluginConfig,
        config: bytes,
        params: AttachmentParams | None,
        deadline: Deadline,
        steps: list[Step],
    ) -> bytes:
        """Run one plugin; what came of it is appended to `steps`, also if it is an error."""
        request = _request(verb, config, params, self.path)
        started = time.monotonic()
        failure: CniError | None = None
        executor: ExecutorKind = "unknown"
        try:
            with _placed(verb, index, plugin):
                runner = self.executors.choose(plugin)
                executor = runner.kind
                if verb is Verb.STATUS and executor == "exec":
                    # One that is older than the verb would complain of what STATUS does not give.
                    _expect_version(runner, plugin.type, _version_of(config))
                return runner.run(plugin.type, request, deadline)
        except CniError as error:
            failure = error
            raise
        finally:
            steps.append(
                Step(
                    verb=verb,
                    plugin_type=str(plugin.type),
                    plugin_index=index,
                    executor=executor,
                    duration_s=time.monotonic() - started,
                    error=failure,
                )
            )


def _expect_version(executor: Executor | Executors, plugin_type: str, version: str) -> None:
    supported = executor.versions(plugin_type)
    if version not in supported:
        raise IncompatibleVersion(
            f'plugin {plugin_type} does not support config version "{version}"',
            f"it supports {', '.join(supported) or 'no version'}",
        )


def _version_of(config: bytes) -> str:
    return text_field(fold(jsonio.decode_raw_object(config)), "cniVersion")


def _listed(valid: Collection[Attachment]) -> dict[str, Raw]:
    entries = jsonio.encode(sorted(valid, key=lambda a: (a.container_id, a.ifname)))
    return {key: Raw(entries) for key in VALID_ATTACHMENTS}


def _request(
    verb: Verb, config: bytes, params: AttachmentParams | None, path: tuple[str, ...]
) -> Request:
    if params is None:
        return Request(verb=verb, path=path, config=config)
    return Request(
        verb=verb,
        container_id=params.container_id,
        netns=params.netns,
        ifname=params.ifname,
        args=params.args,
        path=path,
        config=config,
        netns_fd=params.netns_fd,
        netns_override=params.netns_override,
    )


def _default(given: bool | None, otherwise: bool) -> bool:
    return otherwise if given is None else given


class _ResultHead(msgspec.Struct, frozen=True):
    cniVersion: str = ""


_HEAD = msgspec.json.Decoder(_ResultHead)


def in_version(result: bytes, version: str) -> bytes:
    """A stored result in the configuration's version (SPEC L9); itself if it is that already."""
    try:
        if _HEAD.decode(result).cniVersion == version:
            return result
    except msgspec.DecodeError:
        pass  # the strict reading below says what is wrong
    return Result.parse(result, default_version=version).encode(version)


def _for_delete(network: NetworkConfigList, prev_result: bytes | None) -> bytes | None:
    """The result DEL gives to the plugins: none before 0.4.0, none that cannot be read."""
    if prev_result is None or not at_least(network.cniVersion, "0.4.0"):
        return None
    try:
        return in_version(prev_result, network.cniVersion)
    except CniError as error:
        # libcni #1171: an unusable cached result must not keep a container from being deleted.
        log.warning("network %s: DEL without prevResult: %s", network.name, error)
        return None


def _raise_all(verb: Verb, steps: Sequence[Step]) -> None:
    raise_all(verb, [step.error for step in steps if step.error is not None])


@contextmanager
def _leaving_nothing() -> Iterator[None]:
    """Say on a passing error that nothing was done yet."""
    try:
        yield
    except CniError as error:
        error.residue = "NONE"
        raise


@contextmanager
def _placed(verb: Verb | None, index: int, plugin: PluginConfig) -> Iterator[None]:
    """Write on a passing error which plugin of the chain it came from."""
    try:
        yield
    except CniError as error:
        if error.plugin_index is None:
            error.plugin_index = index
            error.plugin_type = str(plugin.type)
            error.verb = verb
        raise


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Put `where` before the path of a configuration fault, to make it one of the whole list."""
    try:
        yield
    except PluginNotFound as error:
        error.add_note(f"while reading {where}")
        raise
    except InvalidConfig as error:
        joint = "." if LEADING_PATH.match(error.msg) else ": "
        error.msg = f"{where}{joint}{error.msg}"
        error.args = (error.msg,)
        raise
