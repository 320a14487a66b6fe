"""The launch of the norm and RoPE of latents, with or without their pages, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.launching import EXACT, launch, power_of_two, why_no_kernels
from optimized.reference_cycle.attention import EPSILON

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FEWEST, MOST = 4, 1024
"""Numbers of the normed part, a power of two."""
WARPS = 4
"""As many as PyTorch's own kernel has: the order of the sum depends on it."""

INTERPRETED = 32
"""Tokens of a program that is interpreted, which takes as long for one."""


@dataclass(frozen=True)
class Cells:
    """Where latents go: pages and rows int64 [...] of pool [pages, 1, 1, PG, Dl]."""

    pool: Tensor
    pages: Tensor
    rows: Tensor


def finish(raw: Tensor, positions: Tensor, norms: Tensor, table: Tensor, cells: Cells | None = None) -> Tensor:
    """Latents [..., layers, Dl] of raw ones at positions int64 [...], by norms [layers, latent]; see `why_not`.

    table float32 [positions, Dl - latent] is cos | sin. Where cells are given, the one layer's latents go there too.
    """
    from optimized import latent_kernels

    out, (layers, latent) = torch.empty_like(raw), norms.shape
    rope, device = raw.shape[-1] - latent, raw.device.type
    together = INTERPRETED if device == "cpu" else 1
    arguments = {
        "raw": raw,
        "positions": positions,
        "norms": norms,
        "table": table,
        "out": out,
        "pool": cells.pool if cells else out,
        "pages": cells.pages if cells else positions,
        "rows": cells.rows if cells else positions,
        "EPSILON": EPSILON,
        "LATENT": latent,
        "ROPE": rope,
        "PAIRS": power_of_two(rope // 2),
        "PAGE": cells.pool.shape[3] if cells else 0,
        "tokens": positions.numel(),
        "PUT": cells is not None,
        "TOKENS": together,
        "ROUND_BY_HAND": device == "cpu" and raw.dtype == torch.bfloat16,
    }
    grid = -(-positions.numel() // together), layers
    launch(latent_kernels.norm_and_rotate_latents, device, grid, arguments, num_warps=WARPS, **EXACT)
    return out


def why_not(raw: Tensor, positions: Tensor, norms: Tensor, table: Tensor, cells: Cells | None = None) -> str | None:
    """Why these are not taken."""
    if norms.dim() != 2 or raw.shape[-2:-1] != norms.shape[:1] or positions.shape != raw.shape[:-2]:
        return "the latents have another shape than their norms or positions"
    latent, rope = norms.shape[1], raw.shape[-1] - norms.shape[1]
    if not FEWEST <= latent <= MOST or latent & (latent - 1):
        return f"the normed part is no power of two from {FEWEST} to {MOST}"
    if rope < 2 or rope % 2 or table.shape[1:] != (rope,) or table.dtype != torch.float32:
        return "the rotary table is not that of the latents' pairs, in float32"
    parts = [raw, norms, *([cells.pool] if cells else [])]
    if {part.dtype for part in parts} != {raw.dtype} or raw.dtype not in DTYPES:
        return "latents, norms and pool are not of one dtype of at most 4 bytes"
    if cells and (cells.pages.shape != positions.shape or cells.pool.shape[1:3] != (1, 1) or norms.shape[0] != 1):
        return "the cells are not those of one layer's latents"
    whole = [positions, *([cells.pages, cells.rows] if cells else [])]
    if any(part.dtype != torch.int64 for part in whole):
        return "the positions or the cells are not int64"
    if not all(part.is_contiguous() for part in (*parts, *whole, table)):
        return "the latents, the pool or their tables are not dense"
    return why_no_kernels(raw.device.type)
