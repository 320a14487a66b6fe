"""A Qwen3-style target with a paged KV cache, taps for the drafters, and optionally layers with a recurrent state.

Like the engine it is modelled on, it verifies 2K rows a request: the newest token, K drafts, K - 1 fillers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle import attention, state_layer
from optimized.reference_cycle.attention import HeadNorms, Mlp, rms_norm
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.embedding import Embedding, look_up
from optimized.reference_cycle.geometry import Geometry
from optimized.reference_cycle.graphs import Pass
from optimized.reference_cycle.marking import part
from optimized.reference_cycle.rope import rope_table
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.state_layer import StateLayer, States
from optimized.reference_cycle.weights import Weights
from spantrace.graph_spans import layer_groups

PREFILL_CHUNK = 128


@dataclass(frozen=True)
class AttentionLayer:
    """GQA: one matrix for queries, keys and values, pools [pages, page_size, kv_heads, head_dim] for the last two."""

    qkv: Tensor
    output: Tensor
    norms: HeadNorms
    keys: Tensor
    values: Tensor

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        """Write the rows' keys and values into the pools, then attend to all that each row sees; x [B, T, hidden]."""
        queries, keys, values = attention.qk_norm_rope(
            F.linear(x.flatten(0, 1), self.qkv), rows.positions.flatten(), self.norms
        )
        shape = x.shape[:2]
        self.keys[rows.cells] = keys.unflatten(0, shape)
        self.values[rows.cells] = values.unflatten(0, shape)
        keys, values = (attention.gather_pages(pool, rows.table) for pool in (self.keys, self.values))
        seen = attention.attend(queries.unflatten(0, shape), keys, values, rows.mask)
        return F.linear(seen.flatten(2), self.output)


@dataclass(frozen=True)
class Block:
    """One layer of the target: a mixer and an MLP, each behind a norm and added to the stream."""

    mixer: AttentionLayer | StateLayer
    mlp: Mlp
    mixer_norm: Tensor
    mlp_norm: Tensor


@dataclass(frozen=True)
class Rows:
    """Inputs of one pass, T rows a request: tokens and positions int64 [B, T], slots int64 [B], table int32 [B, MB],
    cells (page and offset, int64 [B, T] each) and mask bool [B, T, MB page_size]."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    table: Tensor
    cells: tuple[Tensor, Tensor]
    mask: Tensor

    @classmethod
    def empty(cls, settings: Settings, rows: int) -> Rows:
        """Static buffers for `rows` rows a request."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(settings.batch, *shape, dtype=dtype, device=settings.device)

        table = zeros(settings.table_width, dtype=torch.int32)
        mask = zeros(rows, settings.capacity, dtype=torch.bool)
        return cls(zeros(rows), zeros(rows), zeros(), table, (zeros(rows), zeros(rows)), mask)


@dataclass(frozen=True)
class TargetOutput:
    """logits [B, T, vocab], taps [B, T, taps * hidden], and the states after every token, one per state layer."""

    logits: Tensor
    taps: Tensor
    states: list[States]


class Target:
    """The model, its caches, and the buffers of the verifying pass."""

    def __init__(self, settings: Settings) -> None:
        geometry, device = settings.geometry, settings.device
        weights = Weights(settings.seed, device, settings.torch_dtype, "target.")
        self.settings = settings
        self.embedding: Embedding = weights.embedding("embedding", geometry.vocab, geometry.hidden)
        self.head = weights.linear("head", geometry.vocab, geometry.hidden)
        self.norm = weights.norm("norm", geometry.hidden)
        self.table = rope_table(geometry.rope, geometry.head_dim, settings.capacity, device)
        self.blocks = [self._block(layer, weights.of(str(layer))) for layer in range(geometry.layers)]
        self.state_layers = [block.mixer for block in self.blocks if isinstance(block.mixer, StateLayer)]
        self._groups = layer_groups(geometry.layers)
        self._passes: dict[int, tuple[Rows, Pass[TargetOutput]]] = {}
        self._chosen = 0

    def rows_per_request(self) -> int:
        """Rows that verify one request's drafts: 2K, of which the first K + 1 count; 1 without a drafter.

        Asked once a cycle, when its inputs are prepared.
        """
        return max(2 * self.settings.speculative, 1)

    def input_prep(self, batch: Batch) -> None:
        """Upload the batch; each request's newest token, its drafts, then zeros up to the number of rows."""
        batch.upload()
        self._chosen = self.rows_per_request()
        rows, _ = self._verifying()
        drafts = batch.drafts.clamp(min=0)
        filler = batch.last.new_zeros(batch.rows, rows.tokens.shape[1] - 1 - drafts.shape[1])
        rows.tokens.copy_(torch.cat((batch.last.unsqueeze(1), drafts, filler), dim=1))
        steps = torch.arange(rows.tokens.shape[1], device=batch.cached.device)
        rows.positions.copy_(batch.cached.unsqueeze(1) + steps)

    def metadata(self, batch: Batch) -> None:
        """Where this pass writes, and what each row sees and starts from."""
        self.attention_metadata(batch)
        self.state_metadata(batch)

    def attention_metadata(self, batch: Batch) -> None:
        """Block table, cells and causal mask of the verifying pass."""
        rows, _ = self._verifying()
        rows.table.copy_(batch.pages.clamp(min=0))
        for buffer, cells in zip(rows.cells, self._cells(rows.positions, rows.table), strict=True):
            buffer.copy_(cells)
        rows.mask.copy_(attention.visible(rows.positions, rows.mask.shape[-1], rows.positions + 1))

    def state_metadata(self, batch: Batch) -> None:
        """The slots whose states the pass starts from, where there are states."""
        if self.state_layers:
            self._verifying()[0].slots.copy_(batch.slots)

    def forward(self) -> TargetOutput:
        """Run the prepared rows; the outputs are overwritten by the next call."""
        output = self._verifying()[1]()
        state_layer.must_cover(output.states, self.settings.batch, self._chosen)
        return output

    def replayed(self) -> bool:
        """Whether its passes replay CUDA graphs."""
        return any(run.replayed for _, run in self._passes.values())

    def commit_states(self, states: list[States], slots: Tensor, counts: Tensor) -> None:
        """Keep every state layer's states after a cycle's last accepted token; slots and counts int64 [B]."""
        state_layer.commit(self.state_layers, states, slots, counts)

    def prefill(self, tokens: list[int], slot: int, pages: list[int]) -> tuple[int, Tensor]:
        """Cache a prompt: the first token after it, and the taps [tokens, taps * hidden] of the prompt."""
        for layer in self.state_layers:
            layer.reset(slot)
        device, slots = self.embedding.device, torch.tensor([slot], device=self.embedding.device)
        table = torch.zeros(1, self.settings.table_width, dtype=torch.int32, device=device)
        table[0, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        prompt, taps, hidden = torch.tensor([tokens], device=device), [], None
        for start in range(0, len(tokens), PREFILL_CHUNK):
            chunk = prompt[:, start : start + PREFILL_CHUNK]
            positions = torch.arange(start, start + chunk.shape[1], device=device).unsqueeze(0)
            mask = attention.visible(positions, self.settings.capacity, positions + 1)
            rows = Rows(chunk, positions, slots, table, self._cells(positions, table), mask)
            hidden, tapped, states = self._layers(rows)
            state_layer.commit(self.state_layers, states, slots, torch.full_like(slots, chunk.shape[1]))
            taps.append(tapped[0])
        return int(self.logits(hidden[0, -1]).argmax()), torch.cat(taps)  # type: ignore[index]

    def logits(self, hidden: Tensor) -> Tensor:
        """Stream [..., hidden] to logits [..., vocab]."""
        return F.linear(rms_norm(hidden, self.norm), self.head)

    def forget_graphs(self) -> None:
        """Capture anew at the next pass, as is needed after a function was replaced."""
        for _, run in self._passes.values():
            run.forget()

    def prepared(self) -> dict[int, Rows]:
        """The input buffers of the verifying passes made so far, by their rows a request."""
        return {count: rows for count, (rows, _) in self._passes.items()}

    def release(self, rows: int) -> None:
        """Drop the buffers and the graph for `rows` rows a request."""
        self._passes.pop(rows, None)

    def verify(self, rows: Rows) -> TargetOutput:
        """The pass itself over prepared rows, which `forward` runs as a graph where there is a GPU."""
        hidden, taps, states = self._layers(rows)
        return TargetOutput(part("target.forward.logits", self.logits(hidden)), taps, states)

    def _verifying(self) -> tuple[Rows, Pass[TargetOutput]]:
        """The buffers and the pass of as many rows a request as this cycle's inputs were prepared for."""
        if self._chosen not in self._passes:
            rows = Rows.empty(self.settings, self._chosen)
            self._passes[self._chosen] = rows, Pass(lambda: self.verify(rows), self.settings.device)
        return self._passes[self._chosen]

    def _layers(self, rows: Rows) -> tuple[Tensor, Tensor, list[States]]:
        """The stream after the last layer, the taps, and the states after every token."""
        stream, taps, states = part("target.forward.embedding", look_up(self.embedding, rows.tokens)), [], []
        for index, block in enumerate(self.blocks):
            x = rms_norm(stream, block.mixer_norm)
            if isinstance(block.mixer, StateLayer):
                mixed, after = block.mixer(x, rows.slots)
                states.append(after)
            else:
                mixed = block.mixer(x, rows)
            stream = stream + mixed
            stream = stream + block.mlp(rms_norm(stream, block.mlp_norm))
            if index in self.settings.geometry.taps:
                taps.append(stream)
            stream = part(self._groups.get(index), stream)
        return stream, torch.cat(taps, dim=-1), states

    def _cells(self, positions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        return attention.cells_of(positions, table, self.settings.page_size)

    def _block(self, layer: int, weights: Weights) -> Block:
        geometry = self.settings.geometry
        if layer in geometry.state_layers:
            slots = self.settings.batch + 1
            mixer: AttentionLayer | StateLayer = StateLayer.create(geometry.state, geometry.hidden, slots, weights)
        else:
            mixer = self._attention(geometry, weights)
        gate_up = weights.linear("gate_up", 2 * geometry.intermediate, geometry.hidden)
        mlp = Mlp(gate_up, weights.linear("down", geometry.hidden, geometry.intermediate))
        norms = (weights.norm(name, geometry.hidden) for name in ("mixer_norm", "mlp_norm"))
        return Block(mixer, mlp, *norms)

    def _attention(self, geometry: Geometry, weights: Weights) -> AttentionLayer:
        heads, kv_heads, width = geometry.heads, geometry.kv_heads, geometry.head_dim
        query, key = (weights.norm(name, width) for name in ("query_norm", "key_norm"))
        norms = HeadNorms(query, key, self.table, heads, kv_heads, geometry.rope)
        pool = (self.settings.page_count, self.settings.page_size, kv_heads, width)
        keys, values = (torch.zeros(pool, dtype=weights.dtype, device=weights.device) for _ in range(2))
        qkv = weights.linear("qkv", (heads + 2 * kv_heads) * width, geometry.hidden)
        return AttentionLayer(qkv, weights.linear("output", geometry.hidden, heads * width), norms, keys, values)
