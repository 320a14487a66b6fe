"""DFlash: a small transformer fills in a block of masks at once, attending to the target's hidden states as context.

Stock in what it wastes: it keeps the projected hidden states and makes every layer's keys and values of the whole
context again in every cycle, padded to the longest context that there can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle import attention
from optimized.reference_cycle.attention import HeadNorms, Mlp, rms_norm
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.drafter import Draft, Drafter
from optimized.reference_cycle.geometry import DFlashShape
from optimized.reference_cycle.marking import part
from optimized.reference_cycle.rope import rope_table, yarn_scale
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target
from optimized.reference_cycle.weights import Weights


@dataclass(frozen=True)
class DFlashLayer:
    """qkv [(heads + 2 kv_heads) head_dim, hidden], output [hidden, heads head_dim], sinks float32 [heads] or None."""

    qkv: Tensor
    output: Tensor
    norms: HeadNorms
    mlp: Mlp
    attention_norm: Tensor
    mlp_norm: Tensor
    window: int | None
    causal: bool
    sinks: Tensor | None

    @classmethod
    def create(cls, index: int, shape: DFlashShape, hidden: int, table: Tensor, weights: Weights) -> DFlashLayer:
        """Layer `index` with random weights."""
        width, window = shape.head_dim, shape.windows[index % len(shape.windows)]
        gate_up = weights.linear("gate_up", 2 * shape.intermediate, hidden)
        return cls(
            qkv=weights.linear("qkv", (shape.heads + 2 * shape.kv_heads) * width, hidden),
            output=weights.linear("output", hidden, shape.heads * width),
            norms=HeadNorms(
                weights.norm("query_norm", width),
                weights.norm("key_norm", width),
                table,
                shape.heads,
                shape.kv_heads,
                shape.rope,
            ),
            mlp=Mlp(gate_up, weights.linear("down", hidden, shape.intermediate)),
            attention_norm=weights.norm("attention_norm", hidden),
            mlp_norm=weights.norm("mlp_norm", hidden),
            window=window,
            causal=shape.causal_windows and window is not None,
            sinks=weights.uniform("sinks", shape.heads, -1.0, 3.0) if shape.sinks else None,
        )


def epsilons(layers: Sequence[DFlashLayer]) -> list[float]:
    """What the layers' head norms add to the mean square, each value once."""
    return sorted({layer.norms.epsilon for layer in layers})


class DFlashDrafter(Drafter):
    """Block of S = K + 1 tokens: the newest and K masks, each mask predicting the token of its own position.

    projected [B + 1, max_ctx, hidden] and stored_positions int64 [B + 1, max_ctx] by slot are the context;
    keys and values [layers, B, max_ctx + S, kv_heads, head_dim] by batch row are made of it in every cycle, with
    room for the block's own behind the context.
    """

    def __init__(self, settings: Settings, target: Target, batch: Batch) -> None:
        super().__init__(settings, target, batch, settings.speculative + 1)
        shape, device, longest = settings.geometry.dflash, settings.device, settings.draft_context
        hidden, rows = settings.geometry.hidden, settings.batch
        self.shape = shape
        self.table = rope_table(shape.rope, shape.head_dim, settings.capacity, device, yarn_scale(shape.rope))
        self.layers = [
            DFlashLayer.create(index, shape, hidden, self.table, self.weights.of(str(index)))
            for index in range(shape.layers)
        ]
        self.projected = torch.zeros(rows + 1, longest, hidden, dtype=settings.torch_dtype, device=device)
        self.stored_positions = torch.zeros(rows + 1, longest, dtype=torch.int64, device=device)
        columns = (shape.layers, rows, longest + self.block, shape.kv_heads, shape.head_dim)
        self.keys = torch.zeros(columns, dtype=settings.torch_dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.block_columns = torch.zeros(rows, self.block, dtype=torch.int64, device=device)
        self.masks = {
            (layer.window, layer.causal): torch.zeros(
                rows, self.block, longest + self.block, dtype=torch.bool, device=device
            )
            for layer in self.layers
        }

    def remember(self) -> None:
        """Store the verified rows' projected states, zeros where not accepted, and make the whole context again."""
        self.store_accepted(self.context_rows())
        self.recompute()

    def store_accepted(self, states: Tensor) -> None:
        """Store states [B, K + 1, hidden] times 1 or 0 by acceptance, and their positions.

        Rows past the longest context share its last column, where one of them stays.
        """
        positions, longest = self.queries.context_positions, self.settings.draft_context
        cells = self.slots.unsqueeze(1), positions.clamp(max=longest - 1)
        self.projected[cells] = states * self.accepted_rows().unsqueeze(-1)
        self.stored_positions[cells] = positions

    def project_rows(self, taps: Tensor, positions: Tensor) -> Tensor:
        """Projected states [..., hidden] of taps [..., taps * hidden]; their positions are stored beside them."""
        return self.project(taps)

    def recompute(self) -> None:
        """Keys and values of every stored column, padding included, for every layer."""
        states, positions = self.projected[self.slots], self.stored_positions[self.slots]
        for index in range(len(self.layers)):
            self.make_context(index, states, positions)

    def make_context(self, index: int, states: Tensor, positions: Tensor) -> None:
        """Layer `index`'s first columns: keys and values of states [B, columns, hidden] at positions [B, columns]."""
        norms, width = self.layers[index].norms, self.shape.head_dim
        size, columns = self.shape.kv_heads * width, positions.shape[-1]
        raw = F.linear(states, self.layers[index].qkv[-2 * size :]).unflatten(-1, (1, 2, self.shape.kv_heads, width))
        into = (self.keys[index : index + 1, :, :columns], self.values[index : index + 1, :, :columns])
        attention.place_context(raw, positions, norms.key.unsqueeze(0), self.table, into, norms.epsilon)

    def remember_prompt(self, row: int, slot: int, taps: Tensor) -> None:
        """Store a prompt's projected states; its keys and values come with the next cycle's."""
        self.projected[slot, : len(taps)] = self.project(taps)
        self.stored_positions[slot] = torch.arange(self.stored_positions.shape[1], device=taps.device)

    def metadata(self) -> None:
        """The block's own columns, right behind the context, and who sees what."""
        context, columns = self.visible_context, self.keys.shape[2]
        steps = torch.arange(self.block, device=context.device)
        self.block_columns.copy_(context.unsqueeze(1) + steps)
        for (window, causal), mask in self.masks.items():
            ends = self.block_columns + 1 if causal else (context + self.block).unsqueeze(1).expand(-1, self.block)
            mask.copy_(attention.visible(self.block_columns, columns, ends, window))

    def draft_block(self) -> Draft:
        """The block through every layer; tokens of its masks."""
        stream = self.queries.noise
        for index, layer in enumerate(self.layers):
            x = rms_norm(stream, layer.attention_norm)
            heads = self.block_heads(index, F.linear(x.flatten(0, 1), layer.qkv))
            seen = self.attend(index, *(part.unflatten(0, x.shape[:2]) for part in heads))
            stream = stream + F.linear(seen.flatten(2), layer.output)
            stream = stream + layer.mlp(rms_norm(stream, layer.mlp_norm))
        stream = rms_norm(part("draft.forward.layers", stream)[:, 1:], self.norm)
        logits = part("draft.forward.logits", F.linear(stream, self.target.head))
        return Draft(part("draft.forward.sampling", self.followed(logits.argmax(dim=-1))), logits)

    def block_heads(self, index: int, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The block's normed and rotated queries and keys, and its values, in layer `index`: see `qk_norm_rope`."""
        return attention.qk_norm_rope(qkv, self.block_positions().flatten(), self.layers[index].norms)

    def attend(self, index: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Put the block's keys and values behind the context of layer `index`, and attend to both: [B, S, heads, d]."""
        layer, rows = self.layers[index], torch.arange(len(keys), device=keys.device)
        pools, cells = (self.keys[index], self.values[index]), (rows, self.block_columns)
        return self.attend_to(index, (queries, keys, values), pools, cells, self.masks[layer.window, layer.causal])

    def attend_to(
        self,
        index: int,
        block: tuple[Tensor, Tensor, Tensor],
        pools: tuple[Tensor, Tensor],
        cells: tuple[Tensor, Tensor],
        mask: Tensor,
        seats: Tensor | None = None,
    ) -> Tensor:
        """Write the block's keys and values to `cells` of the pools, and attend to what the mask shows of them.

        The block's queries, keys and values are [B, S, heads, head_dim], pools [rows, columns, kv_heads, head_dim],
        cells a row int64 [B] and columns int64 [B, S], and the mask [B, S, N] is of the first N columns. Where rows are
        not those of the batch, seats int64 [n] says who is in each of the first n; the others are nobody's. Then the
        queries are brought into the order of the rows, so that the pools are read where they lie, and a request that
        is in none of the n gets some other one's answer.
        """
        queries, sinks, width = block[0], self.layers[index].sinks, mask.shape[-1]
        rows, columns = cells
        for pool, own in zip(pools, block[1:], strict=True):
            pool[rows.unsqueeze(1), columns] = own
        keys, values = (pool[: len(pool) if seats is None else len(seats), :width] for pool in pools)
        if seats is None:
            return attention.attend(queries, keys, values, mask, sinks)
        seen = attention.attend(queries[seats], keys, values, mask[seats], sinks)
        return seen[rows.clamp(max=len(seats) - 1)]
