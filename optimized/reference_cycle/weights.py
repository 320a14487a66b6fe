"""Random weights that mean something: every tensor is drawn from a seed of its own, so adding one changes no other."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

NORM_SPREAD = 0.1
"""Norm weights scatter around 1, so that one taken from the wrong layer shows."""


@dataclass(frozen=True)
class Weights:
    """A source of tensors for the module that `prefix` names; equal seeds and names give equal tensors."""

    seed: int
    device: str
    dtype: torch.dtype
    prefix: str = ""

    def of(self, name: str) -> Weights:
        """The source of a part of this module."""
        return Weights(self.seed, self.device, self.dtype, f"{self.prefix}{name}.")

    def linear(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> Tensor:
        """A matrix [outputs, inputs] of N(0, gain^2 / inputs): unit inputs give outputs of size `gain`."""
        return (self._normal(name, outputs, inputs) * (gain / math.sqrt(inputs))).to(self.dtype)

    def embedding(self, name: str, rows: int, width: int) -> Tensor:
        """A table [rows, width] of N(0, 1)."""
        return self._normal(name, rows, width).to(self.dtype)

    def norm(self, name: str, width: int, around: float = 1.0) -> Tensor:
        """A norm's weight [width], scattered closely around `around`."""
        return (around * (1.0 + NORM_SPREAD * self._normal(name, width))).to(self.dtype)

    def uniform(self, name: str, size: int, low: float, high: float) -> Tensor:
        """A float32 vector [size] of uniform draws."""
        draws = torch.rand(size, generator=self._generator(name), device=self.device)
        return low + (high - low) * draws

    def _normal(self, name: str, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator(name), device=self.device)

    def _generator(self, name: str) -> torch.Generator:
        digest = hashlib.blake2b(f"{self.seed}/{self.prefix}{name}".encode(), digest_size=7).digest()
        return torch.Generator(device=self.device).manual_seed(int.from_bytes(digest, "little"))
