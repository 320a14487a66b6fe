"""`spantrace serve`: `vllm serve` with spantrace's plugin made sure of."""

from __future__ import annotations

import click

from spantrace.cli.options import restore_option


@click.command("serve", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--optimize", envvar="SPANTRACE_OPTIMIZE", default="none", metavar="IDS",
              help="Optimizations to apply, as a,b or all (spantrace optimizations lists them).")  # fmt: skip
@restore_option
@click.option("--allow-delays", is_flag=True, help="Let spantrace sensitivity hold its spans up on purpose.")
@click.option("--graph-spans", is_flag=True,
              help="Time the parts of FULL CUDA graphs too, by a second capture with marks at start.")  # fmt: skip
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- [VLLM SERVE ARGUMENTS]")
def command(
    optimize: str, restore_stock: str, allow_delays: bool, graph_spans: bool, arguments: tuple[str, ...]
) -> None:
    """Become `vllm serve ARGUMENTS`, with the plugin loaded whatever VLLM_PLUGINS says."""
    import os
    import sys

    from spantrace.cli.optimizing import restored, tell_left_out
    from spantrace.errors import SpantraceError
    from spantrace.vllm_adapter.graph_request import refuse_without_graphs
    from spantrace.vllm_adapter.launch import choose, installed_version, serve_command, serve_environment

    if not arguments:
        raise SpantraceError("name a model: spantrace serve -- MODEL [vllm serve arguments]")
    program = serve_command(arguments)
    if graph_spans:
        refuse_without_graphs(arguments)
    chosen = choose(optimize, restore_stock)
    if optimize != "none":
        tell_left_out(optimize, installed_version() or "")
    environment = serve_environment(os.environ, chosen, allow_delays, graph_spans)
    for sentence in restored(chosen):
        click.echo(f"spantrace: {sentence}", err=True)
    sys.stdout.flush()
    os.execve(program[0], program, environment)
