"""Samples the Python stacks of the threads that run one span, by pyinstrument's sampler, and leaves them again.

A sampler can only be set by the thread itself: the span's own functions do that where they begin, and the sampler's
next look after the end takes it away. It looks whenever the thread calls or returns and the interval has passed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from spantrace.errors import SpantraceError
from spantrace.explaining.profilers import python_profiler, torch_profiler
from spantrace.frames import Frame, plain_rows
from spantrace.wrapping import Flag

INTERVAL_S = 0.0001
MOST_SAMPLES = 200_000
"""In one window of one thread; then it is left."""
LEAVE_S, BREATH_S = 0.5, 0.001
MAIN = "main"
WIDTH = 2
"""Integers of a sample: its time in CLOCK_MONOTONIC nanoseconds, and the number of its stack."""


class Stacks:
    """The samplers of one recording in one process; it is called inside the spans' functions (spantrace.inside).

    `wake()` lets a sleeping thread run some Python; `others` says who else may use torch.profiler here.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None, others: str = "") -> None:
        self._wake, self._others = wake, others
        self._places: list[tuple[str, str | None, Flag]] = []
        self._span = self._refused = ""
        self._samplers: dict[int, _Sampler] = {}

    def place(self, span: str, in_draft: str | None = None, gpu: bool = False) -> Flag:
        """A flag that is raised while the threads that run the function of these names are sampled."""
        flag = Flag([True] if self._span and self._span in (span, in_draft) else [])
        self._places.append((span, in_draft, flag))
        return flag

    def new_cycle(self, turn: bool | None = None) -> None:
        """Nothing depends on it."""

    def enter_draft(self, *_: object) -> None:
        """Nothing depends on it."""

    def hold(self) -> None:
        """Called in the span: sample this thread from now on, unless another profiler has it."""
        ident = threading.get_ident()
        if not self._span or ident in self._samplers:
            return
        try:
            if whose := python_profiler():
                self._refuse(whose)
            else:
                self._samplers[ident] = _Sampler()
                self._samplers[ident].start()
        except Exception as error:
            self._refuse(f"pyinstrument failed: {type(error).__name__}: {error}")

    def begin(self, span: str) -> int:
        """Sample the threads that run `span` from its next call on; how many functions that concerns.

        SpantraceError where pyinstrument is missing or another profiler is at work.
        """
        self.end()
        if whose := torch_profiler(self._others):
            raise SpantraceError(f"{whose}; wait until it has ended")
        try:
            import_module("pyinstrument.stack_sampler")
        except ImportError as error:
            advice = f"{sys.executable} -m pip install pyinstrument"
            raise SpantraceError(f"the server's environment has no pyinstrument; {advice}") from error
        self._samplers, self._refused, self._span = {}, "", span
        flags = [flag for *names, flag in self._places if span in names]
        for flag in flags:
            flag.append(True)
        return len(flags)

    def end(self) -> Frame:
        """Leave every thread; the stacks, and per thread the samples [n, 2]. A second call finds the same again."""
        self.halt()
        if not self._left(LEAVE_S):
            self._wake()
        left = self._left(LEAVE_S)
        threads = [sampler.frame() for sampler in self._samplers.values()]
        return {"threads": threads, "refused": self._refused, "left": left, "paths": _paths(), "prefixes": _prefixes()}

    def halt(self) -> None:
        """Let every thread be left at its sampler's next look, and wait for none."""
        self._lower()
        for sampler in self._samplers.values():
            sampler.stopping = True

    def _left(self, seconds: float) -> bool:
        """Whether every thread is left, after waiting no longer than this; the sampled one may be this very thread."""
        deadline = time.monotonic() + seconds
        while not all(one.left for one in self._samplers.values()):
            if time.monotonic() > deadline:
                return False
            time.sleep(BREATH_S)
        return True

    def _lower(self) -> None:
        self._span = ""
        for *_, flag in self._places:
            flag.clear()

    def _refuse(self, why: str) -> None:
        self._refused = why
        self._lower()


class _Sampler:
    """pyinstrument's sampler on the thread that starts it, and what it saw there: each stack is kept once."""

    def __init__(self) -> None:
        self.stopping = False
        self.left = False
        thread = threading.current_thread()
        self._thread = MAIN if thread is threading.main_thread() else thread.name
        self._samples = array("q")
        self._frames: dict[str, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._failure = ""
        self._pyinstrument: Any = sys.modules["pyinstrument.stack_sampler"]
        self._sampler: Any = None

    def start(self) -> None:
        """Let the sampler look at this thread; what it measures of its own cost, to warn of it, it need not."""
        try:
            self._sampler = self._pyinstrument.get_stack_sampler()
            self._sampler.has_warned_about_timing_overhead = True
            self._sampler.subscribe(self._see, desired_interval=INTERVAL_S, use_async_context=False)
        except Exception:
            self.left = True
            raise

    def frame(self) -> Frame:
        """The thread's samples, stacks and the names of their frames, root first."""
        samples = np.array(self._samples[: len(self._samples) // WIDTH * WIDTH], dtype=np.int64).reshape(-1, WIDTH)
        stacks = [list(one) for one in list(self._stacks)]
        about = {"thread": self._thread, "frames": list(self._frames), "stacks": stacks, "failure": self._failure}
        return {**about, **plain_rows(samples)}

    def _see(self, stack: list[str], since: float, state: object) -> None:
        """Keep one sample; what this raised would be raised in the server's own code."""
        try:
            if self.stopping or len(self._samples) >= MOST_SAMPLES * WIDTH:
                self._leave()
                return
            frames = self._frames
            numbers = tuple([frames.setdefault(one, len(frames)) for one in stack])
            known = self._stacks.setdefault(numbers, len(self._stacks))
            self._samples.extend((round((self._sampler.last_profile_time + since) * 1e9), known))
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            self._leave()

    def _leave(self) -> None:
        """Take the sampler off this thread, and forget it: its next user is to find it as new."""
        try:
            self._sampler.unsubscribe(self._see)
            vars(self._pyinstrument.thread_locals).pop("stack_sampler", None)
        except Exception as error:
            sys.setprofile(None)
            self._failure = self._failure or f"{type(error).__name__}: {error}"
        finally:
            self.left = True


def _paths() -> list[str]:
    """Where this process imports from: its path, and the folders of packages that are installed for editing."""
    packages = [found for name, found in list(sys.modules.items()) if "." not in name and hasattr(found, "__path__")]
    folders = {os.path.dirname(folder) for package in packages for folder in list(package.__path__)[:1]}
    whole = {folder for folder in folders if not os.path.exists(os.path.join(folder, "__init__.py"))}
    return [*sys.path, *sorted(whole - set(sys.path))]


def _prefixes() -> list[str]:
    return [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
