"""Which method of the cycle each span is, so that a recorder can wrap exactly those."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from optimized.reference_cycle.acceptance import Verifier
from optimized.reference_cycle.cycle import Cycle
from optimized.reference_cycle.facts import Facts
from optimized.reference_cycle.scheduler import Scheduler
from optimized.reference_cycle.target import Target
from spantrace.patching import PatchSet, plan
from spantrace.recorder import Recorder, Site


@dataclass(frozen=True)
class SpanSite:
    """A span of `spantrace.spans` and the method `owner.method` that it times; `gpu`: it launches work worth timing.

    `probe` names the probe of `Facts` that reads the call.
    """

    span: str
    owner: type
    method: str
    gpu: bool = False
    probe: str = ""


def span_sites(cycle: Cycle) -> list[SpanSite]:
    """The spans of this cycle with its own drafter's class; five of them get GPU time, ten events a cycle."""
    drafter = type(cycle.drafter)
    drafting = [
        SpanSite("draft.propose", drafter, "propose"),
        SpanSite("draft.input_prep", drafter, "input_prep"),
        SpanSite("draft.context_kv", drafter, "context_kv", gpu=True),
        SpanSite("draft.metadata", drafter, "metadata"),
        SpanSite("draft.forward", drafter, "forward", gpu=True),
    ]
    states = [SpanSite("target.metadata.mamba", Target, "state_metadata")]
    return [
        SpanSite("cycle", Cycle, "step"),
        SpanSite("schedule", Scheduler, "schedule", probe="schedule"),
        SpanSite("target.input_prep", Target, "input_prep", probe="inputs"),
        SpanSite("target.metadata", Target, "metadata"),
        SpanSite("target.metadata.attention", Target, "attention_metadata"),
        *(states if cycle.target.state_layers else []),
        SpanSite("target.forward", Target, "forward", gpu=True, probe="forward"),
        SpanSite("sample", Verifier, "sample", gpu=True),
        SpanSite("postprocess", Cycle, "postprocess", gpu=True),
        *(drafting if cycle.drafter else []),
        SpanSite("output.wait", Cycle, "wait"),
        SpanSite("output.update", Scheduler, "update", probe="update"),
        SpanSite("output.emit", Cycle, "emit"),
    ]


def instrument(sites: list[SpanSite], recorder: Recorder, facts: Facts | None = None) -> PatchSet:
    """Patches, not yet installed, under which each call of sites[i] becomes a row of site i, and is read by `facts`."""
    patches = PatchSet()
    for row, site in enumerate(sites):
        before, after = (getattr(facts, f"{site.probe}_{when}", None) for when in ("before", "after"))
        recorded = Site(site.span, row, site.gpu, before=before, after=after)
        patches.add(plan(site.owner, site.method, partial(recorder.wrap, site=recorded)))
    return patches
