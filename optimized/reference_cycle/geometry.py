"""Shapes of the target and of its drafters, by name; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from spantrace.errors import SpantraceError


@dataclass(frozen=True)
class Rope:
    """Rotary frequencies: the `partial` share of a head rotates; a YaRN `factor` of 1 is plain RoPE.

    `truncate` rounds the bounds of YaRN's ramp to whole dimensions, as most implementations do without asking.
    """

    theta: float = 1e6
    partial: float = 1.0
    factor: float = 1.0
    original_context: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True)
class StateShape:
    """A Mamba2-like layer: `heads` states of [head_dim, size] and a causal convolution over `width` tokens."""

    heads: int = 4
    head_dim: int = 16
    size: int = 16
    width: int = 4


@dataclass(frozen=True)
class DFlashShape:
    """A DFlash drafter. `windows` repeats over the layers: how many positions back a layer sees, None for all.

    `causal_windows` makes the layers that have a window causal within the block as well.
    """

    layers: int = 5
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 16
    intermediate: int = 128
    rope: Rope = field(default_factory=Rope)
    windows: tuple[int | None, ...] = (None,)
    causal_windows: bool = False
    sinks: bool = False


@dataclass(frozen=True)
class DSparkShape:
    """A DSpark drafter with MLA: a latent is `latent` normed numbers and `rope_dim` rotated ones, for all heads."""

    layers: int = 3
    heads: int = 4
    latent: int = 32
    rope_dim: int = 8
    nope_dim: int = 16
    value_dim: int = 16
    intermediate: int = 128
    markov_rank: int = 16
    rope: Rope = field(default_factory=Rope)


@dataclass(frozen=True)
class Geometry:
    """A target and both of its drafters; `taps` are the target layers whose outputs the drafters read.

    `longest_draft_context` is the most context tokens that a drafter can hold, None for as many as the target.
    """

    name: str = "tiny"
    hidden: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 128
    vocab: int = 512
    rope: Rope = field(default_factory=Rope)
    taps: tuple[int, ...] = (0, 1, 3)
    state_layers: tuple[int, ...] = ()
    state: StateShape = field(default_factory=StateShape)
    dflash: DFlashShape = field(default_factory=DFlashShape)
    dspark: DSparkShape = field(default_factory=DSparkShape)
    mask_token: int = 511
    longest_draft_context: int | None = None

    def __post_init__(self) -> None:
        if not self.taps or not all(0 <= layer < self.layers for layer in (*self.taps, *self.state_layers)):
            raise SpantraceError(f"taps {self.taps} and state layers must lie in the target's {self.layers} layers")
        if self.heads % self.kv_heads or self.dflash.heads % self.dflash.kv_heads:
            raise SpantraceError("the number of heads must be a multiple of the number of KV heads")
        if not 0 <= self.mask_token < self.vocab:
            raise SpantraceError(f"the mask token {self.mask_token} must lie in the vocabulary of {self.vocab}")

    def scaled(self, layers: int | None = None, hidden: int | None = None, vocab: int | None = None) -> Geometry:
        """This geometry with other sizes: taps and kinds of layers spread as before, the rest as wide in proportion."""
        deep, wide, words = layers or self.layers, hidden or self.hidden, vocab or self.vocab
        return replace(
            self,
            hidden=wide,
            layers=deep,
            vocab=words,
            intermediate=self._narrowed(self.intermediate, wide),
            taps=self._moved(self.taps, deep),
            state_layers=self._states_among(deep),
            dflash=replace(self.dflash, intermediate=self._narrowed(self.dflash.intermediate, wide)),
            dspark=replace(self.dspark, intermediate=self._narrowed(self.dspark.intermediate, wide)),
            mask_token=min(self.mask_token, words - 1),
        )

    def _narrowed(self, size: int, hidden: int) -> int:
        return max(1, round(size * hidden / self.hidden))

    def _moved(self, layers: tuple[int, ...], deep: int) -> tuple[int, ...]:
        scale = (deep - 1) / max(self.layers - 1, 1)
        return tuple(sorted({round(layer * scale) for layer in layers}))

    def _states_among(self, deep: int) -> tuple[int, ...]:
        """The state layers of `deep` layers: the same share of every stretch of them, and from 2 on not one kind only.

        What is rounded is how many lie in front of each layer, so neighbours never fall together as rounded places do.
        """
        if not self.state_layers:
            return ()
        depths = [Fraction(layer * self.layers, deep) for layer in range(deep + 1)]
        in_front = [round(self._states_within(depth) * deep / self.layers) for depth in depths]
        states = [layer for layer in range(deep) if in_front[layer + 1] > in_front[layer]]
        if deep > 1 and len(states) in (0, deep) and len(self.state_layers) < self.layers:
            states = states[:-1] or [0]
        return tuple(states)

    def _states_within(self, depth: Fraction) -> Fraction:
        """How many state layers lie within the first `depth` layers, the last of which may be a part of one."""
        whole = int(depth)
        return sum(layer < whole for layer in self.state_layers) + (depth - whole) * (whole in self.state_layers)


def taps_of(layers: int, count: int = 5) -> tuple[int, ...]:
    """The layers that DFlash taps by default: `count` of them, evenly spaced from the second to the third last."""
    return tuple(round(1 + index * (layers - 4) / (count - 1)) for index in range(count))


_NEMOTRON_ATTENTION = (3, 7, 11, 15, 20, 25)
_WIDE_DFLASH = DFlashShape(layers=5, heads=32, kv_heads=8, head_dim=128, intermediate=12288)
_WIDE_DSPARK = DSparkShape(5, heads=32, latent=512, rope_dim=64, nope_dim=128, value_dim=128, intermediate=12288)
_KIMI_DSPARK = replace(_WIDE_DSPARK, heads=64, intermediate=18432, markov_rank=256, rope=Rope(theta=5e4, factor=32.0))

GEOMETRIES: dict[str, Geometry] = {
    "tiny": Geometry(),
    "qwen3-8b": Geometry(
        "qwen3-8b",
        hidden=4096,
        layers=36,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate=12288,
        vocab=151936,
        taps=taps_of(36),
        dflash=_WIDE_DFLASH,
        dspark=replace(_WIDE_DSPARK, markov_rank=256),
        mask_token=151669,
    ),
    "nemotron-h": Geometry(
        "nemotron-h",
        hidden=2688,
        layers=29,
        heads=32,
        kv_heads=2,
        head_dim=128,
        intermediate=9856,
        vocab=131072,
        taps=taps_of(29),
        state_layers=tuple(layer for layer in range(29) if layer not in _NEMOTRON_ATTENTION),
        state=StateShape(heads=64, head_dim=64, size=128),
        dflash=replace(_WIDE_DFLASH, intermediate=8064),
        dspark=replace(_WIDE_DSPARK, intermediate=8064, markov_rank=256),
        mask_token=131071,
    ),
    "kimi-k3-drafter": Geometry(
        "kimi-k3-drafter",
        hidden=7168,
        layers=6,
        heads=64,
        kv_heads=8,
        head_dim=128,
        intermediate=18432,
        vocab=163840,
        taps=(0, 1, 2, 4, 5),
        dflash=replace(_WIDE_DFLASH, heads=64, intermediate=18432),
        dspark=_KIMI_DSPARK,
        mask_token=163839,
    ),
}
"""`nemotron-h` has dense layers as wide as its active experts; `kimi-k3-drafter` the drafter of Kimi K3 at its real
size behind a shallow stand-in for the target."""
