"""What projecting ahead must give: the rows, pages, states and lengths of the serial order, step after step."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from optimized.aux_stream_context.ahead import Ahead
from optimized.cases import Case, Place
from optimized.reference_cycle.acceptance import Verdict
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.cycle import DRAFTERS
from optimized.reference_cycle.dflash import DFlashDrafter
from optimized.reference_cycle.drafter import Drafter
from optimized.reference_cycle.dspark import DSparkDrafter
from optimized.reference_cycle.eagle import EagleDrafter
from optimized.reference_cycle.geometry import DFlashShape, DSparkShape, Geometry
from optimized.reference_cycle.settings import DrafterKind, Settings
from optimized.reference_cycle.target import Target

SMALL = Geometry(
    "case",
    hidden=24,
    layers=2,
    head_dim=8,
    intermediate=16,
    vocab=31,
    taps=(0, 1),
    mask_token=30,
    dflash=DFlashShape(layers=1, heads=2, kv_heads=1, head_dim=8, intermediate=16),
    dspark=DSparkShape(layers=3, heads=2, latent=12, rope_dim=4, nope_dim=6, value_dim=5, intermediate=16),
)


class Verified:
    """A drafter with prompts in its first `busy` rows, accepting counts[(row + step) mod n] rows a step."""

    def __init__(self, settings: Settings, busy: int, counts: tuple[int, ...], prompt: int) -> None:
        self.settings, self.pattern, self.step = settings, counts, 0
        self.random = torch.Generator().manual_seed(7)
        batch = Batch(settings)
        self.drafter: Drafter = DRAFTERS[settings.drafter](settings, Target(settings), batch)
        width = settings.table_width
        for row in range(busy):
            slot, length = settings.batch - 1 - row, max(prompt - row, 1)
            batch.place(row, slot, length, 0)
            batch.give_pages(row, 0, list(range(1 + slot * width, 1 + (slot + 1) * width)))
            self.drafter.admit(row, slot, self._random(length, self.drafter.captured.shape[2]), [0] * length)
        batch.upload()
        self.ahead = Ahead(self.drafter)
        self._draw()

    def inputs(self) -> dict[str, Tensor]:
        """The taps, and what was accepted."""
        return {"taps": self.taps, "accepted": self.verdict.accepted, "counts": self.verdict.counts}

    def poison(self) -> None:
        """Fill the rows that are to be projected."""
        self.ahead.rows.fill_(float("nan"))

    def reference(self) -> dict[str, Tensor]:
        """Everything after the verdict, in one stream."""
        self.drafter.observe(self.taps)
        self.drafter.input_prep(self.verdict)
        return self._extended(self.drafter.context_rows())

    def fast(self) -> dict[str, Tensor]:
        """The rows before the verdict is known."""
        self.drafter.context_rows = lambda: self.ahead.rows  # type: ignore[method-assign]
        self.drafter.observe(self.taps)
        self.ahead.start()
        self.drafter.input_prep(self.verdict)
        if reason := self.ahead.why_not():
            raise ValueError(reason)
        self.ahead.join()
        return self._extended(self.ahead.rows)

    def next(self) -> None:
        """Verify other rows."""
        self.step += 1
        self._draw()

    def left(self) -> dict[str, Tensor]:
        """The context that a step has left, without the dummy's part and shared cells."""
        drafter = self.drafter
        kept = {"lengths": drafter.context_lengths.clone(), "visible": drafter.visible_context.clone()}
        if isinstance(drafter, DSparkDrafter):
            kept |= {f"pool {index}": pool[1:].clone() for index, pool in enumerate(drafter.pools)}
        elif isinstance(drafter, DFlashDrafter):
            # Rows past the longest context all go to its last column.
            kept["projected"] = drafter.projected[:-1, :-1].clone()
        elif isinstance(drafter, EagleDrafter):
            kept |= {"keys": drafter.keys.clone(), "values": drafter.values.clone()}
        return kept

    def _extended(self, rows: Tensor) -> dict[str, Tensor]:
        rows = rows.clone()
        self.drafter.remember()
        self.drafter.advance()
        return {"rows": rows, **self.left()}

    def _draw(self) -> None:
        batch, rows = self.settings.batch, self.settings.speculative + 1
        self.taps = self._random(batch, 2 * rows, self.drafter.captured.shape[2])
        accepted = torch.randint(self.settings.geometry.vocab, (batch, rows), generator=self.random)
        counts = torch.tensor([self.pattern[(row + self.step) % len(self.pattern)] for row in range(batch)])
        newest = accepted.gather(1, counts.unsqueeze(1) - 1).squeeze(1)
        drawn = (accepted.int(), counts.int(), newest)
        self.verdict = Verdict(*(part.to(self.settings.device) for part in drawn))

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random).to(self.settings.device, self.settings.torch_dtype)


def cases() -> list[Case]:
    """The drafters, odd shapes, idle rows, all and none accepted, the longest context reached, and 20 steps."""
    settings = Settings(SMALL, drafter="dspark", draft_length=3, batch=3, context=40, page_size=8)

    def case(
        name: str,
        busy: int,
        counts: tuple[int, ...],
        prompt: int,
        steps: int = 1,
        at: Settings = settings,
        drafter: DrafterKind = "dspark",
        dtype: str | None = None,
    ) -> Case:
        def make(place: Place) -> Verified:
            here = replace(at, drafter=drafter, device=place.device, dtype=place.dtype)
            return Verified(here, busy, counts, prompt)

        return Case(name, make, steps, dtype)

    odd = replace(settings, batch=5, draft_length=5, context=37, page_size=3)
    long = replace(settings, context=90)
    return [
        case("all accepted", 3, (4,), 9, 3),
        case("none accepted", 3, (1,), 9, 3),
        case("idle rows", 1, (2, 1), 5, 2),
        case("every row idle", 0, (1,), 1),
        case("odd shapes", 5, (2, 6, 1), 11, 2, odd),
        case("capacity reached", 3, (4,), 38, 2),
        case("half precision", 3, (4, 2), 9, 3, dtype="float16"),
        case("20 steps", 3, (1, 4, 2), 5, 20, long),
        case("DFlash, idle rows", 2, (2, 4), 9, 3, drafter="dflash"),
        case("DFlash, capacity reached", 3, (4,), 38, 2, drafter="dflash"),
        case("DFlash, 20 steps", 3, (1, 4, 2), 5, 20, long, "dflash"),
        case("EAGLE, idle rows", 2, (2, 4), 9, 3, drafter="eagle"),
        case("EAGLE, capacity reached", 3, (4,), 38, 2, drafter="eagle"),
    ]
