"""What decoded block tables must be: those of the chain of PyTorch operations, rows of other requests untouched."""

from __future__ import annotations

import torch
from torch import Tensor

from optimized.block_table_refresh.refresh import refresh, why_not
from optimized.cases import Case
from optimized.paged import DIVISOR, Requests, Shape
from optimized.reference_cycle import bookkeeping

BEYOND = 2
"""Rows behind those that are refreshed."""


class Tables:
    """The tables of requests that grow from step to step, in buffers with more rows than there are requests."""

    def __init__(self, requests: Requests) -> None:
        self.requests, shape = requests, requests.shape
        rows = shape.batch + BEYOND
        self.table = torch.full((rows, shape.width), -7, dtype=torch.int32, device=requests.device)
        self.counts = torch.full((rows,), -7, dtype=torch.int64, device=requests.device)

    def inputs(self) -> dict[str, Tensor]:
        """The offsets of all pools, keys and values."""
        return {"offsets": self.requests.offsets}

    def poison(self) -> None:
        """Fill the rows to be refreshed."""
        for buffer in (self.table, self.counts):
            buffer[: self.requests.shape.batch] = -(2**20)

    def reference(self) -> dict[str, Tensor]:
        """The chain of operations."""
        bookkeeping.refresh_block_tables(*self._arguments())
        return self.results()

    def fast(self) -> dict[str, Tensor]:
        """The kernel."""
        if reason := why_not(*self._arguments()):
            raise ValueError(reason)
        self.run()
        return self.results()

    def run(self) -> None:
        """The kernel alone."""
        refresh(*self._arguments())

    def results(self) -> dict[str, Tensor]:
        """Tables and counts, with the rows behind those that are refreshed."""
        return {"table": self.table.clone(), "counts": self.counts.clone()}

    def next(self) -> None:
        """Contexts grow, and pages with them."""
        self.requests.grow()

    def _arguments(self) -> tuple[Tensor, int, int, Tensor, Tensor]:
        batch = self.requests.shape.batch
        return self.requests.offsets, 1, DIVISOR, self.table[:batch], self.counts[:batch]


def cases() -> list[Case]:
    """Batches of 1, 8 and 32, holes, idle rows, all and none accepted, odd shapes, full tables, and 20 steps."""

    def case(
        name: str, shape: Shape, counts: tuple[int, ...], start: int = 5, steps: int = 1, hole: int | None = None
    ) -> Case:
        return Case(name, lambda place: Tables(Requests(shape, counts, start, place, hole)), steps)

    small = Shape()
    return [
        case("all accepted", small, (4,), steps=2),
        case("none accepted", small, (1,), steps=2),
        case("idle rows", small, (0, 2, 0)),
        case("every row idle", small, (0,)),
        case("one request", Shape(batch=1), (4,)),
        case("8 requests with a hole in each table", Shape(batch=8), (3, 0, 1), start=15, hole=2),
        case("32 requests", Shape(batch=32), (3, 0, 1)),
        case("odd shapes", Shape(batch=5, drafts=4, page=3, width=37, limit=100), (5, 2), start=40),
        case("more pages than a program's tile", Shape(batch=1, page=1, width=1500, limit=1400), (4,), start=1300),
        case("capacity reached", small, (4,), start=20),
        case("20 steps", Shape(batch=2, page=4, width=16, limit=60), (1, 4, 0, 3), start=0, steps=20, hole=1),
    ]
