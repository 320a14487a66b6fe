"""What norm and rotation must give, in the pinned order written out, and the situations it is judged in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.head_order import rms_norm_in_order, rms_norm_in_pairs
from optimized.qk_norm_rope import over_heads, pairs
from optimized.qk_norm_rope.heads import norm_and_rotate
from optimized.reference_cycle import attention
from optimized.reference_cycle.attention import HeadNorms
from optimized.reference_cycle.geometry import Rope
from optimized.reference_cycle.rope import rope_table, rotate_halves

TABLE = 4200
"""Positions of the table: more than 4096."""


@dataclass(frozen=True)
class Shape:
    """B requests and blocks of S tokens; `advances` of the requests take turns, 0 is an idle row."""

    batch: int = 3
    block: int = 4
    heads: int = 4
    kv_heads: int = 2
    width: int = 16
    advances: tuple[int, ...] = (4, 1)
    start: int = 7
    epsilon: float = 1e-6
    extent: float = 1.0


class Block:
    """Blocks at the ends of contexts that grow; what qkv holds is drawn anew in each step."""

    def __init__(self, shape: Shape, place: Place) -> None:
        self.shape, self.place, self.step = shape, place, 0
        self.random, self.dtype = torch.Generator().manual_seed(11), getattr(torch, place.dtype)
        table = rope_table(Rope(theta=1e4), shape.width, TABLE, place.device)
        query, key = (1 + 0.1 * self._draw(shape.width) for _ in range(2))
        self.norms = HeadNorms(query, key, table, shape.heads, shape.kv_heads, Rope(theta=1e4), shape.epsilon)
        self.lengths = torch.arange(shape.start, shape.start + shape.batch, device=place.device)
        self._begin()

    def inputs(self) -> dict[str, Tensor]:
        """What the layer projected, where it stands, and the weights."""
        norms = self.norms
        return {
            "qkv": self.qkv,
            "positions": self.positions,
            "table": norms.table,
            "query": norms.query,
            "key": norms.key,
        }

    def poison(self) -> None:
        """There is nothing to fill: the results are new tensors in each step."""

    def reference(self) -> dict[str, Tensor]:
        """The stock chain on a GPU, whose order is the pinned one; that order written out on a CPU."""
        if self.place.device == "cuda":
            return _named(attention.qk_norm_rope(self.qkv, self.positions, self.norms))
        shape, norms = self.shape, self.norms
        heads = self.qkv.unflatten(-1, (-1, shape.width))
        queries, keys, values = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        turned = [
            rotate_halves(rms_norm_in_order(part, weight, shape.epsilon), self.positions, norms.table)
            for part, weight in ((queries, norms.query), (keys, norms.key))
        ]
        return _named((turned[0], turned[1], values))

    def fast(self) -> dict[str, Tensor]:
        """In one launch."""
        return _named(norm_and_rotate(self.qkv, self.positions, self.norms))

    def next(self) -> None:
        """Advance the contexts, as far as the table goes, and project anew."""
        self.lengths = (self.lengths + self._advances()).clamp(max=TABLE - self.shape.block)
        self.step += 1
        self._begin()

    def _advances(self) -> Tensor:
        pattern, rows = self.shape.advances, range(self.shape.batch)
        return torch.tensor([pattern[(row + self.step) % len(pattern)] for row in rows], device=self.place.device)

    def _begin(self) -> None:
        shape = self.shape
        steps = torch.arange(shape.block, device=self.place.device)
        context = torch.where(self._advances() > 0, self.lengths, 0)
        self.positions = (context.clamp(max=TABLE - shape.block).unsqueeze(1) + steps).flatten()
        heads = shape.heads + 2 * shape.kv_heads
        self.qkv = shape.extent * self._draw(shape.batch * shape.block, heads * shape.width)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random).to(self.place.device, self.dtype)


class InPairs(Block):
    """The same in vLLM's order, by a table in the dtype of the heads."""

    def reference(self) -> dict[str, Tensor]:
        """That order written out."""
        shape, norms = self.shape, self._pair()
        queries, keys, _ = self.qkv.unflatten(-1, (-1, shape.width)).split(
            (shape.heads, shape.kv_heads, shape.kv_heads), dim=1
        )
        turned = [
            rotate_halves(rms_norm_in_pairs(part, weight, shape.epsilon), self.positions, norms.table.float())
            for part, weight in ((queries, norms.query), (keys, norms.key))
        ]
        return {"queries": turned[0].flatten(1), "keys": turned[1].flatten(1)}

    def fast(self) -> dict[str, Tensor]:
        """In one launch."""
        return dict(
            zip(("queries", "keys"), pairs.norm_and_rotate(self.qkv, self.positions, self._pair()), strict=True)
        )

    def _pair(self) -> over_heads.Pair:
        shape, norms = self.shape, self.norms
        table = norms.table.to(self.dtype)
        return over_heads.Pair(norms.query, norms.key, table, shape.heads, shape.kv_heads, shape.epsilon)


def _named(parts: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
    return dict(zip(("queries", "keys", "values"), parts, strict=True))


def cases() -> list[Case]:
    """Every width of a head, one key head and as many as heads, huge and tiny numbers, the table's end, 20 steps."""
    small = Shape()

    def case(name: str, shape: Shape, steps: int = 1, dtype: str | None = None, kind: type[Block] = Block) -> Case:
        return Case(name, lambda place: kind(shape, place), steps, dtype)

    return [
        case("all accepted", replace(small, advances=(5,)), 3),
        case("none accepted", replace(small, advances=(1,)), 3),
        case("idle rows", replace(small, advances=(0, 3, 0)), 2),
        case("every row idle", replace(small, advances=(0,))),
        case("odd shapes", Shape(5, 3, 7, 1, 8)),
        case("as many key heads", Shape(2, 1, 3, 3, 32)),
        case("heads of 64", Shape(1, 8, 4, 2, 64)),
        case("heads of 128", Shape(1, 8, 8, 2, 128), 2),
        case("heads of 256", Shape(1, 3, 4, 2, 256), 2),
        case("huge numbers", Shape(width=64, extent=200.0)),
        case("tiny numbers", Shape(width=64, extent=1e-4)),
        case("another epsilon", replace(small, epsilon=1e-2, extent=0.1)),
        case("half precision", Shape(width=128), dtype="float16"),
        case("capacity reached", replace(small, start=TABLE - 8, advances=(4,)), 3),
        case("20 steps", small, 20),
        case("in pairs", small, 3, kind=InPairs),
        case("in pairs, odd shapes", Shape(5, 3, 7, 1, 8), kind=InPairs),
        case("in pairs, heads of 64", Shape(1, 8, 4, 2, 64), kind=InPairs),
        case("in pairs, heads of 128", Shape(1, 8, 8, 2, 128), 2, kind=InPairs),
        case("in pairs, heads of 256", Shape(1, 3, 4, 2, 256), kind=InPairs),
        case("in pairs, huge numbers", Shape(width=64, extent=200.0), kind=InPairs),
        case("in pairs, another epsilon", replace(small, epsilon=1e-2, extent=0.1), kind=InPairs),
        case("in pairs, half precision", Shape(width=128), dtype="float16", kind=InPairs),
        case("in pairs, 20 steps", small, 20, kind=InPairs),
    ]
