"""Gates: what a file may say, and what becomes of each."""

from __future__ import annotations

import pytest
from campaigns import campaign
from recordings import NEMOTRON_HOST

from analyzers.attribution import STOCK, STOCK_AGAIN, Attribution, attribute
from analyzers.gates import Outcome, check_arms, exit_code, judge, parse
from spantrace.errors import SpantraceError

METADATA = "target.metadata"
PASS, FAIL, UNCLEAR = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE


@pytest.fixture(scope="module")
def found() -> Attribution:
    """A fix that takes target.metadata from 2.75 ms to 0.25, the cycle from 7.2 to 4.7, and caches 528 tokens more."""
    arms = {STOCK: {}, STOCK_AGAIN: {}, "fix": {METADATA: 0.25}, "idle": {}, "same": {}, "dead": {}}
    runs = campaign(arms, on={name: (name,) for name in ("fix", "idle", "same")}, hits={"idle": 0}, kernels=None)
    cached = {name: [{"cached_tokens": 1000.0 + 528 * (name == "fix")}] * 8 for name in arms if name != "dead"}
    sets = {name: frozenset({name}) for name in ("fix", "idle", "same", "dead")}
    return attribute({**runs, "dead": []}, sets, {"fix": (METADATA,)}, cached)


def outcome(found: Attribution, check: str, arm: str = "fix") -> tuple[Outcome, str]:
    text = f"gates = [{{check = '{check}', arm = '{arm}'}}]\nconstants = {{block = 528}}"
    (one,) = judge(parse(text), found)
    return one.outcome, one.reason


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("target.metadata.host <= 10% of base", PASS),
        ("target.metadata.host <= 5% of base", FAIL),
        ("target.metadata.host <= 0.30 ms", PASS),
        ("target.metadata.host <= 300 us", PASS),
        ("target.metadata.host > 0.30 ms", FAIL),
        ("cycle < -20%", PASS),
        ("cycle < -50%", FAIL),
        ("cycle <= base - 2 ms", PASS),
        ("cycle == base - 2.5 ms +- 400 us", PASS),
        ("sample.host == base +- 10%", PASS),
        ("acceptance == 3.00 +- 0.01", PASS),
        ("acceptance == 2.00 +- 0.01", FAIL),
        ("cached_tokens == base + block", PASS),
        ("cached_tokens == base", FAIL),
        ("cached_tokens == 1528", PASS),
        ("cycle <= base", PASS),
        ("cycle <= 100% of base", PASS),
        ("cycle < 0%", PASS),
        ("cycle <= 100.1% of base", PASS),
        ("cycle >= base", FAIL),
        ("cycle > 0%", FAIL),
    ],
)
def test_what_a_fix_passes_and_fails(found: Attribution, check: str, expected: Outcome) -> None:
    assert outcome(found, check)[0] is expected


def test_a_gate_narrower_than_the_noise_is_inconclusive(found: Attribution) -> None:
    what, reason = outcome(found, "cycle < -0.1%")
    assert what is UNCLEAR
    assert "less than the A/A interval" in reason
    assert outcome(found, "sample.host == base +- 0.01%")[0] is UNCLEAR


def test_a_small_change_is_not_written_as_none(found: Attribution) -> None:
    assert "the change asked for, 0.001%, is less than" in outcome(found, "cycle < -0.001%")[1]
    assert "the change asked for, 0.0001 ms, is less than" in outcome(found, "cycle < base - 0.1 us")[1]


@pytest.mark.parametrize("runs", [1, 3])
def test_so_few_runs_are_counted_in_the_right_number(runs: int) -> None:
    some = {name: windows[:runs] for name, windows in campaign({STOCK: {}, "fix": {METADATA: 0.25}}, cycles=20).items()}
    (one,) = judge(parse("gates = ['cycle < -4%']"), attribute(some, {"fix": frozenset({"fix"})}, {}))
    assert one.reason.endswith(f": not enough, {'1 run' if runs == 1 else '3 runs'} an arm; an interval needs 4")


@pytest.mark.parametrize("check", ["cycle <= base", "cycle < 0%", "cycle >= 100% of base"])
def test_equal_code_neither_passes_nor_fails_a_bound_at_base(found: Attribution, check: str) -> None:
    what, reason = outcome(found, check, "same")
    assert (what, "the interval holds the bound" in reason) == (UNCLEAR, True)


def test_a_tolerance_without_a_unit_has_that_of_its_bound(found: Attribution) -> None:
    check = parse("gates = ['itl == 5% +- 0.1']").gates[0].check
    assert (check.low, check.high) == (pytest.approx(0.049), pytest.approx(0.051))
    assert "+-0.1%" in outcome(found, "sample.host == 5% +- 0.1")[1].replace("0.10%", "0.1%")


def test_an_interval_that_holds_the_bound_is_inconclusive(found: Attribution) -> None:
    fix = found.arm("fix")
    assert fix is not None
    cycle = fix.effects[0].change
    assert cycle is not None
    assert cycle.relative is not None
    what, reason = outcome(found, f"cycle < {cycle.relative.value:.2%}")
    assert (what, "the interval holds the bound" in reason) == (UNCLEAR, True)


@pytest.mark.parametrize(
    ("check", "arm", "reason"),
    [
        ("cycle < -4%", "idle", "idle never fired"),
        ("itl < -4%", "fix", "itl_ms has no value in any arm; it comes from what a campaign's load measures"),
        ("target.forward.gpu < -4%", "fix", "has no value"),
        ("cycle < -4%", "dead", "dead has no recording"),
    ],
)
def test_what_was_not_measured_is_inconclusive(found: Attribution, check: str, arm: str, reason: str) -> None:
    assert outcome(found, check, arm)[0] is UNCLEAR
    assert reason in outcome(found, check, arm)[1]


def test_too_few_runs_are_inconclusive() -> None:
    runs = {name: some[:3] for name, some in campaign({STOCK: {}, "fix": {METADATA: 0.25}}, cycles=20).items()}
    (one,) = judge(parse("gates = ['cycle < -4%']"), attribute(runs, {"fix": frozenset({"fix"})}, {}))
    assert one.outcome is UNCLEAR
    assert "not enough, 3 runs an arm" in one.reason


def test_without_a_a_the_reason_says_so(found: Attribution) -> None:
    runs = campaign({STOCK: {}, "fix": {METADATA: 0.25}})
    (one,) = judge(parse("gates = ['cycle < -4%']"), attribute(runs, {"fix": frozenset({"fix"})}, {}))
    assert one.outcome is PASS
    assert "no A/A to hold it against" in one.reason


def test_exit_codes(found: Attribution) -> None:
    passed, failed, unclear = "'cycle < -4%'", "'cycle < -90%'", "'itl < -4%'"
    codes = {(passed,): 0, (passed, unclear): 3, (passed, unclear, failed): 1}
    for checks, code in codes.items():
        gates = ", ".join(f"{{check = {check}, arm = 'fix'}}" for check in checks)
        assert exit_code(judge(parse(f"gates = [{gates}]"), found)) == code
    assert exit_code(()) == 0


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        ("cycle < -120%", "a change is never below -100%"),
        ("cycle <= -1% of base", "a change is never below -100%"),
        ("cycle < 0 ms", "cycle.host is never below 0"),
        ("acceptance <= 0.9", "acceptance is never below 1"),
        ("acceptance == 3 +- -1", "nothing lies within -1"),
        ("acceptance == 3 ms", "acceptance is no time"),
        ("cycle >= 0 ms", "can never fail"),
        ("cycle <= 5", "has no unit"),
        ("cycle <= base + 5", "has no unit"),
        ("cycle < 5 ms +- 1 ms", "+- belongs to =="),
        ("target.metdata.host < 3 ms", "names no quantity; choose SPAN.host"),
        ("sample.own < 3 ms", "names no quantity"),
        ("cached_tokens == base + blok", "'blok', which is none of the file's constants"),
        ("cycle is fine", "cannot be read; write it as"),
        ("cycle < base 4%", "cannot be read"),
        ("itl == 5% +- 0.1 ms", "mixes units"),
        (f"cycle < {'9' * 400} ms", "its bound is no finite number"),
    ],
)
def test_an_impossible_gate_is_one_sentence(check: str, sentence: str) -> None:
    with pytest.raises(SpantraceError, match=r"^gate ") as caught:
        parse(f'gates = ["{check}"]')
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('gate = ["cycle < -4%"]', "the gates file has no key 'gate'; choose from gates, constants"),
        ('gates = [{chek = "cycle < -4%"}]', "gate 1 has no key 'chek'; choose from check, arm"),
        ("gates = [3]", "gate 1 must be a table"),
        ("gates = [{arm = 'all'}]", "gate 1 has no check"),
        ("gates = []", "holds no gate"),
        ("gates = [", "is no TOML"),
        ('gates = ["cycle < -4%"]\nconstants = {block = "big"}', "must be a number"),
        ('gates = ["cycle < 5 ms", "cycle > 6 ms"]', "are impossible together"),
        ('gates = ["cycle < 5 ms", "cycle > 5 ms"]', "are impossible together"),
        ('gates = ["cycle == 5 ms", "cycle < 5 ms"]', "are impossible together"),
        (
            'gates = ["cycle < -4%"]\nconstants = {block = nan}',
            "constant 'block' of the gates file is no finite number",
        ),
        (
            'gates = ["cycle < -4%"]\nconstants = {block = inf}',
            "constant 'block' of the gates file is no finite number",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SpantraceError) as caught:
        parse(text)
    assert sentence in str(caught.value)


def test_gates_are_for_arms_that_the_plan_has() -> None:
    plain, named = parse("gates = ['cycle < -4%']"), parse("gates = [{check = 'cycle < -4%', arm = 'b'}]")
    check_arms(plain, [STOCK, STOCK_AGAIN, "a", "b", "all"])
    check_arms(plain, [STOCK, "a"])
    check_arms(named, [STOCK, "a", "b"])
    with pytest.raises(SpantraceError, match="needs an arm, one of a, b"):
        check_arms(plain, [STOCK, "a", "b"])
    with pytest.raises(SpantraceError, match="is for arm 'b'; the arms are a"):
        check_arms(named, [STOCK, "a"])


def test_gates_that_exclude_each_other_in_one_arm_are_refused_before_it() -> None:
    gates = parse("gates = ['cycle < 5 ms', {check = 'cycle > 5 ms', arm = 'fix'}]")
    check_arms(parse("gates = ['cycle <= 5 ms', {check = 'cycle >= 5 ms', arm = 'fix'}]"), [STOCK, "fix"])
    check_arms(gates, [STOCK, "fix", "all"])
    with pytest.raises(SpantraceError, match="impossible together"):
        check_arms(gates, [STOCK, "fix"])


def test_the_hash_is_of_the_text_as_written() -> None:
    text = "gates = ['cycle < -4%']"
    assert parse(text).hash == parse(text).hash != parse(text + " ").hash
    assert len(parse(text).hash) == 64


def test_a_span_that_is_gone_is_not_taken_for_zero() -> None:
    work = {name: ms for name, ms in NEMOTRON_HOST.items() if name == "sample"}
    runs = campaign({STOCK: {"draft.metadata": 0.04}, "fix": work}, cycles=20)
    (one,) = judge(parse("gates = ['draft.metadata.host <= 10% of base']"), attribute(runs, {}, {}))
    assert (one.outcome, one.reason) == (UNCLEAR, "draft.metadata.host has no value in arm fix")
