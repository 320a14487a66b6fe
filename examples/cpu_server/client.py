"""Talks to an OpenAI-compatible vLLM server: completions as token ids, load, and its own counters."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

REQUEST_TIMEOUT_S = 120.0
PROMPTS = tuple(f"Request {index}: the quick brown fox jumps over the lazy dog." for index in range(8))
Tokens = list[int]


@dataclass(frozen=True)
class Speculation:
    """The `vllm:spec_decode_*` counters, summed over engines; `accepted[p]` counts position p."""

    drafts: int
    drafted: int
    accepted: tuple[int, ...]

    def __sub__(self, earlier: Speculation) -> Speculation:
        before = earlier.accepted or (0,) * len(self.accepted)
        accepted = tuple(now - then for now, then in zip(self.accepted, before, strict=True))
        return Speculation(self.drafts - earlier.drafts, self.drafted - earlier.drafted, accepted)


@dataclass
class Load:
    """What a running load has received so far; `errors` are requests the server did not answer."""

    tokens: int = 0
    requests: int = 0
    errors: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, tokens: int) -> None:
        """Count one answered request."""
        with self._lock:
            self.tokens += tokens
            self.requests += 1


class Client:
    """HTTP requests to the server at `url`."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model

    def get(self, path: str, timeout: float = 10.0) -> str:
        """The body of a GET request."""
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            return answer.read().decode()

    def healthy(self) -> bool:
        """Whether the server answers /health."""
        try:
            self.get("/health", timeout=5.0)
        except OSError:
            return False
        return True

    def complete(self, prompts: Sequence[str] = PROMPTS[:1], max_tokens: int = 64, **sampling: object) -> list[Tokens]:
        """The token ids generated for each prompt, all prompts in flight at once; greedy unless told otherwise."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, max_tokens, sampling), prompts))

    @contextlib.contextmanager
    def load(self, streams: int = 4, max_tokens: int = 64, **sampling: object) -> Iterator[Load]:
        """Keep `streams` requests in flight until the block is left, then wait for the last ones."""
        load = Load()
        stop = threading.Event()
        threads = [
            threading.Thread(
                target=self._stream, args=(load, stop, PROMPTS[index % len(PROMPTS)], max_tokens, sampling)
            )
            for index in range(streams)
        ]
        for thread in threads:
            thread.start()
        try:
            yield load
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by name, summed over its labels."""
        total: Counter[str] = Counter()
        for name, _, value in self._samples():
            total[name] += value
        return dict(total)

    def speculation(self, settle_s: float = 60.0) -> Speculation:
        """The speculation counters, once no request is running and they have stopped growing."""
        deadline = time.monotonic() + settle_s
        before, now = None, self._speculation()
        while before != now or self.metrics().get("vllm:num_requests_running"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.url} is still decoding after {settle_s:g} s")
            time.sleep(0.1)
            before, now = now, self._speculation()
        return now

    def _speculation(self) -> Speculation:
        drafts = drafted = 0.0
        accepted: Counter[int] = Counter()
        for name, labels, value in self._samples():
            if name == "vllm:spec_decode_num_drafts_total":
                drafts += value
            elif name == "vllm:spec_decode_num_draft_tokens_total":
                drafted += value
            elif name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
                accepted[int(labels["position"])] += int(value)
        return Speculation(int(drafts), int(drafted), tuple(accepted[position] for position in sorted(accepted)))

    def _samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        from prometheus_client.parser import text_string_to_metric_families

        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    def _stream(
        self, load: Load, stop: threading.Event, prompt: str, max_tokens: int, sampling: dict[str, object]
    ) -> None:
        while not stop.is_set():
            try:
                load.add(len(self._complete(prompt, max_tokens, sampling)))
            except OSError as error:
                load.errors.append(str(error))
                stop.wait(0.2)

    def _complete(self, prompt: str, max_tokens: int, sampling: dict[str, object]) -> Tokens:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        } | sampling
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
                return json.load(answer)["choices"][0]["token_ids"]
        except urllib.error.HTTPError as error:
            raise OSError(f"{error}: {error.read().decode(errors='replace')}") from error
