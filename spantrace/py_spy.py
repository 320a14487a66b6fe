"""Looks into other processes' Python stacks by running py-spy, a program of its own that pauses nobody."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spantrace.errors import PTRACE, SpantraceError, no_process
from spantrace.interrupts import ended_by_signals

RATE_HZ = 100
"""Looks a second on average; py-spy spreads them at random, so that no rhythm of the process hides from them."""
GRACE_S = 20.0
"""How much longer than asked py-spy may take to start and to write."""
_LOOKS = ("--subprocesses", "--idle", "--threads", "--function", "--nonblocking", "--full-filenames",
          "--rate", str(RATE_HZ))  # fmt: skip
_POLL_S = 0.1
_PROFILE = re.compile(r"Process (\d+)(?: Thread (\d+))?")
_ERRORS = re.compile(r"Errors: (\d+)")


@dataclass(frozen=True)
class Frame:
    """One call of a stack: the function's qualified name (its bare name before Python 3.11) and its file."""

    function: str
    file: str


@dataclass(frozen=True)
class Stack:
    """A thread's calls, the outermost first, and how often it was seen in them."""

    process: int
    thread: int
    frames: tuple[Frame, ...]
    samples: int


@dataclass(frozen=True)
class Sampled:
    """What py-spy saw for `seconds`: stacks, looks that `failed`, and the part of a core that it took itself."""

    stacks: tuple[Stack, ...]
    seconds: float
    failed: int
    cost: float
    by: str


def sample(pid: int, seconds: float, progress: Callable[[int], None]) -> Sampled:
    """Look at every thread of a process and of its descendants for so long; SpantraceError where that cannot be.

    Ctrl-C ends it early, and keeps what was seen.
    """
    program = _program()
    _refuse_unless_permitted(pid)
    with tempfile.TemporaryDirectory(prefix="spantrace-") as folder:
        output, log = Path(folder, "stacks.json"), Path(folder, "log")
        command = [program, "record", *_LOOKS, "--duration", str(max(1, round(seconds))), "--pid", str(pid),
                   "--format", "speedscope", "--output", str(output)]  # fmt: skip
        before, began = _children_cpu(), time.monotonic()
        with log.open("wb") as said:
            code = _run(command, said, seconds, progress)
        took, text = time.monotonic() - began, log.read_text(errors="replace")
        if code is None and not output.exists():
            raise KeyboardInterrupt
        if code or not output.exists():
            raise SpantraceError(_why(pid, text))
        try:
            stacks = read_speedscope(json.loads(output.read_bytes()))
        except ValueError as error:
            raise SpantraceError(
                f"py-spy was cut off while it wrote what it saw of process {pid}; try again"
            ) from error
    errors = _ERRORS.search(text)
    cost = (_children_cpu() - before) / max(took, _POLL_S)
    return Sampled(stacks, min(took, seconds), int(errors[1]) if errors else 0, cost, _version(program))


def read_speedscope(document: dict[str, Any]) -> tuple[Stack, ...]:
    """The stacks of py-spy's speedscope file, each once for every thread that was seen in it."""
    frames = [Frame(one["name"], one.get("file") or "") for one in document["shared"]["frames"]]
    found: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
    for profile in document["profiles"]:
        if named := _PROFILE.match(profile["name"]):
            process, thread = int(named[1]), int(named[2] or named[1])
            found.update((process, thread, tuple(stack)) for stack in profile["samples"])
    return tuple(
        Stack(process, thread, tuple(frames[index] for index in stack if frames[index].file), count)
        for (process, thread, stack), count in found.items()
    )


def _program() -> str:
    """py-spy beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise SpantraceError("py-spy is not installed; pip install 'spantrace[sample]'")
    return found


def _refuse_unless_permitted(pid: int) -> None:
    """SpantraceError where the kernel does not let this user read the process's memory, or there is no process."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except PermissionError as error:
        raise SpantraceError(f"this user may not look into process {pid}; {PTRACE}") from error
    except OSError as error:
        raise SpantraceError(no_process(pid)) from error


def _version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()


def _run(command: list[str], said: Any, seconds: float, progress: Callable[[int], None]) -> int | None:
    """Run py-spy to its end: its exit code, or None where Ctrl-C or SIGTERM ended it, and it wrote what it had."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
    began, interrupted = time.monotonic(), False
    try:
        with ended_by_signals():
            while process.poll() is None and (passed := time.monotonic() - began) < seconds + GRACE_S:
                progress(int(passed))
                time.sleep(_POLL_S)
    except KeyboardInterrupt:
        interrupted = True
        process.send_signal(signal.SIGINT)
    try:
        code = process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    return None if interrupted else code


def _children_cpu() -> float:
    """Seconds of CPU that ended children of this process took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _why(pid: int, text: str) -> str:
    """What kept py-spy from looking, in one sentence with what to do."""
    if "No python processes found" in text or "Failed to find python version" in text:
        return f"process {pid} runs no Python that py-spy knows; name a vLLM process (spantrace ps)"
    reason = next((line.removeprefix("Error: ") for line in text.splitlines() if line.startswith("Error:")), "")
    return f"py-spy could not look into process {pid}: {reason or 'it ended without a word'}"
