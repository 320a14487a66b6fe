"""What a hook declares: the vLLM function it wraps and what a call of that function is recorded as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Runner = Literal["V1", "V2"]


@dataclass(frozen=True)
class Hook:
    """One vLLM function that is wrapped while a recording runs.

    `target` is "module:Class.method" or "module:function", a function in the module that calls it; `versions` a
    PEP 440 specifier; `runner` None where both model runners or the engine call it. `span` None records no row,
    only what `probe` reads. Inside `draft.propose` the row is named `in_draft` where that is set. `gpu` also
    times the call on the GPU's stream. `follows` says that vLLM launches nothing but this span's own work on the
    stream since the GPU span before it, which may therefore lend its closing event as this one's opening event.
    `threaded` marks functions that may run off the process's main thread. `graph` is the kind of CUDA graph that
    a call of this function means. `always` hooks are in force in each cycle, the others in those in detail.
    `without_gpu` hooks are of calls that only launch their work where a GPU does it, and are left out there.
    """

    span: str | None
    target: str
    versions: str = ">=0.26"
    runner: Runner | None = None
    gpu: bool = False
    follows: bool = False
    in_draft: str | None = None
    probe: str | None = None
    threaded: bool = False
    graph: str | None = None
    always: bool = False
    without_gpu: bool = False

    @property
    def name(self) -> str:
        """The target without its module: "Class.method" or "function"."""
        return self.target.partition(":")[2]


@dataclass(frozen=True)
class ModelHook:
    """One method of the target's or the drafter's own class, which only a live runner knows.

    "call" stands for `__call__` where a class above `torch.nn.Module` defines one, else for `forward`.
    """

    span: str
    owner: Literal["target", "drafter"]
    method: str
    runner: Runner | None = None
    gpu: bool = False
    follows: bool = False
    in_draft: str | None = None
    graph: str | None = None
