"""Functions that are replaced in the module that calls them, and which optimizations a text chooses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from every_one import ALL, EVERY, VLLM_ONLY  # noqa: E402
from switchboard import FOREIGN, Wrapping, everything, same  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.cases import Place  # noqa: E402
from optimized.optimization import Requirement, needs_kernels  # noqa: E402
from optimized.seams import Seam  # noqa: E402
from spantrace.errors import EXIT_BAD_INPUT, SpantraceError  # noqa: E402

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("interpreted")


CALLER, DEFINED = "optimized.uniform_decode_metadata.vllm", "optimized.uniform_decode_metadata.metadata:why_not"


def function_of(monkeypatch: Patch, **seam: str) -> tuple[Any, Callable[[], object]]:
    """The module that imports a function, and what applies a switch that has it return 7 there."""

    class Sevens(Wrapping):
        def stand_ins(self) -> dict[str, Callable[[Any], Any]]:
            return {"why_not": lambda original: wraps(original)(lambda *_: 7)}

    chosen = Seam(**{"owner": f"{CALLER}:why_not", "defined": DEFINED, **seam})
    item = replace(ALL["query-build"], id="sevens", seams=(chosen,), switch=Sevens)
    monkeypatch.setattr(optimized, "discover", lambda: {**ALL, "sevens": item})
    return import_module(CALLER), lambda: optimized.apply(["sevens"])


def test_a_function_is_replaced_in_the_module_that_calls_it_and_nowhere_else(monkeypatch: Patch) -> None:
    caller, apply = function_of(monkeypatch)
    home = import_module(DEFINED.partition(":")[0])
    before = home.why_not
    assert caller.why_not is before
    apply()
    assert caller.why_not(None, 0, 0) == 7
    assert home.why_not is before
    optimized.revert()
    assert caller.why_not is home.why_not is before


@pytest.mark.parametrize(
    ("seam", "why"),
    [
        ({"owner": f"{CALLER}:no_such"}, f"there is no no_such in {CALLER}"),
        ({"defined": "optimized.judging:why_not"}, "why_not was patched by somebody else"),
        ({"defined": DEFINED + "_not"}, "why_not was patched by somebody else"),
    ],
)
def test_a_function_that_is_not_the_one_that_was_meant_refuses_the_switch(
    seam: dict[str, str], why: str, monkeypatch: Patch
) -> None:
    caller, apply = function_of(monkeypatch, **seam)
    before = caller.why_not
    with pytest.raises(SpantraceError, match=why):
        apply()
    assert caller.why_not is before


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=list(FOREIGN))
def test_a_function_that_somebody_else_patched_refuses_the_switch(
    foreign: Callable[[Any, Any], Any], monkeypatch: Patch
) -> None:
    caller, apply = function_of(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(caller, "why_not", foreign(caller, caller.why_not))
        with pytest.raises(SpantraceError, match="why_not was patched by somebody else"):
            apply()
    apply()
    with monkeypatch.context() as patch:
        patch.setattr(caller, "why_not", None)
        with pytest.raises(SpantraceError, match=f"{CALLER}.why_not was patched by somebody else since"):
            optimized.revert()
    optimized.revert()


@pytest.mark.parametrize("names", [(), ("why_not", "not_declared"), ("not_declared",)])
def test_a_switch_that_replaces_other_things_than_it_declares_is_a_defect(
    names: tuple[str, ...], monkeypatch: Patch
) -> None:
    _, apply = function_of(monkeypatch)

    class Wrong(Wrapping):
        def stand_ins(self) -> dict[str, Callable[[Any], Any]]:
            return {name: lambda original: original for name in names}

    item = replace(optimized.discover()["sevens"], switch=Wrong)
    monkeypatch.setattr(optimized, "discover", lambda: {**ALL, "sevens": item})
    with pytest.raises(SpantraceError, match="replaces other methods than it declares"):
        apply()


@pytest.mark.parametrize(
    ("on", "restored", "why"),
    [
        ([], ["nonsense"], "no optimization is called 'nonsense'; spantrace optimizations lists"),
        ([], ["query-build"], "query-build cannot be restored to stock; what can be: .*skip-draft-rebuild"),
        ([], ["stock-skip-draft-rebuild"], "stock-skip-draft-rebuild cannot be restored to stock; what can be: "),
        (["skip-draft-rebuild"], ["skip-draft-rebuild"], "skip-draft-rebuild cannot be switched on and restored to"),
    ],
)
def test_what_cannot_be_restored_is_told(on: list[str], restored: list[str], why: str) -> None:
    with pytest.raises(SpantraceError, match=f"^{why}"):
        optimized.with_stock(on, restored)


def test_a_wrong_id_changes_nothing() -> None:
    before = everything()
    for attempt in (optimized.apply, optimized.revert):
        with pytest.raises(
            SpantraceError, match=r"^no optimization is called 'nonsense'; spantrace optimizations lists them all$"
        ) as e:
            attempt(["query-build", "nonsense"])
        assert e.value.exit_code == EXIT_BAD_INPUT
    assert same(before, everything())


def test_selection_by_text() -> None:
    assert optimized.select("all") == list(ALL)
    assert optimized.left_out(" all ") == optimized.left_out("all")
    assert list(optimized.left_out("all")) == [name for name in EVERY if EVERY[name].seams_at() and name not in ALL]
    assert optimized.left_out("none") == optimized.left_out("query-build") == {}
    assert optimized.select("none") == []
    assert optimized.select(" all ") == optimized.select("all")
    ours = [name for name, item in EVERY.items() if item.seams_at("0.32.0") and not item.restores]
    assert optimized.select("all", "0.32.0") == [name for name in ours if not EVERY[name].unmet()]
    assert optimized.select("query-build, context-kv-cache") == ["query-build", "context-kv-cache"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("all,query-build", "all stands alone; leave it or the other ids out of 'all,query-build'"),
        ("nonsense, none", "none stands alone; leave it or the other ids out of 'nonsense, none'"),
        ("", "nothing is named in ''; give ids as a,b, or all or none"),
        (" ,", "nothing is named in ','; give ids as a,b, or all or none"),
        ("query-build,", "an id is missing in 'query-build,'; give ids as a,b, or all or none"),
        (
            "query_bild",
            "no optimization is called 'query_bild' (close: query-build); spantrace optimizations lists them ",
        ),
        ("dspark-book", "no optimization is called 'dspark-book' (close: dspark-bookkeeping"),
    ],
)
def test_a_text_that_chooses_nothing_sensible_says_what_is_wrong_in_it(text: str, why: str) -> None:
    with pytest.raises(SpantraceError, match=f"^{re.escape(why)}") as refusal:
        optimized.select(text)
    assert refusal.value.exit_code == EXIT_BAD_INPUT
    assert len(str(refusal.value)) < 200


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU for the kernels")
def test_all_leaves_out_what_cannot_run_here_and_says_why(monkeypatch: Patch) -> None:
    needing = replace(ALL["query-build"], id="kernels", requirements=(needs_kernels(),))
    monkeypatch.setattr(optimized, "discover", lambda: {"kernels": needing, "query-build": ALL["query-build"]})
    interpreted = [] if find_spec("triton") is None else ["kernels"]
    assert optimized.select("all") == [*interpreted, "query-build"]
    monkeypatch.delenv(launching.INTERPRET)
    assert optimized.select("all") == ["query-build"]
    assert optimized.select("kernels") == ["kernels"]
    (why,) = optimized.left_out("all").values()
    assert why == launching.why_no_kernels("cpu")
    with pytest.raises(SpantraceError, match=f"^kernels cannot be applied: {why}$"):
        optimized.apply(["kernels"])


def test_all_leaves_out_what_a_cycle_has_no_use_for() -> None:
    def chosen(drafter: str, states: bool) -> set[str]:
        return set(optimized.select("all", place=Place("cpu", "float32", drafter, states)))

    assert chosen("none", False) == set()
    assert chosen("dspark", False) == {
        name for name, item in ALL.items() if "dspark" in item.drafters and not item.needs_states
    }
    assert chosen("dflash", True) - chosen("dflash", False) == {
        name for name, item in ALL.items() if "dflash" in item.drafters and item.needs_states
    }
    why = optimized.left_out("all", place=Place("cpu", "float32", "dspark", False))
    assert why["context-kv-cache"] == "it is for the drafter dflash, and the drafter here is dspark"
    assert why["state-commit"] == "the target here keeps no states"


def test_a_named_set_stands_for_its_members(monkeypatch: Patch) -> None:
    one, two = (replace(ALL[name], named_set="both") for name in ("query-build", "verify-k-plus-one"))
    known = {**ALL, one.id: one, two.id: two}
    monkeypatch.setattr(optimized, "discover", lambda: known)
    assert optimized.sets()["both"] == [one.id, two.id]
    assert optimized.select("both") == [one.id, two.id]
    assert optimized.select("context-kv-cache, both, query-build") == ["context-kv-cache", one.id, two.id]
    with pytest.raises(SpantraceError, match=r"no optimization is called 'boths' \(close: both\)"):
        optimized.select("boths")
    for wrong in ("all", "Not a name", one.id):
        with pytest.raises(ValueError, match="cannot name a set"):
            replace(one, named_set=wrong)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"requirements": (Requirement("a GPU", lambda: "there is no GPU"),)},
            "other cannot be applied: there is no GPU",
        ),
        ({"seams": (Seam("optimized.reference_cycle.target:Target.no_such"),)}, "there is no Target.no_such"),
        ({"seams": (Seam("optimized.no_such:Target.forward"),)}, "there is no Target.forward in optimized.no_such"),
        (VLLM_ONLY, "other has no seam in the built-in cycle"),
        ({}, "other and query-build both replace Drafter.build_queries"),
    ],
)
def test_what_cannot_be_applied_says_why(change: dict[str, Any], sentence: str, monkeypatch: Patch) -> None:
    other = replace(ALL["query-build"], id="other", **change)
    monkeypatch.setattr(optimized, "discover", lambda: {**ALL, "other": other})
    before = everything()
    with pytest.raises(SpantraceError, match=sentence) as refusal:
        optimized.apply([*ALL, "other"])
    assert refusal.value.exit_code == EXIT_BAD_INPUT
    assert same(before, everything())
    assert optimized.applied() == ()
