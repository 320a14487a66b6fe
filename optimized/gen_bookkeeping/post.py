"""The launch of the bookkeeping behind the projection, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.launching import launch, power_of_two, why_no_kernels

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Pages:
    """Where contexts lie: table int32 [B, MB] and counts int64 [B] of pages, and by layer pools [pages, 1, 1, PG, Dl].

    addresses int64 [layers], on the device, are those of the pools.
    """

    table: Tensor
    counts: Tensor
    pools: Sequence[Tensor]
    addresses: Tensor

    @classmethod
    def of(cls, table: Tensor, counts: Tensor, pools: Sequence[Tensor]) -> Pages:
        """With the addresses of pools that stay where they are."""
        found = torch.tensor([pool.data_ptr() for pool in pools], dtype=torch.int64)
        return cls(table, counts, pools, found.to(table.device))


@dataclass(frozen=True)
class Contexts:
    """lengths int64 [B + 1] by slot, the last being the dummy; slots and visible int64 [B] by row; `longest` of all."""

    lengths: Tensor
    slots: Tensor
    visible: Tensor
    longest: int


def keep(latents: Tensor, positions: Tensor, accepted: Tensor, pages: Pages, contexts: Contexts, block: int) -> None:
    """Write latents [B, K1, layers, Dl] from positions int64 [B, K1] on and advance; accepted int64 [B] count.

    `block` columns of each request's pages stay free of what is advertised as visible; see `why_not`.
    """
    from optimized.gen_bookkeeping import kernels

    batch, rows, layers, size = latents.shape
    arguments = {
        "latents": latents,
        "positions": positions,
        "accepted": accepted,
        "page_counts": pages.counts,
        "table": pages.table,
        "pools": pages.addresses,
        "slots": contexts.slots,
        "lengths": contexts.lengths,
        "visible": contexts.visible,
        "width": pages.table.shape[1],
        "dummy": len(contexts.lengths) - 1,
        "longest": contexts.longest,
        "ROWS": rows,
        "BLOCK": block,
        "PAGE": pages.pools[0].shape[3],
        "LATENT": size,
        "LANES": power_of_two(size),
    }
    launch(kernels.keep_and_advance, latents.device.type, (batch * rows, layers), arguments)


def why_not(latents: Tensor, positions: Tensor, accepted: Tensor, pages: Pages, contexts: Contexts) -> str | None:
    """Why these are not taken."""
    size = latents.shape[-1:]
    if latents.dim() != 4 or latents.shape[2] != len(pages.pools) or positions.shape != latents.shape[:2]:
        return "the latents have another shape than the pools"
    by_row = (accepted, pages.counts, pages.table, contexts.slots, contexts.visible)
    if any(len(part) != len(latents) for part in by_row):
        return "the pages or the contexts are those of other rows"
    if any(pool.shape[1:] != (1, 1, pages.pools[0].shape[3], *size) for pool in pages.pools):
        return "the pools differ in the shape of their pages"
    if any(pool.dtype != latents.dtype for pool in pages.pools) or latents.dtype not in DTYPES:
        return "latents and pools are not of one dtype of at most 4 bytes"
    whole = (positions, accepted, pages.counts, contexts.lengths, contexts.slots, contexts.visible)
    if any(part.dtype != torch.int64 for part in whole) or pages.table.dtype != torch.int32:
        return "lengths and positions are not int64, or the tables not int32"
    if not all(part.is_contiguous() for part in (latents, pages.table, *pages.pools, *whole)):
        return "the latents, the pools or their tables are not dense"
    return why_no_kernels(latents.device.type)
