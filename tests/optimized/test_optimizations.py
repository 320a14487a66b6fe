"""Every optimization that a folder declares is judged here, by existing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from every_one import ALL, BOTH_FORMS, EVERY, VLLM_ONLY  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.cases import Case, Place  # noqa: E402
from optimized.context_kv_cache.cache import Cache  # noqa: E402
from optimized.judging import judge  # noqa: E402
from optimized.optimization import Optimization  # noqa: E402
from optimized.reference_cycle import attention  # noqa: E402
from optimized.reference_cycle.dflash import DFlashDrafter  # noqa: E402
from optimized.seams import BUILT_IN, Seam  # noqa: E402
from spantrace.loading import load  # noqa: E402
from spantrace.switched import switched  # noqa: E402

CASES = [pytest.param(item, case, id=f"{item.id}: {case.name}") for item in EVERY.values() for case in item.cases()]
WITHOUT_KERNELS = [case for case in CASES if case.values[0] in BOTH_FORMS]
NEEDED_CASES = ("all accepted", "none accepted", "idle", "every row idle", "odd shapes", "capacity reached", "20 steps")
Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.usefixtures("interpreted")


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


@pytest.mark.parametrize(("item", "case"), WITHOUT_KERNELS)
def test_so_does_the_form_that_needs_no_kernels(item: Optimization, case: Case, monkeypatch: Patch) -> None:
    monkeypatch.delenv(launching.INTERPRET)
    assert item.unmet("cpu") == []
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
