"""What a drafter drafts, request by request, and a small drafter of which a graph is replayed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.skip_draft_rebuild.replays import WithoutRebuild, WithRebuild

POISON, MODULUS, PAD, SIGHT = -(2**30), 9973, -1, 5
GRAPHS = (2, 4, 8)
"""Graphs are captured for so many requests; a batch is padded to the next one, and beyond the last there is none."""


@dataclass(frozen=True)
class Shape:
    """B requests of K drafts each, in a cache of so many blocks of so many tokens for each."""

    batch: int
    drafts: int
    blocks: int = 6
    block_size: int = 4

    @property
    def capacity(self) -> int:
        """Tokens that a request can hold."""
        return self.blocks * self.block_size


@dataclass(frozen=True)
class Builder:
    """Makes metadata of the drafter's buffers.

    With R-SWA a query sees a prefix of its request and the last tokens: then it keeps the prefixes for the graph.
    """

    rswa_window: int | None = None

    @property
    def keeps(self) -> bool:
        """Whether a graph reads what it leaves behind."""
        return self.rswa_window is not None

    def build(self, drafter: Step, rows: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The contexts and blocks of so many rows, and their prefixes where it keeps them."""
        if not self.keeps:
            return drafter.contexts[:rows], drafter.blocks[:rows], None
        drafter.prefixes[: len(drafter.seen)].copy_(drafter.seen)
        return drafter.contexts[:rows], drafter.blocks[:rows], drafter.prefixes[:rows]


class Strange(Builder):
    """Keeps the prefixes without a word."""

    keeps = True


class Step:
    """Requests of which row r advances by advances[(r + step) mod n] tokens; each drafts K tokens from what it sees.

    `propose` has the order of vLLM's: with `updates` a FULL graph updates its own metadata, and only what has none is
    built for.
    """

    def __init__(
        self, shape: Shape, advances: tuple[int, ...], builders: tuple[Builder, ...], place: Place, *, restored: bool
    ) -> None:
        rows, random = max(shape.batch, GRAPHS[-1]), torch.Generator().manual_seed(5)
        self.shape, self.pattern, self.step, self.device, self.built = shape, advances, 0, place.device, 0
        self.lengths = torch.zeros(shape.batch, dtype=torch.int64, device=place.device)
        self.seen = torch.zeros_like(self.lengths)
        self.table = torch.randperm(rows * shape.blocks, generator=random).view(rows, -1).to(place.device)
        self.cache = torch.randint(1, MODULUS, (rows * shape.capacity,), generator=random).to(place.device)
        self.contexts, self.blocks = torch.zeros(rows, dtype=torch.int64, device=place.device), self.table.clone()
        self.prefixes = torch.zeros_like(self.contexts)
        self.slots = torch.zeros(rows, shape.drafts, dtype=torch.int64, device=place.device)
        self.drafted = torch.zeros_like(self.slots)
        self.attn_groups = [[SimpleNamespace(get_metadata_builder=lambda one=one: one)] for one in builders]
        self.block_tables, self.kv_cache_config = SimpleNamespace(cp_size=1), SimpleNamespace(kv_cache_groups=("one",))
        self.supports_decode_metadata_update = restored and not any(one.keeps for one in builders)
        self.replays: WithoutRebuild | WithRebuild = WithRebuild(Builder) if restored else WithoutRebuild(Builder)
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The contexts, the prefixes and the blocks."""
        return {name: getattr(self, name) for name in ("lengths", "seen", "table")}

    def poison(self) -> None:
        """Fill the drafts, and the buffers that are written anew in each step."""
        for buffer in (self.drafted, self.contexts, self.slots):
            buffer.fill_(POISON)
        self.prefixes[: self.shape.batch] = POISON

    def reference(self) -> dict[str, Tensor]:
        """Request by request and token by token; metadata is built in every step."""
        cache, table, drafts = self.cache.tolist(), self.table.tolist(), range(self.shape.drafts)
        size, windowed = self.shape.block_size, any(one.keeps for one in self._builders())
        for row, (length, seen) in enumerate(zip(self.lengths.tolist(), self.seen.tolist(), strict=True)):
            slots = [table[row][at // size] * size + at % size for at in range(length + self.shape.drafts)]
            for draft in drafts:
                cache[slots[length + draft]] = (length + 7 * draft + row) % MODULUS
            for draft in drafts:
                reach = length + 1 + draft
                visible = [at for at in range(reach) if not windowed or at < seen or at >= reach - SIGHT]
                self.drafted[row, draft] = sum(cache[slots[at]] * (at + 1) for at in visible) % MODULUS
        self.cache = torch.tensor(cache, device=self.device)
        self.built += 1
        return self._results()

    def fast(self) -> dict[str, Tensor]:
        """The drafter's own way, with the optimization around its parts."""
        self._fill()
        replays = self.replays
        rows, full = self.shape.batch, self.shape.batch <= GRAPHS[-1]
        (chosen,) = replays.dispatching(self._dispatch)()
        if full:
            rows = chosen.num_reqs
            if isinstance(replays, WithRebuild):
                replays.preparing(lambda drafter: None)(self)
        metadata, slots = None, None
        if not (full and self.supports_decode_metadata_update):
            build = replays.building(Step._build) if isinstance(replays, WithoutRebuild) else Step._build
            metadata = build(self, rows)
            slots = dict.fromkeys(self.kv_cache_config.kv_cache_groups, self.slots[:rows])
        replays.settling(lambda: None)()
        if full:
            kept = self.prefixes[:rows] if any(one.keeps for one in self._builders()) else None
            self._run((self.contexts[:rows], self.blocks[:rows], kept), self.slots[:rows])
        else:
            assert metadata is not None
            assert slots is not None
            self._run(metadata, slots["one"])
        return self._results()

    def next(self) -> None:
        """Advance the contexts as far as their tables reach."""
        self.lengths = (self.lengths + self.advances).clamp(max=self.shape.capacity - self.shape.drafts)
        self.step += 1
        self._draw()

    def _builders(self) -> Iterable[Builder]:
        return (group.get_metadata_builder() for groups in self.attn_groups for group in groups)

    def _dispatch(self) -> tuple[Any, ...]:
        sizes = [size for size in GRAPHS if size >= self.shape.batch]
        mode = SimpleNamespace(name="FULL" if sizes else "NONE")
        return (SimpleNamespace(cg_mode=mode, num_reqs=sizes[0] if sizes else self.shape.batch),)

    def _build(self, rows: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """What every builder makes; a drafter without one reads its buffers."""
        self.built += 1
        made = [one.build(self, rows) for one in self._builders()]
        return made[-1] if made else Builder().build(self, rows)

    def _fill(self) -> None:
        """The buffers that a graph reads, padded rows without a context or a slot."""
        batch, size = self.shape.batch, self.shape.block_size
        self.contexts.zero_()[:batch] = self.lengths
        at = self.lengths[:, None] + torch.arange(self.shape.drafts, device=self.device)
        self.slots.fill_(PAD)[:batch] = self.table[:batch].gather(1, at // size) * size + at % size

    def _run(self, metadata: tuple[Tensor, Tensor, Tensor | None], slots: Tensor) -> None:
        """The layers: keep what is drafted in its slots, then add up what each query sees."""
        (contexts, blocks, prefixes), size = metadata, self.shape.block_size
        row, draft = (torch.arange(count, device=self.device) for count in slots.shape)
        written = (contexts[:, None] + 7 * draft + row[:, None]) % MODULUS
        self.cache[slots[slots != PAD]] = written[slots != PAD]
        at = torch.arange(self.shape.capacity, device=self.device)
        reach = (contexts[:, None] + 1 + draft)[..., None]
        visible = at < reach
        if prefixes is not None:
            visible &= (at < prefixes[:, None, None]) | (at >= reach - SIGHT)
        values = self.cache[blocks[:, at // size] * size + at % size] * (at + 1)
        self.drafted[: len(slots)] = (values[:, None] * visible).sum(-1) % MODULUS

    def _results(self) -> dict[str, Tensor]:
        found = {"drafted": self.drafted[: self.shape.batch].clone(), "cache": self.cache.clone()}
        if isinstance(self.replays, WithRebuild):
            found["built"] = torch.tensor(self.built, device=self.device)
        return found

    def _draw(self) -> None:
        rows = range(self.shape.batch)
        advances = [self.pattern[(row + self.step) % len(self.pattern)] for row in rows]
        self.advances = torch.tensor(advances, device=self.device)
        self.seen = torch.tensor([(row + self.step) % 3 for row in rows], device=self.device)


def _case(
    name: str, shape: Shape, advances: tuple[int, ...], *builders: Builder, steps: int = 4, restored: bool = False
) -> Case:
    chosen = builders or (Builder(),)
    return Case(name, lambda place: Step(shape, advances, chosen, place, restored=restored), steps)


def _both(restored: bool) -> list[Case]:
    def case(name: str, shape: Shape, advances: tuple[int, ...], *builders: Builder, steps: int = 4) -> Case:
        return _case(name, shape, advances, *builders, steps=steps, restored=restored)

    return [
        case("all accepted", Shape(4, 3), (4,)),
        case("none accepted", Shape(4, 3), (1,)),
        case("idle rows, and padded ones", Shape(5, 3), (0, 2, 0)),
        case("every row idle, no context", Shape(3, 3), (0,)),
        case("odd shapes", Shape(7, 5, blocks=5, block_size=3), (1, 6, 2)),
        case("one request of a padded graph", Shape(1, 3), (3,)),
        case("more requests than any graph", Shape(9, 2), (3, 1)),
        case("capacity reached", Shape(3, 3), (9,)),
        case("two groups", Shape(4, 3), (2, 3), Builder(), Builder()),
        case("20 steps", Shape(4, 3, blocks=20), (1, 4, 2, 3), steps=20),
    ]


def cases() -> list[Case]:
    """All and none accepted, idle and padded rows, odd sizes, no graph, 20 steps, and builders that keep something."""
    return [
        *_both(False),
        _case("R-SWA", Shape(4, 3), (2, 3), Builder(SIGHT)),
        _case("a strange builder", Shape(3, 3), (2, 3), Builder(), Strange()),
    ]


def restored_cases() -> list[Case]:
    """The same where the graph updates its metadata, which is built all the same; and one that vLLM rebuilds itself."""
    return [*_both(True), _case("R-SWA", Shape(4, 3), (2, 3), Builder(SIGHT), restored=True)]
