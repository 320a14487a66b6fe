"""Which states are promoted, from where to where, and the launch that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optimized.launching import EXACT, launch
from optimized.optimization import Counts, guarded
from optimized.reference_cycle.state_layer import StateLayer, States
from optimized.reference_cycle.target import Target
from spantrace.patching import Function

TILES = {"cuda": 1024, "cpu": 1 << 16}
"""Numbers that a program copies; what is interpreted takes its time by the program."""


class Promotion:
    """Promotes the states of one target's layers; what it writes to is the layers' own.

    addresses int64 [4, layers] on the device are written anew where the states lie elsewhere than before: a graph's
    stay. broken int32 [1] is on the host, where a GPU sets it: to ask is not to wait.
    """

    def __init__(self, layers: Sequence[StateLayer]) -> None:
        device = layers[0].ssm_state.device
        self.layers = list(layers)
        self.addresses = torch.zeros(4, len(layers), dtype=torch.int64, device=device)
        self.broken = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._known: list[list[int]] = []

    def nbytes(self) -> int:
        """Bytes held on the layers' device."""
        parts = (self.addresses, self.broken)
        return sum(part.nbytes for part in parts if part.device == self.addresses.device)

    def promote(self, states: Sequence[States], slots: Tensor, counts: Tensor) -> None:
        """Keep the states after token counts[b] - 1 of each request b in slots[b], int64 [B] both, in one launch."""
        from optimized.state_commit import kernels

        self._find(states)
        first, kept = states[0], self.layers[0]
        window_size, state_size = prod(kept.convolution_state.shape[1:]), prod(kept.ssm_state.shape[1:])
        tile = TILES[slots.device.type]
        state_tiles, window_tiles = -(-state_size // tile), -(-window_size // tile)
        grid = len(slots), len(self.layers), state_tiles + window_tiles
        arguments = {
            "addresses": self.addresses,
            "slots": slots,
            "counts": counts,
            "broken": self.broken,
            "requests": len(slots),
            "dummy": len(kept.ssm_state) - 1,
            "layers": len(self.layers),
            **_strides("window", ("row", "token", "channel", "tap"), first.convolution),
            **_strides("state", ("row", "token", "head", "part", "number"), first.ssm),
            "WINDOW_WORD": _word(first.convolution),
            "WINDOW_SIZE": window_size,
            "TAPS": kept.convolution_state.shape[2],
            "STATE_SIZE": state_size,
            "PARTS": kept.ssm_state.shape[2],
            "NUMBERS": kept.ssm_state.shape[3],
            "STATE_TILES": state_tiles,
            "TILE": tile,
        }
        launch(kernels.promote, slots.device.type, grid, arguments, **EXACT)

    def _find(self, states: Sequence[States]) -> None:
        lie = [
            [after.convolution.data_ptr() for after in states],
            [after.ssm.data_ptr() for after in states],
            [layer.convolution_state.data_ptr() for layer in self.layers],
            [layer.ssm_state.data_ptr() for layer in self.layers],
        ]
        if lie != self._known:
            self.addresses.copy_(torch.tensor(lie, dtype=torch.int64))
            self._known = lie


def why_not(layers: Sequence[StateLayer], states: Sequence[States], slots: Tensor, counts: Tensor) -> str | None:
    """Why these states are not promoted together."""
    if not layers:
        return "the target has no layers with a state"
    first = states[0]
    for layer, after in zip(layers, states, strict=True):
        for one, own in ((after.convolution, first.convolution), (after.ssm, first.ssm)):
            if (one.shape, one.stride(), one.dtype) != (own.shape, own.stride(), own.dtype):
                return "the layers' states differ in shape, layout or dtype"
        for kept, made in ((layer.convolution_state, after.convolution), (layer.ssm_state, after.ssm)):
            if (kept.shape[1:], kept.dtype) != (made.shape[2:], made.dtype) or not kept.is_contiguous():
                return "a layer keeps its states in another shape, layout or dtype than it makes them"
    if first.ssm.dtype != torch.float32 or first.convolution.element_size() not in (2, 4, 8):
        return "the states are of a dtype that the kernel does not copy"
    if not all(part.dtype == torch.int64 and part.is_contiguous() for part in (slots, counts)):
        return "the slots or the counts are not dense int64"
    return None


class OneLaunch:
    """The switch; a hit is a cycle, which commits its states once."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._promotions: WeakKeyDictionary[Target, Promotion] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The one seam."""
        return {"Target.commit_states": partial(guarded, fast=self.commit, why_not=self.why_not, counts=self.counts)}

    def allocated(self) -> int:
        """Bytes of all targets' addresses."""
        return sum(promotion.nbytes() for promotion in self._promotions.values())

    def close(self) -> None:
        """Drop the addresses."""
        self._promotions.clear()

    def why_not(self, target: Target, states: Sequence[States], slots: Tensor, counts: Tensor) -> str | None:
        """Why this cycle's states are not promoted together; nothing is read from the GPU."""
        promotion = self._promotions.get(target)
        if promotion is not None and int(promotion.broken) != 0:
            return "a row had accepted nothing, or two rows were in one slot"
        return why_not(target.state_layers, states, slots, counts)

    def commit(self, target: Target, states: Sequence[States], slots: Tensor, counts: Tensor) -> None:
        """Promote, as the target's own method would but for the dummy slot, which nobody reads."""
        if (promotion := self._promotions.get(target)) is None:
            promotion = self._promotions[target] = Promotion(target.state_layers)
        promotion.promote(states, slots, counts)


def _strides(name: str, parts: Sequence[str], made: Tensor) -> dict[str, int]:
    return {f"{name}_{part}": made.stride(index) for index, part in enumerate(parts)}


def _word(made: Tensor) -> object:
    """Triton's whole number of as many bits."""
    import triton.language as tl

    return {2: tl.int16, 4: tl.int32, 8: tl.int64}[made.element_size()]
