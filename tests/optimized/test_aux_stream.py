"""aux-stream-context without a GPU: the rows are projected before the verdict, in place, and every way back is counted.

A CPU has no second stream, so here the projection runs where it would be forked off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_cycles import OUTPUT, WITH_STATES, expected, prompts_for, run, small  # noqa: E402

import optimized  # noqa: E402
from optimized.aux_stream_context import MOST_TOKENS, OPTIMIZATION, ahead, switch  # noqa: E402
from optimized.aux_stream_context.ahead import NOT_STARTED, OTHER_CAPTURE, WRITTEN, Ahead  # noqa: E402
from optimized.aux_stream_context.switch import UNMADE  # noqa: E402
from optimized.judging import choose_place  # noqa: E402
from optimized.optimization import Agreement  # noqa: E402
from optimized.reference_cycle.acceptance import Verifier  # noqa: E402
from optimized.reference_cycle.comparison import compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402
from optimized.reference_cycle.drafter import Drafter  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.graphs import Pass  # noqa: E402
from optimized.reference_cycle.settings import DRAFTERS, Settings  # noqa: E402

ID = OPTIMIZATION.id
Patch = pytest.MonkeyPatch
with_both = pytest.mark.parametrize("drafter", DRAFTERS)


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


@pytest.fixture
def on_a_cpu(monkeypatch: Patch) -> None:
    """Let the switch take a drafter on a CPU, which its requirement and its guard do not."""
    item = replace(OPTIMIZATION, requirements=())
    known = {**optimized.discover(), ID: item}
    monkeypatch.setattr(optimized, "discover", lambda: known)
    monkeypatch.setattr(switch, "why_not", lambda drafter: None)


def running(drafter: str = "dspark") -> Cycle:
    """A cycle that has drafted once."""
    settings = small(drafter=drafter, batch=3)
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings), OUTPUT)
    cycle.step()
    return cycle


def said() -> dict[str, Any]:
    (counts,) = optimized.counts()
    return {name: counts[name] for name in ("hits", "reasons")}


# The order


@with_both
def test_the_rows_are_projected_once_a_step_and_before_the_verdict(
    drafter: str, on_a_cpu: None, monkeypatch: Patch
) -> None:
    seen: list[str] = []

    def noted(owner: type, name: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: (seen.append(name), original(*args))[1])

    cycle = running(drafter)
    kind = type(cycle.drafter)
    for owner, name in ((kind, "project_rows"), (Verifier, "sample"), (kind, "build_queries")):
        noted(owner, name)
    cycle.step()
    assert seen == ["sample", "build_queries", "project_rows"]
    optimized.apply([ID])
    cycle.forget_graphs()
    cycle.step()
    seen.clear()
    cycle.step()
    assert seen == ["project_rows", "sample", "build_queries"]


@with_both
@pytest.mark.parametrize("mode", ["drafter", "forced"])
def test_either_order_gives_the_same_bits(drafter: str, mode: str, on_a_cpu: None) -> None:
    settings = small(WITH_STATES, drafter=drafter)
    off, log = run(settings, mode)
    optimized.apply([ID])
    on, other = run(settings, mode)
    assert said() == {"hits": on.cycles, "reasons": {}}
    assert on.tokens == off.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(0.0)


@with_both
def test_it_goes_with_all_others(drafter: str, on_a_cpu: None) -> None:
    settings = small(drafter=drafter)
    others = [name for name in optimized.select("all") if name != ID]
    optimized.apply(others)
    off, log = run(settings, "forced")
    optimized.revert()
    optimized.apply([*others, ID])
    on, other = run(settings, "forced")
    (counts,) = [counts for counts in optimized.counts() if counts["id"] == ID]
    assert (counts["hits"], counts["reasons"]) == (on.cycles, {})
    assert on.tokens == off.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(0.0)


@with_both
def test_what_is_declared_is_what_is_held(drafter: str, on_a_cpu: None) -> None:
    for settings in (small(drafter=drafter), small(drafter=drafter, batch=1, draft_length=7, dtype="float16")):
        optimized.apply([ID])
        cycle = Cycle(settings)
        cycle.add(prompts_for(settings), OUTPUT)
        cycle.step()
        assert optimized.allocated(ID) == OPTIMIZATION.memory(replace(settings, device="cuda")) > 0
        assert isinstance(cycle.drafter, Drafter)
        assert len(cycle.drafter.passes) == 3
        optimized.revert()
        assert len(cycle.drafter.passes) == 2
    assert OPTIMIZATION.memory(settings) == OPTIMIZATION.memory(replace(settings, drafter="none", device="cuda")) == 0


# Ways back


def test_what_is_refused(monkeypatch: Patch) -> None:
    drafter: Any = running().drafter
    assert switch.why_not(drafter) == "a CPU has no second stream"

    class OnAGpu:
        is_cuda, shape = True, (32, 8, 64)

    drafter.captured = OnAGpu()
    assert switch.why_not(drafter) is None
    drafter.captured.shape = (64, 8, 64)
    assert switch.why_not(drafter) == "512 verified rows are more than 256"
    wide = Settings(GEOMETRIES["qwen3-8b"], drafter="dspark", batch=64, device="cuda", dtype="bfloat16")
    assert OPTIMIZATION.memory(wide) == 0
    assert OPTIMIZATION.memory(replace(wide, batch=MOST_TOKENS // 8)) > 0


@pytest.mark.skipif(choose_place().device == "cuda", reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    assert OPTIMIZATION.agreement is Agreement.BITWISE
    with pytest.raises(optimized.SpantraceError, match="a CPU has no second stream"):
        optimized.apply([ID])
    assert ID not in optimized.select("all")
    assert optimized.select("dspark-aux-stream") == [ID]


@pytest.mark.parametrize("name", ["captured", "slots", "context_lengths"])
def test_another_writer_in_between_is_seen_and_the_rows_are_made_anew(
    name: str, on_a_cpu: None, monkeypatch: Patch
) -> None:
    cycles = [running() for _ in range(2)]
    sample = Verifier.sample

    def meddling(cycle: Cycle) -> None:
        def write(verifier: Verifier, *args: Any) -> Any:
            tensor = getattr(cycle.drafter, name)
            tensor[0] = tensor[1] + 1 if name == "captured" else tensor[1]
            return sample(verifier, *args)

        monkeypatch.setattr(Verifier, "sample", write)
        cycle.step()

    meddling(cycles[0])
    optimized.apply([ID])
    meddling(cycles[1])
    assert said() == {"hits": 0, "reasons": {WRITTEN: 1}}
    stock, other = (cycle.draft for cycle in cycles)
    assert stock is not None
    assert other is not None
    assert torch.equal(stock.logits, other.logits)


def test_a_step_that_was_not_observed_is_no_hit(on_a_cpu: None, monkeypatch: Patch) -> None:
    cycles = [running() for _ in range(2)]
    optimized.apply([ID])
    monkeypatch.setattr(Ahead, "start", lambda self: None)
    cycles[1].step()
    assert said() == {"hits": 0, "reasons": {NOT_STARTED: 1}}
    optimized.revert()
    cycles[0].step()
    stock, other = (cycle.draft for cycle in cycles)
    assert stock is not None
    assert other is not None
    assert torch.equal(stock.logits, other.logits)


def test_rows_of_another_capture_are_never_joined(on_a_cpu: None, monkeypatch: Patch) -> None:
    cycle, forgotten = running(), list[Any]()
    optimized.apply([ID])
    cycle.step()
    start = Ahead.start

    def elsewhere(self: Ahead) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ahead, "capturing", lambda: True)
            start(self)

    with monkeypatch.context() as patch:
        patch.setattr(Ahead, "start", elsewhere)
        patch.setattr(Pass, "forget", lambda self: forgotten.append(self))
        cycle.step()
    cycle.step()
    assert said() == {"hits": 1, "reasons": {OTHER_CAPTURE: 2}}
    assert isinstance(cycle.drafter, Drafter)
    assert forgotten == [cycle.drafter.context_pass], "its graph may read the rows"


def test_a_step_that_failed_is_joined_before_its_inputs_are_written_again(on_a_cpu: None, monkeypatch: Patch) -> None:
    cycle, joined = running(), list[int]()
    optimized.apply([ID])
    cycle.step()
    assert isinstance(cycle.drafter, Drafter)
    drafter, taps, join = cycle.drafter, torch.zeros(3, 6, 64), Ahead.join
    drafter.observe(taps)
    before = drafter.captured._version
    monkeypatch.setattr(Ahead, "join", lambda self: (joined.append(drafter.captured._version), join(self))[1])
    drafter.observe(taps)
    assert joined == [before] == [drafter.captured._version - 1]
    drafter.extend_context()
    assert said() == {"hits": 2, "reasons": {}}


def test_a_capture_that_comes_before_its_buffer_is_left_to_stock(on_a_cpu: None, monkeypatch: Patch) -> None:
    cycle = running()
    optimized.apply([ID])
    with monkeypatch.context() as patch:
        patch.setattr(ahead, "capturing", lambda: True)
        cycle.step()
    assert optimized.allocated(ID) == 0
    cycle.step()
    assert said() == {"hits": 1, "reasons": {UNMADE: 1}}


def failing(*_: Any) -> Any:
    raise RuntimeError("planted")


@pytest.mark.parametrize("method", ["start", "join", "_versions", "__init__"])
@with_both
def test_a_failure_is_counted_and_stock_goes_on(drafter: str, method: str, on_a_cpu: None, monkeypatch: Patch) -> None:
    settings = small(drafter=drafter)
    off, log = run(settings, "forced")
    optimized.apply([ID])
    monkeypatch.setattr(Ahead, method, failing)
    on, other = run(settings, "forced")
    (counts,) = optimized.counts()
    assert counts["errors"] == 1
    assert counts["reasons"] == {"RuntimeError: planted": 1, "it failed before (RuntimeError)": counts["fallbacks"]}
    assert counts["fallbacks"] >= on.cycles - 1
    assert on.tokens == off.tokens
    assert compare_drafts(log, other).agrees(0.0)


@pytest.mark.parametrize("late", [False, True])
def test_rows_that_cannot_be_made_at_all_leave_it_to_stock(late: bool, on_a_cpu: None, monkeypatch: Patch) -> None:
    settings = small()
    _, log = run(settings, "forced")
    optimized.apply([ID])
    project: Callable[[Ahead], None] = Ahead._project
    calls = []

    def project_or_fail(self: Ahead) -> None:
        calls.append(self)
        if not late or len(calls) > 3:
            raise RuntimeError("planted")
        project(self)

    monkeypatch.setattr(Ahead, "_project", project_or_fail)
    if late:
        monkeypatch.setattr(Ahead, "why_not", lambda self: NOT_STARTED if len(calls) == 3 else None)
    _, other = run(settings, "forced")
    (counts,) = optimized.counts()
    assert counts["errors"] == 1
    assert (counts["hits"] > 0) == late
    assert compare_drafts(log, other).agrees(0.0)
