"""Where blocks lie and what they see: as the chain of PyTorch operations says."""

from __future__ import annotations

import torch
from torch import Tensor

from optimized.cases import Case
from optimized.mla_block_fixup.fixup import Blocks, place, why_not
from optimized.paged import Requests, Shape
from optimized.reference_cycle import bookkeeping
from optimized.reference_cycle.attention import visible


class Placing:
    """The blocks behind requests that grow, as far as their pages leave room."""

    def __init__(self, requests: Requests) -> None:
        self.requests, shape, device = requests, requests.shape, requests.device
        cells = (shape.batch, shape.block)
        pages, rows = (torch.zeros(cells, dtype=torch.int64, device=device) for _ in range(2))
        lengths = torch.zeros(shape.batch, dtype=torch.int32, device=device)
        mask = torch.zeros(*cells, shape.width * shape.page, dtype=torch.bool, device=device)
        self.out = Blocks(pages, rows, lengths, mask)
        self._advertise()

    def inputs(self) -> dict[str, Tensor]:
        """The contexts and the tables."""
        return {"context": self.context, "table": self.requests.table}

    def poison(self) -> None:
        """Fill all four buffers; a mask that nobody wrote is full."""
        for buffer in (self.out.pages, self.out.rows, self.out.lengths):
            buffer.fill_(-(2**20))
        self.out.mask.fill_(True)

    def reference(self) -> dict[str, Tensor]:
        """The chain of operations."""
        block, size, table = self.requests.shape.block, self.requests.shape.page, self.requests.table
        pages, rows, lengths = bookkeeping.block_cells(self.context, table, block, size)
        columns = self.context.unsqueeze(1) + torch.arange(block, device=self.context.device)
        mask = visible(columns, self.out.mask.shape[-1], columns + 1)
        return {"pages": pages, "rows": rows, "lengths": lengths, "mask": mask}

    def fast(self) -> dict[str, Tensor]:
        """The kernel."""
        if reason := why_not(self.context, self.requests.table, self.out):
            raise ValueError(reason)
        self.run()
        return self.results()

    def run(self) -> None:
        """The kernel alone."""
        place(self.context, self.requests.table, self.requests.shape.page, self.out)

    def results(self) -> dict[str, Tensor]:
        """What the kernel left."""
        return {name: getattr(self.out, name).clone() for name in ("pages", "rows", "lengths", "mask")}

    def next(self) -> None:
        """Contexts grow."""
        self.requests.grow()
        self._advertise()

    def _advertise(self) -> None:
        """The context that the block stands behind leaves room for it in the request's pages."""
        shape = self.requests.shape
        room = (self.requests.page_counts * shape.page - shape.block).clamp(min=0)
        self.context = self.requests.starts().minimum(room)


def cases() -> list[Case]:
    """Batches of 1, 8 and 32, holes, idle rows, all and none accepted, odd shapes, full tables, and 20 steps."""

    def case(
        name: str, shape: Shape, counts: tuple[int, ...], start: int = 5, steps: int = 1, hole: int | None = None
    ) -> Case:
        return Case(name, lambda place: Placing(Requests(shape, counts, start, place, hole)), steps)

    small = Shape()
    return [
        case("all accepted", small, (4,), steps=2),
        case("none accepted", small, (1,), steps=2),
        case("idle rows", small, (0, 2, 0)),
        case("every row idle", small, (0,)),
        case("one request", Shape(batch=1), (4,), start=0),
        case("8 requests with a hole in each table", Shape(batch=8), (3, 0, 1), start=15, hole=2),
        case("32 requests", Shape(batch=32), (3, 0, 1)),
        case("odd shapes", Shape(batch=5, drafts=4, block=5, page=3, width=37, limit=100), (5, 2), start=40),
        case("block of one", Shape(batch=2, drafts=1, block=1), (1, 2)),
        case("more columns than a program's tile", Shape(batch=1, page=64, width=70, limit=4400), (4,), start=4100),
        case("capacity reached", small, (4,), start=20),
        case("20 steps", Shape(batch=2, page=4, width=16, limit=60), (1, 4, 0, 3), start=0, steps=20),
    ]
