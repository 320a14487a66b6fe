"""What normed, rotated and written latents must be: PyTorch's own on a GPU, and the same arithmetic written out.

On a CPU neither PyTorch's square roots nor the ends of its complex products have the bits of Triton's interpreter, nor
has its sum the interpreter's order. There the arithmetic is written out, and the numbers are few bits long, so that
their squares add up to the same in any order. On a GPU they are any numbers, and PyTorch's own kernels decide.
"""

from __future__ import annotations

import torch
from torch import Tensor

from optimized.cases import Case
from optimized.latents import Cells, finish, why_not
from optimized.paged import Requests, Shape
from optimized.reference_cycle import bookkeeping, mla
from optimized.reference_cycle.attention import EPSILON
from optimized.reference_cycle.geometry import Rope
from optimized.reference_cycle.rope import rope_table


def written_out(raw: Tensor, positions: Tensor, norm: Tensor, table: Tensor) -> Tensor:
    """Latents [..., Dl] of raw ones at positions [...], by norm [latent] and table [positions, Dl - latent]."""
    wide, half = raw.float(), table.shape[1] // 2
    plain, first, second = wide[..., : len(norm)], wide[..., len(norm) :: 2], wide[..., len(norm) + 1 :: 2]
    mean = plain.square().sum(dim=-1, keepdim=True) * (1.0 / len(norm))
    root = (mean + EPSILON).double().sqrt().float()
    normed = norm.float() * ((1.0 / root.double()).float() * plain)
    cos, sin = table[positions].split(half, dim=-1)
    real = first.double() * cos.double() - (second * sin).double()
    imaginary = first.double() * sin.double() + (second * cos).double()
    turned = torch.stack((real.float(), imaginary.float()), dim=-1)
    return torch.cat((normed, turned.flatten(-2)), dim=-1).to(raw.dtype)


def expected(raw: Tensor, positions: Tensor, norm: Tensor, table: Tensor) -> Tensor:
    """What latents must be on the device that they are on."""
    make = mla.norm_and_rotate_latent if raw.is_cuda else written_out
    return make(raw, positions, norm, table)


def drawn(requests: Requests, *size: int) -> Tensor:
    """Normal numbers; on a CPU quarters up to 8."""
    numbers = requests.draw(*size)
    return numbers if requests.device == "cuda" else (numbers * 8).round().clamp(-32, 32) / 4


class Block:
    """One layer's block behind each of the requests, which grow as far as their pages leave room."""

    def __init__(self, requests: Requests) -> None:
        self.requests, shape = requests, requests.shape
        self.norm = 1 + 0.1 * requests.draw(shape.latent)
        rope = Rope(theta=1e4)
        self.table = rope_table(rope, shape.rope, shape.width * shape.page + shape.block, requests.device)
        size = (shape.pages, 1, 1, shape.page, shape.latent + shape.rope)
        self.pool = torch.zeros(size, dtype=requests.dtype, device=requests.device)
        self._ask()

    def inputs(self) -> dict[str, Tensor]:
        """What the layer projected, where it stands and goes, and the weights."""
        held = {name: getattr(self, name) for name in ("raw", "positions", "norm", "table")}
        return {**held, "pages": self.cells[0], "rows": self.cells[1]}

    def poison(self) -> None:
        """Fill what the block will write over."""
        self.pool[self.cells[0], 0, 0, self.cells[1]] = float("nan")

    def reference(self) -> dict[str, Tensor]:
        """The chain of operations."""
        self.own = expected(self.raw, self.positions, self.norm, self.table)
        bookkeeping.write_block_latents(self.pool, self.cells, self.own)
        return self.results()

    def fast(self) -> dict[str, Tensor]:
        """The kernel."""
        if reason := why_not(*self._asked()):
            raise ValueError(reason)
        self.run()
        return self.results()

    def run(self) -> None:
        """The kernel alone."""
        self.own = finish(*self._asked()).squeeze(-2)

    def results(self) -> dict[str, Tensor]:
        """The latents, and what the pool holds; page 0 is nobody's, and idle rows write to it at once."""
        return {"latents": self.own.clone(), "pool": self.pool[1:].clone()}

    def next(self) -> None:
        """Contexts grow, and the layer projects anew."""
        self.requests.grow()
        self._ask()

    def _ask(self) -> None:
        requests, shape = self.requests, self.requests.shape
        room = (requests.page_counts * shape.page - shape.block).clamp(min=0)
        context = requests.starts().minimum(room)
        pages, rows, _ = bookkeeping.block_cells(context, requests.table, shape.block, shape.page)
        self.cells = pages, rows
        self.positions = requests.starts().unsqueeze(1) + torch.arange(shape.block, device=requests.device)
        self.raw = drawn(requests, shape.batch, shape.block, shape.latent + shape.rope)

    def _asked(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Cells]:
        cells = Cells(self.pool, *self.cells)
        return self.raw.unsqueeze(-2), self.positions, self.norm.unsqueeze(0), self.table, cells


def cases() -> list[Case]:
    """Batches of 1, 8 and 32, idle rows, all and none accepted, all sizes, full tables, and 20 steps."""

    def case(
        name: str, shape: Shape, counts: tuple[int, ...], start: int = 5, steps: int = 1, dtype: str | None = None
    ) -> Case:
        return Case(name, lambda place: Block(Requests(shape, counts, start, place, None)), steps, dtype)

    small = Shape(latent=64, rope=8)
    return [
        case("all accepted", small, (4,), steps=2),
        case("none accepted", small, (1,), steps=2),
        case("idle rows", small, (0, 2, 0)),
        case("every row idle", small, (0,)),
        case("one request of a drafter's size", Shape(batch=1, block=7, latent=512, rope=64), (4,), start=0),
        case("8 requests", Shape(batch=8, latent=128, rope=16), (3, 0, 1)),
        case("32 requests", Shape(batch=32, drafts=1, block=1, latent=16, rope=4), (2, 0, 1)),
        case("odd shapes", Shape(batch=5, drafts=4, block=5, page=3, width=37, limit=100, rope=6), (5, 2), start=40),
        case("latents of 1024", Shape(batch=1, latent=1024, rope=2), (2,)),
        case("half precision", small, (4, 1), dtype="float16"),
        case("capacity reached", small, (4,), start=18, steps=2),
        case("20 steps", Shape(batch=2, block=1, width=16, limit=60, latent=32), (1, 4, 0, 3), start=0, steps=20),
    ]
