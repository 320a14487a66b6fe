"""`spantrace ps`: the live vLLM servers of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from spantrace.cli.options import directory_option, format_option

if TYPE_CHECKING:
    from spantrace.tables import Document
    from spantrace.vllm_adapter.servers import Member, Server


@click.command("ps")
@directory_option
@format_option
def command(directory: Path | None, form: str) -> None:
    """List the live vLLM servers here, their processes, and whether each can be recorded."""
    from spantrace.control import default_directory
    from spantrace.tables import Format
    from spantrace.terminal import emit
    from spantrace.vllm_adapter.servers import discover

    emit(document(discover(directory or default_directory())), Format(form))


def _by_engine(members: list[Member]) -> list[Member]:
    """The members with each engine's workers after it."""
    engines = {member.pid for member in members if member.role == "engine"}

    def place(member: Member) -> tuple[int, int]:
        its = member.pid if member.pid in engines else member.parent if member.parent in engines else 0
        return its or 0, member.pid not in engines

    return sorted(members, key=place)


def _recordable(member: Member) -> bool | None:
    """Whether it can be recorded; None for a process of which nothing is."""
    return member.reachable if member.role in ("engine", "worker") else None


def _data(server: Server) -> dict[str, object]:
    members = [
        {"pid": m.pid, "role": m.role, "title": m.title, "parent": m.parent, "recordable": _recordable(m)}
        for m in server.members
    ]
    return {**vars(server), "members": members, "port": server.port(), "model": server.model()}


def document(servers: list[Server]) -> Document:
    """The servers as a table: one row a process, and what keeps a server from being recorded."""
    from spantrace.tables import Cell, Column, Document, Headline, Row, Table

    columns = (
        Column("process", "process"),
        Column("pid", "pid", write=lambda pid: f"{pid:.0f}"),
        Column("port", "port", write=lambda port: f"{port:.0f}"),
        Column("vllm", "vLLM"),
        Column("recordable", "recordable"),
    )
    rows = []
    notes = []
    for server in servers:
        cells: dict[str, Cell] = {
            "process": server.model(),
            "pid": server.root,
            "port": server.port(),
            "vllm": server.vllm or "-",
            "recordable": "",
        }
        rows.append(Row(cells, server.model(), "bold"))
        for member in _by_engine(server.members):
            answer, name = _recordable(member), f"{member.role} {member.place}".rstrip()
            said = None if answer is None else "yes" if answer else "no"
            rows.append(Row({"process": name, "pid": member.pid, "recordable": said}, f"  {name}", name=name))
            if answer is False:
                notes.append(member.why)
    data = {"servers": list(map(_data, servers))}
    if not servers:
        notes.append("no vLLM server of this user runs here (in a container: --dir, on a shared directory)")
    headline = Headline("", tuple(notes), "") if notes else None
    return Document("ps", (), headline, Table(columns, tuple(rows)), (), data)
