"""Norm and rotation of heads in float64."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def in_float64(heads: Any, weight: Any, positions: Any, table: Any, epsilon: float = 1e-6) -> Any:
    """Heads [..., heads, head_dim] normed by weight [head_dim] and rotated at positions [...], not rounded between."""
    first, second = F.rms_norm(heads.double(), weight.shape, weight.double(), epsilon).chunk(2, dim=-1)
    cos, sin = table.double()[positions].unsqueeze(-2).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
