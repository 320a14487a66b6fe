"""A wrapper has its function's signature, calls it alike, and writes one row whatever happens."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from journals import rows_of

from spantrace.recorder import Recorder, Site
from spantrace.wrapping import LANE_SHIFT, Flag


def plain(a: int, b: int = 2) -> tuple[Any, ...]:
    return a, b


def positional_only(a: int, b: int = 5, /, c: int = 6) -> tuple[Any, ...]:
    return a, b, c


def keyword_only(a: int, *, start: int, row: object = None, clock: list[int] = []) -> tuple[Any, ...]:  # noqa: B006
    return a, start, row, clock


def starred(a: int, *rest: int, flag: bool = False, **named: int) -> tuple[Any, ...]:
    return a, rest, flag, named


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (plain, (1,), {}),
    (plain, (1, 3), {}),
    (plain, (), {"b": 4, "a": 1}),
    (positional_only, (1,), {"c": 9}),
    (positional_only, (1, 2, 3), {}),
    (keyword_only, (1,), {"start": 7}),
    (keyword_only, (), {"a": 1, "start": 7, "row": "x"}),
    (starred, (1, 2, 3), {"flag": True, "other": 4}),
]


@pytest.mark.parametrize(("function", "arguments", "named"), CALLS)
def test_a_wrapper_calls_like_its_function(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    recorder = Recorder()
    wrapper = recorder.wrap(function, Site("sample", 3))
    assert inspect.signature(wrapper) == inspect.signature(function)
    assert wrapper(*arguments, **named) == function(*arguments, **named)
    ((row, start, end),) = rows_of(recorder)
    assert row == 3
    assert 0 < start <= end


def test_the_generated_wrapper_is_exact_not_generic() -> None:
    code = Recorder().wrap(plain, Site("sample", 0)).__code__
    assert code.co_varnames[:2] == ("a", "b")
    assert not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)


def test_a_default_stays_the_very_object() -> None:
    wrapper = Recorder().wrap(keyword_only, Site("sample", 0))
    assert wrapper(1, start=2)[3] is keyword_only.__kwdefaults__["clock"]


def test_wrong_arguments_raise_as_before() -> None:
    with pytest.raises(TypeError, match="plain"):
        Recorder().wrap(plain, Site("sample", 0))(1, 2, 3)


def test_an_exception_passes_and_its_row_is_written() -> None:
    def fails() -> None:
        raise KeyError("mine")

    recorder = Recorder()
    with pytest.raises(KeyError, match="mine"):
        recorder.wrap(fails, Site("sample", 0))()
    assert len(rows_of(recorder)) == 1


def test_probes_see_arguments_result_and_start() -> None:
    seen: list[tuple[Any, ...]] = []
    site = Site("sample", 0, before=lambda *a: seen.append(a), after=lambda *a: seen.append(a))
    recorder = Recorder()
    assert recorder.wrap(plain, site)(1) == (1, 2)
    ((_, start, _),) = rows_of(recorder)
    assert seen == [(1, 2), (start, (1, 2), 1, 2)]


def test_a_probe_that_raises_is_counted_once_and_switched_off() -> None:
    calls: list[int] = []

    def bad(*_: Any) -> None:
        calls.append(1)
        raise ValueError("probe")

    recorder = Recorder()
    wrapper = recorder.wrap(plain, Site("sample", 0, before=bad))
    assert [wrapper(1), wrapper(2)] == [(1, 2), (2, 2)]
    assert len(calls) == 1
    assert (recorder.errors, recorder.first_error) == (1, "ValueError: probe")
    assert len(rows_of(recorder)) == 2


def test_a_threaded_site_notes_the_lane() -> None:
    recorder = Recorder()
    wrapper = recorder.wrap(plain, Site("sample", 5, threaded=True))
    wrapper(1)
    with ThreadPoolExecutor(1, "other") as pool:
        pool.submit(wrapper, 1).result(10)
        names = recorder.health()["threads"]
    lanes = [(row & 0xFFFF, row >> LANE_SHIFT) for row, _, _ in rows_of(recorder)]
    assert lanes == [(5, 0), (5, 1)]
    assert names == {"1": "other_0"}


def test_while_its_flag_is_lowered_a_wrapper_only_calls_its_function() -> None:
    seen: list[Any] = []

    def probe(*arguments: Any, **named: Any) -> None:
        seen.append((arguments, named))

    recorder, flag = Recorder(), Flag()
    site = Site("sample", 1, before=probe, after=probe, when=flag)
    wrapper = recorder.wrap(keyword_only, site)
    assert inspect.signature(wrapper) == inspect.signature(keyword_only)
    assert wrapper(1, start=2) == keyword_only(1, start=2)
    with pytest.raises(TypeError):
        wrapper()
    assert (rows_of(recorder), seen) == ([], [])
    flag.append(True)
    assert wrapper(1, start=2) == keyword_only(1, start=2)
    assert (len(rows_of(recorder)), len(seen)) == (1, 2)
    flag.clear()
    wrapper(1, start=2)
    assert rows_of(recorder) == []


def test_a_site_without_a_row_only_probes() -> None:
    seen: list[Any] = []
    recorder = Recorder()
    assert recorder.wrap(plain, Site("x", None, after=lambda *a: seen.append(a)))(1) == (1, 2)
    assert not rows_of(recorder)
    assert len(seen) == 1


def test_a_blocked_wrapper_writes_into_its_own_recording_only() -> None:
    import threading

    entered, go = threading.Event(), threading.Event()

    def blocks() -> None:
        entered.set()
        assert go.wait(10)

    first, second = Recorder(), Recorder()
    thread = threading.Thread(target=first.wrap(blocks, Site("cycle", 0)))
    thread.start()
    assert entered.wait(10)
    rows_of(first)
    second.wrap(plain, Site("sample", 0))(1)
    go.set()
    thread.join(10)
    assert len(rows_of(second)) == 1
    assert len(rows_of(first)) == 1


class Base:
    def method(self, a: int, /, b: int = 2, *rest: int, c: int = 3, **named: int) -> tuple[Any, ...]:
        return a, b, rest, c, named


class Derived(Base):
    def method(self, a: int, /, b: int = 20, *rest: int, c: int = 30, **named: int) -> tuple[Any, ...]:
        return super().method(a, b, *rest, c=c, **named)


@pytest.mark.parametrize("owner", [Base, Derived])
def test_a_function_with_rewritten_code_calls_like_itself(owner: type[Base]) -> None:
    function: Any = vars(owner)["method"]
    code, expected = function.__code__, [owner().method(1), owner().method(1, 5, 6, c=7, d=8)]
    recorder = Recorder()
    rewritten = recorder.rewrite(function, Site("sample", 4))
    try:
        function.__code__ = rewritten
        assert [owner().method(1), owner().method(1, 5, 6, c=7, d=8)] == expected
        with pytest.raises(TypeError, match=f"{owner.__name__}.method"):
            owner().method()  # type: ignore[call-arg]
    finally:
        function.__code__ = code
    assert [row[0] for row in rows_of(recorder)] == [4, 4]
    assert (rewritten.co_filename, rewritten.co_qualname) == (code.co_filename, code.co_qualname)
    assert hash(rewritten) != hash(code)


def test_a_recursive_function_records_every_level() -> None:
    class Counter:
        def down(self, n: int) -> int:
            return n and self.down(n - 1)

    function: Any = vars(Counter)["down"]
    recorder = Recorder()
    function.__code__ = recorder.rewrite(function, Site("sample", 0))
    assert Counter().down(3) == 0
    rows = rows_of(recorder)
    assert len(rows) == 4
    assert all(outer[1] <= inner[1] <= inner[2] <= outer[2] for inner, outer in itertools.pairwise(rows))
