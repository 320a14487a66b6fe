"""The situations that an optimization is judged and timed in; no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from optimized.reference_cycle.settings import Settings


@dataclass(frozen=True)
class Place:
    """Where a case runs, "cpu" or "cuda", and the dtype of its activations.

    Of a cycle that runs there also its `drafter`, "none" without one, and whether its target keeps `states`; None
    where that is not known.
    """

    device: str = "cpu"
    dtype: str = "float32"
    drafter: str | None = None
    states: bool | None = None


@dataclass(frozen=True)
class Case:
    """A situation that an optimization is judged on: `make` gives the same fresh problem at each call.

    `dtype` is the case's own where it is about one; all others take the place's.
    """

    name: str
    make: Callable[[Place], Problem]
    steps: int = 1
    dtype: str | None = None

    def at(self, place: Place) -> Place:
        """The place, in the case's own dtype where it has one."""
        return replace(place, dtype=self.dtype or place.dtype)


class Problem(Protocol):
    """State and inputs, worked on by the reference or by the implementation; both return what they computed."""

    def inputs(self) -> dict[str, Tensor]:
        """What neither may change."""

    def poison(self) -> None:
        """Fill every output buffer with what no computation leaves behind."""

    def reference(self) -> dict[str, Tensor]:
        """One step in plain PyTorch."""

    def fast(self) -> dict[str, Tensor]:
        """One step as the optimization does it."""

    def next(self) -> None:
        """New inputs for the next step; state is carried over."""


@dataclass(frozen=True)
class Contest:
    """The same work by the code that is replaced and by the optimization; each can be repeated any number of times.

    `read` and `written` are what every implementation must move: its inputs and its results, once each.
    """

    work: str
    stock: Callable[[], object]
    fast: Callable[[], object]
    read: tuple[Tensor, ...]
    written: tuple[Tensor, ...]

    def moved(self) -> int:
        """Bytes that must be moved."""
        return sum(part.nbytes for part in (*self.read, *self.written))


def behind_a_shallow_target(settings: Settings) -> Settings:
    """The same drafter behind as few target layers as it taps, where the target itself is not timed."""
    taps = tuple(range(len(settings.geometry.taps)))
    return replace(settings, geometry=replace(settings.geometry, layers=len(taps), taps=taps, state_layers=()))
