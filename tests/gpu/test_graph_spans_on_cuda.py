"""Parts of CUDA graphs on a GPU: they add up to the graph, their cost is told, and who does not ask has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from capturing import captured, nodes  # noqa: E402

from analyzers.graph_parts import graph_parts  # noqa: E402
from optimized.reference_cycle import dflash, dspark, marking, target  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from spantrace.cli.graph_wording import GOAL  # noqa: E402
from spantrace.cli.main import run  # noqa: E402
from spantrace.gpu_clock import GpuClock  # noqa: E402
from spantrace.graph_capture import empty_pair_ns, new_events, replay_ms  # noqa: E402
from spantrace.graph_spans import GraphTimes, MarkedGraph, Marks  # noqa: E402
from spantrace.loading import load  # noqa: E402
from spantrace.spans import PARENT, Kind, Track  # noqa: E402
from spantrace.vllm_adapter.event_pool import make_gpu_clock  # noqa: E402

DRAFTERS = ("dflash", "dspark")
TARGET_PARTS = ("embedding", "first_layers", "middle_layers", "last_layers", "logits")
DRAFT_PARTS = {"dflash": ("layers", "logits", "sampling"), "dspark": ("layers", "logits", "markov")}
SETTINGS = {
    name: Settings(GEOMETRIES["tiny"], drafter=name, batch=4, context=256, device="cuda", dtype="bfloat16")  # type: ignore[arg-type]
    for name in DRAFTERS
}


def clock() -> GpuClock:
    torch.ones(1 << 20, device="cuda").sum().item()
    found, _ = make_gpu_clock()
    assert found is not None
    return found


@contextmanager
def marked(times: GraphTimes) -> Iterator[list[tuple[MarkedGraph, tuple[float, float]]]]:
    marking.marking.times, marking.marking.graphs = times, []
    try:
        yield marking.marking.graphs
    finally:
        marking.marking.times = None


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_parts_of_a_recorded_graph_add_up_to_it_and_the_report_says_what_marks_cost(
    drafter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.spantrace"
    sizes = ["--geometry", "qwen3-8b", "--layers", "12", "--batch", "16", "--context", "1024"]
    asked = ["run", "--device", "cuda", "--dtype", "bfloat16", "--drafter", drafter, "--cycles", "300", *sizes]
    assert run([*asked, "--graph-spans", "-o", str(path)]) == 0
    recording = load(path)
    (process,) = recording.header["processes"]
    assert (process["hook_errors"], process["first_error"]) == (0, "")
    found = graph_parts(recording)
    assert found is not None
    assert {one.span for one in found.sums} == {"target.forward", "draft.forward"}
    assert 0 < found.empty_ns < 20_000
    steady = recording.of_kind(Kind.STEADY)
    for one in found.sums:
        names = TARGET_PARTS if one.span == "target.forward" else DRAFT_PARTS[drafter]
        assert one.marks == len(names) + 1
        assert one.cycles >= 50
        assert abs(one.residual) <= GOAL, one
        assert one.start_cost_us is not None
        assert one.start_cost_us < 20 * one.marks
        for name in names:
            length = steady.durations(f"{one.span}.{name}", Track.GPU)
            assert (length[~np.isnan(length)] >= 0).all()
    assert run(["report", str(path)]) == 0
    out = capsys.readouterr().out
    assert "graph parts" in out
    assert "us a replay at start" in " ".join(out.split())


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_graphs_are_untouched_where_nobody_asks(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cycle = Cycle(SETTINGS[drafter])
    generate(cycle, random_prompts(SETTINGS[drafter], 4, 40), 16)
    assert cycle.drafter is not None
    (rows,) = cycle.target.prepared().values()
    passes = {"target.forward": lambda: cycle.target.verify(rows), "draft.forward": cycle.drafter.draft_block}
    off = {name: counted(run_it) for name, run_it in passes.items()}
    marked_nodes = {name: counted_with_marks(run_it) for name, run_it in passes.items()}
    for module in (target, dflash, dspark):
        monkeypatch.setattr(module, "part", lambda name, result: result)
    assert off == {name: counted(run_it) for name, run_it in passes.items()}
    assert {name: count - marks for name, (count, marks) in marked_nodes.items()} == off
    assert all(marks >= 4 for _, marks in marked_nodes.values())


def counted(work: Callable[[], object]) -> int:
    """Nodes of the second graph of it: what the first one has to set up is there by then."""
    captured(work)
    return nodes(captured(work))


def counted_with_marks(work: Callable[[], object]) -> tuple[int, int]:
    """The same with marks, and how many there are."""
    made: list[Marks] = []

    def with_marks() -> None:
        if torch.cuda.is_current_stream_capturing():
            made.append(Marks(new_events()))
            marking.marking.marks = made[-1]
            made[-1].begin()
        work()
        marking.marking.marks = None

    return counted(with_marks), len(made[-1].parts) + 1


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_graph_with_marks_computes_what_the_plain_one_does(drafter: str) -> None:
    settings = SETTINGS[drafter]
    prompts = random_prompts(settings, 6, 40)
    plain = generate(Cycle(settings), prompts, 24)
    timed = clock()
    timed.graphs = GraphTimes(timed, 0.0)
    cycle = Cycle(settings)
    requests = cycle.add(prompts, 24)
    with marked(timed.graphs) as graphs:
        while not cycle.scheduler.idle():
            timed.new_cycle()
            timed.open()
            cycle.step()
    assert len(graphs) >= 2
    assert timed.graphs.reads > 0
    assert (timed.errors, timed.first_error) == (0, "")
    assert [request.tokens for request in requests] == plain.tokens


def test_a_pass_is_captured_once_where_nobody_asks() -> None:
    cycle = Cycle(SETTINGS["dflash"])
    generate(cycle, random_prompts(SETTINGS["dflash"], 4, 40), 16)
    assert cycle.drafter is not None
    assert cycle.drafter.block_pass.replayed
    assert cycle.drafter.block_pass._twin is None


def test_an_empty_pair_reads_little_and_a_slept_part_its_time() -> None:
    empty = empty_pair_ns()
    assert 0 < empty < 20_000
    events = new_events()
    marks, graph = Marks(events), torch.cuda.CUDAGraph()

    def work() -> None:
        torch.cuda._sleep(2_000_000)

    plain = captured(work)
    with torch.cuda.graph(graph):
        marks.begin()
        work()
        marks.end("draft.forward.layers")
        marks.end("draft.forward.logits")
    without, with_marks = replay_ms(MarkedGraph(plain, graph, tuple(marks.parts), events))
    graph.replay()
    torch.cuda.synchronize()
    slept, nothing = (events[at].elapsed_time(events[at + 1]) for at in range(2))
    assert slept == pytest.approx(without, rel=0.05)
    assert nothing * 1e6 < 5 * empty
    assert with_marks - without < 0.1
    assert PARENT["draft.forward.layers"] == "draft.forward"


def test_marks_of_a_busy_stream_are_read_without_waiting() -> None:
    timed = clock()
    times = timed.graphs = GraphTimes(timed, 0.0)
    events = new_events()
    marks, graph = Marks(events), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        marks.begin()
        torch.cuda._sleep(400_000_000)
        marks.end("draft.forward.layers")
    both = MarkedGraph(graph, graph, tuple(marks.parts), events)
    launched = 0
    for _ in range(12):
        timed.new_cycle()
        timed.open()
        if times.begins(both):
            graph.replay()
            launched += 1
            break
    assert launched == 1
    timed.new_cycle()
    assert times.drain() == []
    torch.cuda.synchronize()
    timed.new_cycle()
    (_, _, begin, end) = times.drain()
    assert end - begin > 50_000_000
    assert timed.errors == 0, timed.first_error
