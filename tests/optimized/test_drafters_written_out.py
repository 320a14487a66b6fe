"""What the drafters say against them written out; faults that are made in every run alike are caught here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import written_out  # noqa: E402
from small_cycles import SMALL, WITH_STATES, expected, prompts_for, run, small  # noqa: E402

from optimized.reference_cycle import attention, dflash, dspark, mla, rope  # noqa: E402
from optimized.reference_cycle.comparison import Comparison, DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.drafter import Draft, Drafter  # noqa: E402
from optimized.reference_cycle.dspark import DSparkDrafter  # noqa: E402
from optimized.reference_cycle.eagle import EagleDrafter  # noqa: E402
from optimized.reference_cycle.geometry import DSparkShape, Rope  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402

CLOSE = 1e-5
"""Of logits of size 1, between float32 and float64."""
YARN = Rope(theta=100.0, factor=8.0, original_context=64, truncate=False)
ROUNDED = replace(YARN, truncate=True)
GEOMETRIES = {
    "dflash plain": SMALL,
    "dflash states": WITH_STATES,
    "dflash windows": replace(SMALL, dflash=replace(SMALL.dflash, windows=(None, 5))),
    "dflash causal windows": replace(SMALL, dflash=replace(SMALL.dflash, windows=(5, None), causal_windows=True)),
    "dflash sinks": replace(SMALL, dflash=replace(SMALL.dflash, sinks=True, windows=(4,))),
    "dflash partial": replace(SMALL, dflash=replace(SMALL.dflash, rope=Rope(partial=0.5))),
    "dflash yarn": replace(SMALL, dflash=replace(SMALL.dflash, rope=YARN)),
    "dflash rounded yarn": replace(SMALL, dflash=replace(SMALL.dflash, rope=ROUNDED)),
    "dspark plain": SMALL,
    "dspark states": WITH_STATES,
    "dspark yarn": replace(SMALL, dspark=replace(SMALL.dspark, rope=YARN)),
    "dspark rounded yarn": replace(SMALL, dspark=replace(SMALL.dspark, rope=ROUNDED)),
    "eagle plain": SMALL,
    "eagle states": WITH_STATES,
    "eagle yarn": replace(SMALL, rope=YARN),
    "eagle partial": replace(SMALL, rope=Rope(partial=0.5)),
    "dspark wide values": replace(SMALL, dspark=DSparkShape(3, 2, 12, 6, 10, 5, 24, 8)),
}
Patch = pytest.MonkeyPatch


def settings_of(name: str) -> Settings:
    return small(GEOMETRIES[name], drafter=name.partition(" ")[0], batch=3)


@cache
def by_hand(settings: Settings) -> DraftLog:
    """Drafts written out at every third place of an honest run."""
    drafter: Any = Cycle(settings).drafter
    pages, log, say = list(range(1, settings.table_width + 1)), DraftLog(), getattr(written_out, settings.drafter)
    for index, length in sorted(run(settings, "forced")[1].drafts)[1::3]:
        text = prompts_for(settings)[index] + expected(settings)[index]
        _, taps = drafter.target.prefill(text[: length - 1], 0, pages)
        words, logits = say(settings, drafter, taps, text[1:length])
        log.drafts[index, length] = Draft(torch.tensor(words), logits)
    return log


def against_by_hand(settings: Settings) -> Comparison:
    """A run in which every number of drafts is accepted, compared where it drafted at the same lengths."""
    found = compare_drafts(by_hand(settings), run(settings, "forced")[1])
    assert found.places >= 6
    return found


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_drafter_says_what_its_description_says(name: str) -> None:
    found = against_by_hand(settings_of(name))
    assert found.agrees(CLOSE), found


def _cut_chain(patch: Patch) -> None:
    def refine(self: DSparkDrafter, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        refined = logits + (self.markov_in[self.queries.bonus] @ self.markov_out.T).unsqueeze(1)
        return refined.argmax(-1), refined

    patch.setattr(DSparkDrafter, "refine", refine)


def _late_chain(patch: Patch) -> None:
    def refine(self: DSparkDrafter, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.cat((self.queries.bonus.unsqueeze(1), logits.argmax(-1)[:, :-1]), dim=1)
        refined = logits + self.markov_in[before] @ self.markov_out.T
        return refined.argmax(-1), refined

    patch.setattr(DSparkDrafter, "refine", refine)


def _dropped_scale(patch: Patch) -> None:
    for module in (dflash, dspark):
        patch.setattr(module, "yarn_scale", lambda rope: 1.0)


def _unstretched(patch: Patch) -> None:
    frequencies = rope.frequencies
    patch.setattr(rope, "frequencies", lambda given, size: frequencies(replace(given, factor=1.0), size))


def _other_bounds(patch: Patch) -> None:
    frequencies = rope.frequencies
    patch.setattr(
        rope, "frequencies", lambda given, size: frequencies(replace(given, truncate=not given.truncate), size)
    )


def _scale_of_latents(patch: Patch) -> None:
    attend = mla.attend_to_block
    patch.setattr(mla, "attend_to_block", lambda *given: attend(*given[:-1], given[0].shape[-1] ** -0.5))


def _other_pairs(patch: Patch) -> None:
    patch.setattr(mla, "rotate_pairs", rope.rotate_halves)


def _no_rotation(patch: Patch) -> None:
    patch.setattr(mla, "rotate_pairs", lambda x, *_: x)


def _block_one_later(patch: Patch) -> None:
    build = Drafter.build_queries

    def later(self: Drafter, accepted: torch.Tensor, counts: torch.Tensor) -> None:
        build(self, accepted, counts)
        self.queries.positions.add_(1)

    patch.setattr(Drafter, "build_queries", later)


def _positions_at_a_stand(patch: Patch) -> None:
    build = Drafter.build_queries

    def standing(self: Drafter, accepted: torch.Tensor, counts: torch.Tensor) -> None:
        build(self, accepted, counts)
        self.queries.positions.copy_(self.queries.positions[:, :1].expand_as(self.queries.positions).clone())

    patch.setattr(Drafter, "build_queries", standing)


def _other_mask_token(patch: Patch) -> None:
    build = Drafter.build_queries

    def other(self: Drafter, accepted: torch.Tensor, counts: torch.Tensor) -> None:
        build(self, accepted, counts)
        self.queries.noise[:, 1:] = self.target.embedding[self.settings.geometry.mask_token - 1]

    patch.setattr(Drafter, "build_queries", other)


def _newest_forgotten(patch: Patch) -> None:
    def blank(self: Drafter, taps: torch.Tensor) -> torch.Tensor:
        return project(self, taps.roll(1, -2) if taps.shape[-2] > 1 else taps)

    project = Drafter.project
    patch.setattr(Drafter, "project", blank)


def _wider_window(patch: Patch) -> None:
    visible = attention.visible
    patch.setattr(
        attention,
        "visible",
        lambda at, columns, ends, window=None: visible(at, columns, ends, window and window + 1),
    )


def _no_window(patch: Patch) -> None:
    visible = attention.visible
    patch.setattr(attention, "visible", lambda at, columns, ends, window=None: visible(at, columns, ends))


def _never_causal(patch: Patch) -> None:
    create = dflash.DFlashLayer.create
    patch.setattr(dflash.DFlashLayer, "create", classmethod(lambda cls, *given: replace(create(*given), causal=False)))


def _no_sinks(patch: Patch) -> None:
    attend = attention.attend
    patch.setattr(attention, "attend", lambda q, k, v, mask, sinks=None: attend(q, k, v, mask))


def _whole_head_rotated(patch: Patch) -> None:
    table = dflash.rope_table
    patch.setattr(dflash, "rope_table", lambda given, *rest: table(replace(given, partial=1.0), *rest))


def _halves_swapped(patch: Patch) -> None:
    beside = EagleDrafter.layer_input
    half = SMALL.hidden
    patch.setattr(EagleDrafter, "layer_input", lambda *given: beside(*given).roll(half, -1))


def _feature_not_added(patch: Patch) -> None:
    decode = EagleDrafter.decode
    patch.setattr(EagleDrafter, "decode", lambda self, step, word, feature: decode(self, step, word, feature) - feature)


ANY = (_block_one_later, _positions_at_a_stand, _other_mask_token, _newest_forgotten)
STRETCHED = (_dropped_scale, _unstretched, _other_bounds)
FAULTS = [
    *((f"{drafter} plain", fault) for drafter in ("dflash", "dspark") for fault in ANY),
    *((f"{drafter} yarn", fault) for drafter in ("dflash", "dspark") for fault in STRETCHED),
    *(("dspark plain", fault) for fault in (_cut_chain, _late_chain, _scale_of_latents, _other_pairs, _no_rotation)),
    *(("dflash windows", fault) for fault in (_wider_window, _no_window)),
    ("dflash causal windows", _never_causal),
    ("dflash sinks", _no_sinks),
    ("dflash partial", _whole_head_rotated),
    *(("eagle plain", fault) for fault in (_block_one_later, _newest_forgotten, _halves_swapped, _feature_not_added)),
    *(("eagle yarn", fault) for fault in (_unstretched, _other_bounds)),
]


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_made_in_every_run_is_caught(name: str, fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    settings = settings_of(name)
    by_hand(settings)
    fault(monkeypatch)
    found = against_by_hand(settings)
    assert not found.agrees(CLOSE)
    assert found.largest > 50 * CLOSE
