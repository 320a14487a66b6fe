"""The directory of a campaign: its plan, one recording per finished window, and a log that is only appended to.

plan.json             the plan
gates.toml            the gates, where there are any
log.jsonl             created, with the hashes; each window started and done, failed or stopped; what a running server
                      had on before it was switched, and that it was put back
001-stock.spantrace   the recording of window 1
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spantrace.campaign.log import (
    CREATED,
    DONE,
    FAILED,
    OF_A_WINDOW,
    RESTORED,
    STARTED,
    STOPPED,
    SWITCHED,
    Entry,
    Log,
)
from spantrace.campaign.parsing import read
from spantrace.campaign.plan import Arm, Plan
from spantrace.errors import SpantraceError
from spantrace.loading import load
from spantrace.ranks import of_chosen
from spantrace.recording import Recording

PLAN, GATES, LOG = "plan.json", "gates.toml", "log.jsonl"
CUT_OFF = "the campaign was killed while it ran"
_LONGEST_LABEL = 100


@dataclass(frozen=True)
class Window:
    """The window `number`, counted from 1, and the arm whose turn it is."""

    number: int
    arm: Arm

    @property
    def label(self) -> str:
        """What its file is called."""
        name = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in self.arm.name)
        return f"{self.number:03d}-{name.encode()[:_LONGEST_LABEL].decode(errors='ignore')}"


@dataclass(frozen=True)
class Failure:
    """A window that was tried and gave no recording, when and why."""

    window: int
    arm: str
    at: str
    why: str


class Store:
    """A campaign's directory; what is there is read at once, and must be of the same plan.

    To add to it, enter it: it is held by one process at a time. A new one to which nothing is added leaves nothing.
    """

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.windows = [Window(number, arm) for number, arm in enumerate(plan.turns(), start=1)]
        self._new = False
        self._log = Log(directory / LOG)
        self._check()

    def __enter__(self) -> Store:
        """Lock the directory, and note what was cut off by the death of its last process."""
        try:
            self._new = not self.directory.exists()
            self.directory.mkdir(parents=True, exist_ok=True)
            self._log.open()
            self._check()
            self._close_started()
        except OSError as error:
            self.__exit__()
            raise SpantraceError(f"cannot keep a campaign in {self.directory}: {error.strerror}") from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        if self._new and not self._entries:
            with suppress(OSError):
                self.directory.rmdir()

    @property
    def _entries(self) -> list[Entry]:
        return self._log.entries

    def create(self) -> None:
        """Write down the plan and, before anything is measured, the gates and their hash, where that is not done."""
        if self._entries:
            return
        try:
            (self.directory / PLAN).write_text(self.plan.text())
            if self.plan.gates:
                (self.directory / GATES).write_text(self.plan.gates)
        except OSError as error:
            raise SpantraceError(f"cannot keep a campaign in {self.directory}: {error.strerror}") from error
        self._log.append(CREATED, plan=self.plan.hash, gates=hash_of(self.plan.gates))

    def missing(self) -> list[Window]:
        """The windows that have no recording yet, in order."""
        done = self.done()
        return [window for window in self.windows if window.number not in done]

    def done(self) -> dict[int, Entry]:
        """What the log says of each finished window whose recording is there."""
        finished = {entry["window"]: entry for entry in self._entries if entry["event"] == DONE}
        return {number: finished[number] for number in sorted(finished) if self.path(self._window(number)).exists()}

    def failures(self) -> list[Failure]:
        """Every try that failed, also where a later one succeeded."""
        failed = (entry for entry in self._entries if entry["event"] == FAILED)
        return [Failure(entry["window"], entry["arm"], entry["at"], entry["why"]) for entry in failed]

    def created(self) -> Entry:
        """The log's first entry: when the campaign was made, and the hashes of its plan and gates."""
        return self._entries[0]

    def first_started(self) -> str:
        """When the first window began, empty before it."""
        return next((str(entry["at"]) for entry in self._entries if entry["event"] == STARTED), "")

    def seconds_a_window(self) -> float | None:
        """How long a finished window took on average, None where there is none."""
        took = [float(entry["seconds"]) for entry in self.done().values()]
        return sum(took) / len(took) if took else None

    def path(self, window: Window) -> Path:
        """Where a window's recording lies."""
        return self.directory / f"{window.label}.spantrace"

    def recording(self, number: int) -> Recording:
        """That of a finished window, of its slowest rank.

        SpantraceError where the file is not what this campaign recorded in it.
        """
        window = self._window(number)
        path = self.path(window)
        found = load(path)
        about = {"plan": self.plan.hash, "arm": window.arm.name, "window": number, "code": self.done()[number]["code"]}
        if found.header.get("campaign") != about:
            raise SpantraceError(
                f"{path} is not the recording of window {number} of this campaign; put that one back, or delete the "
                "file, and the window is measured again"
            )
        return of_chosen(found)

    def started(self, window: Window) -> None:
        """Note that a window is about to be measured."""
        self._write(STARTED, window)

    def finished(self, window: Window, result: Mapping[str, Any]) -> None:
        """Note what a window gave beside its recording, which is there by now."""
        self._write(DONE, window, **result)

    def failed(self, window: Window, why: str) -> None:
        """Note why a window gave no recording."""
        self._write(FAILED, window, why=why)

    def stopped(self, window: Window) -> None:
        """Note that a person ended the campaign within a window, which is no failure of the arm."""
        self._write(STOPPED, window)

    def switched(self, server: int, on: list[str]) -> None:
        """Note what was on in a server, named by its root process, before it is switched for the first time."""
        self._log.append(SWITCHED, server=server, on=on)

    def restored(self) -> None:
        """Note that the server has on what it had before."""
        self._log.append(RESTORED)

    def left(self, server: int) -> list[str] | None:
        """What has to be put on in a server that a killed campaign left; None where nothing has, or others hold it."""
        noted = [entry for entry in self._entries if entry["event"] in (SWITCHED, RESTORED)]
        if not self._log.opened or not noted or noted[-1].get("server") != server:
            return None
        return [str(name) for name in noted[-1]["on"]]

    def _window(self, number: int) -> Window:
        return self.windows[number - 1]

    def _check(self) -> None:
        """SpantraceError where the directory belongs to another plan or to other gates, or its log to neither."""
        if not self._entries:
            return
        created = self._entries[0]
        if created["gates"] != hash_of(self.plan.gates):
            raise SpantraceError(
                f"the gates of {self.directory} were written down before its first window and are others now; "
                "put them back, or start another campaign (-o)"
            )
        if created["plan"] != self.plan.hash:
            raise SpantraceError(
                f"{self.directory} holds a campaign of plan {created['plan'][:6]}, this is "
                f"{self.plan.hash[:6]}; choose another directory (-o)"
            )
        arms = {window.number: window.arm.name for window in self.windows}
        for entry in self._entries:
            if entry["event"] in OF_A_WINDOW and arms.get(entry["window"]) != entry["arm"]:
                raise self._log.damaged(f"the plan has no window {entry['window']} of {entry['arm']!r}")

    def _close_started(self) -> None:
        """A window that was started and neither finished nor failed was cut off by the death of its process."""
        last = next((entry for entry in reversed(self._entries) if entry["event"] in OF_A_WINDOW), None)
        if last and last["event"] == STARTED:
            self.failed(self._window(last["window"]), CUT_OFF)

    def _write(self, event: str, window: Window, **more: Any) -> None:
        self._log.append(event, window=window.number, arm=window.arm.name, **more)


def hash_of(text: str) -> str:
    """The sha256 of a text, empty for an empty one."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def plan_of(directory: Path) -> Plan:
    """The plan of the campaign in a directory."""
    path = directory / PLAN
    try:
        return read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpantraceError(f"{directory} holds no campaign ({PLAN}: {error.strerror})") from error
    except (ValueError, SpantraceError) as error:
        raise SpantraceError(f"{path} is damaged ({error}); start another campaign (-o)") from error
