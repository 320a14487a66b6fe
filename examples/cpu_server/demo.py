"""Profile a live vLLM server on a machine without a GPU: `make demo-vllm`.

Starts a real server with a tiny target and a DFlash drafter, puts load on it, records it with the command line from
outside, prints the report, and stops it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from cpu_server.install import environment
from cpu_server.server import CpuServer

ACCEPTANCE = (0.9, 0.6, 0.3)


def main() -> None:
    """Run the demonstration; its exit code is that of the first command that failed."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cycles", type=int, default=200)
    options.add_argument("--streams", type=int, default=4)
    options.add_argument("-o", "--output", type=Path, default=Path(".cache/demo.spantrace"))
    chosen = options.parse_args()
    print("starting vllm serve with a tiny target and a DFlash drafter (about a minute) ...", flush=True)
    with CpuServer(method="dflash", acceptance=ACCEPTANCE) as server, server.load(chosen.streams):
        address = f":{server.port}"
        spantrace("ps")
        spantrace("record", address, "--cycles", str(chosen.cycles), "-o", str(chosen.output), "--force")
    spantrace("report", str(chosen.output))


def spantrace(*arguments: str) -> None:
    """Run one spantrace command as a person would, and show it."""
    print(f"\n$ spantrace {' '.join(arguments)}", flush=True)
    done = subprocess.run([environment() / "bin/spantrace", *arguments])
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
