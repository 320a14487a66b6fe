"""What settles of a recording under way is in the end the recording, each cycle and each span once."""

from __future__ import annotations

import numpy as np
import pytest
from streamed import DRAIN, GPU_CLOCK, S, Server, spans_in

from spantrace import settling as settling_module
from spantrace.settling import SETTLED_NS, Settled, Settling
from spantrace.spans import Kind, Track


def settled(server: Server, interval: int = S, *, finish: bool = True) -> list[tuple[int, Settled]]:
    """What settles, looked at every `interval` ns of the server's time, with the time."""
    settling, found, looked = Settling(server.header), [], 0
    for now, frame in server.frames():
        while now and looked + interval <= now:
            looked = max(looked + interval, now - interval)
            found += [(looked, one) for one in settling.settle(looked)]
        settling.take(frame)
    if finish:
        found += [(now, one) for one in settling.settle(now, all_of_it=True)]
    return found


@pytest.mark.parametrize("interval", [S // 4, S, 3 * S, 60 * S])
@pytest.mark.parametrize(
    "server", [Server(600), Server(600, late=None), Server(400, ranks=2)], ids=["gpu", "cpu", "tp"]
)
def test_every_cycle_and_span_comes_once(server: Server, interval: int) -> None:
    whole, found = server.joined(), [one for _, one in settled(server, interval)]
    assert sorted(span for one in found for span in spans_in(one.recording)) == spans_in(whole)
    fresh = [one.recording.cycles for one in found if one.fresh]
    for name, column in vars(whole.cycles).items():
        assert np.array_equal(np.concatenate([vars(one)[name] for one in fresh]), column), name
    kinds = dict(zip(whole.cycles.step.tolist(), whole.cycles.kind.tolist(), strict=True))
    for one in found:
        cycles = one.recording.cycles
        assert cycles.kind.tolist() == [kinds[step] for step in cycles.step.tolist()]
    assert {Kind.WARMUP, Kind.AFTER_IDLE, Kind.STEADY} <= set(whole.cycles.kind.tolist())


def test_host_spans_do_not_wait_for_the_gpu() -> None:
    for now, one in settled(Server(600), finish=False):
        assert set(one.recording.spans.track.tolist()) == {Track.HOST if one.fresh else Track.GPU}
        if one.fresh:
            age = now - one.recording.cycles.start
            assert age.min() >= SETTLED_NS
            assert age.max() <= SETTLED_NS + 2 * S + DRAIN


def test_nothing_settles_twice_or_of_nothing() -> None:
    server = Server(100)
    settling, last = Settling(server.header), 0
    assert list(settling.settle(S)) == []
    for last, frame in server.frames():  # noqa: B007
        settling.take(frame)
    assert [one.fresh for one in settling.settle(last)] == [True, False]
    assert list(settling.settle(last + S)) == list(settling.settle(last + 9 * S, all_of_it=True)) == []


def test_what_is_kept_for_the_gpu_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(600, late=None)
    assert _most_kept(server) <= 8, "no GPU times will come"
    server = Server(600, late=12 * S)
    assert _most_kept(server) >= 12
    monkeypatch.setattr(settling_module, "_MOST_KEPT", 10_000)
    assert _most_kept(server) <= 8
    whole, found = server.joined(), [one.recording for _, one in settled(server)]
    seen = [span for one in found for span in spans_in(one)]
    assert len(seen) == len(set(seen))
    assert set(seen) < set(spans_in(whole))
    assert sorted(span for one in found for span in spans_in(one, Track.HOST)) == spans_in(whole, Track.HOST)


def _most_kept(server: Server) -> int:
    settling, most, looked = Settling(server.header), 0, 100 * S
    for now, frame in server.frames():
        settling.take(frame)
        if now - looked >= S:
            looked = now
            list(settling.settle(now))
            most = max(most, sum(bool(part.frames) for part in settling._slices))
    return most


def test_gpu_times_are_on_the_hosts_clock() -> None:
    late = [one.recording for _, one in settled(Server(300)) if not one.fresh]
    host = {span[:2]: span[4] for _, one in settled(Server(300)) for span in spans_in(one.recording, Track.HOST)}
    assert GPU_CLOCK < 0
    assert late
    for one in late:
        for step, name, _, _, start, _ in spans_in(one, Track.GPU):
            assert start == (host[step, name] if (step, name) in host else host[step, "target.forward"] + 500)
