"""What optimizations know of vLLM's sources, against the source archive of every supported vLLM."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from source_index import SourceIndex
from sources import source_tree

import optimized
from optimized.gate import State, admit, digest, source
from optimized.optimization import Optimization
from optimized.seams import BUILT_IN
from spantrace.vllm_adapter.hooks import SUPPORTED

pytestmark = pytest.mark.versions
IN_VLLM = [item for item in optimized.discover().values() if item.vllm_switch]
each = pytest.mark.parametrize("item", IN_VLLM, ids=lambda item: item.id)


@each
@pytest.mark.parametrize("version", SUPPORTED)
def test_a_version_is_admitted_exactly_where_its_sources_are_known(item: Optimization, version: str) -> None:
    admission = admit(item, version, sources=source_tree(version))
    if item.is_upstream(version):
        assert admission.state is State.UPSTREAM
    elif version in item.versions():
        assert admission.state is State.APPLIES, admission.why
    else:
        assert admission.state is State.REFUSED
        if item.restores:
            known = ", ".join(item.versions())
            here = f"is known to be upstream in vLLM {known} only, and this is vLLM {version}"
            assert admission.why == f"{item.restores} {here}"
            return
        assert all(seam.method in admission.why for seam in item.seams if seam.where != BUILT_IN)
        assert f"of vLLM {version}, only of" in admission.why


@each
def test_every_known_function_is_gated_in_every_version(item: Optimization) -> None:
    for version in item.versions():
        for target in item.sources:
            present = digest(source_tree(version), target) is not None
            assert (version in item.sources[target]) == present, (target, version)


@each
def test_seams_are_looked_up_at_every_call(item: Optimization) -> None:
    for version in item.versions():
        index = SourceIndex(version, source_tree(version))
        for seam in item.seams_at(version):
            assert index.defines(seam.owner)
            assert index.defines(seam.source)
            assert index.captures(seam.owner) == []
            assert "." in seam.method or index.calls(seam.module, seam.method)


@each
def test_one_changed_line_is_refused_by_name(item: Optimization, tmp_path: Path) -> None:
    version = item.versions()[-1]
    for target in (target for target, hashes in item.sources.items() if version in hashes):
        module, _, name = target.partition(":")
        for other in {one.partition(":")[0] for one in item.sources}:
            copy = tmp_path.joinpath(*other.split(".")).with_suffix(".py")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source_tree(version).joinpath(*other.split(".")).with_suffix(".py"), copy)
        changed = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
        text = source(tmp_path, target)
        assert text is not None
        changed.write_text(changed.read_text().replace(text, text.rstrip("\n") + "  # changed\n"))
        admission = admit(item, version, sources=tmp_path)
        assert admission.state is State.REFUSED
        assert admission.why == f"the source of {name} is not that of vLLM {version}"
