"""The orders in which PyTorch and vLLM norm a head on a GPU, for kernels that follow them, and both written out.

F.rms_norm's lanes add up four neighbouring squares each, 32 lanes by halves and then the warps; the weight is
multiplied last. The lanes of vLLM's `rms_norm` add up the neighbours in 16 bytes each, and then pairs of lanes, of
pairs and so on, as CUB's block reduction does; the weight is multiplied last, too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.launching import EXACT, power_of_two

WIDTHS = (8, 16, 32, 64, 128, 256)
"""Numbers of a head that the cases of these kernels cover."""
MOST_INTERPRETED = 1024
"""Heads that one program takes on a CPU; on a GPU it is one, and one warp."""
OPTIONS = {"num_warps": 1, **EXACT}


def sizes(x: Tensor, width: int, rows: int) -> dict[str, Any]:
    """What a kernel of `rows` heads of x is compiled for: lanes, warps, heads of a program, and who rounds."""
    on_cpu = x.device.type == "cpu"
    return {
        "HEAD_DIM": width,
        "LANES": min(width // 4, 32),
        "WARPS": max(width // 128, 1),
        "ROWS": min(power_of_two(rows), MOST_INTERPRETED) if on_cpu else 1,
        "ROUND_BY_HAND": on_cpu and x.dtype == torch.bfloat16,
    }


def sizes_in_pairs(x: Tensor, width: int, rows: int) -> dict[str, Any]:
    """What a kernel in vLLM's order is compiled for: numbers of a lane, lanes, heads of a program, and who rounds."""
    shape, vector = sizes(x, width, rows), 16 // x.element_size()
    return {
        "HEAD_DIM": width,
        "VECTOR": vector,
        "LANES": width // vector,
        "ROWS": shape["ROWS"],
        "ROUND_BY_HAND": shape["ROUND_BY_HAND"],
    }


def why_not_proven(dtype: torch.dtype, width: int, device: str) -> str | None:
    """Why the order is not known to hold for such heads."""
    proven = {torch.float16, torch.bfloat16} | ({torch.float32} if device == "cpu" else set())
    if width not in WIDTHS:
        return f"its order of arithmetic is not proven for heads of {width}"
    if dtype not in proven:
        return f"its order of arithmetic is not proven in {str(dtype).removeprefix('torch.')}"
    return None


def rms_norm_in_order(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """F.rms_norm of x [..., n] by weight [n], in that order on any device."""
    wide = x.float()
    return (weight.float() * (inverse_rms_in_order(wide, epsilon) * wide)).to(x.dtype)


def inverse_rms_in_order(wide: Tensor, epsilon: float) -> Tensor:
    """One over the root of the mean square of float32 [..., n], n a power of two from 4 to 512: [..., 1]."""
    lanes = F.pad(wide, (0, -wide.shape[-1] % 128)).unflatten(-1, (-1, 32, 4))
    total = torch.zeros_like(lanes[..., 0])
    for part in lanes.unbind(-1):
        total = (part.double() * part.double() + total.double()).float()
    mean = _by_halves(_by_halves(total).squeeze(-1)) * (1.0 / wide.shape[-1])
    return (mean + epsilon).rsqrt()


def rms_norm_in_pairs(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """vLLM's `rms_norm` of x [..., n] by weight [n] or [..., n], n a power of two, in that order on any device."""
    wide = x.float()
    lanes = wide.unflatten(-1, (-1, 16 // x.element_size()))
    total = torch.zeros_like(lanes[..., 0])
    for part in lanes.unbind(-1):
        total = (part.double() * part.double() + total.double()).float()
    while total.shape[-1] > 1:
        total = total[..., 0::2] + total[..., 1::2]
    inverse = (total * (1.0 / x.shape[-1]) + epsilon).rsqrt()
    return (weight.float() * (inverse * wide)).to(x.dtype)


def _by_halves(parts: Tensor) -> Tensor:
    """The sum over a last dimension of a power of two, which stays as 1."""
    while parts.shape[-1] > 1:
        low, high = parts.chunk(2, dim=-1)
        parts = low + high
    return parts
