"""What the context's latents must be: each layer's copied out, normed and rotated, and copied back."""

from __future__ import annotations

import torch
from torch import Tensor

from optimized.cases import Case
from optimized.latent_put.reference import drawn, expected
from optimized.latents import finish, why_not
from optimized.paged import Requests, Shape
from optimized.reference_cycle.geometry import Rope
from optimized.reference_cycle.rope import rope_table


class Rows:
    """The verified rows of requests that grow, as the stacked projection leaves them."""

    def __init__(self, requests: Requests) -> None:
        self.requests, shape = requests, requests.shape
        self.norms = 1 + 0.1 * requests.draw(shape.layers, shape.latent)
        self.table = rope_table(Rope(theta=1e4), shape.rope, shape.limit + shape.rows, requests.device)
        self._project()

    def inputs(self) -> dict[str, Tensor]:
        """What was projected, where it stands, and the weights."""
        return {name: getattr(self, name) for name in ("raw", "positions", "norms", "table")}

    def poison(self) -> None:
        """There is nothing to fill: the result is a new tensor in each step."""

    def reference(self) -> dict[str, Tensor]:
        """Layer by layer."""
        self.latents = torch.empty_like(self.raw)
        for layer, norm in enumerate(self.norms):
            own = self.raw[..., layer, :].contiguous()
            self.latents[..., layer, :] = expected(own, self.positions, norm, self.table)
        return self.results()

    def fast(self) -> dict[str, Tensor]:
        """The kernel."""
        if reason := why_not(self.raw, self.positions, self.norms, self.table):
            raise ValueError(reason)
        self.run()
        return self.results()

    def run(self) -> None:
        """The kernel alone."""
        self.latents = finish(self.raw, self.positions, self.norms, self.table)

    def results(self) -> dict[str, Tensor]:
        """The latents."""
        return {"latents": self.latents.clone()}

    def next(self) -> None:
        """Contexts grow, and other rows are verified."""
        self.requests.grow()
        self._project()

    def _project(self) -> None:
        requests, shape = self.requests, self.requests.shape
        self.positions = requests.starts().unsqueeze(1) + torch.arange(shape.rows, device=requests.device)
        self.raw = drawn(requests, shape.batch, shape.rows, shape.layers, shape.latent + shape.rope)


def cases() -> list[Case]:
    """Batches of 1, 8 and 32, idle rows, all and none accepted, all sizes, the longest context, and 20 steps."""

    def case(
        name: str, shape: Shape, counts: tuple[int, ...], start: int = 5, steps: int = 1, dtype: str | None = None
    ) -> Case:
        return Case(name, lambda place: Rows(Requests(shape, counts, start, place, None)), steps, dtype)

    small = Shape(latent=64, rope=8)
    return [
        case("all accepted", small, (4,), steps=2),
        case("none accepted", small, (1,), steps=2),
        case("idle rows", small, (0, 2, 0)),
        case("every row idle", small, (0,)),
        case("one request of a drafter's size", Shape(1, 7, 7, layers=5, latent=512, rope=64), (4,), start=0),
        case("8 requests", Shape(batch=8, layers=1, latent=128, rope=16), (3, 0, 1)),
        case("32 requests", Shape(batch=32, drafts=1, block=1, layers=3, latent=16, rope=4), (2, 0, 1)),
        case("odd shapes", Shape(5, 4, 5, page=3, width=37, limit=100, layers=1, rope=6), (5, 2), start=40),
        case("half precision", small, (4, 1), dtype="float16"),
        case("capacity reached", small, (4,), start=18, steps=2),
        case("20 steps", Shape(batch=2, width=16, limit=60, latent=32), (1, 4, 0, 3), start=0, steps=20),
    ]
