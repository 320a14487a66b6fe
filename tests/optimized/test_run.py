"""`spantrace run` on real cycles: a recording holds what the cycle did, and report and compare read it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from analyzers.economics import economics  # noqa: E402
from analyzers.span_table import UNATTRIBUTED, span_table  # noqa: E402
from optimized.reference_cycle.acceptance import lengths_at  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.load import Load, own_continuation  # noqa: E402
from optimized.reference_cycle.scheduler import Progress  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from spantrace.cli import making  # noqa: E402
from spantrace.cli import run as run_command  # noqa: E402
from spantrace.cli.built_in import Asked, BuiltIn, within_memory  # noqa: E402
from spantrace.cli.main import run  # noqa: E402
from spantrace.errors import EXIT_BAD_INPUT, SpantraceError  # noqa: E402
from spantrace.journal import Journal, journal_path  # noqa: E402
from spantrace.loading import load  # noqa: E402
from spantrace.recording import Recording  # noqa: E402
from spantrace.spans import SPAN_NAMES, GraphMode, Kind  # noqa: E402

BATCH, DRAFTS, CYCLES, WARMUP = 3, 3, 24, 4
SMALL = ["--batch", str(BATCH), "--draft-length", str(DRAFTS), "--context", "64", "--device", "cpu"]
QUICK = [*SMALL, "--cycles", str(CYCLES), "--warmup", str(WARMUP)]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = [dict(vars(owner)) for owner in (Cycle, Load)]
    yield
    assert optimized.applied() == ()
    assert [dict(vars(owner)) for owner in (Cycle, Load)] == before


def record(*arguments: str, name: str = "a.spantrace") -> Recording:
    """Run the command and load what it wrote."""
    assert run(["run", *QUICK, *arguments, "-o", name]) == 0
    return load(Path(name))


def asked(drafter: str = "dflash", **changes: Any) -> Asked:
    settings = Settings(GEOMETRIES["tiny"], drafter=drafter, batch=BATCH, draft_length=DRAFTS, context=64)  # type: ignore[arg-type]
    return Asked(settings, **{"rates": (0.75,), "cycles": CYCLES, "warmup": WARMUP, **changes})


def watched(work: BuiltIn) -> list[Progress]:
    """Every step that `work` makes from now on, as the cycle itself reports it."""
    seen: list[Progress] = []
    step = work.load.step

    def watching() -> Progress:
        seen.append(step())
        return seen[-1]

    work.load.step = watching  # type: ignore[method-assign]
    return seen


def recorded(work: BuiltIn, path: Path) -> Recording:
    work.prepare(lambda tokens: None)
    with Journal(path, making.new_header("", {"warmup": WARMUP})) as journal:
        work.record(journal, lambda cycles: None)
        return journal.finish()


@pytest.mark.parametrize("drafter", ["dflash", "dspark", "none"])
def test_a_recording_holds_what_the_cycle_itself_counted(drafter: str, tmp_path: Path) -> None:
    work = BuiltIn(asked(drafter))
    steps = watched(work)
    cycles = recorded(work, tmp_path / "a.spantrace").cycles
    assert cycles.step.tolist() == [step.step for step in steps]
    assert sum(not step.prefilled for step in steps) == CYCLES + WARMUP
    assert set(cycles.batch.tolist()) == {BATCH}
    assert cycles.drafting.tolist() == [len(step.acceptance) for step in steps]
    assert cycles.drafted.sum(axis=1).tolist() == [sum(n for n, _ in step.acceptance) for step in steps]
    assert cycles.accepted.sum(axis=1).tolist() == [sum(right for _, right in step.acceptance) for step in steps]
    prefills = [bool(step.prefilled) for step in steps]
    assert (cycles.kind == Kind.PREFILL).tolist() == prefills
    assert sum(prefills) == 1 + sum(bool(step.finished) for step in steps[:-1])
    assert sum(prefills) > 1 or drafter == "none", "a request ended and others followed"
    decoding = cycles.scheduled_tokens[cycles.kind != Kind.PREFILL]
    assert set(decoding.tolist()) == {BATCH * (1 + work.asked.settings.speculative)}
    assert (cycles.scheduled_tokens[prefills] > BATCH * work.lengths.prompt).all()
    assert (cycles.kind == Kind.WARMUP).sum() == WARMUP
    assert (cycles.kind == Kind.STEADY).sum() == CYCLES
    assert set(cycles.graph_mode.tolist()) == {GraphMode.NONE}


@pytest.mark.parametrize("drafter", ["dflash", "dspark", "none"])
def test_every_cycle_has_every_span_once_and_little_else(drafter: str) -> None:
    recording = record("--drafter", drafter)
    drafting = [name for name in SPAN_NAMES if name.startswith("draft.")]
    absent = {"target.metadata.mamba", "target.metadata.gdn", *(drafting if drafter == "none" else [])}
    for name in SPAN_NAMES:
        assert set(recording.calls(name).tolist()) == {0 if name in absent else 1}, name
    rest = next(row for row in span_table(recording).rows if row.name == UNATTRIBUTED)
    assert rest.host is not None
    assert rest.host.share < 0.1


def test_state_layers_have_a_span() -> None:
    recording = record("--geometry", "nemotron-h", "--layers", "3", "--hidden", "32", "--vocab", "64", "--batch", "1")
    assert set(recording.calls("target.metadata.mamba").tolist()) == {1}
    assert (recording.header["server"]["layers"], recording.header["server"]["vocab"]) == (3, 64)


def test_acceptance_is_what_was_asked_for() -> None:
    shares = {
        name: economics(record("--accept", rate, "--cycles", "60", name=f"{name}.spantrace")).acceptance
        for name, rate in {"all": "1", "none": "0", "falling": "0.8,0.5,0.2", "drafter": "drafter"}.items()
    }
    assert {name: found is not None and found.rate for name, found in shares.items() if name != "falling"} == {
        "all": 1.0,
        "none": 0.0,
        "drafter": 0.0,
    }
    assert shares["falling"] is not None
    assert shares["falling"].per_position == pytest.approx([0.8, 0.5, 0.2], abs=0.1)
    default = economics(record(name="default.spantrace")).acceptance
    assert default is not None
    assert default.per_position == pytest.approx([0.75, 0.75**2, 0.75**3], abs=0.15)


@pytest.mark.parametrize("first", [0, 3, 400])
def test_any_stretch_of_forced_lengths_has_the_rates(first: int) -> None:
    rates = (0.9, 0.5, 0.5, 0.1)
    stretch = lengths_at(rates, seed=5)[first : first + 60]
    shares = [sum(length > position for length in stretch) / len(stretch) for position in range(len(rates))]
    assert shares == pytest.approx(rates, abs=0.04)
    assert lengths_at(rates, seed=6)[:20] != lengths_at(rates, seed=5)[:20]


def test_the_same_seed_records_the_same_and_another_does_not() -> None:
    first, again, other = (record("--seed", seed, name=f"{i}.spantrace") for i, seed in enumerate("112"))
    assert np.array_equal(first.cycles.accepted, again.cycles.accepted)
    assert not np.array_equal(first.cycles.accepted, other.cycles.accepted)


def test_hits_are_in_the_header_and_equal_the_cycles() -> None:
    recording = record("--optimize", "all")
    counts = {one["id"]: one for one in recording.header["optimizations"]}
    assert list(counts) == optimized.select("all")
    cycles = len(recording.cycles)
    assert counts["query-build"]["hits"] == counts["context-kv-cache"]["hits"] == cycles
    assert counts["verify-k-plus-one"]["hits"] % cycles == 0
    assert {one["fallbacks"] + one["errors"] for one in counts.values()} == {0}
    assert recording.header["notes"] == []
    assert record(name="stock.spantrace").header["optimizations"] == []


def test_one_that_never_fires_is_told(capsys: Captured) -> None:
    record("--drafter", "dspark", "--optimize", "context-kv-cache,query-build")
    record("--drafter", "none", "--optimize", "verify-k-plus-one", name="plain.spantrace")
    assert run(["report", "a.spantrace"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"optimized +query-build +\d+ hits, 0 fallbacks", out)
    assert "context-kv-cache was on and no call reached it" in out
    assert "query-build was on and" not in out
    assert run(["report", "plain.spantrace"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"verify-k-plus-one 0 hits, \d+ fallbacks \| \d+ because nothing is drafted", out)
    assert re.search(r"never fired: \d+ calls fell back, most because nothing is drafted", out)


def test_report_and_compare_read_it(capsys: Captured) -> None:
    record(name="stock.spantrace")
    record("--optimize", "all", name="all.spantrace")
    capsys.readouterr()
    assert run(["report", "all.spantrace"]) == 0
    out = capsys.readouterr().out
    assert re.match(rf"tiny \+ dflash K={DRAFTS} \| built-in cycle, torch \S+, float32, no graphs \| no GPU", out)
    assert f"{CYCLES} steady decode cycles (left out:" in out
    assert "HOST ONLY" in out
    assert "synthetic), length" in out
    assert run(["compare", "stock.spantrace", "all.spantrace"]) == 0
    out = capsys.readouterr().out
    assert "stock -> all | treatment: +context-kv-cache, +query-build, +verify-k-plus-one" in out
    assert re.search(r"on in all +query-build +\d+ hits", out)
    assert run(["compare", "all.spantrace", "all.spantrace", "--format", "json"]) == 0
    both = json.loads(capsys.readouterr().out)["optimizations"]
    assert both[0] == both[1]
    assert [one["id"] for one in both[0]] == optimized.select("all")
    assert run(["compare", "stock.spantrace", "all.spantrace", "--vary", "optimizations"]) == EXIT_BAD_INPUT


def test_ctrl_c_keeps_what_was_recorded(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def interrupt(done: int) -> None:
        if done == 9:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(making, "progress_bar", lambda total, doing="recording", unit="": _only(doing, interrupt))
    recording = record("--optimize", "all")
    assert "stopped; what was recorded is kept" in capsys.readouterr().err
    assert (recording.cycles.kind == Kind.STEADY).sum() == 9 - WARMUP
    assert not recording.partial
    assert len(recording.header["optimizations"]) == len(optimized.select("all"))
    assert not journal_path(Path("a.spantrace")).exists()


def test_ctrl_c_before_the_first_cycle_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        making, "progress_bar", lambda *_, **__: nullcontext(lambda done: signal.raise_signal(signal.SIGINT))
    )
    assert run(["run", *QUICK, "--optimize", "all", "-o", "a.spantrace"]) == 130
    assert list(tmp_path.iterdir()) == []


def _only(doing: str, callback: Callable[[int], None]) -> Any:
    return nullcontext(callback if doing == "recording" else lambda done: None)


BAD = [
    (["--optimize", "fast"], "no optimization is called 'fast'; choose from"),
    (["--optimize", "uniform-decode-metadata"], "uniform-decode-metadata"),
    (["--context", "16"], "a context of 16 is too small to measure K = 3; 32 or more are needed"),
    (["--accept", "often"], "Invalid value for --accept: 'often' is no rate"),
    (["--accept", "1.5"], "acceptance must lie in 0..1, not be 1.5"),
    (["--accept", "0.5,0.4"], "acceptance by position takes 3 rates, not 2"),
    (["--accept", "0.5,0.6,0.4"], "acceptance cannot grow from one position to the next"),
    (["--drafter", "eagle"], "Invalid value for '--drafter': 'eagle' is not one of"),
    (["--geometry", "huge"], "Invalid value for '--geometry'"),
    (["--cycles", "0"], "Invalid value for '--cycles'"),
    (["-o", "there.spantrace"], "there.spantrace exists; choose another name or add --force"),
    (["-o", "nowhere/a.spantrace"], "cannot write nowhere/a.spantrace.part: No such file or directory"),
]


@pytest.mark.parametrize(("arguments", "why"), BAD, ids=str)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    arguments: list[str], why: str, tmp_path: Path, capsys: Captured
) -> None:
    Path("there.spantrace").write_text("mine")
    assert run(["run", *SMALL, "-o", "new.spantrace", *arguments]) == EXIT_BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"spantrace: [^\n]+\n", err)
    assert why in err
    assert [path.name for path in tmp_path.iterdir()] == ["there.spantrace"]
    assert Path("there.spantrace").read_text() == "mine"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused(capsys: Captured) -> None:
    assert run(["run", *SMALL, "--device", "cuda"]) == EXIT_BAD_INPUT
    assert "PyTorch finds no CUDA device here" in capsys.readouterr().err


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpantraceError, match="the built-in cycle needs PyTorch; pip install torch"):
        run_command._asked({})


def test_what_does_not_fit_into_memory_is_one_sentence() -> None:
    with pytest.raises(SpantraceError, match="does not fit into this machine's memory"), within_memory(Settings()):
        torch.empty(1 << 60)
    with pytest.raises(RuntimeError, match="inconsistent tensor size"), within_memory(Settings()):
        torch.ones(2) @ torch.ones(3)


def test_an_output_is_overwritten_when_forced() -> None:
    Path("a.spantrace").write_text("old")
    assert len(record("--force").cycles) > CYCLES


def test_its_own_continuation_is_accepted_whole_by_the_same_cycle() -> None:
    settings = asked().settings
    cycle, prompts = Cycle(settings), random_prompts(settings, BATCH, 32)
    drafter, source = cycle.drafter, cycle.proposals
    tokens = own_continuation(cycle, prompts, 20)
    assert (cycle.drafter, cycle.proposals) == (drafter, source)
    assert cycle.scheduler.idle()
    requests = cycle.add(prompts, 20)
    while not cycle.scheduler.idle():
        cycle.step()
    assert [request.tokens for request in requests] == tokens


def test_a_request_that_leaves_the_known_continuation_is_noted(tmp_path: Path) -> None:
    work = BuiltIn(asked())
    work.prepare(lambda tokens: None)
    work._continuation[0][5] += 1
    with Journal(tmp_path / "a.spantrace", making.new_header("", {})) as journal:
        work.record(journal, lambda cycles: None)
        (note,) = journal.finish().header["notes"]
    assert re.match(r"\d+ of \d+ requests left the continuation found beforehand", note)
    assert 0 < work.strayed <= work.finished
