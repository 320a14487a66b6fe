"""What a block must attend to by slot, row by row and head by head in float64, and the situations it is judged in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.external_kv_append.attention import Sight, append_outside, why_not


@dataclass(frozen=True)
class Shape:
    """B requests, blocks of S tokens, `group` query heads for each of `key_heads`, and slots of `columns` columns."""

    batch: int = 3
    block: int = 4
    key_heads: int = 2
    group: int = 2
    head_dim: int = 8
    columns: int = 48
    window: int = 0
    causal: bool = False
    sinks: bool = False


def attention(queries: Tensor, keys: Tensor, values: Tensor, context: int, sight: Sight) -> Tensor:
    """Attention in float64 [S, heads, head_dim] of one block behind `context` columns to keys [context + S, ...]."""
    tokens, heads, size = queries.shape
    keys, values = (part.double().repeat_interleave(heads // part.shape[1], dim=1) for part in (keys, values))
    own = context + torch.arange(tokens, device=keys.device).unsqueeze(1)
    column = torch.arange(len(keys), device=keys.device)
    seen = column <= (own if sight.causal else torch.full_like(own, len(keys)))
    if sight.window:
        seen = seen & (column > own - sight.window)
    scores = torch.einsum("shd,chd->hsc", queries.double(), keys) * size**-0.5
    scores = scores.masked_fill(~seen, -torch.inf)
    if sight.sinks is not None:
        scores = torch.cat((scores, sight.sinks.double().view(-1, 1, 1).expand(heads, tokens, 1)), dim=-1)
    return torch.einsum("hsc,chd->shd", scores.softmax(-1)[..., : len(keys)], values)


class Blocks:
    """Requests whose contexts grow by counts[(row + step) mod n], the last `idle` of them in the dummy slot.

    Columns that hold no context are NaN. Rows sit in the slots from the last one down.
    """

    def __init__(self, shape: Shape, counts: tuple[int, ...], start: int, place: Place, idle: int = 0) -> None:
        self.shape, self.pattern, self.step, self.idle = shape, counts, 0, idle
        self.device, self.dtype = place.device, getattr(torch, place.dtype)
        self.random = torch.Generator().manual_seed(6)
        slots = [shape.batch - 1 - row if row < shape.batch - idle else shape.batch for row in range(shape.batch)]
        self.slots = torch.tensor(slots, device=place.device)
        self.lengths = [start + row for row in range(shape.batch - idle)] + [0] * idle
        pool = (shape.batch + 1, shape.columns, shape.key_heads, shape.head_dim)
        self.pools = tuple(torch.full(pool, torch.nan, dtype=self.dtype, device=place.device) for _ in range(2))
        for slot, length in zip(slots, self.lengths, strict=True):
            for part in self.pools:
                part[slot, :length] = self._draw(length, shape.key_heads, shape.head_dim)
        sinks = torch.randn(shape.key_heads * shape.group, generator=self.random).to(place.device)
        self.sight = Sight(shape.window, shape.causal, sinks if shape.sinks else None)
        self._begin()

    def inputs(self) -> dict[str, Tensor]:
        """The block, and where it goes."""
        queries, keys, values = self.block
        where = {"slots": self.slots, "columns": self.columns}
        return {"queries": queries, "keys": keys, "values": values, **where}

    def poison(self) -> None:
        """Fill every column of every slot that holds no context."""
        for slot, length in zip(self.slots.tolist(), self.lengths, strict=True):
            for part in self.pools:
                part[slot, length:] = torch.nan

    def reference(self) -> dict[str, Tensor]:
        """Row by row."""
        queries, keys, values = self.block
        seen = []
        for row, (slot, length) in enumerate(self._real()):
            for pool, own in zip(self.pools, (keys, values), strict=True):
                pool[slot, length : length + self.shape.block] = own[row]
            all_keys, all_values = (pool[slot, : length + self.shape.block] for pool in self.pools)
            seen.append(attention(queries[row], all_keys, all_values, length, self.sight).to(self.dtype))
        return self._results(torch.stack(seen) if seen else queries[:0])

    def fast(self) -> dict[str, Tensor]:
        """Written by an indexed copy, and then attended to by slot."""
        if reason := why_not(self.block, self.pools, (self.slots, self.columns)):
            raise ValueError(reason)
        seen = append_outside(self.block, self.pools, (self.slots, self.columns), self.sight)
        return self._results(seen[: len(self._real())])

    def next(self) -> None:
        """Take some of the block into the context, as far as there is room, and ask anew."""
        self.step += 1
        last = self.shape.columns - self.shape.block
        for row in range(len(self._real())):
            grown = self.lengths[row] + self.pattern[(row + self.step) % len(self.pattern)]
            self.lengths[row] = min(grown, last)
        self._begin()

    def _real(self) -> list[tuple[int, int]]:
        return list(zip(self.slots.tolist(), self.lengths, strict=True))[: self.shape.batch - self.idle]

    def _results(self, seen: Tensor) -> dict[str, Tensor]:
        held = [pool[slot, : length + self.shape.block] for slot, length in self._real() for pool in self.pools]
        kept = {"kept": torch.cat(held).clone()} if held else {}
        return {"seen": seen.clone(), "untouched": self._free().isnan(), **kept}

    def _free(self) -> Tensor:
        """The slots and columns behind every block, which stay as they were: all of them NaN."""
        free = self.pools[0][:-1].clone()
        for slot, length in self._real():
            free[slot, : length + self.shape.block] = torch.nan
        return free

    def _begin(self) -> None:
        shape = self.shape
        heads = (shape.key_heads * shape.group, shape.key_heads, shape.key_heads)
        queries, keys, values = (self._draw(shape.batch, shape.block, count, shape.head_dim) for count in heads)
        self.block = queries, keys, values
        first = torch.tensor(self.lengths, device=self.device).unsqueeze(1)
        self.columns = first + torch.arange(shape.block, device=self.device)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self.random).to(self.device, self.dtype)


def cases() -> list[Case]:
    """Windows, sinks, causal blocks, odd shapes, idle rows, all and none accepted, full slots, and 20 steps."""

    def case(
        name: str,
        shape: Shape,
        counts: tuple[int, ...],
        start: int = 9,
        steps: int = 1,
        idle: int = 0,
        dtype: str | None = None,
    ) -> Case:
        return Case(name, lambda place: Blocks(shape, counts, start, place, idle), steps, dtype)

    small = Shape()
    return [
        case("all accepted", small, (4,), steps=2),
        case("none accepted", small, (1,), steps=2),
        case("idle rows", small, (2,), idle=2),
        case("every row idle", small, (1,), idle=3),
        case("odd shapes", Shape(2, 5, 3, 1, 6, 40), (5, 1), 29),
        case("more rows than a program's", Shape(1, 9, 1, 8, 16, 60), (3,), 41),
        case("a window and sinks", replace(small, window=6, sinks=True), (2,), 20),
        case("a causal window", replace(small, window=3, causal=True), (2,), 33),
        case("an empty context", replace(small, batch=1, sinks=True), (1,), 0),
        case("half precision", small, (4,), dtype="float16"),
        case("capacity reached", replace(small, batch=1), (4,), 40, 3),
        case("20 steps", Shape(2, 3, 1, 2, 8, 40), (1, 3, 2), 1, 20),
    ]
