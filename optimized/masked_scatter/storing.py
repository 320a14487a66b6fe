"""The launch that stores a cycle's verified rows, and what it does not take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized import launching
from optimized.objections import first_objection

WIDEST = 1024
"""Numbers of a row that one program takes."""
MOST_INTERPRETED = 64
"""Rows that one program takes on a CPU; on a GPU it is one."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Memory:
    """What is kept by slot: states [slots, longest, hidden] and their positions int64 [slots, longest]."""

    states: Tensor
    positions: Tensor


def store(states: Tensor, positions: Tensor, counts: Tensor, slots: Tensor, kept: Memory) -> None:
    """Keep states [B, K + 1, hidden] at positions int64 [B, K + 1]: see the kernel; `why_not` must be silent."""
    from optimized.masked_scatter import kernels

    batch, verified, hidden = states.shape
    rows, tile = batch * verified, min(launching.power_of_two(hidden), WIDEST)
    block = 1 if states.device.type != "cpu" else min(launching.power_of_two(rows), MOST_INTERPRETED)
    arguments = {
        "states": states,
        "positions": positions,
        "counts": counts,
        "slots": slots,
        "kept": kept.states,
        "kept_positions": kept.positions,
        "rows": rows,
        "longest": kept.states.shape[1],
        "VERIFIED": verified,
        "HIDDEN": hidden,
        "TILE": tile,
        "ROWS": block,
    }
    grid = -(-rows // block), -(-hidden // tile)
    launching.launch(kernels.multiply_and_store, states.device.type, grid, arguments)


def why_not(states: Tensor, positions: Tensor, counts: Tensor, slots: Tensor, kept: Memory) -> str | None:
    """Why these rows are not taken."""
    tensors = states, positions, counts, slots, kept.states, kept.positions
    objections = {
        f"no mask is multiplied in {str(states.dtype).removeprefix('torch.')}": states.dtype not in DTYPES,
        "the states are kept in another dtype": kept.states.dtype != states.dtype,
        "positions, counts or slots are not int64": {part.dtype for part in (positions, counts, slots, kept.positions)}
        != {torch.int64},
        "the rows do not lie side by side": not all(part.is_contiguous() for part in tensors),
    }
    objection = first_objection(objections)
    return launching.why_no_kernels(states.device.type) or objection
