"""The switch of the block's cells, lengths and mask, and what the kernel takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from optimized.launching import launch, power_of_two, why_no_kernels
from optimized.optimization import Counts, guarded
from optimized.reference_cycle.dspark import DSparkDrafter
from spantrace.patching import Function

TILE = 4096
"""Columns of the mask that a program writes."""


@dataclass(frozen=True)
class Blocks:
    """Where blocks of S tokens lie and what they see.

    pages and rows int64 [B, S], lengths int32 [B] with the block's own tokens, mask bool [B, S, columns].
    """

    pages: Tensor
    rows: Tensor
    lengths: Tensor
    mask: Tensor

    @classmethod
    def of(cls, drafter: DSparkDrafter) -> Blocks:
        """The drafter's buffers."""
        return cls(drafter.block_pages, drafter.block_rows, drafter.block_lengths, drafter.causal_mask)


def place(context: Tensor, table: Tensor, page: int, out: Blocks) -> None:
    """Fill `out` for blocks behind context int64 [B], in pages of `page` tokens by table int32 [B, MB]; see `why_not`.

    The whole block must lie within the table's row.
    """
    from optimized.mla_block_fixup import kernels

    (batch, block), columns = out.pages.shape, out.mask.shape[2]
    tile = min(TILE, power_of_two(columns))
    arguments = {
        "context": context,
        "table": table,
        "pages": out.pages,
        "rows": out.rows,
        "lengths": out.lengths,
        "mask": out.mask,
        "width": table.shape[1],
        "columns": columns,
        "BLOCK": block,
        "PAGE": page,
        "TILE": tile,
    }
    launch(kernels.place_block, context.device.type, (batch * block, -(-columns // tile)), arguments)


def why_not(context: Tensor, table: Tensor, out: Blocks) -> str | None:
    """Why these are not taken."""
    batch, block = out.pages.shape
    shapes = (out.rows.shape, out.mask.shape[:2], (len(out.lengths), block), (len(context), block), (len(table), block))
    if any(tuple(shape) != (batch, block) for shape in shapes):
        return "the buffers have other shapes than the blocks"
    if {context.dtype, out.pages.dtype, out.rows.dtype} != {torch.int64}:
        return "the contexts or the cells are not int64"
    if {table.dtype, out.lengths.dtype} != {torch.int32} or out.mask.dtype != torch.bool:
        return "the tables or the lengths are not int32, or the mask not boolean"
    if not all(part.is_contiguous() for part in (context, table, out.pages, out.rows, out.lengths, out.mask)):
        return "the buffers are not dense"
    return why_no_kernels(context.device.type)


class OneFixup:
    """The switch; a hit is a cycle's blocks placed."""

    def __init__(self) -> None:
        self.counts = Counts()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The one seam."""
        wrap = partial(guarded, fast=metadata, why_not=_why_not, counts=self.counts)
        return {"DSparkDrafter.metadata": wrap}

    def allocated(self) -> int:
        """It holds nothing."""
        return 0

    def close(self) -> None:
        """It holds nothing."""


def metadata(drafter: DSparkDrafter) -> None:
    """Place the drafter's block, as its own method would."""
    place(drafter.visible_context, drafter.table, drafter.settings.page_size, Blocks.of(drafter))


def _why_not(drafter: DSparkDrafter) -> str | None:
    return why_not(drafter.visible_context, drafter.table, Blocks.of(drafter))
