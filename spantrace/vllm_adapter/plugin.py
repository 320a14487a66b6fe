"""The `vllm.general_plugins` entry point: opens this process's control socket; installs only what was chosen at start.

SPANTRACE=off keeps even the socket closed. Nothing here raises into the server.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from pathlib import Path

from spantrace import __version__
from spantrace.control import Connection, ControlServer, default_directory
from spantrace.errors import SpantraceError
from spantrace.frames import Frame
from spantrace.vllm_adapter import choice
from spantrace.vllm_adapter.graph_request import GRAPH_SPANS

SHORT_LIFE_S = 1.0
"""Processes that live shorter (`vllm --version`, model inspection) never open a socket."""
_server: ControlServer | None = None
_log = logging.getLogger("spantrace")


def register() -> None:
    """Called by vLLM once in each of its processes."""
    if os.environ.get("SPANTRACE", "").lower() == "off":
        return
    try:
        from spantrace.vllm_adapter import random_weights

        random_weights.register()
    except Exception as error:
        _log.warning("spantrace: --load-format spantrace-random is not available: %s", error)
    if chosen := os.environ.get(choice.CHOICE):
        choice.prepare(chosen)
    if os.environ.get(GRAPH_SPANS) == "1":
        _prepare_graph_spans()
    _open_later()
    os.register_at_fork(after_in_child=_after_fork)


def _prepare_graph_spans() -> None:
    try:
        from spantrace.vllm_adapter import twin_capture

        twin_capture.prepare()
    except Exception as error:
        _log.warning("spantrace: graph spans are not available: %s", error)


def attach(directory: str) -> None:
    """Open this process's control socket in `directory` now, for a server that runs without the plugin."""
    global _server
    if _server is None:
        _server = ControlServer(Path(directory), handle)
        atexit.register(_server.close)
        os.register_at_fork(after_in_child=_after_fork)


def handle(request: Frame, connection: Connection) -> None:
    """Answer one connection's request; its failure is told to the client, not to the server."""
    try:
        operation = request.get("type")
        if operation == "describe":
            connection.send({"type": "description", **describe_process()})
        elif operation == "record":
            from spantrace.vllm_adapter.session import record

            record(request, connection)
        elif operation == "optimizations":
            connection.send({"type": "optimizations", **choice.describe()})
        elif operation == "switch":
            from spantrace.vllm_adapter.switching import switch

            switch(request, connection)
        elif operation == "delays":
            from spantrace.vllm_adapter.delaying import refuse_unless_allowed

            refuse_unless_allowed()
            connection.send({"type": "allowed"})
        elif operation == "reset_prefix_cache":
            from spantrace.vllm_adapter.engine_thread import reset_prefix_cache

            connection.send({"type": "reset", "refused": reset_prefix_cache()})
        else:
            connection.send({"type": "refused", "why": f"unknown request {operation!r}"})
    except (OSError, EOFError):
        raise
    except SpantraceError as error:
        connection.send({"type": "refused", "why": str(error)})
    except Exception as error:
        connection.send({"type": "refused", "why": f"{type(error).__name__}: {error}"})


def describe_process() -> Frame:
    """What this process is: pid, ancestors, command line and versions."""
    import psutil

    me = psutil.Process()
    return {
        "pid": me.pid,
        "title": " ".join(me.cmdline()),
        "ancestors": [{"pid": parent.pid, "title": " ".join(parent.cmdline())} for parent in me.parents()],
        "started": me.create_time(),
        "vllm": str(getattr(sys.modules.get("vllm"), "__version__", "")),
        "spantrace": __version__,
        "python": sys.version.split()[0],
    }


def _open_later() -> None:
    threading.Thread(target=_open, name="spantrace-start", daemon=True).start()


def _open() -> None:
    global _server
    time.sleep(SHORT_LIFE_S)
    try:
        _server = ControlServer(Path(default_directory()), handle)
        atexit.register(_server.close)
    except Exception as error:
        _log.warning("spantrace: no control socket, this process cannot be recorded: %s", error)
    if os.environ.get(choice.CHOICE):
        _agree()


def _agree() -> None:
    try:
        from spantrace.vllm_adapter import agreement

        agreement.keep()
    except Exception as error:
        _log.warning("spantrace: whether the chosen optimizations are on on every rank is not known: %s", error)


def _after_fork() -> None:
    """The child has no listening thread: it drops the inherited socket and opens its own."""
    global _server
    if _server is not None:
        _server.abandon()
        _server = None
    if session := sys.modules.get("spantrace.vllm_adapter.session"):
        with contextlib.suppress(Exception):
            session.forget()
    _open_later()
