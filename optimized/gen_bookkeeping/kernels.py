"""The bookkeeping behind the drafter's projection in Triton: latents to their pages, and contexts one step further."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["width", "dummy", "longest"])  # type: ignore[untyped-decorator]
def keep_and_advance(
    latents: tl.tensor,
    positions: tl.tensor,
    accepted: tl.tensor,
    page_counts: tl.tensor,
    table: tl.tensor,
    pools: tl.tensor,
    slots: tl.tensor,
    lengths: tl.tensor,
    visible: tl.tensor,
    width: tl.tensor,
    dummy: tl.tensor,
    longest: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    LATENT: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """One verified row `program 0` of latents [B, ROWS, layers, LATENT] into the page of layer `program 1`.

    It lies at positions int64 [B, ROWS], of which the first is read, and goes to that column of table int32
    [B, width], at most to the last of page_counts int64 [B]; a row past accepted int64 [B] is multiplied by 0, as a
    mask would, so that no number of it is kept and a NaN stays one. pools int64 [layers] are addresses of [pages, PAGE,
    LATENT]. With its first row, a request's length int64 by slot becomes what was accepted behind that position, at
    most `longest`, and 0 in the slot `dummy`; visible int64 [B] leaves BLOCK columns of its pages free.
    """
    request, token = tl.program_id(0) // ROWS, tl.program_id(0) % ROWS
    layer, layers = tl.program_id(1), tl.num_programs(1)
    start, count = tl.load(positions + request * ROWS), tl.load(accepted + request)
    held = tl.load(page_counts + request) * PAGE
    column = tl.maximum(tl.minimum(start + token, held - 1), 0)
    page = tl.load(table + request.to(tl.int64) * width + column // PAGE).to(tl.int64)

    lane = tl.arange(0, LANES)
    real = lane < LATENT
    source = latents + (tl.program_id(0).to(tl.int64) * layers + layer) * LATENT
    value = tl.load(source + lane, mask=real).to(tl.float32) * (token < count).to(tl.float32)
    pool = tl.load(pools + layer).to(tl.pointer_type(latents.dtype.element_ty))
    tl.store(pool + (page * PAGE + column % PAGE) * LATENT + lane, value.to(latents.dtype.element_ty), mask=real)

    if (token == 0) & (layer == 0):
        slot = tl.load(slots + request)
        length = tl.where(slot == dummy, 0, tl.minimum(start + count, longest))
        tl.store(lengths + slot, length)
        tl.store(visible + request, tl.minimum(length, tl.maximum(held - BLOCK, 0)))
        if request == 0:
            tl.store(lengths + dummy, 0)
