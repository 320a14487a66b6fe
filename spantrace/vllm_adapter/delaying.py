"""Delays of a server's spans: only where it was started for them, and only as long as the recording that asks lasts."""

from __future__ import annotations

import os

from spantrace.delays import Delays, calibrated_spin
from spantrace.errors import SpantraceError
from spantrace.vllm_adapter.description import gpu_of_this_process

ALLOW_DELAYS = "SPANTRACE_ALLOW_DELAYS"
"""Set in every process of a server whose spans may be held up."""


def refuse_unless_allowed() -> None:
    """SpantraceError where the server was not started to be delayed."""
    if os.environ.get(ALLOW_DELAYS) != "1":
        raise SpantraceError(
            "this server was not started to be delayed; start it with spantrace serve --allow-delays -- MODEL ..."
        )


def make_delays(gpu: bool) -> Delays:
    """The delays of a recording of this process; SpantraceError where the server was not started for it."""
    refuse_unless_allowed()
    if not gpu:
        return Delays()
    import torch

    with torch.cuda.device(gpu_of_this_process()):
        return Delays(calibrated_spin())
