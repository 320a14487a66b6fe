"""Turns hook declarations into patches of the running vLLM, and keeps the list of sites that rows refer to."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from spantrace.patching import Change, CodePatch, Patch, PatchSet, own_function, plan
from spantrace.recorder import Recorder, Site
from spantrace.spans import GraphMode
from spantrace.vllm_adapter import marked_graphs
from spantrace.vllm_adapter.description import runner_version
from spantrace.vllm_adapter.hooks import MODEL_HOOKS, WAIT_EVENTS, Hook, ModelHook
from spantrace.vllm_adapter.probes import Probes
from spantrace.wrapping import Flag


class Installation:
    """The hooks of one recording in this process: planned, installed together, removed together.

    Those that only cycles in detail need are taken out of force and put back by `detail`. Where that took the setting
    of a class attribute, which makes Python run all that touches the class unspecialised for a while, the hook stays
    where it is and looks at a flag.
    """

    def __init__(self, recorder: Recorder, probes: Probes) -> None:
        self._recorder, self._probes = recorder, probes
        self._always, self._detail = PatchSet(), PatchSet()
        self._detailed = Flag([True])
        self._lock = threading.Lock()
        self._in_force = self._closed = self._runner_hooked = False
        self.sites: list[tuple[str, str | None]] = []
        self.graphs: dict[str, int] = {}
        self.missing: list[str] = []

    def plan(self, hooks: Iterable[Hook]) -> None:
        """Plan each hook whose module this process has loaded, and graphs with marks where they were captured.

        What a module lacks is listed as missing.
        """
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
                self._add(hook, owner, name, hook.target)
            except (AttributeError, TypeError, ValueError):
                self.missing.append(hook.target)
        clock = self._recorder.gpu
        if clock and (read := marked_graphs.times(clock)):
            clock.graphs = read
            for change in marked_graphs.replays(read):
                self._always.add(change)

    def install(self) -> None:
        """Put every planned hook into force, or none."""
        with self._lock:
            self._always.restore()
            try:
                if self._detailed:
                    self._detail.restore()
            except Exception:
                self._always.revert()
                raise
            self._in_force = True

    def suspend(self) -> None:
        """Take every hook out of force until the next `install`."""
        with self._lock:
            self._revert()

    def detail(self, on: bool) -> bool:
        """Have the hooks in force that only cycles in detail need, or not; whether they are.

        Called on the worker's thread as a cycle begins, so that it rather gives up than waits.
        """
        if on is bool(self._detailed) or not self._lock.acquire(blocking=False):
            return bool(self._detailed)
        try:
            if on:
                if self._in_force:
                    self._detail.restore()
                self._detailed.append(True)
            else:
                self._detail.revert()
                self._detailed.clear()
        finally:
            self._lock.release()
        return on

    def hook_runner(self, runner: Any) -> None:
        """Hook what only a live runner shows: its models' methods and the events that it waits for inline.

        Called on the worker's thread too, where it gives up rather than wait for a recording that is ending.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._closed and not self._runner_hooked:
                self._runner_hooked = True
                self._add_runner(runner)
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
        for conflict in self._always.conflicts + self._detail.conflicts:
            self._recorder.failed(RuntimeError(f"somebody patched over {conflict}; it was left as it is"))
        self._always.conflicts, self._detail.conflicts = [], []

    def _revert(self) -> None:
        self._in_force = False
        self._detail.revert()
        self._always.revert()

    def _add(self, hook: Hook | ModelHook, owner: Any, name: str, label: str) -> None:
        """Plan one hook: new code for a class's own function, but not where torch.compile may have traced it."""
        probe, always = getattr(hook, "probe", None), getattr(hook, "always", False)
        function = own_function(owner, name) if isinstance(hook, Hook) else None
        stays = function is None and isinstance(owner, type) and not always
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
            when=self._detailed if stays else None,
        )
        if function is None:
            change: Change = plan(owner, name, lambda found: self._recorder.wrap(found, site))
        else:
            change = CodePatch(function, function.__code__, self._recorder.rewrite(function, site))
        if hook.graph is not None:
            self.graphs[str(len(self.sites))] = int(GraphMode[hook.graph])
        if hook.span is not None:
            self.sites.append((hook.span, hook.in_draft))
        (self._always if always or stays else self._detail).add(change)

    def _add_runner(self, runner: Any) -> None:
        version = runner_version(runner)
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        models = {"target": getattr(runner, "model", None), "drafter": getattr(drafter, "model", None)}
        hooked: set[tuple[type, str]] = set()
        for hook in MODEL_HOOKS:
            found = method_owner(models[hook.owner], hook.method)
            if hook.runner in (None, version) and found and found not in hooked:
                hooked.add(found)
                self._add(hook, *found, f"{found[0].__qualname__}.{found[1]}")
        for name in WAIT_EVENTS:
            event = vars(runner).get(name) if version == "V1" else None
            if event is not None:
                self._detail.add(Patch(runner, name, event, self._waited(event)))

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
