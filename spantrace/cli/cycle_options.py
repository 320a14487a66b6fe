"""The options that describe the built-in cycle, shared by every command that runs it and by a campaign's plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli.options import MOST_DRAFTS, MOST_REQUESTS, MOST_TOKENS, device_option, dtype_option

if TYPE_CHECKING:
    from optimized.cases import Place
    from optimized.reference_cycle.geometry import Geometry
    from optimized.reference_cycle.settings import Settings

BUILT_IN = "built-in"
"""What stands for the cycle where a server may stand as well."""
DRAFTERS = ("dflash", "dspark", "eagle", "none")
GEOMETRIES = ("tiny", "qwen3-8b", "nemotron-h", "kimi-k3-drafter")
MOST_LAYERS, WIDEST, MOST_WORDS = 10_000, 1 << 20, 1 << 24

geometry_option = click.option(
    "--geometry", type=click.Choice(GEOMETRIES), default="tiny", show_default=True, help="Sizes of both models."
)
layers_option = click.option(
    "--layers", type=click.IntRange(1, MOST_LAYERS), help="Layers of the target, in place of the geometry's."
)
context_option = click.option(
    "--context", type=click.IntRange(1, MOST_TOKENS), default=2048, show_default=True, metavar="TOKENS",
    help="Prompt and output of a request.",
)  # fmt: skip
draft_length_option = click.option(
    "--draft-length", type=click.IntRange(1, MOST_DRAFTS), default=7, show_default=True, metavar="K",
    help="Drafted tokens a cycle.",
)  # fmt: skip
_OPTIONS = (
    click.option("--drafter", type=click.Choice(DRAFTERS), default="dflash", show_default=True, help="What drafts."),
    geometry_option,
    layers_option,
    click.option("--hidden", type=click.IntRange(1, WIDEST), help="Width of the models, in place of the geometry's."),
    click.option("--vocab", type=click.IntRange(2, MOST_WORDS),
                 help="Size of the vocabulary, in place of the geometry's."),
    device_option,
    dtype_option,
    click.option("--batch", type=click.IntRange(1, MOST_REQUESTS), default=8, show_default=True,
                 help="Requests at a time."),
    context_option,
    draft_length_option,
    click.option("--accept", default="0.75", show_default=True, metavar="RATE",
                 help="How much of what is proposed is right: each token with this probability, or by position (K "
                 "shares as 0.9,0.7,...). A random drafter guesses nothing, so proposals are the target's own words, "
                 "corrupted; `drafter` verifies the drafter's own."),
    click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), default=0, show_default=True,
                 metavar="NUMBER", help="What weights, prompts and wrong proposals are drawn from."),
)  # fmt: skip


def cycle_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that describe the built-in cycle."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("built-in", add_help_option=False)
@cycle_options
def _reader(**options: Any) -> None:
    """What reads a table of these options as it would read the flags."""


def parse_cycle(given: Mapping[str, object]) -> dict[str, Any]:
    """The options as a plan's table has them, by name; SpantraceError for what the flags would refuse."""
    from spantrace.errors import SpantraceError

    known = [str(option.name).replace("_", "-") for option in _reader.params]
    if unknown := [key for key in given if key not in known]:
        raise SpantraceError(f"[built-in] has no key {unknown[0]!r}; choose from {', '.join(known)}")
    texts = {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in given.items()}
    try:
        return _reader.make_context("built-in", [f"--{key}={value}" for key, value in texts.items()]).params
    except click.UsageError as error:
        raise SpantraceError(f"[built-in]: {error.format_message().rstrip('.')}") from error


def require_torch() -> None:
    """SpantraceError where the built-in cycle cannot run."""
    from importlib.util import find_spec

    from spantrace.errors import SpantraceError

    if not find_spec("torch"):
        raise SpantraceError("the built-in cycle needs PyTorch; pip install torch")


def place_of(options: Mapping[str, Any]) -> Place:
    """Where the cycle that the options describe runs, and of what parts."""
    require_torch()
    from optimized.judging import choose_place

    place = choose_place(options["device"], options["dtype"])
    return replace(place, drafter=options["drafter"], states=bool(_geometry(options).state_layers))


def _geometry(options: Mapping[str, Any]) -> Geometry:
    from optimized.reference_cycle.geometry import GEOMETRIES

    return GEOMETRIES[options["geometry"]].scaled(options["layers"], options["hidden"], options["vocab"])


def settings_of(options: Mapping[str, Any]) -> Settings:
    """The cycle that the options describe."""
    from optimized.reference_cycle.settings import Settings

    place = place_of(options)
    same = {name: options[name] for name in ("drafter", "draft_length", "batch", "context", "seed")}
    return Settings(_geometry(options), device=place.device, dtype=place.dtype, **same)


def rates_of(text: str) -> tuple[float, ...]:
    """The shares of `--accept`; none means to verify the drafter's own tokens."""
    if text == "drafter":
        return ()
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no rate, list of rates, or `drafter`", param_hint="--accept") from error
