"""What a layer of experts must give, in float64, and the same with the sums cut as a tile cuts them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.moe_tiles.tiles import Tile, tables

STOCK = Tile(16, 64, 128, 1, 4, 4)
"""What vLLM chooses by itself for up to 32 tokens."""


@dataclass(frozen=True)
class Shape:
    """B requests of so many tokens each, and a layer of E experts of which each token asks `top_k`."""

    batch: int = 3
    tokens: int = 2
    experts: int = 8
    top_k: int = 3
    hidden: int = 192
    intermediate: int = 160


@dataclass(frozen=True)
class Layer:
    """Weights of all experts, [E, intermediate, hidden] and [E, hidden, intermediate]."""

    up: Tensor
    down: Tensor


def exact(rows: Tensor, layer: Layer, weights: Tensor, ids: Tensor) -> Tensor:
    """The layer in float64: squared positive products, weighted and added."""
    out = torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
    for token, (row, asked) in enumerate(zip(rows.double(), ids.tolist(), strict=True)):
        for slot, expert in enumerate(asked):
            inner = (layer.up[expert].double() @ row).relu().square()
            out[token] += weights[token, slot].double() * (layer.down[expert].double() @ inner)
    return out


def tiled(rows: Tensor, layer: Layer, weights: Tensor, ids: Tensor, tile: Tile) -> Tensor:
    """The same as a GPU rounds it: by vLLM's kernel there, on a CPU by PyTorch in the kernel's order."""
    if rows.is_cuda:
        from optimized.moe_tiles.vllm import by_vllm

        return by_vllm(rows, layer.up, layer.down, weights, ids, tile)
    out = torch.zeros_like(rows)
    for token, asked in enumerate(ids.tolist()):
        parts = []
        for slot, expert in enumerate(asked):
            inner = in_blocks(rows[token], layer.up[expert], tile).to(rows.dtype).relu().square()
            parts.append((in_blocks(inner, layer.down[expert], tile) * weights[token, slot]).to(rows.dtype))
        out[token] = torch.stack(parts).float().sum(0).to(rows.dtype)
    return out


def in_blocks(row: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """One product in float32, summed over the tile's blocks of the inner dimension in turn."""
    total = torch.zeros(len(weight), device=row.device)
    for start in range(0, len(row), tile.BLOCK_SIZE_K):
        block = slice(start, start + tile.BLOCK_SIZE_K)
        total += weight[:, block].float() @ row[block].float()
    return total


class Steps:
    """Requests of which row r has advances[(r + step) mod n] tokens in a step; 0 is padding, whose tokens are zeros."""

    def __init__(self, shape: Shape, advances: tuple[int, ...], place: Place, tile: Tile | None) -> None:
        self.shape, self.pattern, self.step, self.tile, self.place = shape, advances, 0, tile, place
        self.random, self.dtype = torch.Generator().manual_seed(6), getattr(torch, place.dtype)
        up = self._draw(shape.experts, shape.intermediate, shape.hidden) * shape.hidden**-0.5
        down = self._draw(shape.experts, shape.hidden, shape.intermediate) * shape.intermediate**-0.5
        self.layer = Layer(up, down)
        self.out = torch.zeros(shape.batch * shape.tokens, shape.hidden, dtype=self.dtype, device=place.device)
        self._begin()

    def inputs(self) -> dict[str, Tensor]:
        """The tokens, whom they ask and how much these count, and the weights."""
        asked = {"rows": self.rows, "weights": self.weights, "ids": self.ids}
        return asked | {"up": self.layer.up, "down": self.layer.down}

    def poison(self) -> None:
        """Fill the output."""
        self.out.fill_(torch.nan)

    def reference(self) -> dict[str, Tensor]:
        """In float64."""
        return {"out": exact(self.rows, self.layer, self.weights, self.ids).to(self.dtype)}

    def fast(self) -> dict[str, Tensor]:
        """By the case's tile, or by that of a row for as many tokens."""
        tile = self.tile or tabled(len(self.rows))
        self.out[:] = tiled(self.rows, self.layer, self.weights, self.ids, tile)
        return {"out": self.out.clone()}

    def next(self) -> None:
        """Other tokens, which ask other experts."""
        self.step += 1
        self._begin()

    def _begin(self) -> None:
        shape, device = self.shape, self.place.device
        counts = [self.pattern[(row + self.step) % len(self.pattern)] for row in range(shape.batch)]
        real = torch.arange(shape.tokens) < torch.tensor(counts)[:, None]
        self.rows = self._draw(shape.batch * shape.tokens, shape.hidden) * real.reshape(-1, 1).to(device)
        asked = [torch.randperm(shape.experts, generator=self.random)[: shape.top_k] for _ in range(len(self.rows))]
        self.ids = torch.stack(asked).to(device, torch.int32)
        self.weights = torch.rand(len(self.rows), shape.top_k, generator=self.random).to(device)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random).to(self.place.device, self.dtype)


def tabled(tokens: int) -> Tile:
    """The tile of the first table that has one for so many tokens, else vLLM's own."""
    return next((rows[tokens] for rows in tables().values() if tokens in rows), STOCK)


def cases() -> list[Case]:
    """All and none accepted, idle rows, odd shapes, every tile of the tables, vLLM's own, and 20 steps."""

    def case(
        name: str,
        shape: Shape,
        advances: tuple[int, ...],
        tile: Tile | None = None,
        steps: int = 1,
        dtype: str | None = None,
    ) -> Case:
        return Case(name, lambda place: Steps(shape, advances, place, tile), steps, dtype)

    small, one = Shape(), Shape(batch=1, tokens=3)
    own = dict.fromkeys(tile for rows in tables().values() for tile in rows.values())
    odd = Shape(batch=3, tokens=5, experts=5, top_k=2, hidden=72, intermediate=40)
    return [
        case("all accepted", small, (2,), steps=2),
        case("none accepted", small, (1,), steps=2),
        case("idle rows", small, (0, 2, 0)),
        case("every row idle", small, (0,)),
        case("odd shapes", odd, (5, 1)),
        case("vLLM's own tile", small, (2, 1), STOCK),
        case("one sum for each block", small, (2,), replace(STOCK, BLOCK_SIZE_K=16)),
        case("half precision", small, (2,), dtype="float16"),
        case("capacity reached, each token by all experts", replace(small, top_k=8), (2,)),
        case("20 steps", one, (1, 3, 0, 2), steps=20),
        *(case(f"tile {index + 1} of the tables", one, (3,), tile) for index, tile in enumerate(own)),
    ]
