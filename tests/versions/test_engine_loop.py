"""What an action between two steps relies on in the loop of every supported vLLM's engine."""

from __future__ import annotations

import pytest
from sources import source_tree

from optimized.gate import source
from spantrace.vllm_adapter.hooks import SUPPORTED

pytestmark = pytest.mark.versions
_CORE = "vllm.v1.engine.core:EngineCoreProc."


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_engine_takes_requests_between_its_steps_and_wakes_up_for_one_that_does_nothing(version: str) -> None:
    tree = source_tree(version)
    loop = source(tree, _CORE + "run_busy_loop")
    taking = source(tree, _CORE + "_process_input_queue")
    handling = source(tree, _CORE + "_handle_client_request")
    assert loop is not None
    assert taking is not None
    assert handling is not None
    assert loop.index("self._process_input_queue()") < loop.index("self._process_engine_step()")
    assert taking.count("self._handle_client_request(*req)") == 2, "looked up after the request was taken"
    assert taking.index("req = self.input_queue.get(") < taking.index("self._handle_client_request(*req)")
    assert "if request_type == EngineCoreRequestType.WAKEUP:\n            return\n" in handling
    reset = source(tree, "vllm.v1.engine.core:EngineCore.reset_prefix_cache")
    assert reset is not None
    assert "-> bool:" in reset
    assert source(tree, "vllm.v1.executor.abstract:Executor.collective_rpc") is not None
