"""A pool manager's offsets to block tables in Triton: one program a row, so that its count has one writer."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first", "row_stride", "table_stride", "width", "divisor"])  # type: ignore[untyped-decorator]
def decode_offsets(
    offsets: tl.tensor,
    table: tl.tensor,
    counts: tl.tensor,
    first: tl.tensor,
    row_stride: tl.tensor,
    table_stride: tl.tensor,
    width: tl.tensor,
    divisor: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    """Row `program 0` of table int32 [B, width] from int32 offsets that begin `first` numbers in, and its count int64.

    A negative entry is no page: it does not count, and page 0 takes its place.
    """
    row = tl.program_id(0).to(tl.int64)
    source, target = offsets + first + row * row_stride, table + row * table_stride
    found = tl.full([TILE], 0, tl.int32)
    for start in range(0, width, TILE):
        column = start + tl.arange(0, TILE)
        real = column < width
        entry = tl.load(source + column, mask=real, other=-1)
        found += (entry >= 0).to(tl.int32)
        tl.store(target + column, tl.maximum(entry, 0) // divisor, mask=real)
    tl.store(counts + row, tl.sum(found, 0).to(tl.int64))
