"""The tiles of vLLM's fused MoE kernel for one layer's shape at a few tokens, beside the one that vLLM chooses itself.

Each tile is captured in a CUDA graph of a call for each of several layers, whose weights together outgrow the GPU's
cache. Its result is first compared with float64; what is wrong or does not run is left out and named. Every tile is
timed in turns with vLLM's own choice, and the best few once more, at length. A tile is written down where the whole
interval of its ratio lies below 1.

python examples/h200_moe_tiles.py --tokens 1,3,6,12 --seconds 300 --out h200-moe-tiles

It writes h200-moe-tiles.toml, as optimized/moe_tiles/tiles.toml is read, and h200-moe-tiles.md, and needs vLLM. To
compile a tile takes a second or two, so what comes first needs the most time: the fewest tokens, and the first that
are so many that vLLM sorts them by their experts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from optimized.judging import TOLERANCES
from optimized.moe_tiles.reference import Layer, exact
from optimized.moe_tiles.tiles import Experts, Tile, written
from optimized.moe_tiles.vllm import by_vllm, name_of

DTYPE, GPU = "bfloat16", torch.device("cuda")
SHARED_BYTES = 227 * 1024
"""Shared memory that a program may have on Hopper."""
BYTES_A_SECOND = 4.3e12
"""What an H200's memory gives to a copy."""
REPLAYS, SHORT, LONG, FINALISTS = 10, 3, 40, 8


@dataclass(frozen=True)
class Shape:
    """Experts without a gate, how many of them a token asks, and how many layers take turns."""

    experts: int
    intermediate: int
    hidden: int
    top_k: int
    layers: int


@dataclass(frozen=True)
class Timed:
    """A tile's microseconds a layer, vLLM's own in the turns beside them, and each turn's ratio of the two."""

    tile: Tile
    us: float
    stock: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median."""
        return median(self.ratios)

    def interval(self) -> tuple[float, float]:
        """95% of the turns' ratios."""
        ordered, cut = sorted(self.ratios), len(self.ratios) // 40
        return ordered[cut], ordered[-1 - cut]


class Work:
    """All layers' weights, and at so many tokens what each layer is given."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.random = shape, torch.Generator("cuda").manual_seed(11)
        up, down = (shape.experts, shape.intermediate, shape.hidden), (shape.experts, shape.hidden, shape.intermediate)
        self.layers = [
            Layer(self._draw(*up, scale=up[2]), self._draw(*down, scale=down[2])) for _ in range(shape.layers)
        ]
        self.at(1)

    def at(self, tokens: int) -> None:
        """Other tokens, each of which asks other experts in every layer."""
        shape = self.shape
        self.rows = self._draw(tokens, shape.hidden)
        self.weights = torch.rand(tokens, shape.top_k, device=GPU, generator=self.random)
        self.ids = [torch.stack([self._asked() for _ in range(tokens)]) for _ in self.layers]
        self.wanted = exact(self.rows, self.layers[0], self.weights, self.ids[0])

    def layer(self, index: int, tile: Tile | None) -> torch.Tensor:
        """One layer with that tile, or with vLLM's own."""
        layer = self.layers[index]
        return by_vllm(self.rows, layer.up, layer.down, self.weights, self.ids[index], tile)

    def experts_read(self) -> float:
        """How many experts a layer reads, on average."""
        return sum(len(ids.unique()) for ids in self.ids) / len(self.ids)

    def floor_us(self) -> float:
        """The time that the weights of the experts that are asked take to be read, a layer."""
        size = 2 * self.shape.intermediate * self.shape.hidden * self.rows.element_size()
        return self.experts_read() * size / BYTES_A_SECOND * 1e6

    def captured(self, tile: Tile | None) -> Callable[[], None]:
        """A graph of a call for each layer; ValueError where the first layer's result is wrong."""
        got = self.layer(0, tile).double()
        allowed = TOLERANCES[DTYPE] * (1 + self.wanted.abs())
        if not bool(((got - self.wanted).abs() <= allowed).all()):
            raise ValueError(f"wrong by up to {float((got - self.wanted).abs().max()):.3g}")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(len(self.layers)):
                self.layer(index, tile)
        return graph.replay

    def us(self, replay: Callable[[], None]) -> float:
        """Microseconds a layer, by events around some replays."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        replay()
        begin.record()
        for _ in range(REPLAYS):
            replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / REPLAYS / len(self.layers)

    def _asked(self) -> torch.Tensor:
        order = torch.randperm(self.shape.experts, device=GPU, generator=self.random)
        return order[: self.shape.top_k].to(torch.int32)

    def _draw(self, *size: int, scale: int = 1) -> torch.Tensor:
        drawn = torch.randn(*size, device=GPU, dtype=getattr(torch, DTYPE), generator=self.random)
        return drawn.mul_(scale**-0.5)


def tiles() -> Iterator[Tile]:
    """What fits, the likeliest first."""
    grid = product((16, 32, 64, 128), (64, 128, 256), (2, 4, 8), (2, 3, 4, 5, 6))
    for n, k, warps, stages in sorted(grid, key=lambda cut: (abs(cut[1] - 128), abs(cut[0] - 64), cut[2:])):
        if (16 + n) * k * 2 * stages <= SHARED_BYTES:
            yield Tile(16, n, k, 1, warps, stages)


def timed(work: Work, stock: Callable[[], None], tile: Tile, replay: Callable[[], None], turns: int) -> Timed:
    """Both in turns, every second turn in reverse order."""
    pairs = []
    for turn in range(turns):
        order = (stock, replay) if turn % 2 == 0 else (replay, stock)
        took = {one: work.us(one) for one in order}
        pairs.append((took[replay], took[stock]))
    mine, theirs = zip(*pairs, strict=True)
    return Timed(tile, median(mine), median(theirs), tuple(one / other for one, other in pairs))


def best(work: Work, seconds: float, missing: list[str]) -> list[Timed]:
    """The fastest tiles for the tokens that it holds, timed at length, the fastest first."""
    stock, until, found = work.captured(None), time.monotonic() + seconds, []
    for tile in tiles():
        if time.monotonic() > until:
            missing.append(f"{len(work.rows)} tokens: time was up before {tile}")
            break
        try:
            replay = work.captured(tile)
        except Exception as error:
            missing.append(f"{len(work.rows)} tokens: {tile}: {' '.join(str(error).split())[:100]}")
            continue
        found.append(timed(work, stock, tile, replay, SHORT))
    found.sort(key=lambda one: one.ratio)
    again = [timed(work, stock, one.tile, work.captured(one.tile), LONG) for one in found[:FINALISTS]]
    return sorted(again, key=lambda one: one.ratio)


def table(rows: dict[int, list[Timed]], floors: dict[int, float]) -> str:
    """In markdown, the finalists of each number of tokens."""
    head = "tokens|bytes alone, us|vLLM's tile, us|tile, us|ratio (95% of turns)|N|K|warps|stages"
    lines = [f"| {head.replace('|', ' | ')} |", "|--:" * 9 + "|"]
    for tokens, found in rows.items():
        for one in found:
            low, high = one.interval()
            cut = f"{one.tile.BLOCK_SIZE_N} | {one.tile.BLOCK_SIZE_K} | {one.tile.num_warps} | {one.tile.num_stages}"
            took = f"{floors[tokens]:.1f} | {one.stock:.1f} | {one.us:.1f} | {one.ratio:.3f} ({low:.3f}–{high:.3f})"
            lines.append(f"| {tokens} | {took} | {cut} |")
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    """The options; the shape is NemotronH-30B-A3B's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1,2,3,4,6,8,9,12,16,18", help="tokens of a step, padding too")
    parser.add_argument("--seconds", type=float, default=600, help="for all of them together, about")
    parser.add_argument("--out", type=Path, default=Path("h200-moe-tiles"), help="what the files' names begin with")
    for name, value in (("experts", 128), ("intermediate", 1856), ("hidden", 2688), ("top-k", 6), ("layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> None:
    """Sweep, and write after each number of tokens, so that nothing is lost."""
    asked = arguments()
    shape = Shape(asked.experts, asked.intermediate, asked.hidden, asked.top_k, asked.layers)
    layer = Experts(name_of(GPU), DTYPE, shape.experts, shape.intermediate, shape.hidden, shape.top_k)
    work, counts = Work(shape), [int(one) for one in asked.tokens.split(",")]
    rows, floors, missing = dict[int, list[Timed]](), dict[int, float](), list[str]()
    for tokens in counts:
        work.at(tokens)
        rows[tokens], floors[tokens] = best(work, asked.seconds / len(counts), missing), work.floor_us()
        faster = {tokens: found[0].tile for tokens, found in rows.items() if found and found[0].interval()[1] < 1}
        asked.out.with_suffix(".toml").write_text(written({layer: faster}))
        asked.out.with_suffix(".md").write_text(table(rows, floors))
        print(table({tokens: rows[tokens]}, floors), flush=True)
    print("\n".join(missing), file=sys.stderr)


if __name__ == "__main__":
    main()
