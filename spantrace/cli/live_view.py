"""What `top` shows of one window, and how: in the place of the one before on a terminal, as blocks elsewhere."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from analyzers.co_saturation import CoSaturation, co_saturation
from analyzers.economics import Economics, economics
from analyzers.per_cycle import STEADY
from analyzers.span_table import SpanTable, span_table
from analyzers.trust import Trust, left_out, trust
from spantrace.cli import wording
from spantrace.cli.report import costs
from spantrace.cli.trusting import doubt_facts
from spantrace.legible import legible
from spantrace.tables import Document, Fact, number, percent
from spantrace.terminal import flow, lines, show

if TYPE_CHECKING:
    from spantrace.recording import Recording
    from spantrace.watching import Window

DEEPEST = 9


class View:
    """What one window's recording says, by the same analyzers as `report`: steady cycles only."""

    def __init__(self, recording: Recording, saturation: CoSaturation, window: Window) -> None:
        self._recording, self._saturation, self._window = recording, saturation, window
        self._at = time.strftime("%H:%M:%S")
        self._table: SpanTable = span_table(recording, STEADY, saturation)
        self._earned: Economics = economics(recording)
        self._trusted: Trust = trust(recording, STEADY, self._table)

    def document(self, depth: int = DEEPEST) -> Document:
        """The window as a document, with the spans down to this depth."""
        rows = [row for row in self._table.rows if row.depth <= depth]
        found = wording.verdict(self._saturation)
        return Document(
            "top",
            (self._counted(), self._tokens()),
            replace(found, sentences=found.sentences[:1]),
            costs(rows, gpu=self._saturation.gpu is not None),
            (
                Fact("server", wording.configuration_line(self._recording, STEADY)),
                self._hooks(),
                *doubt_facts(self._trusted),
            ),
        )

    def _counted(self) -> tuple[str, ...]:
        return self._at, *wording.cycles_line(self._trusted, self._recording, STEADY)[:1]

    def _tokens(self) -> tuple[str, ...]:
        """Tokens per second, and what of the drafts was accepted."""
        earned = self._earned
        rate = "tokens/s unknown" if earned.tokens_per_s is None else f"{number(earned.tokens_per_s)} tokens/s (median)"
        if earned.acceptance is None:
            return rate, "no speculation"
        return rate, *wording.acceptance(earned.acceptance, wording.is_synthetic(self._recording))

    def _hooks(self) -> Fact:
        """How much of the time hooks are in force, and what that costs of it."""
        window, cost = self._window, self._trusted.mean_cost_share
        parts = [f"in force {window.hooked:.1f} of every {max(window.interval, window.hooked):.1f} s"]
        parts[0] += f" ({percent(window.share)})"
        parts.append("spans in all cycles" if window.detail_every == 1 else f"spans in 1 of {window.detail_every} runs")
        if cost is not None:
            parts.append(f"own cost at least {cost:.2%} then, {cost * window.share:.2%} overall")
        return Fact("hooks", tuple(parts))


def view(window: Window) -> View | str:
    """What there is to see of a window, or why there is nothing."""
    recording = window.recording
    if recording is None:
        return window.why
    if (saturation := co_saturation(recording)) is None:
        held = ", ".join(f"{count} {name}" for name, count in left_out(recording, frozenset()).items()) or "none"
        return f"no steady cycle in this window whose spans are known (cycles: {held}); choose a longer --window"
    return View(recording, saturation, window)


class Screen:
    """Shows views on a terminal in each other's place, in a pipe as one plain block after another."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False) if live else None
        self._last: View | None = None
        self._told = ""
        self._empty = True

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def begin(self, doing: str) -> None:
        """Say on a terminal what is waited for at first."""
        if self._live:
            self._live.update(Text(doing, "dim"), refresh=True)

    def show(self, found: View | str) -> None:
        """Show a view, or above the last one the sentence why there is none; in a pipe no sentence twice in a row."""
        told = found if isinstance(found, str) else ""
        known, self._told = told and told == self._told, told
        self._last = self._last if isinstance(found, str) else found
        if self._live:
            self._live.update(Group(*self._fitting()), refresh=True)
        elif not known:
            self._print(found)

    def _print(self, found: View | str) -> None:
        if not self._empty:
            self._console.file.write("\n")
        self._empty = False
        if isinstance(found, str):
            self._console.file.write(_now(found) + "\n")
            self._console.file.flush()
        else:
            show(found.document(), self._console)

    def _fitting(self) -> list[Text]:
        """All, or without the spans inside others, or without empty lines too, by how many lines the terminal has."""
        drawn: list[Text] = []
        for depth, empty in ((DEEPEST, True), (1, True), (1, False)):
            drawn = [line for line in self._drawn(depth) if empty or line.plain.strip()]
            if len(drawn) <= self._console.height:
                break
        return drawn

    def _drawn(self, depth: int) -> list[Text]:
        width, bars = self._console.width, (self._console.encoding or "").startswith("utf")
        drawn = [Text(line, "bold yellow") for line in flow([_now(self._told)], width)] if self._told else []
        drawn += lines(self._last.document(depth), width, bars=bars, cut=True) if self._last else []
        for line in drawn:
            line.no_wrap, line.overflow = True, "crop"
        return drawn


def _now(sentence: str) -> str:
    return f"{time.strftime('%H:%M:%S')}  {legible(sentence)}"
