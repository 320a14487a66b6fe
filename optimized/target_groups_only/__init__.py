"""Build no attention metadata for the drafter's layers in the target's step, which never runs them."""

from __future__ import annotations

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam
from optimized.target_groups_only.sources import SOURCES, STEP

OPTIMIZATION = Optimization(
    id="target-groups-only",
    summary="no metadata is built in the target's step for attention groups whose layers all are the drafter's",
    seed="beyond the write-ups: found by reading vLLM's step, where both models' groups are one list",
    figure="predicted 0.05 to 0.09 ms of target.metadata a cycle on an H200, NemotronH + DFlash; not measured",
    targets=("target.metadata", "target.metadata.attention"),
    seams=(Seam(STEP, "vllm >=0.26,!=0.27.*,<0.34"),),
    requirements=(needs_package("vllm"),),
    guard="groups of the drafter alone, no KV connector, no microbatches, no context parallelism; a hit is one step",
    agreement=Agreement.BITWISE,
    memory=lambda _: 0,
    live_switchable=True,
    vllm_switch=late("optimized.target_groups_only.vllm:TargetGroupsOnly"),
    cases=late("optimized.target_groups_only.reference:cases"),
    sources=SOURCES,
    methods=("dflash", "dspark"),
    evidence="tests/servers/test_target_groups_on_a_server.py::test_every_step_builds_the_targets_metadata_alone",
)
