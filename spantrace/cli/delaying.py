"""Delays spans of a server or of the built-in cycle on purpose, and records it: what `spantrace sensitivity` reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli import making
from spantrace.cli.cycle_options import BUILT_IN

if TYPE_CHECKING:
    from spantrace.capture import Capture
    from spantrace.experiment import Design
    from spantrace.journal import Journal
    from spantrace.recording import Recording


def record(
    target: str, output: Path | None, directory: Path | None, options: dict[str, Any], *, force: bool
) -> tuple[Recording, str]:
    """What `spantrace sensitivity` records of a target, with its name; no file where no block was finished."""
    from spantrace.cli.cycle_options import require_torch
    from spantrace.experiment import Design
    from spantrace.spans import Track

    aims = dict.fromkeys((span, Track.HOST) for span in options["spans"])
    aims |= dict.fromkeys((span, Track.GPU) for span in options["gpu_spans"])
    same = {name: options[name] for name in ("cycles", "blocks", "seconds")}
    design = Design(tuple(aims), ns=round(options["delay"] * 1e3), slowdown=options["max_slowdown"], **same)
    noted = {"warmup": design.cycles, "cycles": None, "seconds": None, "delay_us": options["delay"]}
    if target == BUILT_IN:
        require_torch()
        path = output or making.default_output("sensitivity")
        return _built_in(design, path, options, noted, force=force), path.name
    return _server(target, design, output, directory, noted, force=force)


def _built_in(design: Design, path: Path, options: dict[str, Any], noted: dict[str, Any], *, force: bool) -> Recording:
    from spantrace.built_in.delayed import experiment
    from spantrace.built_in.running import Asked, BuiltIn, within_memory
    from spantrace.cli.cycle_options import rates_of, settings_of
    from spantrace.journal import Journal

    asked = Asked(settings_of(options), rates_of(options["accept"]), warmup=design.cycles)
    header = making.new_header(BUILT_IN, noted)
    with Journal(path, header, force=force) as journal, within_memory(asked.settings):
        with _discarded(journal), _Blocks(design) as blocks:
            work = BuiltIn(asked)
            work.prepare(lambda tokens: None)
            said = experiment(work, design, journal, blocks.count)
            if work.interrupted and not blocks.done:
                raise KeyboardInterrupt
            blocks.refuse_none(said)
        return _finish(journal, said)


def _server(
    target: str, design: Design, output: Path | None, directory: Path | None, noted: dict[str, Any], *, force: bool
) -> tuple[Recording, str]:
    from spantrace.capture import Capture
    from spantrace.control import default_directory
    from spantrace.journal import Journal
    from spantrace.vllm_adapter.servers import find, roles
    from spantrace.vllm_adapter.targets import pid_of, without_secrets

    place = directory or default_directory()
    found = find(target, place)
    members = roles(found, pid_of(target))
    path = output or making.default_output("sensitivity")
    with Journal(path, making.new_header(without_secrets(found.command), noted), force=force) as journal:
        with (
            _discarded(journal),
            Capture(place, members, journal, {"delays": True, "detail_every": 1}) as capture,
            _Blocks(design) as blocks,
        ):
            said = _conduct(design, capture, journal, blocks)
            capture.stop()
        return _finish(journal, said), path.name


def _conduct(design: Design, capture: Capture, journal: Journal, blocks: _Blocks) -> str:
    """Run the windows; where that breaks off after a whole block, why it did."""
    from spantrace.errors import SpantraceError
    from spantrace.experiment import conduct
    from spantrace.vllm_adapter.delayed import DelayedServer

    try:
        said = conduct(design, DelayedServer(capture), journal, blocks.count)
    except (KeyboardInterrupt, SpantraceError) as error:
        if not blocks.done:
            raise
        return f"{str(error) or 'interrupted'}; the blocks before are kept"
    blocks.refuse_none(said)
    return said


class _Blocks:
    """Counts the blocks that are `done`, and shows it."""

    def __init__(self, design: Design) -> None:
        self.done = 0
        self._bar = making.progress_bar(len(design.tried) * design.blocks, "delaying", "blocks")

    def __enter__(self) -> _Blocks:
        self._progress = self._bar.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._bar.__exit__(*raised)

    def count(self, done: int) -> None:
        """So many are done."""
        self.done = done
        self._progress(done)

    def refuse_none(self, said: str) -> None:
        """SpantraceError where none is done, with what was said of the end."""
        from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError

        if not self.done:
            raise SpantraceError(
                f"no block was finished, so that nothing is kept: {said}; allow more --seconds", EXIT_NOT_COMPARABLE
            )


@contextmanager
def _discarded(journal: Journal) -> Iterator[None]:
    """Remove the journal where this breaks off."""
    try:
        yield
    except BaseException as error:
        journal.discard()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt("stopped; nothing was recorded") from None
        raise


def _finish(journal: Journal, said: str) -> Recording:
    recording = journal.finish()
    if said:
        click.echo(f"spantrace: {said}", err=True)
    making.say_written(recording, journal.path)
    return recording
