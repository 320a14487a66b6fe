"""Servers with the witness, and the NVTX counter, in every process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from live import Witness

from spantrace.vllm_adapter.graph_request import GRAPH_SPANS

if TYPE_CHECKING:
    from cpu_server import CpuServer

HERE = Path(__file__).parent
ACCEPTANCE = (0.9, 0.6, 0.3)
USUAL: dict[str, Any] = {"method": "dflash", "acceptance": ACCEPTANCE}
HYBRID = USUAL | {"target": "nemotron", "optimize": "uniform-decode-metadata", "allow_delays": True}
"""A hybrid target with a DFlash drafter that was started with an optimization and may be delayed."""
DSPARK: dict[str, Any] = {
    "method": "dspark",
    "runner": "V2",
    "optimize": "keep-last-block,split-kv-3d,markov-chain",
}
"""Runner V2, interpreted, with a DSpark drafter whose drafts are verified."""
Serve = Callable[..., "CpuServer"]
AskWitness = Callable[["CpuServer"], Witness]


@pytest.fixture(scope="session")
def witness_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the witnesses put their sockets and logs."""
    return tmp_path_factory.mktemp("witness")


@pytest.fixture(scope="session")
def nvtx_counts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the library that `NVTX_INJECTION64_PATH` names puts its counters; beside it."""
    directory = tmp_path_factory.mktemp("nvtx")
    library = directory / "nvtx_counter.so"
    command = ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(HERE / "nvtx_counter.c")]
    subprocess.run(command, check=True)
    return directory


@pytest.fixture(scope="session")
def serve(servers: Any, witness_directory: Path, nvtx_counts: Path) -> Serve:
    """`servers.get` for servers with the witness: `serve(method="dflash", acceptance=ACCEPTANCE)`."""

    def get(**configuration: Any) -> CpuServer:
        from cpu_server.install import HERE as cpu_server

        interpreter = [str(cpu_server / "interpreter")] if configuration.get("runner") == "V2" else []
        given = configuration.pop("env", {})
        environment = {
            "PYTHONPATH": os.pathsep.join([str(HERE / "witness"), *interpreter]),
            "SPANTRACE_WITNESS_DIR": str(witness_directory),
            "NVTX_INJECTION64_PATH": str(nvtx_counts / "nvtx_counter.so"),
            "NVTX_COUNTER_DIR": str(nvtx_counts),
            **given,
        }
        return servers.get(**configuration, env=environment)

    return get


@pytest.fixture(scope="session")
def profiled(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> tuple[CpuServer, Path]:
    """The usual server, asked for graph spans, with a profiler of vLLM's, and where this writes its traces."""
    directory = tmp_path_factory.mktemp("traces")
    profiler = {"profiler": "torch", "torch_profiler_dir": str(directory), "torch_profiler_with_stack": False}
    options: Any = {"extra_args": ("--profiler-config", json.dumps(profiler))}
    return serve(**USUAL, **options, env={"VLLM_CUSTOM_SCOPES_FOR_PROFILING": "1", GRAPH_SPANS: "1"}), directory


@pytest.fixture(scope="session")
def witness(witness_directory: Path) -> AskWitness:
    """The witness in a server's processes."""
    return lambda server: Witness(server, witness_directory)
