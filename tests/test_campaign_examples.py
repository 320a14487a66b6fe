"""The plans of examples/campaign: each can be read, and its gates are for its arms."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers.gates import check_arms
from analyzers.gates import parse as parse_gates
from spantrace.campaign.parsing import parse

HERE = Path(__file__).parents[1] / "examples" / "campaign"
FOUR = ["keep-last-block", "skip-draft-rebuild", "split-kv-3d", "uniform-decode-metadata"]


@pytest.mark.parametrize("path", [path for path in HERE.glob("*.toml") if not path.stem.startswith("gates")], ids=str)
def test_a_plan_can_be_read_and_its_gates_are_for_its_arms(path: Path) -> None:
    plan = parse(path.read_text(), lambda name: (HERE / name).read_text())
    check_arms(parse_gates(plan.gates), [arm.name for arm in plan.arms])


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0"])
def test_each_of_the_four_fixes_has_an_arm_of_its_own_and_stock_has_none(version: str) -> None:
    plan = parse((HERE / f"nemotron-{version}.toml").read_text(), lambda name: (HERE / name).read_text())
    arms = {arm.name: arm for arm in plan.arms}
    assert set(FOUR) <= set(arms)
    assert sorted(arms["all"].on) == FOUR
    switched = plan.switched(arms["stock"])
    assert switched == [f"stock-{name}" for name in plan.restore]
