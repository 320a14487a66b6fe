"""How much memory a built-in cycle takes, so that one that is too large is refused before the kernel kills it."""

from __future__ import annotations

from collections.abc import Sequence

import optimized
from optimized.optimization import ITEM_BYTES
from optimized.reference_cycle.geometry import Geometry
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.target import PREFILL_CHUNK
from spantrace.errors import SpantraceError

SMALLER = "--layers, --hidden, --vocab, --batch or --context"


def bytes_needed(settings: Settings, optimize: Sequence[str] = (), *, drafts: bool = True) -> int:
    """Bytes of weights, pools and states, of the largest passes' results, and of what the optimizations add.

    Without `drafts` those of a target that verifies all the same.
    """
    drafter = _DRAFTERS[settings.drafter](settings) if drafts and settings.speculative else 0
    numbers = _target(settings) + drafter
    added = sum(optimized.discover()[name].memory(settings) for name in optimize)
    return numbers * ITEM_BYTES[settings.dtype] + _fixed(settings) + added


def bytes_available(device: str) -> int:
    """What the machine, or its GPU, has left for this process."""
    if device == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info()
        return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
    import psutil

    return int(psutil.virtual_memory().available)


def refuse_too_large(settings: Settings, optimize: Sequence[str] = (), *, drafts: bool = True) -> None:
    """SpantraceError where the cycle takes more than there is."""
    need, there = bytes_needed(settings, optimize, drafts=drafts), bytes_available(settings.device)
    if need > there:
        where = "GPU memory" if settings.device == "cuda" else "memory"
        raise SpantraceError(
            f"{settings.geometry.name} in {settings.dtype} needs about {_size(need)} of {where}, and "
            f"{_size(there)} are free; make it smaller with {SMALLER}"
        )


def _size(count: int) -> str:
    units = {1e18: "EB", 1e15: "PB", 1e12: "TB"}
    scale = next((scale for scale in units if count >= scale), 1e9)
    return f"{count / scale:,.1f} {units.get(scale, 'GB')}"


def _target(settings: Settings) -> int:
    """Numbers in the dtype of the activations: the target's weights, its pools, and a pass's logits and taps."""
    shape, hidden = settings.geometry, settings.geometry.hidden
    states, rows = len(shape.state_layers), settings.batch * _rows(settings)
    attention = _attention(hidden, shape.heads, shape.kv_heads, shape.head_dim)
    inner = shape.state.heads * shape.state.head_dim
    channels = inner + 2 * shape.state.size
    state = hidden * (2 * inner + channels + shape.state.heads)
    state += (settings.batch + 1) * channels * (shape.state.width - 1)
    layers = (shape.layers - states) * (attention + 2 * _pool(settings, shape.kv_heads * shape.head_dim))
    layers += states * state + shape.layers * _mlp(hidden, shape.intermediate)
    return 2 * shape.vocab * hidden + layers + rows * (shape.vocab + len(shape.taps) * hidden)


def _dflash(settings: Settings) -> int:
    shape, hidden, context = settings.geometry.dflash, settings.geometry.hidden, settings.draft_context
    columns = context + settings.speculative + 1
    layer = _attention(hidden, shape.heads, shape.kv_heads, shape.head_dim) + _mlp(hidden, shape.intermediate)
    layer += 2 * settings.batch * columns * shape.kv_heads * shape.head_dim
    projected = (2 * settings.batch + 1) * context * hidden  # stored, and gathered by batch row for each pass
    return shape.layers * layer + projected + _asking(settings)


def _dspark(settings: Settings) -> int:
    shape, geometry = settings.geometry.dspark, settings.geometry
    latent = shape.latent + shape.rope_dim
    heads = geometry.hidden * (shape.nope_dim + shape.rope_dim + shape.value_dim)
    heads += shape.latent * (shape.nope_dim + shape.value_dim)
    layer = shape.heads * heads + latent * geometry.hidden + _mlp(geometry.hidden, shape.intermediate)
    markov = 2 * geometry.vocab * shape.markov_rank
    return shape.layers * (layer + _pool(settings, latent)) + markov + _asking(settings)


def _eagle(settings: Settings) -> int:
    shape, columns = settings.geometry, settings.draft_context + settings.speculative + 1
    layer = shape.hidden * (3 * shape.heads + 4 * shape.kv_heads) * shape.head_dim
    layer += _mlp(shape.hidden, shape.intermediate)
    kept = 2 * settings.batch * columns * shape.kv_heads * shape.head_dim
    return layer + kept + settings.batch * (settings.speculative + 1) * shape.hidden + _asking(settings)


_DRAFTERS = {"dflash": _dflash, "dspark": _dspark, "eagle": _eagle}


def _asking(settings: Settings) -> int:
    """What every drafter has: the taps' projection, the taps of the verified rows, and the block's logits."""
    geometry, rows = settings.geometry, settings.batch * (settings.speculative + 1)
    return (geometry.hidden + rows) * len(geometry.taps) * geometry.hidden + rows * (geometry.vocab + geometry.hidden)


def _fixed(settings: Settings) -> int:
    """Bytes whatever the dtype: recurrent states, those after each token of the largest pass included, and masks."""
    shape, batch = settings.geometry, settings.batch
    rows = batch * _rows(settings)
    state = shape.state.heads * shape.state.head_dim * shape.state.size
    passed = 2 * max(rows, PREFILL_CHUNK)  # one pass leaves its states behind until the next has made its own
    states = 4 * len(shape.state_layers) * state * (batch + 1 + passed)
    tables = 4 * settings.capacity * _rotary(shape) + 8 * settings.batch * settings.capacity
    return states + tables + rows * settings.capacity + _largest_draw(shape)


def _largest_draw(shape: Geometry) -> int:
    """Weights are drawn and scaled in float32, one matrix after another."""
    return 4 * shape.hidden * max(shape.vocab, 2 * shape.intermediate)


def _rotary(shape: Geometry) -> int:
    return shape.head_dim + max(shape.dflash.head_dim, shape.dspark.rope_dim)


def _rows(settings: Settings) -> int:
    return max(2 * settings.speculative, 1)


def _pool(settings: Settings, width: int) -> int:
    return settings.page_count * settings.page_size * width


def _attention(hidden: int, heads: int, kv_heads: int, width: int) -> int:
    return hidden * (2 * heads + 2 * kv_heads) * width


def _mlp(hidden: int, intermediate: int) -> int:
    return 3 * hidden * intermediate
