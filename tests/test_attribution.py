"""Attribution on campaigns whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from campaigns import campaign, resample_less
from recordings import NEMOTRON_HOST, QWEN3_GPU, QWEN3_HOST, make_recording

from analyzers.attribution import STOCK, STOCK_AGAIN, Arm, Attribution, attribute, pair
from analyzers.changes import Change
from analyzers.quantities import CYCLE, Quantity, outermost, series, units, untouched
from spantrace.errors import SpantraceError
from spantrace.recording import Recording
from spantrace.spans import PARENT, WAITS

METADATA, MAMBA = "target.metadata", "target.metadata.mamba"
STOCK_MS = NEMOTRON_HOST[METADATA]


@pytest.fixture(autouse=True)
def _resample_less(monkeypatch: pytest.MonkeyPatch) -> None:
    resample_less(monkeypatch)


def arm_of(found: Attribution, name: str) -> Arm:
    arm = found.arm(name)
    assert arm is not None
    return arm


def change_of(arm: Arm, quantity: Quantity) -> Change:
    effect = arm.effect(quantity)
    assert effect is not None
    assert effect.change is not None
    return effect.change


def moved(arm: Arm) -> set[str]:
    return {str(one.quantity) for one in arm.effects if one.shown}


def shows_a_difference(runs: dict[str, list[Recording]]) -> bool:
    return bool(moved(arm_of(attribute(runs, {}, {}), STOCK_AGAIN)))


def test_200_us_in_one_span_are_found_there_and_nowhere_else() -> None:
    saved = {"fix": {METADATA: STOCK_MS - 0.2}}
    runs = campaign({STOCK: {}, STOCK_AGAIN: {}, **saved}, on={"fix": ("fix",)}, cycles=1000, seed=1)
    found = attribute(runs, {"fix": frozenset({"fix"})}, {"fix": (METADATA,)})
    fix = arm_of(found, "fix")
    effect = fix.effect(Quantity(METADATA, "host"))
    assert effect is not None
    assert effect.change is not None
    assert effect.adjusted is not None
    assert effect.change.difference.value == pytest.approx(-0.2, rel=0.1)
    assert effect.adjusted < 0.01
    assert moved(fix) <= {"cycle.host", f"{METADATA}.host", f"{METADATA}.own", "output.wait.host"}
    assert {"cycle.host", f"{METADATA}.host", f"{METADATA}.own"} <= moved(fix)
    assert change_of(fix, CYCLE).difference.value == pytest.approx(-0.2, rel=0.25)
    assert moved(arm_of(found, STOCK_AGAIN)) == set()
    assert not any(one.shown for one in fix.drift)
    assert fix.conversion is not None
    assert fix.conversion.verdict == "converted"
    assert fix.hits("fix") == 800


def test_200_us_that_were_injected_are_found() -> None:
    arms = {STOCK: {}, STOCK_AGAIN: {}, "delay": {"sample": NEMOTRON_HOST["sample"] + 0.2}}
    runs = campaign(arms, cycles=1000, seed=2)
    delay = arm_of(attribute(runs, {"delay": frozenset({"delay"})}, {"delay": ("sample",)}), "delay")
    effect = delay.effect(Quantity("sample", "host"))
    assert effect is not None
    assert effect.change is not None
    assert effect.adjusted is not None
    assert effect.change.difference.value == pytest.approx(0.2, rel=0.1)
    assert effect.adjusted < 0.01
    assert moved(delay) == {"cycle.host", "sample.host"}
    assert delay.hits("delay") is None
    assert delay.silent == ()


@pytest.mark.timeout(300)
def test_of_100_campaigns_of_equal_code_few_declare_a_difference() -> None:
    """Stock again is held against stock, any other arm against both: only that can show one span among all."""
    equal: dict[str, dict[str, float]] = {STOCK: {}, STOCK_AGAIN: {}, "same": {}}
    declared = {STOCK_AGAIN: 0, "same": 0}
    for seed in range(100):
        found = attribute(campaign(equal, cycles=40, seed=seed, kernels=None), {}, {})
        for name in declared:
            declared[name] += bool(moved(arm_of(found, name)))
    assert change_of(arm_of(found, "same"), CYCLE).least_p < 0.001
    assert declared[STOCK_AGAIN] <= 12
    assert 0 < declared["same"] <= 12  # 5 expected where the test is exact


def test_a_drift_is_no_difference_in_turns_and_is_one_arm_after_arm() -> None:
    in_turns, one_by_one = (
        campaign({STOCK: {}, STOCK_AGAIN: {}}, drift=0.3, interleaved=interleaved, seed=3)
        for interleaved in (True, False)
    )
    assert not shows_a_difference(in_turns)
    assert shows_a_difference(one_by_one)


def test_a_switch_that_never_fired_is_called_that() -> None:
    runs = campaign({STOCK: {}, "idle": {}}, on={"idle": ("idle",)}, hits={"idle": 0}, seed=4)
    idle = arm_of(attribute(runs, {"idle": frozenset({"idle"})}, {"idle": ("sample",)}), "idle")
    assert idle.silent == ("idle",)
    assert idle.hits("idle") == 0
    assert idle.conversion is not None
    assert idle.conversion.verdict == "never fired"


def test_a_switch_that_was_on_nowhere_never_fired() -> None:
    runs = campaign({STOCK: {}, "idle": {}}, on={"idle": ("another",)}, seed=4)
    idle = arm_of(attribute(runs, {"idle": frozenset({"idle"})}, {"idle": ("sample",)}), "idle")
    assert (idle.silent, idle.hits("idle"), idle.never_fired) == (("idle",), 0, True)
    assert idle.conversion is not None
    assert idle.conversion.verdict == "never fired"


def test_what_a_server_has_by_itself_is_counted_by_nobody_and_not_called_silent() -> None:
    runs = campaign({STOCK: {}, "fix": {}}, on={"fix": ("another",)}, seed=4)
    targets = {"fix": ("sample",)}
    fix = arm_of(attribute(runs, {"fix": frozenset({"fix"})}, targets, uncounted=["fix"]), "fix")
    assert (fix.silent, fix.hits("fix"), fix.never_fired) == ((), None, False)
    assert fix.conversion is not None
    assert fix.conversion.verdict != "never fired"


def overlapping(joint_ms: float, seed: int = 5) -> Attribution:
    """Two optimizations of 0.8 and 0.6 ms that save `joint_ms` together."""
    arms = {
        STOCK: {},
        "one": {METADATA: STOCK_MS - 0.8},
        "two": {METADATA: STOCK_MS - 0.6},
        "all": {METADATA: STOCK_MS - joint_ms},
    }
    runs = campaign(arms, seed=seed)
    sets = {"one": frozenset({"one"}), "two": frozenset({"two"}), "all": frozenset({"one", "two"})}
    return attribute(runs, sets, {"one": (METADATA,), "two": (METADATA,)})


def test_two_that_overlap_save_less_together() -> None:
    found = overlapping(0.9)
    (one,) = found.interactions
    assert one.arm == "all"
    assert one.interaction.value == pytest.approx(-0.5, abs=0.15)
    assert one.shown
    assert one.sum_ms == pytest.approx(1.4, abs=0.15)


def test_two_that_do_not_overlap_show_no_interaction() -> None:
    assert not overlapping(1.4).interactions[0].shown


def test_leaving_one_out_of_all_costs_what_it_saves() -> None:
    fixes = {"a": ("sample", 0.5), "b": ("postprocess", 0.4), "c": ("output.update", 0.3)}
    sets = {name: frozenset({name}) for name in fixes}
    sets |= {f"all but {name}": frozenset(fixes) - {name} for name in fixes} | {"all": frozenset(fixes)}
    less = {span: NEMOTRON_HOST[span] - saved for span, saved in fixes.values()}
    arms = {name: {fixes[one][0]: less[fixes[one][0]] for one in on} for name, on in sets.items()}
    found = attribute(campaign({STOCK: {}, **arms}, seed=6), sets, {name: (span,) for name, (span, _) in fixes.items()})
    assert found.together is found.arm("all")
    for one in found.optimizations:
        assert one.alone is found.arm(one.id)
        assert one.left_out is not None
        assert one.left_out.change is not None
        assert one.left_out.shown
        assert one.left_out.change.difference.value == pytest.approx(fixes[one.id][1], abs=0.12)


def windows(work: dict[str, float], kernels: dict[str, float], first: int) -> list[Recording]:
    return [make_recording(work, kernels, cycles=100, seed=first + index, optimizations=None) for index in range(8)]


def test_host_work_saved_under_a_busy_gpu_is_hidden_by_it() -> None:
    lighter = {**QWEN3_HOST, METADATA: QWEN3_HOST[METADATA] - 0.2}
    runs = {STOCK: windows(QWEN3_HOST, QWEN3_GPU, 0), "fix": windows(lighter, QWEN3_GPU, 50)}
    found = arm_of(attribute(runs, {"fix": frozenset({"fix"})}, {"fix": (METADATA,)}), "fix").conversion
    assert found is not None
    assert (found.verdict, found.side, found.hidden_by) == ("hidden", "host", "gpu")
    assert found.saved is not None
    assert found.saved.difference.value == pytest.approx(-0.2, rel=0.1)


def test_gpu_work_saved_under_a_busy_host_is_hidden_by_it() -> None:
    kernels = {"target.forward": 4.28, "sample": 0.23, "draft.forward": 0.69}
    runs = {
        STOCK: windows(NEMOTRON_HOST, kernels, 0),
        "fix": windows(NEMOTRON_HOST, {**kernels, "draft.forward": 0.3}, 50),
    }
    found = arm_of(attribute(runs, {"fix": frozenset({"fix"})}, {"fix": ("draft.forward",)}), "fix").conversion
    assert found is not None
    assert (found.verdict, found.side, found.hidden_by) == ("hidden", "gpu", "host")


def test_a_saving_below_the_noise_of_the_cycle_cannot_be_told() -> None:
    small = {"output.update": NEMOTRON_HOST["output.update"] - 0.03}
    runs = campaign({STOCK: {}, "fix": small}, seed=8, drift=0.1)
    found = arm_of(attribute(runs, {"fix": frozenset({"fix"})}, {"fix": ("output.update",)}), "fix").conversion
    assert found is not None
    assert found.verdict == "not told"


def test_every_run_beyond_every_run_of_stock() -> None:
    runs = {
        STOCK: windows(NEMOTRON_HOST, {}, 0),
        "fix": windows({**NEMOTRON_HOST, METADATA: STOCK_MS - 1}, {}, 50),
        "half": [*windows({**NEMOTRON_HOST, METADATA: STOCK_MS - 1}, {}, 50)[:7], windows(NEMOTRON_HOST, {}, 90)[0]],
    }
    found = attribute(runs, {"fix": frozenset({"fix"}), "half": frozenset({"half"})}, {})
    fix, half = arm_of(found, "fix").effect(CYCLE), arm_of(found, "half").effect(CYCLE)
    assert fix is not None
    assert half is not None
    assert fix.separated
    assert change_of(arm_of(found, "fix"), CYCLE).separation == pytest.approx(1, abs=0.1)
    assert not half.separated


def test_what_the_load_saw_is_compared_too() -> None:
    runs = campaign({STOCK: {}, "fix": {}}, cycles=20)
    loads = {
        name: [{"itl_ms": base + index / 100, "tokens_per_s": 1000 / base - index} for index in range(8)]
        for name, base in ((STOCK, 5.0), ("fix", 4.0))
    }
    fix = arm_of(attribute(runs, {}, {}, loads), "fix")
    assert change_of(fix, Quantity("itl_ms", "run")).difference.value == pytest.approx(-1)
    assert change_of(fix, Quantity("tokens_per_s", "run")).difference.value == pytest.approx(50)
    assert {"itl_ms", "tokens_per_s"} <= moved(fix)


@pytest.mark.parametrize(
    ("rounds", "sentence"),
    [
        (3, "not enough: 3 runs an arm can show nothing, at least 4 are needed"),
        (4, "not enough: 4 runs an arm cannot show the cycle and the target spans (2 tests), 5 could"),
        (6, "not enough: 6 runs an arm cannot show one span among all (21 tests), 7 could"),
        (7, None),
    ],
)
def test_too_few_rounds_say_so_and_what_would_do(rounds: int, sentence: str | None) -> None:
    arms = {STOCK: {}, STOCK_AGAIN: {}, "fix": {METADATA: STOCK_MS - 1}}
    runs = {name: some[:rounds] for name, some in campaign(arms, seed=9).items()}
    fix = arm_of(attribute(runs, {"fix": frozenset({"fix"})}, {"fix": (METADATA,)}), "fix")
    assert fix.not_enough == sentence
    assert bool(moved(fix)) == (rounds > 4)


def test_an_absent_span_is_absent_not_zero() -> None:
    runs = campaign({STOCK: {}, "fix": {"draft.metadata": 0.04}}, cycles=20)
    effect = arm_of(attribute(runs, {}, {}), "fix").effect(Quantity("draft.metadata", "host"))
    assert effect is not None
    assert (effect.change, effect.absent, effect.shown) == (None, "stock", False)


def test_a_contended_run_is_flagged_and_kept() -> None:
    runs = campaign({STOCK: {}, "fix": {}}, cycles=20)
    flagged = attribute(runs, {}, {}, contended={"fix": [3], STOCK: [0, 1]})
    assert arm_of(flagged, "fix").contended == (3,)
    assert flagged.stock_contended == (0, 1)
    assert arm_of(flagged, "fix").effects == arm_of(attribute(runs, {}, {}), "fix").effects


def test_untouched_spans_are_no_relatives_of_a_target_and_no_waits() -> None:
    names = untouched(frozenset({MAMBA}))
    assert METADATA not in names
    assert {"sample", "draft.propose", "schedule"} <= set(names)
    assert not set(names) & WAITS
    assert not any(PARENT[name] in names for name in names)
    assert outermost(frozenset({MAMBA, METADATA, "draft.forward"})) == (METADATA, "draft.forward")


def test_a_campaign_without_stock_or_recordings_is_an_error() -> None:
    runs = campaign({STOCK: {}, "fix": {}}, windows=2, cycles=20)
    with pytest.raises(SpantraceError, match="no stock arm"):
        attribute({"fix": runs["fix"]}, {"fix": frozenset({"fix"})}, {})
    with pytest.raises(SpantraceError, match="'stock' has no recording") as caught:
        attribute({**runs, STOCK: []}, {}, {})
    assert caught.value.exit_code == 3


def test_a_missing_window_leaves_out_its_round_and_shifts_no_other() -> None:
    """Without the place of its round every later window would be held against one that ran a round earlier."""
    arms = {STOCK: {}, STOCK_AGAIN: {}, "fix": {METADATA: STOCK_MS - 0.4}, "half": {METADATA: STOCK_MS - 0.2}}
    sets = {"fix": frozenset({"fix", "half"}), "half": frozenset({"half"}), "again": frozenset({"fix"})}
    runs = campaign({**arms, "again": {METADATA: STOCK_MS - 0.2}}, cycles=40, drift=0.5, seed=12)
    loads = {name: [{"itl_ms": 5.0 + index} for index in range(8)] for name in runs}
    of_seven = {name: some[1:] for name, some in runs.items()}, {name: some[1:] for name, some in loads.items()}
    targets = {"fix": (METADATA,), "half": (METADATA,)}
    whole = attribute(of_seven[0], sets, targets, of_seven[1])
    one_less = {**runs, "fix": runs["fix"][1:]}, {**loads, "fix": loads["fix"][1:]}
    found = attribute(one_less[0], sets, targets, one_less[1], rounds={"fix": range(1, 8)})
    first, second = arm_of(whole, "fix"), arm_of(found, "fix")
    assert (first.effects, first.conversion, first.not_enough) == (second.effects, second.conversion, second.not_enough)
    assert [one.change for one in first.drift] == [one.change for one in second.drift]
    assert change_of(arm_of(found, "half"), CYCLE).rounds == 8
    assert found.interactions == whole.interactions


def test_a_missing_window_saved_nothing_of_a_span_that_the_fix_removes() -> None:
    with_it = {"draft.metadata": 0.5}
    runs = campaign({STOCK: with_it, STOCK_AGAIN: with_it, "fix": {}}, cycles=40, seed=17)
    of_seven = {name: some[1:] for name, some in runs.items()}
    sets, targets = {"fix": frozenset({"fix"})}, {"fix": ("draft.metadata",)}
    found = attribute({**runs, "fix": runs["fix"][1:]}, sets, targets, rounds={"fix": range(1, 8)})
    one = arm_of(found, "fix").conversion
    assert one is not None
    assert one.saved is not None
    assert (one.verdict, one.saved.rounds) == ("converted", 7)
    assert one == arm_of(attribute(of_seven, sets, targets), "fix").conversion


@pytest.mark.parametrize(("left", "rounds", "runs_of_stock"), [(7, 7, 14), (2, 8, 8)])
def test_an_a_a_arm_that_failed_in_most_rounds_takes_none_from_the_others(
    left: int, rounds: int, runs_of_stock: int
) -> None:
    runs = campaign({STOCK: {}, STOCK_AGAIN: {}, "fix": {METADATA: STOCK_MS - 0.5}}, cycles=20, seed=18)
    runs[STOCK_AGAIN] = runs[STOCK_AGAIN][:left]
    cycle = change_of(arm_of(attribute(runs, {"fix": frozenset({"fix"})}, {}), "fix"), CYCLE)
    assert (cycle.rounds, cycle.units) == (rounds, (runs_of_stock, rounds))


def test_drift_is_no_difference_where_a_window_is_missing() -> None:
    declared = 0
    for seed in range(10):
        runs = campaign({STOCK: {}, STOCK_AGAIN: {}, "same": {}}, cycles=40, drift=0.5, seed=seed, kernels=None)
        runs["same"] = runs["same"][1:]
        same = arm_of(attribute(runs, {"same": frozenset({"same"})}, {}, rounds={"same": range(1, 8)}), "same")
        declared += bool(moved(same))
    assert declared <= 2


def test_an_arm_that_cannot_be_held_against_stock_is_told_and_the_others_are_judged() -> None:
    arms = {STOCK: {}, STOCK_AGAIN: {}, "fix": {METADATA: STOCK_MS - 0.5}, "dead": {}, "late": {}, "short": {}}
    runs = campaign(arms, cycles=20, seed=13)
    runs |= {STOCK: runs[STOCK][:7], "dead": [], "late": runs["late"][7:], "short": [make_recording(cycles=1)] * 8}
    found = attribute(runs, {name: frozenset({name}) for name in list(arms)[2:]}, {}, rounds={"late": [7]})
    assert {one.name: one.why for one in found.lost} == {
        "dead": "has no recording",
        "late": "has no round in common with stock",
        "short": "has no two steady cycles in a row",
    }
    assert [arm.name for arm in found.arms] == [STOCK_AGAIN, "fix"]
    assert arm_of(found, "fix").effect(CYCLE) is not None


def test_stock_again_stands_in_for_a_stock_that_failed_wholly() -> None:
    runs = campaign({STOCK: {}, STOCK_AGAIN: {}, "fix": {METADATA: STOCK_MS - 0.5}}, cycles=20, seed=14)
    found = attribute({**runs, STOCK: []}, {"fix": frozenset({"fix"})}, {})
    assert (found.stock, found.again, [one.name for one in found.lost]) == (STOCK_AGAIN, None, [STOCK])
    assert change_of(arm_of(found, "fix"), CYCLE).difference.value == pytest.approx(-0.5, abs=0.2)


def test_an_arm_that_differs_otherwise_too_keeps_its_optimizations_apart_from_that() -> None:
    arms = {STOCK: {}, STOCK_AGAIN: {}, "env": {}, "a with env": {}, "all with env": {}}
    arms |= {"a": {"sample": 0.7}, "b": {"postprocess": 0.5}, "all": {"sample": 0.7, "postprocess": 0.5}}
    on = {"a": ("a",), "b": ("b",), "all": ("a", "b"), "a with env": ("a",), "all with env": ("a", "b", "c")}
    runs = campaign(arms, on=on, seed=15, cycles=40)
    for run in runs["a with env"]:
        run.header["optimizations"][0]["hits"] = 0
    sets = {name: frozenset(on.get(name, ())) for name in arms}
    apart = {"env": (), "a with env": ("schedule",), "all with env": ()}
    found = attribute(runs, sets, {"a": ("sample",)}, apart=apart)
    silent = arm_of(found, "a with env")
    assert (silent.ids, silent.silent, silent.never_fired) == (("a",), ("a",), True)
    assert silent.targets == ("sample", "schedule")
    assert (arm_of(found, "env").ids, arm_of(found, "env").never_fired) == ((), False)
    assert found.together is found.arm("all")
    alone = {one.id: one.alone and one.alone.name for one in found.optimizations}
    assert alone == {"a": "a", "b": "b", "c": None}
    assert {one.id for one in found.optimizations if one.left_out} == {"a", "b"}
    assert [one.arm for one in found.interactions] == ["all"]


def test_with_too_few_rounds_nothing_converted_and_nothing_overlaps() -> None:
    arms = {STOCK: {}, "one": {METADATA: STOCK_MS - 0.8}, "two": {METADATA: STOCK_MS - 0.6}}
    runs = campaign({**arms, "all": {METADATA: STOCK_MS - 0.9}}, windows=4, seed=16, cycles=40)
    sets = {"one": frozenset({"one"}), "two": frozenset({"two"}), "all": frozenset({"one", "two"})}
    found = attribute(runs, sets, {"one": (METADATA,), "two": (METADATA,)})
    assert {arm.conversion.verdict for arm in found.arms if arm.conversion} == {"not enough"}
    assert found.interactions[0].interaction.excludes_zero
    assert not found.interactions[0].shown


def test_two_sides_take_their_noise_from_the_halves_of_a() -> None:
    runs = campaign({STOCK: {}, "fix": {METADATA: STOCK_MS - 0.5}}, seed=10)
    found = pair(runs[STOCK], runs["fix"])
    assert found.unit == "run"
    assert found.again is not None
    assert change_of(found.again, CYCLE).units == (4, 4)
    assert change_of(found.arms[0], CYCLE).difference.value == pytest.approx(-0.5, abs=0.1)
    every = [value for run in runs["fix"] for value in series(run)[CYCLE] if value == value]
    assert change_of(found.arms[0], CYCLE).b.value == pytest.approx(np.median(every))
    one = pair(runs[STOCK][:1], runs["fix"][:1])
    assert one.unit == "block"
    assert change_of(one.arms[0], CYCLE).units == (9, 9)  # 99 periods are 9 blocks of 10 or more


def test_an_unfinished_round_waits_for_its_end() -> None:
    runs = campaign({STOCK: {}, STOCK_AGAIN: {}, "fix": {METADATA: STOCK_MS - 1}}, seed=11, cycles=40)
    whole = {name: some[:6] for name, some in runs.items()}
    begun = {**whole, STOCK: runs[STOCK][:7], STOCK_AGAIN: runs[STOCK_AGAIN][:7]}
    fixes = [arm_of(attribute(some, {"fix": frozenset({"fix"})}, {}), "fix") for some in (whole, begun)]
    assert change_of(fixes[1], CYCLE).rounds == 6
    assert fixes[0].effects == fixes[1].effects


def test_wander_that_a_round_shares_hides_nothing() -> None:
    """The machine is up to twice as slow at times; the fix saves 5% of the cycle."""
    slow = [1.0, 1.9, 1.2, 2.0, 1.5, 1.0, 1.7, 1.3]
    fixed = {**NEMOTRON_HOST, METADATA: STOCK_MS - 0.36}
    runs = {
        name: [make_recording(work, None, cycles=60, seed=first + index, slowness=slow[index]) for index in range(8)]
        for name, work, first in ((STOCK, NEMOTRON_HOST, 0), (STOCK_AGAIN, NEMOTRON_HOST, 20), ("fix", fixed, 40))
    }
    fix = arm_of(attribute(runs, {"fix": frozenset({"fix"})}, {"fix": (METADATA,)}), "fix")
    relative = change_of(fix, CYCLE).relative
    assert relative is not None
    assert relative.value == pytest.approx(-0.05, abs=0.005)
    assert {"cycle.host", f"{METADATA}.host"} <= moved(fix)
    assert not any(one.shown for one in fix.drift)


def test_a_saving_that_turns_into_waiting_in_part_is_partly_converted() -> None:
    """The host binds by 0.1 ms; of 0.4 ms that it saves the GPU lets 0.1 through."""
    busy = sum(ms for name, ms in NEMOTRON_HOST.items() if PARENT[name] == "cycle") + 0.24
    kernels = {"target.forward": busy - 1.02, "sample": 0.23, "draft.forward": 0.69}
    runs = {
        STOCK: windows(NEMOTRON_HOST, kernels, 0),
        STOCK_AGAIN: windows(NEMOTRON_HOST, kernels, 20),
        "fix": windows({**NEMOTRON_HOST, METADATA: STOCK_MS - 0.4}, kernels, 50),
    }
    found = arm_of(attribute(runs, {"fix": frozenset({"fix"})}, {"fix": (METADATA,)}), "fix").conversion
    assert found is not None
    assert (found.verdict, found.side, found.hidden_by) == ("partly", "host", "gpu")
    assert found.share is not None
    assert found.share.value == pytest.approx(0.25, abs=0.1)


def test_a_parents_own_time_is_what_its_children_leave() -> None:
    found = units([make_recording(cycles=30, noise=0.0)])
    own = STOCK_MS - NEMOTRON_HOST["target.metadata.attention"] - 5 * NEMOTRON_HOST[MAMBA]
    assert found[Quantity(METADATA, "own")] == pytest.approx([own], abs=1e-4)
    assert Quantity("sample", "own") not in found
    assert found[Quantity("acceptance", "run")] == pytest.approx([3.0])
    assert len(units([make_recording(cycles=100)], blocks=True)[CYCLE]) == 9
