"""Runs inside a process that has no spantrace: lends it ours, and attaches it.

Its source is what `spantrace.vllm_adapter.attaching` hands to the process: standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


class Lender(MetaPathFinder):
    """Finds the packages of these names in these folders, after everybody else has looked, and no others."""

    def __init__(self, names: Sequence[str], folders: Sequence[str]) -> None:
        self._names, self._folders = frozenset(names), list(folders)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a package that is lent."""
        return PathFinder.find_spec(fullname, self._folders) if path is None and fullname in self._names else None


def attach_this_process(names: Sequence[str], folders: Sequence[str], directory: str, answer: str) -> None:
    """Open this process's control socket in `directory`, and write to the file `answer` why not, or nothing."""
    try:
        if find_spec("spantrace") is None:
            sys.meta_path.append(Lender(names, folders))
        from spantrace.vllm_adapter.plugin import attach

        attach(directory)
        said = ""
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    try:
        Path(f"{answer}.part").write_text(said)
        Path(f"{answer}.part").rename(answer)
    except OSError:
        pass
