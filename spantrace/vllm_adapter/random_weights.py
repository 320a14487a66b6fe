"""`--load-format spantrace-random`: random weights that mean something, where only a model's configuration is at hand.

Norms are 1, biases 0, matrices N(0, 1 / fan-in), embeddings N(0, 1), so that activations keep their scale and every
layer changes the output: with `--load-format dummy` all logits are nearly equal and comparing outputs means nothing.
Each tensor is drawn from a seed of its own, made of its name and, where tensor parallelism shards its layer, of the
rank: a server started twice has the same model, ranks agree on replicated tensors and differ in shards.

`--model-loader-extra-config '{"zero_attention": 0}'` zeroes the output projection of that attention layer, from 0: the
model that `spantrace probe` must be able to tell from the whole one. `{"weights": "dummy"}` fills as vLLM's `dummy`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from spantrace.errors import SpantraceError

LOAD_FORMAT, ZERO_ATTENTION = "spantrace-random", "zero_attention"
_OPTIONS = {ZERO_ATTENTION, "weights"}
_ATTENTION = ("Attention", "MLAAttention")
# Mamba2's own initialisation: how fast a state decays, and the range of its time step.
DECAY = (1.0, 16.0)
TIME_STEP = (1e-3, 1e-1)


def register() -> None:
    """Make the load format known to this process's vLLM."""
    from vllm.config import LoadConfig, ModelConfig
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    class RandomWeightsLoader(BaseModelLoader):  # type: ignore[misc]
        """Builds the model and fills it in place; reads no checkpoint."""

        def download_model(self, model_config: ModelConfig) -> None:
            """There is nothing to download."""

        def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
            """Fill the parameters of an initialised model."""
            if model_config.quantization:
                why = f"{model_config.model} is quantised ({model_config.quantization})"
                raise SpantraceError(f"{why}, which --load-format {LOAD_FORMAT} cannot imitate; serve it unquantised")
            options = _checked(self.load_config.model_loader_extra_config)
            if options.get("weights") == "dummy":
                DummyModelLoader(LoadConfig(load_format="dummy")).load_weights(model, model_config)
            else:
                fill(model, get_tensor_model_parallel_rank())
            if ZERO_ATTENTION in options:
                zero_attention(model, options[ZERO_ATTENTION])
            _fuse_context_kv(model)

    register_model_loader(LOAD_FORMAT)(RandomWeightsLoader)


def fill(model: nn.Module, rank: int = 0) -> None:
    """Overwrite the floating-point parameters of `model`; `rank` enters the seeds of sharded layers."""
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        if parameter.is_floating_point():
            seed = f"{name}@{rank}" if _sharded(modules[path]) else name
            with torch.no_grad():
                _initialize(parameter, leaf, modules[path], _generator(seed, parameter.device))


def zero_attention(model: nn.Module, layer: int) -> None:
    """Let the attention layer of that number, from 0, add nothing; SpantraceError where the model has no such layer."""
    owners = [module for module in model.modules() if any(_is_attention(child) for child in module.children())]
    if not 0 <= layer < len(owners):
        raise SpantraceError(f"{ZERO_ATTENTION} is {layer}, but the model has {len(owners)} attention layers, from 0")
    outputs = [child for child in owners[layer].children() if _is_row_parallel(child)]
    if not outputs:
        raise SpantraceError(f"{type(owners[layer]).__name__} has no output projection that could be zeroed")
    with torch.no_grad():
        for parameter in (one for output in outputs for one in output.parameters()):
            parameter.zero_()


def _checked(options: object) -> dict[str, Any]:
    """The loader's extra configuration; SpantraceError for what it cannot mean."""
    given = dict(options) if isinstance(options, Mapping) else {}
    layer = given.get(ZERO_ATTENTION, 0)
    if given.keys() - _OPTIONS or given.get("weights", "dummy") != "dummy" or type(layer) is not int:
        known = f'{{"{ZERO_ATTENTION}": 0, "weights": "dummy"}}'
        raise SpantraceError(f"--load-format {LOAD_FORMAT} understands {known}, not {given}")
    return given


def _is_attention(module: nn.Module) -> bool:
    return type(module).__name__ in _ATTENTION


def _is_row_parallel(module: nn.Module) -> bool:
    return any(base.__name__ == "RowParallelLinear" for base in type(module).__mro__)


def _fuse_context_kv(model: nn.Module) -> None:
    """What a block drafter's `load_weights` ends with; later, a CPU's layers have given up their weights."""
    for module in model.modules():
        if hasattr(module, "_build_fused_kv_buffers"):
            module._build_fused_kv_buffers()


def _sharded(module: nn.Module) -> bool:
    replicated = any(base.__name__ == "ReplicatedLinear" for base in type(module).__mro__)
    return not replicated and getattr(module, "tp_size", 1) > 1


def _initialize(parameter: torch.Tensor, leaf: str, owner: nn.Module, generator: torch.Generator) -> None:
    if leaf in _MAMBA:
        uniform = torch.rand(parameter.shape, generator=generator, device=parameter.device, dtype=torch.float32)
        parameter.copy_(_MAMBA[leaf](uniform))
    elif parameter.dim() < 2 or leaf.endswith("bias"):
        parameter.fill_(_vector_value(leaf, owner))
    else:
        parameter.normal_(0.0, _standard_deviation(parameter, owner), generator=generator)


def _decay(uniform: torch.Tensor) -> torch.Tensor:
    return DECAY[0] + uniform * (DECAY[1] - DECAY[0])


def _time_step_bias(uniform: torch.Tensor) -> torch.Tensor:
    """What softplus turns into log-uniform time steps."""
    low, high = (math.log(bound) for bound in TIME_STEP)
    step = torch.exp(low + uniform * (high - low))
    return step + torch.log(-torch.expm1(-step))


_MAMBA: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "A": lambda uniform: -_decay(uniform),
    "A_log": lambda uniform: _decay(uniform).log(),
    "D": torch.ones_like,
    "dt_bias": _time_step_bias,
}


def _vector_value(leaf: str, owner: nn.Module) -> float:
    """The constant of a vector or scalar: 1 where it scales, 0 where it shifts; Gemma's norms scale by 1 + weight."""
    scales = leaf == "weight" or leaf.endswith("scale")
    return float(scales and "Gemma" not in type(owner).__name__)


def _standard_deviation(parameter: torch.Tensor, owner: nn.Module) -> float:
    if "Embedding" in type(owner).__name__:
        return 1.0
    # A row-parallel layer's sum runs over all ranks: its own `input_size`, not the shard's, is the fan-in.
    local = parameter.shape[1:].numel() if parameter.dim() > 3 else parameter.shape[-1]
    fan_in = getattr(owner, "input_size", None) or local
    return 1.0 / math.sqrt(fan_in)


def _generator(seed: str, device: torch.device) -> torch.Generator:
    number = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=7).digest(), "little")
    return torch.Generator(device=device).manual_seed(number)
