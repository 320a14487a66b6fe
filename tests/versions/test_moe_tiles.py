"""The tabled tile in every supported vLLM's own experts and graph manager, its kernel interpreted on a CPU."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sources import printed_by, source_tree

import optimized
from optimized.gate import source
from optimized.launching import INTERPRET

pytestmark = [
    pytest.mark.versions,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM's dependencies are not installed here"),
]
SCRIPT = Path(__file__).with_name("experts_of_this_version.py")
BACKEND = Path(__file__).parents[2] / "examples" / "cpu_server" / "interpreter"
VERSIONS = optimized.discover()["moe-tiles"].versions()
MOE = "vllm.model_executor.layers.fused_moe."
CLOSE = 2e-5
LEFT = {
    "other tokens": "no tile was measured for as many tokens",
    "other shape": "no tile is known for experts of the shape (32, 48, 192, 2)",
    "other type": "no tile is known for experts of float16",
    "other GPU": "no tile is known for these experts on NVIDIA H100",
    "bias": "the experts have a bias",
    "subclass": "the experts are Others",
    "overridden": "somebody overrides the configuration",
    "invariant": "results must not depend on the batch",
    "the same tile": "vLLM chooses the same tile by itself",
    "configured": "vLLM has a configuration of its own for these experts",
}
Facts = dict[str, Any]


@cache
def facts_of(version: str) -> Facts:
    """What that version's experts did."""
    return printed_by(SCRIPT, version, str(source_tree(version)), on_path=[BACKEND], **{INTERPRET: "1"})


@pytest.fixture(params=VERSIONS)
def found(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    monkeypatch.chdir(tmp_path)
    return facts_of(request.param)


def counted(one: Facts) -> tuple[int, int, int]:
    return one["hits"], one["fallbacks"], one["errors"]


def test_every_version_is_tried() -> None:
    assert VERSIONS == ["0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]


def test_both_products_are_cut_by_the_tile_and_agree_though_not_in_every_bit(found: Facts) -> None:
    one = found["taken"]
    assert counted(one) == (1, 0, 0)
    assert one["tiles"] == [64, 64, 16, 16, 64, 64]
    assert one["error"] < CLOSE
    assert 0 < one["apart"] < CLOSE
    assert one["equal_after"]


def test_what_is_not_admitted_keeps_its_bits_and_says_why(found: Facts) -> None:
    for name, reason in LEFT.items():
        one = found["left"][name]
        assert counted(one) == (0, 1, 0), name
        assert one["reasons"] == {reason: 1}
        assert (one["equal"], one["equal_after"]) == (True, True), name
        assert set(one["tiles"]) == {32 if name in ("overridden", "configured") else 64}, name


def test_only_what_has_a_tile_is_captured_twice_and_the_switch_says_which_is_replayed(found: Facts) -> None:
    graphs = found["graphs"]
    assert graphs["captured"] == [4, 3, 3]
    assert counted(graphs["counted"]) == (0, 0, 0)
    for turn in graphs["turns"]:
        assert turn["equal"] == {"3": False, "4": True}
        assert turn["off"] == [True, True]
        assert turn["error"] < CLOSE
        assert counted(turn) == (1, 1, 0)
        assert turn["reasons"] == {LEFT["other tokens"]: 1}
    assert graphs["kept"] == [1, 0]


def test_graphs_that_are_older_than_the_switch_stay_vllms(found: Facts) -> None:
    one = found["graphs"]["late"]
    assert one["equal"]
    assert counted(one) == (0, 1, 0)
    assert "captured before the switch" in next(iter(one["reasons"]))


def test_it_goes_with_split_kv_3d_unless_that_captures_the_target_too(found: Facts) -> None:
    beside, both = found["graphs"]["beside split-kv-3d"], found["graphs"]["with split-kv-3d"]
    assert counted(beside) == (1, 0, 0)
    assert not beside["equal"]
    assert counted(both) == (0, 1, 0)
    assert both["equal"]


def test_a_tile_that_does_not_run_leaves_all_to_vllm_and_is_counted_once(found: Facts) -> None:
    one = found["failing"]
    assert one["equal_each"] == [True, True, True]
    assert counted(one) == (0, 3, 1)
    assert one["reasons"] == {"RuntimeError: planted": 1, "it failed before": 3}


@pytest.mark.parametrize("version", VERSIONS)
def test_triton_comes_before_flashinfer_on_hopper_and_knows_squared_relu_without_a_gate(version: str) -> None:
    tree = source_tree(version)
    order = source(tree, MOE + "oracle.unquantized:_get_priority_backends") or ""
    hopper = order[order.index("is_device_capability_family(90)") :]
    for backend in ("FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS"):
        assert f"_move_to_back(_AVAILABLE_BACKENDS, UnquantizedMoeBackend.{backend})" in hopper
    supports = source(tree, MOE + "experts.triton_moe:TritonExperts._supports_activation") or ""
    known = (tree / (MOE.replace(".", "/") + "activation.py")).read_text()
    assert "RELU2_NO_MUL" in supports or "apply_moe_activation_supported(activation)" in supports
    assert "MoEActivation.RELU2_NO_MUL" in known
    model = (tree / "vllm/model_executor/models/nemotron_h.py").read_text()
    assert "activation=activation_without_mul(config.mlp_hidden_act)" in model


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tile_is_asked_for_once_a_call_and_its_defaults_are_not_cached(version: str) -> None:
    apply = source(source_tree(version), MOE + "experts.triton_moe:TritonExperts.apply") or ""
    assert apply.count("try_get_optimal_moe_config(") == 1
    for name, cached in (("get_moe_configs", True), ("try_get_optimal_moe_config", False)):
        text = source(source_tree(version), f"{MOE}fused_moe:{name}") or ""
        (function,) = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef)
        assert bool(function.decorator_list) == cached
