"""What K + 1 rows must give: the first K + 1 of 2K rows, in logits, taps and committed states, and no row besides."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.geometry import Geometry
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import AttentionLayer, Target
from optimized.verify_k_plus_one.rows import FewerRows

SMALL = Geometry("case", hidden=32, layers=2, head_dim=8, intermediate=40, vocab=61, taps=(0, 1), mask_token=60)


class Verification:
    """A target with `busy` requests cached, whose drafts are accepted in `accepted` numbers, b-th row and step."""

    def __init__(self, settings: Settings, busy: int, accepted: tuple[int, ...], cached: int) -> None:
        self.settings, self.accepted, self.step = settings, accepted, 0
        self.random = torch.Generator().manual_seed(1)
        self.target, self.batch = Target(settings), Batch(settings)
        self.asked = FewerRows().stand_ins()["Target.rows_per_request"](Target.rows_per_request)
        for row in range(busy):
            slot = settings.batch - 1 - row
            pages = list(range(1 + slot * settings.table_width, 1 + (slot + 1) * settings.table_width))
            prompt = self._tokens(max(cached - row, 1)).tolist()
            first, _ = self.target.prefill(prompt, slot, pages)
            self.batch.place(row, slot, len(prompt), first)
            self.batch.give_pages(row, 0, pages)
        self.batch.drafts.copy_(self._tokens(settings.batch, settings.speculative))

    def inputs(self) -> dict[str, Tensor]:
        """The batch as the host describes it."""
        batch = self.batch
        return {"drafts": batch.drafts, "last": batch.last, "cached": batch.cached, "slots": batch.host_slots}

    def poison(self) -> None:
        """Fill the input buffers of the pass; logits and taps are allocated by it."""
        for rows in self.target.prepared().values():
            for buffer in (rows.tokens, rows.positions, rows.slots):
                buffer.fill_(-(2**40))

    def reference(self) -> dict[str, Tensor]:
        """All 2K rows, of which the first K + 1 count, and are all that need be computed."""
        results, needed = self._verify(2 * self.settings.speculative), self.settings.speculative + 1
        return {**results, "rows computed": torch.full_like(results["rows computed"], needed)}

    def fast(self) -> dict[str, Tensor]:
        """As many rows as the switch has the target verify."""
        return self._verify(self.asked(self.target))

    def next(self) -> None:
        """Count what was accepted as cached, and draft anew."""
        self.batch.advance(self._counts(), self._tokens(self.settings.batch))
        self.batch.drafts.copy_(self._tokens(self.settings.batch, self.settings.speculative))
        self.step += 1

    def _verify(self, rows: int) -> dict[str, Tensor]:
        self.target.rows_per_request = lambda: rows  # type: ignore[method-assign]
        self.target.input_prep(self.batch)
        self.target.metadata(self.batch)
        output, kept = self.target.forward(), self.settings.speculative + 1
        self.target.commit_states(output.states, self.batch.slots, self._counts())
        real, slots = self.batch.slots != self.batch.dummy, slice(self.settings.batch)
        states = {f"state {i}": layer.ssm_state[slots] for i, layer in enumerate(self.target.state_layers)}
        windows = {f"window {i}": layer.convolution_state[slots] for i, layer in enumerate(self.target.state_layers)}
        computed = torch.tensor([output.logits.shape[1], output.taps.shape[1]], device=self.settings.device)
        seen = {"logits": output.logits[real, :kept], "taps": output.taps[real, :kept], "rows computed": computed}
        return {**seen, **self._pools(kept), **{name: state.clone() for name, state in (states | windows).items()}}

    def _pools(self, kept: int) -> dict[str, Tensor]:
        """Every slot's pages: of a request in flight up to the rows that count, of an idle slot all as they were."""
        settings = self.settings
        ends = torch.full((settings.batch + 1,), settings.capacity, device=settings.device)
        ends[self.batch.slots] = self.batch.cached + kept
        written = torch.arange(settings.capacity, device=settings.device) < ends[:-1].unsqueeze(1)
        pools = {
            f"{name} {index}": getattr(block.mixer, name)[1:].unflatten(0, (settings.batch, -1)).flatten(1, 2)
            for index, block in enumerate(self.target.blocks)
            if isinstance(block.mixer, AttentionLayer)
            for name in ("keys", "values")
        }
        return {name: pool * written[..., None, None] for name, pool in pools.items()}

    def _counts(self) -> Tensor:
        at = [self.accepted[(row + self.step) % len(self.accepted)] + 1 for row in range(self.settings.batch)]
        return torch.tensor(at, device=self.settings.device)

    def _tokens(self, *shape: int) -> Tensor:
        drawn = torch.randint(self.settings.geometry.vocab, shape, generator=self.random)
        return drawn.to(self.settings.device)


def cases() -> list[Case]:
    """Odd shapes, idle rows, all and none accepted, the context filled to its end, and 20 steps with states."""
    settings = Settings(SMALL, draft_length=3, batch=3, context=40, page_size=7)
    states = replace(settings, geometry=replace(SMALL, state_layers=(1,)), context=110)
    odd = replace(settings, batch=5, draft_length=5, page_size=3)

    def case(name: str, at: Settings, busy: int, accepted: tuple[int, ...], cached: int, steps: int = 1) -> Case:
        def make(place: Place) -> Verification:
            return Verification(replace(at, device=place.device, dtype=place.dtype), busy, accepted, cached)

        return Case(name, make, steps)

    return [
        case("all accepted", settings, 3, (3,), 9, 3),
        case("none accepted", settings, 3, (0,), 9, 3),
        case("odd shapes", odd, 5, (2, 5, 0), 11),
        case("idle rows", settings, 1, (1,), 5),
        case("every row idle", settings, 0, (0,), 5),
        case("capacity reached", settings, 2, (3,), 40),
        case("20 steps with states", states, 3, (0, 3, 1, 2), 8, 20),
    ]
