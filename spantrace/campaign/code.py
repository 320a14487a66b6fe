"""The hash of the code that an arm runs, so that a result says what it is a result of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from optimized.optimization import STOCK_OF

_ROOT = Path(__file__).resolve().parents[2]


def own_code(optimizations: Iterable[str]) -> str:
    """Of the recorder, the built-in cycle and the folders of these optimizations, as one sha256."""
    others = {path.parent for path in (_ROOT / "optimized").glob("*/__init__.py")} - {
        _ROOT / "optimized/reference_cycle"
    }
    wanted = {_ROOT / "optimized" / name.removeprefix(STOCK_OF).replace("-", "_") for name in optimizations}
    sources = [path for room in ("spantrace", "optimized") for path in (_ROOT / room).rglob("*.py")]
    left_out = (others - wanted) | {_ROOT / "spantrace/cli"}
    return hash_of_sources(path for path in sources if not left_out & set(path.parents))


def together(*parts: str) -> str:
    """One hash of several hashes or texts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def hash_of_sources(sources: Iterable[Path]) -> str:
    """The sha256 of files, their names and contents."""
    whole = hashlib.sha256()
    for path in sorted(sources):
        content = path.read_bytes()
        whole.update(f"{path.name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()


@cache
def vllm_code(sources: Path | None, otherwise: str) -> str:
    """The hash of a vLLM's Python files below `sources`; `otherwise` where they cannot be seen from here."""
    files = list((sources / "vllm").rglob("*.py")) if sources else []
    return hash_of_sources(files) if files else otherwise
