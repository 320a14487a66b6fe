"""What is read from the arguments and results of hooked vLLM calls: step ids, batches, acceptance, graph modes.

Each probe is a method named as the hook tables name it, called with the wrapped call's own arguments before it
(`*_before`) or with its start and result too (`*_after`). Probes only read, with one exception: the step id is
set as an attribute on the scheduler's output, with which it travels to the workers.

The engine's loop runs these with cold caches, where every object that is touched costs: they touch as few as they can.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from typing import Any

from spantrace.recorder import Recorder
from spantrace.sampling import in_detail, next_detail
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

    One run of steps in `every` is in detail, by their numbers, so that all workers agree. Where that changes,
    `detail(on)` is asked for it and says what is in force then. `rank` is that of this process's worker among those of
    its engine, None before a hook has seen one.
    """

    def __init__(
        self,
        recorder: Recorder,
        on_runner: Callable[[Any], None],
        detail: Callable[[bool], bool] = lambda on: on,
        every: int = 1,
    ) -> None:
        global _steps
        self._put = recorder.facts.put
        self._gpu, self._delays = recorder.gpu, recorder.delays
        self._detail, self._detailed, self._every = detail, True, every
        _steps = itertools.count(next_detail(next(_steps), every))
        self._on_runner: Callable[[Any], None] | None = on_runner
        self._pairs: list[int] = []
        self._scheduler: Any = None
        self.rank: int | None = None

    def config(self) -> Any:
        """The server's configuration, once a hook has seen the scheduler or the runner that holds it."""
        return getattr(self._scheduler or known_runner(), "vllm_config", None)

    def idle_after(self, start: int, *_: Any) -> None:
        """Note a wait for requests that was long enough to be idleness."""
        end = time.perf_counter_ns()
        if end - start > IDLE_NS:
            self._put((("idle", start, end),))
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
        self._put((("schedule", step, start, tokens, batch, prefilling, drafting, skipping),))

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
        self._put((("update", getattr(scheduler_output, STEP, 0), start, given, pairs),))

    def execute_before(self, worker: Any, scheduler_output: Any, *_: Any) -> None:
        """Note which step this worker was handed, when, and whether all hooks are in force for it."""
        global _runner
        handed, step = time.perf_counter_ns(), getattr(scheduler_output, STEP, 0)
        due = in_detail(step, self._every)
        if due is not self._detailed:
            self._detailed = self._detail(due)
        self._put((("execute", step, handed, self._detailed),))
        if self._delays:
            self._delays.new_cycle(turn=False)
        if self._gpu:
            self._gpu.new_cycle(self._detailed)
        if self._on_runner:
            found, self._on_runner = self._on_runner, None
            self.rank = getattr(worker, "rank", None)
            _runner = weakref.ref(worker.model_runner)
            found(worker.model_runner)

    def graph_after(self, start: int, result: tuple[Any, ...], *_: Any, **__: Any) -> None:
        """Note which kind of CUDA graph the target pass of this step uses: from (descriptor or mode, ...)."""
        mode = getattr(result[0], "cg_mode", result[0])
        self._put((("graph", start, int(GraphMode[mode.name]) if mode.name in GraphMode.__members__ else 0),))
