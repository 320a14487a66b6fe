"""Build the Mamba layers' metadata of a step that only decodes once for all their groups, and without sorting it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam
from optimized.uniform_decode_metadata.sources import BUILD, SOURCES

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings


FIELDS, MOST_GROUPS = 6, 16
"""Numbers that the kernel is told of a group, and for how many groups memory is declared: few have more."""


def _memory(settings: Settings) -> int:
    """The offsets of a request's state blocks, int32, and what a step's groups share: a batch's columns, and where each
    group's table and buffers lie, int64."""
    return (4 + 8 * settings.batch) * (1 + settings.speculative) + 8 * FIELDS * MOST_GROUPS


OPTIMIZATION = Optimization(
    id="uniform-decode-metadata",
    summary="a step in which all requests decode is not sorted into decodes and prefills, and Mamba's groups share it",
    seed="vLLM, four fixes for DFlash and DSpark, fix 4",
    figure="target input preparation 1.75 to 1.58 ms a cycle on a GB200, claimed there",
    targets=("target.metadata.mamba",),
    seams=(Seam(BUILD, "vllm >=0.26,!=0.27.*,<0.34"),),
    requirements=(needs_package("vllm"),),
    guard="no request is prefilling and no query is longer than the decode threshold; a hit is one group's build",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    vllm_switch=late("optimized.uniform_decode_metadata.vllm:Shortcut"),
    cases=late("optimized.uniform_decode_metadata.reference:cases"),
    sources=SOURCES,
    evidence="tests/servers/test_optimize.py::test_it_has_hits_and_its_metadata_is_the_full_chains_on_every_build",
)
