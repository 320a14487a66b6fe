"""What a server's command line says of it, as vLLM reads it."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

API_SERVER = "vllm.entrypoints.openai.api_server"
"""The module that serves without `vllm serve`: python -m."""
_METHOD = re.compile(r'"method"\s*:\s*"([\w-]+)"')


def words_of(command: str) -> list[str]:
    """Its words, as a shell takes them where they are whole."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def is_vllm(command: str) -> bool:
    """Whether it is of vLLM: one that starts a server, or the title that vLLM gives a process of its own."""
    first = words_of(command)[:4]
    return (
        command.startswith("VLLM::")
        or "vllm.entrypoints" in command
        or any(Path(word).name == "vllm" and following == "serve" for word, following in itertools.pairwise(first))
    )


def port(command: str) -> int | None:
    """The port of `--port`, or vLLM's default 8000, as far as the command tells."""
    words = words_of(command)
    value = _option(words, "--port")
    if value is not None and value.isdecimal():
        return int(value)
    return 8000 if "serve" in words or API_SERVER in words else None


def model(command: str) -> str:
    """The model that it names, "-" where it names none."""
    words = words_of(command)
    after = words[words.index("serve") + 1 :] if "serve" in words else []
    if after and not after[0].startswith("-"):
        return after[0]
    return _option(words, "--model") or "-"


def speculation(command: str) -> str:
    """The JSON of the last `--speculative-config`, "" where there is none.

    A process gives its words without the quotes that held them together, so that it is taken as it stands.
    """
    _, found, behind = command.rpartition("--speculative-config")
    return behind.partition(" --")[0] if found else ""


def method(command: str) -> str | None:
    """The method of speculation that it names; None where it leaves that to vLLM."""
    if said := _option(words_of(command), "--speculative-config.method"):
        return said
    found = _METHOD.search(speculation(command))
    return found[1] if found else None


def _option(words: list[str], name: str) -> str | None:
    """The value of the last `name VALUE` or `name=VALUE` of a command line, as argparse takes it."""
    values = [word[len(name) + 1 :] for word in words if word.startswith(f"{name}=")]
    values += [following for word, following in itertools.pairwise(words) if word == name]
    return values[-1] if values else None
