"""The built-in cycle explained: the function that slows a span is named, and no profiler is left."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyinstrument")

from small_cycles import SMALL  # noqa: E402

from optimized.reference_cycle.acceptance import Verifier  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from spantrace.built_in import explained as built_in  # noqa: E402
from spantrace.built_in.explained import explain  # noqa: E402
from spantrace.built_in.running import Asked, BuiltIn  # noqa: E402
from spantrace.cli import making  # noqa: E402
from spantrace.cli.explained import show  # noqa: E402
from spantrace.cli.main import run  # noqa: E402
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError  # noqa: E402
from spantrace.explaining.conducting import Design, Explained  # noqa: E402
from spantrace.journal import Journal  # noqa: E402
from spantrace.recording import Recording  # noqa: E402
from spantrace.tables import Format  # noqa: E402

pytestmark = pytest.mark.timed

SLOW_S = 0.003
TINY = replace(SMALL, layers=1, taps=(0,), dflash=replace(SMALL.dflash, layers=1))


def slow_on_purpose() -> None:
    """Busy for so long."""
    end = time.perf_counter() + SLOW_S
    while time.perf_counter() < end:
        pass


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `sample` that takes longer."""
    original: Any = Verifier.sample

    def slowed(*arguments: Any, **named: Any) -> Any:
        slow_on_purpose()
        return original(*arguments, **named)

    monkeypatch.setattr(Verifier, "sample", slowed)


def explained(path: Path, design: Design) -> tuple[Recording, Explained]:
    """A short cycle explained."""
    work = BuiltIn(Asked(Settings(TINY, batch=1, draft_length=2, context=256), rates=(0.75,)))
    work.prepare(lambda tokens: None)
    with Journal(path, making.new_header("", {"warmup": 0})) as journal:
        return explain(work, design, journal, lambda samples: None)


@pytest.mark.usefixtures("slow")
def test_the_function_that_slows_a_span_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    design, saved = Design("sample", samples=300), tmp_path / "stacks.speedscope.json"
    recording, seen = explained(tmp_path / "a", design)
    assert sys.getprofile() is None
    show(design, recording, seen, saved, Format.JSON)
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] >= 300
    assert found["kernels"] is None
    (node,) = [one for one in found["stacks"] if one["function"] == "slow_on_purpose"]
    first = slow_on_purpose.__code__.co_firstlineno
    assert node["file"].endswith("test_explained_cycle.py")
    assert node["line"] in (first + 3, first + 4)
    assert node["seconds"] > 0.5 * found["stacks"][0]["seconds"]
    assert "slow_on_purpose" in saved.read_text()


def test_what_begins_at_a_boundary_and_the_whole_cycle_have_a_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for span in ("cycle", "draft.input_prep"):
        design = Design(span, gpu=False, samples=50)
        show(design, *explained(tmp_path / span, design), None, Format.TABLE)
        printed = capsys.readouterr().out
        assert f"{span}  takes " in printed
        assert "kernels" not in printed


def test_another_profiler_of_this_process_is_named(tmp_path: Path) -> None:
    def theirs(*_: object) -> None:
        """A profile function of somebody else."""

    sys.setprofile(theirs)
    try:
        with pytest.raises(SpantraceError, match="theirs already profiles the thread MainThread"):
            explained(tmp_path / "a", Design("sample", gpu=False, samples=50))
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)


def test_a_gpu_that_another_profiler_holds_does_not_cost_the_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is made up, as torch.profiler needs none to be refused."""
    monkeypatch.setattr(built_in, "gpu_of_this_process", lambda: 0)
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nvidia/libToolsInjection64.so")
    design = Design("sample", samples=20)
    why = r"process \d+ runs under another profiler of the GPU \(libToolsInjection64.so\); wait until it has ended"
    show(design, *explained(tmp_path / "a", design), None, Format.TABLE)
    assert re.search(f"kernels {why}", " ".join(capsys.readouterr().out.split()))
    with pytest.raises(SpantraceError, match=why):
        explained(tmp_path / "b", Design("sample", host=False))


def test_a_cycle_without_a_drafter_has_no_draft_to_explain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--drafter", "none", "--batch", "1", "--context", "256", "--layers", "1", "--device", "cpu"]
    assert run(["explain", "built-in", "--span", "draft.forward", *options]) == EXIT_NOT_COMPARABLE
    assert capsys.readouterr().err.startswith("spantrace: draft.forward did not run in ")
    assert run(["explain", "built-in", "--span", "sample", "--only", "gpu", *options]) == EXIT_NOT_COMPARABLE
    assert capsys.readouterr().err == (
        "spantrace: there is no GPU here: torch.profiler sees operators of the CPU only, and no kernel\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert built_in.gpu_of_this_process() is None
