"""Rotary embedding: one float32 table of cosines and sines per model, which every path reads, queries and context."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optimized.reference_cycle.geometry import Rope


def frequencies(rope: Rope, dim: int) -> Tensor:
    """Angle per position of each rotated pair, float32 [dim // 2]; YaRN stretches the slow ones by its factor."""
    fast = rope.theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if rope.factor == 1.0:
        return fast
    low, high = (_pair_that_turns(turns, rope, dim) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    stretched = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return fast / rope.factor * stretched + fast * (1 - stretched)


def _pair_that_turns(turns: float, rope: Rope, dim: int) -> float:
    """The index, with a fraction, of the pair that turns so many times within the original context."""
    return dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def yarn_scale(rope: Rope) -> float:
    """YaRN's correction of the attention's temperature (mscale); 1 for plain RoPE."""
    return 1.0 if rope.factor <= 1.0 else 0.1 * math.log(rope.factor) + 1.0


def rope_table(rope: Rope, head_dim: int, positions: int, device: str, scale: float = 1.0) -> Tensor:
    """cos | sin by position, times `scale`: float32 [positions, rotary], rotary being the part of a head that turns."""
    rotary = int(head_dim * rope.partial) // 2 * 2
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies(rope, rotary))
    return (torch.cat((angles.cos(), angles.sin()), dim=-1) * scale).to(device)


def temporal(positions: Tensor) -> Tensor:
    """One position a token, int64 [N], of what a runner gives: any shape of N, or a multimodal one's rows [3, 1, N].

    Those rows are time, height and width; a drafter turns by time alone.
    """
    return positions[0, 0] if positions.dim() == 3 else positions.flatten()


def rotate_halves(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """Turn pairs (i, i + rotary / 2) of x [..., heads, head_dim] at positions [...] in float32 (the NeoX layout)."""
    rotary = table.shape[-1]
    cos, sin = table[positions].unsqueeze(-2).chunk(2, dim=-1)
    first, second = x[..., :rotary].float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned.to(x.dtype), x[..., rotary:]), dim=-1)


def rotate_pairs(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """Turn adjacent pairs (2i, 2i + 1) of x [..., heads, rotary] at positions [...] in complex64 (MLA's layout)."""
    cos, sin = table[positions].unsqueeze(-2).chunk(2, dim=-1)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.complex(cos.contiguous(), sin.contiguous())
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)
