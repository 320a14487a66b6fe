"""The files that start servers, in lanes that run beside each other, in the order in which they share servers.

A server takes most of a minute of one core to start, so that two lanes fill two cores, and a pool keeps the last ones.
"""

from __future__ import annotations

from pathlib import Path

LANES = (
    (
        "graph_spans_on_a_server",
        "start_profile",
        "explain_on_a_server",
        "nvtx",
        "sessions",
        "top_on_a_server",
        "live_export_on_a_server",
        "live_switching",
        "campaign_on_a_server",
        "optimize",
        "probe",
        "stack_sampling_on_a_server",
        "trouble",
        "known_answers_on_a_server",
        "sensitivity_on_a_server",
        "ranks",
    ),
    (
        "configurations",
        "restore_stock",
        "target_groups_on_a_server",
        "keep_last_block",
        "split_kv_on_a_server",
        "campaign_example",
        "drafter_kernels_on_a_server",
        "data_parallel",
        "random_weights",
    ),
)
_PLACES = {name: (number, place) for number, names in enumerate(LANES) for place, name in enumerate(names)}
_LAST = (len(LANES) - 1, len(_PLACES))


def starts_server(path: Path) -> bool:
    """Whether a file of tests starts servers."""
    return path.parent.name == "servers"


def place(path: Path) -> tuple[int, int]:
    """Where the tests of a file stand in a session's order; servers that are in no lane end the last one."""
    if not starts_server(path):
        return len(LANES), 0
    return _PLACES.get(path.stem.removeprefix("test_"), _LAST)


def lane(path: Path) -> str:
    """The name of the lane of a file, which for what starts no server is the file itself."""
    return f"servers {place(path)[0]}" if starts_server(path) else str(path)
