"""Kernels of a trace that exchange data between ranks: told by their names, summed, and said in the report."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced import MS, US, cycles, kernel, launch, save

from analyzers.co_saturation import co_saturation
from analyzers.per_cycle import measure
from analyzers.span_table import span_table
from spantrace.cli.main import run
from spantrace.importers.annotations import communicates
from spantrace.loading import load
from spantrace.spans import Track

KERNELS = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals, int)",
    "multimem_all_reduce_kernel",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<2>",
)
OTHERS = ("gemm", "void at::native::reduce_kernel<512, 1>(int)", "_reshape_and_cache_kernel", "gather_block_tables")


def test_they_are_told_by_their_names() -> None:
    assert all(communicates(name) for name in KERNELS)
    assert not any(communicates(name) for name in OTHERS)


def test_their_time_is_a_part_of_the_cycle_and_of_no_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, start = cycles(20), 10**15
    for index in range(20):
        at = start + index * 10 * MS
        # In the target's graph: 0.5 ms alone behind the other kernels, and 0.25 ms beside one of them.
        events += [kernel(KERNELS[0], at + 7 * MS, MS // 2, 10 * index + 1)]
        events += [
            launch(10**6 + index, at + 4 * MS + 20 * US),
            kernel(KERNELS[1], at + 3 * MS, MS // 4, 10**6 + index),
        ]
    path = save(events, tmp_path / "a.pt.trace.json.gz")
    recording = load(path)
    cost = measure(recording).cost("communication", Track.GPU)
    assert cost is not None
    assert (cost.ms, cost.share) == (pytest.approx(0.75), pytest.approx(0.075))
    found = co_saturation(recording)
    assert found is not None
    assert found.kernels is not None
    assert found.kernels.ms == pytest.approx(6.5)
    assert span_table(recording).row("communication") is None
    assert run(["report", str(path)]) == 0
    assert "communication  its kernels take 0.75 ms of a cycle on the GPU (8%)" in capsys.readouterr().out


def test_a_trace_without_them_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(save(cycles(20), tmp_path / "a.pt.trace.json.gz"))]) == 0
    assert "communication" not in capsys.readouterr().out
