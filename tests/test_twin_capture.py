"""vLLM's own capture, with graphs and streams played: it runs as it would, then once more with marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_gpu_clock import Device  # noqa: E402
from test_gpu_clock import Event as Timed  # noqa: E402

from spantrace import graph_capture  # noqa: E402
from spantrace.frames import packed, unpack_rows  # noqa: E402
from spantrace.gpu_clock import GpuClock  # noqa: E402
from spantrace.graph_spans import EVERY, MarkedGraph  # noqa: E402
from spantrace.patching import Patch, plan  # noqa: E402
from spantrace.recorder import Recorder  # noqa: E402
from spantrace.spans import SPAN_NAMES  # noqa: E402
from spantrace.vllm_adapter import marked_graphs, twin_capture  # noqa: E402
from spantrace.vllm_adapter.graph_request import GRAPH_SPANS  # noqa: E402
from spantrace.vllm_adapter.graph_sites import COMPILED, NOT_CALLED, OUTSIDE  # noqa: E402
from spantrace.vllm_adapter.hooks import hooks_for  # noqa: E402
from spantrace.vllm_adapter.installation import Installation  # noqa: E402
from spantrace.vllm_adapter.probes import Probes  # noqa: E402

NAMES = ("embedding", "first_layers", "middle_layers", "last_layers")
EMBEDDING, *GROUPS = (f"target.forward.{name}" for name in NAMES)
LOGITS, REST = "target.forward.logits", "target.forward.output"
SIZES = (8, 4, 2)


class Graph:
    """A CUDA graph: the marks that were recorded into it, and how often it was replayed."""

    now: Graph | None = None

    def __init__(self) -> None:
        self.marks: list[Event] = []
        self.calls = self.replays = 0

    def replay(self) -> None:
        self.replays += 1


class Event:
    """An event, which only a capture may record here."""

    def __init__(self, **asked: bool) -> None:
        self.asked = asked

    def record(self, stream: object = None) -> None:
        assert Graph.now is not None, "a mark outside of a capture"
        Graph.now.marks.append(self)


@contextmanager
def capturing(graph: Graph, *_: object, **__: object) -> Iterator[None]:
    Graph.now = graph
    try:
        yield
    finally:
        Graph.now = None


class VocabParallelEmbedding(torch.nn.Embedding):  # type: ignore[misc]
    """Named as vLLM's."""


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, layers: int, embeds: bool = True) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(4, 2)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(layers))
        self.embeds = embeds

    def forward(self, tokens: Any) -> Any:
        if Graph.now is not None:
            Graph.now.calls += 1
        x = self.embed_tokens(tokens) if self.embeds else torch.zeros(len(tokens), 2)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(scope="module")
def utils() -> Any:
    """vLLM's module of captures, which takes long to import."""
    return pytest.importorskip("vllm.v1.worker.gpu.cudagraph_utils")


@pytest.fixture(scope="module")
def managed(utils: Any) -> Any:
    """The class of managers that are captured here."""

    class Manager(utils.CudaGraphManager):  # type: ignore[misc]
        """vLLM's manager without a GPU's surroundings; its own capture is vLLM's."""

        def __init__(self, profiling: bool = False) -> None:
            self.device, self.pool, self.vllm_config, self.ubatch_runner = "cuda", None, None, None
            self.graphs: dict[Any, Graph] = {}
            self.use_breakable_cg = self._graphs_captured = False
            self._capture_mem_samples = None
            self._max_full_descs_to_capture = 2 if profiling else None
            self._capture_descs = {
                mode: [utils.BatchExecutionDescriptor(cg_mode=mode, num_tokens=size, num_reqs=size) for size in SIZES]
                for mode in (utils.CUDAGraphMode.PIECEWISE, utils.CUDAGraphMode.FULL)
            }
            self.ran: list[tuple[str, bool]] = []

        def capture(self, model: Model, fails: Callable[[], bool] = lambda: False) -> None:  # type: ignore[override]
            def create_forward_fn(desc: Any, warmup: bool) -> Callable[[Any], None]:
                def forward(mode: Any) -> None:
                    self.ran.append((mode.name, warmup))
                    if fails():
                        raise RuntimeError("out of memory")
                    model(torch.zeros(desc.num_tokens, dtype=torch.int64))

                return forward

            super().capture(create_forward_fn)

    return Manager


@pytest.fixture(autouse=True)
def played(utils: Any, managed: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs, events and streams of this file, and both captures wrapped as in a server that was asked."""
    monkeypatch.setattr(utils, "graph_capture", lambda **_: nullcontext())
    monkeypatch.setattr(utils, "capture_pool", lambda *_: nullcontext(), raising=False)
    monkeypatch.setattr(utils, "current_stream", lambda: None, raising=False)
    monkeypatch.setattr(utils, "is_global_first_rank", lambda: False)
    for name, stand_in in {"CUDAGraph": Graph, "Event": Event, "graph": capturing, "synchronize": int}.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Graph.now is not None)
    monkeypatch.setattr(graph_capture, "empty_pair_ns", lambda: 1500.0)
    monkeypatch.setattr(graph_capture, "replay_ms", lambda graph: (1.0, 1.01))
    monkeypatch.setattr(marked_graphs, "kept", marked_graphs.Kept())
    monkeypatch.setattr(twin_capture, "kept", marked_graphs.kept)
    monkeypatch.setenv(GRAPH_SPANS, "1")
    patches: list[Patch] = [
        plan(utils.CudaGraphManager, "capture", twin_capture._twice),
        plan(managed, "capture", twin_capture._of_target),
    ]
    for patch in patches:
        patch.install()
    yield
    for patch in reversed(patches):
        assert patch.revert()


def told(**runner: object) -> dict[str, Any]:
    found = marked_graphs.told(SimpleNamespace(**runner))
    assert found is not None
    return found


def test_vllm_captures_first_and_then_the_full_graphs_once_more_with_marks(utils: Any, managed: Any) -> None:
    manager, model = managed(), Model(7)
    manager.capture(model)
    own = [("NONE", True), ("PIECEWISE", True)] * 3 + [("NONE", True), ("NONE", False)] * 3
    assert manager.ran == own + [("NONE", True), ("NONE", False)] * 3
    assert [desc.num_tokens for desc in manager.graphs] == list(SIZES)
    assert set(manager._capture_descs) == {utils.CUDAGraphMode.PIECEWISE, utils.CUDAGraphMode.FULL}
    assert all(graph.marks == [] for graph in manager.graphs.values())
    assert manager._graphs_captured
    parts = marked_graphs.kept.parts[manager]
    assert [key.num_tokens for _, key, _ in parts.graphs] == list(SIZES)
    for entries, key, graph in parts.graphs:
        assert entries is manager.graphs
        assert graph.plain is manager.graphs[key]
        assert graph.marked is not graph.plain
        assert graph.parts == (EMBEDDING, *GROUPS, REST)
        assert graph.marked.marks == list(parts.events[:6])  # type: ignore[attr-defined]
        assert graph.marked.calls == 1  # type: ignore[attr-defined]
    assert parts.events[0].asked == {"enable_timing": True, "external": True}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert told() == {
        "empty_ns": 1500.0,
        "spans": {"target.forward": {"marks": 6, "graphs": 3, "plain_ms": 1.0, "marked_ms": 1.01}},
        "missing": {LOGITS: OUTSIDE},
    }


def test_a_recording_replays_a_graph_with_marks_and_puts_vllms_own_back(managed: Any) -> None:
    manager = managed()
    manager.capture(Model(3))
    before = dict(manager.graphs)
    clock = GpuClock([Event(), Event()], lambda: None)
    times = marked_graphs.times(clock)
    assert times is not None
    patches = marked_graphs.replays(times)
    for patch in patches:
        patch.install()
    desc = next(iter(before))
    manager.run_fullgraph(desc)
    assert before[desc].replays == 1
    for patch in patches:
        assert patch.revert()
    assert manager.graphs == before


def test_recorded_replays_have_their_parts_in_the_rows_of_their_own_launch(managed: Any) -> None:
    """vLLM's own replay, hooked as in a recording; the events are played, and pass as soon as they are recorded."""
    manager, device = managed(), Device()
    device.lag_ms = 0.0
    manager.capture(Model(3))
    before, (desc, *_) = dict(manager.graphs), manager.graphs
    ((_, _, twin), *_) = [one for one in marked_graphs.kept.parts[manager].graphs if one[1] is desc]
    pass_marks(twin, device)
    recorder = Recorder(gpu=GpuClock([Timed(device) for _ in range(129)], lambda: "stream"))
    assert recorder.gpu is not None
    installation = Installation(recorder, Probes(recorder, lambda runner: None))
    target = f"{twin_capture.MANAGERS}:CudaGraphManager.run_fullgraph"
    installation.plan(hook for hook in hooks_for("0.33.0") if hook.target == target)
    manager.run_fullgraph(desc)
    assert before[desc].replays == 1
    installation.install()
    for _ in range(2 * EVERY + 1):
        recorder.gpu.new_cycle()
        manager.run_fullgraph(desc)
        device.now_ns += 10_000_000
    installation.remove()
    manager.run_fullgraph(desc)
    assert manager.graphs == before
    assert (before[desc].replays, twin.marked.replays) == (2 * EVERY + 1, 2)  # type: ignore[attr-defined]
    frames = {frame["type"]: unpack_rows(packed(frame)) for frame in recorder.drain() if "raw" in frame}
    assert len(frames["rows"]) == 2 * EVERY + 1
    names = frames["parts"][:, 0].reshape(2, -1)
    assert [[SPAN_NAMES[name] for name in row] for row in names] == [[EMBEDDING, *GROUPS, REST]] * 2
    for row, at in zip(frames["rows"][EVERY - 1 :: EVERY], frames["parts"][:: len(twin.parts), 1], strict=False):
        assert row[1] <= at <= row[2]
    assert recorder.health()["hook_errors"] == 0


def pass_marks(twin: MarkedGraph, device: Device) -> None:
    """Let the marked graph's replay pass its marks, one each 100 us."""
    count, replay = len(twin.parts) + 1, twin.marked.replay
    for number, event in enumerate(twin.events[:count]):
        event.number = number  # type: ignore[attr-defined]

    def replay_and_pass() -> None:
        replay()
        for event in twin.events[:count]:
            event.at_ms = device.now_ns / 1e6 + event.number / 10  # type: ignore[attr-defined]
            event.query = lambda: True  # type: ignore[method-assign]

    twin.marked.replay = replay_and_pass  # type: ignore[method-assign]


def test_a_second_capture_that_fails_leaves_the_first_and_is_told(
    utils: Any, managed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    manager = managed()
    manager.capture(Model(3), fails=lambda: len(manager.ran) > 13)
    assert [desc.num_tokens for desc in manager.graphs] == list(SIZES)
    assert set(manager._capture_descs) == {utils.CUDAGraphMode.PIECEWISE, utils.CUDAGraphMode.FULL}
    assert told()["missing"]["target.forward"] == "RuntimeError: out of memory"
    assert told()["spans"] == {}
    assert "target.forward cannot be timed: RuntimeError: out of memory" in caplog.text
    assert marked_graphs.times(GpuClock([Event(), Event()], lambda: None)) is None


def test_a_capture_of_vllm_that_fails_does_so_as_ever(managed: Any) -> None:
    manager = managed()
    with pytest.raises(RuntimeError, match="out of memory"):
        manager.capture(Model(3), fails=lambda: len(manager.ran) > 7)


def test_a_compiled_model_is_captured_once_and_refused_by_name(managed: Any, caplog: pytest.LogCaptureFixture) -> None:
    manager, model = managed(), Model(7)
    model.do_not_compile = False
    manager.capture(model)
    assert len(manager.ran) == 12
    refused = dict.fromkeys((EMBEDDING, *GROUPS), COMPILED)
    assert told()["missing"].items() >= {**refused, LOGITS: OUTSIDE}.items()
    assert f"spantrace: not timed: {', '.join((EMBEDDING, *GROUPS))}: {COMPILED}" in caplog.text
    assert f"spantrace: not timed: {LOGITS}: {OUTSIDE}" in caplog.text


def test_what_a_graph_does_not_run_is_refused_by_name(managed: Any) -> None:
    manager = managed()
    manager.capture(Model(7, embeds=False))
    ((*_, graph), *_) = marked_graphs.kept.parts[manager].graphs
    assert graph.parts == (*GROUPS, REST)
    assert told()["missing"] == {EMBEDDING: NOT_CALLED, LOGITS: OUTSIDE}


def test_of_a_model_that_sees_the_language_model_is_marked(managed: Any) -> None:
    class Seeing(Model):
        def __init__(self) -> None:
            super().__init__(40)
            self.language = Model(6, embeds=False)

        def get_language_model(self) -> Model:
            return self.language

        def forward(self, tokens: Any) -> Any:
            return self.language(tokens)

    manager, model = managed(), Seeing()
    manager.capture(model)
    ((*_, graph), *_) = marked_graphs.kept.parts[manager].graphs
    assert graph.parts == (*GROUPS, REST)
    sites = {site.name: site.module for site in marked_graphs.kept.parts[manager].sites}
    assert [sites[name] for name in GROUPS] == [model.language.layers[at] for at in (1, 3, 5)]


def test_a_drafter_whose_graphs_nobody_knows_is_refused_by_name(managed: Any) -> None:
    managed().capture(Model(3))
    assert told(speculator=object())["missing"]["draft.forward"] == marked_graphs.OTHER_DRAFTER
    assert "draft.forward" not in told(speculator=None)["missing"]


def test_a_capture_for_an_estimate_of_memory_is_left_alone(managed: Any) -> None:
    manager = managed(profiling=True)
    manager.capture(Model(7))
    assert len(manager.graphs) == 2
    assert len(manager.ran) == 10


def test_graphs_that_are_released_and_captured_anew_have_new_twins(managed: Any) -> None:
    manager, model = managed(), Model(3)
    manager.capture(model)
    manager.graphs.clear()
    manager.capture(model)
    graphs = marked_graphs.kept.parts[manager].graphs
    assert [graph.plain for *_, graph in graphs] == list(manager.graphs.values())


def test_a_manager_that_nobody_knows_captures_once(managed: Any) -> None:
    manager = managed()
    plain = managed.capture.__wrapped__
    plain(manager, Model(3))
    assert len(manager.ran) == 12
    assert told()["spans"] == {}
