"""The reference cycle is lossless in every configuration, and its acceptance is what was asked for."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest

torch = pytest.importorskip("torch")

from small_cycles import (  # noqa: E402
    LONG,
    OUTPUT,
    PROMPT,
    SMALL,
    WITH_STATES,
    expected,
    output_of,
    prompts_for,
    run,
    small,
    source_for,
)

from optimized.reference_cycle import attention  # noqa: E402
from optimized.reference_cycle.acceptance import Continuation, Proposals  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, autoregressive, generate  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES, Geometry, taps_of  # noqa: E402
from optimized.reference_cycle.settings import DRAFTERS, Settings, describe  # noqa: E402
from optimized.reference_cycle.state_layer import StateLayer  # noqa: E402
from optimized.reference_cycle.target import Target  # noqa: E402
from spantrace.errors import SpantraceError  # noqa: E402

BATCHES, SHAPES = (1, 3, 8), {"attention": SMALL, "states": WITH_STATES}
SAMPLED = [
    (drafter, draft_length, mode, BATCHES[number % 3], ("attention", "states")[number % 2])
    for (one, drafter), (two, draft_length), (three, mode) in product(
        enumerate(DRAFTERS), enumerate((1, 3, 7)), enumerate(("drafter", "continuation", "forced"))
    )
    for number in (one + two + three,)
]
"""Every drafter with every number of drafts and every source of them, and any other two choices in some of them."""


def test_the_sample_has_every_two_of_all_that_can_be_chosen() -> None:
    domains = [set(values) for values in zip(*SAMPLED, strict=True)]
    assert [len(domain) for domain in domains] == [3, 3, 3, 3, 2]
    for one, other in combinations(range(5), 2):
        assert {(each[one], each[other]) for each in SAMPLED} == set(product(domains[one], domains[other]))


@pytest.mark.parametrize(("drafter", "draft_length", "mode", "batch", "geometry"), SAMPLED)
def test_tokens_are_the_targets_own(drafter: str, draft_length: int, mode: str, batch: int, geometry: str) -> None:
    settings = small(SHAPES[geometry], drafter=drafter, batch=batch, draft_length=draft_length)
    generation, _ = run(settings, mode)
    assert generation.tokens == expected(settings)


@pytest.mark.parametrize("geometry", [SMALL, WITH_STATES], ids=["attention", "states"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_plain_decoding_equals_reading_the_whole_text_again_for_each_token(geometry: Geometry, batch: int) -> None:
    settings = small(geometry, batch=batch, drafter="none")
    pages = list(range(1, settings.table_width + 1))
    target = Target(replace(settings, pages=settings.table_width + 1))
    for prompt, tokens in list(zip(prompts_for(settings), expected(settings), strict=True))[:2]:
        text = list(prompt)
        for _ in range(OUTPUT):
            text.append(target.prefill(text, 0, pages)[0])
        assert text[len(prompt) :] == tokens


@pytest.mark.parametrize("draft_length", [1, 3, 7])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_forced_acceptance_fills_every_bin(drafter: str, draft_length: int) -> None:
    generation, _ = run(small(drafter=drafter, batch=8, draft_length=draft_length, **LONG), "forced")
    counts = generation.histogram(draft_length)
    assert min(counts) > 0


def test_forced_acceptance_accepts_exactly_what_is_forced() -> None:
    settings = small(draft_length=3)
    for length in range(4):
        generation, _ = run(settings, "forced", [length])
        whole = [accepted for _, accepted in generation.acceptance]
        assert set(whole) - {length} <= set(range(length))  # less only where an output ends
        assert whole.count(length) > len(whole) / 2


def test_corrupted_acceptance_follows_the_rate_and_the_seed() -> None:
    settings = small(batch=8, draft_length=3)
    again = run(settings, "continuation")[0].acceptance
    assert again == run(settings, "continuation")[0].acceptance
    accepted = sum(right for _, right in again) / sum(drafted for drafted, _ in again)
    assert 0.3 < accepted < 0.8


def test_a_first_cycle_verifies_no_drafts() -> None:
    settings = small(batch=2)
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings, 2), OUTPUT)
    assert cycle.step().acceptance == []
    assert [drafted for drafted, _ in cycle.step().acceptance] == [3, 3]


def test_a_request_in_a_used_row_starts_without_drafts() -> None:
    settings = small(batch=2)
    cycle = Cycle(settings)
    requests = cycle.add(prompts_for(settings, 2), OUTPUT)
    cycle.batch.drafts.fill_(5)
    cycle.prefill(cycle.scheduler.schedule().admitted[:1])
    assert cycle.batch.drafts[requests[0].row].tolist() == [-1] * 3


def test_past_the_known_continuation_nothing_is_proposed() -> None:
    settings = small(batch=1)
    proposals, slots = Proposals(settings, Continuation([[1, 2, 3, 4, 5, 6], [7, 8, 9]], 0.0)), torch.tensor([0])
    proposals.admit(0, 0)
    assert proposals.next(torch.tensor([2]), slots).tolist() == [[4, 5, 6]]
    proposals.admit(1, 0)
    assert proposals.next(torch.tensor([1]), slots).tolist() == [[9, -1, -1]]
    proposals.admit(2, 0)
    assert proposals.next(torch.tensor([0]), slots).tolist() == [[2, 3, 4]]


def test_device_and_host_agree_on_what_is_cached() -> None:
    settings = small(batch=3, **LONG)
    cycle = Cycle(settings, source_for("forced", settings))
    cycle.add(prompts_for(settings), output_of(settings))
    for _ in range(5):
        cycle.step()
        assert any(request.row != request.slot for request in cycle.scheduler.running())
        for request in cycle.scheduler.running():
            assert int(cycle.batch.cached[request.row]) == request.cached
            assert int(cycle.batch.last[request.row]) == request.tokens[-1]
            assert int(cycle.drafter.context_lengths[request.slot]) == request.cached


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_idle_rows_change_nothing(drafter: str) -> None:
    settings = small(drafter=drafter, batch=8)
    cycle = Cycle(settings)
    alone = generate(cycle, prompts_for(settings)[:1], OUTPUT)
    assert alone.tokens == expected(settings)[:1]
    assert (cycle.batch.cached == 0).all()
    assert int(cycle.drafter.context_lengths[cycle.batch.dummy]) == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_requests_wait_for_pages(drafter: str) -> None:
    settings = small(drafter=drafter, batch=3)
    scarce = replace(settings, pages=1 + 2 * settings.table_width)
    cycle = Cycle(scarce, source_for("continuation", settings))
    cycle.add(prompts_for(settings), OUTPUT)
    assert len(cycle.scheduler.schedule().running) == 2
    generation = generate(Cycle(scarce, source_for("continuation", settings)), prompts_for(settings), OUTPUT)
    assert generation.tokens == expected(settings)


@pytest.mark.parametrize("limit", [10, 17, 25])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_drafter_that_cannot_hold_the_context_stays_lossless(drafter: str, limit: int) -> None:
    settings = small(replace(SMALL, longest_draft_context=limit), drafter=drafter, draft_length=3)
    cycle = Cycle(settings, source_for("forced", settings))
    cycle.add(prompts_for(settings), OUTPUT)
    while not cycle.scheduler.idle():
        cycle.step()
        assert int(cycle.drafter.context_lengths.max()) <= limit
        assert int(cycle.drafter.queries.positions.max()) < limit + cycle.drafter.block
        too_long = [r.row for r in cycle.scheduler.running() if len(r.prompt) > limit]
        assert (cycle.draft.tokens[too_long] == -1).all()
    assert run(settings, "drafter")[0].tokens == expected(settings)
    assert run(settings, "forced")[0].tokens == expected(settings)


def test_a_request_too_long_for_the_context_or_the_pool_is_refused() -> None:
    settings = small()
    with pytest.raises(SpantraceError, match="the context holds"):
        Cycle(settings).add([[1] * PROMPT], OUTPUT + 1)
    with pytest.raises(SpantraceError, match="pages"):
        Cycle(replace(settings, pages=3)).add([[1] * PROMPT], OUTPUT)
    with pytest.raises(SpantraceError, match="at least one token"):
        Cycle(settings).add([[]], OUTPUT)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("hidden", "page_size", "output"), [(37, 7, 12), (33, 16, 1), (50, 1, 9)])
def test_odd_shapes(drafter: str, hidden: int, page_size: int, output: int) -> None:
    geometry = replace(WITH_STATES.scaled(hidden=hidden, vocab=101), layers=4, taps=(1,))
    settings = Settings(geometry, drafter, draft_length=5, batch=3, context=PROMPT + output, page_size=page_size)
    prompts = prompts_for(settings, 4)
    assert generate(Cycle(settings), prompts, output).tokens == autoregressive(settings, prompts, output)


def test_prompts_longer_than_a_prefill_chunk() -> None:
    settings = small(WITH_STATES, batch=1, context=300)
    prompts = [[token % 97 for token in range(1, 262)]]
    whole = autoregressive(settings, prompts, 8)
    assert generate(Cycle(settings), prompts, 8).tokens == whole
    rest = autoregressive(settings, [prompts[0] + whole[0][:3]], 5)
    assert rest == [whole[0][3:]]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_dtypes_of_which_greedy_tokens_are_stable(dtype: str) -> None:
    settings = small(WITH_STATES, dtype=dtype)
    assert run(settings, "drafter")[0].tokens == expected(settings)


def test_attention_and_states_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(WITH_STATES, drafter="none")
    honest = expected(settings)
    with monkeypatch.context() as patch:
        patch.setattr(attention, "attend", lambda q, *_: torch.zeros_like(q))
        assert autoregressive(settings, prompts_for(settings), OUTPUT) != honest
    original = StateLayer.__call__
    monkeypatch.setattr(StateLayer, "__call__", lambda *a: (torch.zeros_like(a[1]), original(*a)[1]))
    assert autoregressive(settings, prompts_for(settings), OUTPUT) != honest


def test_states_committed_one_token_early_are_not_lossless(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(WITH_STATES)
    honest = expected(settings)
    source = source_for("forced", settings)
    commit = StateLayer.commit
    monkeypatch.setattr(
        StateLayer, "commit", lambda self, states, slots, counts: commit(self, states, slots, (counts - 1).clamp(min=1))
    )
    assert generate(Cycle(settings, source), prompts_for(settings), OUTPUT).tokens != honest


def test_weights_depend_on_the_seed_and_not_on_the_drafter() -> None:
    one, other = Target(small(drafter="dflash")), Target(small(drafter="dspark"))
    assert torch.equal(one.head, other.head)
    assert torch.equal(one.blocks[1].mlp.down, other.blocks[1].mlp.down)
    assert not torch.equal(one.head, Target(small(seed=1)).head)
    assert not torch.equal(one.blocks[0].mlp.down, one.blocks[1].mlp.down)


def test_geometries_scale() -> None:
    assert GEOMETRIES["qwen3-8b"].taps == (1, 9, 17, 25, 33)
    assert taps_of(36) == (1, 9, 17, 25, 33)
    for geometry in GEOMETRIES.values():
        scaled = geometry.scaled(layers=5, hidden=geometry.hidden // 4, vocab=300)
        assert (scaled.layers, scaled.vocab) == (5, 300)
        assert max(scaled.taps) < 5
        assert scaled.intermediate == pytest.approx(geometry.intermediate / 4, abs=1)
    assert len(GEOMETRIES["nemotron-h"].state_layers) == 23
    for geometry in (*GEOMETRIES.values(), SMALL, WITH_STATES):
        assert geometry.scaled(geometry.layers, geometry.hidden, geometry.vocab) == geometry
    assert describe(Settings())["geometry"] == "tiny"


@pytest.mark.parametrize("layers", range(2, 61))
def test_a_scaled_geometry_keeps_its_share_and_order_of_state_layers(layers: int) -> None:
    for source in (GEOMETRIES["nemotron-h"], WITH_STATES, replace(SMALL, layers=12, state_layers=(0, 1, 2, 3))):
        scaled, kept = source.scaled(layers=layers), len(source.state_layers)
        share = kept * layers / source.layers
        assert abs(len(scaled.state_layers) - share) <= 0.5 or len(scaled.state_layers) in (1, layers - 1)
        assert 0 < len(scaled.state_layers) < layers
        for depth in range(layers + 1):
            here = sum(layer < depth for layer in scaled.state_layers)
            there = sum(min(max(depth / layers * source.layers - layer, 0), 1) for layer in source.state_layers)
            assert abs(here - there * layers / source.layers) <= 1


def test_a_scaled_nemotron_has_attention_where_it_had_it() -> None:
    source = GEOMETRIES["nemotron-h"]

    def attending(layers: int) -> list[int]:
        return [layer for layer in range(layers) if layer not in source.scaled(layers=layers).state_layers]

    assert attending(29) == [3, 7, 11, 15, 20, 25]
    assert attending(58) == [6, 7, 14, 15, 22, 23, 30, 31, 40, 41, 50, 51]
    assert [len(attending(layers)) for layers in (2, 3, 5, 8, 16, 20, 40)] == [1, 1, 1, 2, 3, 4, 8]
    assert source.scaled(layers=2).state_layers == (0,)
    assert SMALL.scaled(layers=9).state_layers == ()


def test_a_scaled_geometry_taps_the_same_depths() -> None:
    source = GEOMETRIES["nemotron-h"]
    assert source.taps == (1, 7, 14, 20, 26)
    assert source.scaled(layers=57).taps == (2, 14, 28, 40, 52)
    assert source.scaled(layers=15).taps == (0, 4, 7, 10, 13)
    assert GEOMETRIES["tiny"].scaled(layers=2).taps == (0, 1)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"draft_length": 0}, {"page_size": 0}, {"drafter": "medusa"}])
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SpantraceError):
        small(**wrong)


def test_impossible_geometries_are_refused() -> None:
    for wrong in ({"taps": (9,)}, {"taps": ()}, {"kv_heads": 3}, {"mask_token": 97}):
        with pytest.raises(SpantraceError):
            replace(SMALL, **wrong)
