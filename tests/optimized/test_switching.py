"""All parts of a switch are put into force, or none: with an optimization of the built-in cycle, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from spantrace.errors import SpantraceError  # noqa: E402
from spantrace.vllm_adapter import choice, switching  # noqa: E402

ID, TOKEN = "query-build", "t"


class Executor:
    """Stands for vLLM's: one worker, which answers every call with `answer` or does in this process what it is told."""

    def __init__(self, answer: dict[str, Any] | None) -> None:
        self.answer = answer

    def collective_rpc(self, method: Any, args: tuple[str]) -> list[Any]:
        """One answer a worker."""
        return [self.answer if self.answer is not None else method(object(), *args)]


class Engine:
    """Has an executor."""

    def __init__(self, answer: dict[str, Any] | None) -> None:
        self.model_executor = Executor(answer)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[choice.Plan]:
    """A plan to put off what is on, in a process without a vLLM, whatever another test has imported."""
    monkeypatch.setattr(choice, "running_vllm", str)
    optimized.apply([ID])
    plan = choice.Plan([ID], optimized.prepare([]), [])
    switching._plans[TOKEN] = plan
    yield plan
    switching._plans.clear()
    choice._ended.clear()
    optimized.revert()


def test_a_worker_that_fails_takes_all_of_it_back(planned: choice.Plan) -> None:
    with pytest.raises(SpantraceError, match=r"^nothing was switched, because the worker is broken$"):
        switching._everywhere(Engine({"ended": [], "failure": "the worker is broken"}), TOKEN, workers=True)
    assert optimized.applied() == (ID,)


def test_a_worker_that_was_not_asked_beforehand_fails(planned: choice.Plan) -> None:
    answer = switching.put_into_force(None, "another")
    assert "a worker was not asked beforehand" in answer["failure"]
    assert optimized.applied() == (ID,)


def test_without_workers_the_engine_alone_is_switched(planned: choice.Plan) -> None:
    tally = choice.Tally()
    done = switching._everywhere(Engine({"failure": "it is not called"}), TOKEN, workers=False)
    assert [one["id"] for one in done["ended"]] == [ID]
    assert optimized.applied() == ()
    assert [one["id"] for one in tally.counts()] == [ID], "it was on at the beginning"
