"""Small runs of the reference cycle that several test files share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import optimized
from optimized.reference_cycle.acceptance import Continuation, Forced
from optimized.reference_cycle.comparison import DraftLog
from optimized.reference_cycle.cycle import Cycle, Generation, autoregressive, generate, random_prompts
from optimized.reference_cycle.geometry import DFlashShape, DSparkShape, Geometry, StateShape
from optimized.reference_cycle.settings import Settings

SMALL = Geometry(
    "small",
    hidden=32,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate=48,
    vocab=97,
    taps=(0, 2),
    state=StateShape(heads=2, head_dim=8, size=8, width=4),
    dflash=DFlashShape(layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=48),
    dspark=DSparkShape(
        layers=2, heads=2, latent=16, rope_dim=4, nope_dim=8, value_dim=8, intermediate=48, markov_rank=8
    ),
    mask_token=96,
)
WITH_STATES = replace(SMALL, state_layers=(1,))
PROMPT, OUTPUT = 19, 11
LONG, SHORT = {"context": PROMPT + 21}, {"context": PROMPT + 6}
"""Of settings: outputs for twice as many cycles, where no kernel is interpreted, and for few, where no draft stands."""


def small(geometry: Geometry = SMALL, **changes: Any) -> Settings:
    """Settings with room for a prompt and an output, which end in the middle of a page."""
    defaults = {"batch": 2, "draft_length": 3, "context": PROMPT + OUTPUT, "page_size": 8}
    return Settings(geometry, **{**defaults, **changes})


def output_of(settings: Settings) -> int:
    """As many tokens as there is room for behind a prompt."""
    return settings.context - PROMPT


def prompts_for(settings: Settings, count: int | None = None) -> list[list[int]]:
    """Prompts of different lengths, two more than fit into the batch."""
    count = settings.batch + 2 if count is None else count
    return [prompt[: PROMPT - index % 4] for index, prompt in enumerate(random_prompts(settings, count, PROMPT))]


@lru_cache(maxsize=128)
def _expected(settings: Settings, count: int) -> list[list[int]]:
    return autoregressive(settings, prompts_for(settings, count), output_of(settings))


def expected(settings: Settings, count: int | None = None) -> list[list[int]]:
    """The target's own tokens for these settings, whatever drafts."""
    count = settings.batch + 2 if count is None else count
    return _expected(replace(settings, drafter="none", draft_length=1), count)


def source_for(mode: str, settings: Settings, lengths: Sequence[int] | None = None) -> Continuation | Forced | None:
    """Where the tokens to verify come from: "drafter", "continuation" or "forced"."""
    if mode == "drafter":
        return None
    tokens = expected(settings)
    lengths = range(settings.speculative + 1) if lengths is None else lengths
    return Continuation(tokens, 0.3) if mode == "continuation" else Forced(tokens, lengths)


def run(
    settings: Settings, mode: str = "continuation", lengths: Sequence[int] | None = None
) -> tuple[Generation, DraftLog]:
    """Generate with a fresh cycle, keeping every draft."""
    log = DraftLog()
    cycle = Cycle(settings, source_for(mode, settings, lengths), log)
    return generate(cycle, prompts_for(settings), output_of(settings)), log


@lru_cache(maxsize=128)
def stock(settings: Settings, mode: str = "continuation") -> tuple[Generation, DraftLog]:
    """A run with nothing switched on or patched, made once."""
    assert optimized.applied() == ()
    return run(settings, mode)
