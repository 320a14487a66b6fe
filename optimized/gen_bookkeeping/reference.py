"""What the pools and the contexts must be after a step: those of the two chains of PyTorch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from optimized.cases import Case
from optimized.gen_bookkeeping.post import Contexts, Pages, keep, why_not
from optimized.paged import Requests, Shape
from optimized.reference_cycle import bookkeeping


class Step:
    """A step's latents, one of them NaN, on their way to the pools of requests that grow.

    A cell that two rows of a step are written to has no right value, and counts no longer.
    """

    def __init__(self, requests: Requests) -> None:
        self.requests, shape, device = requests, requests.shape, requests.device
        size = (shape.pages, 1, 1, shape.page, shape.latent + shape.rope)
        self.pools = [torch.zeros(size, dtype=requests.dtype, device=device) for _ in range(shape.layers)]
        self.addresses = Pages.of(requests.table, requests.page_counts, self.pools).addresses
        self.visible = torch.zeros(shape.batch, dtype=torch.int64, device=device)
        self.contested = torch.zeros(shape.pages, shape.page, dtype=torch.bool, device=device)
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The latents, where they go, and what was accepted."""
        requests = self.requests
        held = {name: getattr(requests, name) for name in ("counts", "slots", "table", "page_counts")}
        return {"latents": self.latents, "positions": self.positions, **held}

    def poison(self) -> None:
        """Fill the advertised contexts; the pools and the lengths are carried over."""
        self.visible.fill_(-(2**40))

    def reference(self) -> dict[str, Tensor]:
        """Both chains, one after the other."""
        requests, shape = self.requests, self.requests.shape
        start, rows = self.positions[:, 0], torch.arange(shape.rows, device=requests.device)
        accepted = (rows < requests.counts.unsqueeze(1)).to(requests.dtype)
        pages = requests.page_counts, requests.table, self.pools
        bookkeeping.write_context_latents(self.latents, start, accepted, *pages)
        limits = shape.limit, shape.page, shape.block
        self.visible.copy_(
            bookkeeping.advance_context(
                requests.lengths, start, requests.counts, requests.slots, requests.page_counts, limits
            )
        )
        return self.results()

    def fast(self) -> dict[str, Tensor]:
        """The kernel."""
        requests = self.requests
        if reason := why_not(self.latents, self.positions, requests.counts, *self._places()):
            raise ValueError(reason)
        self.run()
        return self.results()

    def run(self) -> None:
        """The kernel alone."""
        requests = self.requests
        keep(self.latents, self.positions, requests.counts, *self._places(), requests.shape.block)

    def results(self) -> dict[str, Tensor]:
        """What pools hold in the cells that count, and the contexts."""
        pools = {
            f"pool {layer}": pool[:, 0, 0].masked_fill(self.contested.unsqueeze(-1), 0.0)
            for layer, pool in enumerate(self.pools)
        }
        return {**pools, "lengths": self.requests.lengths.clone(), "visible": self.visible.clone()}

    def next(self) -> None:
        """The next step, from the lengths as they now are."""
        self.requests.next()
        self._draw()

    def _draw(self) -> None:
        requests, shape = self.requests, self.requests.shape
        rows = torch.arange(shape.rows, device=requests.device)
        self.positions = requests.starts().unsqueeze(1) + rows
        self.latents = requests.draw(shape.batch, shape.rows, shape.layers, shape.latent + shape.rope)
        self.latents[-1, -1, :, 0] = float("nan")
        self._contest()

    def _contest(self) -> None:
        """Note the cells that more than one row of this step goes to."""
        requests, size = self.requests, self.requests.shape.page
        last = (requests.page_counts * size - 1).unsqueeze(1)
        columns = self.positions.minimum(last).clamp(min=0)
        cells = requests.table.gather(1, columns // size).long() * size + columns % size
        writers = torch.bincount(cells.flatten(), minlength=self.contested.numel())
        self.contested |= (writers > 1).view_as(self.contested)

    def _places(self) -> tuple[Pages, Contexts]:
        requests = self.requests
        pages = Pages(requests.table, requests.page_counts, self.pools, self.addresses)
        return pages, Contexts(requests.lengths, requests.slots, self.visible, requests.shape.limit)


def cases() -> list[Case]:
    """Batches of 1, 8 and 32, holes, idle rows, all and none accepted, odd shapes, the limits reached, and 20 steps."""

    def case(
        name: str,
        shape: Shape,
        counts: tuple[int, ...],
        start: int = 5,
        steps: int = 1,
        hole: int | None = None,
        dtype: str | None = None,
    ) -> Case:
        return Case(name, lambda place: Step(Requests(shape, counts, start, place, hole)), steps, dtype)

    small = Shape()
    return [
        case("all accepted", small, (4,), steps=2),
        case("none accepted", small, (1,), steps=2),
        case("idle rows", small, (0, 2, 0), steps=2),
        case("every row idle", small, (0,)),
        case("one request", Shape(batch=1), (4,), start=0),
        case("8 requests with a hole in each table", Shape(batch=8, layers=1), (3, 0, 1), hole=1),
        case("32 requests", Shape(batch=32, drafts=1, layers=1), (2, 0, 1)),
        case("odd shapes", Shape(batch=5, drafts=4, block=5, page=3, width=37, limit=100, latent=13), (5, 2), 40),
        case("half precision", small, (4, 1), dtype="float16"),
        case("capacity reached", small, (4,), start=18, steps=2),
        case("pages used up", Shape(width=5, limit=40), (4,), start=17),
        case("20 steps", Shape(batch=2, width=16, limit=60, layers=1), (1, 4, 0, 3), start=0, steps=20),
    ]
