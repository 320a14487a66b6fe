"""`spantrace ab`: measure arms in turns, and say what each optimization saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.campaign.order import LEAST_CYCLES, MOST_CYCLES, MOST_REPEATS
from spantrace.cli.cycle_options import cycle_options, place_of
from spantrace.cli.options import OutputPath, directory_option, format_option

if TYPE_CHECKING:
    from collections.abc import Callable

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
@click.option("-o", "--output", type=OutputPath(path_type=Path, file_okay=False),
              help="Directory of the campaign (default: named after the plan and its hash).")  # fmt: skip
@click.option("--plot", "picture", type=OutputPath(path_type=Path, dir_okay=False), metavar="FILE.png",
              help="Also draw the arms' distributions and the drift.")  # fmt: skip
@click.option("--with", "others", multiple=True, type=click.Path(path_type=Path, file_okay=False, exists=True),
              help="Another day's campaign to combine this one with; may be repeated.")  # fmt: skip
@click.option("--final", type=click.Path(path_type=Path, file_okay=False, exists=True),
              help="A re-run on the final code, which gets a column beside the others.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would be measured, and for how long.")
@click.option("--so-far", is_flag=True, help="Print what the finished windows show, and measure nothing.")
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
    so_far: bool,
    form: str,
    **options: Any,
) -> None:
    """Measure arms in turns and attribute what they saved; a campaign that was killed goes on where it stopped.

    The arms are those of PLAN.toml, or those that the options name, on the built-in cycle, on a running SERVER (:PORT
    or URL) or on one that is started with `serve -- MODEL ...`. A DIRECTORY is a campaign of before: what is missing of
    it is measured, and its result printed.
    """
    from spantrace.campaign.plan import BUILT_IN
    from spantrace.campaign.store import Store
    from spantrace.cli.campaigns import check_gates, check_results, show
    from spantrace.cli.optimizing import tell_left_out
    from spantrace.cli.planning import planned
    from spantrace.control import default_directory

    place = directory or default_directory()
    plan, proposed = planned(what, options, place)
    check_gates(plan)
    store = Store(output or proposed, plan)
    check_results(store, picture, others, final)
    if what == BUILT_IN:
        tell_left_out(options["optimize"], place=place_of(options))
    if store.missing() and not so_far:
        _measure(store, place, dry_run=dry_run)
    if not dry_run:
        show(store, form, picture, others, final)


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
        more = " and what the load takes besides" if seconds is None and plan.load.get("command") else ""
        _say(f"estimated time {about}{more}; if it is killed, spantrace ab {store.directory} goes on")
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
