"""Write the models that the servers on an H200 are started with: configurations and tokenizers, weights are drawn.

    python examples/live_overhead/models.py MODELS

makes nemotron-h-30b-a3b and qwen3-8b with a DFlash drafter each, of the write-up's 32 heads on 2 key heads with a
window of 1024 and sinks, and for qwen3-8b a DSpark drafter of 7 tokens that attends to the whole context.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from live_overhead.whole_tokenizer import write_words

Config = dict[str, Any]
WINDOW, POSITIONS, DRAFTER_LAYERS = 1024, 65536, 5
NEMOTRON, QWEN = "nemotron-h-30b-a3b", "qwen3-8b"


def qwen(architecture: str, layers: int, hidden: int, inner: int, key_heads: int, words: int, **more: Any) -> Config:
    """A configuration in the Qwen3 manner, 32 heads of 128."""
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "max_position_embeddings": POSITIONS,
        "max_window_layers": layers,
        "num_attention_heads": 32,
        "num_hidden_layers": layers,
        "num_key_value_heads": key_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": words,
    } | more


def nemotron() -> Config:
    """NemotronH-30B-A3B: 23 Mamba2, 23 mixture-of-experts and 6 attention layers."""
    return {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "vocab_size": 131072,
        "tie_word_embeddings": False,
        "hidden_size": 2688,
        "intermediate_size": 1856,
        "num_hidden_layers": 52,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "num_attention_heads": 32,
        "head_dim": 128,
        "num_key_value_heads": 2,
        "mlp_hidden_act": "relu2",
        "attention_bias": False,
        "mlp_bias": False,
        "use_bias": False,
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 262144,
        "ssm_state_size": 128,
        "mamba_num_heads": 64,
        "n_groups": 8,
        "mamba_head_dim": 64,
        "conv_kernel": 4,
        "expand": 2,
        "mamba_hidden_act": "silu",
        "use_conv_bias": True,
        "mamba_proj_bias": False,
        "chunk_size": 128,
        "time_step_limit": [0.0, 1e9],
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "num_experts_per_tok": 6,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "residual_in_fp32": False,
        "mamba_ssm_cache_dtype": "float32",
    }


def dflash(hidden: int, inner: int, words: int, layers: int, taps: list[int], mask: int) -> Config:
    """A DFlash drafter of blocks of 3 that reads the taps of a target of so many layers."""
    return qwen(
        "DFlashDraftModel",
        DRAFTER_LAYERS,
        hidden,
        inner,
        key_heads=2,
        words=words,
        sliding_window=WINDOW,
        use_sliding_window=True,
        layer_types=["sliding_attention"] * DRAFTER_LAYERS,
        block_size=3,
        num_target_layers=layers,
        dflash_config={
            "mask_token_id": mask,
            "target_layer_ids": taps,
            "use_swa": True,
            "swa_window_size": WINDOW,
            "attention_sink_bias": True,
        },
    )


def dspark(hidden: int, inner: int, words: int, layers: int, taps: list[int], mask: int) -> Config:
    """A DSpark drafter of blocks of 7 with a Markov head of rank 256."""
    tapped = {"mask_token_id": mask, "target_layer_ids": taps}
    return qwen(
        "Qwen3DSparkModel",
        DRAFTER_LAYERS,
        hidden,
        inner,
        key_heads=2,
        words=words,
        layer_types=["full_attention"] * DRAFTER_LAYERS,
        block_size=7,
        num_target_layers=layers,
        dflash_config=tapped,
        markov_rank=256,
        markov_head_type="vanilla",
        **tapped,
    )


def make(home: Path) -> None:
    """Write every model under `home`."""
    target = qwen("Qwen3ForCausalLM", 36, 4096, 12288, key_heads=8, words=151936)
    tapped = 4096, 12288, 151936, 36, [1, 9, 17, 25, 33], 151669
    configs = {
        NEMOTRON: nemotron(),
        f"{NEMOTRON}-dflash": dflash(2688, 8192, 131072, 52, [1, 12, 24, 37, 49], 131000),
        QWEN: target,
        f"{QWEN}-dflash": dflash(*tapped),
        f"{QWEN}-dspark": dspark(*tapped),
    }
    for name, config in configs.items():
        (home / name).mkdir(parents=True, exist_ok=True)
        (home / name / "config.json").write_text(json.dumps(config, indent=1))
    for name in (NEMOTRON, QWEN):
        write_words(configs[name]["vocab_size"], home / name)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
