"""How a vLLM of this environment is started with the plugin in it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, entry_points, version

from spantrace.errors import SpantraceError
from spantrace.packages import refuse_stranger
from spantrace.vllm_adapter.choice import CHOICE
from spantrace.vllm_adapter.delaying import ALLOW_DELAYS
from spantrace.vllm_adapter.graph_request import GRAPH_SPANS

PLUGIN = "spantrace"


def serve_command(arguments: tuple[str, ...]) -> list[str]:
    """The command line of `vllm serve ARGUMENTS`; SpantraceError where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise SpantraceError(f"vLLM is not installed beside {sys.executable}; install it there, or use its environment")
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *arguments]


def serve_environment(
    environment: Mapping[str, str],
    optimize: Sequence[str] = (),
    allow_delays: bool = False,
    graph_spans: bool = False,
) -> dict[str, str]:
    """The environment for a server that loads the plugin, whatever VLLM_PLUGINS says, and applies `optimize`."""
    own = ("SPANTRACE", CHOICE, ALLOW_DELAYS, GRAPH_SPANS)
    ours = {name: value for name, value in environment.items() if name not in own}
    if allow_delays:
        ours[ALLOW_DELAYS] = "1"
    if graph_spans:
        ours[GRAPH_SPANS] = "1"
    if optimize:
        ours[CHOICE] = ",".join(optimize)
    chosen = ours.get("VLLM_PLUGINS")
    if chosen is not None and PLUGIN not in chosen.split(","):
        ours["VLLM_PLUGINS"] = ",".join(filter(None, [chosen, PLUGIN]))
    return ours


def choose(text: str, restore: str = "none") -> list[str]:
    """The ids that --optimize and --restore-stock mean; SpantraceError where one does not fit this environment."""
    if text == restore == "none":
        return []
    refuse_stranger("optimized")
    import optimized
    from optimized.gate import State, admit_here

    vllm = installed_version() or ""
    names = optimized.with_stock(optimized.select(text, vllm), optimized.select(restore, vllm))
    items = {name: optimized.discover()[name] for name in names}
    admissions = {name: admit_here(item, vllm) for name, item in items.items()}
    for name, admission in admissions.items():
        if items[name].vllm_switch is None:
            raise SpantraceError(f"{name} cannot be served: {admission.why}; try spantrace run --optimize {name}")
        if admission.state is State.UPSTREAM:
            raise SpantraceError(f"{name} is already upstream: {admission.why}; leave it out")
        if admission.state is not State.APPLIES:
            raise SpantraceError(f"{name} cannot be served: {admission.why}")
    return names


def installed_version() -> str | None:
    """The version of this environment's vLLM, without its local part; None where there is none."""
    try:
        return version("vllm").partition("+")[0]
    except PackageNotFoundError:
        return None


def plugin_is_visible() -> bool:
    """Whether a vLLM of this environment will find the plugin."""
    return any(entry.name == PLUGIN for entry in entry_points(group="vllm.general_plugins"))
