"""The state blocks and accepted tokens of several KV groups, in one Triton launch into the groups' own buffers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["lengths", "accepted"])  # type: ignore[untyped-decorator]
def write_groups(
    groups: tl.tensor,
    lengths: tl.tensor,
    accepted: tl.tensor,
    FIELDS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Row `program 1` of group `program 0`: its WIDTH blocks, and how many tokens it accepted; grid: groups x B.

    A row of `groups` int64 [groups, FIELDS] is where the group's table lies, its strides by row and column, its
    columns, and where its two buffers lie: int32 all, like lengths and accepted [B]. The blocks are those from the
    one that holds the last token on, in blocks of BLOCK_SIZE tokens, or the table's first ones where that is 0.
    """
    row, group = tl.program_id(1).to(tl.int64), groups + tl.program_id(0) * FIELDS
    table = tl.load(group).to(tl.pointer_type(tl.int32))
    row_stride, column_stride, columns = tl.load(group + 1), tl.load(group + 2), tl.load(group + 3)
    states = tl.load(group + 4).to(tl.pointer_type(tl.int32))
    counts = tl.load(group + 5).to(tl.pointer_type(tl.int32))
    place = tl.arange(0, LANES)
    column = place.to(tl.int64)
    if BLOCK_SIZE > 0:
        column += tl.maximum((tl.load(lengths + row) - 1) // BLOCK_SIZE, 0)
    inside = (place < WIDTH) & (column < columns)
    blocks = tl.load(table + row * row_stride + column * column_stride, mask=inside, other=0)
    tl.store(states + row * WIDTH + place, blocks, mask=place < WIDTH)
    tl.store(counts + row, tl.load(accepted + row))
