"""What a graph's replays count as: what was noted of the calls that it was captured with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from torch import Tensor, cuda

from optimized.optimization import Counts

REPLAY = "run_fullgraph"
"""The method of a graph manager that replays the graph of what it is given."""
BEFORE = "its graphs were captured before the switch: start the server with --optimize"
UNCAPTURED = "no graph of that batch was captured with it"
"""Why a graph of a manager whose graphs are captured twice is replayed as vLLM has it."""
UNSEEN = "no graph of as many tokens was captured with the switch"


def capturing(on: Tensor) -> bool:
    """Whether a graph is being captured on that tensor's device."""
    return on.is_cuda and bool(cuda.is_current_stream_capturing())


class GraphCounts:
    """Counts calls as they are made, and those that were captured whenever their graph is replayed.

    A call is told from others by its tokens; the first reason of a graph's calls stands for all of them. A manager is
    followed by a method of its own in the place of its class's, which it calls.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._captured: dict[int, str | None] = {}
        self._followed: WeakSet[Any] = WeakSet()

    def note(self, on: Tensor, tokens: int, reason: str | None) -> None:
        """A call of so many tokens on that tensor's device, and why it was left to the original; None is a hit."""
        if capturing(on):
            self._captured[tokens] = self._captured.get(tokens) or reason
        else:
            self._count(reason)

    def follow(self, manager: Any, tokens_of: Callable[[Any], int], otherwise: str = UNSEEN) -> None:
        """Count each replay of a manager's graphs, whose tokens the function gives, `otherwise` where none is noted."""
        if manager is None or manager in self._followed:
            return
        self._followed.add(manager)
        inner = vars(manager).get(REPLAY)

        def replay(graph: Any, *arguments: Any, **named: Any) -> Any:
            run = inner or getattr(type(manager), REPLAY).__get__(manager)
            result = run(graph, *arguments, **named)
            if manager in self._followed:
                self._replayed(graph, tokens_of, otherwise)
            return result

        setattr(manager, REPLAY, replay)

    def close(self) -> None:
        """Count no more replays."""
        self._followed.clear()
        self._captured.clear()

    def _replayed(self, graph: Any, tokens_of: Callable[[Any], int], otherwise: str) -> None:
        try:
            self._count(self._captured.get(tokens_of(graph), otherwise))
        except Exception as error:
            self._counts.failed(error)

    def _count(self, reason: str | None) -> None:
        if reason is None:
            self._counts.hits += 1
        else:
            self._counts.fallbacks[reason] += 1
