"""A block's attention where the context lies, by slot: its own keys and values are written first, or by the kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.launching import EXACT, launch, power_of_two

LOG2_E = 1.4426950408889634
LEAST_ROWS, MOST_ROWS = 16, 64
TILE_BYTES = 16384
"""Of one tile of keys."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Block = tuple[Tensor, Tensor, Tensor]
"""Queries [B, S, heads, head_dim], keys and values [B, S, kv_heads, head_dim]."""
Pools = tuple[Tensor, Tensor]
"""Keys and values of one layer, [slots, columns, kv_heads, head_dim]."""
Cells = tuple[Tensor, Tensor]
"""slots int64 [B], and columns int64 [B, S] of each block, which follow each other."""


@dataclass(frozen=True)
class Sight:
    """What a token of the block sees: no further back than `window` positions, all where it is 0, and nothing later
    where `causal`; `sinks` float32 [heads] are logits that take a share and give nothing."""

    window: int = 0
    causal: bool = False
    sinks: Tensor | None = None


def append_outside(block: Block, pools: Pools, cells: Cells, sight: Sight) -> Tensor:
    """Write the block's keys and values to the pools, then attend to both in one launch: [B, S, heads, head_dim]."""
    slots, columns = cells
    # PyTorch would make the indices equally dense for each of the two copies.
    places = slots.unsqueeze(1).expand_as(columns).contiguous(), columns
    for pool, own in zip(pools, block[1:], strict=True):
        pool[places] = own
    return attend(block, pools, cells, sight, append=False)


def append_inside(block: Block, pools: Pools, cells: Cells, sight: Sight) -> Tensor:
    """The same by a kernel that writes the keys and values itself."""
    return attend(block, pools, cells, sight, append=True)


def attend(block: Block, pools: Pools, cells: Cells, sight: Sight, append: bool) -> Tensor:
    """The block's attention to its slot's columns up to its own, which are in the pools, or get there by `append`."""
    from optimized.external_kv_append import kernels

    queries, keys, values = block
    if queries.dtype == torch.bfloat16 and not queries.is_cuda:
        return _widened(block, pools, cells, sight, append)
    requests, tokens, heads, head_dim = queries.shape
    key_heads, width = keys.shape[2], max(power_of_two(head_dim), 16)
    rows = min(max(power_of_two(tokens * heads // key_heads), LEAST_ROWS), MOST_ROWS)
    row_blocks = -(-tokens * heads // key_heads // rows)
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    arguments = {
        "query": queries,
        "own_keys": keys,
        "own_values": values,
        "keys": pools[0],
        "values": pools[1],
        "slots": cells[0],
        "columns": cells[1],
        "sinks": sight.sinks,
        "out": out,
        "scale": head_dim**-0.5 * LOG2_E,
        **_strides("query", queries, "token"),
        **_strides("key", keys, "token"),
        **_strides("value", values, "token"),
        **_strides("pool", pools[0], "column"),
        "BLOCK": tokens,
        "GROUP": heads // key_heads,
        "KEY_HEADS": key_heads,
        "HEAD_DIM": head_dim,
        "WIDTH": width,
        "ROWS": rows,
        "ROW_BLOCKS": row_blocks,
        "TILE": min(max(TILE_BYTES // (width * queries.element_size()), 16), 64),
        "WINDOW": sight.window,
        "CAUSAL": sight.causal,
        "HAS_SINKS": sight.sinks is not None,
        "APPEND": append,
    }
    launch(kernels.attend_by_slot, queries.device.type, (requests, key_heads * row_blocks), arguments, **EXACT)
    return out


def why_not(block: Block, pools: Pools, cells: Cells) -> str | None:
    """Why this block is attended to otherwise."""
    queries = block[0]
    if {part.dtype for part in (*block, *pools)} != {queries.dtype} or queries.dtype not in DTYPES:
        return "queries, keys and values are not all in one of float32, float16 and bfloat16"
    if queries.shape[2] % block[1].shape[2]:
        return "the heads cannot be shared out over the key heads"
    if any(part.stride(-1) != 1 for part in (*block, *pools)):
        return "a head's numbers do not lie side by side"
    if pools[0].stride() != pools[1].stride():
        return "keys and values lie differently"
    if not all(part.dtype == torch.int64 and part.is_contiguous() for part in cells):
        return "the slots or the columns are not dense int64"
    return None


def _widened(block: Block, pools: Pools, cells: Cells, sight: Sight, append: bool) -> Tensor:
    """In float32: Triton's interpreter multiplies the bits of bfloat16 as whole numbers."""
    queries, keys, values = (part.float() for part in block)
    wide = pools[0].float(), pools[1].float()
    seen = attend((queries, keys, values), wide, cells, sight, append)
    if append:
        for pool, written in zip(pools, wide, strict=True):
            pool.copy_(written)
    return seen.to(block[0].dtype)


def _strides(name: str, part: Tensor, second: str) -> dict[str, int]:
    return {f"{name}_{axis}": part.stride(index) for index, axis in enumerate(("row", second, "head"))}
