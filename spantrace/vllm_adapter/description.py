"""What a recording says of the server it was made on: its configuration and the GPU of this process."""

from __future__ import annotations

import sys
from typing import Any

from spantrace.frames import Frame

_CONFIGURATION: dict[str, tuple[str, ...]] = {
    "model": ("model_config", "model"),
    "served_model_name": ("model_config", "served_model_name"),
    "dtype": ("model_config", "dtype"),
    "quantization": ("model_config", "quantization"),
    "load_format": ("load_config", "load_format"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "max_model_len": ("model_config", "max_model_len"),
    "method": ("speculative_config", "method"),
    "drafter": ("speculative_config", "model"),
    "num_speculative_tokens": ("speculative_config", "num_speculative_tokens"),
    "draft_attention_backend": ("speculative_config", "attention_backend"),
    "rejection_sample_method": ("speculative_config", "rejection_sample_method"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "prefix_caching": ("cache_config", "enable_prefix_caching"),
    "block_size": ("cache_config", "block_size"),
    "tensor_parallel": ("parallel_config", "tensor_parallel_size"),
    "pipeline_parallel": ("parallel_config", "pipeline_parallel_size"),
    "data_parallel": ("parallel_config", "data_parallel_size"),
    "compile_mode": ("compilation_config", "mode"),
    "graph_mode": ("compilation_config", "cudagraph_mode"),
    "attention_backend": ("attention_config", "backend"),
}
Plain = str | int | float | bool | None
LOOKS_UP = {"ngram", "ngram_gpu", "suffix"}
"""Methods that propose only where the text so far has a match."""


def describe_server(config: Any, runner: Any) -> Frame:
    """A VllmConfig and a model runner (or None) as plain values; what this vLLM does not have is None."""
    server: dict[str, Plain] = {key: _plain(_follow(config, path)) for key, path in _CONFIGURATION.items()}
    server["vllm"] = str(getattr(sys.modules.get("vllm"), "__version__", ""))
    if runner is not None:
        server |= _from_runner(runner)
    server["always_drafts"] = server["method"] not in LOOKS_UP
    if server["method"] is None:
        server["num_speculative_tokens"] = 0
    return {"server": server, "gpu": gpu_description()}


def gpu_of_this_process() -> int | None:
    """The index of the CUDA device on which this process holds memory; None without one. Initialises nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    used = [int(torch.cuda.memory_reserved(index)) for index in range(torch.cuda.device_count())]
    return used.index(max(used)) if any(used) else None


def gpu_description() -> dict[str, Plain] | None:
    """Name, uuid and software of this process's GPU."""
    index = gpu_of_this_process()
    if index is None:
        return None
    torch = sys.modules["torch"]
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _follow(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = getattr(value, name, None)
    return value


def _plain(value: Any) -> Plain:
    if value is None or isinstance(value, bool | int | float | str):
        return getattr(value, "name", value)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(getattr(value, "name", None) or value).rpartition(".")[2]


def runner_version(runner: Any) -> str:
    """ "V1" or "V2": which of vLLM's two model runners this is."""
    modules = {base.__module__ for base in type(runner).__mro__}
    return "V2" if "vllm.v1.worker.gpu.model_runner" in modules else "V1"


def _backends(groups: Any) -> str | None:
    """The names of the attention backends in a runner's (nested) list of attention groups."""
    flat = [group for entry in groups or () for group in (entry if isinstance(entry, list | tuple) else [entry])]
    names = {str(group.backend.get_name()) for group in flat}
    return ",".join(sorted(names)) or None


def _from_runner(runner: Any) -> dict[str, Plain]:
    """What only the runner knows for sure: which one it is, and the backends in use."""
    drafter = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
    groups = getattr(drafter, "attn_groups", None) or getattr(drafter, "draft_attn_groups", None)
    known = {
        "runner": runner_version(runner),
        "attention_backend": _backends(getattr(runner, "attn_groups", None)),
        "draft_attention_backend": _backends(groups),
    }
    return {key: value for key, value in known.items() if value is not None}
