"""`spantrace doctor`: what this machine can measure, and what each measurement costs here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spantrace.cli.options import directory_option, format_option

if TYPE_CHECKING:
    from spantrace.tables import Document

Finding = tuple[str, str, str]


@click.command("doctor")
@directory_option
@format_option
def command(directory: Path | None, form: str) -> None:
    """Say what can be measured here, what it costs, and what stands in the way."""
    from spantrace.control import default_directory
    from spantrace.tables import Format
    from spantrace.terminal import emit

    emit(document(directory or default_directory()), Format(form))


def document(directory: Path) -> Document:
    """One row a check: its name, ok or what is missing, and the detail."""
    from spantrace.tables import Column, Document, Row, Table

    checks: list[Callable[[], Finding]] = [
        lambda: _sockets(directory), _vllm, _plugin, _host_spans, _gpu, _nvtx, lambda: _servers(directory)
    ]  # fmt: skip
    findings = [check() for check in checks]
    columns = (Column("check", "check"), Column("state", "state"), Column("detail", "detail"))
    styles = {"ok": "green", "no": "yellow"}
    rows = tuple(
        Row({"check": name, "state": state, "detail": detail}, name, styles.get(state, ""))
        for name, state, detail in findings
    )
    data = {"checks": [dict(zip(("check", "state", "detail"), finding, strict=True)) for finding in findings]}
    return Document("doctor", (), None, Table(columns, rows), (), data)


def _sockets(directory: Path) -> Finding:
    from spantrace.directories import private_directory
    from spantrace.errors import SpantraceError

    if not os.path.lexists(directory):
        return "sockets", "no", f"there is no directory {directory} yet; the first server that uses it makes it"
    try:
        return "sockets", "ok", f"{private_directory(directory)} is private"
    except (SpantraceError, OSError) as error:
        return "sockets", "no", str(error)


def _vllm() -> Finding:
    from spantrace.vllm_adapter.hooks import SUPPORTED
    from spantrace.vllm_adapter.launch import installed_version

    found = installed_version()
    if found is None:
        return "vLLM", "no", "not installed in this environment (servers in other environments can be recorded)"
    known = any(found.split(".")[:2] == supported.split(".")[:2] for supported in SUPPORTED)
    return "vLLM", "ok" if known else "no", f"{found}, {'in' if known else 'not in'} the hook tables"


def _plugin() -> Finding:
    from spantrace.vllm_adapter.launch import plugin_is_visible

    found = plugin_is_visible()
    detail = "vLLM of this environment will load it" if found else "install spantrace with pip, not by PYTHONPATH alone"
    return "plugin", "ok" if found else "no", detail


def _host_spans() -> Finding:
    from spantrace.recorder import cost_of_a_span

    return "host spans", "ok", f"{cost_of_a_span(500, 101):.0f} ns each, 0 when not recording"


def _gpu() -> Finding:
    from spantrace.vllm_adapter.gpu_state import gpu_states

    states = gpu_states()
    if not states:
        return "GPU spans", "no", "nvidia-smi finds no GPU: reports are of the host only"
    described = [
        f"{gpu['name']}, SM {gpu['sm_mhz']} MHz, driver {gpu['driver']}, {len(gpu['processes'])} processes on it"
        for gpu in states
    ]
    return "GPU spans", "ok", "; ".join(described)


def _nvtx() -> Finding:
    tool = os.environ.get("NVTX_INJECTION64_PATH")
    return "NVTX", "ok", f"injected tool {tool}" if tool else "ranges go nowhere until a tool such as nsys is attached"


def _servers(directory: Path) -> Finding:
    from spantrace.errors import SpantraceError
    from spantrace.tables import many
    from spantrace.vllm_adapter.servers import discover

    try:
        found = len(discover(directory))
    except SpantraceError as error:
        return "servers", "no", str(error)
    if not found:
        return "servers", "no", "none of this user runs here; start one: spantrace serve"
    return "servers", "ok", f"{many(found, 'vLLM server')} found here (spantrace ps)"
