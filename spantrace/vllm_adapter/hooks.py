"""Which vLLM function each span wraps, by model runner and vLLM version.

A class attribute or a module's global is patched, at the place where vLLM looks it up at every call. Two spans
that nest under the same name are one. Where the eager forward of a target or a drafter is no runner's method, it
is hooked on the model's own class (`MODEL_HOOKS`), as soon as a hook has seen the runner. The hooks that number, count
and time each cycle are in force in all (`Hook.always`), the others in cycles in detail (spantrace.sampling).

span                      runner V1                                 runner V2
cycle                     both: EngineCoreProc ._process_engine_step
schedule                  both: Scheduler .schedule
target.input_prep         from the start of Worker.execute_model to target.forward, less target.metadata
target.metadata           GPUModelRunner ._build_attention_metadata DefaultModelState .prepare_attn
                                                                    MambaHybridModelState .prepare_attn
                                                                    EncoderDecoderModelState .prepare_attn
                                                                    EncoderOnlyModelState .prepare_attn
target.metadata.attention both: FlashAttentionMetadataBuilder .build .update_block_table
                          both: TritonAttentionMetadataBuilder .build
                          both: FlashInferMetadataBuilder .build
                          both: FlexAttentionMetadataBuilder .build
                          both: CPUAttentionMetadataBuilder .build
                          both: MLACommonMetadataBuilder .build
target.metadata.mamba     both: BaseMambaAttentionMetadataBuilder .build .update_block_table
                          both: Mamba1AttentionMetadataBuilder .build
                          both: Mamba2AttentionMetadataBuilder .build .update_block_table
                          both: LinearAttentionMetadataBuilder .build
                          both: BailingLinearAttentionMetadataBuilder .build
                          both: PleShortConvAttentionMetadataBuilder .build
target.metadata.gdn       both: GDNAttentionMetadataBuilder .build .update_block_table
target.forward            GPUModelRunner ._model_forward            CudaGraphManager .run_fullgraph
                          drafter .call                             .run_pw_graph
                                                                    target .call
sample                    GPUModelRunner ._sample                   GPUModelRunner .sample
                          target .compute_logits
postprocess               from the end of sample or draft.propose to the end of:
                          GPUModelRunner ._bookkeeping_sync         GPUModelRunner .postprocess_sampled
draft.propose             GPUModelRunner .propose_draft_token_ids   DFlashSpeculator .propose
                                                                    AutoRegressiveSpeculator .propose
                                                                    TargetDependentARSpeculator .propose
                                                                    PlainDraftModelSpeculator .propose
                                                                    StandaloneARSpeculator .propose
                                                                    MultiModuleMTPSpeculator .propose
                                                                    NgramGPUSpeculator .propose
                                                                    ExtractHiddenStatesSpeculator .propose
draft.input_prep          from the start of draft.propose or the end of its last child to the end of:
                          SpecDecodeBaseProposer                    prepare_dflash_inputs
                          .set_inputs_first_pass                    prepare_prefill_inputs
                          .build_model_inputs_first_pass            prepare_decode_inputs
                          ._update_positions_dependent_metadata     DFlashSpeculator ._prepare_graph_replay
                          DFlashProposer .set_inputs_first_pass     ._store_hidden_states
                                                                    DraftModelSpeculator ._copy_request_inputs
                                                                    MultiModuleMTPSpeculator ._prepare_inputs
draft.context_kv          drafter .precompute_and_store_context_kv  drafter .precompute_and_store_context_kv
draft.metadata            SpecDecodeBaseProposer                    build_slot_mappings_by_layer
                          .build_per_group_and_layer_attn_metadata  DraftModelSpeculator
                          Gemma4Proposer                            ._build_draft_attn_metadata
                          .build_per_group_and_layer_attn_metadata  ._build_attn_metadata
                          Step3p5MTPProposer
                          .build_per_group_and_layer_attn_metadata
draft.forward             SpecDecodeBaseProposer                    DFlashSpeculator ._generate_draft
                          ._sample_draft_tokens                     DSparkSpeculator ._generate_draft
                          NgramProposer .propose                    DFlash2Speculator ._generate_draft
                          NgramProposerGPU .propose                 XPressSpeculator ._generate_draft
                          SuffixDecodingProposer .propose           AutoRegressiveSpeculator ._prefill
                          MedusaProposer .propose                   ._generate_draft
                                                                    TargetDependentARSpeculator ._prefill
                                                                    ._generate_draft
                                                                    PlainDraftModelSpeculator ._run_model
                                                                    StandaloneARSpeculator ._run_model
                                                                    MultiModuleMTPSpeculator ._generate_drafts
output.wait               both: FutureWrapper .result
                          update_scheduler_for_invalid_drafts       AsyncOutput .get_output
                          AsyncGPUModelRunnerOutput .get_output     AsyncPoolingOutput .get_output
                          GPUModelRunner ._to_list                  DraftTokensHandler .get_draft_tokens
                          ._get_draft_token_ids_cpu
                          ._get_valid_sampled_token_count
                          RejectionSampler .parse_output
output.update             both: Scheduler .update_from_output
output.emit               both: MsgpackEncoder .encode_into
communication             both: GroupCoordinator ._all_reduce_out_place ._all_gather_out_place
                          both: ._reduce_scatter_out_place .gather
"""

from __future__ import annotations

from itertools import zip_longest
from textwrap import wrap

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from spantrace.spans import SPAN_NAMES
from spantrace.vllm_adapter.hook_tables_shared import BUILDERS, COMMUNICATION, ENGINE
from spantrace.vllm_adapter.hook_tables_v1 import V1, WAIT_EVENTS
from spantrace.vllm_adapter.hook_tables_v2 import V2
from spantrace.vllm_adapter.hook_types import Hook, ModelHook

__all__ = ["HOOKS", "MODEL_HOOKS", "SUPPORTED", "WAIT_EVENTS", "Hook", "ModelHook", "hooks_for", "table"]

SUPPORTED = ("0.26.0", "0.27.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""The versions whose sources `make test-versions` checks this table against, oldest first."""

HOOKS: tuple[Hook, ...] = ENGINE + BUILDERS + V1 + V2 + COMMUNICATION

MODEL_HOOKS = (
    # Runner V2 without a graph; on V1 the row nests in _model_forward's and is the same one.
    ModelHook("target.forward", "target", "call", runner="V2", gpu=True, in_draft="draft.forward", graph="NONE"),
    ModelHook("sample", "target", "compute_logits", runner="V1", in_draft="draft.forward"),
    ModelHook("draft.context_kv", "drafter", "precompute_and_store_context_kv", runner="V1", gpu=True),
    ModelHook("draft.context_kv", "drafter", "precompute_and_store_context_kv", runner="V2", gpu=True, follows=True),
    # Named as the target's: with method draft_model both can be of one class, and in_draft tells them apart.
    ModelHook("target.forward", "drafter", "call", runner="V1", gpu=True, follows=True, in_draft="draft.forward"),
)


def hooks_for(version: str) -> tuple[Hook, ...]:
    """The hooks that this vLLM has; one outside the supported range gets those of its nearest supported version."""
    try:
        release = Version(Version(version).base_version)
    except InvalidVersion:
        release = Version(SUPPORTED[-1])
    nearest = min(max(release, Version(SUPPORTED[0])), Version(SUPPORTED[-1]))
    return tuple(hook for hook in HOOKS if nearest in SpecifierSet(hook.versions))


DRAWN = {
    "target.input_prep": "from the start of Worker.execute_model to target.forward, less target.metadata",
    "postprocess": "from the end of sample or draft.propose to the end of:",
    "draft.input_prep": "from the start of draft.propose or the end of its last child to the end of:",
}
"""Spans that begin at a boundary (spantrace.naming draws them): less to hook, and nothing between goes missing."""


def table() -> str:
    """Which function of which runner each span wraps, as the text of this module's docstring."""
    rows = [("span", "runner V1", "runner V2")]
    for span in SPAN_NAMES:
        cells = [(DRAWN[span], "")] if span in DRAWN else []
        cells += [(f"both: {line}", "") for line in _cell(span, None, 78)]
        cells += zip_longest(_cell(span, "V1", 41), _cell(span, "V2", 42), fillvalue="")
        rows += [("" if index else span, *pair) for index, pair in enumerate(cells)]
    return "\n".join(f"{span:<26}{v1:<42}{v2}".rstrip() for span, v1, v2 in rows)


def _cell(span: str, runner: str | None, width: int) -> list[str]:
    """The lines of one cell: functions bare, then each class once and its methods after it with a dot."""
    names = [hook.name for hook in HOOKS if (hook.span, hook.runner) == (span, runner)]
    names += [f"{hook.owner}.{hook.method}" for hook in MODEL_HOOKS if (hook.span, hook.runner) == (span, runner)]
    functions = [name for name in dict.fromkeys(names) if "." not in name]
    methods: dict[str, list[str]] = {}
    for name in names:
        owner, dot, method = name.rpartition(".")
        if dot:
            methods.setdefault(owner, []).append(dot + method)
    cells = functions + [" ".join([owner, *found]) for owner, found in methods.items()]
    return [line for cell in cells for line in wrap(cell, width, break_long_words=False, break_on_hyphens=False)]
