"""What the drafters say, compared on the same accepted prefix: a broken drafter is lossless, and is caught here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from small_cycles import LONG, OUTPUT, SMALL, WITH_STATES, expected, prompts_for, run, small  # noqa: E402

from optimized.reference_cycle import attention, bookkeeping, mla  # noqa: E402
from optimized.reference_cycle.comparison import Comparison, DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.dflash import DFlashDrafter  # noqa: E402
from optimized.reference_cycle.drafter import Drafter  # noqa: E402
from optimized.reference_cycle.dspark import DSparkDrafter  # noqa: E402
from optimized.reference_cycle.eagle import EagleDrafter  # noqa: E402
from optimized.reference_cycle.geometry import Geometry, Rope  # noqa: E402
from optimized.reference_cycle.rope import rope_table  # noqa: E402
from optimized.reference_cycle.settings import DRAFTERS, Settings  # noqa: E402

CLOSE = 2e-5
"""Of logits of size 1 in float32, between runs that batch the same rows differently."""
Patch = pytest.MonkeyPatch


def with_dflash(**changes: object) -> Geometry:
    return replace(SMALL, dflash=replace(SMALL.dflash, **changes))


@pytest.mark.parametrize("geometry", [SMALL, WITH_STATES], ids=["attention", "states"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_depend_on_the_prefix_alone(drafter: str, geometry: Geometry) -> None:
    settings = small(geometry, drafter=drafter, batch=3, **LONG)
    _, log = run(settings, "continuation")
    again = compare_drafts(log, run(settings, "continuation")[1])
    assert again.agrees()
    assert again.places > 20
    for others in (run(settings, "drafter"), run(settings, "forced"), run(replace(settings, batch=3, page_size=5))):
        comparison = compare_drafts(log, others[1])
        assert comparison.agrees(CLOSE), comparison
        assert comparison.places > 10


@pytest.mark.parametrize("geometry", [SMALL, WITH_STATES], ids=["attention", "states"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_after_many_cycles_equal_those_of_a_drafter_that_reads_the_text_afresh(
    drafter: str, geometry: Geometry
) -> None:
    settings = small(geometry, drafter=drafter, batch=3, **LONG)
    _, log = run(settings, "forced")
    fresh = DraftLog()
    for index, length in list(log.drafts)[::7]:
        text = prompts_for(settings)[index] + expected(settings)[index]
        alone = DraftLog()
        cycle = Cycle(replace(settings, batch=1), draft_log=alone)
        cycle.add([text[: length - 2]], 3)
        cycle.step()
        fresh.drafts[index, length] = alone.drafts[0, length]
    comparison = compare_drafts(log, fresh)
    assert comparison.places > 3
    assert comparison.agrees(CLOSE), comparison


def later(function: Callable[..., object], argument: int) -> Callable[..., object]:
    """`function` with one of its arguments, positions, one too large."""

    def shifted(*arguments: object) -> object:
        return function(*arguments[:argument], arguments[argument] + 1, *arguments[argument + 1 :])

    return shifted


def _drop_last_accepted_row(patch: Patch) -> None:
    patch.setattr(
        Drafter,
        "accepted_rows",
        lambda self: (
            torch.arange(self.captured.shape[1]) < (self.queries.counts - 1).clamp(min=1).unsqueeze(1)
        ).float(),
    )


def _shift_block(patch: Patch) -> None:
    build = Drafter.build_queries

    def shifted(self: Drafter, accepted: object, counts: object) -> None:
        build(self, accepted, counts)
        self.queries.positions.add_(1)

    patch.setattr(Drafter, "build_queries", shifted)


def _lag_context(patch: Patch) -> None:
    def lagging(advance: Callable[[Drafter], None]) -> Callable[[Drafter], None]:
        def advance_less(self: Drafter) -> None:
            advance(self)
            self.visible_context.sub_(1).clamp_(min=0)

        return advance_less

    for kind in (DFlashDrafter, DSparkDrafter, EagleDrafter):
        patch.setattr(kind, "advance", lagging(kind.advance))


def _forget_last_tap(patch: Patch) -> None:
    project = Drafter.project

    def blind(self: Drafter, taps: torch.Tensor) -> torch.Tensor:
        taps = taps.clone()
        taps[..., -self.settings.geometry.hidden :] = 0
        return project(self, taps)

    patch.setattr(Drafter, "project", blind)


def _wrong_bonus(patch: Patch) -> None:
    build = Drafter.build_queries
    patch.setattr(Drafter, "build_queries", lambda self, accepted, counts: build(self, accepted.roll(1, 1), counts))


def _rotate_context_wrongly(patch: Patch) -> None:
    patch.setattr(DFlashDrafter, "make_context", later(DFlashDrafter.make_context, 3))
    patch.setattr(DSparkDrafter, "project_rows", later(DSparkDrafter.project_rows, 2))
    place = attention.place_context
    patch.setattr(attention, "place_context", later(place, 1))


def _unroll_context_rope(patch: Patch) -> None:
    def plain(self: Drafter, *arguments: torch.Tensor) -> object:
        return context(self, *arguments[:-1], torch.zeros_like(arguments[-1]))

    context = DFlashDrafter.make_context
    patch.setattr(DFlashDrafter, "make_context", plain)


def _causal_block(patch: Patch) -> None:
    visible = attention.visible

    def causal(positions: torch.Tensor, columns: int, ends: torch.Tensor, window: int | None = None) -> torch.Tensor:
        return visible(positions, columns, torch.minimum(ends, positions + 1), window)

    patch.setattr(attention, "visible", causal)


def _no_markov(patch: Patch) -> None:
    patch.setattr(DSparkDrafter, "refine", lambda self, logits: (logits.argmax(-1), logits))


def _no_upper_triangle(patch: Patch) -> None:
    patch.setattr(
        mla, "attend_to_block", lambda q, cached, _, masks, scale: mla.attend_to_latents(q, cached, masks[0], scale)[0]
    )


def _pages_of_values(patch: Patch) -> None:
    refresh = bookkeeping.refresh_block_tables

    def wrong(offsets: torch.Tensor, *rest: object) -> None:
        refresh((offsets[:, :, :1] + 2 * (offsets[:, :, :1] > 2)).expand(-1, -1, 2, -1), *rest)

    patch.setattr(bookkeeping, "refresh_block_tables", wrong)


def _one_norm_for_all_layers(patch: Patch) -> None:
    norm = mla.norm_and_rotate_latent
    patch.setattr(mla, "norm_and_rotate_latent", lambda raw, at, weight, table: norm(raw, at, weight.flip(0), table))


def _tokens_of_their_own_rows(patch: Patch) -> None:
    prepare = EagleDrafter.input_prep

    def unshifted(self: EagleDrafter, verdict: object) -> None:
        prepare(self, verdict)
        self.following.copy_(self.following.roll(1, 1))

    patch.setattr(EagleDrafter, "input_prep", unshifted)


def _every_step_from_the_targets_feature(patch: Patch) -> None:
    decode, first = EagleDrafter.decode, {}

    def fixed(self: EagleDrafter, step: int, embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        first[0] = features if step == 0 else first[0]
        return decode(self, step, embedded, first[0])

    patch.setattr(EagleDrafter, "decode", fixed)


def _steps_blind_to_each_other(patch: Patch) -> None:
    build = EagleDrafter.metadata

    def blind(self: EagleDrafter) -> None:
        build(self)
        columns = torch.arange(self.step_mask.shape[-1])
        drafted, own = columns >= self.visible_context.view(-1, 1, 1), columns == self.step_columns.unsqueeze(-1)
        self.step_mask &= ~drafted | own

    patch.setattr(EagleDrafter, "metadata", blind)


def _first_row_leads(patch: Patch) -> None:
    draft = EagleDrafter.draft_block

    def led(self: EagleDrafter) -> object:
        self.features.copy_(self.features[:, :1].expand_as(self.features).clone())
        return draft(self)

    patch.setattr(EagleDrafter, "draft_block", led)


ALL = (_shift_block, _lag_context, _forget_last_tap, _wrong_bonus, _rotate_context_wrongly)
FAULTS = [
    *((drafter, fault) for fault in ALL for drafter in DRAFTERS),
    *((drafter, _drop_last_accepted_row) for drafter in ("dflash", "dspark")),
    *(
        ("eagle", fault)
        for fault in (
            _tokens_of_their_own_rows,
            _every_step_from_the_targets_feature,
            _steps_blind_to_each_other,
            _first_row_leads,
        )
    ),
    *(("dflash", fault) for fault in (_unroll_context_rope, _causal_block)),
    *(("dspark", fault) for fault in (_no_markov, _no_upper_triangle, _pages_of_values, _one_norm_for_all_layers)),
]


@pytest.mark.parametrize(("drafter", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_in_the_drafter_is_lossless_and_is_caught(
    drafter: str, fault: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    settings = small(drafter=drafter, batch=3)
    _, honest = run(settings, "continuation")
    fault(monkeypatch)
    generation, faulty = run(settings, "continuation")
    assert generation.tokens == expected(settings)
    comparison = compare_drafts(honest, faulty)
    assert comparison.places == len(honest.drafts)
    assert not comparison.agrees(CLOSE)
    assert comparison.largest > 50 * CLOSE


def test_comparing_nothing_is_not_agreement() -> None:
    assert not compare_drafts(DraftLog(), DraftLog()).agrees()
    assert compare_drafts(DraftLog(), DraftLog()) == Comparison(0, 0, 0.0, None)


def logits_of(settings: Settings) -> DraftLog:
    return run(settings)[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": (5,)},
        {"windows": (5,), "causal_windows": True},
        {"windows": (5, None)},
        {"sinks": True},
        {"rope": Rope(partial=0.5)},
        {"rope": Rope(factor=8.0, original_context=32)},
    ],
    ids=str,
)
def test_every_option_of_dflash_changes_the_drafts_and_stays_lossless(changes: dict[str, object]) -> None:
    settings = small(with_dflash(**changes))
    generation, log = run(settings)
    assert generation.tokens == expected(settings)
    assert not compare_drafts(log, logits_of(small())).agrees(CLOSE)
    assert compare_drafts(log, run(settings, "forced")[1]).agrees(CLOSE)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_yarn_with_and_without_truncation_scores_differently(drafter: str) -> None:
    def log(truncate: bool, factor: float) -> DraftLog:
        rope = Rope(theta=100.0, factor=factor, original_context=256, truncate=truncate)
        geometry = replace(
            SMALL, dflash=replace(SMALL.dflash, rope=rope), dspark=replace(SMALL.dspark, rope=rope), rope=rope
        )
        return logits_of(small(geometry, drafter=drafter))

    assert compare_drafts(log(True, 32.0), log(False, 32.0)).largest > 50 * CLOSE
    assert compare_drafts(log(True, 1.0), log(False, 1.0)).agrees()


def test_context_rotated_by_another_table_than_the_queries_is_caught(monkeypatch: Patch) -> None:
    rope = Rope(theta=100.0, factor=32.0, original_context=256, truncate=False)
    settings = small(with_dflash(rope=rope))
    honest = logits_of(settings)
    wrong = rope_table(replace(rope, truncate=True), SMALL.dflash.head_dim, settings.capacity, "cpu")
    context = DFlashDrafter.make_context

    def truncated(self: DFlashDrafter, *arguments: torch.Tensor) -> object:
        self.table, right = wrong, self.table
        try:
            return context(self, *arguments)
        finally:
            self.table = right

    monkeypatch.setattr(DFlashDrafter, "make_context", truncated)
    assert not compare_drafts(honest, logits_of(settings)).agrees(CLOSE)


def block_after_forgetting(cycle: Cycle, columns: int) -> torch.Tensor:
    """The drafter's logits for its present block, the first columns of its context made noise."""
    drafter = cycle.drafter
    assert isinstance(drafter, DFlashDrafter)
    before = drafter.block_pass().logits.clone()
    drafter.projected[:, :columns].normal_(generator=torch.Generator().manual_seed(3))
    drafter.recompute()
    return (drafter.block_pass().logits - before).abs().amax(dim=(1, 2))


@pytest.mark.parametrize("window", [None, 4])
def test_a_window_hides_what_is_further_back(window: int | None) -> None:
    settings = small(with_dflash(layers=1, windows=(window,)), batch=2)
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings, 2), OUTPUT)
    for _ in range(3):
        cycle.step()
    shortest = int(cycle.drafter.visible_context.min())
    changed = block_after_forgetting(cycle, shortest - 3)
    assert (changed == 0).all() if window else (changed > 0.01).all()
    assert (block_after_forgetting(cycle, shortest) > 0.01).all()


def test_sinks_take_a_share_and_none_at_minus_infinity() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, h, 8, generator=generator) for n, h in ((3, 4), (11, 2), (11, 2)))
    mask = attention.visible(torch.tensor([[5, 6, 7], [8, 9, 10]]), 11, torch.tensor([[6, 7, 8], [9, 10, 11]]), 5)
    plain = attention.attend(q, k, v, mask)
    torch.testing.assert_close(attention.attend(q, k, v, mask, torch.full((4,), float("-inf"))), plain)
    shares = attention.attend(q, k, torch.ones_like(v), mask, torch.tensor([-1.0, 0.0, 2.0, 20.0]))
    assert (shares[..., 0].diff(dim=-1) < 0).all()
    assert shares[:, :, 3].max() < 1e-6


def test_attention_equals_the_softmax_written_out() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, n, h, 8, generator=generator) for n, h in ((3, 4), (9, 2), (9, 2)))
    ends = torch.tensor([[4, 5, 6], [7, 8, 9]])
    seen = attention.attend(q, k, v, attention.visible(ends - 1, 9, ends))
    for row in range(2):
        for step in range(3):
            for head in range(4):
                n = int(ends[row, step])
                scores = k[row, :n, head // 2] @ q[row, step, head] / 8**0.5
                torch.testing.assert_close(seen[row, step, head], scores.softmax(0) @ v[row, :n, head // 2])
