"""An attribution and gates as a person reads them."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest
from campaigns import campaign, counts
from recordings import NEMOTRON_HOST, make_recording
from rich.console import Console

from analyzers.attribution import STOCK, STOCK_AGAIN, Attribution, attribute
from analyzers.economics import own_load
from analyzers.gates import judge, parse
from spantrace.cli.attributing import attribution_document
from spantrace.cli.main import run
from spantrace.cli.plotting import check_picture, plot
from spantrace.errors import SpantraceError
from spantrace.loading import load
from spantrace.recording import Recording
from spantrace.tables import Document, markdown, to_csv, to_json
from spantrace.terminal import lines, show

METADATA = "target.metadata"
ARMS = {
    STOCK: {},
    STOCK_AGAIN: {},
    "faster": {METADATA: NEMOTRON_HOST[METADATA] - 0.8},
    "other": {METADATA: NEMOTRON_HOST[METADATA] - 0.6},
    "idle": {},
    "all": {METADATA: NEMOTRON_HOST[METADATA] - 0.9},
}
SETS = {"faster": ("faster",), "other": ("other",), "idle": ("idle",), "all": ("faster", "idle", "other")}
GATES = "gates = ['cycle < -5%', 'target.metadata.host <= 10% of base', 'cycle < -0.01%', 'acceptance == 3.00 +- 0.01']"


@pytest.fixture(scope="module")
def runs() -> dict[str, list[Recording]]:
    return campaign(ARMS, on=SETS, hits={"faster": 9, "other": 9, "idle": 0}, seed=1)


@pytest.fixture(scope="module")
def found(runs: dict[str, list[Recording]]) -> Attribution:
    loads = {name: [{"itl_ms": 2.0, "tokens_per_s": 500.0 - index} for index in range(8)] for name in ARMS}
    sets = {name: frozenset(on) for name, on in SETS.items()}
    targets = {"faster": (METADATA,), "other": (METADATA,), "idle": ("sample",)}
    return attribute(runs, sets, targets, loads, {"other": [3]})


@pytest.fixture(scope="module")
def document(found: Attribution) -> Document:
    return attribution_document(found, judge(parse(GATES), found))


def text(document: Document, width: int = 100) -> str:
    return "\n".join(line.plain for line in lines(document, width, bars=False, cut=True))


def test_the_verdict_comes_first_and_says_what_all_did(document: Document) -> None:
    first = text(document).splitlines()
    assert first[0].startswith("6 arms | 8 runs each | A/A +-")
    assert first[2].startswith("ALL -1")
    assert "ms a cycle, stock 7.1" in first[2]


def test_a_row_for_every_arm_and_under_it_targets_load_and_untouched_spans(document: Document) -> None:
    labels = [row.label for row in document.table.rows]
    start = labels.index("faster")
    assert labels[start : start + 6] == [
        "faster", "  target.metadata", "  inter-token", "  tokens/s", "  untouched spans", "  GPU untouched spans",
    ]  # fmt: skip
    row = next(line for line in text(document).splitlines() if line.startswith("faster"))
    assert row.split()[-1] == "yes"
    assert re.search(r"faster saved 0\.[78]\d ms of host time, and the host was critical", text(document, 120))


def test_a_switch_that_never_fired_is_no_saving_of_0(document: Document) -> None:
    row = next(row for row in document.table.rows if row.label == "idle")
    assert (row.cells["shown"], row.cells["converted"]) == ("never fired", "never fired")
    assert "idle was on and never fired: 240 calls fell back, most because the batch is too small" in text(
        document, 120
    )


def test_the_overlap_the_separation_and_the_contended_run_are_told(document: Document) -> None:
    shown = " ".join(text(document).split())
    assert "all: they overlap, together" in shown
    assert "every cycle median of all lies beyond every one of stock, by" in shown
    assert "1 of 8 runs of other | kept in all figures" in shown
    assert "drift none shown" in shown


def test_every_missed_gate_has_a_line_for_its_disposition(document: Document) -> None:
    shown = text(document, 120)
    assert "PASS  cycle < -5%  in all: -1" in shown
    assert "FAIL  target.metadata.host <= 10% of base  in all: -3" in shown
    assert "INCONCLUSIVE  cycle < -0.01%  in all" in shown
    assert len(re.findall(r"^disposition +____$", shown, re.MULTILINE)) == 2
    assert markdown(document).count("- disposition: ____\n") == 2


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(document: Document, width: int) -> None:
    out = io.StringIO()
    show(document, Console(file=out, width=width, force_terminal=True, highlight=False, soft_wrap=True))
    assert max(len(line) for line in text(document, width).splitlines()) <= width
    assert "\x1b[" in out.getvalue()


def test_json_has_every_span_of_every_arm_once(document: Document, found: Attribution) -> None:
    data = json.loads(to_json(document))
    fast = next(arm for arm in data["arms"] if arm["name"] == "faster")
    assert len(fast["effects"]) == len(found.arms[1].effects) > 20
    assert (data["again"], data["together"], data["unit"]) == (STOCK_AGAIN, "all", "round")
    assert [gate["outcome"] for gate in data["gates"]] == ["pass", "fail", "inconclusive", "pass"]
    assert data["optimizations"][0]["alone"] == "faster"
    assert {gate["disposition"] for gate in data["gates"]} == {None}


def test_csv_and_markdown(document: Document) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(document))))
    row = next(row for row in rows if (row["arm"], row["quantity"], row["where"]) == ("faster", METADATA, "host"))
    assert float(row["difference"]) == pytest.approx(-0.8, rel=0.1)
    assert float(row["change_low"]) < float(row["change"]) < float(row["change_high"])
    assert "| arm | stock ms | arm ms | change | 95% interval | p | left out | converted |" in markdown(document)


def test_too_few_runs_are_the_verdict(runs: dict[str, list[Recording]]) -> None:
    few = attribute({name: some[:3] for name, some in runs.items()}, {"faster": frozenset({"faster"})}, {})
    shown = text(attribution_document(few))
    assert "NOT ENOUGH" in shown
    assert "at least 4 are needed" in shown


def test_too_few_runs_are_told_of_their_arm_and_in_one_number(runs: dict[str, list[Recording]]) -> None:
    targets = {"faster": (METADATA,), "other": (METADATA,)}
    sets = {name: frozenset(on) for name, on in SETS.items() if name != "idle"}
    few = {name: some[:1] if name == "faster" else some[:4] for name, some in runs.items() if name != "idle"}
    facts = {fact.label: fact.parts for fact in attribution_document(attribute(few, sets, targets)).facts}
    assert facts["not enough"] == (
        "faster: 1 run an arm can show nothing, at least 4 are needed",
        "other, all: 4 runs an arm cannot show the cycle and the target spans (2 tests), 5 could",
    )


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        (2, ("not enough: the runs of stock again, faster can show none (4 tests)",)),
        (6, ("none shown in the spans that an arm does not touch (4 tests)",
             "not enough: the runs of stock again can show none (4 tests)")),
        (8, ("none shown in the spans that an arm does not touch (4 tests)",)),
    ],
)  # fmt: skip
def test_runs_that_can_show_no_drift_are_not_said_to_show_none(
    runs: dict[str, list[Recording]], rounds: int, said: tuple[str, ...]
) -> None:
    some = {name: runs[name][:rounds] for name in (STOCK, STOCK_AGAIN, "faster")}
    found = attribute(some, {"faster": frozenset({"faster"})}, {"faster": (METADATA,)})
    assert {fact.label: fact.parts for fact in attribution_document(found).facts}["drift"] == said


def test_too_few_runs_claim_nothing(runs: dict[str, list[Recording]]) -> None:
    sets = {name: frozenset(on) for name, on in SETS.items()} | {"idle": frozenset({"faster", "idle"})}
    targets = {"faster": (METADATA,), "other": (METADATA,)}
    few = attribution_document(attribute({name: some[:3] for name, some in runs.items()}, sets, targets))
    cells = [row.cells for row in few.table.rows]
    assert {one.get("converted") for one in cells} <= {None, "A/A", "too few", "never fired"}
    assert {one.get("without") for one in cells} <= {None, "~"}
    assert any(one.get("left_out") for one in cells)
    assert "they" not in " ".join(part for fact in few.facts if fact.label == "interaction" for part in fact.parts)


def test_an_arm_that_failed_wholly_has_a_row_and_an_entry(runs: dict[str, list[Recording]]) -> None:
    sets = {name: frozenset(on) for name, on in SETS.items()}
    found = attribute({**runs, "all": []}, sets, {})
    document = attribution_document(found, judge(parse(GATES), found))
    shown = text(document, 120)
    assert "6 arms | 0 to 8 runs each" in shown
    assert re.search(r"^all +- +- +failed +has no recording", shown, re.MULTILINE)
    assert "INCONCLUSIVE  cycle < -5%  in all: all has no recording" in shown
    assert json.loads(to_json(document))["lost"] == [{"name": "all", "why": "has no recording"}]
    nothing = attribute({STOCK: runs[STOCK], "all": []}, sets, {})
    assert text(attribution_document(nothing)).count("NOTHING TO COMPARE") == 1


@pytest.fixture(scope="module")
def two_each(runs: dict[str, list[Recording]]) -> dict[str, list[Recording]]:
    """Two runs of each arm, which are drawn sooner."""
    return {name: some[:2] for name, some in runs.items()}


def test_a_plot_shows_the_arms(found: Attribution, two_each: dict[str, list[Recording]], tmp_path: Path) -> None:
    plot(found, two_each, tmp_path / "arms.png")
    assert (tmp_path / "arms.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SpantraceError, match="cannot draw into"):
        plot(found, two_each, tmp_path / "nowhere" / "arms.png")
    with pytest.raises(SpantraceError, match="cannot draw into"):
        plot(found, two_each, tmp_path / "arms.nonsense")
    plot(found, {**two_each, "idle": [make_recording(cycles=1)], "all": []}, tmp_path / "arms.png")


@pytest.mark.parametrize("name", ["arms.png", "arms.PDF", "arms.svg", "arms.jpg"])
def test_a_picture_may_be_drawn_and_drawn_over(
    found: Attribution, two_each: dict[str, list[Recording]], tmp_path: Path, name: str
) -> None:
    check_picture(tmp_path / name)
    plot(found, two_each, tmp_path / name)
    check_picture(tmp_path / name)


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.png").write_text("a,b\n1,2\n")
    for name, why in (("arms.csv", "suffix"), ("no/arms.png", "no folder"), ("data.png", "is there and no picture")):
        with pytest.raises(SpantraceError, match=why):
            check_picture(tmp_path / name)


def test_without_matplotlib_the_plot_says_what_to_install(
    found: Attribution, runs: dict[str, list[Recording]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SpantraceError, match=r"pip install 'spantrace\[plot\]'"):
        plot(found, runs, tmp_path / "arms.png")


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    work = {**NEMOTRON_HOST, METADATA: 1.06}
    paths = tmp_path / "stock.spantrace", tmp_path / "fixed.spantrace"
    for path, recording in zip(paths, (make_recording(seed=1), make_recording(work, seed=2)), strict=True):
        recording.save(path)
    return paths


@pytest.mark.parametrize(
    ("gates", "code", "word"),
    [
        ("gates = ['cycle < -20%', 'target.metadata.host <= 1.60 ms']", 0, "PASS"),
        ("gates = ['itl < -20%', 'tokens_per_s > 20%']", 0, "PASS"),
        ("gates = ['itl < -90%']", 1, "FAIL"),
        ("gates = ['cycle < -20%', 'cycle < -90%']", 1, "FAIL"),
        ("gates = ['cycle < -20%', 'ttft < -4%']", 3, "INCONCLUSIVE"),
    ],
)
def test_compare_judges_gates(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, gates: str, code: int, word: str
) -> None:
    (tmp_path / "gates.toml").write_text(gates)
    assert run(["compare", *map(str, sides), "--gate", str(tmp_path / "gates.toml")]) == code
    out = capsys.readouterr().out
    assert word in out
    assert out.startswith("stock -> fixed")
    assert run(["compare", *map(str, sides), "--gate", str(tmp_path / "gates.toml"), "--format", "json"]) == code
    data = json.loads(capsys.readouterr().out)
    assert data["gates"][-1]["outcome"] == word.lower()
    assert len(data["gates_sha256"]) == 64


def test_compare_tells_inter_token_latency_as_ab_does_and_the_first_token_not_at_all(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gates.toml").write_text("gates = ['itl < 100 ms', 'tokens_per_s > 1', 'ttft < 100 ms']")
    folders = [tmp_path / side.stem for side in sides]
    for folder, side in zip(folders, sides, strict=True):
        folder.mkdir()
        for number in range(4):
            (folder / f"{number}.spantrace").write_bytes(side.read_bytes())
    known = own_load(load(sides[1]))[0]
    for names in (sides, folders):
        assert run(["compare", *map(str, names), "--gate", str(tmp_path / "gates.toml"), "--format", "json"]) == 3
        itl, rate, first = (gate["reason"] for gate in json.loads(capsys.readouterr().out)["gates"])
        assert float(itl.split()[0]) == pytest.approx(known["itl_ms"], rel=0.02)
        assert float(rate.split()[0]) == pytest.approx(known["tokens_per_s"], rel=0.02)
        assert first == "ttft_ms has no value in any arm; it comes from what a campaign's load measures"


def test_the_value_of_a_gate_is_the_value_of_the_table(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gates.toml").write_text("gates = ['cycle < 100 ms', 'target.metadata.host <= 1.60 ms']")
    assert run(["compare", *map(str, sides), "--gate", str(tmp_path / "gates.toml"), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    for gate, span in zip(data["gates"], ("cycle", METADATA), strict=True):
        row = next(row for row in data["rows"] if (row["name"], row["track"]) == (span, "host"))
        low, high = row["b"]["low"], row["b"]["high"]
        assert gate["reason"].startswith(f"{row['b']['value']:.3f} ms (95% interval {low:.3f} ms .. {high:.3f} ms)")


def test_a_recording_called_stock_can_be_b(sides: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "gates.toml").write_text("gates = ['cycle < -20%']")
    backwards = [str(side) for side in reversed(sides)]
    assert run(["compare", *backwards, "--gate", str(tmp_path / "gates.toml")]) == 1


def test_a_switch_of_b_that_never_fired_passes_no_gate(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make_recording(seed=3, optimizations=[counts("idle", 0)]).save(sides[1])
    (tmp_path / "gates.toml").write_text("gates = ['cycle < 1000 ms']")
    assert run(["compare", *map(str, sides), "--gate", str(tmp_path / "gates.toml")]) == 3
    assert "INCONCLUSIVE  cycle < 1000 ms  in fixed: idle never fired" in capsys.readouterr().out


def test_a_wrong_gates_file_is_one_sentence_before_anything_is_printed(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = tmp_path / "gates.toml"
    for content in ("gates = ['cycle < -120%']", "gate = []"):
        wrong.write_text(content)
        assert run(["compare", *map(str, sides), "--gate", str(wrong)]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert run(["compare", *map(str, sides), "--gate", str(tmp_path / "none.toml")]) == 2
    assert "cannot read the gates" in capsys.readouterr().err
