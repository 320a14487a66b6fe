"""Build a Mamba layer's metadata of a step that only decodes without sorting its requests into decodes and prefills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimized.optimization import Agreement, Optimization, Switch, needs_package
from optimized.seams import Seam
from optimized.uniform_decode_metadata.sources import BUILD, SOURCES

if TYPE_CHECKING:
    from optimized.cases import Case
    from optimized.reference_cycle.settings import Settings


def _memory(settings: Settings) -> int:
    """The kept offsets of a request's state blocks, int32."""
    return 4 * (1 + settings.speculative)


def _switch() -> Switch:
    from optimized.uniform_decode_metadata.vllm import Shortcut

    return Shortcut()


def _cases() -> list[Case]:
    from optimized.uniform_decode_metadata.reference import cases

    return cases()


OPTIMIZATION = Optimization(
    id="uniform-decode-metadata",
    summary="a step in which all requests decode is not sorted into decodes and prefills for each Mamba layer group",
    seed="vLLM, four fixes for DFlash and DSpark, fix 4",
    figure="target input preparation 1.75 to 1.58 ms a cycle on a GB200, claimed there",
    targets=("target.metadata.mamba",),
    seams=(Seam(BUILD, "vllm >=0.26,!=0.27.*,<0.34"),),
    requirements=(needs_package("vllm"),),
    guard="no request is prefilling and no query is longer than the decode threshold; a hit is one build",
    agreement=Agreement.BITWISE,
    memory=_memory,
    live_switchable=True,
    vllm_switch=_switch,
    cases=_cases,
    sources=SOURCES,
    evidence="tests/servers/test_optimize.py::test_it_has_hits_and_its_metadata_is_the_full_chains_on_every_build",
)
