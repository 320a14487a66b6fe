"""A small engine with its worker in one process, as vLLM's on one GPU, whose functions get the hooks of vLLM's own."""

from __future__ import annotations

import dataclasses
import time
import types
from typing import Any

from spantrace.frames import Frame, packed, unpack_rows
from spantrace.gpu_clock import GpuClock
from spantrace.header import complete_header
from spantrace.joining import join
from spantrace.recorder import Recorder
from spantrace.recording import Recording
from spantrace.vllm_adapter.hook_types import Hook, ModelHook
from spantrace.vllm_adapter.hooks import HOOKS
from spantrace.vllm_adapter.installation import Installation
from spantrace.vllm_adapter.probes import Probes

DRAFTED, ACCEPTED = 2, 1


class Scheduler:
    def schedule(self) -> Any:
        requests = types.SimpleNamespace(num_output_tokens=[4])
        return types.SimpleNamespace(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=requests,
            total_num_scheduled_tokens=3,
            num_scheduled_tokens={"a": 3},
            scheduled_spec_decode_tokens={"a": [1, 2]},
        )

    def make_spec_decoding_stats(self, stats: Any, drafted: int, accepted: int, invalid: Any, request: str) -> None: ...

    def update_from_output(self, scheduler_output: Any, output: Any) -> Any:
        self.make_spec_decoding_stats(None, DRAFTED, ACCEPTED, None, "a")
        return {0: types.SimpleNamespace(outputs=["a"])}


class Model:
    def forward(self) -> None: ...


class Metadata:
    @staticmethod
    def build() -> None: ...


class Output:
    def get_output(self) -> None: ...


class Event:
    def synchronize(self) -> None: ...


class Runner:
    """What a V1 runner shows: a model with a class of its own, and an event for which it waits inline."""

    def __init__(self) -> None:
        self.model, self.prepare_inputs_event = Model(), Event()

    def prepare_attn(self) -> None:
        self.prepare_inputs_event.synchronize()
        Metadata.build()

    def _determine(self) -> Any:
        return (types.SimpleNamespace(name="FULL"),)

    def sample(self) -> None: ...

    def postprocess(self) -> None: ...

    def propose(self) -> None:
        prepare_inputs()


class Worker:
    def __init__(self) -> None:
        self.model_runner = Runner()

    def execute_model(self, scheduler_output: Any) -> Output:
        runner = self.model_runner
        runner._determine()
        runner.prepare_attn()
        runner.model.forward()
        runner.sample()
        runner.propose()
        runner.postprocess()
        return Output()


class Engine:
    def __init__(self) -> None:
        self.scheduler, self.worker = Scheduler(), Worker()

    def _process_engine_step(self) -> None:
        scheduled = self.scheduler.schedule()
        output = self.worker.execute_model(scheduled)
        output.get_output()
        self.scheduler.update_from_output(scheduled, output)


def prepare_inputs() -> None: ...


LIKE = {
    "Engine._process_engine_step": "EngineCoreProc._process_engine_step",
    "Scheduler.schedule": "Scheduler.schedule",
    "Scheduler.update_from_output": "Scheduler.update_from_output",
    "Scheduler.make_spec_decoding_stats": "Scheduler.make_spec_decoding_stats",
    "Worker.execute_model": "Worker.execute_model",
    "Runner._determine": "GPUModelRunner._determine_batch_execution_and_padding",
    "Runner.prepare_attn": "DefaultModelState.prepare_attn",
    "Metadata.build": "FlashAttentionMetadataBuilder.build",
    "Runner.sample": "GPUModelRunner.sample",
    "Runner.postprocess": "GPUModelRunner.postprocess_sampled",
    "Runner.propose": "DFlashSpeculator.propose",
    "prepare_inputs": "prepare_dflash_inputs",
    "Output.get_output": "AsyncOutput.get_output",
}
"""Each function here, and the one of vLLM's whose hook it gets."""
MODEL_HOOKS = (ModelHook("target.forward", "target", "call"),)
EVERY_CYCLE = ("cycle", "schedule", "output.update")


def hooks() -> list[Hook]:
    """The hooks of vLLM's functions on those of this module."""
    known = {hook.name: hook for hook in HOOKS}
    return [
        dataclasses.replace(known[theirs], target=f"{__name__}:{ours}", versions=">=0.26")
        for ours, theirs in LIKE.items()
    ]


class Mark:
    """A timing event that an idle GPU passes at once."""

    def record(self, stream: str) -> None:
        self.at_ns = time.perf_counter_ns()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Mark) -> float:
        return (other.at_ns - self.at_ns) / 1e6


class Sampled:
    """A recording of an engine, in which one run of cycles in `every` is in detail; it has a GPU that idles."""

    def __init__(self, every: int) -> None:
        self.clock = GpuClock([Mark() for _ in range(1000)], lambda: "stream")
        self.recorder = Recorder(gpu=self.clock)
        self.probes = Probes(
            self.recorder,
            lambda runner: self.installation.hook_runner(runner),
            lambda on: self.installation.detail(on),
            every,
        )
        self.installation = Installation(self.recorder, self.probes)
        self.installation.plan(hooks())
        self.installation.install()
        self.engine = Engine()
        self.frames: list[Frame] = []

    def turn(self) -> list[str]:
        """One turn of the engine's loop; the spans that it was recorded as, in the order in which they ended."""
        self.engine._process_engine_step()
        while self.clock.resolve():
            pass
        frames = [packed(frame) for frame in self.recorder.drain()]
        self.frames += frames
        rows = [row for frame in frames if frame["type"] == "rows" for row in unpack_rows(frame).tolist()]
        return [self.installation.sites[site][0] for site, _, _ in rows]

    def joined(self) -> Recording:
        """The recording so far."""
        about = {"pid": 1, "role": "engine", "missing": self.installation.missing}
        sites = {"sites": self.installation.sites, "graphs": self.installation.graphs}
        frames = [
            {"type": "armed", "about": about, "calibration": {"host_span_ns": 200.0}},
            *self.frames,
            {"type": "stopped", "health": self.recorder.health(), **sites},
        ]
        frames = [{**frame, "process": 0} for frame in frames]
        header = {"server": {"num_speculative_tokens": DRAFTED}, "options": {}, "notes": []}
        return join(complete_header(header, frames), frames, partial=False)
