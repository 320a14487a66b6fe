"""The MLA drafter's bookkeeping kernels on a GPU: every bit in bfloat16, graphs with inputs rewritten, nodes, time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from capturing import captured, microseconds, nodes  # noqa: E402

import optimized  # noqa: E402
from optimized import latents  # noqa: E402
from optimized.block_table_refresh.reference import Tables  # noqa: E402
from optimized.cases import Case, Contest, Place  # noqa: E402
from optimized.context_copy_free.reference import Rows  # noqa: E402
from optimized.gen_bookkeeping.reference import Step  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.latent_put.reference import Block  # noqa: E402
from optimized.mla_block_fixup.reference import Placing  # noqa: E402
from optimized.optimization import Optimization  # noqa: E402
from optimized.paged import Requests, Shape  # noqa: E402
from optimized.reference_cycle.acceptance import Forced  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, autoregressive, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import GEOMETRIES  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from spantrace.errors import SpantraceError  # noqa: E402

SET = optimized.select("dspark-bookkeeping")
ITEMS = [optimized.discover()[name] for name in SET]
CASES = [pytest.param(item, case, id=f"{item.id}: {case.name}") for item in ITEMS for case in item.cases()]
PROBLEMS: dict[str, Callable[[Requests], Any]] = {
    "block-table-refresh": Tables,
    "context-copy-free": Rows,
    "gen-bookkeeping": Step,
    "latent-put": Block,
    "mla-block-fixup": Placing,
}
HERE = Place("cuda", "bfloat16")
STOCK_US = {"block-table-refresh": 15.0, "gen-bookkeeping": 55.0, "mla-block-fixup": 15.5, "latent-put": 17.0}
STOCK_US["context-copy-free"] = 136.0
NODE_US = 1.36
"""What a node takes at least; a group may take twice that for each of its own."""


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


@pytest.mark.parametrize(("item", "case"), CASES)
def test_no_bit_differs(item: Optimization, case: Case) -> None:
    judged = judge(item, case, HERE)
    assert (judged.passed, judged.unequal) == (True, 0), judged


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_graph_of_one_node_is_right_for_inputs_that_are_rewritten_in_place(name: str, batch: int) -> None:
    shape = Shape(batch, 7, 7, page=64, width=8, limit=400, layers=5, latent=512, rope=64)
    # A row that misses a page has its last cell written by several rows, which leaves nothing to compare there.
    hole = None if name == "gen-bookkeeping" else 1
    right, replayed = (PROBLEMS[name](Requests(shape, (1, 8, 0, 3), 200, HERE, hole)) for _ in range(2))
    graph = captured(replayed.run)
    assert nodes(graph) == 1
    for _ in range(20):
        for key, value in right.inputs().items():
            replayed.inputs()[key].copy_(value)
        replayed.poison()
        graph.replay()
        wanted = right.reference()
        if isinstance(right, Step):
            replayed.contested = right.contested
        for key, value in replayed.results().items():
            assert torch.equal(value.nan_to_num(7.0), wanted[key].nan_to_num(7.0)), key
            assert torch.equal(value.signbit() & (value == 0), wanted[key].signbit() & (wanted[key] == 0)), key
        right.next()


@pytest.mark.parametrize(("batch", "length"), [(1, 7), (8, 3), (3, 15)])
@pytest.mark.parametrize("ids", [*([name] for name in SET), SET], ids="+".join)
def test_no_bit_of_any_draft_differs_in_whole_cycles(ids: list[str], batch: int, length: int) -> None:
    settings = Settings(
        GEOMETRIES["tiny"], "dspark", length, batch, context=160, page_size=16, device="cuda", dtype="bfloat16"
    )
    prompts = random_prompts(settings, batch + 1, 50)
    source = Forced(autoregressive(settings, prompts, 60), range(length + 1))
    logs = []
    for on in ([], ids):
        optimized.apply(on, place=HERE)
        logs.append(DraftLog())
        generation = generate(Cycle(settings, source, logs[-1]), prompts, 60)
        for said in optimized.revert():
            assert (said["hits"], said["fallbacks"], said["errors"]) == (generation.cycles, 0, 0), said
    assert compare_drafts(*logs).agrees()


def eagerly(call: Callable[[], object]) -> float:
    """Microseconds of the host that a call takes where nothing is captured."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    begin = perf_counter()
    for _ in range(200):
        call()
    spent = perf_counter() - begin
    torch.cuda.synchronize()
    return spent / 200 * 1e6


FEW_WORDS = 1024
"""Of the vocabulary, which the bookkeeping does not depend on: six drafters with all of it do not fit on one GPU."""


def contest_of(name: str, batch: int) -> Contest:
    """Stock and kernel, for the drafter of Kimi K3 at its real size."""
    geometry = GEOMETRIES["kimi-k3-drafter"].scaled(vocab=FEW_WORDS)
    settings = Settings(geometry, "dspark", batch=batch, device="cuda", dtype="bfloat16")
    make: Any = optimized.discover()[name].contest
    contest: Contest = make(settings)
    return contest


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_it_takes_beside_the_figures(name: str, batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    contest = contest_of(name, batch)
    few, many = nodes(captured(contest.fast)), nodes(captured(contest.stock))
    stock, fast = microseconds(contest.stock, contest.fast)
    host = eagerly(contest.stock), eagerly(contest.fast)
    figure = f"stock {STOCK_US[name]:g} us measured before at batch 1; to reach {2 * NODE_US * few:.2f} us"
    with capsys.disabled():
        print(f"\n{name}, batch {batch}: {many} nodes to {few}, {stock:.2f} us to {fast:.2f} us ({figure})")
        print(f"  host, eagerly: {host[0]:.0f} us to {host[1]:.0f} us (to reach a fifth)")
    assert few == (GEOMETRIES["kimi-k3-drafter"].dspark.layers if name == "latent-put" else 1)
    assert many > few


@pytest.mark.parametrize("left_out", [[], ["context-copy-free"]], ids=["with the context chain", "without it"])
@pytest.mark.parametrize(("batch", "most"), [(1, 12), (32, 15)])
def test_what_the_whole_set_takes_in_one_graph(
    batch: int, most: int, left_out: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in SET if name not in left_out]
    contests = [contest_of(name, batch) for name in names]

    def stock() -> list[object]:
        return [contest.stock() for contest in contests]

    def fast() -> list[object]:
        return [contest.fast() for contest in contests]

    many, few = (nodes(captured(side)) for side in (stock, fast))
    took = microseconds(stock, fast)
    with capsys.disabled():
        print(
            f"\n{'+'.join(names)}, batch {batch}: {many} nodes to {few}, {took[0]:.2f} us to {took[1]:.2f} us", end=""
        )
        print(f" (to reach {most})")
    assert took[1] < took[0] / 5


SANITIZED = """
import optimized
from optimized.cases import Place
from optimized.judging import judge
item = optimized.discover()[{name!r}]
judged = [
    judge(item, case, Place("cuda", "bfloat16"))
    for case in item.cases()
    if case.name.startswith(("8 requests", "capacity reached", "odd shapes"))
]
assert len(judged) > 1 and all(one.passed for one in judged), judged
"""
BEYOND = """
import torch
from optimized.block_table_refresh.refresh import refresh
offsets, table = (torch.zeros(*size, dtype=torch.int32, device="cuda") for size in ((1, 999, 2, 8), (999, 8)))
refresh(offsets, 0, 1, table, torch.zeros(1, dtype=torch.int64, device="cuda"))
torch.cuda.synchronize()
"""
KERNELS = (
    "decode_offsets",
    "keep_and_advance",
    "place_block",
    "norm_and_rotate_latents",
    "best_of_tile",
    "verdict_of_request",
    "score_step",
    "read_tokens",
)
FOUND = 9
needs_the_sanitizer = pytest.mark.skipif(
    shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
)


def sanitized(text: str, tool: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script under a tool that looks at our kernels alone, and ends with FOUND where it finds something."""
    script, root = folder / "sanitized.py", Path(optimized.__file__).parents[1]
    script.write_text(text)
    only = [option for name in KERNELS for option in ("--kernel-name", f"kns={name}")]
    return subprocess.run(
        ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), *only, sys.executable, str(script)],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )


@needs_the_sanitizer
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("name", [*SET, "accept", "markov-chain"])
def test_the_sanitizer_finds_nothing(name: str, tool: str, tmp_path: Path) -> None:
    done = sanitized(SANITIZED.format(name=name), tool, tmp_path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


@needs_the_sanitizer
def test_the_sanitizer_sees_a_write_behind_the_counts(tmp_path: Path) -> None:
    done = sanitized(BEYOND, "memcheck", tmp_path)
    assert done.returncode == FOUND, (done.stdout + done.stderr)[-2000:]
    assert "decode_offsets" in done.stdout + done.stderr


def test_another_arithmetic_does_not_pass_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    item = optimized.discover()["latent-put"]
    fresh = replace(item, cases=lambda: item.cases())
    monkeypatch.setattr(optimized, "discover", lambda: {"latent-put": fresh})
    monkeypatch.setattr(latents, "EPSILON", 1e-3)
    with pytest.raises(SpantraceError, match=r"latent-put cannot be applied: with torch .* elements differ"):
        optimized.apply(["latent-put"], place=HERE)
    assert optimized.applied() == ()
