"""Shares of spans from sampled stacks: py-spy on real processes, the functions of the hook tables, and what is said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from analyzers.sampled import FEWEST, FEWEST_IN_SPAN, sampled_table, share
from analyzers.sampled_compare import compare_sampled
from spantrace.cli.main import run
from spantrace.cli.sampled import sampled_report
from spantrace.errors import SpantraceError
from spantrace.loading import load
from spantrace.py_spy import Frame, Stack, sample
from spantrace.recording import Recording
from spantrace.sampled import Samples, Seen, recording_of
from spantrace.vllm_adapter.hooks import SUPPORTED, hooks_for
from spantrace.vllm_adapter.span_functions import SpanFunctions, counted, version_of
from spantrace.vllm_adapter.stack_samples import gpu_of

pytestmark = pytest.mark.timed

Said = Callable[..., Any]
RESULTS = Path(__file__).parents[1] / "examples/results"
SITE = "/opt/env/lib/python3.12/site-packages/"
CORE = SITE + "vllm/v1/engine/core.py"
RUNNER = SITE + "vllm/v1/worker/gpu_model_runner.py"
CYCLE = Frame("EngineCoreProc._process_engine_step", CORE)
EXECUTE = Frame("Worker.execute_model", SITE + "vllm/v1/worker/gpu_worker.py")
PROPOSE = Frame("GPUModelRunner.propose_draft_token_ids", RUNNER)
NEWEST = SpanFunctions(SUPPORTED[-1])
TWO_FUNCTIONS = """
import time
class Work:
    def long(self):
        end = time.perf_counter() + 0.06
        while time.perf_counter() < end:
            pass
    def short(self):
        time.sleep(0.02)
    def run(self):
        print("on", flush=True)
        while True:
            self.long()
            self.short()
Work().run()
"""


@pytest.fixture
def working() -> Iterator[int]:
    """A process that spends three quarters of its time in one method and sleeps in another."""
    with subprocess.Popen([sys.executable, "-c", TWO_FUNCTIONS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        yield process.pid
        process.kill()


def names(*frames: Frame, functions: SpanFunctions = NEWEST) -> list[str]:
    return [span for span, _ in functions.spans(frames)]


def sampled(*seen: Seen, seconds: float = 10.0, failed: int = 0, vllm: str = "0.33.0") -> Recording:
    samples = Samples("py-spy 0.4.3", 100, seconds, failed, 0.05, seen)
    server = {"vllm": vllm, "model": "org/model"}
    return recording_of(samples, {"server": server, "gpu": None, "host": {"cpu": "CPU"}, "created": "2026-11-30T06:00"})


def one_process(forward: int, rest: int, **changes: object) -> Recording:
    """A sampled engine in which so many samples lie in the target's forward and so many in nothing below the cycle."""
    cycle = {"cycle": "EngineCoreProc._process_engine_step"}
    inside = {**cycle, "target.forward": "GPUModelRunner._model_forward"}
    return sampled(Seen(0, True, inside, forward), Seen(0, True, cycle, rest), Seen(0, True, {}, 7), **changes)


def test_py_spy_sees_the_shares_of_a_process_as_they_are(working: int) -> None:
    found = sample(working, 2.0, lambda seconds: None)
    main = [stack for stack in found.stacks if stack.thread == working]
    counts = {
        name: sum(stack.samples for stack in main if any(frame.function == name for frame in stack.frames))
        for name in ("Work.run", "Work.long", "Work.short")
    }
    assert 50 < counts["Work.run"] <= 250
    assert 0.5 < counts["Work.long"] / counts["Work.run"] < 0.9
    assert counts["Work.long"] + counts["Work.short"] > 0.95 * counts["Work.run"]
    assert found.by.startswith("py-spy ")
    assert 0 < found.cost < 1
    assert found.failed < counts["Work.run"]


def test_ctrl_c_ends_sampling_and_keeps_what_was_seen(working: int) -> None:
    program = (
        "from spantrace.py_spy import sample\n"
        f"found = sample({working}, 100, lambda seconds: print(seconds, flush=True))\n"
        "print('kept', sum(stack.samples for stack in found.stacks), found.seconds < 50)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() not in ("2\n", ""):
            pass
        process.send_signal(signal.SIGINT)
        kept = process.stdout.read().split()[-3:]
    assert process.returncode == 0
    assert kept[0] == "kept"
    assert int(kept[1]) > 30
    assert kept[2] == "True"


def test_ctrl_c_before_anything_was_seen_leaves_nothing(working: int, tmp_path: Path) -> None:
    lazy = tmp_path / "py-spy"
    lazy.write_text("#!/bin/sh\ntrap 'exit 1' INT\necho on >&2\nwhile true; do sleep 0.05; done\n")
    lazy.chmod(0o755)
    program = (
        "import sys; from spantrace import py_spy\n"
        f"py_spy._program = lambda: {str(lazy)!r}\n"
        f"try: py_spy.sample({working}, 100, lambda seconds: print(seconds, flush=True))\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() not in ("1\n", ""):
            pass
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().split()[-1] == "interrupted"


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_function_of_the_hook_tables_is_known(version: str) -> None:
    functions = SpanFunctions(version)
    checked = 0
    for hook in hooks_for(version):
        if hook.span is None:
            continue
        module = SITE + hook.target.partition(":")[0].replace(".", "/") + ".py"
        if "." in hook.name:
            frames = [Frame(hook.name, module)]
        else:
            frames = [Frame("Caller.calls", module), Frame(hook.name, SITE + "vllm/elsewhere.py")]
        assert names(*frames, functions=functions)[-1:] == [hook.span], hook
        bare = [replace(frame, function=frame.function.rpartition(".")[2]) for frame in frames]
        assert names(*bare, functions=functions)[-1:] == [hook.span], hook
        if hook.in_draft:
            assert names(PROPOSE, *frames, functions=functions)[-1:] == [hook.in_draft], hook
        checked += 1
    assert checked > 40


def test_functions_of_other_versions_are_unknown() -> None:
    ours = Frame("MedusaProposer.propose", SITE + "vllm/v1/spec_decode/medusa.py")
    assert names(ours, functions=SpanFunctions("0.32.0")) == ["draft.forward"]
    assert names(ours, functions=SpanFunctions("0.33.0")) == []


def test_stacks_become_spans_as_in_a_recording() -> None:
    model = SITE + "vllm/model_executor/models/qwen3.py"
    forward = Frame("Qwen3ForCausalLM.forward", model)
    attention = Frame("CPUAttentionMetadataBuilder.build", SITE + "vllm/v1/attention/backends/cpu_attn.py")
    metadata = Frame("GPUModelRunner._build_attention_metadata", RUNNER)
    preparing = Frame("GPUModelRunner._prepare_inputs", RUNNER)
    logits = Frame("Qwen3ForCausalLM.compute_logits", model)
    context = Frame("DFlashQwen3ForCausalLM.precompute_and_store_context_kv", model)
    assert names(CYCLE, EXECUTE, preparing) == ["cycle", "target.input_prep"]
    assert names(CYCLE, EXECUTE, metadata, attention) == ["cycle", "target.metadata", "target.metadata.attention"]
    assert names(CYCLE, EXECUTE, forward) == ["cycle", "target.forward"]
    assert names(CYCLE, EXECUTE, logits) == ["cycle", "sample"]
    assert names(CYCLE, PROPOSE, attention) == ["cycle", "draft.propose", "draft.metadata"]
    assert names(CYCLE, PROPOSE, forward) == ["cycle", "draft.propose", "draft.forward"]
    assert names(CYCLE, PROPOSE, context, forward) == ["cycle", "draft.propose", "draft.context_kv"]
    assert names(Frame("forward", "/home/me/models/qwen3.py")) == []
    assert names(Frame("EngineCoreProc.run_busy_loop", CORE)) == []


def test_only_stacks_of_main_threads_or_in_spans_are_counted() -> None:
    emit = Frame("MsgpackEncoder.encode_into", SITE + "vllm/v1/serial_utils.py")
    idle = Frame("Queue.get", "/usr/lib/python3.12/queue.py")
    stacks = [
        Stack(7, 7, (CYCLE,), 5),
        Stack(7, 7, (CYCLE, idle), 6),
        Stack(7, 7, (idle,), 3),
        Stack(7, 9, (emit,), 2),
        Stack(7, 8, (idle,), 99),
    ]
    found = {(main, tuple(span for span, _ in seen)): samples for _, main, seen, samples in counted(stacks, NEWEST)}
    assert found == {(True, ("cycle",)): 11, (True, ()): 3, (False, ("output.emit",)): 2}


def test_the_version_is_that_of_the_files_on_the_stacks(tmp_path: Path) -> None:
    core = tmp_path / "vllm/v1/engine/core.py"
    core.parent.mkdir(parents=True)
    stacks = [Stack(os.getpid(), os.getpid(), (Frame("f", "/x/app.py"), replace(CYCLE, file=str(core))), 1)]
    assert version_of(stacks) == ""
    info = tmp_path / "vllm-0.31.0+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0+cpu\n")
    assert version_of(stacks) == "0.31.0"
    assert version_of([replace(stacks[0], frames=stacks[0].frames[:1])]) is None


@pytest.mark.parametrize(("samples", "among"), [(0, 100), (1, 100), (37, 150), (100, 100), (500, 1000)])
def test_the_interval_is_the_exact_binomial_one(samples: int, among: int) -> None:
    ours, exact = share(samples, among), binomtest(samples, among).proportion_ci()
    assert (ours.low, ours.high) == pytest.approx((exact.low, exact.high), abs=1e-9)
    assert ours.value == samples / among


def test_a_workers_spans_are_counted_against_its_own_samples() -> None:
    wait = {"cycle": "c", "output.wait": "FutureWrapper.result"}
    recording = sampled(
        Seen(0, True, wait, 800),
        Seen(0, True, {}, 200),
        Seen(1, True, {"target.forward": "GPUModelRunner._model_forward"}, 120),
        Seen(1, True, {}, 380),
        Seen(0, False, {"output.emit": "MsgpackEncoder.encode_into"}, 40),
    )
    table = sampled_table(recording)
    assert table is not None
    assert (table.cycles, table.idle, table.enough) == (800, 200, True)
    forward, emit = table.row("target.forward"), table.row("output.emit")
    assert forward is not None
    assert forward.share is not None
    assert forward.share.value == pytest.approx(120 / 400)
    assert emit is not None
    assert emit.own_thread
    assert table.row("unattributed") is None


def test_below_the_stated_numbers_there_is_no_share() -> None:
    rare = sampled_table(one_process(FEWEST_IN_SPAN - 1, 1000))
    few = sampled_table(one_process(FEWEST // 2, FEWEST // 2 - 1))
    enough = sampled_table(one_process(FEWEST_IN_SPAN, FEWEST - FEWEST_IN_SPAN))
    assert rare is not None
    assert few is not None
    assert enough is not None
    row = rare.row("target.forward")
    assert row is not None
    assert (row.samples, row.share) == (FEWEST_IN_SPAN - 1, None)
    assert not few.enough
    assert all(row.share is None for row in few.rows)
    row = enough.row("target.forward")
    assert row is not None
    assert row.share is not None


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a spantrace command prints that ends with this exit code: `said(0, "report", path).out`."""

    def printed(code: int, *arguments: str) -> Any:
        assert run(list(arguments)) == code
        return capsys.readouterr()

    return printed


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two sampled recordings, and a measured one."""
    one_process(300, 700).save(tmp_path / "a.spantrace")
    one_process(450, 550).save(tmp_path / "b.spantrace")
    shutil.copy(RESULTS / "v0.33.0-V2-async.spantrace", tmp_path / "measured.spantrace")
    return tmp_path / "a.spantrace", tmp_path / "b.spantrace", tmp_path / "measured.spantrace"


def test_it_is_called_sampled_wherever_it_is_shown(files: tuple[Path, Path, Path], said: Said) -> None:
    assert sampled_report(load(files[2])) is None
    table, markdown, csv, in_json = (
        said(0, "report", str(files[0]), "--format", form).out for form in ("table", "markdown", "csv", "json")
    )
    shown = " ".join(table.split())
    assert "SAMPLED Shares of the host's time in cycles: 1,000 samples lie in cycles, 7 outside of any." in shown
    assert "so no verdict" in shown
    for word in ("HOST", "BOUND", "SATURATED", "ms"):
        assert word not in table.replace("samples", "").split()
    assert "**SAMPLED.**" in markdown
    assert "sampled share" in markdown
    assert csv.splitlines()[0] == "span,sampled_share,sampled_low,sampled_high,samples,function"
    told = json.loads(in_json)
    assert (told["sampled"], told["verdict"]) == (True, None)
    exported = said(2, "export", str(files[0]), "--to", "kineto", "-o", str(files[0].with_name("x")))
    assert "is sampled, it holds no spans to export" in exported.err
    for options in (["--kind", "all"], ["--html", "page.html"], ["--baseline", str(files[2])]):
        assert "the recording is sampled, it holds no cycles" in said(2, "report", str(files[0]), *options).err


def test_too_few_samples_are_called_not_enough(tmp_path: Path, said: Said) -> None:
    one_process(20, 30).save(tmp_path / "few.spantrace")
    text = said(0, "report", str(tmp_path / "few.spantrace")).out
    assert "Not enough: 50 samples lie in cycles, 7 outside of any; shares need 100." in " ".join(text.split())
    assert "%" not in text.partition("sampled ")[0].partition("span ")[2].replace("95%", "")


def test_sampled_and_measured_are_compared_by_force_only(files: tuple[Path, Path, Path], said: Said) -> None:
    a, b, measured = map(str, files)
    refused = said(3, "compare", measured, a).err
    assert refused.startswith("spantrace: B is sampled and the other side measured; record both alike")
    forced = " ".join(said(0, "compare", measured, a, "--force").out.split())
    assert "SAMPLED" in forced
    assert "One side is measured" in forced
    both = said(0, "compare", a, b).out
    assert "+15.0" in both
    assert "<0.001" in both
    gates = Path(a).with_name("gates.toml")
    gates.write_text('gates = ["cycle < -4%"]')
    gated = said(3, "compare", a, b, "--gate", str(gates))
    assert gated.out == ""
    assert "gates judge times, and a side is sampled" in gated.err


def test_a_difference_is_shown_where_it_is_one() -> None:
    same, other = compare_sampled([one_process(300, 700)], [one_process(310, 690)]), None
    assert same is not None
    assert [row.shown for row in same.rows] == [False]
    other = compare_sampled([one_process(300, 700)], [one_process(450, 550)])
    assert other is not None
    (row,) = other.rows
    assert row.shown
    assert row.low is not None
    assert row.high is not None
    assert row.low < 0.15 < row.high
    with pytest.raises(SpantraceError, match="vllm"):
        compare_sampled([one_process(300, 700)], [one_process(300, 700, vllm="0.26.0")])


def test_what_cannot_be_sampled_is_told_in_a_sentence(
    working: int, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ("-o", str(tmp_path / "r.spantrace"))
    answers = {
        ("999999999",): "there is no process 999999999; try spantrace ps",
        (str(working),): f"process {working} is no vLLM server that spantrace can see; try spantrace ps",
        (
            "1",
            "--cycles",
            "5",
            "--nvtx",
        ): "--sample counts and times no cycles; leave out --cycles, --nvtx; see spantrace",
    }
    for arguments, answer in answers.items():
        refused = said(2, "record", "--sample", *arguments, *path).err
        assert refused.startswith(f"spantrace: {answer}")
        assert refused.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SpantraceError, match=r"py-spy is not installed; pip install 'spantrace\[sample\]'"):
        sample(working, 1.0, lambda seconds: None)


def test_the_gpu_is_that_of_the_servers_processes() -> None:
    gpus = [{"name": "NVIDIA A", "uuid": "a", "processes": [5]}, {"name": "NVIDIA B", "uuid": "b", "processes": [7, 9]}]
    assert gpu_of(gpus, [7]) == {"name": "NVIDIA B", "uuid": "b", "other_processes": [9]}
    assert gpu_of(gpus, [8]) == {"name": "unknown GPU"}
    assert gpu_of([], [7]) is None


def test_a_process_without_python_and_one_that_ended_are_told() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        with pytest.raises(SpantraceError, match=f"process {process.pid} runs no Python that py-spy knows"):
            sample(process.pid, 1.0, lambda seconds: None)
        process.kill()
    with pytest.raises(SpantraceError, match=f"there is no process {process.pid}"):
        sample(process.pid, 1.0, lambda seconds: None)


@pytest.mark.skipif(os.geteuid() != 0, reason="a capability can be given up by root only")
def test_a_process_that_may_not_be_looked_into_is_told(working: int) -> None:
    program = f"from spantrace.py_spy import sample; sample({working}, 1, print)"
    without = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    refused = subprocess.run([*without, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"SpantraceError: this user may not look into process {working}; run as its user" in refused.stderr
