"""The launch that takes raw projections to caches of pages, or to a tensor of its own, in vLLM's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from optimized import launching
from optimized.head_order import OPTIONS, sizes_in_pairs, why_not_proven
from optimized.objections import first_objection


@dataclass(frozen=True)
class Norms:
    """How keys are normed and rotated: weights [layers, head_dim], cos | sin by position [positions, head_dim]."""

    weights: Tensor
    table: Tensor
    epsilon: float


@dataclass(frozen=True)
class Pages:
    """The first layer's keys and values [pages, page, heads, head_dim], and how much further the others' lie.

    `bases` int64 [2, layers] counts elements, of the caches and of the slots.
    """

    keys: Tensor
    values: Tensor
    bases: Tensor

    @classmethod
    def of(cls, keys: Sequence[Tensor], values: Sequence[Tensor], slots: Sequence[Tensor]) -> Pages:
        """Those of all layers' caches and slots, which `why_not_pages` has no reason against."""
        bases = torch.tensor([distances(keys), distances(slots)], dtype=torch.int64, device=keys[0].device)
        return cls(keys[0], values[0], bases)


def distances(parts: Sequence[Tensor]) -> tuple[int, ...]:
    """How many elements after the first one's each one's memory begins."""
    first, size = parts[0].data_ptr(), parts[0].element_size()
    return tuple((part.data_ptr() - first) // size for part in parts)


def to_pages(raw: Tensor, positions: Tensor, norms: Norms, pages: Pages, slots: Tensor) -> None:
    """Keys and values of raw [tokens, layers, 2, heads, head_dim] into the pages, at slots int64 [tokens].

    Positions are int64 [tokens]; the slots are the first layer's.
    """
    page, (page_stride, slot_stride, head_stride, _) = pages.keys.shape[1], pages.keys.stride()
    strides = {"page_stride": page_stride, "slot_stride": slot_stride, "head_stride": head_stride, "layer_stride": 0}
    where = {"keys": pages.keys, "values": pages.values, "slots": slots, "bases": pages.bases}
    _launch(raw, positions, norms, {**where, **strides, "PAGE": page})


def apart(raw: Tensor, positions: Tensor, norms: Norms) -> Tensor:
    """The same keys and values as a new tensor, [2, layers, tokens, heads, head_dim]."""
    tokens, layers, _, heads, width = raw.shape
    made = raw.new_empty(2, layers, tokens, heads, width)
    strides = {"page_stride": 0, "slot_stride": heads * width, "head_stride": width, "layer_stride": made.stride(1)}
    where = {"keys": made[0], "values": made[1], "slots": positions, "bases": positions}
    _launch(raw, positions, norms, {**where, **strides, "PAGE": 0})
    return made


def _launch(raw: Tensor, positions: Tensor, norms: Norms, where: dict[str, Tensor | int]) -> None:
    from optimized.context_norm_rope import cache_kernels

    tokens, layers, _, heads, width = raw.shape
    rows = tokens * layers * heads
    shape = sizes_in_pairs(raw, width, rows)
    arguments = {
        "raw": raw,
        "positions": positions,
        "norms": norms.weights,
        "table": norms.table,
        "rows": rows,
        "epsilon": norms.epsilon,
        "LAYERS": layers,
        "HEADS": heads,
        **where,
        **shape,
    }
    grid = (-(-rows // shape["ROWS"]),)
    launching.launch(cache_kernels.norm_rotate_and_cache, raw.device.type, grid, arguments, **OPTIONS)


def why_not(weight: Tensor, width: int, norms: Norms) -> str | None:
    """Why what is projected by that weight, heads of that width, is not taken."""
    objections = {
        "only a part of each head rotates": norms.table.shape[1] != width,
        "norms or rotary table are of another dtype than the projections": {norms.weights.dtype, norms.table.dtype}
        != {weight.dtype},
        "norms or rotary table are not dense": not (norms.weights.is_contiguous() and norms.table.is_contiguous()),
    }
    device, objection = weight.device.type, first_objection(objections)
    return launching.why_no_kernels(device) or objection or why_not_proven(weight.dtype, width, device)


def why_not_pages(
    keys: Sequence[Tensor], values: Sequence[Tensor], slots: Sequence[Tensor], dtype: torch.dtype
) -> str | None:
    """Why these layers' caches are not filled by one launch with numbers of that dtype."""
    layouts = {(part.shape, part.stride(), part.device) for part in (*keys, *values)}
    objections = {
        "the layers' caches are not laid out alike": len(layouts) > 1 or keys[0].ndim != 4,
        "the caches hold numbers of another dtype": {part.dtype for part in (*keys, *values)} != {dtype},
        "a head's numbers do not lie side by side": any(part.stride(-1) != 1 for part in keys),
        "values lie otherwise than keys": distances(keys) != distances(values),
        "slots are not int64, one a token": any(
            (part.dtype, part.ndim, part.stride(-1)) != (torch.int64, 1, 1) or len(part) != len(slots[0])
            for part in slots
        ),
    }
    return first_objection(objections)
