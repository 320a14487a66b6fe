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


def gpu_states() -> list[dict[str, Any]]:
    """Every GPU as nvidia-smi describes it, with the pids of the processes on it; none without nvidia-smi."""
    processes = _query("compute-apps", ["gpu_uuid", "pid"])
    states = [dict[str, Any](zip(_FIELDS, row, strict=True)) for row in _query("gpu", list(_FIELDS.values()))]
    for state in states:
        for clock in ("sm_mhz", "memory_mhz"):
            state[clock] = int(state[clock]) if state[clock].isdigit() else None
        state["processes"] = [int(pid) for uuid, pid in processes if uuid == state["uuid"] and pid.isdigit()]
    return states


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
