"""What `spantrace ab` prints of campaigns whose windows are there, missing or failed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
import pytest
from campaigns import campaign, resample_less

from analyzers.attribution import STOCK, STOCK_AGAIN, attribute
from analyzers.quantities import CYCLE
from spantrace.campaign.plan import Arm, Plan
from spantrace.campaign.store import Store
from spantrace.cli.campaigns import show
from spantrace.cli.finished import attributed
from spantrace.cli.main import run
from spantrace.errors import EXIT_BAD_INPUT, EXIT_GATE_FAILED, EXIT_NOT_COMPARABLE, SpantraceError

QUERY = "query-build"
CODE = "0" * 10
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _resample_less(monkeypatch: pytest.MonkeyPatch) -> None:
    resample_less(monkeypatch)


def plan_of(*more: Arm, repeats: int = 8, gates: str = "") -> Plan:
    return Plan((Arm(STOCK), Arm(STOCK_AGAIN), Arm(QUERY, (QUERY,)), *more), repeats=repeats, gates=gates)


def measured(
    directory: Path,
    plan: Plan,
    *,
    failed: Mapping[str, range] | None = None,
    hits: int = 100,
    seed: int = 1,
    codes: Mapping[str, str] | None = None,
    others: float = 0.0,
) -> Store:
    """A campaign of equal arms; the `failed` windows of an arm, from 0, gave no recording.

    `codes` are those of arms that did not run `CODE`; other processes used `others` of the CPUs.
    """
    arms = {arm.name: {} for arm in plan.arms}
    on = {arm.name: tuple(one for one in arm.on if one not in plan.restore) for arm in plan.arms}
    runs = campaign(arms, windows=plan.repeats, cycles=20, drift=0.4, seed=seed, on=on, hits={QUERY: hits})
    left = {name: list(enumerate(some)) for name, some in runs.items()}
    with Store(directory, plan) as store:
        store.create()
        for window in store.windows:
            turn, recording = left[window.arm.name].pop(0)
            store.started(window)
            if turn in (failed or {}).get(window.arm.name, ()):
                store.failed(window, "planted")
            else:
                code = (codes or {}).get(window.arm.name, CODE)
                about = {"plan": plan.hash, "arm": window.arm.name, "window": window.number, "code": code}
                recording.header["campaign"] = about
                recording.save(store.path(window))
                result = {"code": code, "cycles": 20, "seconds": 1.0, "others": others, "load": {}, "notes": []}
                store.finished(window, result)
    return store


def test_the_windows_after_a_missing_one_stay_in_their_rounds(tmp_path: Path) -> None:
    plan = plan_of()
    found, runs = attributed(measured(tmp_path / "one", plan, failed={QUERY: range(1)}))
    arm = found.arm(QUERY)
    assert arm is not None
    assert (arm.runs, found.stock_runs) == (7, 8)
    whole = attribute({name: some[-7:] for name, some in runs.items()}, {QUERY: frozenset({QUERY})}, {}).arm(QUERY)
    assert whole is not None
    cycles = [one.effect(CYCLE) for one in (arm, whole)]
    assert cycles[0] is not None
    assert cycles[1] is not None
    assert cycles[0].change == cycles[1].change


def test_an_arm_that_failed_wholly_is_told_with_its_gates_before_the_missing_windows(
    tmp_path: Path, capsys: Captured
) -> None:
    gates = f"gates = [{{check = 'cycle < 1000 ms', arm = '{QUERY}'}}, {{check = 'cycle < 1000 ms', arm = 'held'}}]"
    plan = plan_of(Arm("held", delay={"schedule": 200.0}), gates=gates)
    store = measured(tmp_path / "one", plan, failed={"held": range(8)})
    with pytest.raises(SpantraceError, match="8 of 32 windows are missing") as caught:
        show(store, "json", None, (), None)
    assert caught.value.exit_code == EXIT_NOT_COMPARABLE
    data = json.loads(capsys.readouterr().out)
    assert [(one["arm"], one["outcome"]) for one in data["gates"]] == [(QUERY, "pass"), ("held", "inconclusive")]
    assert data["gates"][1]["reason"] == "held has no recording"
    assert data["lost"] == [{"name": "held", "why": "has no recording"}]
    assert len(data["campaign"]["failures"]) == 8
    with pytest.raises(SpantraceError, match="windows are missing"):
        show(store, "table", None, (), None)
    assert re.search(r"^held .*failed +has no recording", capsys.readouterr().out, re.MULTILINE)


def test_a_campaign_is_shown_so_far_without_its_target(tmp_path: Path, capsys: Captured) -> None:
    plan = replace(plan_of(), target=":9")
    directory = measured(tmp_path / "one", plan, failed={QUERY: range(6, 8)}).directory
    before = {path: path.read_bytes() for path in directory.iterdir()}
    assert run(["ab", str(directory), "--so-far"]) == EXIT_NOT_COMPARABLE
    out, err = capsys.readouterr()
    assert re.search(rf"^{QUERY} ", out, re.MULTILINE)
    assert "2 of 24 windows are missing" in err
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_an_optimization_that_never_fired_is_told_of_an_arm_that_is_also_delayed(tmp_path: Path) -> None:
    plan = plan_of(Arm("both", (QUERY,), delay={"schedule": 200.0}))
    found, _ = attributed(measured(tmp_path / "one", plan, hits=0))
    both = found.arm("both")
    assert both is not None
    assert (both.ids, both.silent) == ((QUERY,), (QUERY,))
    assert "schedule" in both.targets


def test_a_fix_that_the_server_has_by_itself_is_not_said_to_have_never_fired(tmp_path: Path) -> None:
    fix = "skip-draft-rebuild"
    plan = replace(plan_of(Arm(fix, (fix,)), Arm("both", (QUERY, fix))), target=":8100", restore=(fix,))
    found, _ = attributed(measured(tmp_path / "campaign", plan))
    told = {arm.name: (arm.silent, arm.hits(fix), arm.never_fired) for arm in found.arms}
    assert told == dict.fromkeys((STOCK_AGAIN, QUERY, fix, "both"), ((), None, False))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--with", "empty"], "holds no campaign"),
        (["--final", "empty"], "holds no campaign"),
        (["--plot", "arms.csv"], "the suffix must be one of"),
        (["--plot", "nowhere/arms.png"], "is no folder"),
        (["--plot", "data.png"], "is there and no picture"),
    ],
)
def test_what_the_result_needs_is_checked_before_anything_is_measured(
    options: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("data.png").write_text("a,b\n")
    assert run(["ab", "built-in", "--optimize", QUERY, "-o", "campaign", *options]) == EXIT_BAD_INPUT
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n"), why in shown.err) == ("", 1, True)
    assert not Path("campaign").exists()
    assert Path("data.png").read_text() == "a,b\n"


def test_one_campaign_twice_confirms_nothing(tmp_path: Path, capsys: Captured) -> None:
    store = measured(tmp_path / "one", plan_of(repeats=2))
    link = tmp_path / "link"
    link.symlink_to(store.directory)
    for option in ("--with", "--final"):
        assert run(["ab", str(store.directory), option, str(link)]) == EXIT_BAD_INPUT
        assert "is the same campaign twice" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--with", "--final"])
def test_a_copy_of_a_campaign_is_not_another_day(option: str, tmp_path: Path, capsys: Captured) -> None:
    one, copy = measured(tmp_path / "one", plan_of(repeats=2)).directory, tmp_path / "copy"
    shutil.copytree(one, copy)
    (copy / "001-stock.spantrace").unlink()
    assert run(["ab", str(one), "--so-far", option, str(copy)]) == EXIT_BAD_INPUT
    why = f"{copy} holds the same recordings as {one}, which confirms nothing; name another campaign"
    assert capsys.readouterr() == ("", f"spantrace: {why}\n")


def combined(capsys: Captured, *days: Path, final: Path | None = None) -> tuple[list[str], str]:
    """What to doubt in campaigns that are combined, and all that is printed of them, in one line."""
    first, *others = map(str, days)
    asked = ["ab", first, "--so-far", *(word for one in others for word in ("--with", one))]
    asked += ["--final", str(final)] if final else []
    run([*asked, "--format", "json"])
    doubts = json.loads(capsys.readouterr().out)["doubts"]
    run(asked)
    return doubts, " ".join(capsys.readouterr().out.split())


def test_code_that_is_not_that_of_every_day_is_a_doubt_and_each_column_says_its_own(
    tmp_path: Path, capsys: Captured
) -> None:
    plan = plan_of(repeats=2)
    one, two, changed, final = (
        measured(tmp_path / name, plan, seed=seed, codes={QUERY: code}).directory
        for seed, (name, code) in enumerate({"1": CODE, "2": CODE, "3": "abcdef12", "f": "fedcba98"}.items())
    )
    doubts, printed = combined(capsys, one, two)
    assert (doubts, f"code every campaign: stock 000000, stock again 000000, {QUERY} 000000 " in printed) == ([], True)
    doubts, printed = combined(capsys, one, changed)
    assert doubts == [f"not all days ran the same code in {QUERY}"]
    assert f"day 1: stock 000000, stock again 000000, {QUERY} 000000" in printed
    assert f"day 2: stock 000000, stock again 000000, {QUERY} abcdef" in printed
    doubts, printed = combined(capsys, one, two, final=final)
    assert doubts == []
    assert f"final: stock 000000, stock again 000000, {QUERY} fedcba" in printed


def test_what_each_campaign_went_through_is_told_of_all_together(tmp_path: Path, capsys: Captured) -> None:
    plan = plan_of(repeats=2)
    one = measured(tmp_path / "one", plan, hits=0).directory
    two = measured(tmp_path / "two", plan, seed=2, failed={QUERY: range(1)}, others=0.5).directory
    _, printed = combined(capsys, one, two)
    assert f"hits day 1: {QUERY} 0 hits, 60 fallbacks" in printed
    assert f"NEVER FIRED day 1: {QUERY} was on and never fired" in printed
    assert "contended day 2: 2 of 2 runs of stock" in printed
    assert f"1 of 1 run of {QUERY}" in printed
    assert f"failed day 2: 1 try | window 3 ({QUERY}): planted" in printed
    assert "missing day 2: 1 of 6 windows" in printed
    run(["ab", str(one), "--with", str(two), "--so-far", "--format", "json"])
    data = json.loads(capsys.readouterr().out)["members"]
    assert [len(data[str(day)]["failures"]) for day in (one, two)] == [0, 1]
    assert data[str(two)]["stock_contended"] == [0, 1]
    assert data[str(one)]["arms"][1]["silent"] == [QUERY]


def test_a_final_re_run_alone_is_held_against_one_campaign(tmp_path: Path, capsys: Captured) -> None:
    one, two = (measured(tmp_path / str(seed), plan_of(repeats=2), seed=seed).directory for seed in (1, 2))
    _, printed = combined(capsys, one, final=two)
    assert printed.startswith("1 campaign | final re-run ")
    assert f"final is {two}" in printed


def test_a_campaign_without_stock_is_not_waited_for(tmp_path: Path, capsys: Captured) -> None:
    plan = plan_of(repeats=2)
    other = measured(tmp_path / "other", plan, failed={STOCK: range(2), STOCK_AGAIN: range(2)}).directory
    assert run(["ab", str(measured(tmp_path / "one", plan).directory), "--with", str(other)]) == EXIT_BAD_INPUT
    assert "has no window of stock yet" in capsys.readouterr().err


def test_a_plan_that_differs_beyond_its_repeats_is_a_doubt(tmp_path: Path, capsys: Captured) -> None:
    plan = plan_of()
    days = [measured(tmp_path / name, one, seed=seed).directory for seed, (name, one) in enumerate({
        "one": plan, "two": replace(plan, repeats=10), "three": replace(plan, cycles=300, built_in={"batch": 2}),
    }.items())]  # fmt: skip
    assert run(["ab", str(days[0]), "--with", str(days[1]), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["doubts"] == []
    run(["ab", str(days[0]), "--with", str(days[2]), "--format", "json"])
    shown = capsys.readouterr()
    assert json.loads(shown.out)["doubts"] == [f"the plan of {days[2]} has other cycles, built_in"]
    assert "doubt" in shown.err


def test_campaigns_of_too_few_rounds_are_not_known_to_agree(tmp_path: Path, capsys: Captured) -> None:
    one, two = (measured(tmp_path / str(seed), plan_of(repeats=2), seed=seed).directory for seed in (1, 2))
    for option in ("--with", "--final"):
        assert run(["ab", str(one), option, str(two)]) == EXIT_NOT_COMPARABLE
        assert "NOT KNOWN" in capsys.readouterr().out


def test_the_gates_of_combined_campaigns_are_printed_and_decide(tmp_path: Path, capsys: Captured) -> None:
    plan = plan_of(gates="gates = ['cycle < 0.001 ms']")
    one, two = (measured(tmp_path / str(seed), plan, seed=seed).directory for seed in (7, 8))
    assert run(["ab", str(one), "--with", str(two)]) == EXIT_GATE_FAILED
    assert "FAIL  cycle < 0.001 ms" in capsys.readouterr().out


def test_a_plot_that_fails_loses_no_gate(tmp_path: Path) -> None:
    stores = []
    for gate, code in (("cycle < 0.001 ms", EXIT_GATE_FAILED), ("cycle < 1000 ms", EXIT_BAD_INPUT)):
        store = measured(tmp_path / str(code), plan_of(gates=f"gates = ['{gate}']"))
        with pytest.raises(SpantraceError, match="cannot draw into") as caught:
            show(store, "json", tmp_path / "nowhere" / "arms.png", (), None)
        assert caught.value.exit_code == code
        stores.append(store)
    with pytest.raises(click.exceptions.Exit):
        show(stores[0], "json", tmp_path / "arms.png", (), None)
    assert (tmp_path / "arms.png").exists()
