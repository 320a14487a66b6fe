"""Write tiny models whose random weights mean something: norms are 1, matrices are scaled by their fan-in.

    python models.py DIRECTORY

makes `target` (Qwen3 architecture), the drafters `draft`, `dflash`, `dspark` and `eagle3`, and `nemotron`, a hybrid
target that is a configuration only: serve it with `--load-format spantrace-random`.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 320
HIDDEN, INNER, LAYERS = 128, 256, 4
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 32
POSITIONS = 4096
MASK_TOKEN = 3
TAPPED_LAYERS = [0, 1, 2]
MARKOV_RANK = 16
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Weights = dict[str, torch.Tensor]
Config = dict[str, Any]


def matrix(name: str, rows: int, columns: int) -> torch.Tensor:
    """A [rows, columns] matrix that keeps the variance of what it multiplies; equal names give equal values."""
    return vectors(name, rows, columns) / columns**0.5


def vectors(name: str, rows: int, columns: int) -> torch.Tensor:
    """[rows, columns] standard normal values, seeded by the name."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


def layer(prefix: str, attention_input: int = HIDDEN, qk_norm: bool = True) -> Weights:
    """One decoder layer: attention and a gated MLP."""
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_SIZE, attention_input),
        "self_attn.k_proj": (KV_HEADS * HEAD_SIZE, attention_input),
        "self_attn.v_proj": (KV_HEADS * HEAD_SIZE, attention_input),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_SIZE),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    if qk_norm:
        norms |= {"self_attn.q_norm": HEAD_SIZE, "self_attn.k_norm": HEAD_SIZE}
    weights = {f"{prefix}.{name}.weight": matrix(f"{prefix}.{name}", *shape) for name, shape in shapes.items()}
    return weights | {f"{prefix}.{name}.weight": torch.ones(size) for name, size in norms.items()}


def vocabulary_weights() -> Weights:
    """Embeddings of unit variance, and an output matrix of its own."""
    return {
        "model.embed_tokens.weight": vectors("embed_tokens", VOCABULARY, HIDDEN),
        "lm_head.weight": matrix("lm_head", VOCABULARY, HIDDEN),
    }


def target_weights(layers: int) -> Weights:
    """The first `layers` layers of the target: a drafter that has fewer agrees with it now and then."""
    weights = vocabulary_weights() | {"model.norm.weight": torch.ones(HIDDEN)}
    for index in range(layers):
        weights |= layer(f"model.layers.{index}")
    return weights


def dflash_weights() -> Weights:
    """Two layers over the target's tapped hidden states; embeddings and output matrix are the target's."""
    weights = {
        "fc.weight": matrix("dflash.fc", HIDDEN, HIDDEN * len(TAPPED_LAYERS)),
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }
    return weights | layer("layers.0") | layer("layers.1")


def dspark_weights() -> Weights:
    """DFlash with a low-rank Markov head."""
    return dflash_weights() | {
        "markov_head.markov_w1.weight": matrix("markov_w1", VOCABULARY, MARKOV_RANK),
        "markov_head.markov_w2.weight": matrix("markov_w2", VOCABULARY, MARKOV_RANK),
    }


def eagle3_weights() -> Weights:
    """One layer that reads the embedding beside the fused hidden states."""
    vocabulary = vocabulary_weights()
    weights = {
        "fc.weight": matrix("eagle3.fc", HIDDEN, HIDDEN * len(TAPPED_LAYERS)),
        "norm.weight": torch.ones(HIDDEN),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "embed_tokens.weight": vocabulary["model.embed_tokens.weight"],
        "lm_head.weight": vocabulary["lm_head.weight"],
    }
    return weights | layer("midlayer", attention_input=2 * HIDDEN, qk_norm=False)


def config(architecture: str, layers: int, **more: Any) -> Config:
    """A configuration in the Qwen3 manner."""
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "max_position_embeddings": POSITIONS,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    } | more


def dflash_config(architecture: str, block_size: int, **more: Any) -> Config:
    """A block drafter's configuration."""
    return config(
        architecture,
        layers=2,
        block_size=block_size,
        num_target_layers=LAYERS,
        layer_types=["full_attention"] * 2,
        dflash_config={"mask_token_id": MASK_TOKEN, "target_layer_ids": TAPPED_LAYERS},
        **more,
    )


def nemotron_config() -> Config:
    """A hybrid of Mamba2, attention and MLP layers; beside a drafter its Mamba layers make two KV-cache groups."""
    pattern = "MM-MM*M-M*"
    shared = config("NemotronHForCausalLM", len(pattern), model_type="nemotron_h")
    for absent in ("hidden_act", "rms_norm_eps", "rope_theta"):
        del shared[absent]
    return shared | {
        "hybrid_override_pattern": pattern,
        "mlp_hidden_act": "relu2",
        "mlp_bias": False,
        "use_bias": False,
        "layer_norm_epsilon": 1e-5,
        "residual_in_fp32": False,
        "ssm_state_size": 16,
        "mamba_num_heads": 4,
        "mamba_head_dim": 64,
        "n_groups": 2,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "expand": 2,
        "chunk_size": 32,
        "mamba_hidden_act": "silu",
        "mamba_proj_bias": False,
        "time_step_limit": [0.0, 1e9],
    }


def save(directory: Path, configuration: Config, weights: Weights | None, tokenizer: bool = False) -> None:
    """Write one model in the layout of the Hugging Face hub."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(configuration, indent=1))
    if weights is not None:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    if tokenizer:
        save_tokenizer(directory)


def save_tokenizer(directory: Path) -> None:
    """A token for every byte; special and reserved tokens fill the vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    reserved = [f"<|reserved_{index}|>" for index in range(VOCABULARY - len(SPECIAL) - len(alphabet))]
    tokens = [*SPECIAL, *alphabet, *reserved]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL, *reserved])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def make(home: Path) -> None:
    """Write every model under `home`."""
    save(home / "target", config("Qwen3ForCausalLM", LAYERS), target_weights(LAYERS), tokenizer=True)
    save(home / "draft", config("Qwen3ForCausalLM", 2), target_weights(2), tokenizer=True)
    save(home / "dflash", dflash_config("DFlashDraftModel", block_size=8), dflash_weights())
    markov = {"markov_rank": MARKOV_RANK, "markov_head_type": "vanilla"}
    tapped = {"mask_token_id": MASK_TOKEN, "target_layer_ids": TAPPED_LAYERS}
    save(home / "dspark", dflash_config("Qwen3DSparkModel", block_size=7, **markov, **tapped), dspark_weights())
    eagle3 = {"model_type": "llama", "draft_vocab_size": VOCABULARY, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    save(home / "eagle3", config("LlamaForCausalLMEagle3", 1, **eagle3), eagle3_weights())
    save(home / "nemotron", nemotron_config(), weights=None, tokenizer=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
