"""A pytest plugin for vLLM's own tests: a local model configuration instead of the Hub's, and an optimization put on.

`SPANTRACE_LOCAL_MODELS` is the folder that gets the configurations; `SPANTRACE_PUT_ON` the optimization's id, if any.
At the end the plugin writes each test's outcome into `outcomes.json` in that folder, with the optimization's counts.
"""

from __future__ import annotations

import json
import os
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "torch_dtype": "float16",
    "vocab_size": 50272,
    "hidden_size": 768,
    "word_embed_proj_dim": 768,
    "ffn_dim": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
LOCAL = {"facebook/opt-125m": OPT}
"""What vLLM's tests name on the Hub, as configurations of the same shape."""
_folder = Path(os.environ["SPANTRACE_LOCAL_MODELS"])
_outcomes: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Before vLLM's tests are collected."""
    for name, content in LOCAL.items():
        folder = _folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(content))
    _stay_local()
    if chosen := os.environ.get("SPANTRACE_PUT_ON"):
        import vllm

        import optimized

        optimized.apply([chosen], vllm.__version__)


def _stay_local() -> None:
    from vllm.config import ModelConfig

    original = ModelConfig.__init__

    @wraps(original)
    def local(self: Any, *args: Any, **named: Any) -> None:
        if named.get("model") in LOCAL:
            named |= {"model": str(_folder / named["model"]), "skip_tokenizer_init": True}
        original(self, *args, **named)

    ModelConfig.__init__ = local


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The worst of a test's three phases."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Keep what came of them."""
    import optimized

    said = {"outcomes": _outcomes, "counts": optimized.counts()}
    (_folder / "outcomes.json").write_text(json.dumps(said))
