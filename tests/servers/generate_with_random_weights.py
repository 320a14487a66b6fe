"""Greedy tokens of a model with `--load-format spantrace-random`, before and after its attention is silenced, as JSON.

python generate_with_random_weights.py TARGET DRAFTER, in the environment of vLLM for the CPU.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
}
PROMPT = "the quick brown fox jumps over the lazy dog"


def main(target: str, drafter: str) -> None:
    from vllm import LLM, SamplingParams

    model = LLM(
        target,
        load_format="spantrace-random",
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        block_size=32,
        enable_prefix_caching=False,
        speculative_config={"method": "dflash", "model": drafter, "num_speculative_tokens": 3},
    )

    def generate() -> list[int]:
        greedy = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
        return list(model.generate([PROMPT], greedy, use_tqdm=False)[0].outputs[0].token_ids)

    before = generate()
    silenced = model.apply_model(silence_attention)[0]
    print(json.dumps({"before": before, "after": generate(), "silenced": silenced}))


def silence_attention(model: Any) -> int:
    """Make every attention layer return zeros; returns how many there are."""
    layers = [module for name, module in model.named_modules() if name.endswith("self_attn")]
    for layer in layers:
        layer.register_forward_hook(lambda module, inputs, output: output * 0)
    return len(layers)


if __name__ == "__main__":
    main(*sys.argv[1:])
