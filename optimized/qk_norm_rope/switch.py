"""Puts the kernel into a DFlash drafter's layers, after a look at how that drafter rotates its context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optimized.optimization import Counts
from optimized.passes import WithinPasses
from optimized.qk_norm_rope import heads
from optimized.qk_norm_rope.heads import assert_same_rope, norm_and_rotate
from optimized.reference_cycle import attention
from optimized.reference_cycle.attention import HeadNorms
from optimized.reference_cycle.dflash import DFlashDrafter
from spantrace.errors import SpantraceError
from spantrace.patching import Function


class FusedHeads:
    """The switch; a hit is a block whose layers ran the kernel.

    The target, whose layers have heads of the same kind, keeps its own: it is not the drafter's cost.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._passes = WithinPasses(self.counts, DFlashDrafter)
        self._refused: WeakKeyDictionary[DFlashDrafter, str | None] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The layers' heads, and the pass that they are a part of."""
        return {
            "DFlashDrafter.block_heads": self._passes.within(block_heads, self.why_not),
            "DFlashDrafter.forward": self._passes.counted,
        }

    def allocated(self) -> int:
        """Nothing is held."""
        return 0

    def close(self) -> None:
        """Forget the drafters, and drop the graphs with the kernel."""
        self._passes.close()
        self._refused.clear()

    def why_not(self, drafter: DFlashDrafter, index: int, qkv: Tensor) -> str | None:
        """Why these heads are left to stock: what holds of the drafter is asked once, as a pass warms up."""
        if drafter not in self._refused:
            self._refused[drafter] = self._refusal(drafter)
        return self._refused[drafter] or heads.why_not_here(qkv, drafter.layers[index].norms)

    def _refusal(self, drafter: DFlashDrafter) -> str | None:
        """Why this drafter goes without; it looks at what is on the GPU, which a capture could not."""
        try:
            for layer in drafter.layers:
                if reason := heads.why_not(layer.qkv.dtype, layer.norms):
                    return reason
                assert_same_rope(norm_and_rotate, partial(keys_of_context, drafter.table), layer.norms)
        except SpantraceError as error:
            return str(error)
        except Exception as error:
            self.counts.failed(error)
            return f"it failed before ({type(error).__name__})"
        return None


def block_heads(drafter: DFlashDrafter, index: int, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The block's heads in layer `index`."""
    return norm_and_rotate(qkv, drafter.block_positions().flatten(), drafter.layers[index].norms)


def keys_of_context(table: Tensor, qkv: Tensor, positions: Tensor, norms: HeadNorms) -> Tensor:
    """The same keys as the context has them, by whatever makes it now: [tokens, kv_heads, head_dim]."""
    width = len(norms.key)
    raw = qkv[:, -2 * norms.kv_heads * width :].unflatten(-1, (1, 2, norms.kv_heads, width)).unsqueeze(0).contiguous()
    keys = torch.empty_like(raw[0, :, 0, 0]).unsqueeze(0).unsqueeze(0)
    into = keys, torch.empty_like(keys)
    attention.place_context(raw, positions.unsqueeze(0), norms.key.unsqueeze(0), table, into, norms.epsilon)
    return keys[0, 0]
