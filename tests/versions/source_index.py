"""Questions about one vLLM release's sources, answered from their syntax trees without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
SEARCHED = (
    "v1/worker",
    "v1/spec_decode",
    "v1/core/sched",
    "v1/engine",
    "v1/executor",
    "v1/attention/backends",
    "v1/sample",
)


@lru_cache(maxsize=64)
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


class SourceIndex:
    """The sources of one version below `root`, the folder that holds the package `vllm`."""

    def __init__(self, version: str, root: Path) -> None:
        self.version = version
        self._root = root

    def path(self, module: str) -> Path | None:
        """The module's file, None where this version has no such module."""
        base = self._root.joinpath(*module.split("."))
        return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)

    def defines(self, target: str) -> bool:
        """Whether the module has the function, or its class the method (or a base of it in the same module)."""
        module, _, name = target.partition(":")
        if self._function(target) is not None:
            return True
        return "." not in name and name in self._imported(module)

    def parameters(self, target: str) -> list[str]:
        """The names of a function's positional parameters."""
        function = self._function(target)
        assert function is not None, target
        return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]

    def returns(self, target: str) -> str:
        """A function's return annotation as text."""
        function = self._function(target)
        assert function is not None, target
        return ast.unparse(function.returns) if function.returns else ""

    def fields(self, target: str) -> set[str]:
        """The names that a class's body declares or assigns."""
        module, _, name = target.partition(":")
        found = set()
        for node in self._classes(module)[name].body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
        return found

    def calls(self, module: str, name: str) -> bool:
        """Whether the module calls `name`, which may have one dot, by looking it up there."""
        path = self.path(module)
        calls = (node for node in ast.walk(_parse(path)) if isinstance(node, ast.Call)) if path else ()
        return any(ast.unparse(call.func) == name for call in calls if isinstance(call.func, ast.Name | ast.Attribute))

    def captures(self, target: str) -> list[str]:
        """Ways in which a patch of a class's method would not be seen: slots, `self.f = ...`, `self.g = self.f`."""
        module, _, name = target.partition(":")
        owner, _, method = name.rpartition(".")
        if not owner or method.startswith("__"):
            return []
        family = [self._classes(module).get(owner), *(node for _, node in self._subclasses(owner))]
        return [f"{target}: {why}" for node in family if node for why in _captures(node, method)]

    def overrides(self, target: str, hooked: set[str]) -> list[str]:
        """Subclasses' own versions of a hooked method that neither call it nor are hooked: "Class.method"."""
        owner, _, method = target.partition(":")[2].rpartition(".")
        found = []
        for module, node in self._subclasses(owner) if owner and not method.startswith("__") else ():
            own = _method(node, method)
            if own and not _calls_super(own, method) and f"{module}:{node.name}.{method}" not in hooked:
                found.append(f"{node.name}.{method}")
        return found

    def _function(self, target: str) -> Function | None:
        module, _, name = target.partition(":")
        owner, _, method = name.rpartition(".")
        if owner:
            return self._inherited(module, owner, method)
        path = self.path(module)
        body = _parse(path).body if path else []
        return next((node for node in body if isinstance(node, Function) and node.name == name), None)

    def _inherited(self, module: str, owner: str, method: str) -> Function | None:
        classes = self._classes(module)
        node = classes.get(owner)
        while node is not None:
            if found := _method(node, method):
                return found
            node = next((classes[base] for base in _bases(node) if base in classes), None)
        return None

    def _classes(self, module: str) -> dict[str, ast.ClassDef]:
        path = self.path(module)
        body = _parse(path).body if path else []
        return {node.name: node for node in body if isinstance(node, ast.ClassDef)}

    def _imported(self, module: str) -> set[str]:
        path = self.path(module)
        body = _parse(path).body if path else []
        imports = (node for node in body if isinstance(node, ast.ImportFrom))
        return {alias.asname or alias.name for node in imports for alias in node.names}

    def _subclasses(self, owner: str) -> Iterator[tuple[str, ast.ClassDef]]:
        for module, node in self._by_base.get(owner, []):
            if node.name != owner:
                yield module, node
                yield from self._subclasses(node.name)

    @cached_property
    def _by_base(self) -> dict[str, list[tuple[str, ast.ClassDef]]]:
        found: dict[str, list[tuple[str, ast.ClassDef]]] = {}
        for folder in SEARCHED:
            for path in sorted((self._root / "vllm" / folder).rglob("*.py")):
                module = ".".join(path.relative_to(self._root).with_suffix("").parts)
                for node in ast.parse(path.read_text()).body:
                    for base in _bases(node) if isinstance(node, ast.ClassDef) else ():
                        found.setdefault(base, []).append((module, node))  # type: ignore[arg-type]
        return found


def _bases(node: ast.ClassDef) -> list[str]:
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return [ast.unparse(base).rpartition(".")[2] for base in plain]


def _method(node: ast.ClassDef, name: str) -> Function | None:
    return next((one for one in node.body if isinstance(one, Function) and one.name == name), None)


def _calls_super(function: Function, method: str) -> bool:
    return any(f"super().{method}(" in ast.unparse(node) for node in function.body)


def _captures(node: ast.ClassDef, method: str) -> Iterator[str]:
    for statement in ast.walk(node):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        names = [ast.unparse(one) for one in targets]
        if f"self.{method}" in names:
            yield f"{node.name} sets self.{method}"
        if "__slots__" in names:
            yield f"{node.name} has __slots__"
        attributes = [name for name in names if name.startswith("self.")]
        if attributes and ast.unparse(statement.value) == f"self.{method}":  # type: ignore[attr-defined]
            yield f"{node.name} binds it to {attributes[0]}"
    if any("slots=True" in ast.unparse(decorator) for decorator in node.decorator_list):
        yield f"{node.name} has slots"
