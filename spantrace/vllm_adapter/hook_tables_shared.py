"""Hooks that both model runners share: the engine's loop, the executors, the worker's entry, metadata builders."""

from __future__ import annotations

from collections.abc import Iterator

from spantrace.vllm_adapter.hook_types import Hook

_CORE = "vllm.v1.engine.core:EngineCoreProc."
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler."

ENGINE = (
    # `step` and `step_with_batch_queue` are bound into `step_fn` at start: a patch of theirs would never fire.
    Hook("cycle", _CORE + "_process_engine_step", always=True),
    Hook(None, _CORE + "_process_input_queue", probe="idle", always=True),
    Hook("schedule", _SCHEDULER + "schedule", probe="schedule", always=True),
    Hook("output.update", _SCHEDULER + "update_from_output", probe="update", always=True),
    # The only source of vllm:spec_decode_*: called once for each request whose drafts were verified.
    Hook(None, _SCHEDULER + "make_spec_decoding_stats", probe="acceptance", always=True),
    # UniProcExecutor's future only calls get_output, which the runners' tables hook.
    Hook("output.wait", "vllm.v1.executor.multiproc_executor:FutureWrapper.result"),
    Hook("output.emit", "vllm.v1.serial_utils:MsgpackEncoder.encode_into", threaded=True),
    Hook(None, "vllm.v1.worker.gpu_worker:Worker.execute_model", probe="execute", always=True),
)

_GROUP = "vllm.distributed.parallel_state:GroupCoordinator."

COMMUNICATION = (
    # Below vLLM's custom ops, so that torch.compile has traced none of them. The rest of what ranks say to each other
    # is point to point, or is said once.
    Hook("communication", _GROUP + "_all_reduce_out_place", without_gpu=True),
    Hook("communication", _GROUP + "_all_gather_out_place", without_gpu=True),
    Hook("communication", _GROUP + "_reduce_scatter_out_place", without_gpu=True),
    Hook("communication", _GROUP + "gather", without_gpu=True),
)

_BACKENDS = "vllm.v1.attention.backends."
_MLA = "vllm.model_executor.layers.attention.mla_attention:MLACommonMetadataBuilder.build"
_ATTENTION = (
    (_BACKENDS + "flash_attn:FlashAttentionMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "flash_attn:FlashAttentionMetadataBuilder.update_block_table", ">=0.26"),
    (_BACKENDS + "triton_attn:TritonAttentionMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "flashinfer:FlashInferMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "flex_attention:FlexAttentionMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "cpu_attn:CPUAttentionMetadataBuilder.build", ">=0.26"),
    (_MLA, ">=0.26"),
)
_MAMBA = (
    (_BACKENDS + "mamba_attn:BaseMambaAttentionMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "mamba_attn:BaseMambaAttentionMetadataBuilder.update_block_table", ">=0.26"),
    (_BACKENDS + "mamba1_attn:Mamba1AttentionMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "mamba2_attn:Mamba2AttentionMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "mamba2_attn:Mamba2AttentionMetadataBuilder.update_block_table", ">=0.32"),
    (_BACKENDS + "linear_attn:LinearAttentionMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "linear_attn:BailingLinearAttentionMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "short_conv_attn:PleShortConvAttentionMetadataBuilder.build", ">=0.29"),
)
_GDN = (
    (_BACKENDS + "gdn_attn:GDNAttentionMetadataBuilder.build", ">=0.26"),
    (_BACKENDS + "gdn_attn:GDNAttentionMetadataBuilder.update_block_table", ">=0.31"),
)


def _builders() -> Iterator[Hook]:
    """The metadata builders, which also build for the drafter."""
    for child, table in (("attention", _ATTENTION), ("mamba", _MAMBA), ("gdn", _GDN)):
        for target, versions in table:
            yield Hook(f"target.metadata.{child}", target, versions, in_draft="draft.metadata")


BUILDERS = tuple(_builders())
