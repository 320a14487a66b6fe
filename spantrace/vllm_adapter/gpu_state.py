"""Name, clocks and other users of the GPUs of this machine, as nvidia-smi tells them."""

from __future__ import annotations

import csv
import shutil
import subprocess
from typing import Any

_FIELDS = {
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
}


def gpu_state() -> dict[str, Any] | None:
    """The first GPU as nvidia-smi describes it, with the pids of the processes on it; None without nvidia-smi."""
    gpus = _query("gpu", list(_FIELDS.values()))
    if not gpus:
        return None
    state: dict[str, Any] = dict(zip(_FIELDS, gpus[0], strict=True))
    for clock in ("sm_mhz", "memory_mhz"):
        state[clock] = int(state[clock]) if state[clock].isdigit() else None
    processes = _query("compute-apps", ["gpu_uuid", "pid"])
    state["processes"] = [int(pid) for uuid, pid in processes if uuid == state["uuid"] and pid.isdigit()]
    return state


def _query(what: str, fields: list[str]) -> list[list[str]]:
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]
    return [row for row in rows if len(row) == len(fields)]
