"""uniform-decode-metadata's kernel: strides of any kind, rows that it leaves alone, planted faults, an H200's code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from compiling import compiled_for_a_gpu  # noqa: E402
from planting import with_a_fault  # noqa: E402

from optimized import launching  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.uniform_decode_metadata import OPTIMIZATION, ahead, kernels  # noqa: E402
from optimized.uniform_decode_metadata.ahead import Ahead, Group  # noqa: E402
from optimized.uniform_decode_metadata.reference import Shape, Step  # noqa: E402

POISON = -(2**20)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launching.INTERPRET, "1")


def group(table: torch.Tensor, rows: int, width: int) -> Group:
    own = [torch.full(shape, POISON, dtype=torch.int32) for shape in ((rows, width), (rows,))]
    return Group(None, table, *own, rows, padding=True)


@pytest.mark.parametrize("block_size", [0, 4])
def test_tables_of_other_strides_are_read_and_no_other_row_is_written(block_size: int) -> None:
    table = torch.randint(1, 10_000, (5, 9), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    wide = torch.cat([table, table], dim=1)
    tables = table, wide[:, :9], table.T.contiguous().T, torch.stack([table, table], dim=2)[:, :, 1]
    lengths, accepted = (torch.tensor(one, dtype=torch.int32) for one in ([0, 1, 20], [1, 3, 2]))
    first = (lengths.long() - 1).clamp(min=0) // (block_size or 1000)
    groups = [group(one, 5, 3) for one in tables]
    Ahead().write(groups, lengths, accepted, block_size)
    for one in groups:
        assert torch.equal(one.states[:3], table[:3].gather(1, first[:, None] + torch.arange(3)))
        assert torch.equal(one.accepted[:3], accepted)
        assert bool((one.states[3:] == POISON).all() & (one.accepted[3:] == POISON).all())


def test_a_row_that_ends_before_its_last_block_has_the_null_block_there() -> None:
    """No runner gives one; nothing beyond the table is read."""
    table = torch.arange(1, 9, dtype=torch.int32).reshape(2, 4)
    (one,) = groups = [group(table, 2, 3)]
    Ahead().write(groups, torch.tensor([12, 16], dtype=torch.int32), torch.ones(2, dtype=torch.int32), 4)
    assert one.states.tolist() == [[3, 4, 0], [8, 0, 0]]


FAULTS = {
    "the blocks before": ("tl.load(lengths + row) - 1)", "tl.load(lengths + row) - 5)"),
    "another row's length": ("tl.load(lengths + row)", "tl.load(lengths)"),
    "another row's table": ("row * row_stride", "0 * row_stride"),
    "one group for all": ("tl.program_id(0) * FIELDS", "0 * FIELDS"),
    "one block less": ("(place < WIDTH) & (column", "(place < WIDTH - 1) & (column"),
    "another row's tokens": ("tl.load(accepted + row)", "tl.load(accepted)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_kernel_shows(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = with_a_fault(kernels, *FAULTS[fault], tmp_path)
    monkeypatch.setitem(sys.modules, kernels.__name__, faulty)
    monkeypatch.setattr("optimized.uniform_decode_metadata.kernels", faulty)
    judged = [judge(OPTIMIZATION, case, Place()) for case in OPTIMIZATION.cases() if case.name == "five groups"]
    assert [one.passed for one in judged] == [False]


@pytest.mark.parametrize("aligned", [True, False])
def test_it_is_compiled_for_an_h200(aligned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(Shape(3, 3, groups=5, aligned=aligned), (4, 1), 7, Place())
    (code,) = compiled_for_a_gpu(ahead, step.fast, tmp_path, monkeypatch).values()
    assert ".target sm_90a" in code.asm["ptx"]
    assert "st.global.b32" in code.asm["ptx"]
    assert code.metadata.num_warps == 1
