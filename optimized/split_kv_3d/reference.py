"""What a block's attention must be, query by query in float64, and the situations it is judged in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.split_kv_3d.attention import Context, Plan, Scratch, Sight, attend, why_not

CUT = Plan(segments=4, tile=16, rows=16, warps=4)


@dataclass(frozen=True)
class Shape:
    """B requests of up to `queries` query tokens, and contexts of up to `capacity` tokens in pages."""

    batch: int = 3
    queries: int = 3
    key_heads: int = 2
    group: int = 3
    head_dim: int = 16
    page: int = 16
    capacity: int = 96
    window: int = 0
    causal: bool = True
    sinks: bool = True
    cut: Plan | None = CUT


def attention(query: Tensor, keys: Tensor, values: Tensor, position: int, sight: Sight) -> Tensor:
    """One query's attention in float64, [heads, head_dim], to all keys [length, key heads, head_dim].

    `position` is the query's own among the keys; zeros where it sees none.
    """
    length, key_heads = keys.shape[:2]
    grouped = query.double().reshape(key_heads, -1, query.shape[-1])
    scores = torch.einsum("ngd,tnd->ngt", grouped, keys.double()) * sight.scale
    away = position - torch.arange(length, device=keys.device)
    visible = away >= 0 if sight.causal else torch.ones_like(away, dtype=torch.bool)
    if sight.window:
        visible &= away.abs() < sight.window
    if not visible.any():
        return torch.zeros_like(query, dtype=torch.float64)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sight.sinks is not None:
        scores = torch.cat([scores, sight.sinks.double().reshape(key_heads, -1, 1)], -1)
    weights = scores.softmax(-1)[..., :length]
    return torch.einsum("ngt,tnd->ngd", weights, values.double()).reshape(query.shape)


class Block:
    """Requests that advance by advances[(row + step) mod n] tokens a step; 0 is an idle row, which has no query.

    Keys that no query of the step sees are NaN: those not written yet, and those before the window.
    """

    def __init__(self, shape: Shape, advances: tuple[int, ...], start: int, place: Place) -> None:
        self.shape, self.pattern, self.step, self.place = shape, advances, 0, place
        self.random, self.dtype = torch.Generator().manual_seed(4), getattr(torch, place.dtype)
        pages = -(-shape.capacity // shape.page)
        order = torch.randperm(shape.batch * pages, generator=self.random, dtype=torch.int32)
        self.table = order.reshape(shape.batch, pages).to(place.device)
        self.real = self._draw(shape.batch * pages, shape.page, shape.key_heads, 2 * shape.head_dim)
        heads = shape.key_heads * shape.group
        sinks = self._draw(heads).float() if shape.sinks else None
        self.sight = Sight(shape.head_dim**-0.5, shape.window, shape.causal, sinks)
        tokens, device = shape.batch * shape.queries, torch.device(place.device)
        self.scratch = Scratch(tokens, heads, shape.head_dim, device)
        self.out = torch.zeros(tokens, heads, shape.head_dim, dtype=self.dtype, device=device)
        self.lengths = torch.arange(start, start + shape.batch).clamp(max=shape.capacity)
        self._begin()

    def inputs(self) -> dict[str, Tensor]:
        """The queries, the cache, and which parts of both are whose."""
        context, sinks = self.context, self.sight.sinks
        whose = {"table": context.table, "lengths": context.lengths, "starts": context.starts}
        return {"query": self.query, "cache": self.cache, **whose} | ({} if sinks is None else {"sinks": sinks})

    def poison(self) -> None:
        """Fill the output and all that is kept between the two kernels: a part that nobody left counts."""
        for buffer, value in zip((self.out, *self.scratch.parts()), (torch.nan, torch.nan, 9.0, 1.0), strict=True):
            buffer.fill_(value)

    def reference(self) -> dict[str, Tensor]:
        """Query by query."""
        wanted = torch.zeros(self.out.shape, dtype=torch.float64, device=self.place.device)
        starts = self.context.starts.tolist()
        for row, (begin, end) in enumerate(pairwise(starts)):
            length = int(self.lengths[row])
            cached = self.real[self.table[row].long()].flatten(0, 1)[:length]
            keys, values = cached.split(self.shape.head_dim, -1)
            for token in range(begin, end):
                wanted[token] = attention(self.query[token], keys, values, length - end + token, self.sight)
        return {"out": wanted.to(self.dtype)}

    def fast(self) -> dict[str, Tensor]:
        """Split and merged by the kernels, which a CPU interprets."""
        if reason := why_not(self.query, self.context, self.out, self.shape.queries, self.scratch):
            raise ValueError(reason)
        attend(self.query, self.context, self.out, self.shape.queries, self.sight, self.scratch, self.shape.cut)
        return {"out": self.out.clone()}

    def next(self) -> None:
        """Advance the contexts and ask anew."""
        self.lengths = (self.lengths + torch.tensor(self._advances())).clamp(max=self.shape.capacity)
        self.step += 1
        self._begin()

    def _advances(self) -> list[int]:
        return [self.pattern[(row + self.step) % len(self.pattern)] for row in range(self.shape.batch)]

    def _begin(self) -> None:
        shape, device = self.shape, self.place.device
        counts = torch.tensor([min(shape.queries, max(advance, 0)) for advance in self._advances()])
        counts = counts.minimum(self.lengths)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).to(device, torch.int32)
        self.query = self._draw(shape.batch * shape.queries, shape.key_heads * shape.group, shape.head_dim)
        self.cache = torch.full_like(self.real, float("nan"))
        for row, (length, count) in enumerate(zip(self.lengths.tolist(), counts.tolist(), strict=True)):
            first = max(length - count - shape.window + 1, 0) if shape.window else 0
            place = torch.arange(first, length, device=device)
            pages, within = self.table[row].long()[place // shape.page], place % shape.page
            self.cache[pages, within] = self.real[pages, within]
        keys, values = self.cache.split(shape.head_dim, -1)
        self.context = Context(keys, values, self.table, self.lengths.to(device, torch.int32), starts)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random).to(self.place.device, self.dtype)


def cases() -> list[Case]:
    """All and none accepted, idle rows, windows, blocks that see ahead, odd shapes, the table's end, and 20 steps."""

    def case(
        name: str, shape: Shape, advances: tuple[int, ...], start: int = 20, steps: int = 1, dtype: str | None = None
    ) -> Case:
        return Case(name, lambda place: Block(shape, advances, start, place), steps, dtype)

    small = Shape()
    one = Shape(batch=1, key_heads=1, group=2, cut=Plan(2, 16, 16, 4))
    return [
        case("all accepted", small, (3,), steps=2),
        case("none accepted", small, (1,), steps=2),
        case("idle rows", small, (0, 3, 0)),
        case("every row idle", small, (0,), start=0),
        case("a window", replace(small, window=21), (3, 2), start=60),
        case("a block that sees ahead", replace(small, causal=False, sinks=False), (3,), start=31),
        case("a window ahead and behind", replace(small, causal=False, window=2), (3,), start=47),
        case("odd shapes", Shape(2, 5, 1, 7, head_dim=24, page=48, cut=Plan(8, 32, 64, 4)), (5, 1), start=51),
        case("more rows than a program's", Shape(1, 8, 1, 5, cut=Plan(2, 16, 16, 4)), (8,), start=33),
        case("its own plan", Shape(1, 2, 1, 4, window=40, cut=None), (2,), start=90),
        case("half precision", small, (3,), dtype="float16"),
        case("capacity reached", one, (3,), start=94, steps=2),
        case("20 steps", replace(one, window=20), (1, 3, 0, 2), start=0, steps=20),
    ]
