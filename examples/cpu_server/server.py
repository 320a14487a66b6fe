"""Starts and stops a real `vllm serve` on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import psutil

from cpu_server.client import Client
from cpu_server.install import HERE, environment

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 15.0
DRAFTERS = {"dflash": "dflash", "dspark": "dspark", "eagle3": "eagle3", "draft_model": "draft"}
Method = Literal["dflash", "dspark", "eagle3", "draft_model", "ngram"]


class CpuServer(Client):
    """A server for the length of a `with` block: `url`, `port`, `pid` of its root process, `log`.

    `acceptance` gives the synthetic acceptance rate of each draft position and so the number of drafts; without
    it `drafts` are verified as usual. `method=None` serves without speculation. `runner="V2"` runs vLLM's Triton
    kernels in the interpreter: about ten times slower. With `optimize` or `allow_delays` it is started by `spantrace
    serve` with these options.
    """

    def __init__(
        self,
        method: Method | None = "dflash",
        *,
        target: Literal["target", "nemotron"] = "target",
        acceptance: Sequence[float] | None = None,
        drafts: int = 3,
        runner: Literal["V1", "V2"] = "V1",
        async_scheduling: bool = False,
        optimize: str | None = None,
        allow_delays: bool = False,
        port: int = 0,
        extra_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port or free_port()
        super().__init__(f"http://127.0.0.1:{self.port}", "tiny")
        self.environment = _environment(runner, async_scheduling) | dict(env or {})
        self.command = [
            *_serve_command(target, self.port, _options(optimize, allow_delays)),
            *_speculation_arguments(method, acceptance, drafts, own_weights=target == "nemotron"),
            *extra_args,
        ]
        self.log = Path(tempfile.gettempdir()) / f"cpu-server-{os.getpid()}-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The root process of the server: its API server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the root process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The root process's exit code, None while it runs."""
        assert self._process is not None, "the server is not running"
        return self._process.poll()

    def processes(self) -> list[psutil.Process]:
        """The root process and all its descendants."""
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]

    def process(self, title: str) -> psutil.Process:
        """The one process whose command line begins with `title`, such as "VLLM::EngineCore" or "VLLM::Worker"."""
        (found,) = [process for process in self.processes() if " ".join(process.cmdline()).startswith(title)]
        return found

    def start(self, timeout: float = START_TIMEOUT_S) -> None:
        """Start the server and wait until it answers; what it started is gone again if it does not."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout
        try:
            while not self.healthy():
                if not self.alive:
                    raise RuntimeError(f"vllm serve died with code {self._process.poll()}:\n{self.log_tail()}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"vllm serve was not up after {timeout:g} s:\n{self.log_tail()}")
                time.sleep(0.25)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the server, politely at first; stopping twice is fine."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = self.processes()
            self._process.send_signal(signal.SIGTERM)
            psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
        # Its process group outlives the root where the root was killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that the server printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> CpuServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _options(optimize: str | None, allow_delays: bool) -> list[str]:
    """The options of `spantrace serve`; none where a plain `vllm serve` will do."""
    return [*(["--optimize", optimize] if optimize else []), *(["--allow-delays"] if allow_delays else [])]


def _serve_command(target: str, port: int, options: list[str]) -> list[str]:
    home = environment()
    with_ours = [str(home / "bin/spantrace"), "serve", *options, "--"]
    command = [
        *(with_ours if options else [str(home / "bin/vllm"), "serve"]),
        *[str(home / "models" / target), "--served-model-name", "tiny"],
        *["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32"],
        *["--max-model-len", "2048", "--max-num-batched-tokens", "2048", "--max-num-seqs", "8", "--block-size", "32"],
    ]
    if target == "nemotron":
        # The prefix cache of a hybrid has been seen to work here with the V2 runner only.
        command += ["--load-format", "spantrace-random", "--no-enable-prefix-caching"]
    return command


def _speculation_arguments(
    method: str | None, acceptance: Sequence[float] | None, drafts: int, own_weights: bool
) -> list[str]:
    if method is None:
        return []
    config: dict[str, object] = {"method": method, "num_speculative_tokens": len(acceptance or ()) or drafts}
    if method == "ngram":
        config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    else:
        config["model"] = str(environment() / "models" / DRAFTERS[method])
    if own_weights:
        config["draft_load_config"] = {"load_format": "auto"}
    if acceptance:
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(acceptance)}
    return ["--speculative-config", json.dumps(config)]


def _environment(runner: str, async_scheduling: bool) -> dict[str, str]:
    chosen = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_CI_ENV": "1",
        # The models are so small that more threads only wait for each other, and for the clients' share of two cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "V2" else "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "CPU_SERVER_ASYNC_SCHEDULING": "1" if async_scheduling else "0",
    }
    if runner == "V2":
        chosen |= {"TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE / "interpreter")}
    return chosen
