"""DSpark with MLA: the newest token already predicts, and a Markov head makes each prediction depend on the one before.

The context is kept as one latent per token and layer in paged pools, so it is not made again; stock are the chains of
small operations around it, which `bookkeeping` holds.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle import bookkeeping, mla
from optimized.reference_cycle.acceptance import Verdict
from optimized.reference_cycle.attention import gather_pages, rms_norm, visible
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.drafter import Draft, Drafter
from optimized.reference_cycle.marking import part
from optimized.reference_cycle.mla import MlaLayer
from optimized.reference_cycle.rope import rope_table, yarn_scale
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target
from optimized.reference_cycle.weights import Weights


class DSparkDrafter(Drafter):
    """Block of S = K tokens: the newest and K - 1 masks, each predicting the token after its own position.

    pools [pages, 1, 1, PG, Dl], one per layer, hold the latents; table int32 [B, MB] and page_counts int64 [B] are
    this cycle's, by batch row; block_pages and block_rows int64 [B, S] and block_lengths int32 [B] place the block.
    """

    def __init__(self, settings: Settings, target: Target, batch: Batch) -> None:
        super().__init__(settings, target, batch, settings.speculative)
        geometry, shape, device = settings.geometry, settings.geometry.dspark, settings.device
        rows, self.shape, self.latent_size = settings.batch, shape, shape.latent + shape.rope_dim
        self.rope = rope_table(shape.rope, shape.rope_dim, settings.capacity + self.block, device)
        self.scale = yarn_scale(shape.rope) ** 2 * (shape.nope_dim + shape.rope_dim) ** -0.5
        self.latent_matrix = self.weights.linear("latents", shape.layers * self.latent_size, geometry.hidden)
        self.layers = [self._layer(index, self.weights.of(str(index))) for index in range(shape.layers)]
        self.markov_in = self.weights.embedding("markov_in", geometry.vocab, shape.markov_rank)
        self.markov_out = self.weights.linear("markov_out", geometry.vocab, shape.markov_rank)
        pool = (settings.page_count, 1, 1, settings.page_size, self.latent_size)
        self.pools = [torch.zeros(pool, dtype=settings.torch_dtype, device=device) for _ in self.layers]
        self.table = torch.zeros(rows, settings.table_width, dtype=torch.int32, device=device)
        self.page_counts = torch.zeros(rows, dtype=torch.int64, device=device)
        self.block_pages = torch.zeros(rows, self.block, dtype=torch.int64, device=device)
        self.block_rows = torch.zeros_like(self.block_pages)
        self.block_lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self.causal_mask = torch.zeros(rows, self.block, settings.capacity, dtype=torch.bool, device=device)
        self.later_mask = torch.ones(1, self.block, self.block, dtype=torch.bool, device=device).triu(1)

    def input_prep(self, verdict: Verdict) -> None:
        """Refresh the drafter's block tables and build the block."""
        bookkeeping.refresh_block_tables(self.batch.offsets, 0, self.batch.divisor, self.table, self.page_counts)
        super().input_prep(verdict)

    def remember(self) -> None:
        """Write the verified rows' latents to their pages, zeros where not accepted."""
        self.keep_latents(self.context_rows())

    def keep_latents(self, latents: Tensor) -> None:
        """Write latents [B, K + 1, layers, Dl] of the verified rows to their pages, zeros where not accepted."""
        start = self.queries.context_positions[:, 0]
        followed = self.accepted_rows()
        bookkeeping.write_context_latents(latents, start, followed, self.page_counts, self.table, self.pools)

    def project_rows(self, taps: Tensor, positions: Tensor) -> Tensor:
        """Latents [..., layers, Dl] of taps [..., taps * hidden] at positions [...]."""
        raw = F.linear(self.project(taps), self.latent_matrix).unflatten(-1, (len(self.layers), self.latent_size))
        return self.finish_latents(raw, positions)

    def finish_latents(self, raw: Tensor, positions: Tensor) -> Tensor:
        """Each layer's part of raw [..., layers, Dl] at positions [...], normed and rotated."""
        latents = torch.empty_like(raw)
        for index, layer in enumerate(self.layers):
            own = raw[..., index, :].contiguous()
            latents[..., index, :] = mla.norm_and_rotate_latent(own, positions, layer.latent_norm, self.rope)
        return latents.contiguous()

    def remember_prompt(self, row: int, slot: int, taps: Tensor) -> None:
        """Write a prompt's latents through the row's pages."""
        positions = torch.arange(len(taps), device=taps.device)
        pages = self.batch.host_pages[row].to(taps.device)[positions // self.settings.page_size].long()
        latents = self.project_rows(taps, positions)
        for index, pool in enumerate(self.pools):
            pool[pages, 0, 0, positions % self.settings.page_size] = latents[:, index]

    def advance(self) -> None:
        """Count the accepted rows as context, as far as the request's pages leave room for the block."""
        limits = self.settings.draft_context, self.settings.page_size, self.block
        advertised = bookkeeping.advance_context(
            self.context_lengths,
            self.queries.context_positions[:, 0],
            self.queries.counts,
            self.slots,
            self.page_counts,
            limits,
        )
        self.visible_context.copy_(advertised)

    def metadata(self) -> None:
        """The block's cells and lengths, the same for every layer, and the causal mask over the pages."""
        size = self.settings.page_size
        pages, rows, lengths = bookkeeping.block_cells(self.visible_context, self.table, self.block, size)
        self.block_pages.copy_(pages)
        self.block_rows.copy_(rows)
        self.block_lengths.copy_(lengths)
        columns = self.visible_context.unsqueeze(1) + torch.arange(self.block, device=rows.device)
        self.causal_mask.copy_(visible(columns, self.causal_mask.shape[-1], columns + 1))

    def draft_block(self) -> Draft:
        """The block through every layer, then token by token through the Markov head."""
        stream, positions = self.queries.noise, self.block_positions()
        for index, layer in enumerate(self.layers):
            x = rms_norm(stream, layer.attention_norm)
            stream = stream + self.attend(index, x, positions)
            stream = stream + layer.mlp(rms_norm(stream, layer.mlp_norm))
        stream = rms_norm(part("draft.forward.layers", stream), self.norm)
        logits = part("draft.forward.logits", F.linear(stream, self.target.head))
        tokens, refined = self.refine(logits)
        return Draft(part("draft.forward.markov", self.followed(tokens)), refined)

    def attend(self, index: int, x: Tensor, positions: Tensor) -> Tensor:
        """Attention of layer `index` for x [B, S, hidden]; the block's latents are written to its pages first."""
        layer, pool = self.layers[index], self.pools[index]
        own = self.put_latents(index, F.linear(x, layer.latent), positions)
        queries = mla.absorbed_queries(x, layer, positions, self.rope)
        cached = gather_pages(pool.flatten(1, 3), self.table)
        seen = mla.attend_to_block(queries, cached, own, (self.causal_mask, self.later_mask), self.scale)
        return mla.project_out(seen, layer, x.dtype)

    def put_latents(self, index: int, raw: Tensor, positions: Tensor) -> Tensor:
        """Raw latents [B, S, Dl] of layer `index`, normed, rotated and written to the block's cells."""
        own = mla.norm_and_rotate_latent(raw, positions, self.layers[index].latent_norm, self.rope)
        bookkeeping.write_block_latents(self.pools[index], (self.block_pages, self.block_rows), own)
        return own

    def refine(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, K] one after another, each adding the bias of the one before to its logits [B, K, vocab]."""
        previous, tokens, refined = self.queries.bonus, [], []
        for step in range(self.block):
            scores = logits[:, step] + F.linear(self.markov_in[previous], self.markov_out)
            previous = scores.argmax(dim=-1)
            tokens.append(previous)
            refined.append(scores)
        return torch.stack(tokens, dim=1), torch.stack(refined, dim=1)

    def _layer(self, index: int, weights: Weights) -> MlaLayer:
        rows = slice(index * self.latent_size, (index + 1) * self.latent_size)
        return MlaLayer.create(self.shape, self.settings.geometry.hidden, self.latent_matrix[rows], weights)
