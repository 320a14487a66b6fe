"""The small steps around an MLA drafter's paged latents, each the chain of PyTorch operations that one kernel replaces.

Symbols: B requests, K1 = K + 1 verified rows, S block tokens, MB pages in a table row, PG tokens in a page, Dl numbers
in a latent; a pool is [pages, 1, 1, PG, Dl], one per layer. Every caller names these functions through this module.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def refresh_block_tables(offsets: Tensor, pool: int, divisor: int, table: Tensor, counts: Tensor) -> None:
    """Decode a pool manager's offsets int32 [pools, B, 2, MB] into table int32 [B, MB] and counts int64 [B].

    Only the plane of keys is read. An entry is a page times `divisor`, or negative where there is none: such entries
    are left out of the counts and become page 0, which belongs to nobody.
    """
    entries = offsets[pool, : len(table), 0].clone()
    counts.copy_((entries >= 0).sum(dim=-1))
    entries.clamp_(min=0)
    table.copy_(torch.div(entries, divisor, rounding_mode="floor"))


def write_context_latents(
    latents: Tensor, start: Tensor, accepted: Tensor, counts: Tensor, table: Tensor, pools: Sequence[Tensor]
) -> None:
    """Write latents [B, K1, layers, Dl] at columns start int64 [B] + 0..K1-1, zeros where accepted [B, K1] is 0.

    Columns past a request's pages go to its last one, where they may overwrite each other.
    """
    size = pools[0].shape[3]
    limit = (counts * size - 1).unsqueeze(1)
    columns = start.unsqueeze(1) + torch.arange(latents.shape[1], device=start.device)
    columns = torch.minimum(columns, limit).clamp(min=0)
    pages, rows = table.gather(1, columns // size).long(), columns % size
    masked = latents * accepted.unsqueeze(-1).unsqueeze(-1)
    for layer, pool in enumerate(pools):
        pool[pages, 0, 0, rows] = masked[:, :, layer]


def advance_context(
    lengths: Tensor, start: Tensor, accepted: Tensor, slots: Tensor, counts: Tensor, limits: tuple[int, int, int]
) -> Tensor:
    """Advance lengths int64 [B + 1] of slots [B] from start [B] by accepted int64 [B].

    Returns the context to advertise, int64 [B], which leaves S positions of a request's pages free, so that its block
    never reaches a page that it does not have. `limits` are the longest context, PG and S. The last slot is the dummy
    and stays empty.
    """
    longest, size, block = limits
    lengths[slots] = (start + accepted).clamp(max=longest)
    lengths[-1].zero_()
    room = (counts * size - block).clamp(min=0)
    return torch.minimum(lengths[slots], room)


def block_cells(context: Tensor, table: Tensor, block: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where the block of S tokens behind context int64 [B] lies: pages and rows int64 [B, S], lengths int32 [B]."""
    columns = context.unsqueeze(1) + torch.arange(block, device=context.device)
    pages = table.gather(1, columns // size).long()
    return pages, columns % size, (context + block).int()


def write_block_latents(pool: Tensor, cells: tuple[Tensor, Tensor], latents: Tensor) -> None:
    """Write one layer's latents [B, S, Dl] of the block to its pages and rows, int64 [B, S] each."""
    pages, rows = cells
    pool[pages, 0, 0, rows] = latents
