"""A server on a tabled GPU, whose model has two layers of experts of the tabled shape."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Cli

ID, PATIENCE_S = "moe-tiles", 600
PATTERN = "ME*E"


def model(folder: Path, shape: Any) -> Path:
    """A configuration with the tabled experts, and a tokenizer; the weights are random."""
    from cpu_server.models import nemotron_config, save

    small = {"hybrid_override_pattern": PATTERN, "num_hidden_layers": len(PATTERN), "torch_dtype": shape.dtype}
    experts = {
        "hidden_size": shape.hidden,
        "n_routed_experts": shape.experts,
        "moe_intermediate_size": shape.intermediate,
        "num_experts_per_tok": shape.top_k,
        "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": shape.intermediate,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
    }
    save(folder, nemotron_config() | small | experts, weights=None, tokenizer=True)
    return folder


@contextmanager
def serving(folder: Path, tokens: int, log: Path) -> Iterator[int]:
    """Its port; a step of as many requests as a tile has tokens replays a graph."""
    from tests.conftest import spantrace_program

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [tokens]}
    options = {"--load-format": "spantrace-random", "--port": str(port), "--max-num-seqs": str(tokens)}
    options |= {"--max-model-len": "1024", "--compilation-config": json.dumps(graphs)}
    command = [spantrace_program(), "serve", str(folder), "--optimize", ID]
    command += [part for option in options.items() for part in option]
    with log.open("wb") as out:
        environment = os.environ | {"VLLM_USE_V2_MODEL_RUNNER": "1"}
        server = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        until = time.monotonic() + PATIENCE_S
        while not answers(port):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(2)
        yield port
    finally:
        server.terminate()
        server.wait(60)


def answers(port: int) -> bool:
    """Whether the server is up."""
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200)
    except OSError:
        return False


def complete(port: int, folder: Path, requests: int) -> list[str]:
    """So many greedy requests at once."""
    asked = {"model": str(folder), "prompt": ["abc"] * requests, "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    answer = json.load(urllib.request.urlopen(request, timeout=120))
    return [one["text"] for one in answer["choices"]]


def test_a_decode_step_of_a_server_has_hits(tmp_path: Path, cli: Cli) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    from optimized.moe_tiles.tiles import tables

    name = torch.cuda.get_device_name()
    known = [(shape, rows) for shape, rows in tables().items() if shape.device == name]
    if not known:
        pytest.skip(f"no tile is known for {name}")
    (shape, rows), folder = known[0], tmp_path / "model"
    tokens = min(rows)
    with serving(model(folder, shape), tokens, tmp_path / "log") as port:
        counts = []
        for way in (None, "--off", "--on"):
            if way:
                assert cli("toggle", f":{port}", way, ID).returncode == 0
            assert all(complete(port, folder, tokens))
            said = json.loads(cli("optimizations", f":{port}", "--format", "json").stdout)
            counts.append(next(one for one in said["optimizations"] if one["id"] == ID))
        assert counts[0]["hits"] > 20
        assert counts[1]["state"] == "applies"
        assert counts[2]["hits"] > 20
        assert [one.get("errors") or 0 for one in counts] == [0, 0, 0]
