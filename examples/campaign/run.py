"""What each of the four fixes saves on a live vLLM server, in one command: the plan's campaign, and its table in files.

    python examples/campaign/run.py examples/campaign/nemotron-0.33.0.toml --models MODELS --out RESULTS

from the project's folder, with the vLLM of the plan in this environment; nothing is fetched. MODELS is what
examples/live_overhead/models.py has made: configurations and tokenizers; weights are dummies. Uses the server at --port
where one answers, which must have been started with --enable-prefix-caching, and with SPANTRACE_OPTIMIZE=split-kv-3d
(and moe-tiles, where the plan has it) so that its graphs are captured with and without; else starts that of
examples/live_overhead so, and stops it in the end.

As many rounds of all arms are measured as fit into --seconds, judged by how long the load takes once it is warm.
Writes optimizations.md (what can be switched on there), plan.toml, gates.toml, campaign/, and campaign.md and .json
(what `spantrace ab` shows) into RESULTS; exits as `spantrace ab` does.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from spantrace.campaign.parsing import parse
from spantrace.campaign.plan import Plan
from spantrace.control import default_directory
from spantrace.vllm_adapter.live import switch
from spantrace.vllm_adapter.servers import engine_and_workers, find

sys.path.insert(0, str(Path(__file__).parents[1]))
from live_overhead.servers import FIRST_PORT, READY_S, SETS, pin, serve, stop, wait_ready

OWN_S = 1.0
"""What a window takes beside its load: switching, the recording's start and its end."""
FEWEST, MOST = 6, 12
"""Rounds: with fewer nothing can be shown of so many spans, and more than these are a matter for an afternoon."""
ALIGNED = {"0.26.0": ("--mamba-cache-mode", "align")}
"""What a version must be asked for to keep Mamba states where the later ones keep them by themselves."""
CAPTURED = ("split-kv-3d", "moe-tiles")
"""What is switched live only in a server that was started with it: its graphs are captured with either."""
SPANTRACE = (sys.executable, "-m", "spantrace.cli.main")


@contextmanager
def served(options: argparse.Namespace) -> Iterator[None]:
    """The server at the port, started for the length of the block where none answers; SystemExit where it dies."""
    if answers(options.port):
        yield
        return
    if options.models is None or options.port != FIRST_PORT:
        sys.exit(f"no server answers at :{options.port}; start one, or give --models and leave out --port")
    plan = options.plan.read_text()
    os.environ["SPANTRACE_OPTIMIZE"] = ",".join(name for name in CAPTURED if name in plan) or "none"
    name, _, version = options.plan.stem.rpartition("-")
    setup = SETS.get(f"{version}-{name}", SETS[version])[0]
    setup = replace(setup, arguments=(*setup.arguments, "--enable-prefix-caching", *ALIGNED.get(version, ())))
    server = serve(setup, 0, options)
    try:
        if not wait_ready(server, options.port, time.monotonic() + READY_S):
            sys.exit(f"the server did not come up; see {options.out / setup.name}.log")
        pin([engine_and_workers(find(f":{options.port}", default_directory()))[1].pid])
        yield
    finally:
        stop(server)
        server.wait()


def answers(port: int) -> bool:
    """Whether a server answers there."""
    try:
        urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
    except OSError:
        return False
    return True


def warm_seconds(plan: Plan, port: int, model: str) -> float:
    """How long the plan's load takes in stock, once all that is compiled or cached once is, in every arm."""
    server = find(f":{port}", default_directory())
    wanted = [plan.switched(arm) for arm in (*plan.arms, plan.arms[0])]
    with TemporaryDirectory() as scratch:
        known = {"url": f"http://127.0.0.1:{port}", "model": model, "result": f"{scratch}/result"}
        command = [word.format(**known) for word in plan.load["command"]]
        for on in wanted:
            switch(server, on, {name for names in wanted for name in names} - set(on))
            begun = time.monotonic()
            subprocess.run(command, check=True)
        return time.monotonic() - begun


def rounds(seconds: float, arms: int, warm: float) -> int:
    """The even number of rounds that fits into so many seconds, within reason."""
    return max(FEWEST, min(MOST, int(seconds / arms / (warm + OWN_S)) // 2 * 2))


def said(port: int, path: str, pattern: str) -> str:
    """What the first group of a pattern finds in a page of the server; SystemExit where it finds nothing."""
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        found = re.search(pattern, answer.read().decode(), re.MULTILINE)
    if found is None:
        sys.exit(f"the server at :{port} does not say what its {path} should: {pattern}")
    return found[1]


def cache_said(port: int, name: str) -> str:
    """A setting of the server's cache: `block_size`, in tokens, or `enable_prefix_caching`."""
    return said(port, "/metrics", rf'^vllm:cache_config_info\{{.*\b{name}="(\w+)"')


def written(options: argparse.Namespace) -> Path:
    """The plan for this server, with its port, its block size and the number of rounds, beside its gates."""
    plan = parse(options.plan.read_text(), lambda name: (options.plan.parent / name).read_text())
    warm = warm_seconds(plan, options.port, said(options.port, "/v1/models", r'"id": ?"([^"]*)"'))
    repeats = options.repeats or rounds(options.seconds, len(plan.arms), warm)
    about = repeats * len(plan.arms) * (warm + OWN_S)
    say(f"the load takes {warm:.1f} s: {len(plan.arms)} arms x {repeats} in about {about:.0f} s")
    if cache_said(options.port, "enable_prefix_caching") != "True":
        say("the server has no prefix cache: keep-last-block cannot fire, start it with --enable-prefix-caching")
    text = re.sub(r"(?m)^repeats = .*", f"repeats = {repeats}", options.plan.read_text())
    text = re.sub(r"(?m)^target = .*", f'target = ":{options.port}"', text)
    text = re.sub(r"(?m)^gates = .*", 'gates = "gates.toml"', text)
    gates = re.sub(r"\bblock = \d+", f"block = {cache_said(options.port, 'block_size')}", plan.gates)
    (options.out / "gates.toml").write_text(gates)
    path: Path = options.out / "plan.toml"
    path.write_text(text)
    return path


def spantrace(*arguments: str, into: Path) -> int:
    """Run a spantrace command and keep what it prints; its exit code."""
    say(shlex.join(["spantrace", *arguments]))
    with into.open("wb") as file:
        return subprocess.run([*SPANTRACE, *arguments], stdout=file, check=False).returncode


def say(text: str) -> None:
    """One line with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", type=Path, help="to start a server with")
    parser.add_argument("--model", default="nemotron-h-30b-a3b")
    parser.add_argument("--port", type=int, default=FIRST_PORT)
    parser.add_argument("--seconds", type=float, default=150, help="of windows")
    parser.add_argument("--repeats", type=int, help="rounds, whatever they take")
    options = parser.parse_args(arguments)
    options.cpu, options.gpus = False, 1
    return options


def main() -> int:
    """Run it all."""
    options = options_of()
    options.out.mkdir(parents=True, exist_ok=True)
    with served(options):
        address, campaign = f":{options.port}", options.out / "campaign"
        spantrace("optimizations", address, "--format", "markdown", into=options.out / "optimizations.md")
        plan = written(options)
        spantrace("ab", str(plan), "-o", str(campaign), "--format", "json", into=options.out / "campaign.json")
        code = spantrace("ab", str(campaign), "--format", "markdown", into=options.out / "campaign.md")
    print((options.out / "campaign.md").read_text(), flush=True)
    say(f"spantrace ab exited with {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
