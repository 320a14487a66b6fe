"""A vLLM's own experts on the CPU, interpreted: python experts_of_this_version.py VERSION FOLDER-OF-ITS-SOURCES.

`TritonExperts.apply`, its kernel, the choice of a tile and the target's graph manager are vLLM's; what only a GPU has
stands in: the sum over a token's experts, and captured graphs, which give what was computed when they were captured.
Prints what happened with the optimization and without it, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VERSION, TREE = sys.argv[1:]
sys.path.insert(0, TREE)
sys.path.append(str(Path(__file__).parents[1]))

import torch  # noqa: E402
from vllm import envs  # noqa: E402
from vllm.config.compilation import CUDAGraphMode  # noqa: E402
from vllm.model_executor.layers.fused_moe import override_config  # noqa: E402
from vllm.model_executor.layers.fused_moe.activation import MoEActivation  # noqa: E402
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG  # noqa: E402
from vllm.model_executor.layers.fused_moe.experts import triton_moe  # noqa: E402
from vllm.model_executor.layers.fused_moe.fused_moe import get_config_file_name, get_moe_configs  # noqa: E402
from vllm.v1.worker.gpu.cudagraph_utils import (  # noqa: E402
    BatchExecutionDescriptor,
    CudaGraphManager,
    ModelCudaGraphManager,
)

import optimized  # noqa: E402
from optimized.moe_tiles import vllm as switch  # noqa: E402
from optimized.moe_tiles.reference import Layer, exact  # noqa: E402
from optimized.moe_tiles.tiles import Experts, Tile  # noqa: E402
from optimized.moe_tiles.twins import kept  # noqa: E402
from optimized.split_kv_3d.vllm import TARGET_TOO  # noqa: E402

ID = "moe-tiles"
COUNT, INTERMEDIATE, HIDDEN, TOP_K, TOKENS = 32, 48, 200, 2, 3
TILE = Tile(16, 16, 32, 1, 4, 2)
SHAPE = Experts("cpu", "float32", COUNT, INTERMEDIATE, HIDDEN, TOP_K)
switch.tables = lambda: {SHAPE: {TOKENS: TILE}}
RANDOM = torch.Generator().manual_seed(5)
UP = torch.randn(COUNT, INTERMEDIATE, HIDDEN, generator=RANDOM) * HIDDEN**-0.5
DOWN = torch.randn(COUNT, HIDDEN, INTERMEDIATE, generator=RANDOM) * INTERMEDIATE**-0.5
seen: list[dict[str, int]] = []
"""What the kernel was launched with."""


def summed(parts: torch.Tensor, out: torch.Tensor, *_: Any) -> None:
    """A GPU's sum over a token's experts."""
    out.copy_(parts.sum(1))


def experts(kind: type = triton_moe.TritonExperts, **attributes: Any) -> Any:
    """vLLM's experts without the layer that they belong to."""
    made = object.__new__(kind)
    known = {"quant_config": FUSED_MOE_UNQUANTIZED_CONFIG, "quantization_emulation": False, "moe_sum": summed}
    clamp = SimpleNamespace(clamp_limit=None, alpha=1.0, beta=0.0)
    gates = {"gemm1_alpha": 1.0, "gemm1_beta": 0.0, "gemm1_clamp_limit": None, "activation_config": clamp}
    for name, value in (known | gates | attributes).items():
        setattr(made, name, value)
    return made


class Call:
    """One layer's tokens, and what its experts make of them."""

    def __init__(self, tokens: int = TOKENS, layer: Any = None, up: Any = UP, down: Any = DOWN, **options: Any) -> None:
        self.layer, self.up, self.down, self.options = layer or experts(), up, down, options
        random = torch.Generator().manual_seed(tokens)
        self.rows = torch.randn(tokens, up.shape[2], generator=random).to(up.dtype)
        self.ids = torch.stack([torch.randperm(len(up), generator=random)[:TOP_K] for _ in range(tokens)]).int()
        self.weights = torch.rand(tokens, TOP_K, generator=random)

    def run(self) -> torch.Tensor:
        """As vLLM's modular kernel calls them."""
        out = torch.full_like(self.rows, torch.nan)
        room = max(self.up.shape[1], self.up.shape[2]) * TOP_K * len(self.rows)
        self.layer.apply(
            output=out,
            hidden_states=self.rows,
            w1=self.up,
            w2=self.down,
            topk_weights=self.weights,
            topk_ids=self.ids,
            activation=MoEActivation.RELU2_NO_MUL,
            global_num_experts=len(self.up),
            expert_map=self.options.get("expert_map"),
            a1q_scale=None,
            a2_scale=None,
            workspace13=torch.full((room,), torch.nan, dtype=self.rows.dtype),
            workspace2=torch.full((room,), torch.nan, dtype=self.rows.dtype),
            expert_tokens_meta=None,
            apply_router_weight_on_input=False,
        )
        return out

    def wrong(self, got: torch.Tensor) -> float:
        """How far from float64."""
        return float((got - exact(self.rows, Layer(self.up, self.down), self.weights, self.ids)).abs().max())


def said() -> dict[str, Any]:
    """What the switch has counted."""
    return next(one for one in optimized.counts() if one["id"] == ID)


@contextmanager
def on() -> Iterator[None]:
    """The optimization is on."""
    optimized.apply([ID], VERSION)
    try:
        yield
    finally:
        optimized.revert()


def compare(call: Call) -> dict[str, Any]:
    """Without it, with it, and without it again."""
    seen.clear()
    stock = call.run()
    with on():
        got = call.run()
        counted = said()
    after = call.run()
    tiles = [one["BLOCK_SIZE_N"] for one in seen]
    errors = {"error": call.wrong(got), "stocks_error": call.wrong(stock)}
    equal = {"equal": bool(torch.equal(got, stock)), "equal_after": bool(torch.equal(after, stock))}
    return {**counted, **errors, **equal, "tiles": tiles, "apart": float((got - stock).abs().max())}


def left(folder: Path) -> dict[str, Any]:
    """Calls that stay vLLM's."""
    found = {
        "other tokens": compare(Call(TOKENS + 1)),
        "other shape": compare(Call(up=UP[..., :-8].contiguous(), down=DOWN[:, :-8].contiguous())),
        "other type": compare(Call(up=UP.half(), down=DOWN.half())),
        "bias": compare(Call(layer=experts(quant_config=biased()))),
        "subclass": compare(Call(layer=experts(type("Others", (triton_moe.TritonExperts,), {})))),
        "ranks": compare(Call(expert_map=torch.arange(COUNT, dtype=torch.int32))) if alignable() else None,
    }
    with override_config(TILE.config() | {"BLOCK_SIZE_N": 32}):
        found["overridden"] = compare(Call())
    envs.VLLM_BATCH_INVARIANT = True
    found["invariant"] = compare(Call())
    del envs.VLLM_BATCH_INVARIANT
    name = switch.name_of
    switch.name_of = lambda device: "NVIDIA H100"
    found["other GPU"] = compare(Call())
    switch.name_of = name
    switch.tables = lambda: {SHAPE: {TOKENS: Tile(16, 64, 128, 1, 4, 4)}}
    found["the same tile"] = compare(Call())
    switch.tables = lambda: {SHAPE: {TOKENS: TILE}}
    file = folder / get_config_file_name(COUNT, INTERMEDIATE, "float32", None)
    file.write_text(json.dumps({"1": TILE.config() | {"BLOCK_SIZE_N": 32}}))
    os.environ["VLLM_TUNED_CONFIG_FOLDER"] = str(folder)
    get_moe_configs.cache_clear()
    found["configured"] = compare(Call())
    del os.environ["VLLM_TUNED_CONFIG_FOLDER"]
    get_moe_configs.cache_clear()
    return {name: one for name, one in found.items() if one}


def alignable() -> bool:
    """Whether tokens can be sorted by experts here, as vLLM's extension does it on a GPU."""
    return hasattr(torch.ops, "_moe_C") and hasattr(torch.ops._moe_C, "moe_align_block_size")


def biased() -> Any:
    """A configuration of experts with a bias of zeros."""
    return type(FUSED_MOE_UNQUANTIZED_CONFIG).make(
        w1_bias=torch.zeros(COUNT, INTERMEDIATE), w2_bias=torch.zeros(COUNT, HIDDEN)
    )


class Graph:
    """What was captured: the experts' results of that time."""

    replayed: Any = None

    def __init__(self, result: torch.Tensor) -> None:
        self.result = result

    def replay(self) -> None:
        """Give them."""
        Graph.replayed = self.result


def batch_of(tokens: int) -> Any:
    """A batch of as many requests as tokens."""
    return BatchExecutionDescriptor(CUDAGraphMode.FULL, tokens, tokens, 1)


def bare_manager(manager: Any, *_: Any, **__: Any) -> None:
    """All managers' own beginning, without a server."""
    manager.graphs, manager.use_breakable_cg, manager._max_full_descs_to_capture = {}, False, None
    manager.cudagraph_mode, manager.is_last_pp_rank = CUDAGraphMode.FULL_DECODE_ONLY, True
    manager._capture_descs = {CUDAGraphMode.FULL: [batch_of(TOKENS + 1), batch_of(TOKENS)]}


def capturing(calls: dict[int, Call], captured: list[int]) -> Callable[..., None]:
    """What a manager does in the place of capturing: a warm-up and a capture of each batch."""

    def capture(manager: Any, *_: Any, **__: Any) -> None:
        for batch in manager._capture_descs[CUDAGraphMode.FULL]:
            assert batch not in manager.graphs
            calls[batch.num_tokens].run()
            manager.graphs[batch] = Graph(calls[batch.num_tokens].run())
            captured.append(batch.num_tokens)

    return capture


def manager_of(captured: bool = True) -> Any:
    """vLLM's own manager of a target's graphs."""
    made = ModelCudaGraphManager(None, None, CUDAGraphMode.FULL_DECODE_ONLY, 1)
    made.hidden_states = torch.zeros(TOKENS + 1)
    if captured:
        made.capture(*(None,) * 7)
    return made


def replay(manager: Any, tokens: int) -> torch.Tensor:
    """A step."""
    manager.run_fullgraph(batch_of(tokens))
    return Graph.replayed


def graphs(calls: dict[int, Call], captured: list[int]) -> dict[str, Any]:
    """Captured with the switch on, replayed with it on and off; older than the switch; and where another one twins."""
    stock = {tokens: call.run() for tokens, call in calls.items()}
    found: dict[str, Any] = {"turns": []}
    with on():
        manager = manager_of()
        found["captured"], found["counted"] = list(captured), said()
    for turn in range(2):
        with on():
            got = {tokens: replay(manager, tokens) for tokens in calls}
            equal = {tokens: bool(torch.equal(got[tokens], stock[tokens])) for tokens in calls}
            found["turns"].append({"equal": equal, "error": calls[TOKENS].wrong(got[TOKENS]), **said()})
        off = [bool(torch.equal(replay(manager, tokens), stock[tokens])) for tokens in calls]
        found["turns"][turn]["off"] = off
    found["kept"] = [len(kept)]
    del manager
    gc.collect()
    found["kept"].append(len(kept))
    older = manager_of()
    with on():
        found["late"] = {"equal": bool(torch.equal(replay(older, TOKENS), stock[TOKENS])), **said()}
    os.environ[TARGET_TOO] = "1"
    optimized.apply(["split-kv-3d", ID], VERSION)
    both = manager_of()
    found["with split-kv-3d"] = {"equal": bool(torch.equal(replay(both, TOKENS), stock[TOKENS])), **said()}
    optimized.revert()
    del os.environ[TARGET_TOO]
    optimized.apply(["split-kv-3d", ID], VERSION)
    both = manager_of()
    found["beside split-kv-3d"] = {"equal": bool(torch.equal(replay(both, TOKENS), stock[TOKENS])), **said()}
    optimized.revert()
    return found


def failing(call: Call) -> dict[str, Any]:
    """The tile does not run."""
    stock, launch = call.run(), triton_moe.invoke_fused_moe_triton_kernel

    def planted(*args: Any, **kwargs: Any) -> None:
        if any(isinstance(one, dict) and one["BLOCK_SIZE_N"] == TILE.BLOCK_SIZE_N for one in args):
            raise RuntimeError("planted")
        launch(*args, **kwargs)

    triton_moe.invoke_fused_moe_triton_kernel = planted
    try:
        with on():
            equal = [bool(torch.equal(call.run(), stock)) for _ in range(2)]
            manager = manager_of()
            equal.append(bool(torch.equal(replay(manager, TOKENS), stock)))
            return {"equal_each": equal, **said()}
    finally:
        triton_moe.invoke_fused_moe_triton_kernel = launch


def main() -> None:
    """All of it."""
    torch.set_num_threads(1)
    launch = triton_moe.invoke_fused_moe_triton_kernel

    def watched(*args: Any, **kwargs: Any) -> None:
        seen.extend(one for one in args if isinstance(one, dict))
        launch(*args, **kwargs)

    triton_moe.invoke_fused_moe_triton_kernel = watched
    calls, captured = {tokens: Call(tokens) for tokens in (TOKENS, TOKENS + 1)}, list[int]()
    CudaGraphManager.__init__, CudaGraphManager.capture = bare_manager, capturing(calls, captured)
    found = {
        "taken": compare(Call()),
        "left": left(Path.cwd()),
        "graphs": graphs(calls, captured),
        "failing": failing(calls[TOKENS]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
