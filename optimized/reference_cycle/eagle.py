"""EAGLE: one layer of the target's shape drafts a token a step, of the token before and the feature that led to it.

After Li et al., EAGLE (2024) and EAGLE-3 (2025): a feature is fused of several of the target's layers, and a step's
own output takes its place where the target has not been. The context's keys and values are kept, as any decoder's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle import attention
from optimized.reference_cycle.acceptance import Verdict
from optimized.reference_cycle.attention import HeadNorms, Mlp, rms_norm
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.drafter import Draft, Drafter
from optimized.reference_cycle.embedding import look_up
from optimized.reference_cycle.rope import rope_table
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


class EagleDrafter(Drafter):
    """Asks with the newest token alone (S = 1), and then with each of its own: K steps, one after another.

    Column p of keys and values [1, B, max_ctx + K + 1, kv_heads, head_dim], by batch row, is made of the feature at
    position p and of the token behind it, which is why a verified row waits for the verdict. following int64 [B, K + 1]
    are those tokens, features [B, K + 1, hidden] those of the verified rows; step_columns int64 [B, K] and
    step_mask bool [B, K, columns] place the steps, the first of which is the last accepted row's.
    """

    def __init__(self, settings: Settings, target: Target, batch: Batch) -> None:
        super().__init__(settings, target, batch, block=1)
        geometry, device, rows = settings.geometry, settings.device, settings.batch
        heads, width, hidden = geometry.heads + 2 * geometry.kv_heads, geometry.head_dim, geometry.hidden
        self.table = rope_table(geometry.rope, width, settings.capacity, device)
        self.qkv = self.weights.linear("qkv", heads * width, 2 * hidden)
        self.output = self.weights.linear("output", hidden, geometry.heads * width)
        gate_up = self.weights.linear("gate_up", 2 * geometry.intermediate, hidden)
        self.mlp = Mlp(gate_up, self.weights.linear("down", hidden, geometry.intermediate))
        self.token_norm, self.feature_norm, self.mlp_norm = (
            self.weights.norm(name, hidden) for name in ("token_norm", "feature_norm", "mlp_norm")
        )
        query, key = (self.weights.norm(name, width) for name in ("query_norm", "key_norm"))
        self.norms = HeadNorms(query, key, self.table, geometry.heads, geometry.kv_heads, geometry.rope)
        columns = settings.draft_context + settings.speculative + 1
        pool = (1, rows, columns, geometry.kv_heads, width)
        self.keys, self.values = (torch.zeros(pool, dtype=settings.torch_dtype, device=device) for _ in range(2))
        self.following = torch.zeros(rows, settings.speculative + 1, dtype=torch.int64, device=device)
        shape = (rows, settings.speculative + 1, hidden)
        self.features = torch.zeros(shape, dtype=settings.torch_dtype, device=device)
        self.step_columns = torch.zeros(rows, settings.speculative, dtype=torch.int64, device=device)
        self.step_mask = torch.zeros(rows, settings.speculative, columns, dtype=torch.bool, device=device)

    def input_prep(self, verdict: Verdict) -> None:
        """Build the first step's input, and keep the token behind each verified row."""
        super().input_prep(verdict)
        self.following.copy_(verdict.accepted)

    def project_rows(self, taps: Tensor, positions: Tensor) -> Tensor:
        """Features [..., hidden] of taps [..., taps * hidden]; where they stand tells the keys alone."""
        return self.project(taps)

    def remember(self) -> None:
        """Write the verified rows' keys and values; what was not accepted lies past what is seen, until overwritten."""
        self.features.copy_(self.context_rows())
        rows = torch.arange(len(self.features), device=self.features.device).unsqueeze(1)
        positions = self.queries.context_positions
        self.place(rows.expand_as(positions), positions, self.following, self.features)

    def remember_prompt(self, row: int, slot: int, taps: Tensor) -> None:
        """Nothing yet: a prompt's keys need its tokens, which `admit` is given."""

    def admit(self, row: int, slot: int, taps: Tensor, following: Sequence[int]) -> bool:
        """Write a new request's keys and values at positions 0, 1, 2...; False where its prompt is too long."""
        follows = super().admit(row, slot, taps, following)
        if follows:
            positions = torch.arange(len(taps), device=taps.device)
            tokens = torch.tensor(following, dtype=torch.int64, device=taps.device)
            self.place(torch.full_like(positions, row), positions, tokens, self.project_rows(taps, positions))
        return follows

    def place(self, rows: Tensor, positions: Tensor, tokens: Tensor, features: Tensor) -> None:
        """Keys and values of features [..., hidden] and the tokens behind them, to rows and positions int64 [...]."""
        kv_heads, width = self.norms.kv_heads, self.norms.key.shape[0]
        x = self.layer_input(look_up(self.target.embedding, tokens), features)
        raw = F.linear(x, self.qkv[-2 * kv_heads * width :]).unflatten(-1, (1, 2, kv_heads, width))
        into, cells = (self.keys, self.values), (rows, positions)
        attention.place_context(
            raw, positions, self.norms.key.unsqueeze(0), self.table, into, self.norms.epsilon, cells
        )

    def layer_input(self, embedded: Tensor, features: Tensor) -> Tensor:
        """What the layer reads, [..., 2 hidden]: an embedded token beside a feature, each normed."""
        return torch.cat((rms_norm(embedded, self.token_norm), rms_norm(features, self.feature_norm)), dim=-1)

    def metadata(self) -> None:
        """The steps' columns from the last accepted row's on, and what each step sees."""
        steps = torch.arange(self.step_columns.shape[1], device=self.step_columns.device)
        self.step_columns.copy_((self.visible_context.unsqueeze(1) - 1 + steps).clamp(min=0))
        columns = self.step_mask.shape[-1]
        self.step_mask.copy_(attention.visible(self.step_columns, columns, self.step_columns + 1))

    def draft_block(self) -> Draft:
        """K steps; the first reads the feature of the last accepted row, each later one the output before it."""
        rows, drafts = torch.arange(len(self.features), device=self.features.device), []
        stream = self.features[rows, (self.queries.counts - 1).clamp(min=0)]
        embedded, tokens = self.queries.noise[:, 0], []
        for step in range(self.step_columns.shape[1]):
            stream = self.decode(step, embedded, stream)
            drafts.append(F.linear(rms_norm(stream, self.norm), self.target.head))
            tokens.append(drafts[-1].argmax(dim=-1))
            embedded = look_up(self.target.embedding, tokens[-1])
        return Draft(self.followed(torch.stack(tokens, dim=1)), torch.stack(drafts, dim=1))

    def decode(self, step: int, embedded: Tensor, features: Tensor) -> Tensor:
        """One step through the layer: its output [B, hidden] of an embedded token and a feature, both [B, hidden]."""
        rows = torch.arange(len(features), device=features.device)
        positions = (self.block_positions()[:, 0] - 1 + step).clamp(min=0)
        qkv = F.linear(self.layer_input(embedded, features), self.qkv)
        queries, *own = attention.qk_norm_rope(qkv, positions, self.norms)
        keys, values = self.keys[0], self.values[0]
        for pool, made in zip((keys, values), own, strict=True):
            pool[rows, self.step_columns[:, step]] = made
        seen = attention.attend(queries.unsqueeze(1), keys, values, self.step_mask[:, step : step + 1])
        stream = features + F.linear(seen.flatten(1), self.output)
        return stream + self.mlp(rms_norm(stream, self.mlp_norm))
