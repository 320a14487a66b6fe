"""Measures the windows of a campaign that are missing, one after another; a window that fails is noted, not fatal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Protocol

from spantrace.campaign.contention import Neighbours
from spantrace.campaign.plan import Arm
from spantrace.campaign.store import Store, Window
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.journal import Journal, journal_path
from spantrace.recording import Header

MOST_FAILURES_IN_A_ROW = 3


@dataclass(frozen=True)
class Measured:
    """What a window gave beside its recording: figures of its load, and what to doubt in it."""

    load: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


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

    def processes(self) -> list[int]:
        """Those that belong to the measurement and are not children of this one."""


class Gone(SpantraceError):
    """The target will not come back, so the campaign ends; what is finished is kept."""


def run(
    store: Store,
    target: Target,
    new_header: Callable[[], Header],
    tell: Callable[[str], None],
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Measure every missing window; failures are told and noted, and three in a row end the campaign.

    Raises SpantraceError where finished windows ran other code than would run now.
    """
    codes = {arm.name: target.code(arm) for arm in store.plan.arms}
    _same_code(store, codes)
    in_a_row = 0
    for window in store.missing():
        progress(len(store.done()))
        try:
            _window(store, window, target, new_header(), codes[window.arm.name])
            in_a_row = 0
        except KeyboardInterrupt:
            tell(f"stopped; {_kept(store)}, spantrace ab {store.directory} goes on")
            raise
        except Exception as error:
            in_a_row += 1
            why = _sentence(error)
            store.failed(window, why)
            tell(f"window {window.number} of {len(store.windows)} ({window.arm.name}) failed: {why}")
            if isinstance(error, Gone) or in_a_row == MOST_FAILURES_IN_A_ROW:
                gone = "its target is gone" if isinstance(error, Gone) else f"{in_a_row} windows in a row failed"
                ended = f"the campaign stopped because {gone}: {why}"
                raise SpantraceError(
                    f"{ended}; {_kept(store)}, spantrace ab {store.directory} goes on", EXIT_NOT_COMPARABLE
                ) from error
    progress(len(store.done()))


def _window(store: Store, window: Window, target: Target, header: Header, code: str) -> None:
    path = store.path(window)
    about = {"plan": store.plan.hash, "arm": window.arm.name, "window": window.number, "code": code}
    store.started(window)
    begun, neighbours = time.monotonic(), Neighbours(target.processes)
    try:
        with Journal(path, {**header, "campaign": about}) as journal:
            measured = target.measure(window.arm, journal)
            others = neighbours.share()
            cycles = len(journal.finish().cycles)
        if not cycles:
            raise SpantraceError("no whole cycle was recorded")
    except BaseException as error:
        for left in (path, journal_path(path)):
            with suppress(OSError):
                left.unlink()
        if isinstance(error, KeyboardInterrupt):
            store.stopped(window)
        raise
    seconds = round(time.monotonic() - begun, 3)
    store.finished(window, {"code": code, "cycles": cycles, "seconds": seconds, "others": others, **asdict(measured)})


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
