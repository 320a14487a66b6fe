"""A load for `spantrace ab`: greedy completions one after another, and what they took, as a campaign reads it.

python small_load.py URL MODEL RESULT [REQUESTS]
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path

REQUESTS, TOKENS = 3, 64


def main(url: str, model: str, result: str, requests: str = str(REQUESTS)) -> None:
    """Put the load on and write its result."""
    took = []
    for index in range(int(requests)):
        body = {
            "model": model,
            "prompt": f"Request {index}",
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        begun = time.perf_counter()
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
        took.append(time.perf_counter() - begun)
    whole = sum(took)
    figures = {"latency_ms": 1e3 * whole / len(took), "tokens_per_s": len(took) * TOKENS / whole}
    Path(result).write_text(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
