"""Multi-head latent attention: one latent per token serves all heads, and attention runs on the latents themselves.

The attention that reads pages is causal. A block that sees all of itself is therefore attended to in two passes, the
causal one and one over the tokens that follow within the block, merged by their log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle.attention import Mlp, rms_norm
from optimized.reference_cycle.geometry import DSparkShape
from optimized.reference_cycle.rope import rotate_pairs
from optimized.reference_cycle.weights import Weights


@dataclass(frozen=True)
class MlaLayer:
    """query [heads (nope + rope), hidden], latent [Dl, hidden], latent_norm [latent], key_up [heads, nope, latent],
    value_up [heads, value, latent], output [hidden, heads value]; Dl = latent + rope."""

    query: Tensor
    latent: Tensor
    latent_norm: Tensor
    key_up: Tensor
    value_up: Tensor
    output: Tensor
    mlp: Mlp
    attention_norm: Tensor
    mlp_norm: Tensor

    @classmethod
    def create(cls, shape: DSparkShape, hidden: int, latent: Tensor, weights: Weights) -> MlaLayer:
        """A layer with random weights; `latent` is its part of the matrix that all layers share."""
        wide = shape.heads * (shape.nope_dim + shape.rope_dim)
        key_up = weights.linear("key_up", shape.heads * shape.nope_dim, shape.latent)
        value_up = weights.linear("value_up", shape.heads * shape.value_dim, shape.latent)
        gate_up = weights.linear("gate_up", 2 * shape.intermediate, hidden)
        return cls(
            query=weights.linear("query", wide, hidden),
            latent=latent,
            latent_norm=weights.norm("latent_norm", shape.latent),
            key_up=key_up.unflatten(0, (shape.heads, shape.nope_dim)),
            value_up=value_up.unflatten(0, (shape.heads, shape.value_dim)),
            output=weights.linear("output", hidden, shape.heads * shape.value_dim),
            mlp=Mlp(gate_up, weights.linear("down", hidden, shape.intermediate)),
            attention_norm=weights.norm("attention_norm", hidden),
            mlp_norm=weights.norm("mlp_norm", hidden),
        )


def norm_and_rotate_latent(raw: Tensor, positions: Tensor, norm: Tensor, table: Tensor) -> Tensor:
    """raw [..., Dl] at positions [...]: the first part normed by `norm` [latent], the last rotated in pairs."""
    latent, turning = raw.split((len(norm), raw.shape[-1] - len(norm)), dim=-1)
    turned = rotate_pairs(turning.unsqueeze(-2), positions, table).squeeze(-2)
    return torch.cat((rms_norm(latent, norm), turned), dim=-1)


def absorbed_queries(x: Tensor, layer: MlaLayer, positions: Tensor, table: Tensor) -> Tensor:
    """Queries [B, S, heads, Dl] that meet latents directly: each head's plain part goes through its key_up."""
    heads, nope, _ = layer.key_up.shape
    plain, turning = F.linear(x, layer.query).unflatten(-1, (heads, -1)).tensor_split((nope,), dim=-1)
    absorbed = torch.einsum("bshn,hnl->bshl", plain, layer.key_up)
    return torch.cat((absorbed, rotate_pairs(turning, positions, table)), dim=-1)


def attend_to_latents(queries: Tensor, latents: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Scores of queries [B, S, heads, Dl] with latents [B, N, Dl] where mask [B, S, N]: shares @ latents, float32
    [B, S, heads, Dl], and the log-sum-exp [B, S, heads, 1]; zeros and -inf where a query sees nothing."""
    scores = torch.einsum("bshd,bnd->bshn", queries.float(), latents.float()) * scale
    scores = scores.masked_fill(~mask.unsqueeze(2), float("-inf"))
    total = scores.logsumexp(dim=-1, keepdim=True)
    shares = (scores - total).exp().nan_to_num(0.0)
    return torch.einsum("bshn,bnd->bshd", shares, latents.float()), total


def attend_to_block(
    queries: Tensor, cached: Tensor, block: Tensor, masks: tuple[Tensor, Tensor], scale: float
) -> Tensor:
    """Attention of a block to its context and to all of itself: [B, S, heads, Dl] float32.

    cached [B, N, Dl] are the gathered pages, block [B, S, Dl] the block's own latents, masks the causal one
    [B, S, N] and the strict upper triangle [1, S, S].
    """
    causal, later = masks
    lower, lower_total = attend_to_latents(queries, cached, causal, scale)
    upper, upper_total = attend_to_latents(queries, block, later, scale)
    share = torch.sigmoid(upper_total - lower_total)
    return torch.lerp(lower, upper, share.nan_to_num(0.0))


def project_out(attended: Tensor, layer: MlaLayer, dtype: torch.dtype) -> Tensor:
    """Attended latents [B, S, heads, Dl] through each head's value_up and the output matrix: [B, S, hidden]."""
    latent = attended[..., : layer.value_up.shape[-1]].to(dtype)
    return F.linear(torch.einsum("bshl,hvl->bshv", latent, layer.value_up).flatten(2), layer.output)
