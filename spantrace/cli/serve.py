"""`spantrace serve`: `vllm serve` with spantrace's plugin made sure of."""

from __future__ import annotations

import click


@click.command("serve", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- [VLLM SERVE ARGUMENTS]")
def command(arguments: tuple[str, ...]) -> None:
    """Become `vllm serve ARGUMENTS`, with the plugin loaded whatever VLLM_PLUGINS says."""
    import os
    import sys
    from importlib.util import find_spec

    from spantrace.errors import SpantraceError

    if not arguments:
        raise SpantraceError("name a model: spantrace serve -- MODEL [vllm serve arguments]")
    if find_spec("vllm") is None:
        raise SpantraceError(f"vLLM is not installed beside {sys.executable}; install it there, or use its environment")
    environment = {**os.environ}
    environment.pop("SPANTRACE", None)
    chosen = environment.get("VLLM_PLUGINS")
    if chosen is not None and "spantrace" not in chosen.split(","):
        environment["VLLM_PLUGINS"] = ",".join(filter(None, [chosen, "spantrace"]))
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *arguments], environment)
