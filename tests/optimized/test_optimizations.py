"""Every optimization that a folder declares is judged here, by existing; and so is the switchboard itself."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from planting import failing_after  # noqa: E402
from small_cycles import OUTPUT, SMALL, WITH_STATES, expected, prompts_for, run, small, source_for  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.cases import Case, Place  # noqa: E402
from optimized.context_kv_cache import cache  # noqa: E402
from optimized.context_kv_cache.cache import Cache  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.optimization import (  # noqa: E402
    LONGEST_REASON,
    MOST_REASONS,
    Agreement,
    Counts,
    Optimization,
    Requirement,
    needs_kernels,
)
from optimized.query_build import lookup  # noqa: E402
from optimized.reference_cycle import attention  # noqa: E402
from optimized.reference_cycle.comparison import DraftLog, compare_drafts  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, generate, random_prompts  # noqa: E402
from optimized.reference_cycle.dflash import DFlashDrafter  # noqa: E402
from optimized.reference_cycle.drafter import Drafter  # noqa: E402
from optimized.reference_cycle.geometry import Geometry, Rope  # noqa: E402
from optimized.reference_cycle.settings import DRAFTERS, Settings  # noqa: E402
from optimized.reference_cycle.target import Target  # noqa: E402
from optimized.seams import BUILT_IN, Seam  # noqa: E402
from optimized.verify_k_plus_one import rows  # noqa: E402
from spantrace.errors import EXIT_BAD_INPUT, SpantraceError  # noqa: E402
from spantrace.loading import load  # noqa: E402
from spantrace.switched import switched  # noqa: E402

EVERY = optimized.discover()
with pytest.MonkeyPatch.context() as _interpreting:
    _interpreting.setenv(launching.INTERPRET, "1")
    ALL = {name: item for name, item in EVERY.items() if item.seams_at() and not item.unmet()}
"""Those that fire in the built-in cycle here, Triton's kernels interpreted where it is installed; what the others do is
tested on a GPU, on the sources of vLLM and on real servers."""
CASES = [pytest.param(item, case, id=f"{item.id}: {case.name}") for item in EVERY.values() for case in item.cases()]
CLOSE = TOLERANCES["float32"]
NEEDED_CASES = ("all accepted", "none accepted", "idle", "every row idle", "odd shapes", "capacity reached", "20 steps")
each = pytest.mark.parametrize("item", ALL.values(), ids=list(ALL))
WITH_DRAFTERS = [
    pytest.param(item, drafter, id=f"{item.id}-{drafter}") for item in ALL.values() for drafter in DRAFTERS
]
WHERE_IT_FIRES = [each for each in WITH_DRAFTERS if each.values[1] in each.values[0].drafters]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _everything_off(monkeypatch: Patch) -> Iterator[None]:
    monkeypatch.setenv(launching.INTERPRET, "1")
    yield
    optimized.revert()


def place_of(seam: Seam) -> tuple[Any, str]:
    """The class or the module that a seam is in, and the name that is replaced there."""
    holder, _, name = seam.method.rpartition(".")
    module = import_module(seam.module)
    return (getattr(module, holder) if holder else module), name


def everything() -> list[dict[str, Any]]:
    """What the classes and modules with seams hold now."""
    owners = dict.fromkeys(place_of(seam)[0] for item in ALL.values() for seam in item.seams_at())
    return [dict(vars(owner)) for owner in owners]


def same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    """Whether both hold the very same objects."""
    return all(
        a.keys() == b.keys() and all(a[name] is b[name] for name in a) for a, b in zip(first, second, strict=True)
    )


# The declarations


def test_discovery_imports_declarations_only() -> None:
    code = (
        "import sys, optimized; print(','.join(optimized.discover()));"
        "print([name for name in ('torch', 'triton', 'vllm') if name in sys.modules])"
    )
    root = Path(optimized.__file__).parents[1]
    said = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    assert said.split() == [",".join(EVERY), "[]"]


def test_every_folder_but_the_cycle_declares_one() -> None:
    folders = {path.parent.name for path in Path(optimized.__file__).parent.glob("*/__init__.py")}
    assert {(item.restores or name).replace("-", "_") for name, item in EVERY.items()} == folders - {"reference_cycle"}


@pytest.mark.parametrize("item", EVERY.values(), ids=list(EVERY))
def test_a_declaration_is_complete(item: Optimization) -> None:
    assert item.requirements
    assert item.unmet() == [] or item.evidence or "triton is not installed" in item.unmet()
    assert bool(item.versions()) == (item.vllm_switch is not None)
    names = " ".join(case.name for case in item.cases())
    assert [name for name in NEEDED_CASES if name not in names] == []
    assert max(case.steps for case in item.cases()) >= 20
    for seam in item.seams_at():
        assert hasattr(sys.modules[seam.owner.partition(":")[0]], seam.method.partition(".")[0])
    module = sys.modules[f"optimized.{(item.restores or item.id).replace('-', '_')}"]
    assert (Path(module.__file__ or "").parent / "reference.py").exists()
    assert getattr(module, "RESTORED_STOCK" if item.restores else "OPTIMIZATION") is item


@pytest.mark.parametrize("item", [item for item in EVERY.values() if item.restores], ids=lambda item: item.id)
def test_stock_is_restored_exactly_where_the_fix_is_upstream(item: Optimization) -> None:
    fix = EVERY[item.restores]
    assert all(fix.is_upstream(version) for version in item.versions())
    assert set(fix.versions()).isdisjoint(item.versions())
    assert (item.targets, item.methods) == (fix.targets, fix.methods)
    for version in item.versions():
        assert {fix.id, item.id}.isdisjoint(optimized.select("all", version))
        assert optimized.with_stock([], [fix.id]) == [item.id]


@pytest.mark.parametrize("item", [item for item in EVERY.values() if item.evidence], ids=lambda item: item.id)
def test_where_it_has_hits_is_there_to_see(item: Optimization) -> None:
    path, _, name = item.evidence.partition("::")
    evidence = Path(optimized.__file__).parents[1] / path
    if not name:
        assert [one.hits for one in switched(load(evidence).header) if one.id == item.id] > [0]
        return
    text = evidence.read_text()
    (test,) = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert item.id in text
    assert "hits" in ast.unparse(test)
    assert not test.decorator_list
    assert {"servers", "gpu"} & set(evidence.parts)
    assert "servers" in evidence.parts or item.seams_at()


VLLM_ONLY: dict[str, Any] = {
    "seams": (Seam("vllm.x:Y.z", "vllm >=0.26"),),
    "switch": None,
    "vllm_switch": ALL["query-build"].switch,
    "sources": {"vllm.x:Y.z": {"0.26.0": "0" * 64}},
    "evidence": "tests/servers/test_optimize.py::test_something",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "Not_an_id"},
        {"switch": None},
        {"vllm_switch": ALL["query-build"].switch},
        {"upstream": "soon"},
        {"id": "stock-of-it"},
        {"restores": "verify-k-plus-one"},
        *(VLLM_ONLY | {name: other} for name, other in (("vllm_switch", None), ("sources", {}), ("evidence", ""))),
        {"summary": "two\nlines"},
        {"figure": " "},
        {"targets": ("draft.nothing",)},
        {"targets": ()},
        {"seams": ()},
        {"seams": (Seam("a:B.c"), Seam("a:B.c"))},
        {"drafters": ()},
        {"drafters": ("dflash", "medusa")},
    ],
)
def test_a_wrong_declaration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        replace(ALL["query-build"], **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        ("module.function", BUILT_IN),
        ("a:B.c.d", BUILT_IN),
        ("a:b", BUILT_IN, "b"),
        ("a:B.c", "sglang"),
        ("a:B.c", "vllm"),
        ("a:B.c", "vllm x"),
    ],
)
def test_a_wrong_seam_is_refused(wrong: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"module:Class\.method|built-in cycle"):
        Seam(*wrong)
    seam = Seam("a:B.c", "vllm >=0.26,<0.30")
    assert (seam.module, seam.method) == ("a", "B.c")
    versions = (None, "0.25.0", "0.26.0", "0.29.1", "0.30.0", "dev")
    assert [seam.is_in(version) for version in versions] == [False, False, True, True, False, False]
    assert [Seam("a:B.c").is_in(version) for version in versions] == [True] + [False] * 5
    function = Seam("a.b:c", defined="d:c")
    assert (function.module, function.method, function.source, seam.source) == ("a.b", "c", "d:c", "a:B.c")


# Reference against implementation


@pytest.mark.parametrize(("item", "case"), CASES)
def test_the_implementation_computes_what_the_reference_computes(item: Optimization, case: Case) -> None:
    if "triton is not installed" in item.unmet():
        pytest.skip("its kernels need Triton, which interprets them on a CPU")
    judged = judge(item, case, Place())
    assert judged.passed, judged
    assert judged.elements > 0


def _write_to_somebody(patch: Patch) -> None:
    write = Cache.write
    patch.setattr(Cache, "write", lambda self, slots, *rest: write(self, slots % (len(self.rows) - 1), *rest))


def _attend_in_somebody(patch: Patch) -> None:
    attend = Cache.attend
    patch.setattr(
        Cache,
        "attend",
        lambda self, layer, i, block, cells, m: attend(self, layer, i, block, (cells[0] % 3, cells[1]), m),
    )


def _count_idle_rows(patch: Patch) -> None:
    patch.setattr(
        DFlashDrafter, "advance", lambda self: self.context_lengths.index_add_(0, self.slots, self.queries.counts)
    )


def _no_page_for_nobody(patch: Patch) -> None:
    cells = attention.cells_of

    def cells_elsewhere(*given: Any) -> Any:
        pages, rows = cells(*given)
        return pages.clamp(min=1), rows

    patch.setattr(attention, "cells_of", cells_elsewhere)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("context-kv-cache", _write_to_somebody),
        ("context-kv-cache", _attend_in_somebody),
        ("context-kv-cache", _count_idle_rows),
        ("verify-k-plus-one", _no_page_for_nobody),
    ],
)
def test_an_idle_row_that_touches_what_is_not_its_own_is_caught(
    name: str, fault: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    (case,) = [case for case in ALL[name].cases() if case.name == "every row idle"]
    reference = case.make(Place()).reference()
    assert judge(ALL[name], case, Place()).passed
    fault(monkeypatch)
    changed = case.make(Place()).fast()
    assert any((changed[key] != reference[key]).any() for key in reference)


def test_a_case_that_compares_nothing_is_a_fault() -> None:
    class Nothing:
        def inputs(self) -> dict[str, Any]:
            return {}

        def poison(self) -> None:
            pass

        def reference(self) -> dict[str, Any]:
            return {"nothing": torch.zeros(0)}

        fast, next = reference, poison

    judged = judge(ALL["query-build"], Case("empty", lambda place: Nothing()), Place())
    assert not judged.passed
    assert judged.faults == ("there was nothing to compare",)


# Apply and revert


@pytest.mark.parametrize("order", list(permutations(ALL, 2)), ids=" ".join)
def test_two_switches_in_any_order_give_back_the_identical_objects(order: tuple[str, str]) -> None:
    before = everything()
    for leaving in (order, order[::-1]):
        for name in order:
            assert optimized.apply([name]) == [name]
        assert optimized.applied() == order
        for count, name in enumerate(leaving, 1):
            assert [said["id"] for said in optimized.revert([name])] == [name]
            assert same(before, everything()) == (count == 2)
    optimized.apply(order)
    assert not same(before, everything())
    optimized.revert()
    assert same(before, everything())


@each
def test_applying_and_reverting_twice_changes_nothing_more(item: Optimization) -> None:
    before = everything()
    assert optimized.revert([item.id]) == []
    assert optimized.apply([item.id, item.id]) == [item.id]
    on = everything()
    assert optimized.apply([item.id]) == []
    assert same(on, everything())
    assert len(optimized.revert()) == 1
    assert optimized.revert() == []
    assert same(before, everything())
    optimized.apply(ALL)
    assert [said["id"] for said in optimized.revert()] == list(ALL)[::-1]


FOREIGN: dict[str, Callable[[Any, Any], Any]] = {
    "a stranger": lambda owner, original: lambda *_: None,
    "a wrapper": lambda owner, original: wraps(original)(lambda *args: original(*args)),
    "another method": lambda owner, original: Cycle.restart,
    "no function": lambda owner, original: partial(original),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=list(FOREIGN))
@each
def test_a_seam_that_somebody_else_patched_refuses_the_switch(
    item: Optimization, foreign: Callable[[Any, Any], Any], monkeypatch: Patch
) -> None:
    for seam in item.seams_at():
        owner, method = place_of(seam)
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, foreign(owner, getattr(owner, method)))
            before = everything()
            with pytest.raises(SpantraceError, match=f"{seam.method} was patched by somebody else") as refusal:
                optimized.apply(sorted(ALL, key=lambda name: name == item.id))
            assert refusal.value.exit_code == EXIT_BAD_INPUT
            assert same(before, everything())
            assert optimized.applied() == ()


@each
def test_a_switch_that_somebody_patched_over_stays(item: Optimization, monkeypatch: Patch) -> None:
    before = everything()
    optimized.apply(ALL)
    seam = item.seams_at()[-1]
    with monkeypatch.context() as patch:
        patch.setattr(*place_of(seam), lambda *_: None)
        on = everything()
        with pytest.raises(SpantraceError, match=rf"{item.id} cannot be taken back: .*{seam.method} was patched"):
            optimized.revert()
        assert same(on, everything())
        assert optimized.applied() == tuple(ALL)
    optimized.revert()
    assert same(before, everything())


class _Sealing(type):
    """A class whose methods cannot be replaced, as those of one in C."""

    def __setattr__(cls, name: str, value: object) -> None:
        if name == "shut":
            raise TypeError(f"{cls.__name__} is sealed")
        super().__setattr__(name, value)


class Sealed(metaclass=_Sealing):
    """Two seams, of which the second resists."""

    def open(self) -> str:
        return "open"

    def shut(self) -> str:
        return "shut"


class _Wrapping:
    def __init__(self) -> None:
        self.counts = Counts()

    def stand_ins(self) -> dict[str, Callable[[Any], Any]]:
        return {f"Sealed.{name}": lambda original: wraps(original)(lambda self: "else") for name in ("open", "shut")}

    def allocated(self) -> int:
        return 0

    def close(self) -> None:
        pass


@pytest.mark.parametrize("place", [0, 1, len(ALL)])
def test_a_seam_that_resists_takes_all_of_them_back(place: int, monkeypatch: Patch) -> None:
    seams = tuple(Seam(f"{__name__}:Sealed.{name}") for name in ("open", "shut"))
    sealed = replace(ALL["query-build"], id="sealed", seams=seams, switch=_Wrapping)
    monkeypatch.setattr(optimized, "discover", lambda: {**ALL, "sealed": sealed})
    before = [*everything(), dict(vars(Sealed))]
    ids = list(ALL)
    ids.insert(place, "sealed")
    with pytest.raises(SpantraceError, match=r"nothing was applied, because .*: Sealed is sealed$") as refusal:
        optimized.apply(ids)
    assert refusal.value.exit_code == EXIT_BAD_INPUT
    assert same(before, [*everything(), dict(vars(Sealed))])
    assert (Sealed().open(), Sealed().shut()) == ("open", "shut")
    assert optimized.applied() == ()
    assert optimized.apply(ALL) == list(ALL)


CALLER, DEFINED = "optimized.uniform_decode_metadata.vllm", "optimized.uniform_decode_metadata.metadata:why_not"


def function_of(monkeypatch: Patch, **seam: str) -> tuple[Any, Callable[[], object]]:
    """The module that imports a function, and what applies a switch that has it return 7 there."""

    class Sevens(_Wrapping):
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

    class Wrong(_Wrapping):
        def stand_ins(self) -> dict[str, Callable[[Any], Any]]:
            return {name: lambda original: original for name in names}

    item = replace(optimized.discover()["sevens"], switch=Wrong)
    monkeypatch.setattr(optimized, "discover", lambda: {**ALL, "sevens": item})
    with pytest.raises(SpantraceError, match="replaces other methods than it declares"):
        apply()


@pytest.mark.parametrize(
    ("on", "restored", "why"),
    [
        ([], ["nonsense"], "no optimization is called 'nonsense'; choose from "),
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
            SpantraceError, match=f"no optimization is called 'nonsense'; choose from {next(iter(EVERY))}, "
        ) as e:
            attempt(["query-build", "nonsense"])
        assert e.value.exit_code == EXIT_BAD_INPUT
    assert same(before, everything())


def test_selection_by_text() -> None:
    assert optimized.select("all") == list(ALL)
    assert list(optimized.left_out("all")) == [name for name in EVERY if EVERY[name].seams_at() and name not in ALL]
    assert optimized.left_out("none") == optimized.left_out("query-build") == {}
    assert optimized.select("none") == []
    ours = [name for name, item in EVERY.items() if item.seams_at("0.32.0") and not item.restores]
    assert optimized.select("all", "0.32.0") == [name for name in ours if not EVERY[name].unmet()]
    assert optimized.select("query-build, context-kv-cache") == ["query-build", "context-kv-cache"]
    with pytest.raises(SpantraceError, match="no optimization is called ''"):
        optimized.select("")


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


def test_a_named_set_stands_for_its_members(monkeypatch: Patch) -> None:
    one, two = (replace(ALL[name], named_set="both") for name in ("query-build", "verify-k-plus-one"))
    known = {**ALL, one.id: one, two.id: two}
    monkeypatch.setattr(optimized, "discover", lambda: known)
    assert optimized.sets()["both"] == [one.id, two.id]
    assert optimized.select("both") == [one.id, two.id]
    assert optimized.select("context-kv-cache, both, query-build") == ["context-kv-cache", one.id, two.id]
    with pytest.raises(SpantraceError, match=r"choose from .*verify-k-plus-one, .*both"):
        optimized.select("neither")
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


# Inside the cycle


def followed(log: DraftLog) -> DraftLog:
    """The drafts of requests that the drafter follows; the others' logits mean nothing."""
    return DraftLog({place: draft for place, draft in log.drafts.items() if int(draft.tokens.max()) >= 0})


CHOICES = [*([name] for name in ALL), list(ALL)]
with_choices = pytest.mark.parametrize("ids", CHOICES, ids="+".join)


@with_choices
@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle", "none"])
@pytest.mark.parametrize("geometry", [SMALL, WITH_STATES], ids=["attention", "states"])
def test_tokens_and_drafts_are_the_same_on_and_off(drafter: str, geometry: Geometry, ids: list[str]) -> None:
    settings = small(geometry, drafter=drafter)
    for mode in ("drafter", "forced") if drafter != "none" else ("drafter",):
        off, log = run(settings, mode)
        optimized.apply(ids)
        on, other = run(settings, mode)
        said = optimized.revert()
        assert on.tokens == off.tokens == expected(settings)
        assert on.acceptance == off.acceptance
        assert [entry["errors"] for entry in said] == [0] * len(ids)
        if drafter != "none":
            exact = all(ALL[name].agreement is Agreement.BITWISE for name in ids)
            assert compare_drafts(log, other).agrees(0.0 if exact else CLOSE)


@pytest.mark.parametrize(
    "shape", [{"batch": 1, "draft_length": 7}, {"batch": 8, "draft_length": 1}, {"dtype": "float64"}]
)
def test_all_of_them_at_other_sizes(shape: dict[str, Any]) -> None:
    settings = small(WITH_STATES, **shape)
    _, log = run(settings, "forced")
    optimized.apply(ALL)
    on, other = run(settings, "forced")
    assert on.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": (None, 5), "causal_windows": True},
        {"sinks": True, "windows": (4,)},
        {"rope": Rope(factor=8.0, original_context=32, truncate=False)},
        {"rope": Rope(partial=0.5)},
    ],
    ids=["causal windows", "sinks", "YaRN", "partial rotation"],
)
def test_all_of_them_with_other_attention(changes: dict[str, Any]) -> None:
    settings = small(replace(SMALL, dflash=replace(SMALL.dflash, **changes)), batch=2)
    _, log = run(settings, "forced")
    optimized.apply(ALL)
    on, other = run(settings, "forced")
    assert on.tokens == expected(settings)
    assert [said["errors"] for said in optimized.counts()] == [0] * len(ALL)
    assert compare_drafts(log, other).agrees(CLOSE)


@pytest.mark.parametrize("limit", [10, 17, 25])
@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle"])
def test_a_context_longer_than_the_drafter_holds(drafter: str, limit: int) -> None:
    settings = small(replace(SMALL, longest_draft_context=limit), drafter=drafter)
    _, log = run(settings, "forced")
    optimized.apply(ALL)
    on, other = run(settings, "forced")
    assert on.tokens == expected(settings)
    assert {place: draft.tokens.tolist() for place, draft in log.drafts.items()} == {
        place: draft.tokens.tolist() for place, draft in other.drafts.items()
    }
    assert limit < min(map(len, prompts_for(settings))) or compare_drafts(followed(log), followed(other)).agrees(CLOSE)


@pytest.mark.parametrize(("item", "drafter"), WHERE_IT_FIRES)
def test_switching_between_steps_changes_nothing(item: Optimization, drafter: str) -> None:
    if not item.live_switchable:
        pytest.skip("it is not switchable between steps")
    settings = small(WITH_STATES, drafter=drafter)
    _, log = run(settings, "forced")
    other = DraftLog()
    cycle = Cycle(settings, source_for("forced", settings), other)
    requests, steps, hits = cycle.add(prompts_for(settings), OUTPUT), 0, 0
    while not cycle.scheduler.idle():
        if steps % 3 == 2:
            hits += sum(said["hits"] for said in optimized.revert())
        else:
            optimized.apply([item.id])
        cycle.forget_graphs()
        cycle.step()
        steps += 1
    assert hits > 0
    assert [request.tokens for request in requests] == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


@pytest.mark.parametrize(("item", "drafter"), WITH_DRAFTERS)
@pytest.mark.parametrize("geometry", [SMALL, WITH_STATES], ids=["attention", "states"])
def test_it_fires_where_it_says_once_a_cycle(item: Optimization, drafter: str, geometry: Geometry) -> None:
    optimized.apply([item.id])
    generation, _ = run(small(geometry, drafter=drafter), "drafter")
    (said,) = optimized.counts()
    assert json.loads(json.dumps(said)) == said
    if drafter in item.drafters and (geometry.state_layers or not item.needs_states):
        assert said == {"id": item.id, "hits": generation.cycles, "fallbacks": 0, "errors": 0, "reasons": {}}
        assert optimized.warnings() == []
    else:
        assert (said["hits"], said["errors"]) == (0, 0)
        assert len(optimized.warnings()) == 1


@pytest.mark.parametrize(
    ("name", "changes", "warning"),
    [
        ("context-kv-cache", {"drafter": "dspark"}, "context-kv-cache was on and no call reached it"),
        ("query-build", {"drafter": "none"}, "query-build was on and no call reached it"),
        ("verify-k-plus-one", {"draft_length": 1}, "never fired: .* most because with K = 1 there is no filler"),
        ("verify-k-plus-one", {"drafter": "none"}, "never fired: .* most because nothing is drafted"),
    ],
)
def test_a_switch_that_never_fired_is_told(name: str, changes: dict[str, Any], warning: str) -> None:
    optimized.apply([name])
    run(small(**changes), "drafter")
    (said,) = optimized.warnings()
    assert re.search(warning, said)


@each
@pytest.mark.parametrize(
    "changes",
    [{}, {"batch": 1, "draft_length": 7}, {"drafter": "dspark"}, {"dtype": "float16"}, {"draft_length": 1}],
    ids=str,
)
def test_declared_memory_is_allocated_memory(item: Optimization, changes: dict[str, Any]) -> None:
    settings = small(**changes)
    optimized.apply([item.id])
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings), OUTPUT)
    for _ in range(3):
        cycle.step()
    assert optimized.allocated(item.id) == item.memory(settings)
    assert item.memory(settings.without_drafter()) == 0
    switch = optimized._applied[item.id].switch
    optimized.revert()
    assert switch.allocated() == optimized.allocated(item.id) == 0


# Guards and failures


def layers_of(settings: Settings) -> list[Any]:
    drafter = Cycle(settings).drafter
    assert isinstance(drafter, DFlashDrafter)
    return drafter.layers


def test_the_cache_refuses_layers_that_cannot_share_it() -> None:
    first, second = layers_of(small())
    assert cache.why_not([first, second], 40) is None
    norms = second.norms
    others = {
        "heads": replace(second, norms=replace(norms, heads=2)),
        "shape": replace(second, qkv=second.qkv[1:]),
        "rotary table": replace(second, norms=replace(norms, table=norms.table.clone())),
        "quantized": replace(second, qkv=second.qkv.to(torch.int8)),
    }
    for word, other in others.items():
        assert word in (cache.why_not([first, other], 40) or "")
    assert "ends before" in (cache.why_not([first, second], 10_000) or "")


def test_a_refused_drafter_runs_stock_and_says_why(monkeypatch: Patch) -> None:
    settings = small()
    _, log = run(settings)
    monkeypatch.setattr(cache, "why_not", lambda *_: "it is a test")
    optimized.apply(["context-kv-cache"])
    on, other = run(settings)
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"it is a test": said["fallbacks"]})
    assert said["fallbacks"] >= on.cycles
    assert compare_drafts(log, other).agrees()


def test_a_cycle_whose_graphs_are_older_than_the_switch_is_no_hit() -> None:
    settings = small()
    cycle = Cycle(settings)
    cycle.add(prompts_for(settings), OUTPUT)
    cycle.step()
    optimized.apply(["context-kv-cache"])
    cycle.drafter.advance()  # as where a graph is replayed and nothing else is called
    (said,) = optimized.counts()
    assert (said["hits"], said["reasons"]) == (0, {"its graphs were captured before the switch": 1})


def test_hits_are_cycles_and_a_revert_drops_the_graphs(monkeypatch: Patch) -> None:
    settings, forgotten = small(), []
    optimized.apply(["context-kv-cache", "query-build"])
    cycle = Cycle(settings, source_for("forced", settings))
    generation = generate(cycle, prompts_for(settings), OUTPUT)
    monkeypatch.setattr(Drafter, "forget_graphs", lambda drafter: forgotten.append(drafter))
    assert {said["hits"] for said in optimized.revert()} == {generation.cycles}
    assert cycle.drafter in forgotten


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("drafter", ["dflash", "dspark", "eagle"])
def test_on_a_gpu_switches_take_effect_in_graphs_captured_anew(drafter: str) -> None:
    settings = small(WITH_STATES, drafter=drafter, device="cuda")
    _, log = run(settings, "forced")
    other = DraftLog()
    cycle = Cycle(settings, source_for("forced", settings), other)
    requests, steps = cycle.add(prompts_for(settings), OUTPUT), 0
    while not cycle.scheduler.idle():
        optimized.apply(ALL if steps % 6 < 4 else [])
        cycle.forget_graphs()
        cycle.step()
        if steps % 6 == 3:
            assert all(said["errors"] == 0 for said in optimized.revert())
        steps += 1
    assert [request.tokens for request in requests] == expected(settings)
    assert compare_drafts(log, other).agrees(1e-3)


@pytest.mark.parametrize("calls", [0, 1, 4, 9])
@pytest.mark.parametrize(
    ("owner", "method", "name"),
    [
        (Cache, "write", "context-kv-cache"),
        (Cache, "seat", "context-kv-cache"),
        (Cache, "attend", "context-kv-cache"),
        (lookup, "build", "query-build"),
    ],
)
def test_a_failure_falls_back_and_is_counted(
    owner: Any, method: str, name: str, calls: int, monkeypatch: Patch
) -> None:
    settings = small()
    _, log = run(settings)
    optimized.apply([name])
    monkeypatch.setattr(owner, method, failing_after(calls, getattr(owner, method)))
    on, other = run(settings)
    (said,) = optimized.revert()
    assert said["errors"] > 0
    assert said["reasons"]["RuntimeError: planted"] == said["errors"]
    assert on.tokens == expected(settings)
    assert compare_drafts(log, other).agrees(CLOSE)


def test_the_lookup_refuses_a_strange_verdict() -> None:
    settings = small()
    drafter = Cycle(settings).drafter
    accepted, counts = torch.zeros(3, 4, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
    assert lookup.why_not(drafter, accepted, counts) is None
    assert "shape" in (lookup.why_not(drafter, accepted[:, 1:], counts) or "")
    assert "int32" in (lookup.why_not(drafter, accepted.long(), counts) or "")


def test_rows_are_left_alone_where_nothing_is_saved() -> None:
    for changes, reason in (({"drafter": "none"}, "nothing"), ({"draft_length": 1}, "K = 1"), ({}, None)):
        said = rows.why_not(Target(small(**changes)))
        assert (reason in said) if reason and said else said is reason


def test_errors_are_told_apart_within_limits() -> None:
    counts = Counts()
    for number in range(1000):
        counts.failed(ValueError(f"address {number}" + "!" * 500 + "\nand a second line"))
        counts.failed(KeyError())
    said = counts.as_dict("x")
    assert said["errors"] == 2000
    assert len(said["reasons"]) == MOST_REASONS + 1
    assert said["reasons"]["KeyError"] == 1000
    assert said["reasons"]["other errors"] == 1000 - (MOST_REASONS - 1)
    assert max(map(len, said["reasons"])) == len("ValueError: ") + LONGEST_REASON
    assert not any("\n" in reason for reason in said["reasons"])


def test_the_warning_names_the_most_frequent_reason() -> None:
    counts = Counts(0, Counter({"a": 1, "b": 3}), Counter({"c": 2}))
    assert counts.warning("x") == "x was on and never fired: 6 calls fell back, most because b"
    assert Counts(1).warning("x") is None


def faulty(monkeypatch: Patch, fault: str) -> None:
    write, build = Cache.write, lookup.build
    if fault == "positions":
        monkeypatch.setattr(Cache, "write", lambda self, *a: write(self, *a[:3], (a[3] + 1) % len(self.table)))
    elif fault == "norms":
        monkeypatch.setattr(Cache, "write", lambda self, *a: write(replace(self, norms=self.norms.flip(0)), *a))
    elif fault == "mask":
        monkeypatch.setattr(lookup, "build", lambda *a: (build(*a), a[-1].noise[:, 1:].add_(0.1)))


@pytest.mark.parametrize("fault", ["positions", "norms", "mask"])
def test_a_planted_fault_shows_in_the_drafts_though_not_in_the_tokens(fault: str, monkeypatch: Patch) -> None:
    settings = small()
    _, log = run(settings)
    faulty(monkeypatch, fault)
    optimized.apply(ALL)
    on, other = run(settings)
    assert on.tokens == expected(settings)
    assert not compare_drafts(log, other).agrees(CLOSE)


# Work, counted instead of timed


class Operations(TorchDispatchMode):
    """How many operations PyTorch carries out, each a launch on a GPU, and kernels it launches besides."""

    done = 0
    interpreting = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.done += not self.interpreting
        return func(*args, **(kwargs or {}))

    @contextmanager
    def with_kernels(self) -> Iterator[None]:
        """Count an interpreted kernel once, whatever PyTorch does for the interpreter."""
        if find_spec("triton") is None:
            yield
            return
        from triton.runtime.interpreter import GridExecutor

        run = GridExecutor.__call__

        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self.done, self.interpreting = self.done + 1, True
            try:
                return run(executor, *args, **kwargs)
            finally:
                self.interpreting = False

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GridExecutor, "__call__", launch)
            yield


class Work(TorchFunctionMode):
    """Multiply-adds of linear layers, products of attention, and rows of embeddings read."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.embedding, self.done = embedding, Counter[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            self.done["linear"] += args[0].numel() // args[0].shape[-1] * args[1].numel()
        elif func is F.scaled_dot_product_attention:
            self.done["attention"] += args[0].numel() * args[1].shape[2]
        elif func in (torch.Tensor.__getitem__, torch.Tensor.index_select) and args[0] is self.embedding:
            self.done["embedding"] += args[-1].numel()
        return func(*args, **(kwargs or {}))


def work_of_a_cycle(settings: Settings, ids: list[str]) -> tuple[Counter[str], int]:
    """The work by kind, and how many operations it was split into."""
    optimized.apply(ids)
    cycle = Cycle(settings)
    cycle.add(random_prompts(settings, settings.batch, 100), 60)
    cycle.step()
    with Work(cycle.target.embedding) as work, Operations() as operations, operations.with_kernels():
        cycle.step()
    optimized.revert()
    return work.done, operations.done


@pytest.mark.parametrize(("item", "drafter"), WHERE_IT_FIRES)
def test_each_does_less_work_of_some_kind_or_in_fewer_operations_and_no_kind_more(
    item: Optimization, drafter: str
) -> None:
    geometry = replace(Geometry(), state_layers=(1, 2)) if item.needs_states else Geometry()
    settings = Settings(geometry, context=512, drafter=drafter)  # type: ignore[arg-type]
    (stock, operations), (alone, fewer) = work_of_a_cycle(settings, []), work_of_a_cycle(settings, [item.id])
    assert all(alone[kind] <= stock[kind] for kind in stock)
    assert fewer < operations or any(alone[kind] < stock[kind] for kind in stock)


def test_all_of_them_do_much_less_work() -> None:
    settings = Settings(context=512)
    stock, _ = work_of_a_cycle(settings, [])
    everything_on, _ = work_of_a_cycle(settings, list(ALL))
    assert 2 * everything_on["linear"] < stock["linear"]
    assert 1.2 * everything_on["attention"] < stock["attention"]
    shape, drafted = settings.geometry.dflash, settings.speculative + 1
    filler = settings.batch * (settings.speculative - 1)
    read_by_pytorch = 0 if launching.why_no_kernels("cpu") is None else settings.batch + 1
    lookups = filler + settings.batch * drafted - read_by_pytorch
    assert stock["embedding"] - everything_on["embedding"] == lookups
    context = shape.layers * 2 * shape.kv_heads * shape.head_dim * settings.geometry.hidden
    spared = work_of_a_cycle(settings, ["context-kv-cache"])[0]["linear"]
    assert stock["linear"] - spared == settings.batch * (settings.context - drafted) * context
