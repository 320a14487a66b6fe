"""Where a Triton kernel runs: compiled on a GPU, interpreted in Python on a CPU; triton is imported at a launch."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

INTERPRET = "TRITON_INTERPRET"
EXACT = {"enable_fp_fusion": False}
"""For a kernel whose products and sums round one by one, as PyTorch's do."""


def why_no_kernels(device: str) -> str | None:
    """Why no Triton kernel is to run on a device, "cpu" or "cuda", None where one can.

    A CPU interprets kernels, a thousand times slower than PyTorch's own operations, and so only where it is told to.
    """
    if find_spec("triton") is None:
        return "triton is not installed"
    if not device.startswith("cuda") and os.environ.get(INTERPRET) != "1":
        return f"there is no GPU to run its kernel, and {INTERPRET} is not 1"
    return None


def why_no_kernels_here() -> str | None:
    """Why none is to run on what PyTorch finds in this machine."""
    if find_spec("torch") is None:
        return why_no_kernels("cpu")
    import torch

    return why_no_kernels("cuda" if torch.cuda.is_available() else "cpu")


def power_of_two(number: int) -> int:
    """The least one that is not smaller: as many lanes as a block for so many numbers must have."""
    return 1 << (number - 1).bit_length()


def launch(kernel: Any, device: str, grid: tuple[int, ...], arguments: dict[str, Any], **options: Any) -> None:
    """Run a kernel compiled on a GPU, and interpreted in Python on a CPU, whatever TRITON_INTERPRET says."""
    if device != "cpu":
        kernel[grid](**arguments, **options)
        return
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    # Triton's own functions in Python are compiled ones unless it was imported to interpret.
    combine = {"max": tl.standard._elementwise_max, "sum": tl.standard._sum_combine}
    compiled = {name: getattr(tl, name) for name in combine}
    try:
        for name, function in combine.items():
            setattr(tl, name, lambda block, axis, function=function: tl.reduce(block, axis, function))
        with np.errstate(all="ignore"):  # infinities and what is no number are computed with as on a GPU
            InterpretedFunction(kernel.fn)[grid](**arguments)
    finally:
        for name, function in compiled.items():
            setattr(tl, name, function)
