"""The header of a recording: what its processes said of themselves, of the server and of their health."""

from __future__ import annotations

from typing import Any

from spantrace.frames import Frame
from spantrace.recording import Header
from spantrace.switched import KEY, summed
from spantrace.windows import WINDOWS


def complete_header(header: Header, frames: list[Frame]) -> Header:
    """The header with what the processes said of themselves, of the server and of their health at the end."""
    processes: dict[int, dict[str, Any]] = {}
    full: Header = {name: value for name, value in header.items() if name != "journal"}
    full.setdefault("server", {})
    for frame in frames:
        index = frame.get("process", -1)
        if frame["type"] == "armed":
            processes[index] = {"lost": 0, "hook_errors": 0, "first_error": "", "sites": [], **frame["about"]}
            measured = {key: value for key, value in frame["calibration"].items() if value is not None}
            full["calibration"] = {**frame["calibration"], **full.get("calibration", {}), **measured}
        elif frame["type"] == "described":
            known = {key: value for key, value in frame["server"].items() if value is not None}
            full["server"] = {**frame["server"], **full["server"], **known}
            full["gpus"] = frame.get("gpus") or full.get("gpus")
            if frame["gpu"]:
                state = _state_of(frame["gpu"]["uuid"], full.get("gpus") or [])
                processes.setdefault(index, {})["gpu"] = {**state, **frame["gpu"]}
            if frame.get("graph_spans"):
                processes.setdefault(index, {})["graph_spans"] = frame["graph_spans"]
        elif frame["type"] in ("health", "stopped"):
            processes[index].update(frame["health"], sites=frame["sites"], graphs=frame.get("graphs", {}))
            processes[index]["rank"] = frame.get("rank")
            processes[index][KEY] = frame.get(KEY, [])
            processes[index]["stopped"] = frame["type"] == "stopped"
        elif frame["type"] == "window":
            full.setdefault(WINDOWS, []).append({key: value for key, value in frame.items() if key != "type"})
        elif frame["type"] == "note":
            full["notes"] = [*full.get("notes", []), frame["text"]]
    records = sum(about.get("gpu_records", 0) for about in processes.values())
    timed = sum(about.get("gpu_cycles", 0) for about in processes.values())
    full.setdefault("calibration", {})["gpu_events_per_cycle"] = records / timed if timed else 0.0
    full.pop("gpus", None)
    full["processes"] = [processes[index] for index in sorted(processes)]
    full["gpu"] = _gpus(full["processes"]) or full.get("gpu")
    if counted := summed(one for about in full["processes"] for one in about.get(KEY, [])):
        full[KEY] = counted
    if refused := {name: why for about in full["processes"] for name, why in about.get("refused", {}).items()}:
        full["notes"] = [*full.get("notes", []), *(f"{name} is not on: {why}" for name, why in refused.items())]
    return full


def _gpus(processes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first GPU of the server, how many it has, and who else is on any of them; each process's gets its company."""
    own = {about["pid"] for about in processes}
    gpus = [about["gpu"] for about in processes if about.get("gpu")]
    for gpu in gpus:
        if "processes" in gpu:
            gpu["other_processes"] = [pid for pid in gpu.pop("processes") if pid not in own]
    if not gpus:
        return None
    others = {pid for gpu in gpus for pid in gpu.get("other_processes", [])}
    known = {"other_processes": sorted(others)} if any("other_processes" in gpu for gpu in gpus) else {}
    count = len({gpu["uuid"] for gpu in gpus})
    return {**gpus[0], **known, **({"count": count} if count > 1 else {})}


def _state_of(uuid: str, gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """What was seen of the GPU with that uuid before the recording, with or without the uuid's prefix."""
    return next((gpu for gpu in gpus if gpu["uuid"].removeprefix("GPU-") == uuid.removeprefix("GPU-")), {})
