"""What a step's KV groups will ask for, written into their buffers at the step's first build, by one launch.

The runners' block tables and the builders' buffers stay where they are, so what a group was given in one step tells
where its blocks will lie in the next. Both runners write the requests' rows of all tables before the first build, on
the stream of the builds. The rows that pad a batch to a graph's size are final there with the V2 runner only; V1
empties a group's right before that group's build.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from optimized.launching import EXACT, launch, power_of_two, why_no_kernels
from optimized.uniform_decode_metadata import FIELDS


@dataclass(eq=False)
class Group:
    """A group of a step before: its builder, its block table and its own buffers, int32 all three.

    Held, so that nothing else can come to lie where the launch reads and writes. `rows` is as many as it may write,
    `padding` whether the rows that pad a batch are final at a step's first build as well, and `mode` the builder's
    choice of graphs, which read the buffers; `none` are the state blocks of no prefill, int32 [0].
    """

    builder: Any
    table: Tensor
    states: Tensor
    accepted: Tensor
    rows: int
    padding: bool
    mode: Any = None
    _views: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = _lie(self.table)
        self.lies = (*self.place, self.states.data_ptr(), self.accepted.data_ptr())
        self.none = self.states[:0, 0]

    @classmethod
    def of(cls, builder: Any, table: Tensor) -> Group | None:
        """The group of a builder; None where its table or its buffers are not laid out as the kernel needs."""
        states, accepted = builder.state_indices_tensor_d, builder.decode_num_accepted_tokens
        width = 1 + builder.num_spec_tokens
        fits = all(part.dtype is torch.int32 and part.device == table.device for part in (table, states, accepted))
        wide = min(table.shape[1], 1 + builder.kv_cache_spec.num_speculative_blocks) >= width == states.shape[1]
        if not fits or not wide or not states.is_contiguous() or not accepted.is_contiguous():
            return None
        rows = min(len(table), len(states), len(accepted), builder.decode_cudagraph_max_bs)
        padding = bool(getattr(builder.vllm_config, "use_v2_model_runner", False))
        return cls(builder, table, states, accepted, rows, padding, builder.compilation_config.cudagraph_mode)

    def holds(self, decodes: int) -> bool:
        """Whether the builder has these buffers still, for graphs of so many decodes."""
        builder = self.builder
        return (
            builder.state_indices_tensor_d is self.states
            and builder.decode_num_accepted_tokens is self.accepted
            and builder.compilation_config.cudagraph_mode is self.mode
            and decodes <= self.rows
            and decodes <= builder.decode_cudagraph_max_bs
        )

    def is_given(self, table: Tensor) -> bool:
        """Whether this is the group's table, of any number of rows."""
        return _lie(table) == self.place and table.dtype is torch.int32

    def views(self, decodes: int) -> tuple[Tensor, Tensor]:
        """The first rows of both buffers, int32 [decodes, 1 + K] and [decodes], sliced once."""
        if (kept := self._views.get(decodes)) is None:
            kept = self._views[decodes] = self.states[:decodes], self.accepted[:decodes]
        return kept


class Ahead:
    """Launches for a step's groups; what it keeps are the numbers that the kernel is told of the last ones."""

    def __init__(self) -> None:
        self._addresses: Tensor | None = None
        self._known: list[tuple[int, ...]] = []
        self._runs: dict[str, bool] = {}

    def nbytes(self) -> int:
        """Bytes held on the device."""
        return 0 if self._addresses is None else self._addresses.nbytes

    def clear(self) -> None:
        """Let go of them."""
        self._addresses, self._known = None, []

    def runs_on(self, device: torch.device) -> bool:
        """Whether its kernel runs there: one that failed is not tried again."""
        if (runs := self._runs.get(device.type)) is None:
            runs = self._runs[device.type] = why_no_kernels(device.type) is None
        return runs

    def write(self, groups: Sequence[Group], lengths: Tensor, accepted: Tensor, block_size: int) -> None:
        """Write the groups' first B rows, of lengths int32 [B] and accepted int32 [at least B].

        `block_size` is in tokens, and 0 where a request's blocks are its table's first ones.
        """
        width, device = groups[0].states.shape[1], lengths.device.type
        try:
            from optimized.uniform_decode_metadata import kernels

            arguments = {
                "groups": self._find(groups),
                "lengths": lengths,
                "accepted": accepted,
                "FIELDS": FIELDS,
                "BLOCK_SIZE": block_size,
                "WIDTH": width,
                "LANES": power_of_two(width),
            }
            launch(kernels.write_groups, device, (len(groups), len(lengths)), arguments, num_warps=1, **EXACT)
        except Exception:
            self._runs[device] = False
            raise

    def _find(self, groups: Sequence[Group]) -> Tensor:
        """Where the groups' parts lie, int64 [groups, FIELDS], written anew where one moved, without a wait."""
        lie = [group.lies for group in groups]
        if self._addresses is None or lie != self._known:
            device = groups[0].table.device
            made = torch.tensor(lie, dtype=torch.int64, pin_memory=device.type == "cuda")
            self._addresses, self._known = made.to(device, non_blocking=True), lie
        return self._addresses


def within(groups: Sequence[Group], decodes: int, lengths: Tensor, accepted: Tensor, starts: Tensor) -> bool:
    """Whether the rows of so many decodes, of lengths [B] and accepted [B], can be written for all groups now.

    `starts` are where the queries begin, and the last one ends, on the CPU: what pads a batch has no tokens.
    """
    device, padding = groups[0].table.device, True
    for group in groups:
        if not group.holds(decodes):
            return False
        padding = padding and group.padding
    return (
        lengths.shape[0] == decodes <= accepted.shape[0]
        and _is_read(lengths, device)
        and _is_read(accepted, device)
        and (padding or bool(starts[decodes] > starts[decodes - 1]))
        and not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    )


def _is_read(part: Tensor, device: torch.device) -> bool:
    return part.dtype is torch.int32 and part.stride() == (1,) and part.device == device


def _lie(table: Tensor) -> tuple[int, ...]:
    return table.data_ptr(), *table.stride(), table.shape[1]
