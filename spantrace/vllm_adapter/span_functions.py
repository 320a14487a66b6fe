"""Which spans a sampled stack of a vLLM process lies in, by the functions that the hooks of a recording would wrap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

from spantrace.py_spy import Frame, Stack
from spantrace.vllm_adapter.hooks import MODEL_HOOKS, hooks_for

_MODELS, _COMPILED = "vllm/model_executor/models/", "vllm/compilation/decorators.py"
_PREPARING = "target.input_prep"
_ENCLOSING = frozenset({"cycle", "draft.propose", _PREPARING})
"""Spans in which a model may be called; in any other one, a module's forward is a part of that span."""
Seen = tuple[tuple[str, str], ...]
"""The spans that a stack lies in, the outermost first, each with the function that it was known by."""


class SpanFunctions:
    """The functions of the hooks of this vLLM, an unknown version getting those of the newest.

    A span that a recording draws from one boundary to another is known by the functions in it only, and what is in
    the worker's execute_model and in no other span is the target's input preparation.
    """

    def __init__(self, version: str) -> None:
        self._targets: dict[tuple[str, str], tuple[str, str | None]] = {}
        self._globals: dict[tuple[str, str], tuple[str, str | None]] = {}
        for hook in hooks_for(version):
            span = _PREPARING if hook.probe == "execute" else hook.span
            if span is None:
                continue
            file = hook.target.partition(":")[0].replace(".", "/") + ".py"
            known = self._targets if "." in hook.name else self._globals
            known[file, hook.name] = span, hook.in_draft
            # Before Python 3.11 a stack has no qualified names.
            known.setdefault((file, hook.name.rpartition(".")[2]), (span, hook.in_draft))
        self._models = {hook.method: (hook.span, hook.in_draft) for hook in MODEL_HOOKS if hook.method != "call"}
        self._calls = next((hook.span, hook.in_draft) for hook in MODEL_HOOKS if hook.method == "call")

    def spans(self, frames: Sequence[Frame]) -> Seen:
        """The spans of one stack, the outermost first, each once."""
        found: dict[str, str] = {}
        caller = ""
        for frame in frames:
            file = _within_vllm(frame.file)
            names = self._names(frame.function, file, caller, found.keys())
            if names is not None:
                span, in_draft = names
                found.setdefault((in_draft if "draft.propose" in found else None) or span, frame.function)
            caller = file
        if list(found)[-1:] != [_PREPARING]:
            found.pop(_PREPARING, None)
        return tuple(found.items())

    def _names(self, function: str, file: str, caller: str, entered: Iterable[str]) -> tuple[str, str | None] | None:
        """The span of a call of this function, and the one that it is in a draft."""
        known = self._targets.get((file, function)) or self._globals.get((caller, function))
        if known is not None or not file.startswith((_MODELS, _COMPILED)):
            return known or self._globals.get((file, function))
        method = function.rpartition(".")[2]
        if file.startswith(_MODELS) and method in self._models:
            return self._models[method]
        called = method == ("__call__" if file == _COMPILED else "forward")
        return self._calls if called and _ENCLOSING.issuperset(entered) else None


def counted(stacks: Iterable[Stack], functions: SpanFunctions) -> Iterator[tuple[int, bool, Seen, int]]:
    """Process, whether it is its main thread, the spans, and how often those were seen together."""
    found: Counter[tuple[int, bool, Seen]] = Counter()
    for stack in stacks:
        main = stack.thread == stack.process
        if (seen := functions.spans(stack.frames)) or main:
            found[stack.process, main, seen] += stack.samples
    for (process, main, seen), samples in found.items():
        yield process, main, seen, samples


def version_of(stacks: Iterable[Stack]) -> str | None:
    """The version of the vLLM that is on these stacks, "" where it does not tell; None where none is on them."""
    for stack in stacks:
        for frame in stack.frames:
            if _within_vllm(frame.file).startswith("vllm/v1/"):
                packages = Path(f"/proc/{stack.process}/root{frame.file}").parents
                site = str(next(folder.parent for folder in packages if folder.name == "vllm"))
                found = [one.version for one in distributions(path=[site]) if one.name and one.name.startswith("vllm")]
                return found[0].partition("+")[0] if found else ""
    return None


def _within_vllm(file: str) -> str:
    """A file's path from the package vllm on, "" where it is none of it."""
    _, inside, rest = file.rpartition("/vllm/")
    return f"vllm/{rest}" if inside else ""
