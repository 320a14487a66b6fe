"""Runs as one of two ranks that hold half of the vocabulary each: prints what a cycle gives, and the rows it summed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# This folder would pass for the package of the same name.
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from small_cycles import SMALL, prompts_for, small, source_for

import optimized
from optimized.reference_cycle.comparison import DraftLog
from optimized.reference_cycle.cycle import Cycle, generate
from optimized.reference_cycle.embedding import VocabularyShard
from optimized.reference_cycle.settings import DRAFTERS

OUTPUT = 6


def main(rank: int, store: str) -> None:
    """Each drafter once as it is, and once with query-build."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ways: dict[str, list[str]] = {"stock": [], "fast": ["query-build"]}
    found = {drafter: {way: results(rank, drafter, ids) for way, ids in ways.items()} for drafter in DRAFTERS}
    torch.distributed.destroy_process_group()
    print(json.dumps(found))


def results(rank: int, drafter: str, ids: list[str]) -> dict[str, object]:
    """Tokens, every draft with its logits, the sizes of the lookups in rows, and the switch's counts."""
    settings, log, rows = small(drafter=drafter), DraftLog(), set[int]()
    cycle = Cycle(settings, source_for("forced", settings), log)
    whole, half = cycle.target.embedding, SMALL.vocab // 2
    assert isinstance(whole, torch.Tensor)

    class Counting(VocabularyShard):
        def look_up(self, ids: torch.Tensor) -> torch.Tensor:
            rows.add(ids.numel())
            return super().look_up(ids)

    first = rank * half
    cycle.target.embedding = Counting(whole[first : first + half + rank].clone(), first)
    optimized.apply(ids)
    tokens = generate(cycle, prompts_for(settings), OUTPUT).tokens
    counts = optimized.counts()
    optimized.revert()
    drafts = {str(place): [draft.tokens.tolist(), draft.logits.tolist()] for place, draft in log.drafts.items()}
    return {"tokens": tokens, "drafts": drafts, "rows": sorted(rows), "counts": counts}


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
