"""The parts of the reference cycle by themselves: states, latents, tables, rotary tables, passes and spans."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

torch = pytest.importorskip("torch")

from journals import rows_of  # noqa: E402
from small_cycles import OUTPUT, SMALL, WITH_STATES, prompts_for, run, small  # noqa: E402

from optimized.reference_cycle import bookkeeping, mla  # noqa: E402
from optimized.reference_cycle.acceptance import Verifier, histogram  # noqa: E402
from optimized.reference_cycle.comparison import compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.geometry import DSparkShape, Geometry, Rope, StateShape  # noqa: E402
from optimized.reference_cycle.graphs import Pass  # noqa: E402
from optimized.reference_cycle.instrument import instrument, span_sites  # noqa: E402
from optimized.reference_cycle.mla import MlaLayer  # noqa: E402
from optimized.reference_cycle.rope import frequencies, rope_table, rotate_halves, rotate_pairs  # noqa: E402
from optimized.reference_cycle.state_layer import StateLayer, scan  # noqa: E402
from optimized.reference_cycle.weights import Weights  # noqa: E402
from spantrace.recorder import Recorder  # noqa: E402
from spantrace.spans import PARENT  # noqa: E402

WEIGHTS = Weights(0, "cpu", torch.float32, "test.")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_greedy_verification() -> None:
    said = torch.tensor([[4, 5, 6, 0, 0], [4, 5, 6, 0, 0], [4, 5, 6, 0, 0], [4, 5, 6, 0, 0]])
    logits = torch.nn.functional.one_hot(said, 9).float()
    drafts = torch.tensor([[4, 5, 6], [4, 5, 1], [7, 5, 6], [-1, -1, -1]])
    verdict = Verifier().sample(logits, drafts)
    assert verdict.counts.tolist() == [4, 3, 1, 1]
    assert verdict.newest.tolist() == [0, 6, 4, 4]
    assert verdict.accepted.shape == (4, 4)
    assert verdict.accepted.dtype == verdict.counts.dtype == torch.int32
    assert histogram([(3, 0), (3, 3), (3, 3)], 3) == [1, 0, 0, 2]


def test_ties_and_nan_go_to_the_first() -> None:
    logits = torch.zeros(1, 2, 5)
    logits[0, 1, 3] = logits[0, 1, 4] = float("nan")
    assert Verifier().sample(logits, torch.tensor([[0]])).accepted.tolist() == [[0, 3]]


def test_scan_equals_the_recurrence() -> None:
    values, keys, decay, state = normal(2, 6, 3, 4), normal(2, 6, 5), -normal(2, 6, 3).abs(), normal(2, 3, 4, 5)
    states = scan(values, keys, decay, state)
    for step in range(6):
        written = torch.einsum("bhp,bn->bhpn", values[:, step], keys[:, step])
        state = state * decay[:, step].exp()[..., None, None] + written
        torch.testing.assert_close(states[:, step], state)


def test_commit_keeps_the_states_after_the_last_accepted_token() -> None:
    slots, counts = torch.tensor([3, 0, 2]), torch.tensor([1, 5, 3])
    x = normal(3, 5, 12)
    layer, short = (StateLayer.create(StateShape(2, 4, 6, 4), 12, 5, WEIGHTS) for _ in range(2))
    for prepared in (layer, short):
        prepared.ssm_state.copy_(normal(*prepared.ssm_state.shape, seed=1))
        prepared.convolution_state.copy_(normal(*prepared.convolution_state.shape, seed=2))
    untouched = layer.ssm_state.clone(), layer.convolution_state.clone()
    _, states = layer(x, slots)
    assert torch.equal(layer.ssm_state, untouched[0])
    layer.commit(states, slots, counts)
    for row, (slot, count) in enumerate(zip(slots, counts, strict=True)):
        assert torch.equal(layer.ssm_state[slot], states.ssm[row, count - 1])
        assert torch.equal(layer.convolution_state[slot], states.convolution[row, count - 1])
        _, after = short(x[row : row + 1, :count], slot.view(1))
        torch.testing.assert_close(layer.ssm_state[slot], after.ssm[0, -1])
        torch.testing.assert_close(layer.convolution_state[slot], after.convolution[0, -1])
    assert torch.equal(layer.ssm_state[[1, 4]], untouched[0][[1, 4]])
    assert torch.equal(layer.convolution_state[[1, 4]], untouched[1][[1, 4]])


def mla_case() -> tuple[MlaLayer, DSparkShape, dict[str, torch.Tensor]]:
    shape = DSparkShape(heads=3, latent=12, rope_dim=4, nope_dim=6, value_dim=5, intermediate=8)
    layer = MlaLayer.create(shape, 20, WEIGHTS.linear("latent", 16, 20), WEIGHTS)
    context = torch.tensor([7, 2])
    positions = context.unsqueeze(1) + torch.arange(3)
    return (
        layer,
        shape,
        {"x": normal(2, 3, 20), "cached": normal(2, 12, 16), "context": context, "positions": positions},
    )


def absorbed(layer: MlaLayer, shape: DSparkShape, case: dict[str, torch.Tensor]) -> torch.Tensor:
    table = rope_table(Rope(), shape.rope_dim, 16, "cpu")
    rows, columns = torch.arange(2).unsqueeze(1), case["positions"]
    own, cached = case["cached"][rows, columns], case["cached"]
    masks = torch.arange(12) <= columns.unsqueeze(-1), torch.ones(1, 3, 3, dtype=torch.bool).triu(1)
    queries = mla.absorbed_queries(case["x"], layer, columns, table)
    scale = (shape.nope_dim + shape.rope_dim) ** -0.5
    return mla.project_out(mla.attend_to_block(queries, cached, own, masks, scale), layer, torch.float32)


def written_out(layer: MlaLayer, shape: DSparkShape, case: dict[str, torch.Tensor]) -> torch.Tensor:
    """MLA with keys and values of each head made from the latents, and one softmax over context and block."""
    table = rope_table(Rope(), shape.rope_dim, 16, "cpu")
    plain, turning = (case["x"] @ layer.query.T).unflatten(-1, (shape.heads, -1)).split((6, 4), dim=-1)
    turning = rotate_pairs(turning, case["positions"], table)
    out = torch.zeros(2, 3, shape.heads, shape.value_dim)
    for row, end in enumerate((case["context"] + 3).tolist()):
        latents, rotated = case["cached"][row, :end].split((12, 4), dim=-1)
        for head in range(shape.heads):
            scores = plain[row, :, head] @ (latents @ layer.key_up[head].T).T + turning[row, :, head] @ rotated.T
            shares = (scores * (shape.nope_dim + shape.rope_dim) ** -0.5).softmax(dim=-1)
            out[row, :, head] = shares @ (latents @ layer.value_up[head].T)
    return out.flatten(2) @ layer.output.T


def test_attention_on_latents_equals_attention_written_out() -> None:
    layer, shape, case = mla_case()
    torch.testing.assert_close(absorbed(layer, shape, case), written_out(layer, shape, case), atol=1e-5, rtol=1e-4)


def test_attention_on_latents_with_heads_swapped_differs() -> None:
    layer, shape, case = mla_case()
    swapped = replace(layer, key_up=layer.key_up.flip(0))
    assert (absorbed(swapped, shape, case) - written_out(layer, shape, case)).abs().max() > 0.02


def test_block_tables_count_entries_and_leave_holes_to_page_0() -> None:
    offsets = torch.full((2, 4, 2, 5), 999, dtype=torch.int32)
    offsets[1, :, 0] = torch.tensor([[6, 9, 14, -1, -1], [-1, 3, -1, 21, -1], [-1] * 5, [3, 3, 3, 3, 3]])
    source = offsets.clone()
    table, counts = torch.full((3, 5), 77, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)
    bookkeeping.refresh_block_tables(offsets, 1, 3, table, counts)
    assert table.tolist() == [[2, 3, 4, 0, 0], [0, 1, 0, 7, 0], [0] * 5]
    assert counts.tolist() == [3, 2, 0]
    assert torch.equal(offsets, source)


def test_context_latents_cross_pages_and_rejected_ones_are_zeros() -> None:
    pools = [torch.full((9, 1, 1, 4, 3), 5.0) for _ in range(2)]
    table = torch.tensor([[3, 8], [6, 1]], dtype=torch.int32)
    latents = normal(2, 3, 2, 3)
    accepted = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    bookkeeping.write_context_latents(latents, torch.tensor([3, 0]), accepted, torch.tensor([2, 2]), table, pools)
    for layer, pool in enumerate(pools):
        assert torch.equal(pool[3, 0, 0, 3], latents[0, 0, layer])
        assert torch.equal(pool[8, 0, 0, 0], latents[0, 1, layer])
        assert (pool[8, 0, 0, 1] == 0).all()
        assert torch.equal(pool[6, 0, 0, 0], latents[1, 0, layer])
        assert (pool[6, 0, 0, 1:3] == 0).all()
        assert (pool == 5.0).sum() == 9 * 4 * 3 - 6 * 3


def test_latents_past_a_requests_pages_never_leave_them() -> None:
    pool = torch.zeros(5, 1, 1, 4, 2)
    table = torch.tensor([[3, 0], [0, 0]], dtype=torch.int32)
    bookkeeping.write_context_latents(
        torch.ones(2, 6, 1, 2), torch.tensor([2, 0]), torch.ones(2, 6), torch.tensor([1, 0]), table, [pool]
    )
    assert (pool[[1, 2, 4]] == 0).all()
    assert (pool[0, 0, 0, 1:] == 0).all()
    assert (pool[3, 0, 0, 2:] == 1).all()


def test_advertised_context_leaves_room_for_the_block() -> None:
    lengths = torch.tensor([0, 0, 0, 7])
    slots, start, accepted = torch.tensor([2, 0, 1, 3]), torch.tensor([4, 13, 9, 0]), torch.tensor([3, 4, 1, 5])
    counts = torch.tensor([3, 4, 3, 0])
    advertised = bookkeeping.advance_context(lengths, start, accepted, slots, counts, (15, 4, 3))
    assert lengths.tolist() == [15, 10, 7, 0]
    assert advertised.tolist() == [7, 13, 9, 0]
    table = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7], [8, 9, 10, 0], [0, 0, 0, 0]], dtype=torch.int32)
    pages, rows, ends = bookkeeping.block_cells(advertised, table, 3, 4)
    assert (pages[:3] > 0).all()
    assert pages.tolist()[:3] == [[2, 3, 3], [7, 7, 7], [10, 10, 10]]
    assert rows.tolist()[1] == [1, 2, 3]
    assert ends.tolist() == [10, 16, 12, 3]
    unbounded, _, _ = bookkeeping.block_cells(lengths[1:2], table[2:3], 3, 4)
    assert unbounded.tolist() == [[10, 10, 0]]


def test_yarn_bounds_are_rounded_only_with_truncation() -> None:
    rope = Rope(theta=150000.0, factor=32.0)
    truncated, exact = frequencies(rope, 64), frequencies(replace(rope, truncate=False), 64)
    assert not torch.equal(truncated, exact)
    assert torch.equal(truncated[:5], exact[:5])
    plain = frequencies(Rope(theta=150000.0), 64)
    torch.testing.assert_close(exact[-1], plain[-1] / 32)
    # Pairs that turn 32 times and once within 4096 positions have the indices 8.09 and 17.40.
    for pair, share in ((8, 0.0), (9, 0.1), (17, 0.9), (18, 1.0)):
        torch.testing.assert_close(truncated[pair], plain[pair] * (1 - share + share / 32))
    torch.testing.assert_close(
        exact[9], plain[9] * (1 - 31 / 32 * (9 - 8.0926) / (17.3980 - 8.0926)), rtol=1e-3, atol=0
    )
    assert exact[0] == plain[0]


def test_rotation_depends_on_distance_alone_and_keeps_the_unrotated_part() -> None:
    table = rope_table(Rope(theta=1e4, partial=0.5), 8, 64, "cpu")
    assert table.shape == (64, 4)
    q, k = normal(1, 1, 8), normal(1, 1, 8, seed=1)
    pairs = [(torch.tensor([9]), torch.tensor([4])), (torch.tensor([59]), torch.tensor([54]))]
    near, far = ((rotate_halves(q, a, table) * rotate_halves(k, b, table)).sum() for a, b in pairs)
    torch.testing.assert_close(near, far)
    assert torch.equal(rotate_halves(q, pairs[0][0], table)[..., 4:], q[..., 4:])
    whole = rope_table(Rope(theta=1e4), 8, 64, "cpu")
    apart = q.unflatten(-1, (4, 2)).transpose(-1, -2).flatten(-2)
    turned = rotate_halves(apart, pairs[0][0], whole).unflatten(-1, (2, 4)).transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(rotate_pairs(q, pairs[0][0], whole), turned)


@pytest.mark.parametrize("geometry", [SMALL, WITH_STATES], ids=["attention", "states"])
@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle"])
def test_passes_can_be_repeated_without_a_trace(
    drafter: str, geometry: Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capturing a graph runs a pass twice before the replay that counts."""
    settings = small(geometry, drafter=drafter)
    once, drafts = run(settings, "continuation")
    monkeypatch.setattr(Pass, "__call__", lambda self: [self._run() for _ in range(3)][-1])
    thrice, same_drafts = run(settings, "continuation")
    assert once == thrice
    assert compare_drafts(drafts, same_drafts).agrees()


@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle", "none"])
def test_each_span_is_recorded_once_a_cycle_inside_its_parent(drafter: str) -> None:
    settings = small(WITH_STATES, drafter=drafter)
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings, 3), OUTPUT)
    cycle.step()
    recorder, sites = Recorder(), span_sites(cycle)
    owned = {(site.owner, site.method): vars(site.owner).get(site.method) for site in sites}
    patches = instrument(sites, recorder)
    patches.install()
    for _ in range(5):
        cycle.step()
    patches.revert()
    assert patches.conflicts == []
    assert owned == {(site.owner, site.method): vars(site.owner).get(site.method) for site in sites}
    rows = rows_of(recorder)
    by_span = {site.span: [row[1:] for row in rows if row[0] == index] for index, site in enumerate(sites)}
    for span, times in by_span.items():
        assert len(times) == 5, span
        if parent := PARENT[span]:
            for (start, end), (outer_start, outer_end) in zip(times, by_span[parent], strict=True):
                assert outer_start <= start <= end <= outer_end


@pytest.mark.timed
def test_what_no_span_covers_of_a_step_is_below_three_percent() -> None:
    settings = small(Geometry(), batch=8, context=128, draft_length=7, page_size=16)
    cycle = Cycle(settings)
    cycle.add([[1, 2, 3]] * 8, 100)
    cycle.step()
    recorder, sites = Recorder(), span_sites(cycle)
    patches = instrument(sites, recorder)
    patches.install()
    for _ in range(12):
        cycle.step()
    patches.revert()
    rows = rows_of(recorder)
    length = {site.span: [end - start for row, start, end in rows if row == index] for index, site in enumerate(sites)}
    direct = [length[site.span] for site in sites if PARENT[site.span] == "cycle"]
    left = [1 - sum(parts) / whole for whole, *parts in zip(length["cycle"], *direct, strict=True)]
    assert median(left) < 0.03


def test_a_pass_without_a_result_is_captured_once_and_then_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        replays = 0

        def replay(self) -> None:
            self.replays += 1

    def capture(self: Pass[None]) -> None:
        assert self._graph is None
        self._graph = graph

    graph = Graph()
    monkeypatch.setattr(Pass, "_capture", capture)
    captured: Pass[None] = Pass(lambda: None, "cuda")
    for _ in range(3):
        captured()
    assert graph.replays == 3
