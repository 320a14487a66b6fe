"""Promotes the states after the last accepted token, of all layers in one launch, in Triton: copies of bits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["requests", "dummy"])  # type: ignore[untyped-decorator]
def promote(
    addresses: tl.tensor,
    slots: tl.tensor,
    counts: tl.tensor,
    broken: tl.tensor,
    requests: tl.tensor,
    dummy: tl.tensor,
    layers: tl.tensor,
    window_row: tl.tensor,
    window_token: tl.tensor,
    window_channel: tl.tensor,
    window_tap: tl.tensor,
    state_row: tl.tensor,
    state_token: tl.tensor,
    state_head: tl.tensor,
    state_part: tl.tensor,
    state_number: tl.tensor,
    WINDOW_WORD: tl.constexpr,
    WINDOW_SIZE: tl.constexpr,
    TAPS: tl.constexpr,
    STATE_SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    NUMBERS: tl.constexpr,
    STATE_TILES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Tile `program 2` of layer `program 1` of request `program 0`: the states first, then the convolution's windows.

    `addresses` int64 [4, layers] are where each layer's windows and states after every token lie, and where it keeps
    them by slot, densely. Sources have strides of any kind. A row in the dummy slot, and one that accepted nothing,
    leaves what is there; the latter, and two rows in one slot, set `broken`.
    """
    request, layer, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, count = tl.load(slots + request), tl.load(counts + request)
    if slot == dummy:
        return
    if layer + tile == 0:
        for start in range(0, requests, 32):
            other = start + tl.arange(0, 32)
            same = tl.load(slots + other, mask=(other < requests) & (other != request), other=-1) == slot
            if tl.sum(same.to(tl.int32), 0) > 0:
                tl.store(broken, 1)
        if count < 1:
            tl.store(broken, 1)
    if count < 1:
        return
    if tile < STATE_TILES:
        states = tl.load(addresses + layers + layer).to(tl.pointer_type(tl.int32))
        kept_states = tl.load(addresses + 3 * layers + layer).to(tl.pointer_type(tl.int32))
        cell = tile * TILE + tl.arange(0, TILE)
        head, part, last = cell // (PARTS * NUMBERS), cell // NUMBERS % PARTS, cell % NUMBERS
        where = request.to(tl.int64) * state_row + (count - 1) * state_token
        where += head * state_head + part * state_part + last * state_number
        inside = cell < STATE_SIZE
        tl.store(kept_states + slot * STATE_SIZE + cell, tl.load(states + where, mask=inside), mask=inside)
    else:
        windows = tl.load(addresses + layer).to(tl.pointer_type(WINDOW_WORD))
        kept_windows = tl.load(addresses + 2 * layers + layer).to(tl.pointer_type(WINDOW_WORD))
        number = (tile - STATE_TILES) * TILE + tl.arange(0, TILE)
        at = request.to(tl.int64) * window_row + (count - 1) * window_token
        at += number // TAPS * window_channel + number % TAPS * window_tap
        real = number < WINDOW_SIZE
        tl.store(kept_windows + slot * WINDOW_SIZE + number, tl.load(windows + at, mask=real), mask=real)
