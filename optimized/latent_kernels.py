"""RMS norm and RoPE of MLA latents in Triton, in the order in which PyTorch's CUDA kernels do both.

F.rms_norm's 128 lanes add up four neighbouring squares each, 512 numbers at a time, then the lanes; it multiplies by
the weight last. A product of complex numbers contracts one product of each part. Nothing else may be contracted, so
the kernel is launched without fusion.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])  # type: ignore[untyped-decorator]
def norm_and_rotate_latents(
    raw: tl.tensor,
    positions: tl.tensor,
    norms: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    pool: tl.tensor,
    pages: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    EPSILON: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    PAIRS: tl.constexpr,
    PAGE: tl.constexpr,
    PUT: tl.constexpr,
    TOKENS: tl.constexpr,
    ROUND_BY_HAND: tl.constexpr,
) -> None:
    """Latents of layer `program 1` of TOKENS tokens: raw and out [tokens, layers, LATENT + ROPE].

    The first part is normed by norms [layers, LATENT]; the pairs of the rest turn by table fp32 [positions, ROPE],
    cos | sin, at positions int64 [tokens]. With PUT latents also go to pages and rows int64 [tokens] of pool [pages,
    PAGE, LATENT + ROPE]. On a GPU a program has one token and 4 warps, a lane for each of the sum's.
    """
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)[:, None]
    there = token < tokens
    layer = tl.program_id(1)
    source = raw + (token * tl.num_programs(1) + layer) * (LATENT + ROPE)
    target = out + (token * tl.num_programs(1) + layer) * (LATENT + ROPE)
    kept = target
    if PUT:
        cell = tl.load(pages + token, mask=there, other=0) * PAGE + tl.load(rows + token, mask=there, other=0)
        kept = pool + cell * (LATENT + ROPE)

    # All that is read is asked for at once, before the sum, whose barriers no load would pass.
    column = tl.arange(0, LATENT)[None, :]
    weight = tl.load(norms + layer * LATENT + column).to(tl.float32)
    plain = tl.load(source + column, mask=there, other=0.0).to(tl.float32)
    pair = tl.arange(0, PAIRS)[None, :]
    real = there & (2 * pair < ROPE)
    first = tl.load(source + LATENT + 2 * pair, mask=real, other=0.0).to(tl.float32)
    second = tl.load(source + LATENT + 2 * pair + 1, mask=real, other=0.0).to(tl.float32)
    turn = table + tl.load(positions + token, mask=there, other=0) * ROPE + pair
    cos = tl.load(turn, mask=real, other=0.0)
    sin = tl.load(turn + ROPE // 2, mask=real, other=0.0)

    lane = tl.arange(0, 128)[None, :]
    total = tl.full([TOKENS, 128], 0.0, tl.float32)
    for chunk in tl.static_range(0, LATENT, 512):
        for part in tl.static_range(4):
            place = chunk + 4 * lane + part
            some = tl.load(source + place, mask=there & (place < LATENT), other=0.0).to(tl.float32)
            total = tl.fma(some, some, total)
    scale = tl.rsqrt(tl.sum(total, 1) * (1.0 / LATENT) + EPSILON)[:, None]

    normed = weight * (scale * plain)
    turned_first = tl.fma(first, cos, -(second * sin))
    turned_second = tl.fma(first, sin, second * cos)
    if ROUND_BY_HAND:
        # The interpreter does not round to bfloat16, but cuts.
        bits = normed.to(tl.int32, bitcast=True)
        normed = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        bits = turned_first.to(tl.int32, bitcast=True)
        turned_first = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        bits = turned_second.to(tl.int32, bitcast=True)
        turned_second = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)

    tl.store(target + column, normed.to(out.dtype.element_ty), mask=there)
    tl.store(target + LATENT + 2 * pair, turned_first.to(out.dtype.element_ty), mask=real)
    tl.store(target + LATENT + 2 * pair + 1, turned_second.to(out.dtype.element_ty), mask=real)
    if PUT:
        tl.store(kept + column, normed.to(out.dtype.element_ty), mask=there)
        tl.store(kept + LATENT + 2 * pair, turned_first.to(out.dtype.element_ty), mask=real)
        tl.store(kept + LATENT + 2 * pair + 1, turned_second.to(out.dtype.element_ty), mask=real)
