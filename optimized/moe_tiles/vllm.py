"""A measured tile in the place of the default one that vLLM's Triton experts ask for, and graphs with either.

A CUDA graph keeps the tile that it was captured with. So while the switch is on the target's FULL graphs are captured
as they would be, and those whose experts have a tile are captured once more; which one is replayed is decided at each
replay. Runner V2 only: V1 captures no graph of ours, and has hits outside of graphs alone.

No seam is another optimization's, so that all can be on together: a manager captures by a method of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from optimized.captured import BEFORE
from optimized.moe_tiles import twins
from optimized.moe_tiles.tiles import Experts, Tables, Tile, find, tables
from optimized.objections import first_objection
from optimized.optimization import Counts
from optimized.split_kv_3d.graphs import kept as captured_twice
from spantrace.patching import Function


def name_of(device: torch.device) -> str:
    """The full name of the GPU that weights are on."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type


def choose(experts: Any, hidden: Tensor, w1: Tensor, w2: Tensor, ids: Tensor, known: Tables) -> Tile | str:
    """The tile for this call of a layer's experts, or why vLLM chooses it; nothing is read from the GPU."""
    from vllm import envs
    from vllm.model_executor.layers.fused_moe import get_config
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
    from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config, get_moe_configs

    quant = experts.quant_config
    objections = {
        f"the experts are {type(experts).__name__}": type(experts) is not TritonExperts,
        "results must not depend on the batch": bool(envs.VLLM_BATCH_INVARIANT),
        "somebody overrides the configuration": bool(get_config()),
        "the experts are quantized": quant.quant_dtype is not None or not hidden.dtype == w1.dtype == w2.dtype,
        "the experts have a bias": quant.w1_bias is not None or quant.w2_bias is not None,
        "a LoRA is applied": getattr(experts, "_lora_context", None) is not None,
        "the experts have a gate": w1.shape[1] != w2.shape[2],
    }
    if reason := first_objection(objections):
        return reason
    (count, intermediate, width), tokens, top_k = w1.shape, len(hidden), ids.shape[1]
    dtype = str(hidden.dtype).removeprefix("torch.")
    tile = find(Experts(name_of(w1.device), dtype, count, intermediate, width, top_k), tokens, known)
    if isinstance(tile, str):
        return tile
    name = quant.config_name(hidden.dtype)
    if get_moe_configs(count, intermediate, name, 0, 0):
        return "vLLM has a configuration of its own for these experts"
    if get_default_config(tokens, count, intermediate, width, top_k, name) == tile.config():
        return "vLLM chooses the same tile by itself"
    return tile


def by_vllm(rows: Tensor, up: Tensor, down: Tensor, weights: Tensor, ids: Tensor, tile: Tile | None) -> Tensor:
    """A layer of experts without gates by vLLM's kernels, with that tile or with what vLLM chooses."""
    from vllm.model_executor.layers import fused_moe
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    # vLLM's own override_config stays in force where what it is for fails.
    before, fused_moe._config = fused_moe._config, tile.config() if tile else None
    try:
        return torch.as_tensor(fused_experts(rows, up, down, weights, ids, activation=MoEActivation.RELU2_NO_MUL))
    finally:
        fused_moe._config = before


class Offer(threading.local):
    """The tile for the experts that this thread computes now, and whether it was asked for."""

    tile: Tile | None = None
    taken = False


class MoeTiles:
    """The switch; a hit is a replay of a target's graph, or one layer's call outside of graphs."""

    def __init__(self, known: Tables | None = None) -> None:
        self.counts = Counts()
        self._known = tables() if known is None else known
        self._offer = Offer()
        self._noting: dict[int, str | None] | None = None
        self._stock_only = False
        self._broken = self._closed = False

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The experts, what they ask for a tile, where the target's graphs come into being, and their replay."""
        return {
            "TritonExperts.apply": self._apply,
            "try_get_optimal_moe_config": self._ask,
            "ModelCudaGraphManager.__init__": self._init,
            "ModelCudaGraphManager.run_fullgraph": self._replay,
        }

    def allocated(self) -> int:
        """None beside the second graphs."""
        return 0

    def close(self) -> None:
        """Let managers that are captured from now on have vLLM's graphs alone."""
        self._closed = True

    def _apply(self, original: Function) -> Function:
        @wraps(original)
        def apply(
            experts: Any,
            output: Tensor,
            hidden_states: Tensor,
            w1: Tensor,
            w2: Tensor,
            topk_weights: Tensor,
            topk_ids: Tensor,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            def compute() -> Any:
                return original(experts, output, hidden_states, w1, w2, topk_weights, topk_ids, *args, **kwargs)

            spread = kwargs.get("expert_map", args[2] if len(args) > 2 else None) is not None
            tile = self._choice(experts, hidden_states, w1, w2, topk_ids, spread)
            if isinstance(tile, str) or self._stock_only:
                self._note(len(hidden_states), tile if isinstance(tile, str) else None)
                return compute()
            return self._compute(tile, len(hidden_states), compute)

        return apply

    def _choice(self, experts: Any, hidden: Tensor, w1: Tensor, w2: Tensor, ids: Tensor, spread: bool) -> Tile | str:
        if self._broken:
            return twins.BROKEN
        try:
            if self._noting is None and hidden.is_cuda and torch.cuda.is_current_stream_capturing():
                return twins.NOT_TWICE
            if spread:
                return "the experts are spread over ranks"
            return choose(experts, hidden, w1, w2, ids, self._known)
        except Exception as error:
            return self._failed(error)

    def _compute(self, tile: Tile, tokens: int, compute: Callable[[], Any]) -> Any:
        """Compute with that tile; where it does not run, vLLM's computes it all once more."""
        self._offer.tile, self._offer.taken = tile, False
        try:
            result = compute()
        except Exception as error:
            if not self._offer.taken:
                raise
            self._note(tokens, self._failed(error))
        else:
            self._note(tokens, None if self._offer.taken else twins.UNASKED)
            return result
        finally:
            self._offer.tile = None
        return compute()

    def _ask(self, original: Function) -> Function:
        @wraps(original)
        def try_get_optimal_moe_config(*args: Any, **kwargs: Any) -> Any:
            if self._offer.tile is None:
                return original(*args, **kwargs)
            self._offer.taken = True
            return self._offer.tile.config()

        return try_get_optimal_moe_config

    def _failed(self, error: Exception) -> str:
        self.counts.failed(error)
        self._broken = True
        return twins.BROKEN

    def _note(self, tokens: int, reason: str | None) -> None:
        """Count a call or a replay, or note of a capture what a replay of so many tokens counts as."""
        if self._noting is not None:
            self._noting[tokens] = self._noting.get(tokens) or reason
        elif reason is None:
            self.counts.hits += 1
        else:
            self.counts.fallbacks[reason] += 1

    def _init(self, original: Function) -> Function:
        @wraps(original)
        def init(manager: Any, *args: Any, **kwargs: Any) -> None:
            original(manager, *args, **kwargs)
            known = ref(manager)
            manager.capture = lambda *given, **named: self._capture(known(), *given, **named)

        return init

    def _capture(self, manager: Any, *args: Any, **kwargs: Any) -> Any:
        """Capture as the manager's class does, with vLLM's tile, and then once more what has one of ours."""
        twins.kept.pop(manager, None)
        capture = type(manager).capture
        if self._closed:
            return capture(manager, *args, **kwargs)
        reasons: dict[int, str | None] = {}
        self._noting, self._stock_only = reasons, True
        try:
            result = capture(manager, *args, **kwargs)
        finally:
            self._noting, self._stock_only = None, False
        if getattr(manager, "_max_full_descs_to_capture", None) is None:
            if manager in captured_twice.variants:
                reasons = dict.fromkeys(reasons, twins.OTHERS)
            twins.kept[manager] = self._twins(manager, reasons, lambda: capture(manager, *args, **kwargs))
        return result

    def _twins(self, manager: Any, reasons: dict[int, str | None], capture: Callable[[], object]) -> twins.Twins:
        """Capture into other graphs those batches whose experts have a tile; where that fails there are none."""
        batches = twins.full_batches(manager, {tokens for tokens, reason in reasons.items() if reason is None})
        if not batches:
            return twins.Twins(manager.graphs, reasons=reasons)
        noted: dict[int, str | None] = {}
        self._noting = noted
        try:
            with twins.other_graphs(manager, batches) as tiled:
                capture()
            return twins.Twins(manager.graphs, tiled, reasons | noted)
        except Exception as error:
            return twins.Twins(manager.graphs, reasons=dict.fromkeys(reasons, self._failed(error)))
        finally:
            self._noting = None

    def _replay(self, original: Function) -> Function:
        @wraps(original)
        def run_fullgraph(manager: Any, desc: Any, *args: Any, **kwargs: Any) -> Any:
            found = twins.kept.get(manager)
            reason = found.why_not(manager.graphs, desc) if found else BEFORE
            self._note(desc.num_tokens, reason)
            if reason is not None or found is None:
                return original(manager, desc, *args, **kwargs)
            manager.graphs = found.tiled
            try:
                return original(manager, desc, *args, **kwargs)
            finally:
                manager.graphs = found.stock

        return run_fullgraph
