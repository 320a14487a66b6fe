"""`spantrace report` and `compare` as a person runs them."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recordings import NEMOTRON_HOST, QWEN3_GPU, QWEN3_HOST, make_recording

from spantrace.cli.group import COMMANDS
from spantrace.cli.main import run
from spantrace.recording import Recording

FIXED = {**NEMOTRON_HOST, "target.metadata": 1.06, "target.metadata.mamba": 0.02, "draft.metadata": 0.04}


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    return saved(make_recording(seed=1), tmp_path / "stock.spantrace")


def saved(recording: Recording, path: Path) -> Path:
    recording.save(path)
    return path


def spantrace(*arguments: str | Path) -> int:
    return run([str(argument) for argument in arguments])


def test_report_says_who_bounds_the_cycle(stock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert spantrace("report", stock) == 0
    out = capsys.readouterr().out
    assert "nemotron-h-30b-a3b + dflash dflash-nemotron K=2 | vLLM 0.33.0, V2 runner, FULL graphs" in out
    assert "H200, 1980 MHz, alone" in out
    assert "400 steady decode cycles | recorded 2026-11-29 12:53" in out
    assert "HOST-BOUND  The host works 6.9" in out
    assert "1 ms less GPU work wins nothing." in " ".join(out.split())
    assert "length 3.00" in out
    assert "lost rows 0" in out
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_report_of_the_other_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spantrace("report", saved(make_recording(QWEN3_HOST, QWEN3_GPU), tmp_path / "q.spantrace"))
    assert "1 ms less host work wins nothing." in " ".join(capsys.readouterr().out.split())
    spantrace("report", saved(make_recording(kernels=None), tmp_path / "cpu.spantrace"))
    out = capsys.readouterr().out
    assert "HOST ONLY" in out
    assert "no GPU, Xeon 8480" in out
    assert "GPU ms" not in out


def test_json_alone_is_on_stdout(stock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert spantrace("report", stock, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    assert found["co_saturation"]["verdict"] == "host-bound"
    assert found["co_saturation"]["host_win_ms"] == 1.0
    assert {"header", "kinds", "spans", "economics", "trust"} <= set(found)
    metadata = next(row for row in found["spans"] if row["name"] == "target.metadata")
    assert metadata["gpu"] is None
    assert metadata["host"]["median"]["value"] == pytest.approx(2.75, abs=0.05)


def test_csv_and_markdown(stock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert spantrace("report", stock, "--format", "csv") == 0
    rows = {row["span"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows["target.metadata"]["gpu_median_ms"] == ""
    assert float(rows["cycle"]["gpu_share"]) == pytest.approx(0.733, abs=0.01)
    assert spantrace("report", stock, "--format", "markdown") == 0
    assert capsys.readouterr().out.startswith("**HOST-BOUND.** The host works 6.9")


def test_a_baseline_gives_the_break_even_length(
    stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = {"method": None, "drafter": None, "num_speculative_tokens": 0}
    base = saved(make_recording(drafts=0, server=server, seed=3), tmp_path / "base.spantrace")
    assert spantrace("report", stock, "--baseline", base) == 0
    assert "break-even length 1.00" in capsys.readouterr().out
    other = saved(make_recording(drafts=0, server={**server, "model": "other"}), tmp_path / "other.spantrace")
    assert spantrace("report", stock, "--baseline", other) == 3
    assert "another configuration: model: nvidia/nemotron-h-30b-a3b against other" in capsys.readouterr().err


def test_a_kind_that_no_cycle_has(stock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert spantrace("report", stock, "--kind", "prefill") == 2
    assert "it has 400 steady" in capsys.readouterr().err
    assert spantrace("report", stock, "--kind", "all") == 0
    assert spantrace("report", stock, "--kind", "nonsense") == 2


def test_a_doubtful_recording_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    processes = [{"role": "engine", "lost": 12, "hook_errors": 0, "missing": ["a.b.C.d"]}]
    path = saved(make_recording(partial=True, processes=processes), tmp_path / "d.spantrace")
    assert spantrace("report", path) == 0
    out = capsys.readouterr().out
    assert "DO NOT QUOTE  12 rows were lost" in out
    assert "cut off" in out
    assert "not hooked on this vLLM: a.b.C.d" in out
    assert spantrace("report", path, "--format", "json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["trust"]["lost"] == 12
    assert "spantrace: DO NOT QUOTE: 12 rows were lost" in captured.err


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x93\x01\x02\x03"])
def test_what_is_not_a_recording_is_refused_in_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.spantrace"
    path.write_bytes(content)
    assert spantrace("report", path) == 2
    err = capsys.readouterr().err
    assert err.startswith("spantrace: ")
    assert err.count("\n") == 1
    assert spantrace("report", tmp_path / "missing.spantrace") == 2


def test_compare_shows_the_fix(stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    optimizations = [{"id": "uniform-decode-metadata", "hits": 5000, "fallbacks": 0}]
    fixed = saved(make_recording(FIXED, seed=2, optimizations=optimizations), tmp_path / "fixed.spantrace")
    assert spantrace("compare", stock, fixed) == 0
    out = capsys.readouterr().out
    assert "stock -> fixed | treatment: +uniform-decode-metadata" in out
    assert "on in fixed  uniform-decode-metadata  5,000 hits, 0 fallbacks" in out
    assert "CYCLE -22.9%" in out
    assert re.search(r"^ +Mostly .* -\d\.\d+ ms", out, re.MULTILINE)
    assert "absent in stock" in out
    assert " ~ " in out
    assert spantrace("compare", stock, fixed, "--format", "json") == 0
    rows = {(row["track"], row["name"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["host", "draft.metadata"]["a"] is None
    assert rows["gpu", "target.forward"]["delta"] == pytest.approx(0, abs=0.01)
    assert spantrace("compare", stock, fixed, "--format", "csv") == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert next(row for row in table if row["span"] == "draft.metadata")["absent"] == "A"


def test_compare_refuses_another_configuration_unless_told(
    stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = saved(make_recording(server={"vllm": "0.26.0"}), tmp_path / "other.spantrace")
    assert spantrace("compare", stock, other) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "vllm: 0.33.0 against 0.26.0" in captured.err
    assert spantrace("compare", stock, other, "--vary", "vllm, drafter") == 0
    assert "treatment: vllm 0.33.0 -> 0.26.0" in capsys.readouterr().out
    assert spantrace("compare", stock, other, "--force") == 0
    assert spantrace("compare", stock, other, "--vary", "nonsense") == 2


def test_compare_takes_directories_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, host in (("stock", NEMOTRON_HOST), ("fixed", FIXED)):
        (tmp_path / side).mkdir()
        for index in range(4):
            saved(make_recording(host, seed=index, cycles=60), tmp_path / side / f"{index}.spantrace")
    assert spantrace("compare", tmp_path / "stock", tmp_path / "fixed") == 0
    out = capsys.readouterr().out
    assert "240 + 240 steady cycles, 4 + 4 runs" in out
    assert "medians of the runs" in out
    assert "0.029" in out
    (tmp_path / "empty").mkdir()
    assert spantrace("compare", tmp_path / "stock", tmp_path / "empty") == 2


def test_few_cycles_beside_many_are_too_few_for_their_spans(
    stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = saved(make_recording(seed=2, cycles=12), tmp_path / "few.spantrace")
    assert spantrace("compare", stock, few, "--force") == 0
    out = capsys.readouterr().out
    assert re.search(r"^  schedule .* too few +- ", out, re.MULTILINE)
    assert re.search(r"^  CYCLE ~|too few values", out, re.MULTILINE)


def test_long_names_become_a_and_b(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [saved(make_recording(seed=i, cycles=50), tmp_path / f"a-rather-long-name-{i}.spantrace") for i in (1, 2)]
    assert spantrace("compare", *paths) == 0
    out = capsys.readouterr().out
    assert "A = a-rather-long-name-1 -> B = a-rather-long-name-2" in out
    assert "A ms" in out


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from spantrace.cli.main import run; code = run(['--help'])\n"
        "heavy = {'numpy', 'scipy', 'rich', 'vllm', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_version_usage_and_interrupt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("spantrace 0.")
    assert run(["nonsense"]) == 2
    assert run(["report"]) == 2

    def interrupted(path: Path) -> Recording:
        raise KeyboardInterrupt

    monkeypatch.setattr("spantrace.loading.load", interrupted)
    assert run(["report", "x"]) == 130


def test_a_closed_pipe_is_quiet(stock: Path) -> None:
    command = f"{sys.executable} -m spantrace.cli.main report {stock} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() in {"0", "141"}


def test_a_stranger_named_analyzers_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from importlib.machinery import ModuleSpec

    from spantrace import packages

    monkeypatch.setattr(
        packages, "find_spec", lambda name: ModuleSpec(name, None, origin=str(tmp_path / "__init__.py"))
    )
    assert run(["report", "x"]) == 2


def test_one_hundred_thousand_spans_are_reported_at_once(tmp_path: Path) -> None:
    path = saved(make_recording(cycles=6000), tmp_path / "long.spantrace")
    started = time.process_time()
    assert spantrace("report", path) == 0
    assert time.process_time() - started < 2.0
