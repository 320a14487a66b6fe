"""Compiles for an H200, without one, the kernels that a call launches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


def compiled_for_a_gpu(
    launcher: Any, call: Callable[[], object], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What each kernel that `call` launches through `launcher.launch` is compiled to, by the kernel's name.

    `launcher` is the module whose name `launch` the call uses. Nothing is run.
    """
    launched: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {}

    def record(kernel: Any, device: str, grid: tuple[int, ...], arguments: dict[str, Any], **options: Any) -> None:
        launched[kernel.fn.__name__] = kernel, arguments, options

    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    with monkeypatch.context() as patch:
        patch.setattr(launcher, "launch", record)
        call()
    return {name: _compiled(*found) for name, found in launched.items()}


def _compiled(kernel: Any, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime import JITFunction

    types = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int32: "i32"}
    types |= {torch.int64: "i64", torch.bool: "i1"}
    assert set(arguments) == set(kernel.arg_names), "a compiled kernel takes no others, an interpreted one drops them"
    unspecialised = {one.name for one in getattr(kernel, "params", ()) if one.do_not_specialize}
    signature, constants, attributes = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        value = arguments[name]
        if name.isupper() or value is None:
            signature[name], constants[(index,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attributes[(index,)] = f"*{types[value.dtype]}", [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            if value % 16 == 0 and name not in unspecialised:
                attributes[(index,)] = [["tt.divisibility", 16]]
    # Where the kernel was first imported to be interpreted, it is wrapped for that.
    source = ASTSource(
        kernel if isinstance(kernel, JITFunction) else JITFunction(kernel.fn),
        signature,
        constexprs=constants,
        attrs=attributes,
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
