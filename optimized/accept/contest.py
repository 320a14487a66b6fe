"""What the kernels are timed on: the verdict on a full batch, by the verifier's own method and by the kernels."""

from __future__ import annotations

import torch

from optimized.accept.accepting import Buffers, accept
from optimized.cases import Contest
from optimized.reference_cycle.acceptance import Verifier
from optimized.reference_cycle.settings import Settings


def contest(settings: Settings) -> Contest:
    """One verdict on random logits of K + 1 rows, and drafts of which about half stand."""
    batch, rows, words, device = settings.batch, settings.speculative + 1, settings.geometry.vocab, settings.device
    random, verifier = torch.Generator(device).manual_seed(9), Verifier()
    logits = torch.empty(batch, rows, words, dtype=settings.torch_dtype, device=device).normal_(generator=random)
    drafts = logits[:, :-1].argmax(dim=-1)
    drafts[:, (rows - 1) // 2] = -1
    buffers = Buffers.create(batch, rows, words, device)
    verdict = buffers.verdict
    return Contest(
        "the verdict on a cycle's drafts",
        stock=lambda: verifier.accept(logits, drafts),
        fast=lambda: accept(logits, drafts, buffers),
        read=(logits, drafts),
        written=(verdict.accepted, verdict.counts, verdict.newest),
    )
