"""Faults that only one case or one form of an optimization shows, and a batch of no requests."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from every_one import ALL  # noqa: E402
from planting import rewritten  # noqa: E402

from optimized import launching  # noqa: E402
from optimized.cases import Case, Place  # noqa: E402
from optimized.context_norm_rope import reference as context_norm_rope  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.markov_chain import reference as markov_chain  # noqa: E402
from optimized.masked_scatter import reference as masked_scatter  # noqa: E402
from optimized.optimization import Optimization  # noqa: E402
from optimized.qk_norm_rope import reference as qk_norm_rope  # noqa: E402
from optimized.query_build import reference as query_build  # noqa: E402
from optimized.query_build.lookup import Indices  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from optimized.verify_k_plus_one import rows  # noqa: E402
from spantrace.errors import SpantraceError  # noqa: E402

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("interpreted")


def failed(item: Optimization) -> set[str]:
    """The cases that it does not pass."""
    return {case.name for case in item.cases() if not judge(item, case, Place()).passed}


@pytest.mark.parametrize(
    "asked", [lambda k: k + 2, lambda k: 2 * k, lambda k: k], ids=["one more", "all of them", "one less"]
)
def test_a_row_too_many_or_too_few_fails_every_case(asked: Callable[[int], int], monkeypatch: Patch) -> None:
    item = ALL["verify-k-plus-one"]
    monkeypatch.setattr(rows, "rows_per_request", lambda target: asked(target.settings.speculative))
    assert failed(item) == {case.name for case in item.cases()}


def test_rows_that_are_left_to_the_original_fail_every_case(monkeypatch: Patch) -> None:
    item = ALL["verify-k-plus-one"]
    monkeypatch.setattr(rows, "why_not", lambda target: "for no reason")
    assert failed(item) == {case.name for case in item.cases()}


@pytest.mark.parametrize(
    ("text", "planted", "where"),
    [
        (".clamp_(min=0)", ".clamp_(min=1)", "none accepted"),
        (".clamp_(max=contexts.limit)", "", "capacity reached"),
        ("self.ids[:-1].copy_(out.bonus)", "pass", "all accepted"),
    ],
)
def test_a_fault_where_no_kernel_runs_is_seen_there_alone(
    text: str, planted: str, where: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Indices, "build", rewritten(Indices.build, text, planted))
    item = ALL["query-build"]
    (case,) = [case for case in item.cases() if case.name == where]
    assert find_spec("triton") is None or judge(item, case, Place()).passed
    monkeypatch.delenv(launching.INTERPRET)
    assert not judge(item, case, Place()).passed


EMPTY: dict[str, Callable[[Place], Any]] = {
    "query-build": lambda place: query_build.Block(query_build.Shape(0, 3, 4), (1,), 2, place),
    "context-norm-rope": lambda place: context_norm_rope.Context(context_norm_rope.Shape(0), place),
    "markov-chain": lambda place: markov_chain.Chain(markov_chain.Shape(0), (7,), True, (), place),
    "masked-scatter": lambda place: masked_scatter.Rows(masked_scatter.Shape(0), place),
    "qk-norm-rope": lambda place: qk_norm_rope.InPairs(qk_norm_rope.Shape(0), place),
}
"""Problems of no requests, of those whose functions take any number, though no step of a cycle comes without one."""


@pytest.mark.parametrize("name", EMPTY)
def test_a_batch_of_no_requests_is_computed_without_a_fault(name: str, monkeypatch: Patch) -> None:
    if name not in ALL:
        pytest.skip("its kernels need Triton, which interprets them on a CPU")
    case = Case("no requests", EMPTY[name])
    assert judge(ALL[name], case, Place()).faults == ("there was nothing to compare",)
    if name == "query-build":
        monkeypatch.delenv(launching.INTERPRET)
        assert judge(ALL[name], case, Place()).faults == ("there was nothing to compare",)


def test_the_cycle_has_no_batch_of_no_requests() -> None:
    with pytest.raises(SpantraceError, match="batch must be at least 1, not 0"):
        Settings(batch=0)
