"""What is read from the arguments and results of hooked vLLM calls: step ids, batches, acceptance, graph modes.

Each probe is a method named as the hook tables name it, called with the wrapped call's own arguments before it
(`*_before`) or with its start and result too (`*_after`). Probes only read, with one exception: the step id is
set as an attribute on the scheduler's output, with which it travels to the workers.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from typing import Any

from spantrace.recorder import Recorder
from spantrace.spans import GraphMode

STEP = "spantrace_step"
IDLE_NS = 1_000_000
"""A longer wait for requests than this means that the engine was idle."""
_steps = itertools.count(1)
_runner: Callable[[], Any] = lambda: None  # noqa: E731


def known_runner() -> Any:
    """The model runner that a hook of this or an earlier recording saw, None before the first."""
    return _runner()


class Probes:
    """The probes of one recording in one process; `on_runner` is called once, with the first model runner seen.

    `in_detail()` is asked at each cycle's start whether the cycle is one to record in detail.
    """

    def __init__(
        self, recorder: Recorder, on_runner: Callable[[Any], None], in_detail: Callable[[], bool] = lambda: True
    ) -> None:
        self._fact = recorder.fact
        self._gpu, self._in_detail, self._delays = recorder.gpu, in_detail, recorder.delays
        self._on_runner: Callable[[Any], None] | None = on_runner
        self._pairs: list[int] = []
        self._scheduler: Any = None

    def config(self) -> Any:
        """The server's configuration, once a hook has seen the scheduler or the runner that holds it."""
        return getattr(self._scheduler or known_runner(), "vllm_config", None)

    def idle_after(self, start: int, *_: Any) -> None:
        """Note a wait for requests that was long enough to be idleness."""
        end = time.perf_counter_ns()
        if end - start > IDLE_NS:
            self._fact("idle", start, end)
        if self._delays:
            self._delays.new_cycle(turn=True)

    def schedule_after(self, start: int, output: Any, scheduler: Any, *_: Any) -> None:
        """Number the step and note its tokens, requests, prefilling requests and requests with drafts."""
        self._scheduler = scheduler
        step = next(_steps)
        setattr(output, STEP, step)
        prefilling = len(output.scheduled_new_reqs) + output.scheduled_cached_reqs.num_output_tokens.count(0)
        tokens, batch = output.total_num_scheduled_tokens, len(output.num_scheduled_tokens)
        drafting, skipping = len(output.scheduled_spec_decode_tokens), int(bool(getattr(output, "skip_drafts", False)))
        self._fact("schedule", step, start, tokens, batch, prefilling, drafting, skipping)

    def acceptance_before(
        self, _: Any, __: Any, drafted: int, accepted: int, invalid: dict[str, int] | None, request: str
    ) -> None:
        """Note one request's drafted and accepted tokens, as vLLM's own counters get them."""
        self._pairs += (drafted - (invalid.get(request, 0) if invalid else 0), accepted)

    def update_after(self, start: int, outputs: dict[int, Any], _: Any, scheduler_output: Any, *__: Any) -> None:
        """Note what the step accepted, and for how many requests it gave an output: none if all had finished."""
        pairs, self._pairs = self._pairs, []
        given = 0
        for output in outputs.values():
            given += len(output.outputs)
        self._fact("update", getattr(scheduler_output, STEP, 0), start, given, pairs)

    def execute_before(self, worker: Any, scheduler_output: Any, *_: Any) -> None:
        """Note which step this worker was handed, and when."""
        global _runner
        self._fact("execute", getattr(scheduler_output, STEP, 0), time.perf_counter_ns())
        if self._delays:
            self._delays.new_cycle(turn=False)
        detailed = self._in_detail()
        if self._gpu:
            self._gpu.new_cycle(detailed)
        if self._on_runner:
            found, self._on_runner = self._on_runner, None
            _runner = weakref.ref(worker.model_runner)
            found(worker.model_runner)

    def graph_after(self, start: int, result: tuple[Any, ...], *_: Any, **__: Any) -> None:
        """Note which kind of CUDA graph the target pass of this step uses: from (descriptor or mode, ...)."""
        mode = getattr(result[0], "cg_mode", result[0])
        self._fact("graph", start, int(GraphMode[mode.name]) if mode.name in GraphMode.__members__ else 0)
