"""Hooks of model runner V2 (vllm/v1/worker/gpu/model_runner.py) and its speculators.

Timed on the GPU in a DFlash or DSpark cycle with FULL graphs, with the events each needs: the target's
run_fullgraph 2, sample 1, postprocess_sampled 1, prepare_dflash_inputs 1 (per group of the drafter's KV cache),
up to 0.30 the context K/V 1, the drafter's run_fullgraph 2: eight, or seven from 0.31 on.
"""

from __future__ import annotations

from spantrace.vllm_adapter.hook_types import Hook

_GPU = "vllm.v1.worker.gpu."
_MODULE = _GPU + "model_runner:"
_RUNNER = _MODULE + "GPUModelRunner."
_STATES = _GPU + "model_states."
_HYBRID = _STATES + "mamba_hybrid:MambaHybridModelState."
_GRAPHS = _GPU + "cudagraph_utils:CudaGraphManager."
_OUTPUT = _GPU + "async_utils:AsyncOutput."

_TARGET = (
    Hook("target.metadata", _STATES + "default:DefaultModelState.prepare_attn", runner="V2"),
    Hook("target.metadata", _HYBRID + "prepare_attn", runner="V2"),
    Hook("target.metadata", _STATES + "encoder_decoder:EncoderDecoderModelState.prepare_attn", runner="V2"),
    Hook("target.metadata", _STATES + "encoder_only:EncoderOnlyModelState.prepare_attn", ">=0.27", runner="V2"),
    # The manager of the target's graphs calls its base, which the drafter's managers inherit: one hook for all.
    Hook("target.forward", _GRAPHS + "run_fullgraph", runner="V2", gpu=True, in_draft="draft.forward", graph="FULL"),
    Hook(
        "target.forward", _GRAPHS + "run_pw_graph", runner="V2", gpu=True, in_draft="draft.forward", graph="PIECEWISE"
    ),
    Hook("sample", _RUNNER + "sample", runner="V2", gpu=True, follows=True),
    Hook("postprocess", _RUNNER + "postprocess_sampled", runner="V2", gpu=True, follows=True),
    Hook("output.wait", _OUTPUT + "get_output", runner="V2", threaded=True),
    Hook("output.wait", _GPU + "async_utils:AsyncPoolingOutput.get_output", runner="V2", threaded=True),
    Hook("output.wait", _GPU + "spec_decode.utils:DraftTokensHandler.get_draft_tokens", runner="V2"),
)

_DECODE = _GPU + "spec_decode."
_DRAFT_MODEL = _DECODE + "speculator:DraftModelSpeculator."
_DFLASH_MODULE = _DECODE + "dflash.speculator:"
_DFLASH = _DFLASH_MODULE + "DFlashSpeculator."
_AR_MODULE, _AR_031 = _DECODE + "autoregressive.speculator:", ">=0.26,<0.32"
_TARGET_AR_MODULE = _DECODE + "target_dependent_ar.speculator:"
_AR, _TARGET_AR = _AR_MODULE + "AutoRegressiveSpeculator.", _TARGET_AR_MODULE + "TargetDependentARSpeculator."
_PLAIN_MODULE, _ALONE_MODULE = _DECODE + "draft_model.speculator:", _DECODE + "standalone_ar.speculator:"
_PLAIN, _ALONE = _PLAIN_MODULE + "PlainDraftModelSpeculator.", _ALONE_MODULE + "StandaloneARSpeculator."
_MTP_MODULE = _DECODE + "multi_module_mtp.speculator:"
_MTP = _MTP_MODULE + "MultiModuleMTPSpeculator."

_DFLASH_AND_DSPARK = (
    Hook("draft.propose", _DFLASH + "propose", runner="V2"),
    Hook("draft.input_prep", _DFLASH_MODULE + "prepare_dflash_inputs", runner="V2", gpu=True, follows=True),
    Hook("draft.input_prep", _DFLASH + "_prepare_graph_replay", ">=0.33", runner="V2", gpu=True, follows=True),
    Hook("draft.input_prep", _DFLASH + "_store_hidden_states", ">=0.33", runner="V2"),
    Hook("draft.metadata", _DFLASH_MODULE + "build_slot_mappings_by_layer", runner="V2"),
    # A FULL graph replays these, so that they fire without one only.
    Hook("draft.forward", _DFLASH + "_generate_draft", runner="V2", gpu=True),
    Hook("draft.forward", _DECODE + "dspark.speculator:DSparkSpeculator._generate_draft", runner="V2", gpu=True),
    Hook(
        "draft.forward",
        _DECODE + "dflash2.speculator:DFlash2Speculator._generate_draft",
        ">=0.28",
        runner="V2",
        gpu=True,
    ),
    Hook(
        "draft.forward",
        _DECODE + "xpress.speculator:XPressSpeculator._generate_draft",
        ">=0.33",
        runner="V2",
        gpu=True,
    ),
)

# The small launches that prepare an autoregressive drafter's steps have no events: its forwards need them.
_AUTOREGRESSIVE = (
    Hook("draft.metadata", _DRAFT_MODEL + "_build_draft_attn_metadata", ">=0.26,<0.30", runner="V2"),
    Hook("draft.metadata", _DRAFT_MODEL + "_build_attn_metadata", ">=0.30", runner="V2"),
    Hook("draft.input_prep", _DRAFT_MODEL + "_copy_request_inputs", runner="V2"),
    Hook("draft.propose", _AR + "propose", _AR_031, runner="V2"),
    Hook("draft.input_prep", _AR_MODULE + "prepare_prefill_inputs", _AR_031, runner="V2"),
    Hook("draft.input_prep", _AR_MODULE + "prepare_decode_inputs", _AR_031, runner="V2"),
    Hook("draft.metadata", _AR_MODULE + "build_slot_mappings_by_layer", _AR_031, runner="V2"),
    Hook("draft.forward", _AR + "_prefill", _AR_031, runner="V2", gpu=True),
    Hook("draft.forward", _AR + "_generate_draft", _AR_031, runner="V2", gpu=True),
    Hook("draft.propose", _TARGET_AR + "propose", ">=0.32", runner="V2"),
    Hook("draft.input_prep", _TARGET_AR_MODULE + "prepare_prefill_inputs", ">=0.32", runner="V2"),
    Hook("draft.input_prep", _TARGET_AR_MODULE + "prepare_decode_inputs", ">=0.32", runner="V2"),
    Hook("draft.metadata", _TARGET_AR_MODULE + "build_slot_mappings_by_layer", ">=0.32", runner="V2"),
    Hook("draft.forward", _TARGET_AR + "_prefill", ">=0.32", runner="V2", gpu=True),
    Hook("draft.forward", _TARGET_AR + "_generate_draft", ">=0.32", runner="V2", gpu=True),
)

_OTHER = (
    Hook("draft.propose", _PLAIN + "propose", ">=0.31,<0.32", runner="V2"),
    Hook("draft.input_prep", _PLAIN_MODULE + "prepare_prefill_inputs", ">=0.31,<0.32", runner="V2"),
    Hook("draft.metadata", _PLAIN_MODULE + "build_slot_mappings_by_layer", ">=0.31,<0.32", runner="V2"),
    Hook("draft.forward", _PLAIN + "_run_model", ">=0.31,<0.32", runner="V2", gpu=True),
    Hook("draft.propose", _ALONE + "propose", ">=0.32", runner="V2"),
    Hook("draft.input_prep", _ALONE_MODULE + "prepare_prefill_inputs", ">=0.32", runner="V2"),
    Hook("draft.metadata", _ALONE_MODULE + "build_slot_mappings_by_layer", ">=0.32", runner="V2"),
    Hook("draft.forward", _ALONE + "_run_model", ">=0.32", runner="V2", gpu=True),
    Hook("draft.propose", _MTP + "propose", ">=0.27", runner="V2"),
    Hook("draft.input_prep", _MTP + "_prepare_inputs", ">=0.27", runner="V2"),
    Hook("draft.metadata", _MTP_MODULE + "build_slot_mappings_by_layer", ">=0.27", runner="V2"),
    Hook("draft.forward", _MTP + "_generate_drafts", ">=0.27", runner="V2", gpu=True),
    # One kernel launch and no parts: the only proposal with events of its own.
    Hook("draft.propose", _DECODE + "ngram.speculator:NgramGPUSpeculator.propose", ">=0.32", runner="V2", gpu=True),
    Hook(
        "draft.propose",
        _DECODE + "extract_hidden_states:ExtractHiddenStatesSpeculator.propose",
        ">=0.29",
        runner="V2",
    ),
)

V2 = _TARGET + _DFLASH_AND_DSPARK + _AUTOREGRESSIVE + _OTHER
