"""Whose profiler is at work already: two of them in one thread or on one GPU would spoil each other's figures."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any


def python_profiler() -> str:
    """Whose profile function is set in the calling thread, or in all threads; nothing where none is."""
    if (found := sys.getprofile()) is not None:
        return f"{_owner(found)} already profiles the thread {threading.current_thread().name}"
    monitoring: Any = getattr(sys, "monitoring", None)
    tool = monitoring.get_tool(monitoring.PROFILER_ID) if monitoring else None
    return f"{tool} already profiles this process (sys.monitoring)" if tool else ""


def torch_profiler(by: str = "") -> str:
    """That torch.profiler is at work in this process, started `by` whom; nothing where none is."""
    if not getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False):
        return ""
    return f"torch.profiler{f' ({by})' * bool(by)} is already at work in process {os.getpid()}"


def gpu_profiler(by: str = "") -> str:
    """Whose profiler sees the kernels of this process: of them only one can be at work."""
    if library := os.environ.get("CUDA_INJECTION64_PATH"):
        return f"process {os.getpid()} runs under another profiler of the GPU ({os.path.basename(library)})"
    return torch_profiler(by)


def _owner(function: object) -> str:
    """A function by its module and name, an object by its class; pyinstrument by its own name."""
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return "pyinstrument" if named.__module__.startswith("pyinstrument") else f"{named.__module__}.{named.__qualname__}"
