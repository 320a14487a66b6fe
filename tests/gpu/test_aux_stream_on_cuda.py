"""aux-stream-context on a GPU: outputs poisoned, either stream held up, eager and captured, always the serial bits.

The controls take a join or a fork out, and must see other bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from capturing import captured, microseconds, nodes  # noqa: E402

import optimized  # noqa: E402
from optimized.aux_stream_context.ahead import Ahead  # noqa: E402
from optimized.aux_stream_context.contest import contest  # noqa: E402
from optimized.aux_stream_context.reference import SMALL, Verified  # noqa: E402
from optimized.reference_cycle.acceptance import Verifier  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import DRAFTERS as KINDS  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, Generation, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.settings import DRAFTERS, Settings  # noqa: E402

ID = "aux-stream-context"
SPIN = 10_000_000
"""Clock cycles, some 5 ms: longer than the host takes to launch a step."""
STEPS = 5
DELAYS = ("nothing", "the second stream", "this stream before the fork", "this stream after the fork")
with_both = pytest.mark.parametrize("drafter", DRAFTERS)
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()
    torch.cuda.synchronize()


class Forked:
    """A step from the target's taps to the written context, which holds one of the streams up on its way."""

    def __init__(self, drafter: Any, delayed: str) -> None:
        settings = Settings(SMALL, drafter=drafter, draft_length=3, batch=3, context=90, page_size=8)
        settings = replace(settings, device="cuda", dtype="bfloat16")
        self.right, self.problem = (Verified(settings, 3, (1, 4, 2), 5) for _ in range(2))
        self.delayed, self.drafter, self.ahead = delayed, self.problem.drafter, self.problem.ahead
        self.taps, self.verdict = self.problem.taps, self.problem.verdict
        self.drafter.context_rows = lambda: self.ahead.rows  # type: ignore[method-assign]
        self.late = False
        project = self.drafter.project_rows

        def held_up(*args: Any) -> Any:
            self.spin("the second stream")
            return project(*args)

        self.drafter.project_rows = held_up  # type: ignore[method-assign]

    def spin(self, where: str) -> None:
        if where == self.delayed:
            torch.cuda._sleep(SPIN)

    def step(self) -> None:
        """All of it; `late` joins behind the reading, where it is of no use."""
        self.ahead.rows.fill_(float("nan"))
        self.spin("this stream before the fork")
        self.drafter.observe(self.taps)
        self.ahead.start()
        self.spin("this stream after the fork")
        self.drafter.input_prep(self.verdict)
        if not self.late:
            self.ahead.join()
        self.drafter.remember()
        if self.late:
            self.ahead.join()
        self.drafter.advance()

    def next(self) -> None:
        """Rewrite the inputs in place."""
        for problem in (self.right, self.problem):
            problem.next()
        self.taps.copy_(self.problem.taps)
        for name in ("accepted", "counts", "newest"):
            getattr(self.verdict, name).copy_(getattr(self.problem.verdict, name))

    def differing(self) -> list[str]:
        """What the step that has run left behind otherwise than the serial order does."""
        wanted = self.right.reference()
        torch.cuda.synchronize()
        got = {"rows": self.ahead.rows, **self.problem.left()}
        assert got.keys() == wanted.keys()
        return [name for name, value in wanted.items() if not torch.equal(bits(got[name]), bits(value))]


def bits(value: Any) -> Any:
    """NaN differs from a number, and from nothing else."""
    return value.view(torch.int16) if value.dtype == torch.bfloat16 else value


@with_both
@pytest.mark.parametrize("delayed", DELAYS)
def test_step_by_step_whichever_stream_is_late(drafter: str, delayed: str) -> None:
    forked = Forked(drafter, delayed)
    for _ in range(STEPS):
        forked.step()
        assert forked.differing() == []
        forked.next()


@with_both
@pytest.mark.parametrize("delayed", DELAYS)
def test_in_one_graph_whichever_stream_is_late(drafter: str, delayed: str) -> None:
    """Fork and join are edges of the graph; it is replayed on inputs that are rewritten in place."""
    forked = Forked(drafter, delayed)
    graph = graph_after_a_step(forked)
    for _ in range(STEPS):
        forked.next()
        graph.replay()
        assert forked.differing() == []


def graph_after_a_step(forked: Forked) -> Any:
    """A graph of the step, of which the first has run as it is; capturing runs nothing."""
    forked.step()
    assert forked.differing() == []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forked.step()
    return graph


# Controls


@with_both
def test_without_the_join_the_poison_is_read(drafter: str, monkeypatch: Patch) -> None:
    forked = Forked(drafter, "the second stream")
    forked.step()
    assert forked.differing() == []
    forked.next()
    monkeypatch.setattr(Ahead, "_wait", lambda self: None)
    forked.step()
    differing = forked.differing()
    assert set(differing) & {"pool 0", "projected", "keys"}
    assert not {"lengths", "visible"} & set(differing)


@with_both
def test_in_a_graph_a_join_that_comes_too_late_reads_the_poison(drafter: str) -> None:
    forked = Forked(drafter, "the second stream")
    forked.step()
    assert forked.differing() == []
    forked.late = True
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forked.step()
    forked.next()
    graph.replay()
    assert set(forked.differing()) & {"pool 0", "projected", "keys"}


@with_both
def test_without_the_fork_the_taps_of_the_step_before_are_projected(drafter: str, monkeypatch: Patch) -> None:
    forked = Forked(drafter, "this stream before the fork")
    forked.step()
    assert forked.differing() == []
    forked.next()
    wait, waits = torch.cuda.Stream.wait_stream, []

    def wait_for_all_but_the_first(self: Any, other: Any) -> None:
        waits.append(other)
        if len(waits) > 1:
            wait(self, other)

    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", wait_for_all_but_the_first)
    forked.step()
    monkeypatch.undo()
    assert len(waits) == 2
    assert "rows" in forked.differing()


# In the cycle


SETTINGS = Settings(context=256, batch=4, device="cuda", dtype="bfloat16")


def drafts(settings: Settings) -> tuple[Generation, DraftLog]:
    """What a cycle generates, and every draft."""
    log = DraftLog()
    cycle = Cycle(settings, draft_log=log)
    generation = generate(cycle, random_prompts(settings, settings.batch + 2, 60), 40)
    torch.cuda.synchronize()
    return generation, log


def test_every_cycle_is_a_hit_and_drafts_the_same() -> None:
    for drafter in DRAFTERS:
        settings = replace(SETTINGS, drafter=drafter)
        off, log = drafts(settings)
        optimized.apply(["aux-stream-context"])
        on, other = drafts(settings)
        (said,) = optimized.revert()
        assert (said["hits"], said["fallbacks"], said["errors"]) == (on.cycles, 0, 0)
        assert (on.tokens, on.acceptance) == (off.tokens, off.acceptance)
        assert compare_drafts(log, other).agrees(0.0)


@with_both
@pytest.mark.parametrize("late", ["the second stream", "this stream", "no join"])
def test_a_cycle_in_which_a_stream_is_late(drafter: Any, late: str, monkeypatch: Patch) -> None:
    settings = replace(SETTINGS, drafter=drafter)
    _, log = drafts(settings)
    start, owner = Ahead.start, Verifier if late == "this stream" else KINDS[drafter]
    name = "sample" if late == "this stream" else "project_rows"
    original = getattr(owner, name)

    def poisoned(self: Ahead) -> None:
        self.rows.fill_(float("nan"))
        start(self)

    def held_up(*args: Any) -> Any:
        torch.cuda._sleep(SPIN)
        return original(*args)

    monkeypatch.setattr(Ahead, "start", poisoned)
    monkeypatch.setattr(owner, name, held_up)
    if late == "no join":
        monkeypatch.setattr(Ahead, "_wait", lambda self: None)
    optimized.apply([ID])
    _, other = drafts(settings)
    torch.cuda.synchronize()
    assert compare_drafts(log, other).agrees(0.0) == (late != "no join")


@with_both
def test_switching_between_steps_changes_nothing(drafter: Any) -> None:
    settings = replace(SETTINGS, drafter=drafter)
    off, log = drafts(settings)
    other, steps = DraftLog(), 0
    cycle = Cycle(settings, draft_log=other)
    requests = cycle.add(random_prompts(settings, settings.batch + 2, 60), 40)
    while not cycle.scheduler.idle():
        if steps % 3 == 0:
            optimized.apply([ID])
        elif steps % 3 == 2:
            assert optimized.revert()[0]["hits"] == 2
        cycle.forget_graphs()
        cycle.step()
        steps += 1
    assert [request.tokens for request in requests] == off.tokens
    assert compare_drafts(log, other).agrees(0.0)


def test_more_rows_than_it_takes_are_left_to_stock() -> None:
    settings = replace(SETTINGS, drafter="dspark", batch=33)
    optimized.apply([ID])
    cycle = Cycle(settings)
    cycle.add(random_prompts(settings, 33, 60), 8)
    cycle.step()
    (said,) = optimized.counts()
    assert said["hits"] == 0
    assert said["reasons"] == {"264 verified rows are more than 256": 1}
    assert optimized.allocated(ID) == 0


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_what_it_takes(batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(GEOMETRIES["kimi-k3-drafter"], batch=batch, context=256, device="cuda", dtype="bfloat16")
    raced = contest(settings)
    stock, fast = microseconds(raced.stock, raced.fast)
    counted = [nodes(captured(side)) for side in (raced.stock, raced.fast)]
    # Besides the serial order's: a gather of lengths, a range, their sum, and the copy to the buffer.
    assert 0 < counted[1] - counted[0] <= 4
    with capsys.disabled():
        print(f"\n{ID}, batch {batch}: {stock:.1f} us in {counted[0]} nodes to {fast:.1f} in {counted[1]}")
