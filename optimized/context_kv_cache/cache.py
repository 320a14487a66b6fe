"""Keys and values of every layer by slot, made once per token: one stacked projection, one scatter, no gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle import attention
from optimized.reference_cycle.dflash import DFlashDrafter, DFlashLayer, epsilons


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
    epsilon: float

    @classmethod
    def create(cls, layers: Sequence[DFlashLayer], slots: int, columns: int) -> Cache:
        """An empty cache of `columns` tokens for `slots` slots, the dummy included; see `why_not`."""
        norms, width = layers[0].norms, len(layers[0].norms.key)
        size = norms.kv_heads * width
        weight = torch.cat([layer.qkv[-2 * size :] for layer in layers])
        keys = weight.new_zeros(len(layers), slots, columns, norms.kv_heads, width)
        rows = torch.zeros(slots, dtype=torch.int64, device=weight.device)
        stacked = torch.stack([layer.norms.key for layer in layers])
        return cls(keys, torch.zeros_like(keys), weight, stacked, norms.table, rows, columns, norms.epsilon)

    def nbytes(self) -> int:
        """Bytes held; the rotary table is the drafter's own."""
        return sum(part.nbytes for part in (self.keys, self.values, self.weight, self.norms, self.rows))

    def write(self, slots: Tensor, columns: Tensor, states: Tensor, positions: Tensor) -> None:
        """Put the keys and values of states [..., hidden] at `positions` into `columns` of `slots`, int64 [...]."""
        layers, _, _, heads, width = self.keys.shape
        raw = F.linear(states, self.weight).unflatten(-1, (layers, 2, heads, width))
        into, cells = (self.keys, self.values), (slots, columns)
        attention.place_context(raw, positions, self.norms, self.table, into, self.epsilon, cells)

    def seat(self, slots: Tensor, context: Tensor, block: int) -> None:
        """Note the batch row of each slot int64 [B], and on a CPU how far the longest context int64 [B] reaches.

        On a GPU that would be to wait for it, and a graph's shapes stay: there every column is attended to.
        """
        self.rows[slots] = torch.arange(len(slots), device=slots.device)
        if not context.is_cuda:
            self.width = int(context.max()) + block

    def attend(
        self,
        drafter: DFlashDrafter,
        index: int,
        block: tuple[Tensor, Tensor, Tensor],
        cells: tuple[Tensor, Tensor],
        mask: Tensor,
    ) -> Tensor:
        """Attention [B, S, heads, head_dim] of the block's queries, keys and values [B, S, heads, head_dim].

        The keys and values go to `cells`, slots int64 [B] and columns int64 [B, S], and the cache is read where it
        lies. Mask [B, S, columns] says what is seen; a row in the dummy slot gets some other row's answer.
        """
        pools = self.keys[index], self.values[index]
        return drafter.attend_to(index, block, pools, cells, mask[:, :, : self.width], self.rows[:-1])


def why_not(layers: Sequence[DFlashLayer], columns: int) -> str | None:
    """Why these layers cannot share one cache of `columns` columns."""
    first = layers[0]
    for layer in layers:
        if (layer.norms.heads, layer.norms.kv_heads) != (first.norms.heads, first.norms.kv_heads):
            return "the drafter's layers differ in their heads"
        if layer.qkv.shape != first.qkv.shape or layer.norms.key.shape != first.norms.key.shape:
            return "the drafter's layers differ in the shape of their weights"
        if layer.norms.epsilon != first.norms.epsilon:
            return f"the drafter's layers norm with different epsilons: {', '.join(map(str, epsilons(layers)))}"
        if layer.norms.table is not first.norms.table:
            return "the drafter's layers do not share a rotary table"
        if not layer.qkv.is_floating_point() or layer.qkv.element_size() < 2:
            return "the drafter's weights are quantized"
    if len(first.norms.table) < columns:
        return "the rotary table ends before the longest context and its block"
    return None
