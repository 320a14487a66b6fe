"""How much of the padding behind a drafter's inputs must be written again; the rest lies there from the step before.

A call writes the rows of its requests and pads all that lies behind them, in the drafter's own buffers and in a row of
slots that it shares with the target. Where the last call was for as many requests, its own buffers are padded already.
Since then the target has written the slots of its tokens, and padded that whole row behind them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import wraps
from operator import itemgetter
from typing import Any, NamedTuple

from optimized.optimization import Counts
from spantrace.patching import Function

FIRST = "the first call for this buffer"
OTHER = "another number of requests"
FULL = "the step fills the buffers"
ODD = "the bound is no multiple of 16"
BY_NAME = "its arguments are given by name"
UNIT = 16
_BUFFERS = ("input_buffers", "sample_indices", "sample_pos", "sample_idx_mapping")
_SIZES = ("num_query_per_req", "num_speculative_steps", "max_num_reqs", "max_num_tokens")


class Asked(NamedTuple):
    """What one call is about: whose buffers, where its slots lie, and how far it pads them from where on.

    Behind the `bounds`, of requests and of tokens, nothing but padding lies where the last call had the same `extent`.
    """

    buffers: tuple[object, ...]
    slots: int
    extent: tuple[int, ...]
    bounds: tuple[int, int]


def smaller(most: int, needed: int) -> int:
    """A bound that covers what is needed, and is no larger than the one that is given."""
    # Triton compiles a variant of its own for an argument that is 1 or no multiple of 16, in the middle of a step.
    return most if most % UNIT else int(min(most, (needed + UNIT - 1) // UNIT * UNIT))


@dataclass(frozen=True)
class Places:
    """Where a function takes what is read of a call, found once: a call is not matched with the signature."""

    buffers: itemgetter[Any]
    slots: int
    batch: int
    sizes: itemgetter[Any]
    bounds: tuple[int, int]
    override: int

    @classmethod
    def of(cls, function: Function) -> Places:
        """By the names of its parameters; the last one is not there in every version."""
        at = {name: place for place, name in enumerate(inspect.signature(function).parameters)}
        buffers, sizes = (itemgetter(*(at[name] for name in names)) for names in (_BUFFERS, _SIZES))
        bounds = at["max_num_reqs"], at["max_num_tokens"]
        return cls(
            buffers, at["query_slot_mapping"], at["input_batch"], sizes, bounds, at.get("num_reqs_override", len(at))
        )

    def read(self, args: tuple[Any, ...]) -> Asked:
        """What these arguments say."""
        batch, given = args[self.batch], args[self.override] if self.override < len(args) else None
        requests = batch.num_reqs if given is None else given
        queries, drafts, most, most_tokens = self.sizes(args)
        needed = max(requests * queries, batch.num_tokens_after_padding)
        bounds = smaller(most, requests), smaller(most_tokens, needed)
        extent = requests, queries, drafts, most, most_tokens
        return Asked(self.buffers(args), args[self.slots].data_ptr(), extent, bounds)

    def bounded(self, args: tuple[Any, ...], asked: Asked) -> tuple[Any, ...]:
        """The same arguments with smaller bounds."""
        changed = list(args)
        for place, bound in zip(self.bounds, asked.bounds, strict=True):
            changed[place] = bound
        return tuple(changed)


@dataclass
class Known:
    """The buffers of one drafter, held so that no others get their places, and what the last calls padded in them.

    `extent` is that of the last call, which all groups share; it is None while a call is under way, and stays so where
    one fails. `slots` has the extent of the last call for each row of slots.
    """

    buffers: tuple[object, ...]
    extent: tuple[int, ...] | None = None
    slots: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def why_not(self, asked: Asked) -> str | None:
        """Why all must be padded; None where the last call did."""
        last, most_tokens = self.slots.get(asked.slots), asked.extent[-1]
        if last is None:
            return FIRST
        if not self.extent == last == asked.extent:
            return OTHER
        if asked.bounds[1] < most_tokens:
            return None
        return ODD if most_tokens % UNIT else FULL

    def padded(self, asked: Asked) -> None:
        """A call has ended."""
        self.extent = self.slots[asked.slots] = asked.extent


class Padding:
    """The switch; a hit is one call that pads no further than it must.

    Errors of this class's own are counted, nothing is known after one, and the call goes on as it would without it.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._known: dict[tuple[int, ...], Known] = {}

    def allocated(self) -> int:
        """Nothing on any device."""
        return 0

    def close(self) -> None:
        """Know nothing any more."""
        self._known.clear()

    def preparing(self, original: Function) -> Function:
        """The original, which pads as far as it must."""
        places = Places.of(original)

        @wraps(original)
        def prepare(*args: Any, **named: Any) -> Any:
            found, bounded = self._look(places, args, named)
            result = original(*bounded, **named)
            if found is not None:
                known, asked = found
                known.padded(asked)
            return result

        return prepare

    def forgetting(self, original: Function) -> Function:
        """The original, before which all that is known is forgotten: it writes to the buffers, or makes others."""

        @wraps(original)
        def forget(*args: Any, **named: Any) -> Any:
            self._known.clear()
            return original(*args, **named)

        return forget

    def _of(self, asked: Asked) -> Known:
        which = tuple(map(id, asked.buffers))
        return self._known.get(which) or self._known.setdefault(which, Known(asked.buffers))

    def _look(
        self, places: Places, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Known, Asked] | None, tuple[Any, ...]]:
        """What is known and asked, where that can be told, and the arguments to call with."""
        try:
            if named:
                self._known.clear()
                self.counts.fallbacks[BY_NAME] += 1
                return None, args
            asked = places.read(args)
            known = self._of(asked)
            reason, known.extent = known.why_not(asked), None
            bounded = args if reason else places.bounded(args, asked)
        except Exception as error:
            self._known.clear()
            self.counts.failed(error)
            return None, args
        if reason is not None:
            self.counts.fallbacks[reason] += 1
        self.counts.hits += reason is None
        return (known, asked), bounded
