"""The built-in cycle on a GPU: passes replay as graphs, steps wait only where they say so, spans have GPU time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

import optimized  # noqa: E402
from analyzers.co_saturation import co_saturation  # noqa: E402
from analyzers.economics import economics  # noqa: E402
from optimized.reference_cycle import attention  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, Generation, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.graphs import Pass  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from spantrace.cli.main import run  # noqa: E402
from spantrace.loading import load  # noqa: E402
from spantrace.recording import Recording  # noqa: E402
from spantrace.spans import SPAN_ID, GraphMode, Kind, Track  # noqa: E402

DRAFTERS = ("dflash", "dspark", "eagle")
TIMED = ("target.forward", "sample", "postprocess", "draft.context_kv", "draft.forward")
BATCH, DRAFTS, CYCLES = 4, 7, 60
SETTINGS = Settings(GEOMETRIES["tiny"], batch=BATCH, draft_length=DRAFTS, context=256, device="cuda", dtype="float32")


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


def record(tmp_path: Path, *arguments: str) -> Recording:
    """A recording by the command line."""
    path = tmp_path / "a.spantrace"
    sizes = ["--batch", str(BATCH), "--draft-length", str(DRAFTS), "--context", "256", "--cycles", str(CYCLES)]
    assert run(["run", "--device", "cuda", "--dtype", "bfloat16", *sizes, *arguments, "-o", str(path), "--force"]) == 0
    return load(path)


@pytest.mark.parametrize("optimize", ["none", "all"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_recording_has_both_tracks(
    drafter: str, optimize: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = record(tmp_path, "--drafter", drafter, "--optimize", optimize)
    assert (recording.cycles.kind == Kind.STEADY).sum() == CYCLES
    assert set(recording.cycles.graph_mode.tolist()) == {GraphMode.FULL}
    steady = recording.of_kind(Kind.STEADY)
    timed = steady.calls("target.forward", Track.GPU) == 1
    assert timed.sum() >= CYCLES // 10, "a clock may leave out cycles, but not most of them"
    for name in TIMED:
        assert ((steady.calls(name, Track.GPU) == 1) == timed).all(), name
        assert (steady.durations(name, Track.GPU)[timed] > 0).all(), name
    begins = steady.spans.start[(steady.spans.name == SPAN_ID["target.forward"]) & (steady.spans.track == Track.GPU)]
    assert (np.diff(begins) > 0).all()
    found = co_saturation(recording)
    assert found is not None
    assert found.gpu is not None
    assert found.full_graphs
    assert 0 < found.gpu.ms <= found.period.ms * 1.05
    (process,) = recording.header["processes"]
    assert (process["gpu_skipped"], process["hook_errors"], process["lost"]) == (0, 0, 0)
    assert 0 < recording.header["calibration"]["gpu_events_per_cycle"] <= 2 * len(TIMED)
    acceptance = economics(recording).acceptance
    assert acceptance is not None
    assert acceptance.per_position[0] is not None
    assert acceptance.per_position[0] > 0.5, recording.header["notes"]
    assert run(["report", str(tmp_path / "a.spantrace")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "HOST ONLY" not in out
    assert "bfloat16, FULL graphs" in out


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_what_is_on_has_hits(drafter: str, tmp_path: Path) -> None:
    recording = record(tmp_path, "--drafter", drafter, "--optimize", "all")
    counts = {one["id"]: one for one in recording.header["optimizations"]}
    assert sorted(counts) == optimized.select("all")
    assert {one["errors"] for one in counts.values()} == {0}, counts
    assert counts["query-build"]["hits"] == len(recording.cycles)
    assert counts["verify-k-plus-one"]["hits"] == len(recording.cycles)
    assert counts["context-kv-cache"]["hits"] == (len(recording.cycles) if drafter == "dflash" else 0)


def drafted(settings: Settings) -> tuple[Generation, DraftLog]:
    """A generation of more requests than fit at once, with every draft kept."""
    log = DraftLog()
    cycle = Cycle(settings, None, log)
    return generate(cycle, random_prompts(settings, settings.batch + 2, 40), 24), log


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_in_float32_tokens_are_equal_on_and_off_and_without_graphs(
    drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, drafter=drafter)  # type: ignore[arg-type]
    plain, log = drafted(settings)
    optimized.apply(optimized.select("all"))
    fast, fast_log = drafted(settings)
    optimized.revert()
    assert fast.tokens == plain.tokens
    assert compare_drafts(log, fast_log).agrees(1e-3)
    monkeypatch.setattr(Pass, "__call__", lambda self: self._run())
    eager, eager_log = drafted(settings)
    assert eager.tokens == plain.tokens
    assert compare_drafts(log, eager_log).agrees(1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_what_is_bitwise_stays_so_in_half_precision(drafter: str, dtype: str) -> None:
    settings = replace(SETTINGS, drafter=drafter, dtype=dtype)  # type: ignore[arg-type]
    names = [name for name in optimized.select("all") if optimized.discover()[name].agreement.name == "BITWISE"]
    assert names
    plain, log = drafted(settings)
    optimized.apply(names)
    fast, fast_log = drafted(settings)
    assert fast.tokens == plain.tokens
    assert compare_drafts(log, fast_log).agrees()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("optimize", ["none", "all"])
@pytest.mark.parametrize("geometry", ["tiny", "nemotron-h"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_steady_cycle_waits_only_for_its_tokens(drafter: str, geometry: str, optimize: str) -> None:
    shape = GEOMETRIES[geometry] if geometry == "tiny" else GEOMETRIES[geometry].scaled(4, 64, 512)
    settings = replace(SETTINGS, geometry=shape, drafter=drafter, dtype="bfloat16")  # type: ignore[arg-type]
    optimized.apply(optimized.select(optimize))
    cycle = Cycle(settings)
    cycle.add(random_prompts(settings, BATCH, 40), 60)
    for _ in range(4):
        cycle.step()
    torch.cuda.set_sync_debug_mode("error")
    steps = 0
    try:
        while not cycle.scheduler.idle():
            assert not cycle.step().prefilled
            steps += 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert steps >= 60 // (DRAFTS + 1) - 4


def test_no_garbage_is_collected_while_a_graph_is_captured() -> None:
    """Destroying a former graph, which a cycle of references keeps, would spoil the capture."""
    collected: list[bool] = []

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            collected.append(torch.cuda.is_current_stream_capturing())

    x = torch.ones(4, device="cuda")

    def work() -> Any:
        for _ in range(100_000):
            Garbage()
        return x + 1

    assert Pass(work, "cuda")().tolist() == [2.0] * 4
    assert set(collected) == {False}


def test_switching_between_two_steps_changes_no_token() -> None:
    def tokens(switch: bool) -> list[list[int]]:
        cycle = Cycle(SETTINGS)
        requests = cycle.add(random_prompts(SETTINGS, BATCH, 40), 48)
        steps = 0
        while not cycle.scheduler.idle():
            if switch and steps % 5 == 4:
                if optimized.applied():
                    optimized.revert()
                else:
                    optimized.apply(optimized.select("all"))
                cycle.forget_graphs()
            cycle.step()
            steps += 1
        return [request.tokens for request in requests]

    assert tokens(True) == tokens(False)


@pytest.mark.parametrize("columns", [2064, 2056, 100])
@pytest.mark.parametrize(("rows", "heads", "kv_heads"), [(14, 32, 8), (8, 32, 8), (128, 32, 2), (1, 32, 8)])
def test_grouped_attention_with_a_mask_has_a_fused_kernel(rows: int, heads: int, kv_heads: int, columns: int) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    queries, keys, values = (normal(2, count, n, 128) for count, n in ((rows, heads), *[(columns, kv_heads)] * 2))
    lengths = torch.arange(rows, device="cuda").repeat(2, 1) * columns // (2 * rows)
    mask = attention.visible(lengths, columns, lengths + 1)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
        fused = attention.attend(queries, keys, values, mask)
    exact = attention.attend(queries.double(), keys.double(), values.double(), mask)
    torch.testing.assert_close(fused.double(), exact, rtol=0.02, atol=0.02)
