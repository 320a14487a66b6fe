"""`spantrace ab`: measure arms in turns, and say what each optimization saved."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.campaign.order import LEAST_CYCLES, MOST_CYCLES, MOST_REPEATS
from spantrace.cli.cycle_options import cycle_options
from spantrace.cli.options import directory_option, format_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spantrace.campaign.built_in import BuiltInTarget
    from spantrace.campaign.plan import Plan
    from spantrace.campaign.served import ServedServer
    from spantrace.campaign.server import RunningServer
    from spantrace.campaign.store import Store

    AnyTarget = BuiltInTarget | RunningServer | ServedServer


@click.command("ab")
@click.argument("what", metavar="PLAN.toml|DIRECTORY|built-in|SERVER|serve")
@click.option("--optimize", default="all", show_default=True, metavar="IDS",
              help="To attribute, as a,b or all: an arm for each, for all but each, and for all.")  # fmt: skip
@click.option("--restore-stock", default="none", metavar="IDS",
              help="Fixes to attribute that the server's vLLM has itself, as a,b: stock is without them.")  # fmt: skip
@click.option("--order", type=click.Choice(["abba", "latin"]), default="abba", show_default=True,
              help="Forwards and backwards in turn, or a balanced Latin square.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1, MOST_REPEATS), default=8, show_default=True,
              help="Windows of each arm.")  # fmt: skip
@click.option("--cycles", type=click.IntRange(LEAST_CYCLES, MOST_CYCLES), default=200, show_default=True,
              help="Decode cycles of a window.")  # fmt: skip
@click.option(
    "--warmup", type=click.IntRange(0, MOST_CYCLES), default=20, show_default=True, help="Steady cycles before them."
)
@click.option("--no-aa", is_flag=True, help="Leave out the arm that is stock once more, which shows the noise.")
@click.option("--gates", type=click.Path(path_type=Path, dir_okay=False),
              help="What must hold (gates.toml), written down before the first window.")  # fmt: skip
@click.option("--load", metavar="COMMAND", help="What puts load on a server, with {url} {model} {tokenizer} {result}; "
              "or none (default: vllm bench serve, 32K shared prefix, 2K in, 256 out, one stream).")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False),
              help="Directory of the campaign (default: named after the plan and its hash).")  # fmt: skip
@click.option("--plot", "picture", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.png",
              help="Also draw the arms' distributions and the drift.")  # fmt: skip
@click.option("--with", "others", multiple=True, type=click.Path(path_type=Path, file_okay=False, exists=True),
              help="Another day's campaign to combine this one with; may be repeated.")  # fmt: skip
@click.option("--final", type=click.Path(path_type=Path, file_okay=False, exists=True),
              help="A re-run on the final code, which gets a column beside the others.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would be measured, and for how long.")
@cycle_options
@directory_option
@format_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM SERVE ARGUMENTS]")
def command(
    what: str,
    output: Path | None,
    picture: Path | None,
    others: tuple[Path, ...],
    final: Path | None,
    directory: Path | None,
    dry_run: bool,
    form: str,
    **options: Any,
) -> None:
    """Measure arms in turns and attribute what they saved; a campaign that was killed goes on where it stopped.

    The arms are those of PLAN.toml, or those that the options name, on the built-in cycle, on a running SERVER (:PORT
    or URL) or on one that is started with `serve -- MODEL ...`. A DIRECTORY is a campaign of before: what is missing of
    it is measured, and its result printed.
    """
    from spantrace.campaign.store import Store
    from spantrace.cli.campaigns import check_gates, check_results, show
    from spantrace.control import default_directory

    place = directory or default_directory()
    plan, proposed = _plan(what, options, place)
    check_gates(plan)
    store = Store(output or proposed, plan)
    check_results(store, picture, others, final)
    if store.missing():
        _measure(store, place, dry_run=dry_run)
    if not dry_run:
        show(store, form, picture, others, final)


def _plan(what: str, options: dict[str, Any], place: Path) -> tuple[Plan, Path]:
    """The plan, and the directory of its campaign unless another one is named."""
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

    cycle = [name for name in options if name not in (*_OWN, *_ARMS, "gates", "load", "arguments")]
    arms = {"optimize": optimized.select(options["optimize"], _version(what, place)), "aa": not options["no_aa"]}
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


def _measure(store: Store, place: Path, *, dry_run: bool) -> None:
    """Say how long it takes and, unless that is all, measure; the directory is held before the target is touched."""
    from contextlib import ExitStack

    from analyzers.compare import configuration
    from spantrace.campaign.running import run
    from spantrace.cli import making
    from spantrace.interrupts import ended_by_signals

    plan, target = store.plan, _target(store, place)
    options = {"warmup": plan.warmup, "cycles": plan.cycles, "seconds": None, "detail_every": plan.detail_every}
    with ended_by_signals(), ExitStack() as stack:
        if not dry_run:
            stack.enter_context(store)
        stack.enter_context(target)
        missing, seconds = store.missing(), store.seconds_a_window()
        windows = f"windows of {plan.warmup} + {plan.cycles} cycles, {len(missing)} of {len(store.windows)} to measure"
        _say(f"plan {plan.hash[:6]}: {len(plan.arms)} arms x {plan.repeats}, {plan.order.upper()}, {windows}")
        about = duration(target.seconds(missing) if seconds is None else seconds * len(missing))
        _say(f"estimated time {about}; if it is killed, spantrace ab {store.directory} goes on")
        if dry_run:
            return
        progress = stack.enter_context(making.progress_bar(len(store.windows), "measuring", "windows"))
        watch = _watch(store, len(missing), progress)
        run(store, target, lambda: making.new_header(f"ab {store.directory}", options), configuration, _say, watch)


def _watch(store: Store, missing: int, progress: Callable[[int], None]) -> Callable[[int], None]:
    """What moves the bar, and once, when each arm has had its turn, estimates anew by what they took."""
    turn = [len(store.windows) - missing + len(store.plan.arms)]

    def watch(done: int) -> None:
        progress(done)
        left = len(store.windows) - done
        if done in turn and left and (each := store.seconds_a_window()):
            turn.clear()
            _say(f"{done} windows are done, estimated time left {duration(each * left)}")

    return watch


def _target(store: Store, place: Path) -> AnyTarget:
    from spantrace.campaign.plan import BUILT_IN, SERVE
    from spantrace.packages import refuse_stranger

    refuse_stranger("optimized")
    plan = store.plan
    if plan.target == BUILT_IN:
        return _built_in(plan)
    from spantrace.campaign.served import ServedServer
    from spantrace.campaign.server import RunningServer

    if plan.target == SERVE:
        return ServedServer(plan, place, store.directory / "server.log")
    return RunningServer(store, place)


def _built_in(plan: Plan) -> BuiltInTarget:
    from spantrace.cli.cycle_options import parse_cycle, rates_of, require_torch, settings_of

    require_torch()
    from spantrace.built_in.running import Asked
    from spantrace.campaign.built_in import BuiltInTarget

    options = parse_cycle(plan.built_in)
    return BuiltInTarget(plan, Asked(settings_of(options), rates_of(options["accept"])))


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    whole = max(round(seconds), 1)
    if whole < 100:
        return f"{whole} s"
    return f"{round(whole / 60)} min" if whole < 5400 else f"{whole / 3600:.1f} h"


def _say(text: str) -> None:
    click.echo(text, err=True)
