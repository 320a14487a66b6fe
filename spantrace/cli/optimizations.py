"""`spantrace optimizations`: what can be switched on here, what was on in a recording, what is on in a server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spantrace.cli.options import directory_option, format_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optimized.gate import Admission
    from optimized.optimization import Optimization
    from spantrace.switched import Switched
    from spantrace.tables import Document, Row

_FILES = (".spantrace", ".part")
_REASONS = 3
"""So many of the reasons why calls fell back are told, the most frequent ones."""
_STYLES = {"on": "green", "waiting": "yellow", "already upstream": "dim", "refused": "yellow"}


@dataclass(frozen=True)
class Listing:
    """One optimization as it is somewhere: its state there, what it has counted, and what else there is to say.

    `vllm` is the version there, None in the built-in cycle.
    """

    item: Optimization
    admission: Admission
    counted: Switched | None = None
    remarks: tuple[str, ...] = field(default=())
    vllm: str | None = None


@click.command("optimizations")
@click.argument("target", required=False, metavar="[SERVER | RECORDING]")
@directory_option
@format_option
def command(target: str | None, directory: Path | None, form: str) -> None:
    """Say of each optimization whether it applies, is on, is already upstream or is refused, and why.

    Here, which is in the built-in cycle and in the vLLM of this environment; in a live SERVER (:PORT, URL or pid); or
    in a RECORDING.
    """
    from spantrace.control import default_directory
    from spantrace.errors import SpantraceError
    from spantrace.tables import Format
    from spantrace.terminal import emit

    if target is None:
        heading, listings = _here()
    elif target.endswith(_FILES) or Path(target).exists():
        heading, listings = _in_recording(Path(target))
    elif ":" not in target and not target.isdecimal():
        raise SpantraceError(f"{target} is no recording, and no :PORT, URL or pid of a server")
    else:
        heading, listings = _in_server(target, directory or default_directory())
    emit(document(heading, listings), Format(form))


def document(heading: tuple[str, ...], listings: list[Listing]) -> Document:
    """One row an optimization; what it does and why it is refused stands below the table."""
    from spantrace.tables import Column, Document, Fact, Table

    said = [_restorable(one) for one in listings]
    columns = [Column("id", "optimization"), Column("state", "state")]
    if any(one.counted for one in said):
        columns += [Column(name, name, write=lambda count: f"{count:,.0f}") for name in ("hits", "fallbacks", "errors")]
    columns += [Column("fires_in", "fires in", optional=True), Column("switched", "switched")]
    columns += [Column("summary", "summary", only="data"), Column("why", "why", only="data")]
    facts = [
        Fact(one.item.id, tuple(filter(None, (one.item.summary, one.admission.why, *one.remarks)))) for one in said
    ]
    facts += [
        Fact(name, (f"a set, which can be asked for by its name: {', '.join(ids)}",)) for name, ids in _sets(said)
    ]
    rows = tuple(_row(one) for one in said)
    data = {
        "about": list(heading),
        "optimizations": [{**row.cells, "remarks": one.remarks} for row, one in zip(rows, said, strict=True)],
        "sets": dict(_sets(said)),
    }
    return Document("optimizations", (heading,), None, Table(tuple(columns), rows), tuple(facts), data)


def _sets(listed: list[Listing]) -> list[tuple[str, list[str]]]:
    """The named sets of those that are listed, with their ids."""
    import optimized

    ids = {one.item.id for one in listed}
    return [(name, members) for name, members in optimized.sets().items() if ids & set(members)]


def _restorable(one: Listing) -> Listing:
    """With how to be without it, where it is upstream and can be taken out."""
    import optimized
    from optimized.gate import State

    stock = next((item for item in optimized.discover().values() if item.restores == one.item.id), None)
    if stock is None or one.admission.state is not State.UPSTREAM:
        return one
    return replace(one, remarks=(*one.remarks, f"--restore-stock {one.item.id} takes it out: {stock.summary}"))


def _row(one: Listing) -> Row:
    from spantrace.cli.optimizing import places
    from spantrace.tables import Cell, Row

    state = one.admission.state.value
    cells: dict[str, Cell] = {
        "id": one.item.id,
        "state": state,
        "fires_in": places(one.item),
        "switched": "live" if one.item.is_live(one.vllm) else "at start",
        "summary": one.item.summary,
        "why": one.admission.why,
    }
    cells |= {name: getattr(one.counted, name, None) for name in ("hits", "fallbacks", "errors")}
    return Row(cells, one.item.id, _STYLES.get(state, ""))


def _here() -> tuple[tuple[str, ...], list[Listing]]:
    """What the built-in cycle and the installed vLLM can take."""
    import optimized
    from optimized.gate import Admission, State, admit_here
    from spantrace.vllm_adapter.launch import installed_version

    vllm = installed_version()
    listings = []
    for item in optimized.discover().values():
        admissions = [_built_in(item)] if item.seams_at() else []
        if item.vllm_switch:
            absent = Admission(State.REFUSED, "vLLM is not installed in this environment")
            admissions.append(admit_here(item, vllm) if vllm else absent)
        best = next((one for one in admissions if one.state is State.APPLIES), admissions[0])
        others, place = {one.why for one in admissions} - {best.why}, None if item.seams_at() else vllm
        listings.append(Listing(item, best, None, tuple(others), place))
    return ("built-in cycle", f"vLLM {vllm} in this environment" if vllm else "no vLLM in this environment"), listings


def _built_in(item: Optimization) -> Admission:
    from optimized.gate import Admission, State

    reasons = item.unmet()
    return Admission(State.REFUSED, "; ".join(reasons)) if reasons else Admission(State.APPLIES)


def _in_recording(path: Path) -> tuple[tuple[str, ...], list[Listing]]:
    """What was on while it was made, and what that server could have taken."""
    import optimized
    from spantrace.errors import SpantraceError
    from spantrace.loading import load
    from spantrace.switched import switched

    header = load(path).header
    server = header.get("server") or {}
    vllm, method = server.get("vllm"), server.get("method")
    engine = f"vLLM {vllm}" if vllm else server.get("engine")
    if not engine:
        raise SpantraceError(f"{path} does not say which vLLM it is of, so what could be switched on is not known")
    counted = {one.id: one for one in switched(header)}
    found = [_then(item, server, counted.get(name)) for name, item in optimized.discover().items()]
    listings = [replace(one, vllm=vllm) for one in found]
    return (path.name, engine, *([f"method {method}"] if method else [])), listings


def _then(item: Optimization, server: Mapping[str, Any], counted: Switched | None) -> Listing:
    from optimized.gate import admit

    if counted is not None:
        return _on(item, counted)
    if server.get("vllm"):
        return Listing(item, admit(item, server["vllm"], server.get("method")))
    return Listing(item, _in_cycle(item, server))


def _in_cycle(item: Optimization, server: Mapping[str, Any]) -> Admission:
    """Whether it fires in the built-in cycle that was recorded; what a CPU cannot run is asked of this one."""
    from importlib.util import find_spec

    from optimized.cases import Place
    from optimized.gate import Admission, State, admit_built_in
    from optimized.reference_cycle.geometry import GEOMETRIES

    known, device = GEOMETRIES.get(str(server.get("model"))), str(server.get("device"))
    states = bool(known.state_layers) if known else None
    found = admit_built_in(item, Place(device, drafter=server.get("method") or "none", states=states))
    alike = device == "cpu" and find_spec("torch") is not None
    reasons = item.unmet(device) if alike and found.state is State.APPLIES else []
    return Admission(State.REFUSED, "; ".join(reasons)) if reasons else found


def _in_server(target: str, directory: Path) -> tuple[tuple[str, ...], list[Listing]]:
    """What each engine and worker of a live server says."""
    import optimized
    from spantrace.control import ask
    from spantrace.errors import SpantraceError
    from spantrace.vllm_adapter.servers import find

    server = find(target, directory)
    answers = {}
    for member in [*server.of_role("engine"), *server.of_role("worker")]:
        if not member.reachable:
            raise SpantraceError(member.why)
        answer = ask(directory, member.pid, {"type": "optimizations"})
        if answer.get("type") != "optimizations":
            raise SpantraceError(f"process {member.pid} runs an older spantrace; restart the server to ask it")
        answers[f"{member.role} {member.pid}"] = answer
    if not answers:
        raise SpantraceError(f"process {server.root} has no engine process of its own, or is still starting")
    method = server.method()
    listings = [replace(_now(item, answers, method), vllm=server.vllm) for item in optimized.discover().values()]
    return (server.model(), f"vLLM {server.vllm}", ", ".join(answers)), listings


def _now(item: Optimization, answers: Mapping[str, dict[str, Any]], method: str | None) -> Listing:
    from optimized.gate import Admission, State, admit
    from spantrace.switched import from_counts, summed

    on = {name: one for name, said in answers.items() for one in said["on"] if one["id"] == item.id}
    if on:
        each = [f"{name}: {one['hits']:,} hits" for name, one in on.items()] if len(on) > 1 else []
        return _on(item, from_counts(summed(on.values())[0]), *each)
    for said in answers.values():
        if item.id in said["refused"]:
            return Listing(item, Admission(State.REFUSED, said["refused"][item.id]))
    first = next(iter(answers.values()))
    waits = {module for said in answers.values() for module in said["waiting"].get(item.id, ())}
    if waits:
        why = f"it was chosen, and goes in once the server has loaded {', '.join(sorted(waits))}"
        return Listing(item, Admission(State.WAITING, why))
    sources = Path(first["sources"]) if first["sources"] and Path(first["sources"]).is_dir() else None
    return Listing(item, admit(item, first["vllm"], method, sources))


def _on(item: Optimization, counted: Switched, *remarks: str) -> Listing:
    from optimized.gate import Admission, State

    reasons = (f"{count:,} x {reason}" for reason, count in counted.reasons[:_REASONS])
    sorts = (f"{count:,} hits {sort}" for sort, count in counted.sorts)
    return Listing(item, Admission(State.ON, counted.warning or ""), counted, (*remarks, *sorts, *reasons))
