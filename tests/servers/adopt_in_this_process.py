"""What the plugin adopts in a process of the installed vLLM, as JSON: python adopt_in_this_process.py BEFORE.

BEFORE is what has happened when vLLM loads its plugins: "nothing", or its module was "import"ed, or somebody has
"patch"ed it, or the vLLM is of another "version".
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import vllm
from vllm.plugins import load_general_plugins

from spantrace.vllm_adapter import choice

METHOD = "_compute_common_metadata"
LATER = "from spantrace.vllm_adapter import choice; import os; choice.prepare(os.environ[choice.CHOICE])"


def main(before: str) -> None:
    foreign = before == "patch" and patched()
    if before == "import":
        builder()
    if before == "version":
        vllm.__version__ = "0.99.0"
    load_general_plugins()
    found = vars(builder())[METHOD]
    replaced = found is not foreign and hasattr(found, "__wrapped__")
    later = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, check=True)
    print(json.dumps({**choice.describe(), "replaced": replaced, "child": later.stderr}))


def builder() -> Any:
    from vllm.v1.attention.backends.mamba_attn import BaseMambaAttentionMetadataBuilder

    return BaseMambaAttentionMetadataBuilder


def patched() -> Any:
    original = vars(builder())[METHOD]

    def stranger(*arguments: Any, **named: Any) -> Any:
        return original(*arguments, **named)

    setattr(builder(), METHOD, stranger)
    return stranger


if __name__ == "__main__":
    main(sys.argv[1])
