"""What speculation earns, from counts written by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import cycles_of, header, make_recording, spans_of

from analyzers.economics import Acceptance, Economics, economics
from spantrace.errors import SpantraceError
from spantrace.recording import Recording
from spantrace.spans import Kind, Track

MS = 1_000_000


def counted(drafting: list[int], drafted: list[list[int]], accepted: list[list[int]], batch: int = 4) -> Recording:
    """Cycles of 10 ms each with these counts."""
    n = len(drafting)
    cycles = cycles_of([(index * 10 * MS, index * 10 * MS + 9 * MS) for index in range(n)], last_period=10 * MS)
    arrays = {"drafted": np.array(drafted, dtype=np.int32), "accepted": np.array(accepted, dtype=np.int32)}
    counts = {"drafting": np.array(drafting, dtype=np.int32), "batch": np.full(n, batch, dtype=np.int32)}
    return Recording(header(), replace(cycles, **arrays, **counts), spans_of([]))


def accepted_in(found: Economics) -> Acceptance:
    assert found.acceptance is not None
    return found.acceptance


def test_two_cycles_of_four_requests_by_hand() -> None:
    found = economics(counted([4, 4], [[4, 4], [4, 4]], [[4, 2], [3, 1]]))
    got = accepted_in(found)
    assert (got.drafting, got.drafted, got.accepted) == (8, 16, 10)
    assert got.length == 2.25
    assert got.rate == 0.625
    assert got.per_position == (0.875, 0.375)
    assert got.histogram == (1, 4, 3)
    assert found.tokens_per_request == 2.25  # 8 + 10 tokens of 8 requests
    assert found.ms_per_token == pytest.approx(10 / 2.25)
    assert found.ms_per_emitted == pytest.approx(20 / 18)
    assert found.ms_per_accepted == 2.0


def test_requests_with_fewer_drafts_than_k() -> None:
    # Three requests draft 3, 2 and 1 tokens and accept all, one, and none of them.
    got = accepted_in(economics(counted([3], [[3, 2, 1]], [[2, 1, 1]])))
    assert got.per_position == (pytest.approx(2 / 3), 0.5, 1.0)
    assert got.histogram == (1, 1, 0, 1)
    assert got.rate == pytest.approx(4 / 6)


def test_a_position_that_nobody_drafted_has_no_rate() -> None:
    assert accepted_in(economics(counted([2], [[2, 0]], [[1, 0]]))).per_position == (0.5, None)


def test_requests_that_drafted_nothing_still_get_their_token() -> None:
    found = economics(counted([2], [[2]], [[2]], batch=4))
    assert found.tokens_per_request == 1.5
    assert accepted_in(found).length == 2.0


def test_a_server_without_speculation_has_a_price_per_token_only() -> None:
    found = economics(make_recording(drafts=0, cycles=50))
    assert found.acceptance is None
    assert found.tokens_per_request == 1.0
    assert found.ms_per_token == pytest.approx(7.2, abs=0.1)
    assert found.ms_per_accepted is None


def test_break_even_length_is_the_cycle_in_tokens_of_the_baseline() -> None:
    speculating = counted([1], [[1, 1]], [[1, 1]], batch=1)
    cycles = cycles_of([(0, 3 * MS)], last_period=4 * MS)
    found = economics(speculating, Recording(header(), cycles, spans_of([])))
    assert found.baseline_ms_per_token == 4.0
    assert found.break_even_length == 2.5
    assert found.speedup == pytest.approx(3 / 2.5)
    assert economics(speculating).break_even_length is None


def test_a_baseline_that_speculates_is_refused() -> None:
    recording = counted([1], [[1]], [[1]])
    with pytest.raises(SpantraceError, match="with speculation"):
        economics(recording, recording)


def test_a_baseline_at_another_batch_is_not_comparable() -> None:
    baseline = Recording(header(), cycles_of([(0, MS)], last_period=MS, batch=1), spans_of([]))
    with pytest.raises(SpantraceError, match="batch 1, the recording at 4") as caught:
        economics(counted([4], [[4]], [[4]]), baseline)
    assert caught.value.exit_code == 3


def test_the_drafters_share_is_of_the_period() -> None:
    spans = spans_of([("draft.propose", Track.HOST, 0, 0, MS), ("draft.forward", Track.GPU, 0, MS, 4 * MS)])
    found = economics(replace(counted([1], [[1]], [[1]]), spans=spans))
    assert (found.drafter_host_share, found.drafter_gpu_share) == (0.1, 0.3)
    nothing = economics(counted([1], [[1]], [[1]]))
    assert (nothing.drafter_host_share, nothing.drafter_gpu_share) == (None, None)


def test_only_steady_cycles_count() -> None:
    recording = counted([4, 4], [[4], [4]], [[4], [0]])
    kind = np.array([Kind.STEADY, Kind.PREFILL], dtype=np.int8)
    assert accepted_in(economics(replace(recording, cycles=replace(recording.cycles, kind=kind)))).rate == 1.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=40))
def test_the_histogram_counts_requests(requests: list[tuple[int, int]]) -> None:
    requests = [(drafts, min(drafts, accepts)) for drafts, accepts in requests]
    drafted = [[sum(drafts > j for drafts, _ in requests) for j in range(5)]]
    accepted = [[sum(accepts > j for _, accepts in requests) for j in range(5)]]
    got = accepted_in(economics(counted([len(requests)], drafted, accepted, batch=len(requests))))
    assert sum(got.histogram) == got.drafting
    assert got.histogram == tuple(sum(accepts == count for _, accepts in requests) for count in range(6))
