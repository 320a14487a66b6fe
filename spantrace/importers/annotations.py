"""Which annotations of which engine mark a cycle or a span.

The names are those that vLLM (`VLLM_CUSTOM_SCOPES_FOR_PROFILING=1`), SGLang and TensorRT-LLM give their ranges; a
range of spantrace's own is called like its span. vLLM's `preprocess` holds the attention metadata too, and its
`postprocess` computes the logits, which belong to the sample as in `spantrace.vllm_adapter.hooks`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spantrace.spans import SPAN_ID, Kind

_SPANS = {
    "gpu_model_runner: preprocess": "target.input_prep",
    "gpu_model_runner: forward": "target.forward",
    "gpu_model_runner: postprocess": "sample",
    "gpu_model_runner: sample": "sample",
    "gpu_model_runner: bookkeep": "postprocess",
    "gpu_model_runner: ModelRunnerOutput": "postprocess",
    "gpu_model_runner: AsyncGPUModelRunnerOutput": "postprocess",
    "gpu_model_runner: draft": "draft.propose",
    "scheduler.get_next_batch_to_run": "schedule",
    "scheduler.process_batch_result": "output.update",
    "_schedule": "schedule",
    "_prepare_tp_inputs": "target.input_prep",
    "_sample_async": "sample",
    "_update_requests": "output.update",
}
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_VLLM = re.compile(r"execute_context_(\d{1,9})\((?:sq)?(\d{1,9})[^)]*\)_generation_(\d{1,9})\((?:sq)?(\d{1,9})(?!\d)")
_VLLM_BEFORE = re.compile(r"execute_new_(\d{1,9})_cached_(\d{1,9})(?!\d)")
_SGLANG = re.compile(r"step\[(\w+) bs=(\d{1,9})(?!\d)(?: toks=(\d{1,9})(?!\d))?")
_TENSORRT_LLM = re.compile(r"\[Executor\] _forward_step \d+: (\d{1,9}) ctx reqs,.* (\d{1,9}) gen reqs")
_COMMUNICATION = re.compile(
    r"nccl|rccl|multimem|deep_ep|cross_device_reduce|all_?(reduce|gather)|reduce_?scatter", re.I
)
"""NCCL's kernels, and those by which vLLM, FlashInfer and PyTorch's symmetric memory do the same themselves."""
VERIFY = "step[TARGET_VERIFY "
_SYNCHRONIZE = re.compile(r"(cuda|cu|hip)(Stream|Event|Device|Ctx)Synchronize")


@dataclass(frozen=True)
class Batch:
    """What an engine's annotation says of one step: requests, and tokens where it says them (else 0)."""

    kind: Kind
    requests: int
    tokens: int


def step_number(name: str) -> int | None:
    """N of `ProfilerStep#N`."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def batch_of(name: str) -> Batch | None:
    """The step that vLLM, SGLang or TensorRT-LLM announces by this name; None if it announces none."""
    if found := _VLLM.match(name):
        context, context_tokens, generation, tokens = map(int, found.groups())
        return Batch(_kind(context, generation), context + generation, context_tokens + tokens)
    if found := _VLLM_BEFORE.match(name) or _TENSORRT_LLM.match(name):
        context, generation = map(int, found.groups())
        return Batch(_kind(context, generation), context + generation, 0)
    if found := _SGLANG.match(name):
        mode, size, tokens = found[1], int(found[2]), int(found[3] or 0)
        kind = {"EXTEND": Kind.PREFILL, "MIXED": Kind.MIXED}.get(mode, Kind.STEADY)
        return Batch(kind, size, tokens)
    return None


def _kind(context: int, generation: int) -> Kind:
    if not context:
        return Kind.STEADY if generation else Kind.EMPTY
    return Kind.MIXED if generation else Kind.PREFILL


def span_of(name: str) -> int | None:
    """The id of the span that a range of this name is; None if it is none."""
    return SPAN_ID.get(_SPANS.get(name, name)) if name != "cycle" else None


def waits(name: str) -> bool:
    """Whether a CUDA call of this name does nothing but wait for the GPU."""
    return _SYNCHRONIZE.match(name) is not None


def communicates(name: str) -> bool:
    """Whether a kernel of this name exchanges data with the GPUs of other ranks; also where it does more than that."""
    return _COMMUNICATION.search(name) is not None


def launches_graph(name: str) -> bool:
    """Whether a CUDA call of this name launches a captured graph."""
    return "GraphLaunch" in name
