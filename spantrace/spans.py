"""The closed list of span names of one speculative-decode cycle, and what a cycle can be.

A span name's place in `SPAN_NAMES` is its id in recordings: append, never reorder. Which method of which vLLM
runner each name wraps is tabled in `spantrace.vllm_adapter.hooks`.
"""

from __future__ import annotations

from enum import IntEnum

PARENT: dict[str, str | None] = {
    "cycle": None,
    "schedule": "cycle",
    "target.input_prep": "cycle",
    "target.metadata": "cycle",
    "target.metadata.attention": "target.metadata",
    "target.metadata.mamba": "target.metadata",
    "target.metadata.gdn": "target.metadata",
    "target.forward": "cycle",
    "sample": "cycle",
    "postprocess": "cycle",
    "draft.propose": "cycle",
    "draft.input_prep": "draft.propose",
    "draft.context_kv": "draft.propose",
    "draft.metadata": "draft.propose",
    "draft.forward": "draft.propose",
    "output.wait": "cycle",
    "output.update": "cycle",
    "output.emit": "cycle",
    "communication": "cycle",
    "target.forward.embedding": "target.forward",
    "target.forward.first_layers": "target.forward",
    "target.forward.middle_layers": "target.forward",
    "target.forward.last_layers": "target.forward",
    "target.forward.logits": "target.forward",
    "target.forward.output": "target.forward",
    "draft.forward.context_kv": "draft.forward",
    "draft.forward.layers": "draft.forward",
    "draft.forward.logits": "draft.forward",
    "draft.forward.sampling": "draft.forward",
    "draft.forward.markov": "draft.forward",
}
SPAN_NAMES: tuple[str, ...] = tuple(PARENT)
SPAN_ID: dict[str, int] = {name: index for index, name in enumerate(SPAN_NAMES)}
WAITS: frozenset[str] = frozenset({"output.wait"})
"""Spans in which the host does nothing but wait for the GPU or for another process."""
OVERLAID: frozenset[str] = frozenset({"communication"})
"""Spans that lie inside others of whatever name, whose time is theirs too: they are in no sum of the cycle's parts."""


GRAPH_PARTS: frozenset[str] = frozenset(
    name for name, parent in PARENT.items() if parent in ("target.forward", "draft.forward")
)
"""Parts of a CUDA graph: the GPU alone knows them, and only of the cycles whose graphs were replayed with marks."""
WITHIN_OTHERS: frozenset[str] = GRAPH_PARTS | OVERLAID
"""Spans whose GPU time is counted in another span's too: whoever sums up kernels may not count it twice."""


def _tree(above: str | None = None) -> tuple[str, ...]:
    return tuple(one for name, parent in PARENT.items() if parent == above for one in (name, *_tree(name)))


TREE: tuple[str, ...] = _tree()
"""The names in the order of a table: each span before those inside it."""


def own_name(name: str) -> str:
    """A span's name as it is written under the one around it; of what is no span, all of it."""
    parent = PARENT.get(name)
    return name.removeprefix(f"{parent}.") if parent else name


class Track(IntEnum):
    """The clock a span was timed on: the host's, or the GPU stream's."""

    HOST = 0
    GPU = 1


class Kind(IntEnum):
    """What a cycle did; statistics are of `STEADY` cycles unless a caller asks otherwise."""

    STEADY = 0
    PREFILL = 1
    MIXED = 2
    DRAFT_SKIPPED = 3
    AFTER_IDLE = 4
    EMPTY = 5
    GHOST = 6
    WARMUP = 7
    DELAYED = 8


class GraphMode(IntEnum):
    """How the target pass was launched: by which kind of CUDA graph, if any."""

    UNKNOWN = 0
    NONE = 1
    PIECEWISE = 2
    FULL = 3
