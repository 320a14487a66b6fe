"""Plans of campaigns, the order of their windows, and the directory that keeps them."""

from __future__ import annotations

import json
import re
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import make_recording

from spantrace.campaign.order import MOST_CYCLES, turns
from spantrace.campaign.parsing import arms_of, parse, read
from spantrace.campaign.plan import AGAIN, ALL, STOCK, Plan
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
    assert [arm.name for arm in arms_of(["a", "b", "c"], aa=False, leave_one_out=False)] == [STOCK, "a", "b", "c", ALL]


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


def held(line: str) -> str:
    return f"[[arm]]\nname = 'x'\n{line}"


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
    ("optimize = ['a']\ncycles = 1", "cycles of the plan must be at least 2, not 1"),
    (f"optimize = ['a']\ncycles = {MOST_CYCLES + 1}", f"cycles of the plan must be at most {MOST_CYCLES}, not"),
    ("optimize = ['a']\nrepeats = 0", "repeats of the plan must be at least 1, not 0"),
    ("optimize = ['a']\nrepeats = 10002", "repeats of the plan must be at most 10000, not 10002"),
    ("optimize = ['a']\ncontended = 0", "contended of the plan is a share of the CPUs above 0 and up to 1, not 0"),
    ("aa = false", "the plan has nothing to compare with stock"),
    ("leave-one-out = 0", "leave-one-out of the plan must be true or false, not 0"),
    ("load = {reset = 'no'}", "reset of [load] must be true or false, not 'no'"),
    ("", "the plan has nothing to compare with stock"),
    ("optimize = []", "the plan has nothing to compare with stock"),
    ("[[arm]]\nname = ''\non = ['a']", "an arm of the plan is called ''; a name has 1 to 100 characters"),
    ("[[arm]]\nname = ' '\non = ['a']", "an arm of the plan is called ' '; a name has 1 to 100 characters"),
    ('[[arm]]\nname = "a\\nb"\non = ["a"]', "an arm of the plan is called 'a\\nb'; a name has 1 to 100 characters"),
    (f"[[arm]]\nname = '{'n' * 101}'\non = ['a']", f"an arm of the plan is called '{'n' * 100}'; a name has 1 to"),
    (
        "aa = false\noptimize = ['a']\n[[arm]]\nname = 'stock again'\non = ['a']",
        "arm 'stock again' of the plan is not stock",
    ),
    (held("delay = true"), "delay of arm 1 of the plan must be a table, not True"),
    (held("delay = {schedule = true}"), "arm 'x' of the plan delays by True; it must be 0.001 to 5000 us"),
    (held("delay = {schedule = 0.0004}"), "arm 'x' of the plan delays by 0.0004; it must be 0.001 to 5000 us"),
    (held("delay = {schedule = 5001}"), "arm 'x' of the plan delays by 5001; it must be 0.001 to 5000 us"),
    (held(f"delay = {{schedule = {10**400}}}"), "arm 'x' of the plan delays by 1000"),
    (held("delay = {'output.wait' = 9}"), "arm 'x' of the plan delays 'output.wait', which is a wait and has no work"),
    (held("delay = {wait = 9}"), "arm 'x' of the plan delays 'wait', which is no span of the cycle"),
    (held("delay = {schedule = 9, sample = 9}"), "arm 'x' of the plan delays 2 spans; an arm can delay one"),
    ("target = ':1'\noptimize = ['a']\nload = {command = ['x', 5]}", "command of [load] must be a list of texts; 5 is"),
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


@pytest.mark.parametrize(("text", "why"), BAD)
def test_what_a_plan_cannot_mean_is_one_sentence(text: str, why: str) -> None:
    with pytest.raises(SpantraceError) as caught:
        plan(text)
    assert str(caught.value).startswith(why)
    assert "\n" not in str(caught.value)


def test_a_servers_environment_is_texts_as_an_arms_is() -> None:
    table = 'target = "serve"\nserve = {arguments = ["M"], environment = {A = 1, B = "x"}}\n'
    found = plan(table + '[[arm]]\nname = "x"\nenvironment = {A = 2}\n')
    assert found.serve["environment"] == {"A": "1", "B": "x"}
    assert found.arms[-1].environment == {"A": "2"}


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


RESULT = {"code": "c", "seconds": 1.0, "others": 0.0, "load": {}, "notes": []}


def finish(store: Store, number: int, **about: Any) -> None:
    """A window with a recording that says what it is of, or what `about` says."""
    store.create()
    window = store.windows[number - 1]
    store.started(window)
    right = {"plan": store.plan.hash, "arm": window.arm.name, "window": number, "code": "c"}
    make_recording(cycles=3, campaign={**right, **about}).save(store.path(window))
    store.finished(window, RESULT)


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
        store.create()
        assert (tmp_path / "gates.toml").read_text() == 'gates = ["cycle < 0%"]'
        assert len(store.created()["gates"]) == 64
        finish(store, 1)
        assert store.created()["at"] <= store.first_started()
    with pytest.raises(SpantraceError, match=r"the gates of .* were written down before its first window"):
        Store(tmp_path, plan('gates = "g"\n' + SMALL, gates='gates = ["cycle < 1%"]'))


def test_another_plan_or_another_process_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path, plan()) as store:
        store.create()
        with pytest.raises(SpantraceError, match="another process runs the campaign in"), Store(tmp_path, plan()):
            pass
        with pytest.raises(SpantraceError, match=r"holds a campaign of plan \w{6}, this is \w{6}; choose another"):
            Store(tmp_path, plan(SMALL.replace("2", "4")))
    with pytest.raises(SpantraceError, match=r"holds no campaign \(plan.json: No such file or directory\)"):
        plan_of(tmp_path / "elsewhere")


def test_a_directory_to_which_nothing_was_added_is_left_as_it_was(tmp_path: Path) -> None:
    for there in (False, True):
        with Store(tmp_path / "c", plan()):
            assert (tmp_path / "c" / LOG).exists()
        assert (tmp_path / "c").exists() is there
        (tmp_path / "c").mkdir(exist_ok=True)
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "Expecting value: line 1 column 1 (char 0)"),
        (b"\xff{}", "'utf-8' codec can't decode byte 0xff"),
        (b"[]", "line 3 is no object"),
        (b"{}", "line 3 has no at"),
        (b'{"at": "x", "event": "done"}', "line 3 has no window"),
        (b'{"at": "x", "event": "started", "window": "1", "arm": "stock"}', "window of line 3 must be a whole number"),
        (b'{"at": "x", "event": "started", "window": 999, "arm": "stock"}', "the plan has no window 999 of 'stock'"),
        (b'{"at": "x", "event": "started", "window": 1, "arm": "b"}', "the plan has no window 1 of 'b'"),
        (b'{"at": "x", "event": "done", "window": 1, "arm": "stock", "code": "c", "seconds": 1, "others": 0,'
         b' "load": {"itl_ms": "x"}, "notes": []}', "itl_ms of the load of line 3 must be a number, not 'x'"),
    ],
)  # fmt: skip
def test_a_damaged_log_is_one_sentence(line: bytes, why: str, tmp_path: Path) -> None:
    with Store(tmp_path, plan()) as store:
        store.create()
        store.started(store.windows[0])
    with (tmp_path / LOG).open("ab") as log:
        log.write(line + b"\n")
    with pytest.raises(SpantraceError, match=re.escape(f"{tmp_path / LOG} is damaged ({why}")):
        Store(tmp_path, plan())


@pytest.mark.parametrize(
    "line", ["[]", '{"event": "done"}', '{"at": "x", "event": "stopped", "window": 1, "arm": "stock"}']
)
def test_a_log_that_does_not_begin_as_one_is_damaged(line: str, tmp_path: Path) -> None:
    (tmp_path / LOG).write_text(line + "\n")
    with pytest.raises(SpantraceError, match=re.escape(f"{tmp_path / LOG} is damaged (")):
        Store(tmp_path, plan())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"repeats": "x"}, "repeats of the plan must be a whole number, not 'x'"),
        ({"arms": []}, "the plan has nothing to compare with stock; name optimizations or [[arm]]s"),
        ({"arms": [5]}, "arm 1 of the plan must be a table"),
        ({"arms": [{"name": 5}]}, "name of arm 1 of the plan must be a text, not 5"),
        ({"speed": 1}, "the plan has no key 'speed'; choose from target"),
    ],
)
def test_a_damaged_plan_is_one_sentence(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(plan().text()) | changed))
    with pytest.raises(SpantraceError, match=re.escape(f"{path} is damaged ({why}")):
        plan_of(tmp_path)


@pytest.mark.parametrize("text", [b"", b"5", b"{", b"\xff", b"[1]"])
def test_a_plan_that_is_none_is_damaged(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(text)
    with pytest.raises(SpantraceError, match=re.escape(f"{tmp_path / 'plan.json'} is damaged (")):
        plan_of(tmp_path)


@pytest.mark.parametrize("about", [{}, {"plan": "other"}, {"arm": "b"}, {"window": 2}, {"code": "d"}])
def test_a_window_of_something_else_does_not_mix_with_the_others(about: dict[str, Any], tmp_path: Path) -> None:
    with Store(tmp_path, plan()) as store:
        finish(store, 1, **about)
        if not about:
            assert len(store.recording(1).cycles) == 3
            return
        path = re.escape(str(store.path(store.windows[0])))
        with pytest.raises(SpantraceError, match=f"^{path} is not the recording of window 1 of this campaign; "):
            store.recording(1)


def test_what_a_killed_campaign_left_on_in_a_server_is_known_until_it_is_put_back(tmp_path: Path) -> None:
    with Store(tmp_path, plan()) as store:
        store.create()
        assert store.left(7) is None
        store.switched(7, ["a"])
    assert Store(tmp_path, plan()).left(7) is None, "nothing is to be done by who does not hold the directory"
    with Store(tmp_path, plan()) as store:
        assert (store.left(7), store.left(8)) == (["a"], None)
        store.restored()
        assert store.left(7) is None


def test_a_disk_without_room_is_one_sentence_and_the_log_stays_whole(tmp_path: Path) -> None:
    with Store(tmp_path, plan()) as store:
        finish(store, 1)
        size = (tmp_path / LOG).stat().st_size
        with room_for(size + 20), pytest.raises(SpantraceError, match=re.escape(f"cannot write {tmp_path / LOG}: ")):
            store.started(store.windows[1])
        assert (tmp_path / LOG).stat().st_size == size
        finish(store, 2)
    assert Store(tmp_path, plan()).missing()[0].number == 3


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """With no room for a file of more bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
