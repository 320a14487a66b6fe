"""The rewritten builder method of every supported vLLM against its own: every field of every kind of batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sources import source_tree

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from optimized.gate import source  # noqa: E402
from optimized.uniform_decode_metadata.sources import BLOCK_TABLE, BUILD, SPLIT  # noqa: E402
from optimized.uniform_decode_metadata.vllm import Shortcut, with_shortcut  # noqa: E402

pytestmark = [
    pytest.mark.versions,
    pytest.mark.skipif(os.environ.get("SPANTRACE_TEST_VERSIONS") != "1", reason="set SPANTRACE_TEST_VERSIONS=1"),
]
ITEM = optimized.discover()["uniform-decode-metadata"]
DRAFTS, BLOCK_SIZE, BLOCKS = 3, 16, 12
CONVOLUTION = "vllm.v1.attention.backends.utils:compute_causal_conv1d_metadata"
BUILDER = BUILD.rpartition(".")[0]
HELPERS = ("_compute_prefix_caching_block_indices", "_prefill_cpu_metadata")


@dataclass(frozen=True)
class MambaSpec:
    """What of vLLM's class of this name is read."""

    block_size: int = BLOCK_SIZE
    num_speculative_blocks: int = DRAFTS


@dataclass
class Batch:
    """A batch's common metadata, made from each request's query length, context and whether it prefills."""

    query_start_loc_cpu: Any
    seq_lens: Any
    is_prefilling: Any
    block_table_tensor: Any
    max_query_len: int

    @classmethod
    def of(cls, *requests: tuple[int, int, bool], longest: int | None = None) -> Batch:
        queries = [query for query, _, _ in requests]
        lengths = torch.tensor([query + context for query, context, _ in requests], dtype=torch.int32)
        starts = torch.tensor([0, *np.cumsum(queries)], dtype=torch.int32)
        flags = torch.tensor([flag for _, _, flag in requests])
        table = torch.arange(1, 1 + len(requests) * BLOCKS, dtype=torch.int32).reshape(len(requests), BLOCKS)
        return cls(starts, lengths, flags, table, longest or max(queries))

    num_reqs = property(lambda self: len(self.seq_lens))
    num_actual_tokens = property(lambda self: int(self.query_start_loc_cpu[-1]))
    query_start_loc = property(lambda self: self.query_start_loc_cpu)
    seq_lens_cpu_upper_bound = property(lambda self: self.seq_lens)
    replace = replace

    def compute_num_computed_tokens(self) -> Any:
        return self.seq_lens - self.query_start_loc_cpu.diff()


DECODES = {
    "one decode": Batch.of((4, 50, False)),
    "four decodes": Batch.of(*[(4, 20 + 7 * row, False) for row in range(4)]),
    "decodes of other lengths": Batch.of((4, 50, False), (1, 33, False), (2, 15, False)),
    "padding": Batch.of((4, 50, False), (4, 12, False), (0, 0, False), (0, 0, False)),
    "a bound above the longest": Batch.of((1, 50, False), (1, 12, False), longest=4),
    "at a block's edge": Batch.of((4, BLOCK_SIZE - 4, False), (4, BLOCK_SIZE - 3, False), (4, 2 * BLOCK_SIZE, False)),
}
OTHERS = {
    "a prefill": Batch.of((40, 0, True)),
    "a prefill after decodes": Batch.of((4, 50, False), (4, 20, False), (31, 0, True)),
    "a short prefill": Batch.of((4, 50, False), (3, 0, True)),
    "a prefill's last token": Batch.of((1, 30, True), (4, 20, False)),
    "a prefill of one token": Batch.of((4, 20, False), (1, 0, True)),
    "a query that is too long": Batch.of((4, 20, False), (5, 20, False)),
}
BATCHES = DECODES | OTHERS


class Stock:
    """The builder's method of one version in a module of its own, with all that it calls."""

    def __init__(self, version: str) -> None:
        self.tree = source_tree(version)
        self.module: dict[str, Any] = {"torch": torch, "np": np, "MambaSpec": MambaSpec}
        self.module |= {"PIN_MEMORY": False, "PAD_SLOT_ID": -1, "np_to_pinned_tensor": torch.from_numpy}
        self.text = self.text_of(BUILD)
        for target in (SPLIT, BLOCK_TABLE, CONVOLUTION, BUILD, *(f"{BUILDER}.{name}" for name in HELPERS)):
            if source(self.tree, target):
                self.define(self.text_of(target))

    def text_of(self, target: str) -> str:
        found = source(self.tree, target)
        assert found is not None, target
        return (
            "\n".join(line.removeprefix("    ") for line in found.splitlines())
            if "." in target.split(":")[1]
            else found
        )

    def define(self, text: str) -> None:
        exec(compile("from __future__ import annotations\n" + text, "<vllm>", "exec"), self.module)

    def builder(self, mode: str, drafts: int) -> SimpleNamespace:
        cache = SimpleNamespace(mamba_cache_mode=mode)
        found = SimpleNamespace(
            reorder_batch_threshold=1 + drafts,
            num_spec_tokens=drafts,
            use_spec_decode=drafts > 0,
            use_replayssm=False,
            use_flashinfer_replayssm=False,
            needs_causal_conv1d_metadata=True,
            decode_bc_pre_scratch=None,
            kv_cache_spec=MambaSpec(num_speculative_blocks=drafts),
            vllm_config=SimpleNamespace(cache_config=cache),
            metadata_cls=dict,
            _update_metadata_for_cudagraph_capture=lambda metadata: metadata,
        )
        for name in HELPERS:
            if name in self.module:
                setattr(found, name, MethodType(self.module[name], found))
        return found


@pytest.fixture(scope="module", params=ITEM.versions())
def stock(request: pytest.FixtureRequest) -> Stock:
    return Stock(request.param)


def built(method: Callable[..., Any], builder: Any, batch: Batch, accepted: Any) -> dict[str, Any]:
    found: dict[str, Any] = method(builder, batch, num_accepted_tokens=accepted)
    return found


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("kept", [True, False], ids=["offsets kept", "offsets made"])
@pytest.mark.parametrize("drafts", [DRAFTS, 0])
@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_every_field_is_what_the_full_chain_gives(stock: Stock, mode: str, drafts: int, kept: bool) -> None:
    switch, original = Shortcut(), stock.module["_compute_common_metadata"]
    table = stock.module["mamba_get_block_table_tensor"]
    fast = with_shortcut(original, stock.text, switch.all_decode, partial(switch.block_table, table) if kept else table)
    builder, shortcuts = stock.builder(mode, drafts), 0
    if mode == "all" and "prev_last_scheduled_idx" not in original.__code__.co_varnames:
        pytest.skip("this version has no such mode")
    for name, batch in BATCHES.items():
        for accepted in (torch.ones(batch.num_reqs, dtype=torch.int32), None) if drafts else (None,):
            before = [value.clone() for value in vars(batch).values() if isinstance(value, torch.Tensor)]
            wanted = built(original, builder, batch, accepted)
            got = built(fast, builder, batch, accepted)
            assert wanted.keys() == got.keys()
            assert [field for field in wanted if not equal(wanted[field], got[field])] == [], name
            after = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
            assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True)), name
            threshold = 1 + drafts if accepted is not None else 1
            shortcuts += name in DECODES and batch.max_query_len <= threshold
    assert switch.counts.hits == shortcuts
    assert not switch.counts.errors
    assert shortcuts or not drafts
    if mode == "align" and kept:
        assert switch.allocated() == 4 * (1 + drafts)


def test_the_chain_is_not_run_where_the_shortcut_is_taken(stock: Stock) -> None:
    switch, original = Shortcut(), stock.module["_compute_common_metadata"]
    fast = with_shortcut(original, stock.text, switch.all_decode, stock.module["mamba_get_block_table_tensor"])
    builder = stock.builder("none", DRAFTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(stock.module, "split_decodes_and_prefills", lambda *_, **__: (99, 0, 0, 0))
        for batch in DECODES.values():
            accepted = torch.ones(batch.num_reqs, dtype=torch.int32)
            assert built(fast, builder, batch, accepted)["num_decodes"] == batch.num_reqs
        with pytest.raises(RuntimeError, match="split"):
            built(fast, builder, OTHERS["a short prefill"], torch.ones(2, dtype=torch.int32))


def test_a_shortcut_that_is_taken_wrongly_shows(stock: Stock) -> None:
    original = stock.module["_compute_common_metadata"]
    fast = with_shortcut(original, stock.text, lambda *_: True, stock.module["mamba_get_block_table_tensor"])
    builder = stock.builder("none", DRAFTS)
    for name, batch in OTHERS.items():
        accepted = torch.ones(batch.num_reqs, dtype=torch.int32)
        wanted, got = built(original, builder, batch, accepted), built(fast, builder, batch, accepted)
        assert (name != "a prefill's last token") == (not equal(wanted, got)), name


def test_a_failure_of_ours_runs_the_chain_and_is_counted(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    switch, original = Shortcut(), stock.module["_compute_common_metadata"]
    table = partial(switch.block_table, stock.module["mamba_get_block_table_tensor"])
    fast = with_shortcut(original, stock.text, switch.all_decode, table)
    builder, batch = stock.builder("align", DRAFTS), DECODES["four decodes"]

    def planted(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("optimized.uniform_decode_metadata.vllm.why_not", planted)
    monkeypatch.setattr(switch.offsets, "last_blocks", planted)
    accepted = torch.ones(batch.num_reqs, dtype=torch.int32)
    wanted, got = built(original, builder, batch, accepted), built(fast, builder, batch, accepted)
    assert all(equal(wanted[field], got[field]) for field in wanted)
    assert switch.counts.as_dict("x") == {
        "id": "x",
        "hits": 0,
        "fallbacks": 0,
        "errors": 2,
        "reasons": {"RuntimeError: planted": 2},
    }
