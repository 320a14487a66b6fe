"""What the chain is timed on: the tokens of a full batch of blocks, by the drafter's own loop and by the chain."""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.cases import Contest, behind_a_shallow_target
from optimized.markov_chain.switch import MarkovChain, head_of
from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.dspark import DSparkDrafter
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import Target


def contest(settings: Settings) -> Contest:
    """One call of `refine`.

    What must be read is the projection once a step, since a step needs the token of the one before.
    """
    settings = behind_a_shallow_target(replace(settings, drafter="dspark"))
    drafter, switch = DSparkDrafter(settings, Target(settings), Batch(settings)), MarkovChain()
    words, random = settings.geometry.vocab, torch.Generator(settings.device).manual_seed(7)
    shape = (settings.batch, settings.speculative, words)
    logits = torch.randn(shape, generator=random, device=settings.device).to(settings.torch_dtype)
    drafter.queries.bonus.copy_(torch.arange(settings.batch) % words)
    head = head_of(drafter)
    embedded = head.embedding[: settings.batch * settings.speculative]
    return Contest(
        "the tokens of a cycle's blocks, one after another",
        stock=lambda: drafter.refine(logits),
        fast=lambda: switch.refine(drafter, logits),
        read=(logits, embedded, *(head.projection,) * settings.speculative),
        written=switch.refine(drafter, logits),
    )
