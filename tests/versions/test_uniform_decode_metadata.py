"""The rewritten builder method of every supported vLLM against its own: every field of every kind of batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mamba_builds import BATCHES, DECODES, DRAFTS, OTHERS, Stock, built, equal  # noqa: E402

import optimized  # noqa: E402
from optimized.uniform_decode_metadata.vllm import Shortcut, with_shortcut  # noqa: E402

pytestmark = pytest.mark.versions
ITEM = optimized.discover()["uniform-decode-metadata"]


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
    monkeypatch.setattr(switch.offsets, "rows", planted)
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
