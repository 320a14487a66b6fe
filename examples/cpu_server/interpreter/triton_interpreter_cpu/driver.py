"""The driver half of the backend: one CPU device with one stream."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from triton.backends import compiler, driver


class InterpreterDriver(driver.DriverBase):
    """A device whose kernels run in this very thread."""

    @classmethod
    def is_active(cls) -> bool:
        return os.environ.get("TRITON_INTERPRET") == "1"

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> compiler.GPUTarget:
        return compiler.GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., float | list[float]]:
        return _time_once


def _time_once(call: Callable[[], object], quantiles: Sequence[float] | None = None, **_: Any) -> float | list[float]:
    """Milliseconds of one call, once for each quantile that is asked for."""
    began = time.perf_counter()
    call()
    milliseconds = (time.perf_counter() - began) * 1e3
    return [milliseconds] * len(quantiles) if quantiles else milliseconds
