"""Plans of campaigns, the order of their windows, and the directory that keeps them."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from spantrace.campaign.order import turns
from spantrace.campaign.plan import AGAIN, ALL, STOCK, Plan, arms_of, parse, read
from spantrace.campaign.store import CUT_OFF, LOG, Store, plan_of
from spantrace.errors import SpantraceError

SMALL = 'optimize = ["a", "b", "c"]\nrepeats = 2\n[built-in]\nbatch = 3\n'


def plan(text: str = SMALL, gates: str = "") -> Plan:
    return parse(text, lambda name: gates)


def test_a_plan_of_three_has_stock_twice_each_alone_all_but_each_and_all() -> None:
    found = {arm.name: arm.on for arm in plan().arms}
    assert found == {
        STOCK: (),
        AGAIN: (),
        "a": ("a",),
        "b": ("b",),
        "c": ("c",),
        "all but a": ("b", "c"),
        "all but b": ("a", "c"),
        "all but c": ("a", "b"),
        ALL: ("a", "b", "c"),
    }
    assert [arm.name for arm in arms_of(["a", "b"], aa=True)] == [STOCK, AGAIN, "a", "b", ALL]
    assert [arm.name for arm in arms_of(["a"], aa=False)] == [STOCK, "a"]


def test_named_arms_come_after_the_generated_ones() -> None:
    both, sync = 'name = "both"\non = ["x", "y"]', 'name = "sync"\narguments = ["--no-async"]'
    text = f'target = "serve"\nserve = {{arguments = ["M"]}}\n[[arm]]\n{both}\n[[arm]]\n{sync}\n'
    arms = plan(text).arms
    assert [arm.name for arm in arms] == [STOCK, AGAIN, "both", "sync"]
    assert arms[2].on == ("x", "y")
    assert [arm.restarts for arm in arms] == [False, False, False, True]
    assert [arm.treatment for arm in arms] == [frozenset(), frozenset(), {"x", "y"}, {"sync"}]


def test_a_plan_is_read_back_and_hashed_by_what_it_means() -> None:
    first = plan()
    assert read(first.text()) == first
    spaced = "# a remark\n" + SMALL.replace(" = ", "=")
    assert plan(spaced).hash == first.hash
    others = [SMALL.replace("2", "4"), SMALL.replace("batch = 3", "batch = 4"), SMALL.replace('"c"', '"d"')]
    hashes = {plan(text).hash for text in others} | {plan('gates = "g"\n' + SMALL, "gates = []").hash}
    assert len(hashes | {first.hash}) == 5


BAD = [
    ("optimise = ['a']", "the plan has no key 'optimise'; choose from target, order,"),
    ("repeats = '4'", "repeats of the plan must be a whole number, not '4'"),
    ("repeats = true", "repeats of the plan must be a whole number, not True"),
    ("optimize = 'a'", "optimize of the plan must be a list, not 'a'"),
    ("optimize = ['a']\nrepeats = 3", "ABBA takes a multiple of 2 repeats, not 3"),
    (
        "optimize = ['a']\norder = 'latin'\nrepeats = 4",
        "a balanced Latin square of 3 arms takes a multiple of 6 repeats",
    ),
    ("optimize = ['a']\norder = 'random'", "the plan has no order 'random'; choose from abba, latin"),
    ("optimize = ['a']\ncycles = 0", "cycles of the plan must be at least 1, not 0"),
    ("optimize = ['a']\ncontended = 0", "contended of the plan is a share of the CPUs above 0 and up to 1, not 0"),
    ("aa = false", "the plan has nothing to compare with stock"),
    ("[[arm]]\non = ['a']", "an arm of the plan has no name"),
    ("[[arm]]\nname = 'x'\nof = ['a']", "arm 1 of the plan has no key 'of'; choose from name, on,"),
    ("[[arm]]\nname = 'x'", "arm 'x' of the plan is stock in all; say what is on in it"),
    ("optimize = ['a']\n[[arm]]\nname = 'a'\non = ['b']", "two arms of the plan are called 'a'"),
    (
        "[[arm]]\nname = 'x'\narguments = ['--y']",
        "arm 'x' of the plan needs a server of its own; the target must be",
    ),
    ("optimize = [", "the plan is no TOML: "),
]


@pytest.mark.parametrize(("text", "why"), BAD, ids=[why for _, why in BAD])
def test_what_a_plan_cannot_mean_is_one_sentence(text: str, why: str) -> None:
    with pytest.raises(SpantraceError) as caught:
        plan(text)
    assert str(caught.value).startswith(why)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arms", [2, 3, 6, 9])
def test_abba_cancels_a_steady_drift(arms: int) -> None:
    order = np.array(turns(arms, 4, "abba"))
    places = [np.flatnonzero(order == arm).sum() for arm in range(arms)]
    assert len(set(places)) == 1
    assert Counter(order.tolist()) == dict.fromkeys(range(arms), 4)


@pytest.mark.parametrize("arms", [2, 3, 4, 5, 9])
def test_a_latin_square_puts_each_arm_equally_often_into_each_place_and_behind_each_other(arms: int) -> None:
    repeats = arms * (1 + arms % 2)
    rows = np.reshape(turns(arms, repeats, "latin"), (repeats, arms))
    for column in rows.T:
        assert set(Counter(column.tolist()).values()) == {repeats // arms}
    followers = Counter(pair for row in rows.tolist() for pair in pairwise(row))
    assert set(followers.values()) == {repeats // arms}
    assert len(followers) == arms * (arms - 1)


def events(directory: Path) -> list[tuple[str, object]]:
    lines = (directory / LOG).read_text().splitlines()
    return [(entry["event"], entry.get("window")) for entry in map(json.loads, lines)]


def finish(store: Store, number: int) -> None:
    window = store.windows[number - 1]
    store.started(window)
    store.path(window).write_text("recording")
    store.finished(window, {"code": "c"})


def test_a_directory_keeps_what_is_finished_and_counts_what_failed(tmp_path: Path) -> None:
    store = Store(tmp_path / "c", plan())
    assert len(store.missing()) == 18
    assert not (tmp_path / "c").exists()
    with store:
        finish(store, 1)
        store.started(store.windows[1])
        store.failed(store.windows[1], "it broke")
        store.started(store.windows[2])
        store.stopped(store.windows[2])
        store.started(store.windows[3])
    with Store(tmp_path / "c", plan()) as again:
        assert [window.number for window in again.missing()] == list(range(2, 19))
        assert [(one.window, one.arm, one.why) for one in again.failures()] == [
            (2, AGAIN, "it broke"),
            (4, "b", CUT_OFF),
        ]
        finish(again, 2)
        assert again.missing()[0].number == 3
        assert len(again.failures()) == 2
    assert plan_of(tmp_path / "c") == plan()
    assert events(tmp_path / "c")[:3] == [("created", None), ("started", 1), ("done", 1)]


def test_a_finished_window_whose_recording_is_gone_is_missing(tmp_path: Path) -> None:
    with Store(tmp_path, plan()) as store:
        finish(store, 1)
        store.path(store.windows[0]).unlink()
        assert store.missing()[0].number == 1


def test_a_log_that_was_cut_within_a_line_goes_on(tmp_path: Path) -> None:
    with Store(tmp_path, plan()) as store:
        finish(store, 1)
    with (tmp_path / LOG).open("a") as log:
        log.write('{"at": "2026')
    with Store(tmp_path, plan()) as store:
        assert store.missing()[0].number == 2
        finish(store, 2)
    assert events(tmp_path)[-1] == ("done", 2)


def test_the_gates_are_written_down_before_the_first_window_and_cannot_change(tmp_path: Path) -> None:
    gated = plan('gates = "g"\n' + SMALL, gates='gates = ["cycle < 0%"]')
    with Store(tmp_path, gated) as store:
        assert (tmp_path / "gates.toml").read_text() == 'gates = ["cycle < 0%"]'
        assert len(store.created()["gates"]) == 64
        finish(store, 1)
        assert store.created()["at"] <= store.first_started()
    with pytest.raises(SpantraceError, match=r"the gates of .* were written down before its first window"):
        Store(tmp_path, plan('gates = "g"\n' + SMALL, gates='gates = ["cycle < 1%"]'))


def test_another_plan_another_process_or_a_damaged_log_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path, plan()):
        with pytest.raises(SpantraceError, match="another process runs the campaign in"), Store(tmp_path, plan()):
            pass
        with pytest.raises(SpantraceError, match=r"holds a campaign of plan \w{6}, this is \w{6}; choose another"):
            Store(tmp_path, plan(SMALL.replace("2", "4")))
    (tmp_path / LOG).write_text("nonsense\n")
    with pytest.raises(SpantraceError, match=re.escape(f"{tmp_path / LOG} is damaged")):
        Store(tmp_path, plan())
    with pytest.raises(SpantraceError, match=r"holds no campaign \(plan.json: No such file or directory\)"):
        plan_of(tmp_path / "elsewhere")
