"""The load of one window: greedy requests one after another that share a long prefix, each with an end of its own.

    python load.py URL MODEL RESULT --prefix 32768 --input 2048 --output 256 --requests 3

`vllm bench serve` puts the same load on a server but takes 15 seconds to start; this takes a tenth of one. The first
request is not measured: it may find less of the prefix in the cache, and the recording begins while it is answered.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from urllib.parse import urlsplit

TOKENS = range(10, 300)
"""What prompts are made of: ids that every tokenizer has."""
TIMEOUT_S = 120.0


def prompt(prefix: int, more: int) -> list[int]:
    """Token ids: the prefix is the same each time, what follows it never is."""
    return random.Random(0).choices(TOKENS, k=prefix) + random.Random().choices(TOKENS, k=more)


def arrivals(url: str, model: str, ids: list[int], tokens: int) -> Iterator[float]:
    """When a request was sent, and when each chunk of its answer arrived, in seconds."""
    # A special token that is skipped has no text either: see live_overhead/whole_tokenizer.py.
    body = {"model": model, "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "skip_special_tokens": False}  # fmt: skip
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        yield time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise http.client.HTTPException(f"{answer.status}: {answer.read(500).decode(errors='replace')}")
        for line in answer:
            if line.startswith(b"data: {"):
                yield time.perf_counter()
    finally:
        connection.close()


def figures(measured: list[list[float]], tokens: int) -> dict[str, float]:
    """What a campaign reads of a load: means over requests, an inter-token latency is the gap between two chunks."""
    took = [times[-1] - times[0] for times in measured]
    return {
        "ttft_ms": 1e3 * fmean(times[1] - times[0] for times in measured),
        "itl_ms": 1e3 * fmean(gap for times in measured for gap in _gaps(times[1:])),
        "latency_ms": 1e3 * fmean(took),
        "tokens_per_s": tokens / fmean(took),
    }


def _gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def main() -> None:
    """Put the load on and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("result", type=Path)
    parser.add_argument("--prefix", type=int, default=32768, help="tokens that all prompts begin with")
    parser.add_argument("--input", type=int, default=2048, help="tokens of each prompt after them")
    parser.add_argument("--output", type=int, default=256, help="tokens of each answer")
    parser.add_argument("--requests", type=int, default=3, help="of which the first one is not measured")
    chosen = parser.parse_args()
    answered = [
        list(arrivals(chosen.url, chosen.model, prompt(chosen.prefix, chosen.input), chosen.output))
        for _ in range(chosen.requests)
    ]
    chosen.result.write_text(json.dumps(figures(answered[1:], chosen.output)))


if __name__ == "__main__":
    main()
