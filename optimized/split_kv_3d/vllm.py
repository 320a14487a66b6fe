"""The drafter's attention in vLLM's Triton backend: the split kernel where it may run, and vLLM's own call elsewhere.

A CUDA graph keeps the kernels that it was captured with. So the drafter is captured twice while the switch is on, once
with vLLM's attention and once with this one; which graph a step replays is decided when it asks for one, and without
the switch it is vLLM's own. Runner V2 only: V1 captures no drafter as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from optimized.captured import BEFORE
from optimized.objections import first_objection
from optimized.optimization import Counts
from optimized.split_kv_3d.attention import MOST_QUERIES, STOCK_SEGMENTS, Context, Scratch, Sight, attend, why_not
from optimized.split_kv_3d.graphs import Size, Variants, kept
from spantrace.patching import Function

TARGET_TOO = "SPANTRACE_SPLIT_KV_TARGET"
"""Where it is 1 when the server starts, the target's verification is split as well, and captured twice."""


def why_not_in_vllm(impl: Any, metadata: Any, query: Tensor, kv_cache: Tensor, output_scale: Any) -> str | None:
    """Why this call of a layer's attention stays vLLM's own; nothing is read from the GPU."""
    from vllm import envs

    requests, threshold = len(metadata.seq_lens), metadata.seq_threshold_3D
    objections = {
        f"a request has more than {MOST_QUERIES} queries": metadata.max_query_len > MOST_QUERIES,
        f"there are more than {threshold} requests, whose grid is large enough unsplit": requests > threshold,
        "results must not depend on the batch": envs.VLLM_BATCH_INVARIANT,
        "it is no decoder's attention": impl.attn_type != "decoder",
        "a window of its own follows the prompt (R-SWA)": getattr(metadata, "rswa_window", None) is not None,
        "its masking is chunked": impl.chunk_lookback > -1,
        "the keys are quantized, as in FP8": kv_cache.dtype != query.dtype,
        "the output is quantized": output_scale is not None,
        "its scores are capped or biased": bool(impl.logits_soft_cap) or impl.alibi_slopes is not None,
        "some requests are causal and some are not": isinstance(metadata.causal, Tensor),
        "images see themselves in both directions": metadata.mm_prefix_range_tensor is not None,
    }
    return first_objection(objections)


def vllms_own(metadata: Any, query: Tensor, tokens: int) -> Scratch | None:
    """The layer's own buffers, where this version makes them large enough for so many tokens: nothing to allocate."""
    parts = metadata.softmax_segm_output, metadata.softmax_segm_max, metadata.softmax_segm_expsum
    if not all(part.is_contiguous() and part.dtype == torch.float32 for part in parts):
        return None
    scratch = Scratch.of(*parts)
    return scratch if scratch.segments(tokens, *query.shape[1:]) >= STOCK_SEGMENTS else None


class SplitKv:
    """The switch; a hit is a replay of a model's graph, or one layer's call outside of graphs."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._target = os.environ.get(TARGET_TOO) == "1"
        self._capturing: dict[Size, str | None] | None = None
        self._stock_only = False
        self._broken: str | None = None

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The attention, where a drafter's layers become known, both captures, and the choice of a graph."""
        return {
            "TritonAttentionImpl.forward": self._forward,
            "DFlashSpeculator.set_attn": self._set_attn,
            "DFlashSpeculator.capture": self._capture_drafter,
            "ModelCudaGraphManager.capture": self._capture_target,
            "CudaGraphManager.dispatch": self._dispatch,
        }

    def allocated(self) -> int:
        """Bytes between the two kernels; captured graphs keep them after the switch is off."""
        return kept.nbytes()

    def close(self) -> None:
        """Let every model replay vLLM's own graphs again."""
        kept.give_back()

    def _forward(self, original: Function) -> Function:
        @wraps(original)
        def forward(
            impl: Any,
            layer: Any,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            kv_cache: Tensor,
            attn_metadata: Any,
            output: Tensor,
            output_scale: Tensor | None = None,
            output_block_scale: Tensor | None = None,
        ) -> Any:
            if attn_metadata is not None and output_block_scale is None and self._is_ours(layer):
                reason = self._attend(impl, query, kv_cache, attn_metadata, output, output_scale)
                self._note((len(attn_metadata.seq_lens), attn_metadata.num_actual_tokens), reason)
                if reason is None:
                    return output
            scales = {"output_scale": output_scale, "output_block_scale": output_block_scale}
            return original(impl, layer, query, key, value, kv_cache, attn_metadata, output, **scales)

        return forward

    def _is_ours(self, layer: Any) -> bool:
        if self._stock_only or self._target:
            return not self._stock_only
        return getattr(layer, "is_draft_layer", False) or getattr(layer, "layer_name", "") in kept.layers

    def _attend(
        self, impl: Any, query: Tensor, kv_cache: Tensor, metadata: Any, output: Tensor, output_scale: Tensor | None
    ) -> str | None:
        """Fill the output; why it was not filled, and vLLM must."""
        if self._broken:
            return self._broken
        try:
            reason = why_not_in_vllm(impl, metadata, query, kv_cache, output_scale)
            return reason or self._split(impl, query, kv_cache, metadata, output)
        except Exception as error:
            self.counts.failed(error)
            self._broken = "it failed before"
            return self._broken

    def _split(self, impl: Any, query: Tensor, kv_cache: Tensor, metadata: Any, output: Tensor) -> str | None:
        tokens, longest = metadata.num_actual_tokens, metadata.max_query_len
        asked, out = query[:tokens], output[:tokens]
        keys, values = kv_cache.transpose(1, 2).split(impl.head_size, dim=-1)
        context = Context(keys, values, metadata.block_table, metadata.seq_lens, metadata.query_start_loc)
        most = metadata.seq_threshold_3D * longest
        scratch = vllms_own(metadata, asked, most) or kept.for_tokens(asked, most)
        if reason := why_not(asked, context, out, longest, scratch):
            return reason
        sight = Sight(impl.scale, impl.sliding_window[0] + 1, bool(metadata.causal), impl.sinks)
        attend(asked, context, out, longest, sight, scratch)
        return None

    def _note(self, size: Size, reason: str | None) -> None:
        if self._capturing is not None:
            self._capturing[size] = self._capturing.get(size) or reason
        else:
            self._count(reason)

    def _count(self, reason: str | None) -> None:
        if reason is None:
            self.counts.hits += 1
        else:
            self.counts.fallbacks[reason] += 1

    def _set_attn(self, original: Function) -> Function:
        @wraps(original)
        def set_attn(speculator: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(speculator, *args, **kwargs)
            kept.layers.update(getattr(speculator, "draft_attn_layer_names", ()))
            return result

        return set_attn

    def _capture_drafter(self, original: Function) -> Function:
        @wraps(original)
        def capture(speculator: Any) -> Any:
            return self._capture(lambda: speculator.query_cudagraph_manager, lambda: original(speculator))

        return capture

    def _capture_target(self, original: Function) -> Function:
        @wraps(original)
        def capture(manager: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._target:
                return original(manager, *args, **kwargs)
            return self._capture(lambda: manager, lambda: original(manager, *args, **kwargs))

        return capture

    def _capture(self, manager_of: Callable[[], Any], capture: Callable[[], Any]) -> Any:
        """Capture with vLLM's attention, as it would be, and then with the split one too."""
        self._stock_only = True
        try:
            result = capture()
        finally:
            self._stock_only = False
        manager = manager_of()
        if getattr(manager, "graphs", None):
            self._capture_split(manager, capture)
        return result

    def _capture_split(self, manager: Any, capture: Callable[[], Any]) -> None:
        """Capture into other graphs; where that fails the manager has none but vLLM's."""
        stock, reasons = manager.graphs, dict[Size, str | None]()
        self._capturing, manager.graphs = reasons, {}
        try:
            capture()
            kept.variants[manager] = Variants(stock, manager.graphs, reasons)
        except Exception as error:
            self.counts.failed(error)
        finally:
            self._capturing, manager.graphs = None, stock

    def _dispatch(self, original: Function) -> Function:
        from vllm.config.compilation import CUDAGraphMode
        from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager
        from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager

        ours = (DFlashCudaGraphManager, ModelCudaGraphManager) if self._target else (DFlashCudaGraphManager,)

        @wraps(original)
        def dispatch(manager: Any, *args: Any, **kwargs: Any) -> Any:
            batch = original(manager, *args, **kwargs)
            if type(manager) in ours and batch.cg_mode == CUDAGraphMode.FULL:
                self._choose(manager, batch)
            return batch

        return dispatch

    def _choose(self, manager: Any, batch: Any) -> None:
        """Have the manager replay the split attention's graph of that batch, where there is one."""
        variants = kept.variants.get(manager)
        if variants is None:
            self._count(BEFORE)
            return
        reason = variants.why_not(batch)
        manager.graphs = variants.stock if reason else variants.split
        self._count(reason)
