"""Ctrl-C and SIGTERM while something is recorded: both end it, and neither cuts off what writes it down."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM is a KeyboardInterrupt; more of them do not disturb what it sets off."""
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    with _handled(end):
        yield


@contextmanager
def signals_held() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until this is done."""
    came: list[int] = []
    with _handled(lambda number, frame: came.append(number)):
        yield
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = [(number, signal.signal(number, handler)) for number in ENDING]
    try:
        yield
    finally:
        for number, former in before:
            signal.signal(number, former)
