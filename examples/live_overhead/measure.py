"""Record 1000 steady cycles of live vLLM servers, and measure what recording costs their inter-token latency.

Starts every server of the chosen set side by side, then for each, one at a time on each GPU, with one stream of
greedy requests on it: records 1000 steady cycles through the command line, then alternates windows that are recorded
(B) and not (A) in the order ABBA and compares the mean time between two chunks of the stream, one decode cycle.

    python measure.py --set 0.33.0 --models MODELS --out RESULTS

MODELS is what models.py beside it has made: configurations and tokenizers; weights are dummies.
Writes NAME.spantrace, NAME.json and summary.md into RESULTS.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from spantrace.control import default_directory
from spantrace.sampling import every_for
from spantrace.vllm_adapter.servers import engine_and_workers, find

sys.path.insert(0, str(Path(__file__).parents[1]))
from live_overhead.servers import FIRST_PORT, READY_S, SETS, Setup, pin, serve, stop, wait_ready
from live_overhead.windows import Stream, overhead

HEAD = """\
| server | not recorded ms | recorded ms | typical change, 95% interval | mean change, 95% interval | A to A | pairs |
|:--|--:|--:|--:|--:|--:|--:|"""


def record(port: int, path: Path, cycles: int) -> subprocess.CompletedProcess[str]:
    """Run `spantrace record`."""
    command = [sys.executable, "-m", "spantrace.cli.main", "record", f":{port}", "-o", str(path), "--force"]
    return subprocess.run([*command, "--cycles", str(cycles)], stderr=subprocess.PIPE, text=True, timeout=120)


def study(setup: Setup, port: int, options: argparse.Namespace) -> None:
    """Everything that is measured on one server, into its files."""
    stream = Stream(port, options.tokens)
    stream.start()
    time.sleep(options.settle)
    done = record(port, options.out / f"{setup.name}.spantrace", options.cycles)
    result: dict[str, Any] = {"name": setup.name, "record": done.stderr.strip(), "exit": done.returncode}
    if done.returncode == 0:
        scratch = options.out / f"{setup.name}.scratch"
        try:
            result |= overhead(stream, port, options.seconds, options.window, scratch, options.detail_every)
        except (RuntimeError, OSError) as error:
            result["failed"] = repr(error)
        scratch.unlink(missing_ok=True)
    stream.going = False
    result["stream_errors"] = stream.errors[:3]
    (options.out / f"{setup.name}.json").write_text(json.dumps(result, indent=1))
    print(time.strftime("%H:%M:%S"), line(setup, options), done.stderr, flush=True)


def study_in_turn(mine: list[tuple[Setup, int]], options: argparse.Namespace) -> None:
    """The servers of one GPU."""
    for setup, port in mine:
        study(setup, port, options)


def line(setup: Setup, options: argparse.Namespace) -> str:
    """A server's row of the summary."""
    path = options.out / f"{setup.name}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    if "pairs" not in found:
        return f"| {setup.name} | not measured: {found.get('failed', found.get('record', 'see its log'))} | | | | | |"
    typical, mean = ("{:+.2f}% [{:+.2f}, {:+.2f}]".format(*found[name]) for name in ("typical_percent", "mean_percent"))
    return (
        f"| {setup.name} | {found['bare_ms']:.3f} | {found['recorded_ms']:.3f} | {typical} | {mean} "
        f"| {found['a_to_a_percent']:.1f}% | {found['pairs']} |"
    )


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=sorted(SETS), required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--model", default="nemotron-h-30b-a3b")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=8000, help="tokens of one request")
    parser.add_argument("--seconds", type=float, default=150, help="of windows on each server")
    parser.add_argument("--window", type=float, default=0.25, help="seconds of one window")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds of load before the first recording")
    parser.add_argument("--cpu", action="store_true", help="a CPU build of vLLM: arguments that it understands")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs to spread the servers over")
    parser.add_argument("--detail-every", type=int, default=every_for(None), help="as of spantrace record")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the set's servers")
    return parser.parse_args(arguments)


def main() -> None:
    """Run one set and write its summary."""
    options = options_of()
    options.out.mkdir(parents=True, exist_ok=True)
    setups = [setup for setup in SETS[options.set] if setup.name in (options.only or [setup.name])]
    servers = [serve(setup, index, options) for index, setup in enumerate(setups)]
    deadline = time.monotonic() + READY_S
    try:
        up = [wait_ready(server, FIRST_PORT + index, deadline) for index, server in enumerate(servers)]
        print(time.strftime("%H:%M:%S"), "up:", up, flush=True)
        ready = [(index, setup) for index, setup in enumerate(setups) if up[index]]
        if not options.cpu:
            found = [engine_and_workers(find(f":{FIRST_PORT + index}", default_directory())) for index, _ in ready]
            pin({member.pid for workers, engine in found for member in (engine, *workers)})
        on_gpu = [
            [(setup, FIRST_PORT + index) for index, setup in ready if index % options.gpus == gpu]
            for gpu in range(options.gpus)
        ]
        clients = [multiprocessing.Process(target=study_in_turn, args=(mine, options)) for mine in on_gpu]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    finally:
        for server in servers:
            stop(server)
        summary = "\n".join([HEAD, *(line(setup, options) for setup in setups)])
        (options.out / "summary.md").write_text(summary + "\n")
        print(summary, flush=True)


if __name__ == "__main__":
    main()
