"""The launch that takes raw projections to the context's buffers, and what it does not take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from optimized import launching
from optimized.head_order import OPTIONS, sizes, why_not_proven
from optimized.objections import first_objection
from optimized.reference_cycle.dflash import DFlashLayer, epsilons

STOCK_ROUNDING = 1
"""The norm is rounded once, behind its weight, as F.rms_norm does; TensorRT-LLM's stacked norm rounds before it too."""


def place(
    raw: Tensor,
    positions: Tensor,
    norms: Tensor,
    table: Tensor,
    into: tuple[Tensor, Tensor],
    epsilon: float,
    cells: tuple[Tensor, Tensor] | None = None,
    rounding: int = STOCK_ROUNDING,
) -> None:
    """What `attention.place_context` does with the same arguments, which `why_not` has no reason against.

    The leading dimensions of raw are one or two, and two where no cells are given.
    """
    from optimized.context_norm_rope import kernels

    (layers, _, heads, width), (keys, values) = raw.shape[-4:], into
    rows = positions.numel() * layers * heads
    shape = sizes(raw, width, rows)
    slots, columns = (positions, positions) if cells is None else cells
    arguments = {
        "raw": raw,
        "positions": positions.contiguous(),
        "norms": norms,
        "table": table,
        "keys": keys,
        "values": values,
        "cell_rows": slots,
        "cell_columns": columns.contiguous(),
        "rows": rows,
        "columns": positions.shape[-1],
        "layer_stride": keys.stride(0),
        "row_stride": keys.stride(1),
        "column_stride": keys.stride(2),
        "whose_row": slots.stride(0) if slots.ndim > 1 else 0,
        "whose_step": slots.stride(-1),
        "epsilon": epsilon,
        "LAYERS": layers,
        "HEADS": heads,
        "ROUNDING": rounding,
        "CELLS": cells is not None,
        **shape,
    }
    grid = (-(-rows // shape["ROWS"]),)
    launching.launch(kernels.norm_rotate_and_place, raw.device.type, grid, arguments, **OPTIONS)


def why_not(
    raw: Tensor,
    positions: Tensor,
    norms: Tensor,
    table: Tensor,
    into: tuple[Tensor, Tensor],
    epsilon: float,
    cells: tuple[Tensor, Tensor] | None = None,
) -> str | None:
    """Why these projections are not taken."""
    (keys, values), width = into, raw.shape[-1]
    whole_heads = keys.stride()[-2:] == (width, 1)
    objections = {
        "only a part of each head rotates": table.shape[1] != width,
        "norms or buffers are of another dtype than the projections": {norms.dtype, keys.dtype, values.dtype}
        != {raw.dtype},
        "its rotary table is not dense float32": table.dtype != torch.float32 or not table.is_contiguous(),
        "the projections or the norms are not dense": not (raw.is_contiguous() and norms.is_contiguous()),
        "the buffers are not laid out alike, heads side by side": keys.stride() != values.stride() or not whole_heads,
        "its tokens do not come in rows": positions.ndim > 2 or (cells is None and positions.ndim < 2),
        "its tokens have no position or no cell each, of int64": any(
            (part.shape, part.dtype) != (raw.shape[:-4], torch.int64) for part in (positions, *(cells or ()))
        ),
    }
    device, objection = raw.device.type, first_objection(objections)
    return launching.why_no_kernels(device) or objection or why_not_proven(raw.dtype, width, device)


def why_not_together(layers: Sequence[DFlashLayer]) -> str | None:
    """Why these layers cannot be normed in one launch, which knows one epsilon."""
    seen = epsilons(layers)
    return f"the drafter's layers norm with different epsilons: {', '.join(map(str, seen))}" if len(seen) > 1 else None
