"""vLLM's Python sources of one release, and its own tests, from its source archive on the index, kept in a cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pypi_simple import DistributionPackage, PyPISimple

DEFAULT_INDEX = "https://pypi.org/simple"
CACHE = Path(__file__).parents[2] / ".cache" / "vllm-sources"


def index_url() -> str:
    """The package index pip is configured to use."""
    if configured := os.environ.get("PIP_INDEX_URL"):
        return configured
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or DEFAULT_INDEX


def source_tree(version: str, cache: Path = CACHE) -> Path:
    """The folder that holds `vllm/**/*.py` of that release; the first call downloads about 45 MB."""
    return _kept("vllm", version, cache / version)


def own_tests(version: str, cache: Path = CACHE) -> Path:
    """The folder that holds vLLM's own `tests/**/*.py` of that release; the first call downloads the archive again."""
    return _kept("tests", version, cache / f"{version}-tests")


def printed_by(script: Path, *arguments: str, on_path: Sequence[Path] = (), **environment: str) -> dict[str, Any]:
    """What a script says last, as JSON, in a process of its own that imports from `on_path` and from this checkout."""
    paths = os.pathsep.join(map(str, [*on_path, Path(__file__).parents[2]]))
    everything = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=everything, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _kept(folder: str, version: str, tree: Path) -> Path:
    cache = tree.parent
    if tree.is_dir():
        return tree
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        archive, kept = Path(scratch, "vllm.tar.gz"), Path(scratch, "kept")
        with PyPISimple(index_url()) as index:
            index.download_package(_source_archive(index, version), archive)
        _extract_python(archive, kept, folder)
        kept.rename(tree)
    return tree


def _source_archive(index: PyPISimple, version: str) -> DistributionPackage:
    """The release's source archive; the index must state its digest, which the download is checked against."""
    for package in index.get_project_page("vllm").packages:
        if package.package_type == "sdist" and package.version == version and package.digests:
            return package
    raise LookupError(f"{index.endpoint} has no source archive of vllm {version} with a digest")


def _extract_python(archive: Path, target: Path, folder: str) -> None:
    """Write the Python files of that folder of the archive below `target`."""
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, inner = member.name.partition("/")
            if not (member.isfile() and inner.startswith(f"{folder}/") and inner.endswith(".py")):
                continue
            if ".." in Path(inner).parts or (content := tar.extractfile(member)) is None:
                continue
            path = target / inner
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
