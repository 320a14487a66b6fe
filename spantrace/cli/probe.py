"""`spantrace probe`: does a live server answer the same with an optimization as without it?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli.options import directory_option, format_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from analyzers.numerics import Probed, Run
    from spantrace.tables import Cell, Column, Document, Fact, Headline, Row
    from spantrace.vllm_adapter.probing import Asked, Prober, Runs

_STYLES = {"pass": "green", "fail": "red", "void": "yellow"}


@click.command("probe")
@click.argument("server")
@click.option("--zeroed", required=True, metavar="SERVER", help="The same model with an attention layer zeroed: "
              "where its tokens are the same, no probe means anything.")  # fmt: skip
@click.option("--optimize", default="all", show_default=True, metavar="IDS",
              help="What to probe, each alone, as a,b or all that can be switched live.")  # fmt: skip
@click.option("--prompts", type=click.IntRange(1, 1000), default=8, show_default=True, help="Prompts of each run.")
@click.option("--prompt-tokens", type=click.IntRange(1, 1_000_000), default=256, show_default=True,
              help="Tokens of a prompt: more than a block of the prefix cache, for what happens there.")  # fmt: skip
@click.option("--tokens", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Tokens of an answer.")
@click.option("--repeats", type=click.IntRange(2, 100), default=2, show_default=True,
              help="Runs of all prompts: with an empty prefix cache, then with a full one.")  # fmt: skip
@directory_option
@format_option
def command(server: str, zeroed: str, optimize: str, directory: Path | None, form: str, **lengths: int) -> None:
    """Compare the greedy tokens of a running SERVER (:PORT or URL) with each optimization on and with all of them off.

    PASS where all tokens are equal, or where the log-probabilities behind the first that differs lie no further apart
    than in two runs of stock; else FAIL, with exit code 1. VOID, with 3, where a zeroed attention layer does not show
    beyond that, or the optimization never fired. Serve both models with --load-format spantrace-random.
    """
    from analyzers.numerics import Outcome, judge
    from spantrace.control import default_directory
    from spantrace.errors import EXIT_GATE_FAILED, EXIT_NOT_COMPARABLE
    from spantrace.packages import refuse_stranger
    from spantrace.tables import Format
    from spantrace.terminal import emit
    from spantrace.vllm_adapter.probing import Asked, Prober

    refuse_stranger("optimized")
    place, asked = directory or default_directory(), Asked(**lengths)
    whole, broken = Prober(server, place, asked), Prober(zeroed, place, asked)
    ids = _ids(optimize, whole)
    whole.check(ids)
    broken.check_zeroed(whole)
    stock, damaged, treated = _measured(whole, broken, ids, asked)
    probed = {one: judge(stock.answers, runs.answers, damaged, runs.hits) for one, runs in treated.items()}
    emit(document(whole, asked, stock, damaged, treated, probed), Format(form))
    outcomes = {one.outcome for one in probed.values()}
    if Outcome.FAIL in outcomes:
        raise click.exceptions.Exit(EXIT_GATE_FAILED)
    if Outcome.VOID in outcomes:
        raise click.exceptions.Exit(EXIT_NOT_COMPARABLE)


def _ids(text: str, whole: Prober) -> list[str]:
    """What was asked for; of all, those that can be switched live and are not upstream there."""
    import optimized
    from spantrace.errors import SpantraceError

    vllm = whole.server.vllm.partition("+")[0]
    ids = optimized.select(text, vllm)
    if text == "all":
        items = {one: optimized.discover()[one] for one in ids}
        ids = [one for one, item in items.items() if item.live_switchable and not item.is_upstream(vllm)]
    if not ids:
        raise SpantraceError("there is nothing to probe; name optimizations with --optimize")
    return ids


def _measured(whole: Prober, broken: Prober, ids: list[str], asked: Asked) -> tuple[Runs, Run, dict[str, Runs]]:
    """Stock's runs, the broken model's, and those with each optimization; the server has on again what it had on."""
    from spantrace.cli.making import progress_bar
    from spantrace.interrupts import ended_by_signals

    before, treated = whole.on(), {}
    with ended_by_signals(), progress_bar((1 + len(ids)) * asked.repeats + 1, "asking", "runs") as progress:
        try:
            whole.switch([], before)
            stock = whole.runs(progress)
            damaged = broken.runs(partial(_after, asked.repeats, progress), 1).answers[0]
            for number, one in enumerate(ids, start=1):
                treated[one] = whole.runs_with(one, partial(_after, number * asked.repeats + 1, progress))
        finally:
            whole.switch(before, [])
    return stock, damaged, treated


def _after(past: int, progress: Callable[[int], None], done: int) -> None:
    progress(past + done)


def document(
    whole: Prober, asked: Asked, stock: Runs, damaged: Run, treated: Mapping[str, Runs], probed: Mapping[str, Probed]
) -> Document:
    """A row for each optimization: what became of it, its first difference and stock's own noise."""
    from dataclasses import asdict

    from analyzers.numerics import differences
    from spantrace.tables import Document, Fact, Table

    rows = tuple(_row(one, probed[one], treated[one]) for one in probed)
    count = len(differences(stock.answers[:1], [damaged]))
    facts = [
        Fact("zeroed", (f"without one attention layer {count} of {len(damaged)} answers have other tokens",)),
        Fact("gap", ("of the log-probabilities of the 20 likeliest tokens, where contexts are equal",)),
        *_drafts(stock),
    ]
    size = f"{asked.prompts} prompts of {asked.prompt_tokens} tokens, {asked.tokens} answered, {asked.repeats} times"
    told = {
        one: {**asdict(found), "hits": treated[one].hits, "accepted": treated[one].accepted}
        for one, found in probed.items()
    }
    data = {"zeroed_changed": count, "accepted": stock.accepted, "optimizations": told}
    heading = ((whole.server.model(), f"vLLM {whole.server.vllm}", size),)
    return Document("probe", heading, _headline(probed), Table(_columns(), rows), tuple(facts), data)


def _columns() -> tuple[Column, ...]:
    from spantrace.tables import Column, number

    return (
        Column("id", "optimization"),
        Column("outcome", "outcome"),
        Column("equal", "equal"),
        Column("hits", "hits", write=lambda count: f"{count:,.0f}"),
        Column("first", "first differs", optional=True),
        Column("gap", "gap", write=number),
        Column("noise", "stock's gap", write=number),
        Column("accepted", "accepted", write=number, optional=True),
    )


def _drafts(stock: Runs) -> list[Fact]:
    """Accepted drafts tell of a drafter what tokens cannot: verification hides what is wrong with it."""
    from spantrace.tables import Fact, number

    if stock.accepted is None:
        return []
    said = f"stock accepts {number(stock.accepted)} tokens of a draft"
    return [Fact("drafts", (said, "tokens do not show what is wrong with a drafter, this does"))]


def _row(one: str, found: Probed, runs: Runs) -> Row:
    from spantrace.tables import Row

    worst = max(found.differences, key=lambda difference: difference.gap, default=None)
    first = f"prompt {worst.prompt + 1}, token {worst.token + 1}" if worst else "-"
    cells: dict[str, Cell] = {
        "id": one,
        "outcome": found.outcome.value.upper(),
        "equal": f"{found.answers - len(found.differences)} of {found.answers}",
        "hits": runs.hits,
        "first": first,
        "gap": worst.gap if worst else None,
        "noise": found.noise,
        "accepted": runs.accepted,
    }
    return Row(cells, one, _STYLES[found.outcome.value])


def _headline(probed: Mapping[str, Probed]) -> Headline:
    """The worst outcome, and why."""
    from spantrace.tables import Headline

    order: dict[str, Any] = {"fail": "bold red", "void": "bold yellow", "pass": "bold green"}
    word = next(word for word in order if any(one.outcome.value == word for one in probed.values()))
    said = tuple(f"{name}: {one.why}." for name, one in probed.items() if one.outcome.value == word)
    return Headline(word.upper(), said, order[word])
