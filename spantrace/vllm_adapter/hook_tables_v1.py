"""Hooks of model runner V1 (vllm/v1/worker/gpu_model_runner.py, also on the CPU) and its proposers.

Timed on the GPU in a DFlash cycle, with the events each needs: _model_forward 2, _sample 1,
set_inputs_first_pass 1, the drafter's context K/V 2, its forward 1, _sample_draft_tokens 1: eight.
"""

from __future__ import annotations

from spantrace.vllm_adapter.hook_types import Hook

_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
_OUTPUT = "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput."
_PROPOSERS = "vllm.v1.spec_decode."
_BASE = _PROPOSERS + "llm_base_proposer:SpecDecodeBaseProposer."
_DFLASH = _PROPOSERS + "dflash:DFlashProposer."

_TARGET = (
    Hook(None, _RUNNER + "_determine_batch_execution_and_padding", runner="V1", probe="graph"),
    Hook("target.metadata", _RUNNER + "_build_attention_metadata", runner="V1"),
    Hook("target.forward", _RUNNER + "_model_forward", runner="V1", gpu=True),
    # The logits are computed between the forward and _sample: on the GPU they belong to the sample.
    Hook("sample", _RUNNER + "_sample", runner="V1", gpu=True, follows=True),
    Hook("postprocess", _RUNNER + "_bookkeeping_sync", runner="V1"),
)

_DRAFT = (
    Hook("draft.propose", _RUNNER + "propose_draft_token_ids", runner="V1"),
    Hook("draft.input_prep", _BASE + "set_inputs_first_pass", runner="V1", gpu=True, follows=True),
    Hook("draft.input_prep", _DFLASH + "set_inputs_first_pass", runner="V1", gpu=True, follows=True),
    Hook("draft.input_prep", _BASE + "build_model_inputs_first_pass", runner="V1"),
    Hook("draft.input_prep", _BASE + "_update_positions_dependent_metadata", runner="V1"),
    Hook("draft.metadata", _BASE + "build_per_group_and_layer_attn_metadata", runner="V1"),
    Hook("draft.metadata", _PROPOSERS + "gemma4:Gemma4Proposer.build_per_group_and_layer_attn_metadata", runner="V1"),
    Hook(
        "draft.metadata",
        _PROPOSERS + "step3p5:Step3p5MTPProposer.build_per_group_and_layer_attn_metadata",
        runner="V1",
    ),
    Hook("draft.forward", _BASE + "_sample_draft_tokens", runner="V1", gpu=True, follows=True),
    Hook("draft.forward", _PROPOSERS + "ngram_proposer:NgramProposer.propose", runner="V1"),
    Hook("draft.forward", _PROPOSERS + "ngram_proposer_gpu:NgramProposerGPU.propose", runner="V1", gpu=True),
    Hook("draft.forward", _PROPOSERS + "suffix_decoding:SuffixDecodingProposer.propose", runner="V1"),
    Hook("draft.forward", _PROPOSERS + "medusa:MedusaProposer.propose", "<0.33", runner="V1", gpu=True),
)

_WAITS = (
    Hook("output.wait", _OUTPUT + "get_output", runner="V1", threaded=True),
    # Without async scheduling the host blocks here, after the draft is launched: without and with drafts.
    Hook("output.wait", _RUNNER + "_to_list", runner="V1"),
    Hook("output.wait", "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output", runner="V1", threaded=True),
    Hook("output.wait", _RUNNER + "_get_draft_token_ids_cpu", runner="V1"),
    Hook("output.wait", _RUNNER + "_get_valid_sampled_token_count", runner="V1"),
    Hook("output.wait", "vllm.v1.worker.gpu_model_runner:update_scheduler_for_invalid_drafts", runner="V1"),
)

V1 = _TARGET + _DRAFT + _WAITS

WAIT_EVENTS = ("prepare_inputs_event", "num_accepted_tokens_event")
"""Attributes of a V1 runner that hold an event or None; long methods call their `synchronize()` inline."""
