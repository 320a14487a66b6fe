"""What the KV-cache groups of one step share: a build's result, less what lies in a group's own blocks and buffers.

A step is told by its flags of what prefills: both runners make that tensor anew for each step, and while it is held
here its memory belongs to no other, so that what is asked of it once holds for all groups that are given it. Beyond
that no builder gets one result twice. What is shared are numbers and views of the runner's own tensors, which every
group's full build gives as well: no group sees another one's writes.

A step of decodes that follows one needs no full build at all, where both tell alike of the first group: its result is
that of the step before with this step's numbers and views in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from optimized.uniform_decode_metadata.ahead import Ahead, Group, within
from optimized.uniform_decode_metadata.metadata import why_not

SHARED, AHEAD = "shared by a step's KV groups", "written by one launch a step"
FIRST = "a step's first group, written by its launch"
_MODES = ("none", "align")


@dataclass
class FirstBuild:
    """The first group's result in a step of decodes only.

    `rows` int64 [B, blocks] are the columns of its block table that it read, where it chose any; `sizes` and `views`
    the numbers of requests and tokens, and the flags, query starts, lengths and accepted tokens, that it was given;
    `served` the builders that have its result. By the builder's id, `later` are the groups that took it and can be
    written ahead in the next step, `ahead` those whose buffers were written already; `own` is the first group, where
    it can be written by the next step's launch as well.
    """

    builder: Any
    metadata: Any
    rows: Tensor | None
    sizes: tuple[int, int]
    views: tuple[Tensor, ...]
    kind: tuple[Any, ...]
    served: dict[int, Any]
    later: dict[int, Group] = field(default_factory=dict)
    ahead: dict[int, Group] = field(default_factory=dict)
    own: Group | None = None

    @classmethod
    def of(
        cls, builder: Any, common: Any, accepted: Tensor | None, metadata: Any, rows: Tensor | None
    ) -> FirstBuild | None:
        """What later groups may take from this build; None where they may not."""
        mode = builder.vllm_config.cache_config.mamba_cache_mode
        if accepted is None or not builder.use_spec_decode or _has_ring(builder) or mode not in _MODES:
            return None
        served = {id(builder): builder}
        return cls(builder, _twin(metadata), rows, _sizes(common), _views(common, accepted), _kind(builder), served)

    def serves(self, builder: Any, common: Any, accepted: Tensor | None) -> bool:
        """Whether a full build of this group would differ in nothing but the group's own blocks and buffers."""
        table = common.block_table_tensor
        return (
            accepted is not None
            and id(builder) not in self.served
            and common.max_query_len <= builder.reorder_batch_threshold
            and _sizes(common) == self.sizes
            and table.dim() == 2
            and table.shape[0] == self.metadata.num_decodes
            and all(map(_same, _views(common, accepted), self.views))
            and _kind(builder) == self.kind
        )

    def take(self, builder: Any, table: Tensor, block_table: Callable[[], Tensor]) -> Any:
        """The metadata of a later group, whose block table is int32 [B, blocks].

        Where the first build read no `rows`, `block_table` gives the state blocks, int32 [B, at least 1 + K].
        """
        self.served[id(builder)] = builder
        metadata = _twin(self.metadata)
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

    def take_ahead(self, builder: Any, table: Tensor) -> Any:
        """The metadata of a group whose buffers hold it already; None where they do not."""
        group = self.ahead.pop(id(builder), None)
        if group is None or not group.is_given(table) or not group.holds(self.metadata.num_decodes):
            return None
        self.later[id(builder)] = group
        self.served[id(builder)] = builder
        metadata = _twin(self.metadata)
        metadata.state_indices_tensor_d, metadata.num_accepted_tokens = group.views(metadata.num_decodes)
        return metadata

    def remember(self, builder: Any, table: Tensor) -> None:
        """Have a group that has this result written by the next step's launch, where a graph reads its buffers."""
        readable = table.device == self.views[2].device and _replays(builder, self.metadata.num_decodes)
        if not readable or (group := Group.of(builder, table)) is None:
            return
        if builder is self.builder:
            self.own = group
        else:
            self.later[id(builder)] = group

    def write_ahead(self, last: FirstBuild, common: Any, ahead: Ahead) -> None:
        """Write what the last step's later groups will ask for in this one, whose first group is built already."""
        if self.kind != last.kind or not last.is_past(self.builder, self.views[0]) or not last.later:
            return
        if _write(list(last.later.values()), self.views, self.metadata.num_decodes, common, ahead):
            self.ahead = dict(last.later)

    def is_past(self, builder: Any, flags: Tensor) -> bool:
        """Whether another step has begun, by the same builder with other flags: in this one the buffers are in use."""
        return builder is self.builder and flags.data_ptr() != self.views[0].data_ptr()

    def follow(self, builder: Any, common: Any, accepted: Tensor | None, ahead: Ahead) -> Any:
        """The first group's result in the next step, with which this becomes that step's; None where it must be built.

        Its buffers and those of all later groups are written by one launch.
        """
        own, flags, table, decodes = self.own, common.is_prefilling, common.block_table_tensor, common.num_reqs
        if own is None or accepted is None or flags is None or not self.is_past(builder, flags):
            return None
        if not 0 < decodes == table.shape[0] or not own.is_given(table) or _kind(builder) != self.kind:
            return None
        if why_not(flags, common.max_query_len, builder.reorder_batch_threshold) is not None:
            return None
        views = _views(common, accepted)
        if not _write([own, *self.later.values()], views, decodes, common, ahead):
            return None
        self._begin(views, _sizes(common), own)
        return _twin(self.metadata)

    def _begin(self, views: tuple[Tensor, ...], sizes: tuple[int, int], own: Group) -> None:
        """Become the first result of a step of these numbers and views, whose buffers are written."""
        decodes, tokens = sizes
        states, accepted = own.views(decodes)
        starts = views[1]
        vars(self.metadata).update(
            num_reqs=decodes,
            num_decodes=decodes,
            num_decode_tokens=tokens,
            query_start_loc_d=starts if starts.shape[0] == decodes + 1 else starts[: decodes + 1],
            seq_lens=views[2],
            state_indices_tensor_d=states,
            state_indices_tensor_p=own.none,
            num_accepted_tokens=accepted,
        )
        self.rows, self.sizes, self.views, self.served = None, sizes, views, {id(self.builder): self.builder}
        self.later, self.ahead = {}, self.later

    def nbytes(self) -> int:
        """Bytes held beyond what is the runner's."""
        return 0 if self.rows is None else self.rows.nbytes


def _write(groups: list[Group], views: tuple[Tensor, ...], decodes: int, common: Any, ahead: Ahead) -> bool:
    """Whether one launch has written what all groups will ask for."""
    _, _, lengths, accepted = views
    if not within(groups, decodes, lengths, accepted, common.query_start_loc_cpu):
        return False
    builder = groups[0].builder
    aligned = builder.vllm_config.cache_config.mamba_cache_mode == "align"
    ahead.write(groups, lengths, accepted, builder.kv_cache_spec.block_size if aligned else 0)
    return True


def _twin(metadata: Any) -> Any:
    """A second object of the same fields, as copy.copy makes it, in a fifth of the time."""
    twin = object.__new__(type(metadata))
    twin.__dict__ = vars(metadata).copy()
    return twin


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
