"""Counts for what is put into a drafter's passes: on a GPU those are replayed, and nothing in them is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

from optimized.optimization import Counts, guarded
from optimized.reference_cycle.drafter import Drafter
from spantrace.patching import Function

OLDER = "its graphs were captured before the switch"


class WithinPasses:
    """Wrappers for a method of a drafter that its passes call, and for one that every cycle calls outside of them.

    The former runs the fast way where it can, and stock where it cannot or has failed before; the latter counts
    what the cycle's pass holds: a hit, or a fallback by its reason. A method of one layer has its index as the first
    argument, and a pass is a hit where all of its layers hold the fast way.
    """

    def __init__(self, counts: Counts, kind: type[Drafter]) -> None:
        self.counts, self.kind = counts, kind
        self._held: WeakKeyDictionary[Drafter, dict[int | None, str | None]] = WeakKeyDictionary()
        self._broken: WeakKeyDictionary[Drafter, str] = WeakKeyDictionary()

    def within(
        self,
        fast: Callable[..., Any],
        why_not: Callable[..., str | None],
        in_a_pass: Callable[..., bool] = lambda *_: True,
    ) -> Callable[[Function], Function]:
        """For the method that a pass calls: `fast` where `why_not` has no reason against the drafter and the arguments.

        Calls that are not `in_a_pass`, by the same arguments, are answered likewise and decide nothing of cycles.
        """

        def reason(drafter: Drafter, *args: Any) -> str | None:
            said = self._broken.get(drafter) or why_not(drafter, *args)
            if in_a_pass(drafter, *args):
                self._hold(drafter, args, said)
            return said

        def give_up(error: Exception, drafter: Drafter, *args: Any) -> None:
            self._broken[drafter] = f"it failed before ({type(error).__name__})"
            if in_a_pass(drafter, *args):
                self._hold(drafter, args, self._broken[drafter])

        return partial(guarded, fast=fast, why_not=reason, counts=self.counts, count_hits=False, recover=give_up)

    def why_stock(self, drafter: Drafter) -> str | None:
        """Why the drafter's passes hold the stock way, None where they hold the fast one."""
        held = self._held.get(drafter)
        return OLDER if held is None else next(filter(None, held.values()), None)

    def counted(self, original: Function) -> Function:
        """For a method that every cycle calls once outside of the passes and after the one that counts.

        It is a drafter's, or one of what has a `drafter`, which may be of a kind that this is not for.
        """

        @wraps(original)
        def call(owner: Any, *args: Any) -> Any:
            result = original(owner, *args)
            drafter = owner if isinstance(owner, Drafter) else owner.drafter
            if not isinstance(drafter, self.kind):
                return result
            if (reason := self.why_stock(drafter)) is None:
                self.counts.hits += 1
            else:
                self.counts.fallbacks[reason] += 1
            return result

        return call

    def close(self) -> None:
        """Drop the graphs that hold the fast way."""
        for drafter in self._held:
            drafter.forget_graphs()
        self._held.clear()
        self._broken.clear()

    def _hold(self, drafter: Drafter, args: tuple[Any, ...], said: str | None) -> None:
        layer = args[0] if args and isinstance(args[0], int) else None
        self._held.setdefault(drafter, {})[layer] = said
