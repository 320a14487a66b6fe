"""The directory of a campaign: its plan, one recording per finished window, and a log that is only appended to.

plan.json             the plan
gates.toml            the gates, where there are any
log.jsonl             created, with the hashes, then each window started and done, failed or stopped
001-stock.spantrace   the recording of window 1
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from spantrace.campaign.plan import Arm, Plan, read
from spantrace.errors import SpantraceError

PLAN, GATES, LOG = "plan.json", "gates.toml", "log.jsonl"
CUT_OFF = "the campaign was killed while it ran"
Entry = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """The window `number`, counted from 1, and the arm whose turn it is."""

    number: int
    arm: Arm

    @property
    def label(self) -> str:
        """What its file is called."""
        name = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in self.arm.name)
        return f"{self.number:03d}-{name}"


@dataclass(frozen=True)
class Failure:
    """A window that was tried and gave no recording, when and why."""

    window: int
    arm: str
    at: str
    why: str


class Store:
    """A campaign's directory; what is there is read at once, and must be of the same plan.

    To add to it, enter it: it is created where it is new, and held by one process at a time.
    """

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.windows = [Window(number, arm) for number, arm in enumerate(plan.turns(), start=1)]
        self._log: IO[str] | None = None
        self._entries = self._read()

    def __enter__(self) -> Store:
        """Lock the directory; a new one gets the plan and, before anything is measured, the gates and their hash."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._log = (self.directory / LOG).open("a")
            self._lock(self._log)
            self._entries = self._read(mend=True)
            if not self._entries:
                self._create()
            self._close_started()
        except OSError as error:
            self.__exit__()
            raise SpantraceError(f"cannot keep a campaign in {self.directory}: {error.strerror}") from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._log:
            self._log.close()

    def missing(self) -> list[Window]:
        """The windows that have no recording yet, in order."""
        done = self.done()
        return [window for window in self.windows if window.number not in done]

    def done(self) -> dict[int, Entry]:
        """What the log says of each finished window whose recording is there."""
        finished = {entry["window"]: entry for entry in self._entries if entry["event"] == "done"}
        return {number: finished[number] for number in sorted(finished) if self.path(self._window(number)).exists()}

    def failures(self) -> list[Failure]:
        """Every try that failed, also where a later one succeeded."""
        failed = (entry for entry in self._entries if entry["event"] == "failed")
        return [Failure(entry["window"], entry["arm"], entry["at"], entry["why"]) for entry in failed]

    def created(self) -> Entry:
        """The log's first entry: when the campaign was made, and the hashes of its plan and gates."""
        return self._entries[0]

    def first_started(self) -> str:
        """When the first window began, empty before it."""
        return next((str(entry["at"]) for entry in self._entries if entry["event"] == "started"), "")

    def seconds_a_window(self) -> float | None:
        """How long a finished window took on average, None where there is none."""
        took = [float(entry["seconds"]) for entry in self.done().values()]
        return sum(took) / len(took) if took else None

    def path(self, window: Window) -> Path:
        """Where a window's recording lies."""
        return self.directory / f"{window.label}.spantrace"

    def started(self, window: Window) -> None:
        """Note that a window is about to be measured."""
        self._write("started", window)

    def finished(self, window: Window, result: Mapping[str, Any]) -> None:
        """Note what a window gave beside its recording, which is there by now."""
        self._write("done", window, **result)

    def failed(self, window: Window, why: str) -> None:
        """Note why a window gave no recording."""
        self._write("failed", window, why=why)

    def stopped(self, window: Window) -> None:
        """Note that a person ended the campaign within a window, which is no failure of the arm."""
        self._write("stopped", window)

    def _window(self, number: int) -> Window:
        return self.windows[number - 1]

    def _create(self) -> None:
        (self.directory / PLAN).write_text(self.plan.text())
        if self.plan.gates:
            (self.directory / GATES).write_text(self.plan.gates)
        self._append({"event": "created", "plan": self.plan.hash, "gates": hash_of(self.plan.gates)})

    def _read(self, *, mend: bool = False) -> list[Entry]:
        """The log's entries; SpantraceError where the directory belongs to another plan or to other gates.

        A last line that was cut off is left out, and with `mend` cut from the file.
        """
        path = self.directory / LOG
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if mend and whole != text:
            os.truncate(path, len(whole.encode()))
        try:
            entries: list[Entry] = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise SpantraceError(f"{path} is damaged ({error}); start another campaign (-o)") from error
        if entries:
            self._check(entries[0])
        return entries

    def _check(self, created: Entry) -> None:
        if created.get("gates") != hash_of(self.plan.gates):
            raise SpantraceError(
                f"the gates of {self.directory} were written down before its first window and are others now; "
                "put them back, or start another campaign (-o)"
            )
        if created.get("plan") != self.plan.hash:
            raise SpantraceError(
                f"{self.directory} holds a campaign of plan {str(created.get('plan'))[:6]}, this is "
                f"{self.plan.hash[:6]}; choose another directory (-o)"
            )

    def _close_started(self) -> None:
        """A window that was started and neither finished nor failed was cut off by the death of its process."""
        last = self._entries[-1]
        if last["event"] == "started":
            self.failed(self._window(last["window"]), CUT_OFF)

    def _write(self, event: str, window: Window, **more: Any) -> None:
        self._append({"event": event, "window": window.number, "arm": window.arm.name, **more})

    def _append(self, entry: Entry) -> None:
        assert self._log is not None, "the store is not entered"
        stamped = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **entry}
        self._log.write(json.dumps(stamped) + "\n")
        self._log.flush()
        os.fsync(self._log.fileno())
        self._entries.append(stamped)

    def _lock(self, log: IO[str]) -> None:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SpantraceError(f"another process runs the campaign in {self.directory}; wait for it") from error


def hash_of(text: str) -> str:
    """The sha256 of a text, empty for an empty one."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def plan_of(directory: Path) -> Plan:
    """The plan of the campaign in a directory."""
    try:
        return read((directory / PLAN).read_text())
    except OSError as error:
        raise SpantraceError(f"{directory} holds no campaign ({PLAN}: {error.strerror})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise SpantraceError(f"{directory / PLAN} is damaged ({error}); start another campaign") from error
