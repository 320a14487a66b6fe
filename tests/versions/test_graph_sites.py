"""What graph spans rely on in every supported vLLM: its captures, its replays, and where its models call their parts.

Run by `make test-versions`, which sets SPANTRACE_TEST_VERSIONS=1.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from packaging.version import Version
from source_index import SourceIndex
from sources import source_tree

from spantrace.vllm_adapter.hooks import SUPPORTED
from spantrace.vllm_adapter.twin_capture import CONTEXT_IN_GRAPH, DRAFTERS, MANAGERS

pytestmark = pytest.mark.versions
MODELS = "vllm.model_executor.models."
TARGETS = {"nemotron_h": "NemotronHModel", "qwen2": "Qwen2Model", "llama": "LlamaModel", "qwen3_next": "Qwen3NextModel"}
SPECULATORS = "vllm.v1.worker.gpu.spec_decode.dflash.speculator"


@pytest.fixture(scope="module", params=SUPPORTED)
def index(request: pytest.FixtureRequest) -> SourceIndex:
    return SourceIndex(request.param, source_tree(request.param))


def tree(index: SourceIndex, module: str) -> ast.Module:
    path = index.path(module)
    assert isinstance(path, Path), module
    return ast.parse(path.read_text())


def source_of(index: SourceIndex, module: str, owner: str, method: str) -> str:
    """A method's text, without its decorators."""
    classes = {node.name: node for node in tree(index, module).body if isinstance(node, ast.ClassDef)}
    found = [one for one in classes[owner].body if isinstance(one, ast.FunctionDef) and one.name == method]
    assert len(found) == 1, f"{owner}.{method}"
    return "\n".join(map(ast.unparse, found[0].body))


def test_a_manager_captures_and_replays_by_description(index: SourceIndex) -> None:
    parameters = index.parameters(f"{MANAGERS}:CudaGraphManager.capture")
    assert parameters == ["self", "create_forward_fn", "progress_bar_desc"]
    capture = source_of(index, MANAGERS, "CudaGraphManager", "capture")
    assert "self._capture_descs[mode]" in capture
    assert "self.graphs[desc] = graph" in capture
    assert "create_forward_fn(desc, warmup=False)" in capture
    assert "forward_fn(CUDAGraphMode.NONE)" in capture
    replay = source_of(index, MANAGERS, "CudaGraphManager", "run_fullgraph")
    assert "self.graphs[desc].replay()" in replay


def test_the_target_and_the_drafter_are_given_where_they_are_looked_for(index: SourceIndex) -> None:
    assert index.parameters(f"{MANAGERS}:ModelCudaGraphManager.capture")[:2] == ["self", "model"]
    assert "super().capture(create_forward_fn" in source_of(index, MANAGERS, "ModelCudaGraphManager", "capture")
    drafter = index.parameters(f"{DRAFTERS}:DFlashCudaGraphManager.capture")
    assert drafter[:2] == ["self", "forward_fn"]
    assert "super().capture(create_forward_fn" in source_of(index, DRAFTERS, "DFlashCudaGraphManager", "capture")
    speculator = source_of(index, SPECULATORS, "DFlashSpeculator", "capture")
    assert "self._generate_draft" in speculator
    assert "self.model(" in source_of(index, SPECULATORS, "DFlashSpeculator", "_run_model")


def test_the_context_is_in_the_drafters_graph_from_0_31_on(index: SourceIndex) -> None:
    given = set(index.parameters(f"{DRAFTERS}:DFlashCudaGraphManager.capture")) & set(CONTEXT_IN_GRAPH)
    assert bool(given) == (Version(index.version) >= Version("0.31"))
    if given:
        capture = source_of(index, DRAFTERS, "DFlashCudaGraphManager", "capture")
        (name,) = given
        assert capture.index(f"{name}(num_reqs") < capture.index("forward_fn(num_reqs")


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_embeds_and_then_calls_its_layers(index: SourceIndex, name: str) -> None:
    module, owner = MODELS + name, TARGETS[name]
    made = source_of(index, module, owner, "__init__")
    assert "self.embed_tokens = VocabParallelEmbedding(" in made
    assert "self.layers = make_layers(" in made.replace("self.start_layer, self.end_layer, ", "")
    forward = source_of(index, module, owner, "forward")
    assert "islice(self.layers, self.start_layer, self.end_layer)" in forward
    assert "layer(" in forward


def test_a_drafter_calls_its_model_and_its_logits_processor_as_modules(index: SourceIndex) -> None:
    dflash, dspark = (tree(index, f"{MODELS}{name}") for name in ("qwen3_dflash", "qwen3_dspark"))
    classes = {node.name: node for one in (dflash, dspark) for node in one.body if isinstance(node, ast.ClassDef)}
    for owner in ("DFlashQwen3ForCausalLM", "Qwen3DSparkForCausalLM"):
        decorators = [ast.unparse(one) for one in classes[owner].decorator_list]
        assert not any("support_torch_compile" in one for one in decorators), owner
        assert "self.logits_processor(" in ast.unparse(classes[owner])
    assert "def markov_bias" in ast.unparse(classes["Qwen3DSparkForCausalLM"])
    assert "markov_bias" not in ast.unparse(classes["DFlashQwen3ForCausalLM"])


def test_a_compiled_module_says_that_it_is(index: SourceIndex) -> None:
    decorators = ast.unparse(tree(index, "vllm.compilation.decorators"))
    assert "self.do_not_compile =" in decorators
    assert "if self.do_not_compile" in decorators
