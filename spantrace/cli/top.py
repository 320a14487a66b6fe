"""`spantrace top`: watch a live server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from spantrace.cli.options import MOST_CYCLES, FiniteRange, directory_option

LONGEST_WINDOW_S, LONGEST_INTERVAL_S = 60.0, 3600.0
PAUSING = 2.5
"""So many windows long is the time from one to the next."""


@click.command("top")
@click.argument("server")
@click.option("--window", type=FiniteRange(0.1, LONGEST_WINDOW_S), default=2.0, show_default=True, metavar="S",
              help="Record so many seconds at a time.")  # fmt: skip
@click.option("--interval", type=FiniteRange(0.1, LONGEST_INTERVAL_S), metavar="S",
              help="Begin a window every so many seconds, with no hook in force in between "
                   "(default: 2.5 times --window).")  # fmt: skip
@click.option("-n", "--count", type=click.IntRange(1), help="End after so many windows (default: at Ctrl-C).")
@click.option("--detail-every", type=click.IntRange(1, MOST_CYCLES), metavar="N",
              help="Record spans in runs of 8 cycles, one run in N "
                   "(default: 1 to 5, by how many cycles the last window held).")  # fmt: skip
@click.option("--gpu/--no-gpu", default=True, help="Time GPU spans with events (default) or the host alone.")
@directory_option
def command(
    server: str,
    window: float,
    interval: float | None,
    count: int | None,
    detail_every: int | None,
    gpu: bool,
    directory: Path | None,
) -> None:
    """Watch the decode cycle of a running vLLM SERVER (:PORT, URL or pid) until Ctrl-C; nothing is saved."""
    import contextlib

    from spantrace.cli import making
    from spantrace.cli.live_view import Screen, view
    from spantrace.control import default_directory
    from spantrace.interrupts import ended_by_signals
    from spantrace.vllm_adapter.servers import find, roles
    from spantrace.vllm_adapter.targets import pid_of, without_secrets
    from spantrace.watching import Pace, windows

    interval = interval or PAUSING * window
    if interval < window:
        raise click.BadParameter(f"{interval:g} s are less than the {window:g} s of a window", param_hint="--interval")
    place = directory or default_directory()
    found = find(server, place)
    members = roles(found, pid_of(server))

    def header(options: dict[str, Any]) -> dict[str, Any]:
        return making.new_header(without_secrets(found.command), options)

    with contextlib.suppress(KeyboardInterrupt), ended_by_signals(), Screen() as screen:
        screen.begin(f"recording {window:g} s of {server}")
        for one in windows(place, members, Pace(window, interval, count, detail_every, gpu), header):
            screen.show(view(one))
