"""Profile a speculative-decode cycle with nothing but PyTorch: `make demo`.

Records the built-in DFlash cycle as stock code and with every optimization on, prints both reports and what the
optimizations changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(".cache/demo")
LENGTH = ("--cycles", "100", "--warmup", "10")


def main() -> None:
    """Run the demonstration; its exit code is that of the first command that failed."""
    # One thread: two threads that share their cores with other programs wait for each other most of the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    FOLDER.mkdir(parents=True, exist_ok=True)
    stock, everything = (str(FOLDER / f"{name}.spantrace") for name in ("stock", "all"))
    spantrace("run", *LENGTH, "-o", stock, "--force")
    spantrace("run", *LENGTH, "--optimize", "all", "-o", everything, "--force")
    for recording in (stock, everything):
        spantrace("report", recording)
    spantrace("compare", stock, everything)


def spantrace(*arguments: str) -> None:
    """Run one spantrace command as a person would, and show it."""
    print(f"\n$ spantrace {' '.join(arguments)}", flush=True)
    done = subprocess.run([Path(sys.executable).parent / "spantrace", *arguments])
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
