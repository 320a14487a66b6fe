"""What the cache must give: attention over the keys and values of every accepted state, made anew from the states."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.cases import Case, Place
from optimized.context_kv_cache.switch import ContextCaches
from optimized.reference_cycle.attention import rms_norm
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dflash import DFlashDrafter, DFlashLayer
from optimized.reference_cycle.geometry import DFlashShape, Geometry
from optimized.reference_cycle.rope import rotate_halves
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target

SHAPE = DFlashShape(layers=3, heads=4, kv_heads=2, head_dim=8, intermediate=16)
SMALL = Geometry(
    "case", hidden=24, layers=2, head_dim=8, intermediate=16, vocab=31, taps=(0,), mask_token=30, dflash=SHAPE
)


class Context:
    """A drafter with prompts in its first `busy` rows, accepting counts[(row + step) mod n] rows a step.

    `history` keeps, by slot, the projected states that were accepted; the reference needs nothing else.
    """

    def __init__(self, settings: Settings, busy: int, counts: tuple[int, ...], prompt: int) -> None:
        self.settings, self.pattern, self.step = settings, counts, 0
        self.random = torch.Generator().manual_seed(3)
        batch = Batch(settings)
        self.drafter, self.switch = DFlashDrafter(settings, Target(settings), batch), ContextCaches()
        self.history: dict[int, Tensor] = {}
        for row in range(busy):
            slot, length = settings.batch - 1 - row, max(prompt - row, 1)
            taps = self._random(length, settings.geometry.hidden)
            self.drafter.admit(row, slot, taps, [0] * len(taps))
            self.switch.remember_prompt(self.drafter, row, slot, taps)
            self.history[slot] = self.drafter.project(taps)
            self.drafter.slots[row] = slot
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The verified rows' taps, what was accepted of them, and the block's heads."""
        drafter = self.drafter
        held = {"captured": drafter.captured, "counts": drafter.queries.counts, "slots": drafter.slots}
        return {**held, "queries": self.block[0], "keys": self.block[1], "values": self.block[2]}

    def poison(self) -> None:
        """Fill every column that holds no context yet, and the block's."""
        held = self.switch.cache_of(self.drafter)
        for slot in range(self.settings.batch + 1):
            end = int(self.drafter.context_lengths[slot])
            for part in (held.keys, held.values):
                part[:, slot, end:] = 1e4
            self.drafter.projected[slot, end:] = 1e4

    def reference(self) -> dict[str, Tensor]:
        """Row by row and layer by layer, from the history."""
        kept, longest = self.drafter.project(self.drafter.captured), self.settings.draft_context
        for row, slot in self._seated():
            grown = torch.cat((self.history[slot], kept[row, : int(self.drafter.queries.counts[row])]))
            self.history[slot] = grown[:longest]
        self.drafter.advance()
        seen = {
            f"layer {index}": torch.stack([self._attention(layer, row, slot) for row, slot in self._seated()])
            for index, layer in enumerate(self.drafter.layers)
            if self.history
        }
        lengths = [len(self.history.get(slot, ())) for slot in range(self.settings.batch + 1)]
        spoilt = torch.zeros(self.settings.batch, longest, dtype=torch.bool, device=self.settings.device)
        return {**seen, "lengths": torch.tensor(lengths, device=self.settings.device), "spoilt": spoilt}

    def fast(self) -> dict[str, Tensor]:
        """With the cache: the stock `remember`, but for the keys and values of the rows, and attention in place."""
        drafter, before, ends = self.drafter, self._held(), self._ends()
        drafter.recompute = partial(self.switch.recompute, drafter)  # type: ignore[method-assign]
        drafter.remember()
        drafter.advance()
        self.switch.seat(drafter)
        drafter.metadata()
        rows = [row for row, _ in self._seated()]
        attended = [self.switch.attend(drafter, index, *self.block) for index in range(len(drafter.layers))]
        seen = {f"layer {index}": answer[rows] for index, answer in enumerate(attended) if rows}
        spoilt = (self._held() != before).any(dim=-1) & (self._range(before.shape[1]) < ends.unsqueeze(1))
        return {**seen, "lengths": drafter.context_lengths.clone(), "spoilt": spoilt}

    def next(self) -> None:
        """Verify other rows."""
        self.step += 1
        self._draw()

    def _held(self) -> Tensor:
        """All that is kept of each column of each request's slot: [B, max_ctx, numbers]."""
        held, longest = self.switch.cache_of(self.drafter), self.settings.draft_context
        parts = [part[:, :-1, :longest].movedim(0, 2).flatten(2) for part in (held.keys, held.values)]
        return torch.cat((*parts, self.drafter.projected[:-1]), dim=-1)

    def _ends(self) -> Tensor:
        """How many columns of each slot no step may change, int64 [B]: its context, or all where nobody is in it."""
        taken = torch.isin(self._range(self.settings.batch), self.drafter.slots)
        return self.drafter.context_lengths[:-1].masked_fill(~taken, self.settings.draft_context)

    def _seated(self) -> list[tuple[int, int]]:
        return [(row, slot) for row, slot in enumerate(self.drafter.slots.tolist()) if slot in self.history]

    def _attention(self, layer: DFlashLayer, row: int, slot: int) -> Tensor:
        """Softmax attention [S, heads, head_dim] of one row, head by head and in float32."""
        states, shape = self.history[slot], self.settings.geometry.dflash
        queries, keys, values = (part[row].float() for part in self.block)
        size, length = shape.kv_heads * shape.head_dim, len(states)
        made = F.linear(states, layer.qkv[-2 * size :]).unflatten(-1, (2, shape.kv_heads, shape.head_dim))
        positions = self._range(length)
        turned = rotate_halves(rms_norm(made[:, 0], layer.norms.key), positions, layer.norms.table)
        keys, values = torch.cat((turned.float(), keys)), torch.cat((made[:, 1].float(), values))
        column, own = self._range(length + len(queries)), length + self._range(len(queries)).unsqueeze(1)
        hidden = column > (own if layer.causal else len(column))
        if layer.window is not None:
            hidden = hidden | (column <= own - layer.window)
        heads = []
        for head in range(shape.heads):
            of = head * shape.kv_heads // shape.heads
            scores = (queries[:, head] @ keys[:, of].T * shape.head_dim**-0.5).masked_fill(hidden, float("-inf"))
            sink = scores.new_full((len(queries), 1), float("-inf")) if layer.sinks is None else layer.sinks[head]
            shares = torch.cat((scores, torch.as_tensor(sink).expand(len(queries), 1)), dim=1).softmax(dim=1)
            heads.append(shares[:, :-1] @ values[:, of])
        return torch.stack(heads, dim=1).to(states.dtype)

    def _draw(self) -> None:
        drafter, shape, batch = self.drafter, self.settings.geometry.dflash, self.settings.batch
        drafter.captured.copy_(self._random(*drafter.captured.shape))
        counts = torch.tensor([self.pattern[(row + self.step) % len(self.pattern)] for row in range(batch)])
        drafter.queries.counts.copy_(counts)
        first = drafter.context_lengths[drafter.slots].unsqueeze(1)
        drafter.queries.context_positions.copy_(first + self._range(self.settings.speculative + 1))
        sizes = (shape.heads, shape.kv_heads, shape.kv_heads)
        self.block = tuple(self._random(batch, drafter.block, heads, shape.head_dim) for heads in sizes)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random).to(self.settings.device, self.settings.torch_dtype)

    def _range(self, size: int) -> Tensor:
        return torch.arange(size, device=self.settings.device)


def cases() -> list[Case]:
    """Windows, sinks, odd shapes, idle rows, all and none accepted, the longest context reached, and 20 steps."""
    settings = Settings(SMALL, draft_length=3, batch=3, context=40, page_size=8)

    def case(
        name: str,
        busy: int,
        counts: tuple[int, ...],
        prompt: int,
        steps: int = 1,
        at: Settings = settings,
        dtype: str | None = None,
        **shape: object,
    ) -> Case:
        geometry = replace(SMALL, dflash=replace(SHAPE, **shape))  # type: ignore[arg-type]

        def make(place: Place) -> Context:
            settings = replace(at, geometry=geometry, device=place.device, dtype=place.dtype)
            return Context(settings, busy, counts, prompt)

        return Case(name, make, steps, dtype)

    odd = replace(settings, batch=5, draft_length=5, context=37)
    return [
        case("all accepted", 3, (4,), 9, 3),
        case("none accepted", 3, (1,), 9, 3),
        case("idle rows", 1, (2, 1), 5, 2),
        case("every row idle", 0, (1,), 1),
        case("odd shapes", 5, (2, 6, 1), 11, 2, odd, heads=3, kv_heads=3, head_dim=6, layers=1),
        case("windows and sinks", 3, (2, 4), 20, 3, windows=(None, 6), sinks=True, causal_windows=True),
        case("windows", 3, (4, 1), 20, 3, windows=(5, None)),
        case("capacity reached", 1, (4,), 36),
        case("half precision", 3, (4, 2), 9, 3, dtype="float16"),
        case("20 steps", 3, (1, 4, 2), 5, 20, replace(settings, context=90)),
    ]
