"""Attention of a few query tokens a request to its paged keys, in segments of what is visible: buffers and launches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from optimized import launching

MOST_QUERIES = 8
"""Query tokens of a request in one call."""
STOCK_SEGMENTS = 16
"""Segments that the buffers have room for at as many tokens as they are made for; fewer tokens may have more."""
FEWEST_SEGMENTS, MOST_SEGMENTS = 8, 128
PROGRAMS = 264
"""Programs that keep the memory of an H200 busy, two for each of its multiprocessors."""
LEAST_ROWS, MOST_ROWS = 16, 128
TILE_BYTES, SHARED_BYTES = 8192, 98304
"""Of one tile of keys, and of a program's queries with the keys and values that are under way at a time."""
FEWEST_STAGES, MOST_STAGES = 2, 5
"""Tiles under way: a page must be known before its keys are fetched, so that it takes more than two to hide both."""
MERGED_BY_A_WARP = 4096
"""Numbers of the segments' parts that a warp holds in its registers as it merges them."""
LOG2_E = 1.4426950408889634
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Context:
    """What the queries of each request attend to, and where those queries are.

    `keys` and `values` are [pages, page, key heads, head_dim], the last dimension dense; `table` int32 [requests,
    pages of a request]; `lengths` int32 [requests] counts the request's tokens, its queries included; the queries of
    request r are the rows starts[r] to starts[r + 1], int32 [requests + 1].
    """

    keys: Tensor
    values: Tensor
    table: Tensor
    lengths: Tensor
    starts: Tensor

    @property
    def requests(self) -> int:
        """How many there are, padding included."""
        return len(self.lengths)


@dataclass(frozen=True)
class Sight:
    """What a query sees: keys less than `window` away, all where it is 0, and none that come later where `causal`.

    `sinks` [heads] are scores, in natural units, that weigh in each head's softmax and have no value.
    """

    scale: float
    window: int = 0
    causal: bool = True
    sinks: Tensor | None = None


def scratch_bytes(tokens: int, heads: int, head_dim: int, segments: int = STOCK_SEGMENTS) -> int:
    """Bytes of the parts of so many query tokens: an fp32 row, a maximum and a sum for each head and segment."""
    return 4 * tokens * heads * segments * (launching.power_of_two(head_dim) + 2)


class Scratch:
    """The parts that the segments leave for the merge, in fp32; each call lays its own tokens and segments out in it.

    It holds what `scratch_bytes` says. Calls one after the other on a stream can share it.
    """

    def __init__(
        self, tokens: int, heads: int, head_dim: int, device: torch.device | str, segments: int = STOCK_SEGMENTS
    ) -> None:
        cells = tokens * heads * segments
        self.part = torch.empty(cells * launching.power_of_two(head_dim), dtype=torch.float32, device=device)
        self.peak = torch.empty(cells, dtype=torch.float32, device=device)
        self.weight = torch.empty(cells, dtype=torch.float32, device=device)

    @classmethod
    def of(cls, part: Tensor, peak: Tensor, weight: Tensor) -> Scratch:
        """Dense fp32 buffers that are there already, of any shape."""
        made = cls.__new__(cls)
        made.part, made.peak, made.weight = (buffer.view(-1) for buffer in (part, peak, weight))
        return made

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """All of it."""
        return self.part, self.peak, self.weight

    def nbytes(self) -> int:
        """Bytes held."""
        return sum(part.nbytes for part in self.parts())

    def segments(self, tokens: int, heads: int, head_dim: int) -> int:
        """How many segments of so many tokens it has room for."""
        rows = max(tokens * heads, 1)
        return min(len(self.peak), len(self.weight), len(self.part) // launching.power_of_two(head_dim)) // rows


@dataclass(frozen=True)
class Plan:
    """How one launch is cut: segments of the keys, keys in a tile, rows in a program, warps, and tiles under way."""

    segments: int
    tile: int
    rows: int
    warps: int
    stages: int = FEWEST_STAGES


def plan(query: Tensor, context: Context, longest: int, window: int, room: int) -> Plan:
    """A plan for `longest` queries a request at most, where the buffers have room for `room` segments.

    It depends on shapes alone, so that a captured graph is right for every length.
    """
    heads, head_dim = query.shape[1:]
    key_heads = context.keys.shape[2]
    row_bytes = launching.power_of_two(head_dim) * query.element_size()
    tile = min(max(TILE_BYTES // row_bytes, 16), 64)
    programs, segments = context.requests * key_heads, MOST_SEGMENTS
    while segments > FEWEST_SEGMENTS and segments * programs > PROGRAMS:
        segments //= 2
    # A window's tiles are known: segments beyond their number would have nothing to do.
    tiles = (window + longest - 2) // tile + 2 if window else segments
    while segments > 1 and (segments // 2 >= tiles or segments > room):
        segments //= 2
    rows = min(max(launching.power_of_two(longest * heads // key_heads), LEAST_ROWS), MOST_ROWS)
    warps = 8 if rows > 64 or query.element_size() > 2 or head_dim > 128 else 4
    deep = min((SHARED_BYTES - rows * row_bytes) // (2 * tile * row_bytes), MOST_STAGES)
    few = window and tiles <= FEWEST_STAGES * segments
    return Plan(segments, tile, rows, warps, FEWEST_STAGES if few else max(deep, FEWEST_STAGES))


def why_not(query: Tensor, context: Context, out: Tensor, longest: int, scratch: Scratch) -> str | None:
    """Why these queries, [tokens, heads, head_dim], are not taken."""
    if not 1 <= longest <= MOST_QUERIES:
        return f"a request has more than {MOST_QUERIES} queries"
    if {part.dtype for part in (query, context.keys, context.values, out)} - {query.dtype} or query.dtype not in DTYPES:
        return "queries, keys and values are not of one dtype"
    if query.shape[1] % context.keys.shape[2]:
        return "the heads cannot be shared out over the key heads"
    if any(part.stride(-1) != 1 for part in (query, context.keys, context.values, out, context.table)):
        return "a head's numbers do not lie side by side"
    if {context.table.dtype, context.lengths.dtype, context.starts.dtype} != {torch.int32}:
        return "the lengths, the starts or the pages are not int32"
    if scratch.segments(*query.shape) < 1:
        return "there are more query tokens than the buffers hold"
    return None


def attend(
    query: Tensor,
    context: Context,
    out: Tensor,
    longest: int,
    sight: Sight,
    scratch: Scratch,
    chosen: Plan | None = None,
) -> None:
    """Write each query's attention, [tokens, heads, head_dim], to `out`, and zeros to rows that see nothing.

    No request may have more than `longest` queries; `why_not` must have no objection. On a GPU nothing is allocated
    and nothing depends on what is in a tensor, so that it can be captured.
    """
    from optimized.split_kv_3d import kernels

    if query.dtype == torch.bfloat16 and query.device.type == "cpu":
        # Triton's interpreter multiplies the bits of bfloat16 as whole numbers.
        widened = replace(context, keys=context.keys.float(), values=context.values.float())
        wide = torch.empty(out.shape)
        attend(query.float(), widened, wide, longest, sight, scratch, chosen)
        out.copy_(wide)
        return
    tokens, heads, head_dim = query.shape
    room = scratch.segments(tokens, heads, head_dim)
    cut = chosen or plan(query, context, longest, sight.window, room)
    if cut.segments > room:
        raise ValueError(f"{cut.segments} segments of {tokens} query tokens do not fit into the buffers")
    part, peak, weight = scratch.parts()
    shared = {
        "part": part,
        "peak": peak,
        "weight": weight,
        "starts": context.starts,
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "WIDTH": launching.power_of_two(head_dim),
    }
    merging = {
        "out": out,
        "sinks": sight.sinks,
        "requests": context.requests,
        "out_row": out.stride(0),
        "out_head": out.stride(1),
        "SEGMENTS": cut.segments,
        "HAS_SINKS": sight.sinks is not None,
    }
    splitting = _splitting(query, context, longest, sight, cut)
    grid = context.requests, context.keys.shape[2] * splitting["ROW_BLOCKS"], cut.segments
    device = query.device.type
    options = {"num_warps": cut.warps, "num_stages": cut.stages}
    launching.launch(kernels.attend_to_segment, device, grid, shared | splitting, **options)
    warps = min(max(cut.segments * shared["WIDTH"] // MERGED_BY_A_WARP, 4), 16)
    launching.launch(kernels.merge_segments, device, (tokens, heads), shared | merging, num_warps=warps)


def _splitting(query: Tensor, context: Context, longest: int, sight: Sight, cut: Plan) -> dict[str, Any]:
    """What the first kernel is told and the second is not."""
    group = query.shape[1] // context.keys.shape[2]
    return {
        "query": query,
        "keys": context.keys,
        "values": context.values,
        "table": context.table,
        "lengths": context.lengths,
        "scale": sight.scale * LOG2_E,
        "segments": cut.segments,
        "query_row": query.stride(0),
        "query_head": query.stride(1),
        **_strides("key", context.keys),
        **_strides("value", context.values),
        "table_row": context.table.stride(0),
        "GROUP": group,
        "PAGE": context.keys.shape[1],
        "TILE": cut.tile,
        "ROWS": cut.rows,
        "ROW_BLOCKS": -(-longest * group // cut.rows),
        "WINDOW": sight.window,
        "CAUSAL": sight.causal,
    }


def _strides(name: str, pages: Tensor) -> dict[str, int]:
    return {f"{name}_{part}": pages.stride(index) for index, part in enumerate(("page", "row", "head"))}
