"""host-copies: only what changed is sent, and a copy that is late finds what it was started with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Queue
from threading import Event, Semaphore, Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_cycles import OUTPUT, WITH_STATES, expected, prompts_for, run, small  # noqa: E402

import optimized  # noqa: E402
from optimized.host_copies import staging  # noqa: E402
from optimized.host_copies.reference import at_once  # noqa: E402
from optimized.host_copies.staging import Direct, Staged, Uploads  # noqa: E402
from optimized.reference_cycle.batch import Batch  # noqa: E402
from optimized.reference_cycle.comparison import compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle  # noqa: E402

PATIENCE_S = 30


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


# A copy that is late


class LateCopies:
    """A thread that carries out copies in order, each only once it is let, and keeps what each brought."""

    def __init__(self) -> None:
        self.brought: list[int] = []
        self.waited = Event()
        self._let, self._asked = Semaphore(0), Queue[Any]()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self, source: Any, target: Any) -> Any:
        """Queue a copy, as a stream does; its end can be waited for."""
        done = Event()
        self._asked.put((source, target, done))
        return Late(self, done)

    def let(self, copies: int) -> None:
        self._let.release(copies)

    def end(self) -> None:
        self._asked.put(None)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            source, target, done = asked
            self._let.acquire()
            target.copy_(source)
            self.brought.append(int(target[0]))
            done.set()


class Late:
    def __init__(self, copies: LateCopies, done: Event) -> None:
        self._copies, self._done = copies, done

    def synchronize(self) -> None:
        self._copies.waited.set()
        assert self._done.wait(PATIENCE_S)


class NoEvent:
    def synchronize(self) -> None:
        pass


def sent_while_copies_are_late(values: range, start_with: Callable[[LateCopies], Any]) -> list[int]:
    """What copies bring that begin when all that can be sent has been sent: the sender is ahead, or waits."""
    copies = LateCopies()
    host, sent_all = torch.zeros(4, dtype=torch.int64), Event()
    staged = Staged(host, torch.zeros_like(host), start_with(copies))

    def send() -> None:
        for value in values:
            host.fill_(value)
            staged.send()
        host.fill_(-1)
        sent_all.set()
        copies.waited.set()

    sender = Thread(target=send, daemon=True)
    sender.start()
    assert copies.waited.wait(PATIENCE_S)
    copies.let(len(values))
    assert sent_all.wait(PATIENCE_S)
    sender.join(PATIENCE_S)
    copies.end()
    return copies.brought


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_late_copies_bring_what_they_were_started_with(count: int) -> None:
    values = range(10, 10 + count)
    assert sent_while_copies_are_late(values, lambda copies: copies.start) == list(values)


def test_without_the_event_a_late_copy_brings_a_later_value() -> None:
    def unguarded(copies: LateCopies) -> Any:
        def start(source: Any, target: Any) -> NoEvent:
            copies.start(source, target)
            return NoEvent()

        return start

    assert sent_while_copies_are_late(range(10, 13), unguarded) == [12, 11, 12]


def test_with_one_buffer_and_no_event_every_late_copy_brings_the_last_value() -> None:
    copies = LateCopies()
    host = torch.zeros(4, dtype=torch.int64)
    device = torch.zeros_like(host)
    for value in range(10, 13):
        host.fill_(value)
        copies.start(host, device)
    copies.let(3)
    copies.end()
    assert copies.brought == [12, 12, 12]


def test_two_copies_are_under_way_before_the_host_waits() -> None:
    copies = LateCopies()
    host = torch.zeros(4, dtype=torch.int64)
    staged = Staged(host, torch.zeros_like(host), copies.start)
    for value in (1, 2):
        host.fill_(value)
        staged.send()
    assert not copies.waited.is_set()
    copies.let(2)
    copies.end()
    assert copies.brought == [1, 2]


# Only what changed


def counted(uploads: Uploads) -> list[str]:
    """Names of the tensors whose sending is noted from now on."""
    noted: list[str] = []
    for name, part in zip(("slots", "pages", "offsets"), uploads.parts, strict=True):
        send = part.send
        part.send = lambda name=name, send=send: (noted.append(name), send())  # type: ignore[method-assign,misc]
    return noted


@pytest.mark.parametrize("start", [None, at_once], ids=["direct", "staged"])
def test_what_was_not_written_to_is_not_sent_and_the_device_keeps_it(start: Any) -> None:
    batch = Batch(small())
    uploads = Uploads(batch, start)
    noted = counted(uploads)
    sent = [uploads.send()]
    for change in (
        lambda: None,
        lambda: batch.place(0, 2, 5, 7),
        lambda: batch.give_pages(0, 0, [3, 4]),
        lambda: batch.host_pages[1].copy_(torch.arange(batch.host_pages.shape[1])),
        lambda: batch.clear(0),
        lambda: None,
    ):
        noted.clear()
        change()
        sent.append(uploads.send())
        assert len(noted) == sent[-1]
        assert torch.equal(batch.slots, batch.host_slots)
        assert torch.equal(batch.pages, batch.host_pages)
        assert torch.equal(batch.offsets, batch.host_offsets)
    assert sent == [3, 0, 1, 2, 1, 3, 0]


def test_on_a_cpu_nothing_is_put_in_between() -> None:
    assert all(isinstance(part, Direct) for part in Uploads(Batch(small()), None).parts)


def test_tensors_that_do_not_count_their_changes_are_refused() -> None:
    batch = Batch(small())
    assert staging.why_not(batch) is None
    with torch.inference_mode():
        other = Batch(small())
    assert "inference mode" in (staging.why_not(other) or "")


def test_a_failure_makes_the_next_upload_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(WITH_STATES)
    _, log = run(settings, "forced")
    optimized.apply(["host-copies"])
    send, calls = Direct.send, iter(range(1000))

    def fail(part: Direct) -> None:
        if next(calls) == 4:
            raise RuntimeError("planted")
        send(part)

    monkeypatch.setattr(Direct, "send", fail)
    on, other = run(settings, "forced")
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (on.cycles - 1, {"RuntimeError: planted": 1})
    assert on.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(0.0)


def test_a_change_that_is_not_sent_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small()
    send = Uploads.send
    monkeypatch.setattr(Uploads, "send", lambda self: send(self) if None in self._sent else 0)
    optimized.apply(["host-copies"])
    on, _ = run(settings, "forced")
    assert on.tokens != expected(settings)


def test_most_cycles_of_a_run_send_nothing() -> None:
    settings = small(page_size=64, batch=2)
    optimized.apply(["host-copies"])
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings, 2), OUTPUT)
    cycle.step()
    (uploads,) = optimized._applied["host-copies"].switch._uploads.values()  # type: ignore[attr-defined]
    noted = counted(uploads)
    for _ in range(5):
        cycle.step()
    assert noted == []
