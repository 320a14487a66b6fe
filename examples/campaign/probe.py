"""Do the four fixes leave a model's tokens alone? `spantrace probe` on two servers side by side, in one command.

    python examples/campaign/probe.py 0.33.0 --models MODELS --out RESULTS

from the project's folder, offline, with that vLLM in this environment: the model of run.py with random weights that
mean something and drafts that are verified, and the same with an attention layer zeroed, both on one GPU. Writes
probe.json into RESULTS; exits as `spantrace probe` does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from live_overhead.servers import FIRST_PORT, READY_S, SETS, Setup, serve, stop, wait_ready

FIXES = {
    "0.26.0": "keep-last-block,split-kv-3d,skip-draft-rebuild,uniform-decode-metadata",
    "0.33.0": "split-kv-3d,uniform-decode-metadata,stock-keep-last-block,stock-skip-draft-rebuild",
}
PROMPT = 4500
"""Tokens: two blocks of the prefix cache of a model with large Mamba states, and some."""
SPANTRACE = (sys.executable, "-m", "spantrace.cli.main")


def setups(version: str, drafter: Path) -> list[Setup]:
    """The whole model's server and the broken one's; what is said last counts, so this is put behind the usual."""
    speculation = {"method": "dflash", "model": str(drafter), "num_speculative_tokens": 2,
                   "rejection_sample_method": "standard", "attention_backend": "TRITON_ATTN"}  # fmt: skip
    whole = SETS[version][0]
    more = ("--load-format", "spantrace-random", "--enable-prefix-caching")
    more += ("--speculative-config", json.dumps(speculation))
    zeroed = ("--model-loader-extra-config", json.dumps({"zero_attention": 0}))
    return [
        replace(whole, name="whole", arguments=(*whole.arguments, *more)),
        replace(whole, name="zeroed", arguments=(*whole.arguments, *more, *zeroed)),
    ]


def probe(options: argparse.Namespace) -> int:
    """Run `spantrace probe`, and keep what it prints; its exit code."""
    servers = [f":{FIRST_PORT}", "--zeroed", f":{FIRST_PORT + 1}"]
    command = [*SPANTRACE, "probe", *servers, "--optimize", FIXES[options.version]]
    command += ["--prompt-tokens", str(PROMPT), "--format", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    (options.out / "probe.json").write_text(done.stdout)
    print(done.stdout, flush=True)
    return done.returncode


def main() -> int:
    """Start both servers, probe, stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", choices=sorted(FIXES))
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--model", default="nemotron-h-30b-a3b")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.cpu, options.gpus = False, 1
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["SPANTRACE_OPTIMIZE"] = "split-kv-3d"
    wanted = setups(options.version, options.models / f"{options.model}-dflash")
    servers = [serve(setup, index, options) for index, setup in enumerate(wanted)]
    deadline = time.monotonic() + READY_S
    try:
        for index, server in enumerate(servers):
            if not wait_ready(server, FIRST_PORT + index, deadline):
                sys.exit(f"the server did not come up; see {options.out / wanted[index].name}.log")
        return probe(options)
    finally:
        for server in servers:
            stop(server)


if __name__ == "__main__":
    sys.exit(main())
