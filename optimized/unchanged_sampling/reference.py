"""A small sampler whose parameters lie in buffers that take turns, and requests that come and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.unchanged_sampling.writes import UnchangedWrites, name_of

POISON, NUMBERS, IN_FLIGHT = -(2**20), 9973, 2
LENGTH = 6
"""Tokens of a request, on average."""


class Parameter:
    """A number of each row on the host, which is copied into the next one of a pool of buffers."""

    def __init__(self, rows: int, dtype: torch.dtype, device: str) -> None:
        self.host = torch.zeros(rows, dtype=dtype)
        self.pool = [torch.zeros(rows, dtype=dtype, device=device) for _ in range(IN_FLIGHT)]

    @property
    def copied(self) -> Tensor:
        """The buffer that a step reads."""
        return self.pool[0]

    def copy(self) -> None:
        """Take the next buffer."""
        self.pool = [*self.pool[1:], self.pool[0]]
        self.copied.copy_(self.host)

    def poison(self) -> None:
        """Fill the buffers that no step reads."""
        for buffer in self.pool[1:]:
            buffer.fill_(POISON)


class Words:
    """So many tokens of each row; they are staged, and written where they belong at the next copies."""

    def __init__(self, rows: int, width: int, device: str) -> None:
        self.count = Parameter(rows, torch.int64, device)
        self.table = torch.zeros(rows, width, dtype=torch.int64, device=device)
        self.staged: list[tuple[int, Tensor]] = []

    def add_request(self, row: int, asked: Tensor) -> None:
        """Of a request's numbers the first says how many of the others it wants."""
        self.count.host[row] = number = int(asked[0]) % len(asked)
        self.staged.append((row, asked[1 : 1 + number]))

    def apply_staged_writes(self) -> None:
        """Write what is staged."""
        self.count.copy()
        for row, tokens in self.staged:
            self.table[row, : len(tokens)] = tokens.to(self.table.device)
        self.staged.clear()


class Counting(Words):
    """Changes in every step, whether a request was added or not."""

    def apply_staged_writes(self) -> None:
        """One word more for everybody."""
        self.count.host += 1
        super().apply_staged_writes()


class Sampler:
    """Three parameters, of which the last is drawn where a request has none, and logits processors."""

    def __init__(self, rows: int, width: int, device: str, processors: tuple[type[Words], ...]) -> None:
        kinds = torch.float32, torch.int64, torch.int64
        self.parameters = [Parameter(rows, kind, device) for kind in kinds]
        self.logits_processors = [kind(rows, width, device) for kind in processors]

    def add_request(self, row: int, asked: Tensor) -> None:
        """Take a request's numbers."""
        for parameter, number in zip(self.parameters, asked.tolist(), strict=False):
            parameter.host[row] = number
        for processor in self.logits_processors:
            processor.add_request(row, asked[len(self.parameters) :])

    def apply_staged_writes(self) -> None:
        """Copy everything."""
        for parameter in self.parameters:
            parameter.copy()
        for processor in self.logits_processors:
            processor.apply_staged_writes()

    def pools(self) -> list[Parameter]:
        """All that lies in pools."""
        return [*self.parameters, *(processor.count for processor in self.logits_processors)]


class Restless(Sampler):
    """Changes a parameter in every step."""

    def apply_staged_writes(self) -> None:
        """A little warmer each time."""
        self.parameters[0].host += 0.5
        super().apply_staged_writes()


@dataclass(frozen=True)
class Shape:
    """So many rows, of at most `width` words each, and so many requests that ask for one."""

    rows: int
    requests: int
    width: int = 4


class Steps:
    """Requests of which row r advances by advances[(r + step) mod n] tokens; one that ends makes room for the next."""

    def __init__(
        self,
        shape: Shape,
        advances: tuple[int, ...],
        processors: tuple[type[Words], ...],
        kind: type[Sampler],
        place: Place,
    ) -> None:
        random = torch.Generator().manual_seed(3)
        self.shape, self.pattern, self.step, self.device = shape, advances, 0, place.device
        self.asked = torch.randint(0, NUMBERS, (shape.requests, 4 + shape.width), generator=random)
        self.left = torch.zeros(shape.rows, dtype=torch.int64)
        self.waiting = list(range(shape.requests))
        self.sampler = kind(shape.rows, shape.width, place.device, processors)
        self.unchanged = UnchangedWrites({name_of(Sampler)}, {name_of(Words)})
        self.launched = [parameter.copied for parameter in self.sampler.pools()]
        self.read = torch.zeros(2, len(self.launched), shape.rows, dtype=torch.float64, device=place.device)
        self._join()

    def inputs(self) -> dict[str, Tensor]:
        """What the requests ask for."""
        return {"asked": self.asked}

    def poison(self) -> None:
        """Fill what a step reads, and the buffers whose turn it is not."""
        self.read.fill_(POISON)
        for parameter in self.sampler.pools():
            parameter.poison()

    def reference(self) -> dict[str, Tensor]:
        """Everything is copied."""
        return self._one(lambda method: method)

    def fast(self) -> dict[str, Tensor]:
        """What the optimization leaves of it."""
        kind = type(self.sampler)
        wraps = {kind.add_request: self.unchanged.adding, kind.apply_staged_writes: self.unchanged.writing}
        return self._one(lambda method: wraps[method](method))

    def next(self) -> None:
        """Requests advance and end; those that wait take their rows."""
        rows = range(self.shape.rows)
        advances = [self.pattern[(row + self.step) % len(self.pattern)] for row in rows]
        self.left = (self.left - torch.tensor(advances)).clamp(min=0)
        self.step += 1
        self._join()

    def _join(self) -> None:
        free = [row for row, left in enumerate(self.left.tolist()) if not left]
        self.joining = list(zip(free, self.waiting, strict=False))
        del self.waiting[: len(self.joining)]
        for row, request in self.joining:
            self.left[row] = LENGTH + request % 3

    def _one(self, wrapped: Callable[[Any], Any]) -> dict[str, Tensor]:
        """A step on the host, and what the GPU reads in it: this step's buffers, and those of the last one only now."""
        kind, behind = type(self.sampler), self.launched
        for row, request in self.joining:
            wrapped(kind.add_request)(self.sampler, row, self.asked[request])
        wrapped(kind.apply_staged_writes)(self.sampler)
        self.launched = [parameter.copied for parameter in self.sampler.pools()]
        for at, buffers in enumerate((self.launched, behind)):
            for row, buffer in zip(self.read[at], buffers, strict=True):
                row.copy_(buffer)
        tables = {f"words {at}": one.table.clone() for at, one in enumerate(self.sampler.logits_processors)}
        return {"read": self.read[0].clone(), "read one step late": self.read[1].clone(), **tables}


def cases() -> list[Case]:
    """Requests that end soon, late or never, none at all, more than there are rows, 20 steps, and strange classes."""

    def case(
        name: str,
        shape: Shape,
        advances: tuple[int, ...],
        *others: type[Words],
        steps: int = 6,
        kind: type[Sampler] = Sampler,
    ) -> Case:
        return Case(name, lambda place: Steps(shape, advances, (Words, *others), kind, place), steps)

    small = Shape(4, 12)
    return [
        case("all accepted", small, (4,)),
        case("none accepted", small, (1,)),
        case("idle rows", small, (0, 3, 0)),
        case("every row idle", small, (0,)),
        case("an empty batch", Shape(4, 0), (4,)),
        case("one row", Shape(1, 5), (3,)),
        case("odd shapes", Shape(7, 23, width=5), (1, 6, 2)),
        case("capacity reached", Shape(3, 30), (9,)),
        case("20 steps", Shape(5, 14, width=3), (1, 4, 0, 2), steps=20),
        case("a strange processor", small, (2,), Counting),
        case("a strange sampler", small, (2,), kind=Restless),
    ]
