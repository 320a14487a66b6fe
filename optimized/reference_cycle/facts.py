"""What the built-in cycle notes of itself while it is recorded: the facts that the hooks of a server note.

Like those, a probe is called with the wrapped call's own arguments, before it (`*_before`) or with its start and
result too (`*_after`), and only reads.
"""

from __future__ import annotations

import time

from optimized.reference_cycle.batch import Batch
from optimized.reference_cycle.scheduler import Plan, Progress, Scheduler
from optimized.reference_cycle.target import Target, TargetOutput
from spantrace.recorder import Recorder
from spantrace.spans import GraphMode


class Facts:
    """The probes of one recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._fact, self._gpu = recorder.fact, recorder.gpu
        self._step = 0

    def schedule_after(self, start: int, plan: Plan, scheduler: Scheduler) -> None:
        """Note the step, its tokens, requests, prefilled requests, and requests whose drafts it verifies."""
        self._step = plan.step
        drafting = sum(request.steps > 0 and request.drafting for request in plan.running)
        batch, prefilling = len(plan.running), len(plan.admitted)
        self._fact("schedule", plan.step, start, plan.scheduled_tokens, batch, prefilling, drafting, 0)

    def inputs_before(self, target: Target, batch: Batch) -> None:
        """Note when the work of the step begins; prompts were prefilled before it, in no span."""
        self._fact("execute", self._step, time.perf_counter_ns())
        if self._gpu:
            self._gpu.new_cycle()

    def forward_after(self, start: int, output: TargetOutput, target: Target) -> None:
        """Note whether the target's pass was a CUDA graph."""
        self._fact("graph", start, int(GraphMode.FULL if target.replayed() else GraphMode.NONE))

    def update_after(
        self, start: int, progress: Progress, scheduler: Scheduler, plan: Plan, accepted: list[list[int]]
    ) -> None:
        """Note for how many requests the step gave tokens, and drafted and accepted of each drafting one."""
        pairs = [number for pair in progress.acceptance for number in pair]
        self._fact("update", progress.step, start, len(progress.tokens), pairs)
