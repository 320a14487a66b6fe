"""One arm of a campaign against stock, and an arm that cannot be held against it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from analyzers.conversion import Conversion, conversion
from analyzers.effects import Effect, drift, effects, not_enough, resolves
from analyzers.per_cycle import STEADY, chosen_cycles
from analyzers.quantities import Quantity, Units
from spantrace.recording import Recording
from spantrace.switched import KEY, Switched, counted_in


@dataclass(frozen=True)
class Arm:
    """An arm against stock: the effect on every quantity, its hits, the drift of what it does not touch.

    `ids` are the optimizations that are on and `targets` the spans that the arm is for, `fired` what the recordings
    count of each, no hit where they count others alone, and `silent` those that never fired. `not_enough` is a sentence
    where the runs are too few to show anything, `contended` holds the runs, from 0, that the plan's rule flagged;
    nothing is left out for it.
    """

    name: str
    ids: tuple[str, ...]
    targets: tuple[str, ...]
    runs: int
    cycles: int
    effects: tuple[Effect, ...]
    fired: tuple[Switched, ...]
    silent: tuple[str, ...]
    drift: tuple[Effect, ...]
    conversion: Conversion | None
    not_enough: str | None
    contended: tuple[int, ...]

    @property
    def never_fired(self) -> bool:
        """Whether no optimization that was on in the arm fired."""
        return bool(self.ids) and set(self.silent) == set(self.ids)

    @property
    def enough(self) -> bool:
        """Whether its runs can show that the cycle or a target span moved."""
        return resolves(self.effects, frozenset(self.targets))

    def effect(self, quantity: Quantity) -> Effect | None:
        """What this arm did to a quantity; None if neither side has it."""
        return next((one for one in self.effects if one.quantity == quantity), None)

    def hits(self, name: str) -> int | None:
        """How often an optimization fired, None where the recordings do not count it."""
        return next((one.hits for one in self.fired if one.id == name), None)


@dataclass(frozen=True)
class Lost:
    """An arm that nothing can be said of, and why."""

    name: str
    why: str


def against(
    name: str,
    runs: Sequence[Recording],
    ids: Collection[str],
    spans: frozenset[str],
    sides: tuple[Units, Units],
    contended: Mapping[str, tuple[int, ...]],
    uncounted: Collection[str] = (),
) -> Arm:
    """An arm whose optimizations are `ids` and which is for these spans; `sides` are stock's values and its own.

    Those in `uncounted` are on where nothing was switched, so that no recording counts them.
    """
    found = effects(*sides, spans)
    counted = counted_in(run.header for run in runs)
    if any(run.header.get(KEY) is not None for run in runs):
        counted = {name: Switched(name, 0, 0, 0, ()) for name in set(ids) - set(uncounted)} | counted
    fired = tuple(counted[name] for name in sorted(ids) if name in counted)
    silent = tuple(one.id for one in fired if not one.hits)
    never = bool(ids) and set(silent) == set(ids)
    return Arm(
        name=name,
        ids=tuple(sorted(ids)),
        targets=tuple(sorted(spans)),
        runs=len(runs),
        cycles=sum(int(chosen_cycles(run, STEADY).sum()) for run in runs),
        effects=found,
        fired=fired,
        silent=silent,
        drift=drift(*sides, spans),
        conversion=conversion(*sides, spans, found, never_fired=never) if spans else None,
        not_enough=not_enough(found, spans),
        contended=contended.get(name, ()),
    )
