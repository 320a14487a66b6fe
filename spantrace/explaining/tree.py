"""What was seen in a span as pyinstrument's session, and as a tree of functions with the line that most time was on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spantrace.explaining.stacks import INTERVAL_S
from spantrace.explaining.within import SpanStacks

if TYPE_CHECKING:
    from pyinstrument.frame import Frame
    from pyinstrument.session import Session

SMALLEST = 0.02
"""The least share of the span's time that a function of the tree has."""
MADE_UP = ("pybind11_", "_VariableFunctions")
PLUMBING = frozenset({"_call_impl", "_wrapped_call_impl", "decorate_context"})
"""Functions of torch that only call what they are given: what they call stands in their place."""


@dataclass(frozen=True)
class Node:
    """A function, or the time of a span's function in itself: seconds in all and of its own, and where it spent most.

    `file` is as short as the process's own path allows; `line` is the line of it that most time was spent on.
    """

    depth: int
    function: str
    file: str
    line: int
    seconds: float
    own: float


def session_of(found: SpanStacks, title: str, begun: float) -> Session:
    """The samples as a session of pyinstrument, which its renderers write; `begun` is the wall clock's time."""
    from pyinstrument.session import Session

    whole = sum(seconds for _, seconds in found.records)
    return Session(
        frame_records=[(list(stack), seconds) for stack, seconds in found.records],
        start_time=begun,
        duration=whole,
        min_interval=INTERVAL_S,
        max_interval=INTERVAL_S,
        sample_count=len(found.records),
        start_call_stack=list(found.records[0][0][:1]),
        target_description=title,
        cpu_time=whole,
        sys_path=list(found.paths),
        sys_prefixes=list(found.prefixes),
    )


def nodes_of(session: Session) -> tuple[Node, ...]:
    """The tree's functions in its order, without those of the smallest share."""
    from pyinstrument.processors import aggregate_repeated_calls

    root = aggregate_repeated_calls(session.root_frame(trim_stem=False), {})
    return tuple(_nodes(root, 0, root.time * SMALLEST)) if root else ()


def _nodes(frame: Frame, depth: int, least: float) -> Iterator[Node]:
    hidden = frame.function in PLUMBING
    children = [child for child in frame.children if not child.is_synthetic]
    if not hidden:
        file = frame.file_path_short or ""
        own = frame.time - sum(child.time for child in children)
        yield Node(depth, _name(frame), file, _line(frame), frame.time, own)
    for child in sorted(children, key=lambda one: -one.time):
        if child.time >= least:
            yield from _nodes(child, depth + (not hidden), least)


def _name(frame: Frame) -> str:
    """The function's name; of torch's and pybind's own classes, which nobody wrote, none is put before it."""
    owner, _, name = frame.function.rpartition(".")
    return name if owner.startswith(MADE_UP) else frame.function


def _line(frame: Frame) -> int:
    """The line on which most of the time was spent, the function's first where none is known; 0 for a built-in."""
    lines = {int(name[1:]): time for name, time in frame.attributes.items() if name[:1] == "l" and name[1:].isdigit()}
    return max(lines, key=lambda line: lines[line]) if lines else frame.line_no or 0
