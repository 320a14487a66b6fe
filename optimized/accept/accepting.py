"""The verdict by kernels: the buffers it is left in, and the two launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.launching import launch, power_of_two, why_no_kernels
from optimized.reference_cycle.acceptance import Verdict

TILE = 4096
"""Words that one program compares: 40 tiles of a row of 163,840 words, so that few rows keep a GPU busy as well."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Buffers:
    """A verdict, overwritten by the next one, and best int32 [B, K + 1, tiles] the best token of each tile."""

    verdict: Verdict
    best: Tensor
    tile: int

    @classmethod
    def create(cls, batch: int, rows: int, vocab: int, device: torch.device | str, tile: int = TILE) -> Buffers:
        """Room for `rows` rows of each of `batch` requests."""

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        verdict = Verdict(empty(batch, rows), empty(batch), empty(batch, dtype=torch.int64))
        return cls(verdict, empty(batch, rows, -(-vocab // tile)), tile)

    def nbytes(self) -> int:
        """Bytes held."""
        held = self.verdict.accepted, self.verdict.counts, self.verdict.newest, self.best
        return sum(part.nbytes for part in held)


def buffer_bytes(batch: int, rows: int, vocab: int) -> int:
    """What `Buffers` for so much hold."""
    return batch * (4 * rows * (1 + -(-vocab // TILE)) + 4 + 8)


def why_not(logits: Tensor, drafts: Tensor) -> str | None:
    """Why this verdict is not taken."""
    if not drafts.shape[1]:
        return "nothing is drafted"
    if logits.dim() != 3 or len(logits) != len(drafts) or logits.shape[1] <= drafts.shape[1]:
        return "the logits have fewer rows than the drafts ask for, or other requests"
    if logits.dtype not in DTYPES or drafts.dtype != torch.int64:
        return "the logits are of no floating type, or the drafts not int64"
    if logits.stride(-1) != 1 or drafts.stride(-1) != 1:
        return "the words of a row do not lie side by side"
    return why_no_kernels(logits.device.type)


def accept(logits: Tensor, drafts: Tensor, buffers: Buffers) -> Verdict:
    """The verdict on drafts int64 [B, K] by logits [B, rows, vocab], rows > K, in the buffers.

    Nothing is allocated and nothing waits for the GPU, so that it can be captured.
    """
    from optimized.accept import kernels

    batch, rows, tiles = buffers.best.shape
    shared = {
        "logits": logits,
        "best": buffers.best,
        "REQUEST_STRIDE": logits.stride(0),
        "ROW_STRIDE": logits.stride(1),
        "ROWS": rows,
        "VOCAB": logits.shape[2],
        "TILES": tiles,
    }
    verdict, device = buffers.verdict, logits.device.type
    deciding = {
        "drafts": drafts,
        "accepted": verdict.accepted,
        "counts": verdict.counts,
        "newest": verdict.newest,
        "drafts_request": drafts.stride(0),
        "ROWS_WIDTH": power_of_two(rows),
        "TILES_WIDTH": power_of_two(tiles),
    }
    launch(kernels.best_of_tile, device, (batch, rows, tiles), shared | {"TILE": buffers.tile})
    launch(kernels.verdict_of_request, device, (batch,), shared | deciding)
    return verdict
