"""The plan of a campaign: a file, a directory of before, or what the flags of `spantrace ab` describe."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spantrace.cli.options import given, refuse_given

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
    refuse_given(options, f"is what {what} says itself; write it there")
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
    if options["optimize"] == "all" and what not in (BUILT_IN, SERVE):
        names = _somewhere(what, names, place)
    arms = {"optimize": names, "aa": not options["no_aa"]}
    table = {"target": what, **{name: options[name] for name in _OWN}, **arms}
    if what == BUILT_IN:
        refuse_given(["load", "arguments", "restore_stock"], "is for servers")
        return table | {"built-in": {name.replace("_", "-"): options[name] for name in cycle if given(name)}}
    refuse_given(cycle, "describes the built-in cycle")
    table["restore"] = optimized.select(options["restore_stock"])
    if options["load"]:
        none = options["load"] == "none"
        table["load"] = {"requests": 0} if none else {"command": shlex.split(options["load"])}
    if what == SERVE:
        return table | {"serve": {"arguments": list(options["arguments"])}}
    refuse_given(["arguments"], "is for the target 'serve'")
    return table


def _somewhere(what: str, names: list[str], place: Path) -> list[str]:
    """Those that go into something that a running server has loaded; the others are told on stderr."""
    import click

    from spantrace.vllm_adapter.live import on_nowhere
    from spantrace.vllm_adapter.servers import find

    if without := on_nowhere(find(what, place), names, place):
        click.echo(f"spantrace: all leaves out {', '.join(without)}: this server has loaded nothing for it", err=True)
    return [name for name in names if name not in without]


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


def _read(path: Path | None) -> str:
    from spantrace.errors import SpantraceError

    try:
        return path.read_text() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SpantraceError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
