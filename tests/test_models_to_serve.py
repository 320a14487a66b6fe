"""The models that the servers on an H200 are started with: vLLM knows them, and every id of an answer has a text."""

from __future__ import annotations

from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("vllm")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

from live_overhead.models import NEMOTRON, QWEN, make  # noqa: E402
from live_overhead.whole_tokenizer import whole_tokenizer, words  # noqa: E402


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them."""
    made = tmp_path_factory.mktemp("models")
    make(made)
    return made


@pytest.mark.parametrize("name", [NEMOTRON, QWEN])
def test_every_id_of_a_target_has_a_text_of_its_own(home: Path, name: str) -> None:
    assert whole_tokenizer(home / name, home / "none") == home / name
    tokenizer = transformers.AutoTokenizer.from_pretrained(home / name)
    last = words(home / name) - 1
    assert tokenizer.decode([7, last]) == f"w7w{last}"


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        (NEMOTRON, "NemotronHForCausalLM"),
        (f"{NEMOTRON}-dflash", "DFlashDraftModel"),
        (QWEN, "Qwen3ForCausalLM"),
        (f"{QWEN}-dflash", "DFlashDraftModel"),
        (f"{QWEN}-dspark", "Qwen3DSparkModel"),
    ],
)
def test_vllm_has_a_class_for_each(home: Path, name: str, architecture: str) -> None:
    from vllm.config import ModelConfig

    found = ModelConfig(model=str(home / name), tokenizer=str(home / NEMOTRON), dtype="bfloat16")
    assert found.architecture == architecture
    assert found.get_head_size() == 128
