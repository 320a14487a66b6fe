"""What the KV-cache groups of one step share: a build's result, less what lies in a group's own blocks and buffers.

A step is told by its flags of what prefills: both runners make that tensor anew for each step, and while it is held
here its memory belongs to no other. Beyond that no builder gets one result twice. What is shared are numbers and views
of the runner's own tensors, which every group's full build gives as well: no group sees another one's writes.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from optimized.uniform_decode_metadata.metadata import why_not

SHARED = "shared by a step's KV groups"
_MODES = ("none", "align")


@dataclass
class FirstBuild:
    """The first group's build of a step of decodes only.

    `rows` int64 [B, blocks] are the columns of its block table that it read, where it chose any; `sizes` and `views`
    the numbers of requests and tokens, and the flags, query starts, lengths and accepted tokens, that it was given;
    `builders` those that have its result.
    """

    metadata: Any
    rows: Tensor | None
    sizes: tuple[int, int]
    views: tuple[Tensor, ...]
    kind: tuple[Any, ...]
    builders: list[Any] = field(default_factory=list)

    @classmethod
    def of(
        cls, builder: Any, common: Any, accepted: Tensor | None, metadata: Any, rows: Tensor | None
    ) -> FirstBuild | None:
        """What later groups may take from this build; None where they may not."""
        mode = builder.vllm_config.cache_config.mamba_cache_mode
        if accepted is None or not builder.use_spec_decode or _has_ring(builder) or mode not in _MODES:
            return None
        return cls(copy(metadata), rows, _sizes(common), _views(common, accepted), _kind(builder), [builder])

    def serves(self, builder: Any, common: Any, accepted: Tensor | None) -> bool:
        """Whether a full build of this group would differ in nothing but the group's own blocks and buffers."""
        table = common.block_table_tensor
        return (
            accepted is not None
            and not any(builder is served for served in self.builders)
            and _kind(builder) == self.kind
            and _sizes(common) == self.sizes
            and table.dim() == 2
            and len(table) == self.metadata.num_decodes
            and all(map(_same, _views(common, accepted), self.views))
            and why_not(common.is_prefilling, common.max_query_len, builder.reorder_batch_threshold) is None
        )

    def take(self, builder: Any, table: Tensor, block_table: Callable[[], Tensor]) -> Any:
        """The metadata of a later group, whose block table is int32 [B, blocks].

        Where the first build read no `rows`, `block_table` gives the state blocks, int32 [B, at least 1 + K].
        """
        self.builders.append(builder)
        metadata = copy(self.metadata)
        decodes, width = metadata.num_decodes, 1 + builder.num_spec_tokens
        accepted = self.views[-1][:decodes]
        if not _replays(builder, decodes):
            blocks = block_table() if self.rows is None else torch.gather(table, 1, self.rows)
            metadata.state_indices_tensor_d, metadata.num_accepted_tokens = blocks[:, :width], accepted
            return metadata
        metadata.state_indices_tensor_d = own = builder.state_indices_tensor_d[:decodes]
        if self.rows is None or self.rows.shape[1] != width:
            own.copy_(block_table()[:, :width], non_blocking=True)
        else:
            torch.gather(table, 1, self.rows, out=own)
        metadata.num_accepted_tokens = builder.decode_num_accepted_tokens[:decodes]
        metadata.num_accepted_tokens.copy_(accepted, non_blocking=True)
        return metadata

    def nbytes(self) -> int:
        """Bytes held beyond what is the runner's."""
        return 0 if self.rows is None else self.rows.nbytes


def _replays(builder: Any, decodes: int) -> bool:
    """Whether so many decodes replay a FULL graph, which reads the group's own buffers."""
    graphs: bool = builder.compilation_config.cudagraph_mode.has_full_cudagraphs()
    return graphs and decodes <= builder.decode_cudagraph_max_bs


def _sizes(common: Any) -> tuple[int, int]:
    return common.num_reqs, common.num_actual_tokens


def _views(common: Any, accepted: Tensor) -> tuple[Tensor, ...]:
    return common.is_prefilling, common.query_start_loc, common.seq_lens, accepted


def _kind(builder: Any) -> tuple[Any, ...]:
    """What a build depends on besides the batch."""
    spec, mode = builder.kv_cache_spec, builder.vllm_config.cache_config.mamba_cache_mode
    cut = builder.reorder_batch_threshold, builder.num_spec_tokens, builder.use_spec_decode, _has_ring(builder)
    return type(builder), *cut, spec.block_size, spec.num_speculative_blocks, mode


def _has_ring(builder: Any) -> bool:
    """Whether a build computes a ring's positions as well; builders of older versions do not know of it."""
    return bool(getattr(builder, "use_replayssm", False))


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same memory, read alike."""
    return one is other or (
        one.data_ptr() == other.data_ptr()
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
    )
