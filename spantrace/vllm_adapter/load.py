"""Puts load on a server through `vllm bench serve`, or any command, and reads what that measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from spantrace.errors import SpantraceError

STOP_S = 10.0
FIGURES = {
    "itl_ms": "mean_itl_ms",
    "ttft_ms": "mean_ttft_ms",
    "latency_ms": "mean_e2el_ms",
    "tokens_per_s": "output_throughput",
}
"""What a load may have measured, by our name and the one of `vllm bench serve`; an ITL is the gap between chunks."""
_COUNTED = ("vllm:prefix_cache_hits_total", "vllm:request_success_total")


@dataclass(frozen=True)
class Load:
    """`vllm bench serve` with these lengths in tokens, greedy, or any `command`; with neither the server has its own.

    In a command {url}, {model}, {tokenizer} and {result} are filled in; it may write a JSON object with our figures, or
    with the benchmark's, to the file {result}. Without `reset` a window finds in the prefix cache what those before it
    left there.
    """

    command: tuple[str, ...] = ()
    prefix: int = 32768
    input: int = 2048
    output: int = 256
    concurrency: int = 1
    requests: int = 8
    reset: bool = True

    @property
    def any(self) -> bool:
        """Whether there is any to start."""
        return bool(self.command) or self.requests > 0

    def words(self, url: str, model: str, tokenizer: str, result: Path) -> list[str]:
        """The command line for a server and the file of its result."""
        if self.command:
            known = {"url": url, "model": model, "tokenizer": tokenizer, "result": str(result)}
            return [_filled(word, known) for word in self.command]
        options = {
            "backend": "vllm", "base-url": url, "model": model, "tokenizer": tokenizer, "dataset-name": "random",
            "random-prefix-len": self.prefix, "random-input-len": self.input, "random-output-len": self.output,
            "max-concurrency": self.concurrency, "num-prompts": self.requests, "temperature": 0, "seed": 0,
            "percentile-metrics": "ttft,tpot,itl,e2el", "result-dir": result.parent, "result-filename": result.name,
        }  # fmt: skip
        program = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve"]
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [*program, *flags, "--ignore-eos", "--save-result", "--disable-tqdm"]


class RunningLoad:
    """A load as a process of its own for the length of a block, which ends it where it still runs."""

    def __init__(self, load: Load, url: str) -> None:
        self._load, self._url = load, url
        self._folder = tempfile.TemporaryDirectory(prefix="spantrace-load-")
        self._result, self._said = (Path(self._folder.name) / name for name in ("result.json", "said.txt"))

    def __enter__(self) -> RunningLoad:
        model, tokenizer = served(self._url)
        words = self._load.words(self._url, model, tokenizer, self._result)
        self._before = counters(self._url, _COUNTED)
        try:
            with self._said.open("wb") as said:
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
                )
        except OSError as error:
            self._folder.cleanup()
            raise SpantraceError(f"the load cannot be started: {words[0]}: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._folder.cleanup()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def figures(self, timeout: float) -> dict[str, float]:
        """What it measured, once it has ended; SpantraceError where it fails or does not end in time."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise SpantraceError(f"the load did not end within {timeout:g} s; give it less to do") from None
        if code:
            said = self._said.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise SpantraceError(f"the load ended with code {code}, it said: {said[-1][:200]}")
        return parse_result(self._result) | _cached(self._before, counters(self._url, _COUNTED))


def parse_result(path: Path) -> dict[str, float]:
    """The figures in a result's JSON, none where there is no file; SpantraceError where it is damaged or all failed."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        if found.get("completed") == 0:
            raise SpantraceError("the load completed no request; look at the server's log")
        known = {ours: found.get(ours, found.get(theirs)) for ours, theirs in FIGURES.items()}
        return {name: float(value) for name, value in known.items() if value is not None}
    except (ValueError, TypeError, AttributeError) as error:
        raise SpantraceError(f"the load's result is not what `vllm bench serve` writes: {error}") from error


def _filled(word: str, known: Mapping[str, str]) -> str:
    for name, value in known.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def served(url: str) -> tuple[str, str]:
    """The name under which a server serves its model, and the model's own."""
    answer = _get(f"{url}/v1/models")
    try:
        (model, *_) = json.loads(answer)["data"]
        return str(model["id"]), str(model.get("root") or model["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise SpantraceError(f"{url} does not say which model it serves; is it a vLLM server?") from error


def counters(url: str, names: Sequence[str]) -> dict[str, float]:
    """What the server has counted so far under these names, summed over engines; 0 for one that it does not know."""
    samples: list[Sequence[str]] = [line.rsplit(" ", 1) for line in _get(f"{url}/metrics").splitlines()]
    return {
        name: sum(float(value) for label, value in samples if label.partition("{")[0] == name)
        for name in names
    }  # fmt: skip


def _cached(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    tokens, requests = (after[name] - before[name] for name in _COUNTED)
    return {"cached_tokens": tokens / requests} if requests > 0 else {}


def _get(address: str) -> str:
    try:
        with urlopen(address, timeout=30.0) as answer:
            body: Any = answer.read()
            return str(body.decode())
    except (URLError, OSError) as error:
        raise SpantraceError(f"{address} does not answer: {getattr(error, 'reason', error)}") from error
