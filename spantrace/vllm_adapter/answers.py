"""Greedy answers of a server to prompts of token ids, with the log-probabilities behind each token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from analyzers.numerics import Answer
from spantrace.errors import SpantraceError

TOP = 20
"""Log-probabilities of a token: the most that vLLM gives unless it is told otherwise."""
TIMEOUT_S = 600.0


def answers(url: str, model: str, prompts: Sequence[Sequence[int]], tokens: int) -> list[Answer]:
    """The server's answer to each prompt, of so many tokens, one after another; SpantraceError where it refuses."""
    return [_answer(url, model, prompt, tokens) for prompt in prompts]


def _answer(url: str, model: str, prompt: Sequence[int], tokens: int) -> Answer:
    body = {"model": model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "logprobs": TOP, "return_tokens_as_token_ids": True}  # fmt: skip
    request = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            found: Any = json.load(answer)["choices"][0]["logprobs"]
        return Answer(
            tuple(map(_id, found["tokens"])),
            tuple({_id(name): float(value) for name, value in top.items()} for top in found["top_logprobs"]),
        )
    except HTTPError as error:
        said = " ".join(error.read(500).decode(errors="replace").split())
        raise SpantraceError(f"the server at {url} does not answer the probe ({error.code}): {said[:200]}") from error
    except (URLError, OSError) as error:
        why = getattr(error, "reason", error)
        raise SpantraceError(f"the server at {url} stopped answering: {why}; see its log") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SpantraceError(f"{url} answers without token ids and log-probabilities; is it a vLLM server?") from error


def _id(name: str) -> int:
    """Of "token_id:17"."""
    return int(name.removeprefix("token_id:"))
