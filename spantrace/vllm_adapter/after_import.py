"""Calls back once a module has been imported, by an entry in `sys.meta_path` that lets all others find it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Awaiting(MetaPathFinder):
    """Gives the awaited modules' own specs, whose loader calls back after it has run the module."""

    def __init__(self) -> None:
        self.awaited: dict[str, list[Callable[[], None]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give; None for what nobody awaits."""
        if fullname not in self.awaited:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            self._call_back(spec.loader, fullname)
        return spec

    def _call_back(self, loader: Any, name: str) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            for callback in self.awaited.pop(name, []):
                callback()

        loader.exec_module = exec_module


_awaiting = _Awaiting()


def after_import(name: str, callback: Callable[[], None]) -> None:
    """Call `callback`, which must not raise, once the module has been imported: at once where it has been."""
    if name in sys.modules:
        callback()
        return
    _awaiting.awaited.setdefault(name, []).append(callback)
    if _awaiting not in sys.meta_path:
        sys.meta_path.insert(0, _awaiting)
