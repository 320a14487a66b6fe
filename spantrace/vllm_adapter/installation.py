"""Turns hook declarations into patches of the running vLLM, and keeps the list of sites that rows refer to."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from spantrace.patching import Change, CodePatch, Patch, PatchSet, own_function, plan
from spantrace.recorder import Recorder, Site
from spantrace.spans import DETAIL, GraphMode
from spantrace.vllm_adapter.description import runner_version
from spantrace.vllm_adapter.hooks import MODEL_HOOKS, WAIT_EVENTS, Hook, ModelHook
from spantrace.vllm_adapter.probes import Probes


class Installation:
    """The hooks of one recording in this process: planned, installed together, removed together."""

    def __init__(self, recorder: Recorder, probes: Probes) -> None:
        self._recorder, self._probes = recorder, probes
        self._patches, self._detail = PatchSet(), PatchSet()
        self._detailed = True
        self._lock = threading.Lock()
        self._closed = self._runner_hooked = False
        self.sites: list[tuple[str, str | None]] = []
        self.graphs: dict[str, int] = {}
        self.missing: list[str] = []

    def plan(self, hooks: Iterable[Hook]) -> None:
        """Plan each hook whose module this process has loaded; what the module lacks is listed as missing."""
        for hook in hooks:
            module_name, _, path = hook.target.partition(":")
            module = sys.modules.get(module_name)
            if module is None:
                continue
            try:
                *parents, name = path.split(".")
                owner = module
                for parent in parents:
                    owner = getattr(owner, parent)
                patches = self._detail if hook.span in DETAIL else self._patches
                patches.add(self._patch(hook, owner, name, hook.target))
            except (AttributeError, TypeError, ValueError):
                self.missing.append(hook.target)

    def install(self) -> None:
        """Put every planned hook into force, or none."""
        self._patches.install()
        try:
            if self._detailed:
                self._detail.install()
        except Exception:
            self._patches.revert()
            raise

    def suspend(self) -> None:
        """Take every hook out of force until the next `install`."""
        with self._lock:
            self._revert()

    def detail(self, on: bool) -> bool:
        """Put the hooks of `DETAIL` into force or out of it; on the worker's thread, so that it rather gives up."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if on and not self._closed:
                self._detail.install()
            elif not on:
                self._detail.revert()
            self._detailed = on
        finally:
            self._lock.release()
        return True

    def hook_runner(self, runner: Any) -> None:
        """Hook what only a live runner shows: its models' methods and the events that it waits for inline.

        Called on the worker's thread too, where it gives up rather than wait for a recording that is ending.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._closed and not self._runner_hooked:
                self._runner_hooked = True
                for patch in self._runner_patches(runner):
                    self._patches.add(patch)
        finally:
            self._lock.release()

    def abandon_lock(self) -> None:
        """After a fork: whoever held the lock is not in the child."""
        self._lock = threading.Lock()

    def remove(self) -> None:
        """Put every original back; a second call does nothing."""
        with self._lock:
            self._closed = True
            self._revert()
        for conflict in self._patches.conflicts + self._detail.conflicts:
            self._recorder.failed(RuntimeError(f"somebody patched over {conflict}; it was left as it is"))
        self._patches.conflicts, self._detail.conflicts = [], []

    def _revert(self) -> None:
        self._detail.revert()
        self._patches.revert()

    def _patch(self, hook: Hook | ModelHook, owner: Any, name: str, label: str) -> Change:
        probe = getattr(hook, "probe", None)
        row = None if hook.span is None else len(self.sites)
        delays, before = self._recorder.delays, getattr(self._probes, f"{probe}_before", None) if probe else None
        site = Site(
            name="target.input_prep" if probe == "execute" else hook.span or label,
            row=row,
            gpu=hook.gpu,
            follows=hook.follows,
            threaded=getattr(hook, "threaded", False),
            before=delays.enter_draft if delays and hook.span == "draft.propose" else before,
            after=getattr(self._probes, f"{probe}_after", None) if probe else None,
            in_draft=hook.in_draft,
        )
        patch = self._change(owner, name, site, isinstance(hook, Hook))
        if hook.graph is not None:
            self.graphs[str(len(self.sites))] = int(GraphMode[hook.graph])
        if hook.span is not None:
            self.sites.append((hook.span, hook.in_draft))
        return patch

    def _change(self, owner: Any, name: str, site: Site, rewritable: bool) -> Change:
        """New code for the function where it is a class's own; what torch.compile may have traced is left alone."""
        if rewritable and (function := own_function(owner, name)) is not None:
            return CodePatch(function, function.__code__, self._recorder.rewrite(function, site))
        return plan(owner, name, lambda function: self._recorder.wrap(function, site))

    def _runner_patches(self, runner: Any) -> Iterable[Change]:
        version = runner_version(runner)
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        models = {"target": getattr(runner, "model", None), "drafter": getattr(drafter, "model", None)}
        hooked: set[tuple[type, str]] = set()
        for hook in MODEL_HOOKS:
            found = method_owner(models[hook.owner], hook.method)
            if hook.runner in (None, version) and found and found not in hooked:
                hooked.add(found)
                yield self._patch(hook, *found, f"{found[0].__qualname__}.{found[1]}")
        for name in WAIT_EVENTS:
            event = vars(runner).get(name) if version == "V1" else None
            if event is not None:
                yield Patch(runner, name, event, self._waited(event))

    def _waited(self, event: Any) -> WaitedEvent:
        row = len(self.sites)
        self.sites.append(("output.wait", None))

        def synchronize() -> None:
            event.synchronize()

        return WaitedEvent(event, self._recorder.wrap(synchronize, Site("output.wait", row)))


class WaitedEvent:
    """Stands in for an event of the runner; its `synchronize` is recorded as a wait."""

    def __init__(self, event: Any, synchronize: Callable[[], None]) -> None:
        self._event = event
        self.synchronize = synchronize

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)


def method_owner(model: Any, method: str) -> tuple[type, str] | None:
    """The class of a module's own that defines `method`, with its name there; None where it has none.

    "call" is `__call__` where a class above torch.nn.Module defines one (torch.compile's decorator does), else
    `forward`.
    """
    own = itertools.takewhile(lambda base: not base.__module__.startswith("torch."), type(model).__mro__)
    names = ("__call__", "forward") if method == "call" else (method,)
    return next(((base, name) for name, base in itertools.product(names, own) if name in vars(base)), None)
