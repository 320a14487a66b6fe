"""The hook tables against the source archive of every supported vLLM; downloads about 350 MB once.

Run by `make test-versions`, which sets SPANTRACE_TEST_VERSIONS=1.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from source_index import SourceIndex
from sources import source_tree

from spantrace.vllm_adapter.hooks import HOOKS, SUPPORTED, WAIT_EVENTS, hooks_for

pytestmark = pytest.mark.versions

# What a probe reads by position or by name: the leading parameters of the function it hooks.
PROBED_PARAMETERS = {
    "schedule": ["self"],
    "update": ["self", "scheduler_output", "model_runner_output"],
    "execute": ["self", "scheduler_output"],
    "engine": ["self"],
    "idle": ["self"],
    "acceptance": [
        "self",
        "spec_decoding_stats",
        "num_draft_tokens",
        "num_accepted_tokens",
        "num_invalid_spec_tokens",
        "request_id",
    ],
}
RETURNS = {
    "vllm.v1.core.sched.scheduler:Scheduler.schedule": "SchedulerOutput",
    "vllm.v1.worker.gpu.dp_utils:dispatch_cg_and_sync_dp": "tuple[BatchExecutionDescriptor,",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._determine_batch_execution_and_padding": "tuple[CUDAGraphMode,",
}
FIELDS = {
    "vllm.v1.core.sched.output:SchedulerOutput": {
        "total_num_scheduled_tokens",
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "scheduled_spec_decode_tokens",
        "num_invalid_spec_tokens",
        "num_scheduled_tokens",
        "num_spec_tokens_to_schedule",
    },
    "vllm.v1.core.sched.output:CachedRequestData": {"req_ids", "num_output_tokens"},
    "vllm.v1.outputs:ModelRunnerOutput": {"req_id_to_index", "sampled_token_ids"},
    "vllm.v1.worker.gpu.cudagraph_utils:BatchExecutionDescriptor": {"cg_mode"},
    "vllm.config.compilation:CUDAGraphMode": {"NONE", "PIECEWISE", "FULL"},
}
# Subclasses that replace a hooked method without calling it, and why that loses nothing.
OVERRIDES = {
    "CPUModelRunner._to_list": "copies host memory: nothing to wait for",
    "DFlashProposer.build_model_inputs_first_pass": "stores the context K/V, which is hooked on the drafter's class",
}


@pytest.fixture(scope="module", params=SUPPORTED)
def index(request: pytest.FixtureRequest) -> SourceIndex:
    return SourceIndex(request.param, source_tree(request.param))


def test_a_version_has_the_hooks_that_it_is_said_to_have_and_no_others(index: SourceIndex) -> None:
    claimed = {hook.target for hook in hooks_for(index.version)}
    present = {hook.target for hook in HOOKS if index.defines(hook.target)}
    assert claimed - present == set(), "claimed but absent"
    assert present - claimed == set(), "present but not claimed"


def test_probes_find_their_arguments(index: SourceIndex) -> None:
    for hook in hooks_for(index.version):
        if expected := PROBED_PARAMETERS.get(hook.probe or ""):
            assert index.parameters(hook.target)[: len(expected)] == expected, hook.target


def test_probes_find_their_results_and_fields(index: SourceIndex) -> None:
    for target, expected in RETURNS.items():
        assert index.returns(target).startswith(expected), target
    for target, fields in FIELDS.items():
        assert fields <= index.fields(target), target


def test_a_patched_attribute_is_the_one_that_is_called(index: SourceIndex) -> None:
    hooked = {hook.target for hook in hooks_for(index.version)}
    problems = []
    for target in sorted(hooked):
        problems += index.captures(target)
        problems += [name for name in index.overrides(target, hooked) if name not in OVERRIDES]
    assert not problems


def test_a_patched_function_is_looked_up_in_the_patched_module(index: SourceIndex) -> None:
    runner = "vllm.v1.worker.gpu_model_runner"
    for hook in hooks_for(index.version):
        module, _, name = hook.target.partition(":")
        if "." not in name:
            by_module = index.calls(runner, f"{module.rpartition('.')[2]}.{name}")
            assert index.calls(module, name) or by_module, hook.target


def test_wait_events_are_only_recorded_and_waited_for(index: SourceIndex) -> None:
    path = index.path("vllm.v1.worker.gpu_model_runner")
    assert path is not None
    for attribute in WAIT_EVENTS:
        assert _uses(path, attribute) == {"record", "synchronize", "compared"}


def _uses(path: Path, attribute: str) -> set[str]:
    """What the module does with `self.<attribute>` where it reads it."""
    uses = set()
    for node in ast.walk(ast.parse(path.read_text())):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Attribute) and child.attr == attribute and isinstance(child.ctx, ast.Load):
                known = {ast.Attribute: getattr(node, "attr", ""), ast.Compare: "compared"}
                uses.add(known.get(type(node), type(node).__name__))
    return uses
