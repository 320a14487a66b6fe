"""One request's block on one GPU, and every attention that it can be measured with: ours, vLLM's, FA3's, PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from optimized.split_kv_3d.attention import Context, Plan, Scratch, Sight, attend, plan
from optimized.split_kv_3d.reference import attention as oracle

HEADS, KEY_HEADS, HEAD_DIM = 32, 2, 128
SEGMENTS = (8, 16, 32, 64, 128)
OUTGROWS = 200 * 2**20
"""More than the cache of the GPU holds: what the calls of one graph read together."""
FEWEST_CALLS, MOST_CALLS = 5, 64
NO_SINKS = "torch SDPA, no sinks"
Arm = Callable[[int], Tensor]


class Work:
    """One request's block, and the keys of as many layers as there are calls in a graph."""

    def __init__(self, context: int, window: int, queries: int, causal: bool, page: int) -> None:
        random = torch.Generator("cuda").manual_seed(3)
        self.context, self.queries, self.window = context, queries, window
        visible = min(context, window + queries - 1) if window else context
        self.first, self.bytes = context - visible, 2 * visible * KEY_HEADS * HEAD_DIM * 2
        self.calls = min(max(OUTGROWS // self.bytes, FEWEST_CALLS), MOST_CALLS)
        # Nobody reads the pages before the window: all layers name the same ones there.
        before = self.first // page
        own = -(-context // page) - before
        shape = (before + self.calls * own, page, KEY_HEADS, 2 * HEAD_DIM)
        self.cache = torch.randn(*shape, generator=random, device="cuda", dtype=torch.bfloat16)
        shared = torch.arange(before, device="cuda", dtype=torch.int32).expand(self.calls, before)
        rest = torch.arange(before, len(self.cache), device="cuda", dtype=torch.int32).reshape(self.calls, own)
        self.tables = torch.cat([shared, rest], 1).contiguous()
        self.keys, self.values = self.cache.split(HEAD_DIM, -1)
        self.query = torch.randn(queries, HEADS, HEAD_DIM, generator=random, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.query)
        self.lengths = torch.tensor([context], device="cuda", dtype=torch.int32)
        self.starts = torch.tensor([0, queries], device="cuda", dtype=torch.int32)
        self.sight = Sight(HEAD_DIM**-0.5, window, causal, torch.randn(HEADS, generator=random, device="cuda"))
        self.scratch = Scratch(queries, HEADS, HEAD_DIM, "cuda", max(SEGMENTS))
        self.dense = [self._dense(call) for call in range(self.calls)]

    def layer(self, call: int) -> Context:
        """The keys of one layer."""
        return Context(self.keys, self.values, self.tables[call : call + 1], self.lengths, self.starts)

    def wanted(self, sinks: bool) -> Tensor:
        """The first layer's attention in float64."""
        keys, values = self.cache[self.tables[0].long()].flatten(0, 1)[: self.context].split(HEAD_DIM, -1)
        sight = Sight(self.sight.scale, self.window, self.sight.causal, self.sight.sinks if sinks else None)
        first = self.context - self.queries
        return torch.stack([oracle(query, keys, values, first + row, sight) for row, query in enumerate(self.query)])

    def _dense(self, call: int) -> tuple[Tensor, Tensor]:
        """The visible keys and values of one layer, each head's side by side, [1, heads, keys, head_dim]."""
        seen = self.cache[self.tables[call].long()].flatten(0, 1)[self.first : self.context]
        keys, values = (part.transpose(0, 1)[None].contiguous() for part in seen.split(HEAD_DIM, -1))
        return keys, values


def arms(work: Work) -> tuple[dict[str, Arm], list[str]]:
    """Every arm by name, and what is not there, with the reason."""
    room = work.scratch.segments(work.queries, HEADS, HEAD_DIM)
    own = plan(work.query, work.layer(0), work.queries, work.window, room)
    found: dict[str, Arm] = {f"split, own plan: {own.segments} x {own.tile}": _split(work, own)}
    for segments in SEGMENTS:
        found[f"split, {segments} segments"] = _split(work, Plan(segments, own.tile, own.rows, own.warps, own.stages))
    found[NO_SINKS] = _torch(work)
    missing = []
    for name, make in (("vLLM 2D", _vllm), ("vLLM 3D", partial(_vllm, split=True)), ("FA3", _flash)):
        try:
            found[name] = make(work)
        except (ImportError, NotImplementedError) as error:
            missing.append(f"{name}: {error}")
    return found, missing


def _split(work: Work, cut: Plan) -> Arm:
    def call(layer: int) -> Tensor:
        attend(work.query, work.layer(layer), work.out, work.queries, work.sight, work.scratch, cut)
        return work.out

    return call


def _torch(work: Work) -> Arm:
    """PyTorch's attention to keys that lie side by side; it knows no sinks."""
    positions = torch.arange(work.context - work.queries, work.context, device="cuda")
    away = positions[:, None] - torch.arange(work.first, work.context, device="cuda")
    mask = (away >= 0) | (not work.sight.causal)
    mask = mask & (away.abs() < work.window) if work.window else mask
    query = work.query.transpose(0, 1)[None]

    def call(layer: int) -> Tensor:
        found = scaled_dot_product_attention(query, *work.dense[layer], mask, enable_gqa=True)
        return found[0].transpose(0, 1)

    return call


def _vllm(work: Work, split: bool = False) -> Arm:
    """vLLM's Triton kernel, in 2D or, where this version takes such a block, in 3D with 16 segments."""
    from vllm.v1.attention.ops import triton_unified_attention as stock

    if split and work.queries > 1 and not (hasattr(stock, "MAX_3D_QUERY_LEN") and work.sight.causal):
        raise NotImplementedError("this version has it for one query, or for causal ones, only")
    rows, three = 64 * work.queries, {}
    if split:
        sizes = {"output": (rows, HEADS, 16, HEAD_DIM), "max": (rows, HEADS, 16), "expsum": (rows, HEADS, 16)}
        three = {f"softmax_segm_{name}": torch.empty(*size, device="cuda") for name, size in sizes.items()}
        three |= {"seq_threshold_3D": 64, "num_par_softmax_segments": 16}

    def call(layer: int) -> Tensor:
        stock.unified_attention(
            **_arguments(work, layer),
            window_size=(work.window - 1, 0),
            softcap=0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            sinks=work.sight.sinks,
            **three,
        )
        return work.out

    return call


def _flash(work: Work) -> Arm:
    """FlashAttention 3 as vLLM builds it."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func

    behind = work.window - 1
    window = [behind, 0 if work.sight.causal else behind] if work.window else [-1, -1]
    assert work.sight.sinks is not None
    sinks = work.sight.sinks.bfloat16()

    def call(layer: int) -> Tensor:
        flash_attn_varlen_func(**_arguments(work, layer), window_size=window, fa_version=3, s_aux=sinks)
        return work.out

    return call


def _arguments(work: Work, layer: int) -> dict[str, Any]:
    """What vLLM's attentions call the same."""
    return {
        "q": work.query,
        "k": work.keys,
        "v": work.values,
        "out": work.out,
        "cu_seqlens_q": work.starts,
        "max_seqlen_q": work.queries,
        "seqused_k": work.lengths,
        "max_seqlen_k": work.context,
        "softmax_scale": work.sight.scale,
        "causal": work.sight.causal,
        "block_table": work.tables[layer : layer + 1],
    }
