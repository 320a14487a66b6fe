"""The plan of a campaign: a file, a directory of before, or what the flags of `spantrace ab` describe."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spantrace.campaign.plan import Plan


def planned(what: str, options: dict[str, Any], place: Path) -> tuple[Plan, Path]:
    """The plan of `ab`'s argument and options, and the directory of its campaign unless another one is named.

    Raises SpantraceError for what cannot be read, and for an option that does not go with the argument.
    """
    from spantrace.campaign.parsing import from_table, parse
    from spantrace.campaign.plan import BUILT_IN, SERVE
    from spantrace.campaign.store import plan_of

    path = Path(what)
    if what in (BUILT_IN, SERVE) or (":" in what and not path.exists()):
        plan = from_table(_table(what, options, place), _read(options["gates"]))
        return plan, Path(f"{what.strip(':').replace('/', '-').replace(':', '-')}-{plan.hash[:6]}")
    _refuse(what, options, list(options), "is what {what} says itself; write it there")
    if path.is_dir():
        return plan_of(path), path
    plan = parse(_read(path), lambda name: _read(path.parent / name))
    return plan, Path(f"{path.stem}-{plan.hash[:6]}")


_OWN, _ARMS = ("order", "repeats", "cycles", "warmup"), ("optimize", "restore_stock", "no_aa")


def _table(what: str, options: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """The plan that the flags describe, as a file would have it."""
    import optimized
    from spantrace.campaign.plan import BUILT_IN, SERVE
    from spantrace.cli.cycle_options import place_of

    cycle = [name for name in options if name not in (*_OWN, *_ARMS, "gates", "load", "arguments")]
    at = place_of(options) if what == BUILT_IN else None
    names = optimized.select(options["optimize"], _version(what, place), at)
    arms = {"optimize": names, "aa": not options["no_aa"]}
    table = {"target": what, **{name: options[name] for name in _OWN}, **arms}
    if what == BUILT_IN:
        _refuse(what, options, ["load", "arguments", "restore_stock"], "is for servers")
        return table | {"built-in": {name.replace("_", "-"): options[name] for name in cycle if _given(name)}}
    _refuse(what, options, cycle, "describes the built-in cycle")
    table["restore"] = optimized.select(options["restore_stock"])
    if options["load"]:
        none = options["load"] == "none"
        table["load"] = {"requests": 0} if none else {"command": shlex.split(options["load"])}
    if what == SERVE:
        return table | {"serve": {"arguments": list(options["arguments"])}}
    _refuse(what, options, ["arguments"], "is for the target 'serve'")
    return table


def _version(what: str, place: Path) -> str | None:
    """The version of the vLLM that is to be measured; None for the built-in cycle."""
    from spantrace.campaign.plan import BUILT_IN, SERVE

    if what == BUILT_IN:
        return None
    if what == SERVE:
        from spantrace.vllm_adapter.launch import installed_version

        return installed_version()
    from spantrace.vllm_adapter.servers import find

    return find(what, place).vllm.partition("+")[0]


def _given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _refuse(what: str, options: Mapping[str, Any], names: list[str], why: str) -> None:
    """SpantraceError where one of these options was given all the same."""
    from spantrace.errors import SpantraceError

    for name in names:
        if options[name] and _given(name):
            said = options[name][0] if name == "arguments" else f"--{name.replace('_', '-')}"
            raise SpantraceError(f"{said} {why.format(what=what)}")


def _read(path: Path | None) -> str:
    from spantrace.errors import SpantraceError

    try:
        return path.read_text() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SpantraceError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
