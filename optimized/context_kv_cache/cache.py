"""Keys and values of every layer by slot, made once per token: one stacked projection, one scatter, no gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle import attention
from optimized.reference_cycle.attention import EPSILON
from optimized.reference_cycle.dflash import DFlashLayer
from optimized.reference_cycle.rope import rotate_halves


@dataclass
class Cache:
    """keys and values [layers, B + 1, max_ctx + S, kv_heads, head_dim]; the last slot is the dummy, never attended.

    weight [layers * 2 * kv_heads * head_dim, hidden] stacks each layer's key and value rows, norms [layers, head_dim]
    their key norms. rows int64 [B + 1] gives each slot's batch row; `width` is how many columns any request can see.
    """

    keys: Tensor
    values: Tensor
    weight: Tensor
    norms: Tensor
    table: Tensor
    rows: Tensor
    width: int

    @classmethod
    def create(cls, layers: Sequence[DFlashLayer], slots: int, columns: int) -> Cache:
        """An empty cache of `columns` tokens for `slots` slots, the dummy included; see `why_not`."""
        norms, width = layers[0].norms, len(layers[0].norms.key)
        size = norms.kv_heads * width
        weight = torch.cat([layer.qkv[-2 * size :] for layer in layers])
        keys = weight.new_zeros(len(layers), slots, columns, norms.kv_heads, width)
        rows = torch.zeros(slots, dtype=torch.int64, device=weight.device)
        stacked = torch.stack([layer.norms.key for layer in layers])
        return cls(keys, torch.zeros_like(keys), weight, stacked, norms.table, rows, columns)

    def nbytes(self) -> int:
        """Bytes held; the rotary table is the drafter's own."""
        return sum(part.nbytes for part in (self.keys, self.values, self.weight, self.norms, self.rows))

    def project(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [..., layers, kv_heads, head_dim] of states [..., hidden] at positions int64 [...]."""
        layers, _, _, heads, width = self.keys.shape
        keys, values = F.linear(states, self.weight).unflatten(-1, (layers, 2, heads, width)).unbind(-3)
        wide = keys.float() if keys.element_size() < 4 else keys
        normed = (F.rms_norm(wide, (width,), None, EPSILON) * self.norms.unsqueeze(1)).to(keys.dtype)
        turned = rotate_halves(normed.flatten(-3, -2), positions, self.table)
        return turned.unflatten(-2, (layers, heads)), values

    def write(self, slots: Tensor, columns: Tensor, states: Tensor, positions: Tensor) -> None:
        """Put the keys and values of states [..., hidden] at `positions` into `columns` of `slots`, int64 [...]."""
        keys, values = self.project(states, positions)
        self.keys[:, slots, columns] = keys.movedim(-3, 0)
        self.values[:, slots, columns] = values.movedim(-3, 0)

    def seat(self, slots: Tensor, context: Tensor, block: int) -> None:
        """Note the batch row of each slot int64 [B], and on a CPU how far the longest context int64 [B] reaches.

        On a GPU that would be to wait for it, and a graph's shapes stay: there every column is attended to.
        """
        self.rows[slots] = torch.arange(len(slots), device=slots.device)
        if not context.is_cuda:
            self.width = int(context.max()) + block

    def attend(
        self,
        layer: DFlashLayer,
        index: int,
        block: tuple[Tensor, Tensor, Tensor],
        cells: tuple[Tensor, Tensor],
        mask: Tensor,
    ) -> Tensor:
        """Attention [B, S, heads, head_dim] of the block's queries, keys and values [B, S, heads, head_dim].

        The keys and values go to `cells`, slots int64 [B] and columns int64 [B, S]. Queries and mask [B, S, columns]
        are brought into the order of the slots, so that the cache is read where it lies; a row in the dummy slot gets
        some other row's answer.
        """
        queries, keys, values = block
        slots, columns = cells
        self.keys[index][slots.unsqueeze(1), columns] = keys
        self.values[index][slots.unsqueeze(1), columns] = values
        seats, real = self.rows[:-1], len(self.rows) - 1
        seen = attention.attend(
            queries[seats],
            self.keys[index, :real, : self.width],
            self.values[index, :real, : self.width],
            mask[:, :, : self.width][seats],
            layer.sinks,
        )
        return seen[slots.clamp(max=real - 1)]


def why_not(layers: Sequence[DFlashLayer], columns: int) -> str | None:
    """Why these layers cannot share one cache of `columns` columns."""
    first = layers[0]
    for layer in layers:
        if (layer.norms.heads, layer.norms.kv_heads) != (first.norms.heads, first.norms.kv_heads):
            return "the drafter's layers differ in their heads"
        if layer.qkv.shape != first.qkv.shape or layer.norms.key.shape != first.norms.key.shape:
            return "the drafter's layers differ in the shape of their weights"
        if layer.norms.table is not first.norms.table:
            return "the drafter's layers do not share a rotary table"
        if not layer.qkv.is_floating_point() or layer.qkv.element_size() < 2:
            return "the drafter's weights are quantized"
    if len(first.norms.table) < columns:
        return "the rotary table ends before the longest context and its block"
    return None
