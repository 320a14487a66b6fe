"""What the drafters share: the context they keep of accepted tokens, the block they ask with, and their order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle.acceptance import Verdict
from optimized.reference_cycle.attention import rms_norm
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.embedding import look_up
from optimized.reference_cycle.graphs import Pass
from optimized.reference_cycle.rope import temporal
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target
from optimized.reference_cycle.weights import Weights


@dataclass(frozen=True)
class Draft:
    """tokens int64 [B, K], -1 for a request that the drafter does not follow, and logits [B, K, vocab]."""

    tokens: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Queries:
    """Static inputs of a cycle: bonus int64 [B], positions int64 [B, S] of the block, noise [B, S, hidden] its
    embeddings, context_positions int64 [B, K + 1] of the verified rows, counts int64 [B] of the accepted ones."""

    bonus: Tensor
    positions: Tensor
    context_positions: Tensor
    noise: Tensor
    counts: Tensor

    @classmethod
    def empty(cls, settings: Settings, block: int) -> Queries:
        """Buffers for a block of `block` tokens (S)."""
        rows, hidden, device = settings.batch, settings.geometry.hidden, settings.device
        noise = torch.zeros(rows, block, hidden, dtype=settings.torch_dtype, device=device)
        bonus, positions, context, counts = (
            torch.zeros(shape, dtype=torch.int64, device=device)
            for shape in ((rows,), (rows, block), (rows, settings.speculative + 1), (rows,))
        )
        return cls(bonus, positions, context, noise, counts)


class Drafter(ABC):
    """One drafter and its memory of the context, by slot; slot B is the dummy, which no request reads.

    context_lengths int64 [B + 1] by slot, slots int64 [B] (the dummy where a request is not followed) and
    visible_context int64 [B] by batch row, captured [B, K + 1, taps * hidden] the taps of the rows just verified.
    `passes` are all that must be captured anew after a function was replaced.
    """

    def __init__(self, settings: Settings, target: Target, batch: Batch, block: int) -> None:
        geometry, device = settings.geometry, settings.device
        self.settings, self.target, self.batch, self.block = settings, target, batch, block
        self.weights = Weights(settings.seed, device, settings.torch_dtype, f"{settings.drafter}.")
        tapped = len(geometry.taps) * geometry.hidden
        self.fc = self.weights.linear("fc", geometry.hidden, tapped)
        self.hidden_norm = self.weights.norm("hidden_norm", geometry.hidden)
        self.norm = self.weights.norm("norm", geometry.hidden)
        self.context_lengths = torch.zeros(settings.batch + 1, dtype=torch.int64, device=device)
        self.visible_context = torch.zeros(settings.batch, dtype=torch.int64, device=device)
        self.slots = torch.full((settings.batch,), batch.dummy, dtype=torch.int64, device=device)
        self.followed_slots = torch.full((settings.batch + 1,), batch.dummy, dtype=torch.int64, device=device)
        self.queries = Queries.empty(settings, block)
        shape = (settings.batch, settings.speculative + 1, tapped)
        self.captured = torch.zeros(shape, dtype=settings.torch_dtype, device=device)
        self.context_pass = Pass(self.remember, device)
        self.block_pass = Pass(self.draft_block, device)
        self.passes: list[Pass[Any]] = [self.context_pass, self.block_pass]

    def observe(self, taps: Tensor) -> None:
        """Keep the taps [B, rows, taps * hidden] of the rows just verified, and who is followed.

        From here on all is there that `context_rows` needs; what was accepted of the rows is not known yet.
        """
        self.slots.copy_(self.followed_slots[self.batch.slots])
        self.captured.copy_(taps[:, : self.captured.shape[1]])

    def propose(self, verdict: Verdict) -> Draft:
        """Draft the tokens after each request's newest one, given the verdict on the rows that were observed."""
        self.input_prep(verdict)
        self.context_kv()
        self.metadata()
        return self.forward()

    def input_prep(self, verdict: Verdict) -> None:
        """Build the block that asks."""
        self.build_queries(verdict.accepted, verdict.counts)

    def build_queries(self, accepted: Tensor, counts: Tensor) -> None:
        """Fill `queries` from accepted int32 [B, K + 1] and counts int32 [B], before the context lengths advance.

        The block stands after the context as it will be, at most at its limit; context positions are not limited.
        """
        queries, lengths = self.queries, self.context_lengths[self.slots]
        last = (counts.long() - 1).clamp(min=0).unsqueeze(1)
        bonus = accepted.long().gather(1, last).squeeze(1)
        masks = torch.full((len(bonus), self.block - 1), self.settings.geometry.mask_token, device=bonus.device)
        tokens = torch.cat((bonus.unsqueeze(1), masks), dim=1)
        first = (lengths + counts).clamp(max=self.settings.draft_context)
        queries.bonus.copy_(bonus)
        queries.counts.copy_(counts)
        queries.positions.copy_(first.unsqueeze(1) + torch.arange(self.block, device=bonus.device))
        queries.context_positions.copy_(self.row_positions(lengths))
        queries.noise.copy_(look_up(self.target.embedding, tokens))

    def row_positions(self, lengths: Tensor) -> Tensor:
        """Where the verified rows stand behind contexts of lengths int64 [B], not limited: int64 [B, K + 1]."""
        return lengths.unsqueeze(1) + torch.arange(self.captured.shape[1], device=lengths.device)

    def block_positions(self) -> Tensor:
        """Where the block's tokens stand, one number each whatever the runner gives: int64 [B, S]."""
        return temporal(self.queries.positions).view(-1, self.block)

    def context_kv(self) -> None:
        """Take the accepted rows into the context, and have its keys and values ready for the block."""
        self.extend_context()
        self.advance()

    def extend_context(self) -> None:
        """Write the rows that were accepted behind the context, where the block will find them."""
        self.context_pass()

    def context_rows(self) -> Tensor:
        """The verified rows as the context keeps them, none masked yet: what `project_rows` makes of their taps."""
        return self.project_rows(self.captured, self.queries.context_positions)

    def advance(self) -> None:
        """Count the accepted rows as context; the dummy slot stays empty, whatever its rows did."""
        lengths = self.context_lengths
        lengths[self.slots] += self.queries.counts
        lengths.clamp_(max=self.settings.draft_context)
        lengths[self.batch.dummy].zero_()
        self.visible_context.copy_(lengths[self.slots])

    def forward(self) -> Draft:
        """One pass over the block; its result is overwritten by the next."""
        return self.block_pass()

    def project(self, taps: Tensor) -> Tensor:
        """Taps [..., taps * hidden] to the drafter's width: hidden_norm(fc(taps)), [..., hidden]."""
        return rms_norm(F.linear(taps, self.fc), self.hidden_norm)

    def accepted_rows(self) -> Tensor:
        """1 where a verified row was accepted, 0 where not: [B, K + 1] in the activations' dtype."""
        rows = torch.arange(self.captured.shape[1], device=self.captured.device)
        return (rows < self.queries.counts.unsqueeze(1)).to(self.captured.dtype)

    def admit(self, row: int, slot: int, taps: Tensor, following: Sequence[int]) -> bool:
        """Remember a new request's prompt by its taps [tokens, taps * hidden]; False where it is too long to follow.

        `following` are the tokens behind each of the prompt's, the first new one included: for whoever reads them.
        """
        follows = len(taps) <= self.settings.draft_context
        self.followed_slots[slot].fill_(slot if follows else self.batch.dummy)
        if follows:
            self.remember_prompt(row, slot, taps)
            self.context_lengths[slot].fill_(len(taps))
        return follows

    def followed(self, tokens: Tensor) -> Tensor:
        """Drafted tokens [B, K], -1 in the rows whose request is not followed."""
        return tokens.masked_fill((self.slots == self.batch.dummy).unsqueeze(1), -1)

    def forget_graphs(self) -> None:
        """Capture anew at the next pass, as is needed after a function was replaced."""
        for each in self.passes:
            each.forget()

    @abstractmethod
    def project_rows(self, taps: Tensor, positions: Tensor) -> Tensor:
        """What the context keeps of taps [..., taps * hidden] at positions [...]; needs nothing of acceptance."""

    @abstractmethod
    def remember(self) -> None:
        """Write the context of `captured` at its positions; lengths advance afterwards, so that it can be repeated."""

    @abstractmethod
    def remember_prompt(self, row: int, slot: int, taps: Tensor) -> None:
        """Write a whole prompt's context at positions 0, 1, 2..."""

    @abstractmethod
    def metadata(self) -> None:
        """What the block attends to and where its own keys go, after the context has advanced."""

    @abstractmethod
    def draft_block(self) -> Draft:
        """The block through every layer, to tokens."""
