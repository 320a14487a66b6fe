"""Every optimization on a GPU: judged in bfloat16, where copies are equal bit for bit, and timed in CUDA graphs."""

from __future__ import annotations

import gc
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

import optimized  # noqa: E402
from optimized.aux_stream_context.ahead import aux_stream  # noqa: E402
from optimized.cases import Case, Contest, Place  # noqa: E402
from optimized.judging import TOLERANCES, choose_place, judge  # noqa: E402
from optimized.optimization import Agreement, Optimization  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, random_prompts  # noqa: E402
from optimized.reference_cycle.graphs import Pass  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from optimized.timing import copy_bandwidth, race  # noqa: E402
from spantrace.cli.main import run  # noqa: E402

ALL = optimized.discover()
CASES = [pytest.param(item, case, id=f"{item.id}: {case.name}") for item in ALL.values() for case in item.cases()]
FIRING = [name for name, item in ALL.items() if item.seams_at()]
TIMED = [name for name, item in ALL.items() if item.contest is not None]
SETTINGS = Settings(context=256, batch=4, device="cuda", dtype="bfloat16")
LEFT_TO_STOCK = {("qk-norm-rope", "float32"), ("context-norm-rope", "float32")}
"""What their guards do not take on a GPU, where the order of their arithmetic is proven for 16 bits alone."""
Capture = pytest.CaptureFixture[str]


def test_a_gpu_and_bfloat16_are_the_default() -> None:
    assert choose_place() == Place("cuda", "bfloat16")


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("item", "case"), CASES)
def test_the_implementation_agrees_with_its_reference(item: Optimization, case: Case, dtype: str) -> None:
    judged = judge(item, case, Place("cuda", dtype))
    assert judged.place.dtype == (case.dtype or dtype)
    if (item.id, judged.place.dtype) in LEFT_TO_STOCK:
        assert not judged.faults, judged
        assert judged.error < 1e-4, judged
        return
    assert judged.passed, judged
    if item.agreement is not Agreement.TOLERANT:
        assert (judged.unequal, judged.error) == (0, 0.0)


def held(cycle: Cycle) -> tuple[int, int]:
    """After three more cycles: bytes that PyTorch's allocator has given out, in blocks of 512, and that were asked for.

    The passes run as they are: a graph's pool would keep what they allocate in between.
    """
    for _ in range(3):
        cycle.step()
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(), torch.cuda.memory_stats()["requested_bytes.all.current"]


def meet_the_second_stream() -> None:
    """Multiply on it once: cuBLAS takes a workspace for each stream that it meets, and keeps it for good."""
    x = torch.ones(16, 16, dtype=torch.bfloat16, device="cuda")
    with torch.cuda.stream(aux_stream(x.device)):
        x @ x
    torch.cuda.synchronize()


@pytest.mark.parametrize(("name", "drafter"), [(name, by) for name in FIRING for by in ("dflash", "dspark", "eagle")])
def test_declared_memory_is_what_the_gpu_gives(name: str, drafter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pass, "__call__", lambda self: self._run())
    meet_the_second_stream()
    settings, item = replace(SETTINGS, drafter=drafter), ALL[name]
    cycle = Cycle(settings)
    cycle.add(random_prompts(settings, settings.batch, 100), 100)
    held(cycle)
    blocks, asked = held(cycle)
    optimized.apply([name])
    try:
        more_blocks, more_asked = held(cycle)
    finally:
        optimized.revert()
    assert more_asked - asked == item.memory(settings)
    assert 0 <= more_blocks - blocks - item.memory(settings) < 512 * 32
    assert held(cycle)[1] == asked


def test_verify_says_so(capsys: Capture) -> None:
    assert run(["verify", *TIMED]) == 0
    out = capsys.readouterr().out
    assert torch.cuda.get_device_name().removeprefix("NVIDIA ") in out.splitlines()[0]
    assert "bfloat16" in out.splitlines()[0]
    assert "PASS" in out


@pytest.mark.parametrize("name", TIMED)
def test_both_sides_of_a_contest_are_captured(name: str) -> None:
    make: Any = ALL[name].contest
    found = race(make(SETTINGS), "cuda", 6)
    assert (found.captured, found.why_not) == (True, None)
    assert min(*found.stock, *found.fast) > 0


def test_a_graph_takes_the_time_of_its_kernels() -> None:
    """What events say is measured before and after each race, since other processes may share the GPU."""
    contest = Contest("", lambda: torch.cuda._sleep(2_000_000), lambda: torch.cuda._sleep(1_000_000), (), ())
    halves, shares = [], []
    for _ in range(5):
        before = seconds_by_events(2_000_000)
        found = race(contest, "cuda", 6)
        expected = (before + seconds_by_events(2_000_000)) / 2
        halves.append(median(found.stock) / median(found.fast))
        shares.append(median(found.stock) / expected)
    assert median(halves) == pytest.approx(2, rel=0.05), halves
    assert median(shares) == pytest.approx(1, rel=0.1), shares


def seconds_by_events(cycles: int) -> float:
    """What a kernel that spins for as many cycles takes on this GPU now."""
    found = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return median(found)


def test_what_cannot_be_captured_is_timed_from_the_host_and_leaves_no_harm() -> None:
    x = torch.ones(1 << 16, device="cuda")
    found = race(Contest("", lambda: x.sum().item(), lambda: x.sum(), (x,), ()), "cuda", 6)
    assert not found.captured
    assert found.why_not
    assert min(found.stock) > 0
    again = race(Contest("", lambda: x.sum(), lambda: x.sum(), (x,), ()), "cuda", 6)
    assert again.captured
    assert float(x.sum()) == 1 << 16


def test_copy_bandwidth_is_that_of_this_memory() -> None:
    assert 1e11 < copy_bandwidth("cuda", 6) < 2e13


def test_bench_in_graphs(capsys: Capture) -> None:
    assert run(["bench", *TIMED, "--batch", "1,4", "--context", "256", "--repeats", "6"]) == 0
    out = capsys.readouterr().out
    assert "in CUDA graphs" in out
    assert "(host)" not in out
