"""host-copies on a GPU whose stream is late: copies bring what they were started with, and not without the event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

import optimized  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.host_copies import OPTIMIZATION  # noqa: E402
from optimized.host_copies.staging import Staged, Uploads, on_the_stream  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.reference_cycle.batch import Batch  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.geometry import Geometry  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402

LATE = 400_000_000
"""Clock cycles that the stream spins for, some 0.2 s: the host is long ahead by then."""
NUMBERS = 1 << 18
SETTINGS = Settings(Geometry(), context=128, batch=4, device="cuda", dtype="bfloat16")


class NoEvent:
    def synchronize(self) -> None:
        pass


def brought(values: range, send: Callable[[], None], host: Any, device: Any) -> list[int]:
    """What is on the device after each copy that was started while the stream was busy."""
    seen = torch.zeros(len(values), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(LATE)
    for index, value in enumerate(values):
        host.fill_(value)
        send()
        seen[index : index + 1].copy_(device[-1:])
    host.fill_(-1)
    torch.cuda.synchronize()
    found: list[int] = seen.tolist()
    return found


def pair() -> tuple[Any, Any]:
    host = torch.zeros(NUMBERS, dtype=torch.int64, pin_memory=True)
    return host, host.to("cuda")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_late_copies_bring_what_they_were_started_with(count: int) -> None:
    host, device = pair()
    staged, values = Staged(host, device, on_the_stream), range(10, 10 + count)
    assert all(buffer.is_pinned() for buffer in staged.buffers)
    assert brought(values, staged.send, host, device) == list(values)


def test_without_the_event_a_late_copy_brings_a_later_value() -> None:
    def unguarded(source: Any, target: Any) -> NoEvent:
        target.copy_(source, non_blocking=True)
        return NoEvent()

    host, device = pair()
    assert brought(range(10, 13), Staged(host, device, unguarded).send, host, device) == [12, 11, 12]


def test_without_buffers_every_late_copy_brings_the_last_value() -> None:
    host, device = pair()
    assert brought(range(10, 13), lambda: device.copy_(host, non_blocking=True), host, device) == [-1, -1, -1]


@pytest.mark.parametrize("case", OPTIMIZATION.cases(), ids=lambda case: case.name)
def test_the_device_holds_what_the_host_does(case: Any) -> None:
    judged = judge(OPTIMIZATION, case, Place("cuda", "bfloat16"))
    assert (judged.passed, judged.unequal) == (True, 0), judged


def test_the_host_does_not_wait_for_the_gpu_to_send_two_changes() -> None:
    batch = Batch(SETTINGS)
    uploads = Uploads(batch, on_the_stream)
    uploads.send()
    torch.cuda.synchronize()
    torch.cuda._sleep(LATE)
    behind = torch.cuda.current_stream().record_event()
    batch.place(0, 1, 0, 0)
    sent = uploads.send()
    assert (sent, behind.query()) == (1, False)
    torch.cuda.synchronize()
    assert torch.equal(batch.slots.cpu(), batch.host_slots)


def test_a_cycle_behind_a_late_stream_has_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = random_prompts(SETTINGS, 6, 40)
    stock = generate(Cycle(SETTINGS), prompts, 30)
    optimized.apply(["host-copies"])
    upload = Batch.upload

    def late(batch: Batch) -> None:
        torch.cuda._sleep(LATE // 100)
        upload(batch)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(Batch, "upload", late)
            on = generate(Cycle(SETTINGS), prompts, 30)
        (said,) = optimized.counts()
    finally:
        optimized.revert()
    assert on.tokens == stock.tokens
    assert (said["hits"], said["fallbacks"], said["errors"]) == (on.cycles, 0, 0)
