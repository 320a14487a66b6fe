"""Measures the windows of a campaign that are missing, one after another; a window that fails is noted, not fatal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import optimized
from spantrace.campaign.plan import BUILT_IN, Arm
from spantrace.campaign.store import Store, Window
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.journal import Journal, journal_path
from spantrace.recording import Header, Recording
from spantrace.vllm_adapter.launch import installed_version

MOST_FAILURES_IN_A_ROW = 3
_VARIES = frozenset({"batch"})
"""What a recording's configuration says of its load."""
Configuration = Callable[[Recording], Mapping[str, Any]]
"""What must be equal in two recordings of one thing."""


@dataclass(frozen=True)
class Measured:
    """What a window gave beside its recording: figures of its load, what to doubt in it, and who else was at work.

    `others` is the share of the CPUs that other processes used while it was recorded.
    """

    load: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    others: float = 0.0


class Target(Protocol):
    """What a campaign measures, with all that it started while it is entered."""

    def seconds(self, windows: Sequence[Window]) -> float:
        """About how long these windows will take."""

    def code(self, arm: Arm) -> str:
        """The hash of the code that the arm runs."""

    def measure(self, arm: Arm, journal: Journal) -> Measured:
        """Record one window of the arm into the journal.

        SpantraceError where that fails, `Gone` where no later window can succeed either.
        """


class Gone(SpantraceError):
    """No later window can succeed either, so the campaign ends; what is finished is kept."""


def run(
    store: Store,
    target: Target,
    new_header: Callable[[], Header],
    configuration: Configuration,
    tell: Callable[[str], None],
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Measure every missing window; failures are told and noted, and three in a row end the campaign.

    Raises SpantraceError where finished windows ran other code than would run now, or in another `configuration`.
    """
    codes = {arm.name: target.code(arm) for arm in store.plan.arms}
    _same_code(store, codes)
    alike = _Alike(store, configuration)
    store.create()
    in_a_row = 0
    for window in store.missing():
        progress(len(store.done()))
        try:
            about = {"plan": store.plan.hash, "arm": window.arm.name, "window": window.number}
            header = {**new_header(), "campaign": {**about, "code": codes[window.arm.name]}}
            _window(store, window, target, header, alike)
            in_a_row = 0
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; {_kept(store)}, spantrace ab {store.directory} goes on") from None
        except Exception as error:
            in_a_row += 1
            why = _sentence(error)
            store.failed(window, why)
            tell(f"window {window.number} of {len(store.windows)} ({window.arm.name}) failed: {why}")
            if isinstance(error, Gone) or in_a_row == MOST_FAILURES_IN_A_ROW:
                times = "" if isinstance(error, Gone) else f"{in_a_row} windows in a row failed: "
                ended = f"the campaign stopped because {times}{why}"
                raise SpantraceError(
                    f"{ended}; {_kept(store)}, spantrace ab {store.directory} goes on", EXIT_NOT_COMPARABLE
                ) from error
    progress(len(store.done()))


def _window(store: Store, window: Window, target: Target, header: Header, alike: _Alike) -> None:
    path = store.path(window)
    store.started(window)
    begun = time.monotonic()
    try:
        with Journal(path, header, force=True, kept=False) as journal:
            measured = target.measure(window.arm, journal)
            recording = journal.finish()
        if not len(recording.cycles):
            raise SpantraceError("no whole cycle was recorded")
        alike.check(window, recording)
    except BaseException as error:
        for left in (path, journal_path(path)):
            with suppress(OSError):
                left.unlink()
        if isinstance(error, KeyboardInterrupt):
            store.stopped(window)
        raise
    seconds, code = round(time.monotonic() - begun, 3), header["campaign"]["code"]
    store.finished(window, {"code": code, "cycles": len(recording.cycles), "seconds": seconds, **asdict(measured)})


class _Alike:
    """The configuration of the first window of each kind of arm, which all later ones must have."""

    def __init__(self, store: Store, configuration: Configuration) -> None:
        self._store, self._configuration = store, configuration
        self._first: dict[tuple[str, ...], tuple[int, Mapping[str, Any]]] = {}
        for number in store.done():
            if (kind := self._kind(store.windows[number - 1].arm)) not in self._first:
                self._first[kind] = number, configuration(store.recording(number))

    def check(self, window: Window, recording: Recording) -> None:
        """`Gone` where what was measured is not what was measured before."""
        now = self._configuration(recording)
        number, then = self._first.setdefault(self._kind(window.arm), (window.number, now))
        for key in dict.fromkeys([*then, *now]):
            if key not in _VARIES and then.get(key) != now.get(key):
                said = f"{key} is {now.get(key)} now and was {then.get(key)} in window {number}"
                raise Gone(f"{said}; make it that again, or start another campaign (-o)")

    def _kind(self, arm: Arm) -> tuple[str, ...]:
        """The same for arms that differ by live switches alone; others may run in a configuration of their own."""
        switched = self._store.plan.switched(arm)
        vllm = None if self._store.plan.target == BUILT_IN else installed_version()
        started_with = [name for name in switched if not optimized.discover()[name].is_live(vllm)]
        return (arm.name if arm.restarts else "", *started_with)


def _kept(store: Store) -> str:
    return f"{len(store.done())} of {len(store.windows)} windows are kept"


def _same_code(store: Store, codes: dict[str, str]) -> None:
    for number, entry in store.done().items():
        if entry["code"] != codes[entry["arm"]]:
            raise SpantraceError(
                f"the code has changed since window {number} of {store.directory} was measured "
                f"({entry['code'][:6]} then, {codes[entry['arm']][:6]} now); start another campaign (-o)"
            )


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, SpantraceError) else f"{type(error).__name__}: {text[:200]}"
