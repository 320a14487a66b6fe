"""Drives the scheduler of a vLLM that keeps the last block by itself as `prefix_lookups` does, with its stock restored.

The arm "kept" of a run is the one in which stock-keep-last-block is on, "stock" is vLLM as it is, and "never" a
scheduler that was built to drop. Prints as JSON what each run did, and what else there is to know.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import prefix_lookups
import vllm
from prefix_lookups import Maker, Run, carried_out
from vllm.config import SpeculativeConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

import optimized
from optimized.keep_last_block import dropped

ID = prefix_lookups.ID = "stock-keep-last-block"


class Restoring(Maker):
    """Makes schedulers as vLLM does, and such as it made before it had the fix."""

    def scheduler(self, run: Run) -> Any:
        with ExitStack() as stack:
            if run.method == "unheard-of":
                stack.enter_context(mock.patch.object(SpeculativeConfig, "use_eagle", return_value=True))
            if run.arm == "never":
                stack.enter_context(mock.patch.object(SpeculativeConfig, "needs_eagle_block_drop", return_value=True))
                stack.enter_context(mock.patch.object(self.speculation, "disable_lookahead_block_hashes", True))
            return self._made(run)


def rules(scheduler: Any) -> list[Any]:
    """Which groups of a scheduler drop a block, wherever it is written."""
    coordinator = scheduler.kv_cache_manager.coordinator
    groups = [group.use_eagle for group in getattr(coordinator, "attention_groups", ())]
    managers = [(one.use_eagle, getattr(one, "drop_eagle_checkpoint_block", None)) for one in
                coordinator.single_type_managers]  # fmt: skip
    return [sorted(coordinator.eagle_group_ids), sorted(coordinator.drop_eagle_group_ids), groups, managers]


def written(maker: Maker, layout: str) -> dict[str, Any]:
    """The rules of a scheduler as it is, with stock restored, afterwards, and of one that was built to drop."""
    now, built = maker.scheduler(Run(layout)), maker.scheduler(Run(layout, arm="never"))
    found = {"now": rules(now), "built": rules(built)}
    optimized.apply([ID], vllm.__version__)
    optimized._applied[ID].switch._keeps(now)  # type: ignore[attr-defined]
    found["restored"] = rules(now)
    optimized.revert([ID])
    return found | {"afterwards": rules(now)}


def refusals(maker: Maker) -> dict[str, str | None]:
    """Why a scheduler stays as it is, in each of the situations that can be made here."""
    plain, connected, other, shared = (maker.scheduler(Run()) for _ in range(4))
    connected.connector = plain
    coordinator = other.kv_cache_manager.coordinator
    coordinator.__class__ = type("OtherCoordinator", (type(coordinator),), {})
    shared.kv_cache_manager.mamba_shared_prefix_checkpoint = True
    return {
        "none": dropped.refusal(plain),
        "connector": dropped.refusal(connected),
        "coordinator": dropped.refusal(other),
        "shared": dropped.refusal(shared),
        "caching": dropped.refusal(maker.scheduler(Run(caching=False))),
        "built": dropped.refusal(maker.scheduler(Run(arm="never"))),
        "fine exported": dropped.refusal(maker.scheduler(Run("fine exported"))),
    }


def failing(maker: Maker) -> list[dict[str, Any]]:
    """A run in which each function of ours fails."""
    found = []
    for name in ("drop", "refusal"):
        with mock.patch.object(dropped, name, side_effect=RuntimeError("planted")):
            found.append(carried_out(maker, Run("states", arm="kept")))
    return found


def main(plan: list[dict[str, Any]]) -> dict[str, Any]:
    """What each run of the plan did, and the rest."""
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as scratch:
        maker = Restoring(Path(scratch))
        return {
            "runs": [carried_out(maker, Run(**run)) for run in plan],
            "written": {layout: written(maker, layout) for layout in ("full", "window", "states", "fine states")},
            "refusals": refusals(maker),
            "failing": failing(maker),
        }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
