"""The tables of tiles, what a case shows where a tile is wrong, and the installed vLLM's experts, interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from optimized.captured import BEFORE, UNCAPTURED  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.moe_tiles import reference, tiles, twins  # noqa: E402
from optimized.moe_tiles.tiles import UNMEASURED, Experts, Tile, find, parse, tables, written  # noqa: E402
from optimized.moe_tiles.twins import ELSEWHERE, NOT_TWICE, OTHERS, Twins  # noqa: E402
from optimized.moe_tiles.vllm import MoeTiles  # noqa: E402
from spantrace.errors import SpantraceError  # noqa: E402

ITEM = optimized.discover()["moe-tiles"]
H200 = Experts("NVIDIA H200", "bfloat16", 128, 1856, 2688, 6)
TILE = Tile(16, 32, 128, 1, 4, 3)
KNOWN = {H200: {3: TILE, 6: TILE, 12: replace(TILE, BLOCK_SIZE_N=64)}}
TEXT = written(KNOWN)
ROOT = Path(optimized.__file__).parents[1]


# The tables


def test_the_shipped_table_is_for_nemotrons_experts_on_an_h200() -> None:
    assert list(tables()) == [H200]
    assert set(tables()[H200]) <= set(range(1, 33))


def test_what_is_written_is_read_again() -> None:
    assert parse(TEXT) == KNOWN
    assert "tokens = [3, 6]" in TEXT
    assert parse(written(tables())) == tables()
    assert parse("") == parse(written({H200: {}})) == {}


def test_a_tile_is_for_exactly_what_its_row_names() -> None:
    assert find(H200, 3, KNOWN) == find(H200, 6, KNOWN) == TILE
    assert find(H200, 4, KNOWN) == UNMEASURED
    assert find(replace(H200, device="NVIDIA H100"), 3, KNOWN) == "no tile is known for these experts on NVIDIA H100"
    assert find(replace(H200, dtype="float16"), 3, KNOWN) == "no tile is known for experts of float16"
    for name in ("experts", "intermediate", "hidden", "top_k"):
        assert "of the shape" in str(find(replace(H200, **{name: 8}), 3, KNOWN))


def test_a_tile_in_vllms_words() -> None:
    assert TILE.config() == {**asdict(TILE), "SPLIT_K": 1}
    assert TILE.config() is not TILE.config()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (TEXT.replace("hidden = 2688\n", ""), "lacks hidden"),
        (TEXT.replace("num_warps = 4", "num_warps = 3"), "num_warps of a row of the tiles cannot be 3"),
        (TEXT.replace("BLOCK_SIZE_N = 64", "BLOCK_SIZE_N = 8"), "BLOCK_SIZE_N of a row of the tiles cannot be 8"),
        (TEXT.replace("num_stages = 3", "num_stages = 0"), "num_stages of a row of the tiles cannot be 0"),
        (TEXT.replace("num_stages", "stages"), "no key 'stages'"),
        (TEXT.replace("[12]", "[6]"), "names 6 tokens a second time"),
        (TEXT.replace("[12]", "[0]"), "must be whole numbers from 1 on, not 0"),
        (TEXT.replace("[12]", "[true]"), "must be whole numbers from 1 on, not True"),
        (TEXT + TEXT, "has two tables for"),
        ("table = 3", "table of the tiles must be a list"),
        ("[", "is no TOML"),
    ],
)
def test_a_mistake_in_a_table_is_named(wrong: str, said: str) -> None:
    with pytest.raises(SpantraceError, match=r".+") as raised:
        parse(wrong)
    assert said in str(raised.value)


# The cases


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_block_that_is_left_out_shows(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    (case,) = [case for case in ITEM.cases() if case.name == "vLLM's own tile"]
    assert judge(ITEM, case, Place(dtype=dtype)).passed
    whole = reference.in_blocks
    monkeypatch.setattr(
        reference, "in_blocks", lambda row, weight, tile: whole(row[:-32], weight[:, :-32].contiguous(), tile)
    )
    judged = judge(ITEM, case, Place(dtype=dtype))
    assert not judged.passed
    assert (judged.used or 0) > 3


def test_every_tile_of_the_tables_is_a_case() -> None:
    own = {tile for rows in tables().values() for tile in rows.values()}
    assert sum("of the tables" in case.name for case in ITEM.cases()) == len(own)


# The switch, without vLLM


class Manager:
    """What keeps graphs."""

    def __init__(self) -> None:
        self.graphs: dict[Any, str] = {}

    def run_fullgraph(self, batch: Any) -> str:
        return self.graphs[batch]


def test_a_batch_replays_its_twin_only_where_it_has_one() -> None:
    one, two = (SimpleNamespace(num_tokens=tokens) for tokens in (3, 12))
    stock = {id(one): "stock"}
    known = Twins(stock, {}, {3: None, 12: UNMEASURED})
    assert known.why_not(stock, two) == UNMEASURED
    assert known.why_not(stock, SimpleNamespace(num_tokens=5)) == ELSEWHERE
    assert known.why_not(dict(stock), one) == OTHERS


def test_a_manager_is_lent_the_other_graphs_for_one_replay() -> None:
    class Batch(tuple[int, ...]):
        num_tokens = 3

    manager, switch, batch = Manager(), MoeTiles(KNOWN), Batch((3,))
    stock = manager.graphs = {batch: "stock"}
    replay = switch.stand_ins()["ModelCudaGraphManager.run_fullgraph"](Manager.run_fullgraph)
    assert replay(manager, batch) == "stock"
    twins.kept[manager] = Twins(stock, {batch: "tiled"}, {3: None})
    assert replay(manager, batch) == "tiled"
    assert manager.graphs is stock
    twins.kept[manager] = Twins(stock, {}, {3: None})
    assert replay(manager, batch) == "stock"
    assert switch.counts.hits == 1
    assert dict(switch.counts.fallbacks) == {BEFORE: 1, UNCAPTURED: 1}
    assert switch.allocated() == 0


def test_experts_that_are_spread_over_ranks_are_vllms() -> None:
    switch = MoeTiles(KNOWN)
    apply = switch.stand_ins()["TritonExperts.apply"](lambda *_, **__: "stock")
    given = torch.zeros(3, 4)
    for spread in ({"expert_map": given}, {"expert_map": None}):
        assert apply(SimpleNamespace(), given, given, given, given, given, given, "relu2", 8, **spread) == "stock"
    assert switch.counts.fallbacks["the experts are spread over ranks"] == 1


def test_a_graph_that_nobody_captures_twice_keeps_vllms_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    switch, hidden = MoeTiles(KNOWN), SimpleNamespace(is_cuda=True)
    assert switch._choice(None, hidden, None, None, None, False) == NOT_TWICE  # type: ignore[arg-type]
    switch._noting = {}
    assert switch._choice(None, hidden, None, None, None, True) != NOT_TWICE  # type: ignore[arg-type]


def test_a_failure_that_is_not_ours_is_raised() -> None:
    switch = MoeTiles(KNOWN)

    def compute() -> None:
        raise RuntimeError("vLLM's own")

    with pytest.raises(RuntimeError, match="vLLM's own"):
        switch._compute(TILE, 3, compute)
    assert switch.counts == MoeTiles(KNOWN).counts
    assert switch._offer.tile is None


def test_vllm_is_asked_where_no_tile_is_offered() -> None:
    switch = MoeTiles(KNOWN)
    ask = switch.stand_ins()["try_get_optimal_moe_config"](lambda *_, **__: "stock")
    assert ask(1, block_shape=None) == "stock"
    assert switch._compute(TILE, 3, lambda: ask(1)) == TILE.config()
    assert switch.counts.hits == 1
    assert switch._compute(TILE, 3, lambda: "nothing asked") == "nothing asked"
    assert switch.counts.hits == 1


def test_a_closed_switch_captures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    switch, captured = MoeTiles(KNOWN), list[str]()

    class Capturing(Manager):
        def capture(self, name: str) -> None:
            captured.append(name)

    init = switch.stand_ins()["ModelCudaGraphManager.__init__"](Manager.__init__)
    manager = Capturing()
    init(manager)
    twins.kept[manager] = Twins({})
    switch.close()
    manager.capture("once")
    assert captured == ["once"]
    assert manager not in twins.kept


# In the installed vLLM


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllms_experts_take_the_tile(tmp_path: Path) -> None:
    import importlib.metadata

    from optimized.gate import installed_sources, public

    version = public(importlib.metadata.version("vllm"))
    script = ROOT / "tests/versions/experts_of_this_version.py"
    paths = os.pathsep.join([str(ROOT / "examples/cpu_server/interpreter"), str(ROOT)])
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, str(script), str(version), str(installed_sources())]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one = json.loads(done.stdout.splitlines()[-1])["taken"]
    assert (one["hits"], one["fallbacks"], one["errors"]) == (1, 0, 0)
    assert one["tiles"] == [64, 64, 16, 16, 64, 64]
    assert max(one["error"], one["stocks_error"]) < 2e-5
    assert one["apart"] > 0


def test_the_file_is_beside_the_code() -> None:
    assert tiles.TABLES.is_file()
