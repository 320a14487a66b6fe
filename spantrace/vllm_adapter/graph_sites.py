"""Where the parts of a target's and a drafter's graph end: calls of vLLM's modules, marked in a capture.

A module's hooks do not fire where torch.compile has traced its call, nor does the hook of a module that vLLM compiles
as a whole. A drafter's parts lie between calls that are outside of that; a target's embedding and layers do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spantrace.graph_spans import layer_groups

COMPILED = "torch.compile made one region of it; start the server with --compilation-config '{\"mode\": 0}'"
ABSENT = "the model has no such module"
NOT_CALLED = "the graph does not run it"
OUTSIDE = "vLLM computes them after the graph, in sample"
WITHIN_MARKOV = "a token is sampled in each step of the Markov head, whose time holds it"
NO_MARKOV = "the drafter has no Markov head"
EAGER_CONTEXT = "this vLLM stores the context's keys and values before the graph, in draft.context_kv"
TARGET_REST = "target.forward.output"
"""What is behind the layers in a target's graph: the last norm, and the copies that hand its results on."""


@dataclass(frozen=True)
class GraphSite:
    """The part `name` ends where `module` is called (`before`) or has returned; `why` it cannot be marked."""

    name: str
    module: Any = None
    before: bool = False
    why: str = ""


def target_sites(model: Any) -> list[GraphSite]:
    """The embedding, three groups of layers, and what is not in the graph; of a model that sees, its language model's.

    Such a one is embedded before the graph.
    """
    language = model.get_language_model() if hasattr(model, "get_language_model") else model
    embedding = next((one for one in language.modules() if _is(one, "VocabParallelEmbedding")), None)
    layers = _layers(language)
    groups = [_site(model, name, layers[end]) for end, name in layer_groups(len(layers)).items()]
    return [
        _site(model, "target.forward.embedding", embedding),
        *groups,
        GraphSite("target.forward.logits", why=OUTSIDE),
    ]


def drafter_sites(model: Any, context_in_graph: bool) -> list[GraphSite]:
    """The context's keys and values, the drafter as a whole, and its logits; behind them is `drafter_rest`."""
    logits = getattr(model, "logits_processor", None)
    context = GraphSite("draft.forward.context_kv", model, before=True)
    return [
        context if context_in_graph else GraphSite(context.name, why=EAGER_CONTEXT),
        _site(model, "draft.forward.layers", model),
        _site(model, "draft.forward.logits", logits),
        GraphSite("draft.forward.sampling", why=WITHIN_MARKOV)
        if _has_markov(model)
        else GraphSite("draft.forward.markov", why=NO_MARKOV),
    ]


def drafter_rest(model: Any) -> str:
    """What is behind the logits in a drafter's graph."""
    return "draft.forward.markov" if _has_markov(model) else "draft.forward.sampling"


@contextmanager
def marked(sites: Sequence[GraphSite], end: Callable[[str], None]) -> Iterator[None]:
    """Call `end` with a site's name wherever that site is passed."""
    hooks = []
    try:
        for site in (one for one in sites if not one.why):
            register = site.module.register_forward_pre_hook if site.before else site.module.register_forward_hook
            hooks.append(register(_hook(end, site.name)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(end: Callable[[str], None], name: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        end(name)

    return hook


def _site(model: Any, name: str, module: Any) -> GraphSite:
    if module is None:
        return GraphSite(name, why=ABSENT)
    return GraphSite(name, why=COMPILED) if _is_compiled(model, module) else GraphSite(name, module)


def _is_compiled(model: Any, module: Any) -> bool:
    """Whether vLLM compiles the module or one that holds it."""
    holders = (one for one in model.modules() if getattr(one, "do_not_compile", True) is False)
    return any(module in set(holder.modules()) for holder in holders)


def _layers(model: Any) -> list[Any]:
    """The longest list of modules in the model, without those of other pipeline ranks."""
    import torch

    lists = [one for one in model.modules() if isinstance(one, torch.nn.ModuleList)]
    longest = max(lists, key=len, default=())
    return [layer for layer in longest if not _is(layer, "PPMissingLayer")]


def _is(module: Any, name: str) -> bool:
    return type(module).__name__ == name


def _has_markov(model: Any) -> bool:
    return hasattr(model, "markov_bias")
