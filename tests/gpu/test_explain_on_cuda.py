"""The built-in cycle explained on a GPU: kernels by span, those inside graphs too, and how busy it truly is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pandas")
pytest.importorskip("pyinstrument")
pytestmark = pytest.mark.gpu

from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from spantrace.built_in.explained import explain  # noqa: E402
from spantrace.built_in.running import Asked, BuiltIn  # noqa: E402
from spantrace.cli import making  # noqa: E402
from spantrace.cli.explained import show  # noqa: E402
from spantrace.cli.explained_kernels import kernels_of  # noqa: E402
from spantrace.explaining import kernels  # noqa: E402
from spantrace.explaining.conducting import Design, Explained  # noqa: E402
from spantrace.explaining.kernels import KernelWindow, kernels_in  # noqa: E402
from spantrace.explaining.measured import cycle_ms, in_window  # noqa: E402
from spantrace.explaining.profilers import torch_profiler  # noqa: E402
from spantrace.journal import Journal  # noqa: E402
from spantrace.recording import Recording  # noqa: E402
from spantrace.tables import Document, Format  # noqa: E402

SETTINGS = Settings(GEOMETRIES["tiny"], batch=4, draft_length=7, context=512, device="cuda", dtype="bfloat16")
DESIGN = Design("draft.forward", samples=300, cycles=12)
Seen = tuple[Recording, Explained]


def explained(path: Path, design: Design) -> Seen:
    """The built-in cycle explained."""
    work = BuiltIn(Asked(SETTINGS, rates=(0.75,)))
    work.prepare(lambda tokens: None)
    with Journal(path, making.new_header("", {"warmup": 0})) as journal:
        return explain(work, design, journal, lambda samples: None)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """All windows of one span."""
    return explained(tmp_path_factory.mktemp("explained") / "a", DESIGN)


def found_in(seen: Seen, span: str) -> KernelWindow:
    """The kernels of a span."""
    recording, about = seen
    assert isinstance(about.kernels, tuple)
    window, answers = about.kernels
    found = kernels_in(recording, answers, in_window(recording, window), span)
    assert found is not None
    return found


def test_graphs_and_their_kernels_are_of_the_spans_that_replay_them(seen: Seen) -> None:
    found = found_in(seen, "draft.forward")
    assert found.cycles >= 8
    assert found.unlaunched == 0
    by_span = {one.span: one for one in found.spans}
    for span in ("target.forward", "draft.forward"):
        assert by_span[span].graphs == 1, by_span[span]
        assert by_span[span].nodes > 10, by_span[span]
        assert by_span[span].ns > 0
    assert by_span["sample"].kernels > 0
    assert by_span["draft.propose"].kernels >= by_span["draft.forward"].kernels
    assert by_span["cycle"].kernels >= by_span["target.forward"].kernels + by_span["draft.propose"].kernels
    assert sum(kernel.calls for kernel in found.top) == pytest.approx(by_span["draft.forward"].kernels)
    assert "schedule" not in by_span


def test_busy_is_the_union_that_pandas_finds(seen: Seen, tmp_path: Path) -> None:
    from trace_tables import covered, table_of

    recording, about = seen
    assert isinstance(about.kernels, tuple)
    window, (answer,) = about.kernels
    path = tmp_path / "trace.json.gz"
    path.write_bytes(answer["trace"])
    table, offset = table_of(path), kernels._offset(kernels._read(answer["trace"]), answer)
    rows, cycles = table[table["cat"] == "kernel"], recording.cycles
    chosen = in_window(recording, window)
    bounds = zip(cycles.start[chosen].tolist(), cycles.period[chosen].tolist(), strict=True)
    total = sum(covered(rows, start + offset, start + offset + period) for start, period in bounds)
    found = found_in(seen, "cycle")
    assert found.busy == pytest.approx(total / found.cycles)
    assert 0 < found.busy < found.period


def test_launches_lie_where_the_host_was(seen: Seen) -> None:
    """The two clocks agree: nearly every kernel of a cycle was launched in a span that may launch one."""
    found = found_in(seen, "cycle")
    by_span = {one.span: one for one in found.spans}
    parts = [one for name, one in by_span.items() if "." in name and name.count(".") == 1 and "draft." not in name]
    inside = sum(one.kernels for one in parts) + by_span["draft.propose"].kernels
    inside += sum(by_span[name].kernels for name in ("sample", "postprocess") if name in by_span)
    assert inside > 0.9 * by_span["cycle"].kernels


def test_what_is_printed_and_that_nothing_is_left(seen: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    recording, about = seen
    assert torch_profiler() == ""
    document = kernels_of(DESIGN, recording, about)
    assert isinstance(document, Document)
    show(DESIGN, recording, about, None, Format.JSON)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["kernels"]["busy"] > 0
    assert told["busy_by_events_ms"] > 0.5 * told["kernels"]["busy"] / 1e6
    before, after = (cycle_ms(recording, window) for window in (about.before, about.after))
    assert before is not None
    assert after is not None
    assert after < 1.5 * before
    show(DESIGN, recording, about, None, Format.TABLE)
    text = capsys.readouterr().out
    assert "in kernels, united over streams" in text
    assert "by event pairs in the same cycles" in text
