"""What caches of pages must hold, in vLLM's order written out, and the situations it is judged in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.context_norm_rope.caching import Norms, Pages, apart, to_pages
from optimized.head_order import rms_norm_in_pairs
from optimized.reference_cycle.geometry import Rope
from optimized.reference_cycle.rope import rope_table, rotate_halves

LONGEST = 300
PLAIN, YARN = Rope(theta=1e4), Rope(1e4, factor=32.0, original_context=16, truncate=False)


@dataclass(frozen=True)
class Shape:
    """Tokens of a step and where they go: `groups` of layers have pages of their own, every `idle`-th token none."""

    tokens: int = 6
    layers: int = 3
    heads: int = 2
    width: int = 16
    page: int = 4
    pages: int = 9
    groups: int = 1
    idle: int = 0
    paged: bool = True
    epsilon: float = 1e-6
    rope: Rope = PLAIN


class Filling:
    """Caches of which a step fills some cells, never one twice; their heads lie before their slots, as vLLM's do."""

    def __init__(self, shape: Shape, place: Place) -> None:
        self.shape, self.place = shape, place
        self.random, self.dtype = torch.Generator().manual_seed(13), getattr(torch, place.dtype)
        table = rope_table(shape.rope, shape.width, LONGEST, place.device).to(self.dtype)
        self.norms = Norms(1 + 0.1 * self._draw(shape.layers, shape.width), table, shape.epsilon)
        size = (shape.pages, shape.heads, shape.page, 2 * shape.width)
        self.caches = [self._draw(*size).transpose(1, 2) for _ in range(shape.layers)]
        self.next()

    def inputs(self) -> dict[str, Tensor]:
        """The projections, where they go, and the weights."""
        own = {"raw": self.raw, "positions": self.positions, "slots": self.slots}
        return {**own, "norms": self.norms.weights, "table": self.norms.table}

    def poison(self) -> None:
        """Fill the cells that the step writes, and no others: they are kept."""
        for layer, cache in enumerate(self.caches):
            pages, columns = self._cells(layer)
            cache[pages, columns] = float("nan")

    def reference(self) -> dict[str, Tensor]:
        """Layer by layer, in vLLM's order."""
        made = []
        for layer, cache in enumerate(self.caches):
            keys, values = self.raw[:, layer].unbind(1)
            normed = rms_norm_in_pairs(keys, self.norms.weights[layer], self.shape.epsilon)
            both = torch.cat((rotate_halves(normed, self.positions, self.norms.table.float()), values), dim=-1)
            pages, columns = self._cells(layer)
            cache[pages, columns] = both[self._slots(layer) >= 0]
            made.append(both)
        return self._results(torch.stack(made))

    def fast(self) -> dict[str, Tensor]:
        """In one launch, to the pages or to a tensor of its own."""
        if not self.shape.paged:
            return self._results(torch.cat(apart(self.raw, self.positions, self.norms).unbind(), dim=-1))
        halves = [cache.split(self.shape.width, dim=-1) for cache in self.caches]
        keys, values = ([pair[half] for pair in halves] for half in (0, 1))
        slots = [self._slots(layer) for layer in range(self.shape.layers)]
        to_pages(self.raw, self.positions, self.norms, Pages.of(keys, values, slots), slots[0])
        return self._results(None)

    def next(self) -> None:
        """Other tokens, for other cells."""
        shape, device = self.shape, self.place.device
        cells = shape.pages * shape.page
        orders = [torch.randperm(cells, generator=self.random)[: shape.tokens] for _ in range(shape.groups)]
        self.slots = torch.stack(orders).to(device)
        if shape.idle:
            self.slots[:, :: shape.idle] = -1
        self.positions = torch.randint(LONGEST, (shape.tokens,), generator=self.random).to(device)
        self.raw = self._draw(shape.tokens, shape.layers, 2, shape.heads, shape.width)

    def _slots(self, layer: int) -> Tensor:
        return self.slots[layer % self.shape.groups]

    def _cells(self, layer: int) -> tuple[Tensor, Tensor]:
        slots = self._slots(layer)
        used = slots[slots >= 0]
        return used // self.shape.page, used % self.shape.page

    def _results(self, made: Tensor | None) -> dict[str, Tensor]:
        if self.shape.paged or made is None:
            return {"caches": torch.stack(self.caches)}
        return {"keys and values": made}

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random).to(self.place.device, self.dtype)


def cases() -> list[Case]:
    """Every width of a head, groups with pages of their own, tokens without a cell, YaRN's table, and 20 steps."""
    small = Shape()

    def case(name: str, shape: Shape, steps: int = 1, dtype: str | None = None) -> Case:
        return Case(f"pages, {name}", lambda place: Filling(shape, place), steps, dtype)

    return [
        case("all tokens", small, 3),
        case("tokens without a cell", replace(small, idle=2), 2),
        case("no token has a cell", replace(small, idle=1)),
        case("two groups of layers", replace(small, groups=2, idle=3), 2),
        case("odd shapes", Shape(5, 2, 3, 8, 3, 5)),
        case("one token of one layer", Shape(1, 1, 1, 32)),
        case("heads of 64", Shape(3, 5, 1, 64)),
        case("heads of 128", Shape(7, 5, 2, 128, 16)),
        case("heads of 256", Shape(2, 2, 2, 256)),
        case("a table of YaRN's", replace(small, rope=YARN)),
        case("another epsilon", replace(small, epsilon=1e-1)),
        case("half precision", replace(small, width=128), dtype="float16"),
        case("full", Shape(36, 2, 1, 16, 4, 9)),
        case("none but a tensor", replace(small, paged=False), 2),
        case("none but a tensor, heads of 128", Shape(3, 5, 2, 128, paged=False)),
        case("20 steps", small, 20),
    ]
