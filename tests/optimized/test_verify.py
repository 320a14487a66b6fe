"""`spantrace verify`, the judging behind it, and the self-test of PINNED optimizations."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import optimized  # noqa: E402
from optimized.cases import Case, Place  # noqa: E402
from optimized.context_kv_cache.cache import Cache  # noqa: E402
from optimized.judging import TOLERANCES, judge  # noqa: E402
from optimized.launching import INTERPRET, why_no_kernels  # noqa: E402
from optimized.optimization import Agreement, Optimization, Requirement  # noqa: E402
from optimized.query_build import lookup, reference  # noqa: E402
from optimized.reference_cycle.drafter import Drafter  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402
from spantrace.built_in.running import switched_on  # noqa: E402
from spantrace.cli.main import run  # noqa: E402
from spantrace.errors import EXIT_BAD_INPUT, EXIT_GATE_FAILED, EXIT_NOT_COMPARABLE, SpantraceError  # noqa: E402
from spantrace.loading import load  # noqa: E402

ALL = optimized.discover()
Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
Function = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _everything_off() -> Iterator[None]:
    yield
    optimized.revert()


@dataclass
class Sum:
    """Rows that are added up; `add` is the implementation, which may do something else with them."""

    add: Function
    place: Place

    def __post_init__(self) -> None:
        drawn = torch.randn(4, 100, generator=torch.Generator().manual_seed(7))
        self.rows = drawn.to(self.place.device, getattr(torch, self.place.dtype))
        self.total, self.calls = torch.zeros_like(self.rows[:, 0]), 0

    def inputs(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def poison(self) -> None:
        self.total.fill_(float("nan"))

    def reference(self) -> dict[str, Any]:
        return {"total": in_order(self.rows)}

    def fast(self) -> dict[str, Any]:
        self.calls += 1
        result = self.add(self)
        return result if isinstance(result, dict) else {"total": result}

    def next(self) -> None:
        self.rows = self.rows.roll(1, dims=0)


def in_order(rows: Any) -> Any:
    """The sum of each row from left to right."""
    total = rows[:, 0].clone()
    for column in range(1, rows.shape[1]):
        total += rows[:, column]
    return total


def backwards(rows: Any) -> Any:
    return in_order(rows.flip(1))


def declared(add: Function, agreement: Agreement = Agreement.BITWISE, **changes: Any) -> Optimization:
    """A real declaration that is judged on sums; its switch is query-build's."""
    cases = [Case("a sum", lambda place: Sum(add, place), 2), Case("a sum of halves", lambda place: Sum(add, place))]
    proven = "torch 2.11.0+cu130" if agreement is Agreement.PINNED else ""
    changes = {"id": "sums", "agreement": agreement, "cases": lambda: cases, "proven": proven, **changes}
    return replace(ALL["query-build"], **changes)


def judged(add: Function, agreement: Agreement = Agreement.BITWISE, dtype: str = "float32") -> Any:
    item = declared(add, agreement)
    return judge(item, item.cases()[0], Place("cpu", dtype))


# Judging


@pytest.mark.parametrize("agreement", Agreement)
def test_what_is_equal_passes_every_tier(agreement: Agreement) -> None:
    said = judged(lambda sum: in_order(sum.rows), agreement)
    assert said.passed
    assert (said.tensors, said.elements, said.unequal, said.outside, said.error) == (2, 8, 0, 0, 0.0)
    assert (said.tier, said.place, said.steps) == (agreement, Place(), 2)


def test_another_order_of_adding_is_close_but_not_equal() -> None:
    bitwise = judged(lambda sum: backwards(sum.rows))
    assert not bitwise.passed
    assert 0 < bitwise.unequal == bitwise.outside <= 8
    assert 0 < bitwise.error < 1e-4
    assert bitwise.used is None
    tolerant = judged(lambda sum: backwards(sum.rows), Agreement.TOLERANT)
    assert tolerant.passed
    assert (tolerant.unequal, tolerant.outside, tolerant.error) == (bitwise.unequal, 0, bitwise.error)
    assert 0 < tolerant.used < 1
    assert tolerant.tolerance == TOLERANCES["float32"]


def test_what_is_beyond_the_tolerance_fails_and_is_counted() -> None:
    def one_is_off(sum: Sum) -> Any:
        total = in_order(sum.rows)
        total[2] += 0.5
        return total

    said = judged(one_is_off, Agreement.TOLERANT)
    assert not said.passed
    assert (said.unequal, said.outside) == (2, 2)
    assert said.error == pytest.approx(0.5, rel=1e-3)
    assert said.used > 100


def test_one_bit_is_seen_and_so_is_the_sign_of_zero() -> None:
    def one_bit(sum: Sum) -> Any:
        total = in_order(sum.rows)
        total[1] = torch.nextafter(total[1], torch.tensor(torch.inf))
        return total

    assert judged(one_bit).unequal == 2
    assert judged(lambda sum: in_order(sum.rows * 0) * -1).unequal > 0
    zero = Case("zero", lambda place: Still(lambda sum: -sum.total, place))
    assert judge(declared(in_order), zero, Place()).unequal == 4


class Still(Sum):
    """Nothing is added; the reference gives zeros."""

    def poison(self) -> None:
        self.total.fill_(0.0)

    def reference(self) -> dict[str, Any]:
        return {"total": torch.zeros_like(self.total)}


def test_nan_equals_nan_whatever_its_bits() -> None:
    class Nans(Still):
        def reference(self) -> dict[str, Any]:
            return {"total": torch.full_like(self.total, float("nan"))}

    def other_nans(sum: Sum) -> Any:
        return torch.full_like(sum.total, 0x7FC00001, dtype=torch.int32).view(torch.float32)

    same = judge(declared(in_order), Case("nan", lambda place: Nans(other_nans, place)), Place())
    assert same.passed
    for agreement in Agreement:
        item = declared(in_order, agreement)
        number = judge(item, Case("nan", lambda place: Nans(lambda sum: sum.total, place)), Place())
        assert not number.passed
        assert number.outside == 4
        assert number.error == float("inf")


def change_inputs(sum: Sum) -> Any:
    total = in_order(sum.rows)
    sum.rows[0, 0] += 1
    return total


def leave_unwritten(sum: Sum) -> Any:
    sum.total[:3] = in_order(sum.rows)[:3]
    return sum.total.clone()


def differ_from_call_to_call(sum: Sum, turn: Any = count()) -> Any:  # noqa: B008
    return in_order(sum.rows) + (next(turn) % 2) * 1e-7


def fail(sum: Sum) -> Any:
    raise RuntimeError("planted\n  in two lines")


@pytest.mark.parametrize(
    ("add", "fault"),
    [
        (change_inputs, "the input rows was changed"),
        (leave_unwritten, "total shows the poison of the buffers, or differs from run to run"),
        (differ_from_call_to_call, "total shows the poison of the buffers, or differs from run to run"),
        (lambda sum: {}, "total is given by one side only"),
        (lambda sum: {"total": in_order(sum.rows), "more": sum.total}, "more is given by one side only"),
        (lambda sum: in_order(sum.rows).double(), "total is float64 [4], not float32 [4]"),
        (lambda sum: in_order(sum.rows)[:3], "total is float32 [3], not float32 [4]"),
        (lambda sum: in_order(sum.rows).to("meta"), "nothing was computed on cpu"),
        (fail, "RuntimeError: planted in two lines"),
    ],
)
def test_faults_other_than_numbers_are_named(add: Function, fault: str) -> None:
    said = judged(add, Agreement.TOLERANT)
    assert not said.passed
    assert fault in said.faults


def test_a_case_about_a_dtype_keeps_it() -> None:
    case = Case("half", lambda place: Sum(lambda sum: in_order(sum.rows), place), dtype="float16")
    assert judge(declared(in_order), case, Place("cpu", "bfloat16")).place.dtype == "float16"
    assert judged(lambda sum: in_order(sum.rows), dtype="bfloat16").place.dtype == "bfloat16"


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("item", ALL.values(), ids=list(ALL))
def test_every_folder_agrees_in_every_dtype(item: Optimization, dtype: str, monkeypatch: Patch) -> None:
    if "triton is not installed" in item.unmet():
        pytest.skip("its kernels need Triton, which interprets them on a CPU")
    cases = item.cases()
    if why_no_kernels("cpu") in item.unmet():
        # Their own tests interpret them in all cases; here it is about the dtypes, and takes long.
        cases = cases[:1]
        monkeypatch.setenv(INTERPRET, "1")
    failed = [said for case in cases if not (said := judge(item, case, Place("cpu", dtype))).passed]
    assert failed == []


def norms_of_another_layer(monkeypatch: Patch) -> None:
    write = Cache.write
    monkeypatch.setattr(Cache, "write", lambda self, *a: write(replace(self, norms=self.norms.flip(0)), *a))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_norms_of_another_layer_exceed_every_tolerance(dtype: str, monkeypatch: Patch) -> None:
    norms_of_another_layer(monkeypatch)
    item = ALL["context-kv-cache"]
    case = next(case for case in item.cases() if case.name == "all accepted")
    assert judge(item, case, Place("cpu", dtype)).outside > 100


# The command


def spantrace(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = run(["verify", "--device", "cpu", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_verify_prints_the_tier_and_the_differences_of_every_case(capsys: Capture) -> None:
    code, out, err = spantrace(capsys, "query-build", "context-kv-cache,verify-k-plus-one")
    assert (code, err) == (0, "")
    assert "float32 | torch " in out.splitlines()[0]
    cases = sum(len(ALL[name].cases()) for name in ("query-build", "context-kv-cache", "verify-k-plus-one"))
    assert f"PASS  3 optimizations agree with their references in all {cases} cases." in out
    for name in ("query-build  BITWISE", "context-kv-cache  TOLERANT", "verify-k-plus-one  TOLERANT"):
        assert f"\n{name} " in out
    for case in ALL["query-build"].cases():
        assert f"\n  {case.name} " in out
    assert "TOLERANT: |error| <= t (1 + |reference|), t 2e-05 in float32, 0.01 in float16" in out
    assert max(map(len, out.splitlines())) <= 100


def test_without_ids_every_optimization_that_can_be_judged_here_is(capsys: Capture) -> None:
    code, out, _ = spantrace(capsys, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    can = {name: item for name, item in ALL.items() if not item.unmet()}
    assert {row["optimization"] for row in rows} == set(can)
    assert [row["case"] for row in rows] == [case.name for item in can.values() for case in item.cases()]
    for row in rows:
        assert row["tier"] == can[row["optimization"]].agreement.value
        assert (row["device"], row["passed"]) == ("cpu", "yes")
        assert (row["used"] == "") == (row["tier"] != "tolerant")
        assert int(row["elements"]) > 0


def test_a_planted_fault_shows_as_mismatches(capsys: Capture, monkeypatch: Patch) -> None:
    build = lookup.build

    def one_element_off(*arguments: Any) -> None:
        build(*arguments)
        arguments[-1].noise[-1, -1, -1] += 0.01

    monkeypatch.setattr(reference, "build", one_element_off)
    code, out, err = spantrace(capsys, "query-build", "verify-k-plus-one", "--format", "json")
    said = json.loads(out)
    assert code == EXIT_GATE_FAILED
    assert (said["passed"], err) == (False, "")
    for one in said["judgements"]:
        planted = one["optimization"] == "query-build"
        assert one["passed"] is not planted
        steps = one["elements"] and one["steps"]
        assert one["outside"] == (steps if planted else 0)
        assert not planted or (one["tier"], one["unequal"]) == ("bitwise", steps)
    _, out, _ = spantrace(capsys, "query-build", "verify-k-plus-one")
    cases = ALL["query-build"].cases()
    differ, elements = (
        sum(case.steps for case in cases),
        sum(one["elements"] for one in said["judgements"][: len(cases)]),
    )
    assert f"FAIL  query-build fails 10 of 10 cases: {differ} of their {elements:,} elements are outside." in out
    assert re.search(r"\n  20 steps +float32 +100 +6,360 +20 +20 +\d", out)


def test_a_fault_in_words_is_said_on_stderr_too_where_the_format_has_no_place(
    capsys: Capture, monkeypatch: Patch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(reference, "build", fail)
    code, out, err = spantrace(capsys, "query-build", "--format", "csv")
    assert code == EXIT_GATE_FAILED
    assert "spantrace: fault: query-build, idle rows: RuntimeError: planted\n" in err
    assert {row["passed"] for row in csv.DictReader(io.StringIO(out))} == {"no"}
    assert "\nfault " in spantrace(capsys, "query-build")[1]


@pytest.mark.parametrize(
    ("arguments", "sentence", "exit_code"),
    [
        (["nonsense"], "no optimization is called 'nonsense'; spantrace optimizations lists them all", EXIT_BAD_INPUT),
        (["query-build", "nonsense"], "no optimization is called 'nonsense'", EXIT_BAD_INPUT),
        (["all", "nonsense"], "all stands alone; leave it or the other ids out of 'all,nonsense'", EXIT_BAD_INPUT),
        (["none"], "there is nothing to judge: none is chosen", EXIT_NOT_COMPARABLE),
    ],
)
def test_what_cannot_be_judged_is_one_sentence(
    arguments: list[str], sentence: str, exit_code: int, capsys: Capture
) -> None:
    code, out, err = spantrace(capsys, *arguments)
    assert (code, out) == (exit_code, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(capsys: Capture) -> None:
    assert run(["verify", "--device", "cuda"]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err == "spantrace: PyTorch finds no CUDA device here; use --device cpu\n"


def test_a_requirement_that_does_not_hold_is_said(capsys: Capture, monkeypatch: Patch) -> None:
    held = declared(lambda sum: in_order(sum.rows))
    unmet = replace(held, id="other", requirements=(Requirement("a unicorn", lambda: "there is no unicorn"),))
    monkeypatch.setattr(optimized, "discover", lambda: {"sums": held, "other": unmet})
    for asked, expected in (([], 0), (["all"], 0), (["sums"], 0), (["sums,other"], EXIT_NOT_COMPARABLE)):
        code, out, _ = spantrace(capsys, *asked)
        assert code == expected
        without = "" if asked == ["sums"] else ", 1 not judged here"
        assert f"PASS  1 optimization agrees with its reference in all 2 cases{without}." in out
        assert ("\nnot judged  other: there is no unicorn" in out) is bool(without)
    code, _, err = spantrace(capsys, "other")
    assert (code, err) == (EXIT_NOT_COMPARABLE, "spantrace: there is nothing to judge: other: there is no unicorn\n")


def test_a_fault_outweighs_what_was_not_judged_and_a_set_must_be_judged_whole(
    capsys: Capture, monkeypatch: Patch
) -> None:
    sums = replace(declared(lambda sum: in_order(sum.rows)), named_set="both")
    unmet = replace(sums, id="other", requirements=(Requirement("a unicorn", lambda: "there is no unicorn"),))
    monkeypatch.setattr(optimized, "discover", lambda: {"sums": sums, "other": unmet})
    assert spantrace(capsys, "both")[0] == EXIT_NOT_COMPARABLE
    wrong = replace(declared(lambda sum: in_order(sum.rows) + 1), named_set="both")
    monkeypatch.setattr(optimized, "discover", lambda: {"sums": wrong, "other": unmet})
    code, out, _ = spantrace(capsys, "both")
    assert code == EXIT_GATE_FAILED
    assert "FAIL sums fails 2 of 2 cases: 12 of their 12 elements are outside. 1 not judged here." in " ".join(
        out.split()
    )


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_interpreted_bfloat16_is_doubted(asked: bool, dtype: str, capsys: Capture, monkeypatch: Patch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv(INTERPRET, "1" if asked else "0")
    monkeypatch.setattr(optimized, "discover", lambda: {"sums": declared(lambda sum: in_order(sum.rows))})
    said = " ".join(spantrace(capsys, "sums", "--dtype", dtype)[1].split())
    doubted = (
        "doubt Triton's interpreter cuts float32 off where a GPU rounds it to bfloat16, so nothing is shown of the"
    )
    assert (doubted in said) is (asked and dtype == "bfloat16")


# The self-test of PINNED optimizations


def with_sums(monkeypatch: Patch, add: Function, **changes: Any) -> list[Place]:
    """Declare a PINNED optimization; returns where its problems were made, one entry each."""
    made: list[Place] = []

    def make(place: Place) -> Sum:
        made.append(place)
        return Sum(add, place)

    cases = [Case("a sum", make, 2), Case("a sum of halves", make, dtype="float16")]
    other = {name: item for name, item in ALL.items() if name != "query-build"}
    item = declared(add, Agreement.PINNED, cases=lambda: cases, **changes)
    monkeypatch.setattr(optimized, "discover", lambda: {**other, "sums": item})
    return made


def test_a_pinned_optimization_is_tested_once_and_applied(monkeypatch: Patch) -> None:
    made = with_sums(monkeypatch, lambda sum: in_order(sum.rows))
    for _ in range(3):
        assert optimized.apply(["sums"]) == ["sums"]
        optimized.revert()
    assert len(made) == 2 * 3
    assert {place.dtype for place in made} == {made[0].dtype, "float16"}


def test_a_pinned_optimization_is_tested_where_it_will_run(monkeypatch: Patch) -> None:
    made = with_sums(monkeypatch, lambda sum: in_order(sum.rows))
    for dtype in ("float32", "bfloat16", "bfloat16"):
        optimized.apply(["sums"], place=Place("cpu", dtype))
        optimized.revert()
    assert [place.dtype for place in made] == [*["float32"] * 3, *["float16"] * 3, *["bfloat16"] * 3, *["float16"] * 3]
    with switched_on(["sums"], Settings(dtype="float16")):
        assert [(place.device, place.dtype) for place in made[12:]] == [("cpu", "float16")] * 6


def test_a_pinned_optimization_whose_bits_differ_is_refused_and_nothing_is_applied(monkeypatch: Patch) -> None:
    made = with_sums(monkeypatch, lambda sum: backwards(sum.rows))
    before = dict(vars(Drafter))
    for _ in range(2):
        with pytest.raises(SpantraceError) as refusal:
            optimized.apply(["verify-k-plus-one", "sums"])
        said = str(refusal.value)
        assert said.startswith(f"sums cannot be applied: with torch {torch.__version__} and ")
        assert re.search(
            r"and (triton [\d.]+\S*|no triton) \d+ of 12 elements differ from its reference's in 2 of 2", said
        )
        assert said.endswith("it was proven on torch 2.11.0+cu130")
        assert refusal.value.exit_code == EXIT_BAD_INPUT
        assert optimized.applied() == ()
        assert dict(vars(Drafter)) == before
    assert len(made) == 2 * 3, "what the self-test said stands"


def test_all_leaves_out_a_pinned_optimization_whose_bits_differ_and_says_so(
    monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    made, path = with_sums(monkeypatch, lambda sum: backwards(sum.rows)), tmp_path / "r.spantrace"
    short = ["--batch", "1", "--context", "64", "--cycles", "2", "--warmup", "0", "--device", "cpu"]
    assert run(["run", "--optimize", "all", *short, "-o", str(path)]) == 0
    assert {one["id"] for one in load(path).header["optimizations"]} == set(optimized.select("all")) - {"sums"}
    said = capsys.readouterr().err
    assert re.search(r"\nspantrace: all leaves out sums: with torch .* differ from its reference's in 2 of 2", said)
    assert len(made) == 2 * 3
    assert run(["run", "--optimize", "sums", *short, "-o", str(path), "--force"]) == EXIT_BAD_INPUT
    assert capsys.readouterr().err.startswith("spantrace: sums cannot be applied: with torch ")


def test_a_self_test_that_fails_refuses_too(monkeypatch: Patch) -> None:
    with_sums(monkeypatch, fail)
    with pytest.raises(SpantraceError, match="RuntimeError: planted in two lines in 2 of 2 cases of its self-test"):
        optimized.apply(["sums"])
    assert optimized.applied() == ()


@pytest.mark.parametrize("agreement", [Agreement.BITWISE, Agreement.TOLERANT])
def test_only_pinned_optimizations_test_themselves(agreement: Agreement, monkeypatch: Patch) -> None:
    item = declared(fail, agreement)
    monkeypatch.setattr(optimized, "discover", lambda: {"sums": item})
    assert optimized.apply(["sums"]) == ["sums"]


@pytest.mark.parametrize(
    ("agreement", "proven"), [(Agreement.PINNED, ""), (Agreement.BITWISE, "torch 2.11.0"), (Agreement.TOLERANT, "x")]
)
def test_a_pinned_declaration_and_no_other_says_where_it_was_proven(agreement: Agreement, proven: str) -> None:
    with pytest.raises(ValueError, match="on which torch it was proven"):
        declared(in_order, agreement, proven=proven)
