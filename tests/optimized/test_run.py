"""`spantrace run` on real cycles: a recording holds what the cycle did, and report and compare read it."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from analyzers.economics import economics  # noqa: E402
from analyzers.span_table import UNATTRIBUTED, span_table  # noqa: E402
from optimized.reference_cycle.acceptance import lengths_at  # noqa: E402
from optimized.reference_cycle.cycle import DRAFTERS, Cycle, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.load import Lengths, Load, own_continuation  # noqa: E402
from optimized.reference_cycle.scheduler import Progress  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from spantrace.built_in import memory, running  # noqa: E402
from spantrace.built_in.memory import bytes_needed  # noqa: E402
from spantrace.built_in.running import ENGINE, Asked, BuiltIn, within_memory  # noqa: E402
from spantrace.built_in.session import Session  # noqa: E402
from spantrace.cli import cycle_options, making  # noqa: E402
from spantrace.cli import run as run_command  # noqa: E402
from spantrace.cli.main import run  # noqa: E402
from spantrace.errors import EXIT_BAD_INPUT, SpantraceError  # noqa: E402
from spantrace.journal import Journal, journal_path  # noqa: E402
from spantrace.loading import load  # noqa: E402
from spantrace.recording import Recording  # noqa: E402
from spantrace.spans import GRAPH_PARTS, OVERLAID, SPAN_NAMES, GraphMode, Kind  # noqa: E402

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


@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle", "none"])
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


@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle", "none"])
def test_every_cycle_has_every_span_once_and_little_else(drafter: str) -> None:
    recording = record("--drafter", drafter)
    drafting = [name for name in SPAN_NAMES if name.startswith("draft.")]
    absent = {"target.metadata.mamba", "target.metadata.gdn", *(drafting if drafter == "none" else [])}
    absent |= OVERLAID | GRAPH_PARTS
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
    cycles, declared = len(recording.cycles), optimized.discover()
    for name, one in counts.items():
        fires = "dflash" in declared[name].drafters
        assert (one["hits"], one["errors"]) == (cycles if fires else 0, 0), name
        assert not (fires and one["fallbacks"]), name
    assert recording.header["notes"] == []
    assert record(name="stock.spantrace").header["optimizations"] == []


def test_one_that_never_fires_is_told(capsys: Captured) -> None:
    record("--drafter", "dspark", "--optimize", "context-kv-cache,query-build")
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "spantrace: context-kv-cache was on and no call reached it"
    assert "cycles -> a.spantrace" in said[-2]
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
    # A line breaks where the name of the CPU asks for it.
    assert re.match(rf"tiny \+ dflash K={DRAFTS} \| built-in cycle, torch \S+, float32, no graphs\s+(\| )?no GPU", out)
    assert f"{CYCLES} steady decode cycles (left out:" in out
    assert "HOST ONLY" in out
    assert "synthetic), length" in out
    assert run(["compare", "stock.spantrace", "all.spantrace"]) == 0
    out = capsys.readouterr().out
    assert f"stock -> all | treatment: +{', +'.join(optimized.select('all'))}" in " ".join(out.split())
    assert re.search(r"on in all +query-build +\d+ hits", out)
    assert run(["compare", "all.spantrace", "all.spantrace", "--format", "json"]) == 0
    both = json.loads(capsys.readouterr().out)["optimizations"]
    assert both[0] == both[1]
    assert [one["id"] for one in both[0]] == optimized.select("all")
    assert run(["compare", "stock.spantrace", "all.spantrace", "--vary", "optimizations"]) == EXIT_BAD_INPUT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_what_was_recorded(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def interrupt(done: int) -> None:
        if done == 9:
            signal.raise_signal(number)

    monkeypatch.setattr(making, "progress_bar", lambda total, doing="recording", unit="": _only(doing, interrupt))
    recording = record("--optimize", "all")
    assert "stopped; what was recorded is kept" in capsys.readouterr().err
    assert (recording.cycles.kind == Kind.STEADY).sum() == 9 - WARMUP
    assert not recording.partial
    assert len(recording.header["optimizations"]) == len(optimized.select("all"))
    assert not journal_path(Path("a.spantrace")).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("owner", [Session, Recording], ids=["finishing", "saving"])
def test_ctrl_c_while_it_is_saved_waits(
    owner: type, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    name = "finish" if owner is Session else "_frames"
    original = getattr(owner, name)

    def interrupted(self: Any, *arguments: Any) -> Any:
        signal.raise_signal(number)
        return original(self, *arguments)

    monkeypatch.setattr(owner, name, interrupted)
    assert run(["run", *QUICK, "-o", "a.spantrace"]) == 130
    if owner is Recording:
        assert "cycles -> a.spantrace" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["a.spantrace"]
        assert not load(Path("a.spantrace")).partial
    else:
        assert "a.spantrace.part holds what was recorded" in capsys.readouterr().err
        assert not load(Path("a.spantrace.part")).partial
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)


def test_a_second_ctrl_c_disturbs_nothing(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    revert = Session.__exit__

    def interrupted(self: Session, *arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        revert(self, *arguments)

    def interrupt(done: int) -> None:
        if done == 9:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Session, "__exit__", interrupted)
    monkeypatch.setattr(making, "progress_bar", lambda total, doing="recording", unit="": _only(doing, interrupt))
    assert not record().partial
    assert "stopped; what was recorded is kept" in capsys.readouterr().err


def test_what_was_recorded_when_saving_fails_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    for placing in ("os.link", "pathlib.Path.replace"):
        monkeypatch.setattr(placing, lambda *_: _raise(OSError(28, "No space left on device")))
    assert run(["run", *QUICK, "-o", "a.spantrace"]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err == (
        "spantrace: cannot write a.spantrace: No space left on device; a.spantrace.part holds what was recorded, and "
        "can be renamed, or reported on as it is\n"
    )
    assert sorted(path.name for path in Path().iterdir()) == ["a.spantrace.part"]


def _raise(error: Exception) -> None:
    raise error


def test_a_journal_without_a_cycle_says_what_to_do(capsys: Captured) -> None:
    header = making.new_header("", {})
    header["server"]["engine"] = ENGINE
    with Journal(Path("a.spantrace"), header):
        pass
    assert run(["report", "a.spantrace.part"]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err.endswith("the recording holds no cycle; let it run for longer\n")


def test_ctrl_c_before_the_first_cycle_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    monkeypatch.setattr(
        making, "progress_bar", lambda *_, **__: nullcontext(lambda done: signal.raise_signal(signal.SIGINT))
    )
    assert run(["run", *QUICK, "--optimize", "all", "-o", "a.spantrace"]) == 130
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == "spantrace: stopped; nothing was recorded\n"


def _only(doing: str, callback: Callable[[int], None]) -> Any:
    return nullcontext(callback if doing == "recording" else lambda done: None)


BAD = [
    (["--optimize", "fast"], "no optimization is called 'fast'; spantrace optimizations lists them all"),
    (["--optimize", "uniform-decode-metadata"], "uniform-decode-metadata"),
    (["--context", "16"], "a context of 16 is too small to measure K = 3; 32 or more are needed"),
    (["--context", "8199", "--draft-length", "1024"], "too small to measure K = 1024; 8200 or more are needed"),
    (
        ["--context", "1", "--drafter", "none"],
        "a context of 1 is too small to measure a cycle without a drafter; 8 or more are needed",
    ),
    (["-o", ""], "Invalid value for '-o' / '--output': nothing is named; name what to write, or leave it out"),
    (["--accept", "often"], "Invalid value for --accept: 'often' is no rate"),
    (["--accept", "1.5"], "acceptance must lie in 0..1, not be 1.5"),
    (["--accept", "0.5,0.4"], "acceptance by position takes 3 rates, not 2"),
    (["--accept", "0.5,0.6,0.4"], "acceptance cannot grow from one position to the next"),
    (["--drafter", "medusa"], "Invalid value for '--drafter': 'medusa' is not one of"),
    (["--geometry", "huge"], "Invalid value for '--geometry'"),
    (["--cycles", "0"], "Invalid value for '--cycles'"),
    (["-o", "there.spantrace"], "there.spantrace exists; choose another name or add --force"),
    (["-o", "nowhere/a.spantrace"], "cannot write nowhere/a.spantrace: there is no folder nowhere; make it"),
    *(
        ([option, "100000000000000000000000"], f"Invalid value for '{option}': 100000000000000000000000 is not in the")
        for option in ("--seed", "--cycles", "--warmup", "--context", "--hidden", "--vocab", "--layers", "--batch")
    ),
    (["--seed", "-1"], "Invalid value for '--seed'"),
    (["--hidden", str(1 << 20), "--layers", "10000"], "of memory, and"),
    (["--batch", "65536", "--context", str(1 << 24)], "B are free; make it smaller with --layers, --hidden, --vocab,"),
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


SIZES = [
    {"drafter": "dflash"},
    {"drafter": "dspark"},
    {"drafter": "none", "context": 4096},
    {"drafter": "dflash", "dtype": "bfloat16", "batch": 5},
    {"drafter": "dspark", "geometry": GEOMETRIES["nemotron-h"].scaled(6, 256, 900), "context": 256},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_memory_that_is_asked_for_covers_what_is_built_and_little_more(sizes: dict[str, Any]) -> None:
    settings = Settings(**{"geometry": GEOMETRIES["tiny"].scaled(8, 256, 9000), "context": 512, **sizes})
    held = gc.get_objects()  # what is held gives its id to nothing new
    before = {id(one) for one in held}
    work = Cycle(settings)
    made = (one for one in gc.get_objects() if id(one) not in before and type(one) is torch.Tensor)
    built = sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in made}.values())
    passes = replace(settings.geometry, state_layers=()) == settings.geometry
    assert built < bytes_needed(settings) < (2 if passes else 20) * built
    assert bytes_needed(replace(settings, batch=2 * settings.batch)) > bytes_needed(settings)
    assert work.settings is settings


def test_optimizations_need_what_they_declare() -> None:
    settings, names = Settings(), optimized.select("all")
    added = sum(optimized.discover()[name].memory(settings) for name in names)
    assert bytes_needed(settings, names) - bytes_needed(settings) == added > 0


def test_what_is_larger_than_what_is_free_is_refused_before_it_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    monkeypatch.setattr(memory, "bytes_available", lambda device: 1_000_000)
    monkeypatch.setattr(running, "Cycle", lambda *_: pytest.fail("it was built"))
    assert run(["run", *SMALL]) == EXIT_BAD_INPUT
    said = capsys.readouterr().err
    assert re.fullmatch(r"spantrace: tiny in float32 needs about [\d.]+ GB of memory, and 0.0 GB are free; .+\n", said)
    assert list(tmp_path.iterdir()) == []


def test_a_large_need_is_told_in_a_large_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "bytes_available", lambda device: 24_300_000_000)
    for need, said in ((9.994e11, "999.4 GB"), (1.2e12, "1.2 TB"), (4.528e15, "4.5 PB"), (7e18, "7.0 EB")):
        monkeypatch.setattr(memory, "bytes_needed", lambda *_, need=int(need), **__: need)
        with pytest.raises(SpantraceError, match=f"needs about {said} of memory, and 24.3 GB are free"):
            memory.refuse_too_large(Settings())


def test_the_context_that_is_said_to_be_enough_is() -> None:
    for drafts in (1, 7, 63, 64, 1024):
        enough = 8 * (drafts + 1)
        lengths = Lengths.within(Settings(draft_length=drafts, context=enough))
        assert lengths.prompt >= 1
        assert lengths.output >= 4 * (drafts + 1)
        with pytest.raises(SpantraceError, match=f"; {enough} or more are needed$"):
            Lengths.within(Settings(draft_length=drafts, context=enough - 1))


def test_the_commands_offer_what_there_is() -> None:
    assert tuple(GEOMETRIES) == cycle_options.GEOMETRIES
    assert (*DRAFTERS, "none") == cycle_options.DRAFTERS


def test_what_is_no_file_is_not_overwritten_even_when_forced(capsys: Captured) -> None:
    os.mkfifo("pipe")
    os.mkfifo("a.spantrace.part")
    for name, special in {"pipe": "pipe", "a.spantrace": "a.spantrace.part"}.items():
        for force in ([], ["--force"]):
            assert run(["run", *QUICK, "-o", name, *force]) == EXIT_BAD_INPUT
            assert capsys.readouterr().err.startswith(f"spantrace: {special} is no file that could be overwritten")
        assert Path(special).is_fifo()


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
