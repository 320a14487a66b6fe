"""Runs the Triton attention layer of the installed vLLM, interpreted, with the split switched on and off; prints JSON.

Started as a program of its own: vLLM only finds Triton on a CPU where the interpreter's backend and TRITON_INTERPRET
are in its environment.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import vllm
from vllm import envs
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl, TritonAttentionMetadata
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager, ModelCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.dflash.cudagraph import DFlashCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator

import optimized
from optimized.gate import public
from optimized.split_kv_3d import vllm as switch
from optimized.split_kv_3d.attention import scratch_bytes
from optimized.split_kv_3d.graphs import kept

ID, VERSION = "split-kv-3d", public(vllm.__version__)
HEADS, KEY_HEADS, HEAD_DIM, PAGE, QUERIES = 6, 2, 32, 16, 3
LENGTHS, THRESHOLD = (40, 19), 4
DRAFTERS, TARGETS = SimpleNamespace(layer_name="draft.0"), SimpleNamespace(layer_name="model.0")


class Layer:
    """A layer's attention, its cache and one batch for it."""

    def __init__(self, window: int | None = None, sinks: bool = False, lengths: tuple[int, ...] = LENGTHS) -> None:
        random = torch.Generator().manual_seed(7)
        sink = torch.randn(HEADS, generator=random) if sinks else None
        self.impl = TritonAttentionImpl(HEADS, HEAD_DIM, HEAD_DIM**-0.5, KEY_HEADS, None, window, "auto", sinks=sink)
        pages = -(-max(lengths) // PAGE)
        self.cache = torch.randn(len(lengths) * pages, PAGE, KEY_HEADS, 2 * HEAD_DIM, generator=random).transpose(1, 2)
        self.queries = torch.randn(len(lengths) * QUERIES, HEADS, HEAD_DIM, generator=random)
        empty = torch.empty(0)
        self.metadata = TritonAttentionMetadata(
            num_actual_tokens=len(self.queries),
            max_query_len=QUERIES,
            query_start_loc=QUERIES * torch.arange(len(lengths) + 1, dtype=torch.int32),
            max_seq_len=max(lengths),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_table=torch.arange(len(lengths) * pages, dtype=torch.int32).reshape(len(lengths), pages),
            slot_mapping=torch.zeros(len(self.queries), dtype=torch.int64),
            seq_threshold_3D=THRESHOLD,
            num_par_softmax_segments=16,
            softmax_segm_output=empty,
            softmax_segm_max=empty,
            softmax_segm_expsum=empty,
            causal=True,
        )

    def run(self, layer: Any = DRAFTERS, **options: Any) -> torch.Tensor:
        """What the layer's attention gives now; -1 where nothing was written."""
        out = torch.full_like(self.queries, -1.0)
        layer = SimpleNamespace(_k_scale=torch.ones(1), _v_scale=torch.ones(1), **vars(layer))
        returned = self.impl.forward(
            layer, self.queries, self.queries, self.queries, self.cache, self.metadata, output=out, **options
        )
        assert returned is out
        return out

    def with_(self, **changes: Any) -> Layer:
        """The same layer, with other metadata."""
        for name, value in changes.items():
            setattr(self.metadata, name, value)
        return self


def said() -> dict[str, Any]:
    """What the switch has counted."""
    return next(one for one in optimized.counts() if one["id"] == ID)


def compare(layer: Layer, place: Any = DRAFTERS, context: Any = nullcontext, **options: Any) -> dict[str, Any]:
    """The layer with the switch off and on: how far the results differ, and what was counted."""
    with context():
        stock = layer.run(place, **options)
        optimized.apply([ID], VERSION)
        got = layer.run(place, **options)
    found = {"error": float((got - stock).abs().max()), "equal": bool(torch.equal(got, stock)), **said()}
    optimized.revert()
    return {**found, "equal_after": bool(torch.equal(layer.run(place, **options), stock))}


class Invariant:
    """While it lasts, results must not depend on the batch."""

    def __enter__(self) -> None:
        envs.VLLM_BATCH_INVARIANT = True

    def __exit__(self, *_: object) -> None:
        del envs.VLLM_BATCH_INVARIANT


def attention() -> dict[str, Any]:
    """Batches that are taken, and those that stay vLLM's."""
    some = torch.tensor([True, False])
    half = Layer()
    half.queries = half.queries.half()
    capped, chunked = Layer(), Layer(window=20)
    capped.impl.logits_soft_cap, chunked.impl.chunk_lookback = 30.0, 1
    prefix = torch.zeros(len(LENGTHS), 1, 2, dtype=torch.int32)
    return {
        "taken": {
            "causal": compare(Layer()),
            "window and sinks": compare(Layer(window=20, sinks=True)),
            "not causal": compare(Layer().with_(causal=False)),
            "not causal, a window": compare(Layer(window=9).with_(causal=False)),
        },
        "target": compare(Layer(), TARGETS),
        "left": {
            "causal and some": compare(Layer().with_(causal=some)),
            "R-SWA": compare(Layer(window=20).with_(rswa_window=8, rswa_prefix_lens=torch.tensor([4, 4]))),
            "chunked": compare(chunked),
            "capped": compare(capped),
            "depend on the batch": compare(Layer(), context=Invariant),
            "both directions": compare(Layer().with_(mm_prefix_range_tensor=prefix)),
            f"more than {THRESHOLD} requests": compare(Layer(lengths=(5, 6, 7, 8, 9))),
            "quantized": compare(half),
        },
    }


class Graph:
    """What was captured: the layer's result of that time."""

    def __init__(self, result: torch.Tensor) -> None:
        self.result = result

    def replay(self) -> None:
        """Notes what it replays."""
        Graph.replayed = self.result


def managing(kind: type, layer: Layer) -> Any:
    """A graph manager of vLLM's; a GPU is what it lacks."""
    manager, requests, tokens = object.__new__(kind), len(layer.metadata.seq_lens), len(layer.queries)
    batch = BatchExecutionDescriptor(CUDAGraphMode.FULL, tokens, requests, QUERIES)
    manager.graphs, manager._candidates, manager._lora_dispatch_map = {}, {(tokens, 0): [batch]}, {}
    manager._graphs_captured, manager._max_lora_case, manager.use_breakable_cg = False, 0, False
    manager.cudagraph_mode, manager.is_last_pp_rank = CUDAGraphMode.FULL_DECODE_ONLY, True
    manager.hidden_states = layer.queries
    return manager


def capturing(layer: Layer, place: Any) -> Any:
    """What a manager does in the place of capturing its one batch."""

    def capture(manager: Any, *_: Any, **__: Any) -> None:
        ((batch,),) = manager._candidates.values()
        assert batch not in manager.graphs
        layer.run(place)
        manager.graphs[batch] = Graph(layer.run(place))
        manager._graphs_captured = True

    return capture


def drafter(layer: Layer) -> Any:
    """A speculator whose graphs are kept by vLLM's own manager."""
    manager, speculator = managing(DFlashCudaGraphManager, layer), object.__new__(DFlashSpeculator)
    manager.capture = partial(capturing(layer, DRAFTERS), manager)
    for name in ("sample_indices", "sample_pos", "sample_idx_mapping", "_context_slot_mappings"):
        setattr(speculator, name, torch.zeros(1, dtype=torch.int64))
    for name in ("input_buffers", "block_tables", "attn_groups", "kv_cache_config", "max_model_len", "_group_causal"):
        setattr(speculator, name, None)
    speculator.query_cudagraph_manager = manager
    return speculator


def replay(manager: Any, layer: Layer) -> torch.Tensor:
    """A step: the manager is asked for a graph, which is replayed."""
    tokens = len(layer.queries)
    manager.run_fullgraph(manager.dispatch(len(layer.metadata.seq_lens), tokens, QUERIES, 0))
    return Graph.replayed


def enough(rows: int) -> dict[str, Any]:
    """A version whose own buffers have so many rows; whether anything else was allocated."""
    layer = Layer(window=20)
    sizes = {"output": (rows, HEADS, 16, HEAD_DIM), "max": (rows, HEADS, 16), "expsum": (rows, HEADS, 16)}
    layer.with_(**{f"softmax_segm_{name}": torch.empty(size) for name, size in sizes.items()})
    stock = layer.run()
    optimized.apply([ID], VERSION)
    found = {"apart": float((layer.run() - stock).abs().max()), **said(), "allocated": optimized.allocated(ID)}
    optimized.revert()
    return found


def graphs(layer: Layer) -> dict[str, Any]:
    """Captured with the switch on, replayed with it on, off, on and off again."""
    stock, found = layer.run(), {}
    optimized.apply([ID], VERSION)
    speculator = drafter(layer)
    speculator.capture()
    found["captured"] = said()
    for turn in range(2):
        if turn:
            optimized.apply([ID], VERSION)
        got = replay(speculator.query_cudagraph_manager, layer)
        found[f"on {turn}"] = {
            "error": float((got - stock).abs().max()),
            "equal": bool(torch.equal(got, stock)),
            **said(),
        }
        found["held"] = optimized.allocated(ID)
        optimized.revert()
        found[f"off {turn}"] = bool(torch.equal(replay(speculator.query_cudagraph_manager, layer), stock))
    found["kept"] = [len(kept.variants)]
    del speculator
    gc.collect()
    found["kept"].append(len(kept.variants))
    return found


def target(layer: Layer) -> dict[str, Any]:
    """A target that is captured while its verification is to be split as well, and one while it is not."""
    stock, found, original = layer.run(TARGETS), {}, CudaGraphManager.capture
    CudaGraphManager.capture = capturing(layer, TARGETS)
    try:
        for chosen in ("1", "0"):
            os.environ[switch.TARGET_TOO] = chosen
            optimized.apply([ID], VERSION)
            manager = managing(ModelCudaGraphManager, layer)
            manager.capture(*(None,) * 7)
            got, eager = replay(manager, layer), layer.run(TARGETS)
            apart = [float((one - stock).abs().max()) for one in (got, eager)]
            found[chosen] = {"apart": apart, **said()}
            optimized.revert()
            found[chosen]["equal_after"] = bool(torch.equal(replay(manager, layer), stock))
    finally:
        CudaGraphManager.capture = original
        del os.environ[switch.TARGET_TOO]
    return found


def late(layer: Layer) -> dict[str, Any]:
    """Captured with the switch off, which is put on afterwards."""
    speculator, stock = drafter(layer), layer.run()
    speculator.capture()
    optimized.apply([ID], VERSION)
    found = {"equal": bool(torch.equal(replay(speculator.query_cudagraph_manager, layer), stock)), **said()}
    optimized.revert()
    return found


def failing(layer: Layer) -> dict[str, Any]:
    """The split attention fails where it is first called."""
    stock, attend = layer.run(), switch.attend

    def planted(*_: Any) -> None:
        raise RuntimeError("planted")

    optimized.apply([ID], VERSION)
    switch.attend = planted
    try:
        speculator = drafter(layer)
        speculator.capture()
        equal = [
            bool(torch.equal(replay(speculator.query_cudagraph_manager, layer), stock)),
            bool(torch.equal(layer.run(), stock)),
        ]
        return {"equal": equal, **said()}
    finally:
        switch.attend = attend
        optimized.revert()


def main() -> None:
    """All of it."""
    torch.set_num_threads(1)
    kept.layers.add(DRAFTERS.layer_name)
    layer = Layer(window=20, sinks=True)
    found = {
        "attention": attention(),
        "graphs": graphs(layer),
        "target": target(layer),
        "buffers": [enough(THRESHOLD * QUERIES - 1), enough(THRESHOLD * QUERIES)],
        "late": late(layer),
        "failing": failing(layer),
        "scratch": scratch_bytes(THRESHOLD * QUERIES, HEADS, HEAD_DIM),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
