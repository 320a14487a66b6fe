"""The hash of the code that an arm runs, so that a result says what it is a result of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from optimized.optimization import STOCK_OF

_ROOT = Path(__file__).resolve().parents[2]


def own_code(optimizations: Iterable[str], root: Path = _ROOT) -> str:
    """The sha256 of `own_sources`."""
    return hash_of_sources(own_sources(optimizations, root))


def own_sources(optimizations: Iterable[str], root: Path = _ROOT) -> list[Path]:
    """The files of the recorder, the built-in cycle and the folders of these optimizations, below `root`."""
    folder = root / "optimized"
    others = {path.parent for path in folder.glob("*/__init__.py")} - {folder / "reference_cycle"}
    wanted = {folder / name.removeprefix(STOCK_OF).replace("-", "_") for name in optimizations}
    sources = [path for room in ("spantrace", "optimized") for path in (root / room).rglob("*.py")]
    left_out = (others - wanted) | {root / "spantrace/cli"}
    return [path for path in sources if not left_out & set(path.parents)]


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


def vllm_code(sources: Path | None, otherwise: str) -> str:
    """The hash of a vLLM's Python files below `sources`; `otherwise` where they cannot be seen from here."""
    files = tuple((sources / "vllm").rglob("*.py")) if sources else ()
    return _unless_changed(files, newest(files)) if files else otherwise


def newest(files: Iterable[Path]) -> float:
    """When the file that was changed last was, in seconds since the epoch; 0 where there is none."""
    return max((path.stat().st_mtime for path in files), default=0.0)


@cache
def _unless_changed(files: tuple[Path, ...], _: float) -> str:
    return hash_of_sources(files)
