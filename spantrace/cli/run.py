"""`spantrace run`: record the built-in cycle, which needs no server and no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli import making
from spantrace.cli.cycle_options import cycle_options, place_of, rates_of, require_torch, settings_of
from spantrace.cli.making import force_option, output_option
from spantrace.cli.options import MOST_CYCLES

if TYPE_CHECKING:
    from spantrace.built_in.running import Asked
    from spantrace.journal import Journal


@click.command("run")
@cycle_options
@click.option("--cycles", type=click.IntRange(1, MOST_CYCLES), default=200, show_default=True,
              help="Decode cycles to record.")  # fmt: skip
@click.option("--warmup", type=click.IntRange(0, MOST_CYCLES), default=20, show_default=True,
              help="Steady cycles before them.")  # fmt: skip
@click.option("--optimize", default="none", show_default=True, metavar="IDS", help="Optimizations: a,b or all or none.")
@click.option("--graph-spans", is_flag=True,
              help="Time the parts of CUDA graphs too, by a second capture with marks (GPU only).")  # fmt: skip
@output_option
@force_option
def command(output: Path | None, force: bool, **options: Any) -> None:
    """Record the built-in speculative-decode cycle: a small target and its drafter, in PyTorch."""
    from spantrace.cli.optimizing import tell_left_out
    from spantrace.journal import Journal

    if output:
        making.refuse_output(output, force=force)
    asked = _asked(options)
    from spantrace.built_in.running import ENGINE

    path = output or making.default_output(f"{options['geometry']}-{options['drafter']}")
    started_as = " ".join(filter(None, (_written(name, value) for name, value in options.items())))
    header = making.new_header(started_as, {"warmup": asked.warmup, "cycles": asked.cycles, "seconds": None})
    header["server"]["engine"] = ENGINE
    with Journal(path, header, force=force) as journal:
        _run(asked, journal)
    tell_left_out(options["optimize"], place=place_of(options))


def _run(asked: Asked, journal: Journal) -> None:
    from spantrace.built_in.running import BuiltIn, within_memory
    from spantrace.interrupts import signals_held
    from spantrace.switched import switched

    run = None
    with making.kept(journal, lambda: run.steps if run else 0):
        with within_memory(asked.settings):
            run = BuiltIn(asked)
            with making.progress_bar(run.lengths.known, "preparing", "tokens") as progress:
                run.prepare(progress)
            with making.progress_bar(asked.cycles + asked.warmup) as progress:
                run.record(journal, progress)
        with signals_held():
            if run.interrupted:
                click.echo("stopped; what was recorded is kept", err=True)
            recording = journal.finish()
            making.say_written(recording, journal.path)
            for one in switched(recording.header):
                if one.warning:
                    click.echo(f"spantrace: {one.warning}", err=True)


def _asked(options: dict[str, Any]) -> Asked:
    require_torch()
    import optimized
    from spantrace.built_in.running import Asked

    names = optimized.select(options["optimize"], place=place_of(options))
    settings, rates = settings_of(options), rates_of(options["accept"])
    counts = options["cycles"], options["warmup"]
    return Asked(settings, rates, tuple(names), *counts, graph_spans=options["graph_spans"])


def _written(name: str, value: object) -> str:
    """An option as it is given; nothing of one that was left out."""
    option = f"--{name.replace('_', '-')}"
    return "" if value is None or value is False else option if value is True else f"{option} {value}"
