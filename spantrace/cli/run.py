"""`spantrace run`: record the built-in cycle, which needs no server and no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli import making
from spantrace.cli.making import force_option, output_option
from spantrace.cli.options import device_option, dtype_option

if TYPE_CHECKING:
    from optimized.reference_cycle.settings import Settings
    from spantrace.cli.built_in import Asked
    from spantrace.journal import Journal

_DRAFTERS = ("dflash", "dspark", "none")
_GEOMETRIES = ("tiny", "qwen3-8b", "nemotron-h", "kimi-k3-drafter")


@click.command("run")
@click.option("--drafter", type=click.Choice(_DRAFTERS), default="dflash", show_default=True, help="What drafts.")
@click.option(
    "--geometry", type=click.Choice(_GEOMETRIES), default="tiny", show_default=True, help="Sizes of both models."
)
@click.option("--layers", type=click.IntRange(1), help="Layers of the target, in place of the geometry's.")
@click.option("--hidden", type=click.IntRange(1), help="Width of the models, in place of the geometry's.")
@click.option("--vocab", type=click.IntRange(2), help="Size of the vocabulary, in place of the geometry's.")
@device_option
@dtype_option
@click.option("--cycles", type=click.IntRange(1), default=200, show_default=True, help="Decode cycles to record.")
@click.option("--warmup", type=click.IntRange(0), default=20, show_default=True, help="Steady cycles before them.")
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Requests at a time.")
@click.option("--context", type=click.IntRange(1), default=2048, show_default=True, metavar="TOKENS",
              help="Prompt and output of a request.")  # fmt: skip
@click.option("--draft-length", type=click.IntRange(1), default=7, show_default=True, metavar="K",
              help="Drafted tokens a cycle.")  # fmt: skip
@click.option("--accept", default="0.75", show_default=True, metavar="RATE",
              help="How much of what is proposed is right: each token with this probability, or by position (K shares "
              "as 0.9,0.7,...). A random drafter guesses nothing, so proposals are the target's own words, corrupted; "
              "`drafter` verifies the drafter's own.")  # fmt: skip
@click.option("--optimize", default="none", show_default=True, metavar="IDS", help="Optimizations: a,b or all or none.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights, prompts and wrong proposals.")
@output_option
@force_option
def command(output: Path | None, force: bool, **options: Any) -> None:
    """Record the built-in speculative-decode cycle: a small target and its drafter, in PyTorch."""
    from spantrace.journal import Journal

    if output and not force:
        making.refuse_overwriting(output)
    asked = _asked(options)
    path = output or making.default_output(f"{options['geometry']}-{options['drafter']}")
    started_as = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items() if value is not None)
    header = making.new_header(started_as, {"warmup": asked.warmup, "cycles": asked.cycles, "seconds": None})
    with Journal(path, header) as journal:
        _run(asked, journal)


def _run(asked: Asked, journal: Journal) -> None:
    from spantrace.cli.built_in import BuiltIn, within_memory

    run = None
    try:
        with within_memory(asked.settings):
            run = BuiltIn(asked)
            with making.progress_bar(run.lengths.known, "preparing", "tokens") as progress:
                run.prepare(progress)
            with making.progress_bar(asked.cycles + asked.warmup) as progress:
                run.record(journal, progress)
    except BaseException:
        if run is None or not run.steps:
            journal.discard()
        raise
    if run.interrupted:
        click.echo("stopped; what was recorded is kept", err=True)
    making.say_written(journal.finish(), journal.path)


def _asked(options: dict[str, Any]) -> Asked:
    from importlib.util import find_spec

    from spantrace.errors import SpantraceError

    if not find_spec("torch"):
        raise SpantraceError("the built-in cycle needs PyTorch; pip install torch")
    import optimized
    from spantrace.cli.built_in import Asked

    names = optimized.select(options["optimize"])
    return Asked(_settings(options), _rates(options["accept"]), tuple(names), options["cycles"], options["warmup"])


def _settings(options: dict[str, Any]) -> Settings:
    from optimized.judging import choose_place
    from optimized.reference_cycle.geometry import GEOMETRIES
    from optimized.reference_cycle.settings import Settings

    place = choose_place(options["device"], options["dtype"])
    geometry = GEOMETRIES[options["geometry"]].scaled(options["layers"], options["hidden"], options["vocab"])
    same = {name: options[name] for name in ("drafter", "draft_length", "batch", "context", "seed")}
    return Settings(geometry, device=place.device, dtype=place.dtype, **same)


def _rates(text: str) -> tuple[float, ...]:
    if text == "drafter":
        return ()
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no rate, list of rates, or `drafter`", param_hint="--accept") from error
