import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "versions: downloads the sources of every supported vLLM")
