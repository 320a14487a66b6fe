from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from spantrace.spans import GRAPH_PARTS, SPAN_NAMES
from spantrace.vllm_adapter import hooks
from spantrace.vllm_adapter.hooks import HOOKS, MODEL_HOOKS, SUPPORTED, Hook, ModelHook, hooks_for

ALL: tuple[Hook | ModelHook, ...] = (*HOOKS, *MODEL_HOOKS)
NEWEST = hooks_for(SUPPORTED[-1])


def test_every_span_is_hooked_and_every_hook_names_a_span() -> None:
    named = {hook.span for hook in ALL} | {hook.in_draft for hook in ALL}
    assert named - {None} == set(SPAN_NAMES) - {"target.input_prep"} - GRAPH_PARTS


def test_a_hook_without_a_span_has_a_probe() -> None:
    assert all(hook.probe for hook in HOOKS if hook.span is None)


def test_no_target_is_hooked_twice_in_one_version() -> None:
    for version in SUPPORTED:
        targets = [hook.target for hook in hooks_for(version)]
        assert len(targets) == len(set(targets))


def test_the_docstring_shows_the_table() -> None:
    assert hooks.__doc__ is not None
    assert hooks.__doc__.endswith("\n\n" + hooks.table() + "\n")


def test_supported_versions_ascend_and_every_hook_is_in_one_of_them() -> None:
    assert [Version(version) for version in SUPPORTED] == sorted(map(Version, SUPPORTED))
    assert all(any(version in SpecifierSet(hook.versions) for version in SUPPORTED) for hook in HOOKS)


@pytest.mark.parametrize("version", ["0.99.0", "1.0", "0.33.1", "0.33.0+cu130", "0.34.0rc1.dev7+gabc", "unknown"])
def test_a_newer_or_nameless_version_gets_the_newest_hooks(version: str) -> None:
    assert hooks_for(version) == NEWEST


def test_a_prerelease_gets_the_hooks_of_its_release() -> None:
    assert hooks_for("0.28.0rc2") == hooks_for("0.28.0") != hooks_for("0.27.0")


def test_an_older_version_gets_the_oldest_hooks() -> None:
    assert hooks_for("0.11.0") == hooks_for(SUPPORTED[0])


def test_what_only_follows_is_timed_on_the_gpu() -> None:
    assert all(hook.gpu for hook in ALL if hook.follows)


def test_what_numbers_counts_and_times_a_cycle_is_always_in_force_and_nothing_else() -> None:
    always = {hook.span or hook.probe for hook in HOOKS if hook.always}
    assert always == {"cycle", "schedule", "output.update", "idle", "acceptance", "execute"}
    assert all(hook.always for hook in HOOKS if hook.probe and hook.probe != "graph")


def test_metadata_has_no_events() -> None:
    assert not [hook.target for hook in HOOKS if hook.gpu and hook.span and "metadata" in hook.span]
