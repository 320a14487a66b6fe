"""A Mamba2-like layer whose states after every token are kept until it is known how many tokens were accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from optimized.reference_cycle.attention import rms_norm
from optimized.reference_cycle.geometry import StateShape
from optimized.reference_cycle.weights import Weights
from spantrace.errors import SpantraceError

DECAY = (1.0, 16.0)
TIME_STEP_BIAS = (-5.0, -2.0)
"""What softplus turns into time steps of 0.007 to 0.13, Mamba2's own range."""


@dataclass(frozen=True)
class States:
    """States after every token: convolution windows [B, T, channels, width - 1], ssm float32 [B, T, heads, p, n]."""

    convolution: Tensor
    ssm: Tensor


@dataclass(frozen=True)
class StateLayer:
    """Weights of one layer and its committed states by slot, convolution [slots, ...] and ssm [slots, ...]."""

    shape: StateShape
    input: Tensor
    convolution: Tensor
    decay: Tensor
    time_step_bias: Tensor
    norm: Tensor
    output: Tensor
    convolution_state: Tensor
    ssm_state: Tensor

    @classmethod
    def create(cls, shape: StateShape, hidden: int, slots: int, weights: Weights) -> StateLayer:
        """A layer with empty states."""
        inner, device = shape.heads * shape.head_dim, weights.device
        channels = inner + 2 * shape.size
        return cls(
            shape,
            input=weights.linear("input", inner + channels + shape.heads, hidden),
            convolution=weights.linear("convolution", channels, shape.width),
            decay=-weights.uniform("decay", shape.heads, *DECAY),
            time_step_bias=weights.uniform("time_step_bias", shape.heads, *TIME_STEP_BIAS),
            norm=weights.norm("norm", inner),
            output=weights.linear("output", hidden, inner),
            convolution_state=torch.zeros(slots, channels, shape.width - 1, dtype=weights.dtype, device=device),
            ssm_state=torch.zeros(slots, shape.heads, shape.head_dim, shape.size, device=device),
        )

    def __call__(self, x: Tensor, slots: Tensor) -> tuple[Tensor, States]:
        """x [B, T, hidden], from the committed states of slots [B]: outputs [B, T, hidden], states after each token.

        The committed states stay as they are.
        """
        shape, inner = self.shape, self.shape.heads * self.shape.head_dim
        gate, channels, time = F.linear(x, self.input).split((inner, inner + 2 * shape.size, shape.heads), dim=-1)
        channels, windows = self._convolve(channels, slots)
        values, keys, queries = channels.float().split((inner, shape.size, shape.size), dim=-1)
        values = values.unflatten(-1, (shape.heads, shape.head_dim))
        step = F.softplus(time.float() + self.time_step_bias)
        states = scan(values * step.unsqueeze(-1), keys, step * self.decay, self.ssm_state[slots])
        seen = torch.einsum("bthpn,btn->bthp", states, queries) + values
        y = rms_norm(seen.flatten(2).to(x.dtype) * F.silu(gate), self.norm)
        return F.linear(y, self.output), States(windows, states)

    def commit(self, states: States, slots: Tensor, counts: Tensor) -> None:
        """Keep the states after token counts[b] - 1 of each request b in slots[b]; counts and slots int64 [B]."""
        rows = torch.arange(len(slots), device=slots.device)
        self.convolution_state[slots] = states.convolution[rows, counts - 1]
        self.ssm_state[slots] = states.ssm[rows, counts - 1]

    def reset(self, slot: int) -> None:
        """Empty a slot for a new request."""
        self.convolution_state[slot].zero_()
        self.ssm_state[slot].zero_()

    def _convolve(self, channels: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The causal convolution of channels [B, T, c], and the windows that each token leaves behind."""
        padded = torch.cat((self.convolution_state[slots].transpose(1, 2), channels), dim=1)
        mixed = (padded.unfold(1, self.shape.width, 1) * self.convolution).sum(dim=-1)
        return F.silu(mixed), padded.unfold(1, self.shape.width - 1, 1)[:, 1:]


def must_cover(states: Sequence[States], requests: int, tokens: int) -> None:
    """Raise SpantraceError unless there is a state after each of `tokens` tokens a step of every request."""
    for after in states:
        for made in (after.convolution, after.ssm):
            if made.shape[:2] != (requests, tokens):
                have = " x ".join(map(str, made.shape[:2]))
                raise SpantraceError(
                    f"a layer kept states after {have} tokens; {requests} requests of {tokens} tokens a step need "
                    f"{requests} x {tokens}"
                )


def commit(layers: Sequence[StateLayer], states: Sequence[States], slots: Tensor, counts: Tensor) -> None:
    """Have every layer keep its states after token counts[b] - 1 of each request b; counts and slots int64 [B]."""
    for layer, after in zip(layers, states, strict=True):
        layer.commit(after, slots, counts)


def scan(values: Tensor, keys: Tensor, log_decay: Tensor, initial: Tensor) -> Tensor:
    """Every state of the recurrence state[t] = exp(log_decay[t]) state[t-1] + values[t] keys[t]^T.

    values [B, T, heads, p], keys [B, T, n], log_decay [B, T, heads] and initial [B, heads, p, n], all float32, give
    [B, T, heads, p, n]. In closed form: each state is a weighted sum over the tokens up to it.
    """
    total = log_decay.cumsum(dim=1).transpose(1, 2)
    between = total.unsqueeze(-1) - total.unsqueeze(-2)
    later = torch.ones_like(between[0, 0], dtype=torch.bool).triu(1)
    weights = between.masked_fill(later, float("-inf")).exp()
    written = torch.einsum("bhtj,bjhp,bjn->bthpn", weights, values, keys)
    return written + torch.einsum("bht,bhpn->bthpn", total.exp(), initial)
