"""The switch of the block tables' decoding, and which tables the kernel takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from optimized.launching import launch, power_of_two, why_no_kernels
from optimized.optimization import Counts, guarded
from spantrace.patching import Function

TILE = 1024
"""Entries that a program decodes at a time."""


def refresh(offsets: Tensor, pool: int, divisor: int, table: Tensor, counts: Tensor) -> None:
    """Decode offsets int32 [pools, B, 2, MB] of `pool` into table int32 [B, MB] and counts int64 [B]; see `why_not`."""
    from optimized.block_table_refresh import kernels

    arguments = {
        "offsets": offsets,
        "table": table,
        "counts": counts,
        "first": pool * offsets.stride(0),
        "row_stride": offsets.stride(1),
        "table_stride": table.stride(0),
        "width": table.shape[1],
        "divisor": divisor,
        "TILE": min(TILE, power_of_two(table.shape[1])),
    }
    launch(kernels.decode_offsets, offsets.device.type, (len(table),), arguments)


def why_not(offsets: Tensor, pool: int, divisor: int, table: Tensor, counts: Tensor) -> str | None:
    """Why these tables are not taken."""
    if offsets.dim() != 4 or table.dim() != 2 or offsets.shape[3] != table.shape[1]:
        return "the tables are not as wide as the offsets"
    if not (0 <= pool < offsets.shape[0] and 0 < len(table) <= offsets.shape[1] and len(counts) == len(table)):
        return "the tables have other rows than the offsets"
    if (offsets.dtype, table.dtype, counts.dtype) != (torch.int32, torch.int32, torch.int64):
        return "the tables are not int32, or their counts not int64"
    if offsets.stride(-1) != 1 or table.stride(-1) != 1 or counts.stride(-1) != 1:
        return "a row's numbers do not lie side by side"
    if divisor < 1:
        return "the divisor is less than 1"
    return why_no_kernels(offsets.device.type)


class OneDecoding:
    """The switch; a hit is a cycle's tables decoded."""

    def __init__(self) -> None:
        self.counts = Counts()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The one seam."""
        return {"refresh_block_tables": partial(guarded, fast=refresh, why_not=why_not, counts=self.counts)}

    def allocated(self) -> int:
        """It holds nothing."""
        return 0

    def close(self) -> None:
        """It holds nothing."""
