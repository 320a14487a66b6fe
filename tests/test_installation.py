"""Hooks go onto whatever vLLM is loaded, say what it lacks, and give back the very objects."""

from __future__ import annotations

import pickle
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
from journals import rows_of

from spantrace.recorder import Recorder
from spantrace.sampling import RUN
from spantrace.vllm_adapter.hooks import Hook, ModelHook
from spantrace.vllm_adapter.installation import Installation, WaitedEvent, method_owner
from spantrace.vllm_adapter.probes import STEP, Probes


class Scheduler:
    limit = 3

    def schedule(self) -> Any:
        requests = types.SimpleNamespace(num_output_tokens=[4, 0])
        return types.SimpleNamespace(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=requests,
            total_num_scheduled_tokens=5,
            num_scheduled_tokens={"a": 3, "b": 2},
            scheduled_spec_decode_tokens={"a": [1, 2]},
        )


class TorchModule:
    """Stands for torch.nn.Module, whose own methods are never hooked."""

    def __call__(self, *arguments: Any) -> Any:
        return self.forward(*arguments)

    def forward(self, *arguments: Any) -> Any:
        raise NotImplementedError


TorchModule.__module__ = "torch.nn.modules.module"


class Target(TorchModule):
    def forward(self, tokens: int) -> int:
        return tokens + 1

    def compute_logits(self, hidden: int) -> int:
        return hidden * 2


class Drafter(TorchModule):
    def __call__(self, tokens: int) -> int:
        return self.forward(tokens)

    def forward(self, tokens: int) -> int:
        return tokens + 10


class Event:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def record(self) -> str:
        return "recorded"


class RunnerV1:
    def __init__(self, model: Any, drafter: Any) -> None:
        self.model, self.drafter = model, types.SimpleNamespace(model=drafter)
        self.prepare_inputs_event = Event()
        self.other_event = None


class RunnerV2:
    def __init__(self, model: Any, drafter: Any) -> None:
        self.model, self.speculator = model, types.SimpleNamespace(model=drafter)
        self.prepare_inputs_event = Event()


RunnerV2.__module__ = "vllm.v1.worker.gpu.model_runner"


MODEL_HOOKS = (
    ModelHook("target.forward", "target", "call", runner="V2", in_draft="draft.forward"),
    ModelHook("sample", "target", "compute_logits"),
    ModelHook("target.forward", "drafter", "call", runner="V1", in_draft="draft.forward"),
)
WAIT = ("output.wait", None)


@pytest.fixture(autouse=True)
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module `fake.core` with a class and a function, of which nothing may stay hooked."""
    module: Any = types.ModuleType("fake.core")
    module.Scheduler = Scheduler
    module.prepare = lambda rows: rows + 1
    monkeypatch.setattr("spantrace.vllm_adapter.installation.MODEL_HOOKS", MODEL_HOOKS)
    monkeypatch.setattr("spantrace.vllm_adapter.installation.WAIT_EVENTS", ("prepare_inputs_event", "other_event"))
    monkeypatch.setitem(sys.modules, "fake.core", module)
    owners: list[Any] = [module, Scheduler, Target, Drafter, TorchModule]
    before = [dict(vars(owner)) for owner in owners]
    code = Scheduler.schedule.__code__
    yield module
    assert Scheduler.schedule.__code__ is code
    for owner, then in zip(owners, before, strict=True):
        now = dict(vars(owner))
        assert now.keys() == then.keys()
        assert [name for name in then if now[name] is not then[name]] == []


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def installation(recorder: Recorder) -> Iterator[Installation]:
    made = Installation(recorder, Probes(recorder, lambda runner: None))
    yield made
    made.remove()


def spans(recorder: Recorder, installation: Installation) -> list[str]:
    """The spans of the rows so far, in the order in which they ended."""
    return [installation.sites[row[0]][0] for row in rows_of(recorder)]


def test_hooks_record_while_they_are_in(
    installation: Installation, recorder: Recorder, fake_vllm: types.ModuleType
) -> None:
    prepare = fake_vllm.prepare
    hooks = [Hook("schedule", "fake.core:Scheduler.schedule"), Hook("draft.input_prep", "fake.core:prepare")]
    installation.plan(hooks)
    assert Scheduler().schedule().total_num_scheduled_tokens == 5
    assert spans(recorder, installation) == []
    installation.install()
    assert fake_vllm.prepare(rows=2) == 3
    Scheduler().schedule()
    assert spans(recorder, installation) == ["draft.input_prep", "schedule"]
    assert installation.missing == []
    installation.remove()
    installation.remove()
    assert fake_vllm.prepare is prepare
    Scheduler().schedule()
    assert spans(recorder, installation) == []


def test_a_classs_own_function_is_hooked_through_its_code_and_no_attribute_is_set(
    installation: Installation, recorder: Recorder
) -> None:
    before, bound = dict(vars(Scheduler)), Scheduler().schedule
    installation.plan([Hook("schedule", "fake.core:Scheduler.schedule")])
    installation.install()
    assert all(now is before[name] for name, now in vars(Scheduler).items())
    bound()
    assert spans(recorder, installation) == ["schedule"]


def test_suspended_hooks_rest_until_they_are_installed_again(installation: Installation, recorder: Recorder) -> None:
    installation.plan([Hook("schedule", "fake.core:Scheduler.schedule")])
    for _ in range(3):
        installation.install()
        Scheduler().schedule()
        installation.suspend()
        Scheduler().schedule()
        assert spans(recorder, installation) == ["schedule"]


def test_what_a_loaded_module_lacks_is_missing_and_what_is_not_loaded_is_no_matter(
    installation: Installation, recorder: Recorder
) -> None:
    lacking = [
        "fake.core:Scheduler.reschedule",
        "fake.core:Planner.plan",
        "fake.core:absent",
        "fake.core:Scheduler.limit",
    ]
    targets = [*lacking, "fake.unloaded:Scheduler.schedule", "fake.core:Scheduler.schedule"]
    installation.plan([Hook("schedule", target, in_draft="") for target in targets])
    installation.install()
    assert installation.missing == lacking
    assert installation.sites == [("schedule", "")]
    Scheduler().schedule()
    assert spans(recorder, installation) == ["schedule"]


def test_a_probe_without_a_span_notes_facts_and_takes_no_row(installation: Installation, recorder: Recorder) -> None:
    installation.plan([Hook(None, "fake.core:Scheduler.schedule", probe="schedule")])
    installation.install()
    output = Scheduler().schedule()
    assert spans(recorder, installation) == []
    ((kind, step, _, *counts),) = recorder.facts.drain()
    assert (kind, counts) == ("schedule", [5, 2, 1, 1, 0])
    assert getattr(output, STEP) == step
    assert installation.sites == []


def test_all_or_nothing(installation: Installation, monkeypatch: pytest.MonkeyPatch, fake_vllm: Any) -> None:
    class Sealed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise RuntimeError("sealed")

    class Closed(metaclass=Sealed):
        @classmethod
        def method(cls) -> None: ...

    monkeypatch.setattr(fake_vllm, "Closed", Closed, raising=False)
    hooks = [Hook("schedule", "fake.core:Scheduler.schedule"), Hook("sample", "fake.core:Closed.method")]
    installation.plan(hooks)
    original = vars(Scheduler)["schedule"]
    with pytest.raises(RuntimeError, match="sealed"):
        installation.install()
    assert vars(Scheduler)["schedule"] is original
    assert installation.missing == []
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "fake.core", fake_vllm)


def test_somebody_elses_patch_is_left_and_counted(
    installation: Installation, recorder: Recorder, fake_vllm: types.ModuleType
) -> None:
    original = fake_vllm.prepare
    installation.plan([Hook("draft.input_prep", "fake.core:prepare")])
    installation.install()
    fake_vllm.prepare = theirs = lambda rows: 0  # type: ignore[attr-defined]
    installation.remove()
    installation.remove()
    assert fake_vllm.prepare is theirs
    assert (recorder.errors, recorder.first_error) == (
        1,
        "RuntimeError: somebody patched over fake.core.prepare; it was left as it is",
    )
    fake_vllm.prepare = original  # type: ignore[attr-defined]


def in_force(installation: Installation) -> None:
    """Install one hook, so that what is added takes effect at once."""
    installation.plan([Hook("schedule", "fake.core:Scheduler.schedule")])
    installation.install()


def test_the_models_of_a_v1_runner(installation: Installation, recorder: Recorder) -> None:
    in_force(installation)
    runner = RunnerV1(Target(), Drafter())
    installation.hook_runner(runner)
    assert runner.model(1) == 2  # a V1 runner's own method covers it
    assert runner.model.compute_logits(2) == 4
    assert runner.drafter.model(1) == 11
    assert spans(recorder, installation) == ["sample", "target.forward"]
    assert installation.sites == [("schedule", None), ("sample", None), ("target.forward", "draft.forward"), WAIT]


def test_the_models_of_a_v2_runner(installation: Installation, recorder: Recorder) -> None:
    in_force(installation)
    runner = RunnerV2(Target(), Drafter())
    event = runner.prepare_inputs_event
    installation.hook_runner(runner)
    assert runner.model(1) == 2
    assert runner.speculator.model(1) == 11  # a V2 speculator's own method covers it
    assert spans(recorder, installation) == ["target.forward"]
    assert runner.prepare_inputs_event is event


def test_target_and_drafter_of_one_class_are_hooked_once(installation: Installation, recorder: Recorder) -> None:
    in_force(installation)
    runner = RunnerV1(Target(), Target())
    installation.hook_runner(runner)
    runner.model.compute_logits(1)
    runner.drafter.model(1)
    assert spans(recorder, installation) == ["sample", "target.forward"]


@pytest.mark.parametrize("runner", [object.__new__(RunnerV1), RunnerV1(None, None), RunnerV2(None, None)])
def test_a_runner_without_models_is_no_error(runner: Any, installation: Installation) -> None:
    in_force(installation)
    before = list(installation.sites)
    installation.hook_runner(runner)
    assert {span for span, _ in installation.sites[len(before) :]} <= {"output.wait"}


def test_a_wait_for_an_event_is_recorded_and_the_event_given_back(
    installation: Installation, recorder: Recorder
) -> None:
    in_force(installation)
    runner = RunnerV1(None, None)
    event = runner.prepare_inputs_event
    installation.hook_runner(runner)
    stand_in: Any = runner.prepare_inputs_event
    assert isinstance(stand_in, WaitedEvent)
    stand_in.synchronize()
    assert stand_in.record() == "recorded"
    assert stand_in.calls == event.calls == ["synchronize"]
    assert spans(recorder, installation) == ["output.wait"]
    assert runner.other_event is None
    with pytest.raises(AttributeError, match="nothing"):
        _ = stand_in.nothing
    installation.remove()
    assert runner.prepare_inputs_event is event


def test_a_runner_known_before_is_hooked_with_the_rest(installation: Installation, recorder: Recorder) -> None:
    runner = RunnerV1(Target(), None)
    installation.plan([])
    installation.hook_runner(runner)
    runner.model.compute_logits(1)
    assert spans(recorder, installation) == []
    installation.install()
    runner.model.compute_logits(1)
    assert spans(recorder, installation) == ["sample"]


def test_a_runner_seen_again_is_not_hooked_twice(installation: Installation, recorder: Recorder) -> None:
    runner = RunnerV1(Target(), None)
    event = runner.prepare_inputs_event
    installation.plan([])
    installation.hook_runner(runner)
    installation.install()
    installation.hook_runner(runner)
    runner.model.compute_logits(1)
    assert spans(recorder, installation) == ["sample"]
    installation.remove()
    assert runner.prepare_inputs_event is event


def test_a_runner_that_shows_up_after_the_end_is_left_alone(installation: Installation) -> None:
    in_force(installation)
    installation.remove()
    runner = RunnerV1(Target(), Drafter())
    event, sites = runner.prepare_inputs_event, list(installation.sites)
    installation.hook_runner(runner)
    assert runner.prepare_inputs_event is event
    assert installation.sites == sites


def test_a_worker_never_waits_for_a_recording_that_is_ending(installation: Installation) -> None:
    in_force(installation)
    runner = RunnerV1(Target(), Drafter())
    event = runner.prepare_inputs_event
    with installation._lock:
        worker = threading.Thread(target=installation.hook_runner, args=(runner,))
        worker.start()
        worker.join(5)
        assert not worker.is_alive()
    assert runner.prepare_inputs_event is event


class Compiled(TorchModule):
    def __call__(self, tokens: int) -> int:
        return 0


class Overrides(Compiled):
    def forward(self, tokens: int) -> int:
        return 1


def test_call_is_dunder_call_where_a_class_of_the_models_own_defines_it() -> None:
    assert method_owner(Target(), "call") == (Target, "forward")
    assert method_owner(Drafter(), "call") == (Drafter, "__call__")
    assert method_owner(Overrides(), "call") == (Compiled, "__call__")
    assert method_owner(Target(), "compute_logits") == (Target, "compute_logits")
    assert method_owner(Target(), "absent") is None
    assert method_owner(TorchModule(), "call") is None
    assert method_owner(None, "call") is None


def test_detail_goes_out_of_force_alone_and_comes_back(installation: Installation, recorder: Recorder) -> None:
    prepare = sys.modules["fake.core"].prepare
    hooks = [Hook("schedule", "fake.core:Scheduler.schedule", always=True), Hook("draft.metadata", "fake.core:prepare")]
    installation.plan(hooks)
    installation.install()
    both = ["draft.metadata", "schedule"]

    def seen() -> list[str]:
        sys.modules["fake.core"].prepare(1)
        Scheduler().schedule()
        return spans(recorder, installation)

    assert seen() == both
    assert not installation.detail(False)
    assert sys.modules["fake.core"].prepare is prepare
    assert seen() == ["schedule"]
    installation.suspend()
    installation.install()
    assert seen() == ["schedule"]
    assert installation.detail(True)
    assert seen() == both
    installation.remove()
    assert sys.modules["fake.core"].prepare is prepare
    installation.detail(False)
    assert installation.detail(True)
    assert seen() == []


def test_detail_that_is_asked_for_during_a_pause_comes_after_it(installation: Installation, recorder: Recorder) -> None:
    in_force(installation)
    installation.detail(False)
    installation.suspend()
    assert installation.detail(True)
    Scheduler().schedule()
    assert spans(recorder, installation) == []
    installation.install()
    Scheduler().schedule()
    assert spans(recorder, installation) == ["schedule"]


def test_a_hook_on_a_models_class_rests_by_a_flag(installation: Installation, recorder: Recorder) -> None:
    in_force(installation)
    runner = RunnerV2(Target(), Drafter())
    installation.hook_runner(runner)
    hooked = vars(Target)["forward"]
    for on in (False, True, False, True):
        assert installation.detail(on) is on
        assert runner.model(1) == 2
        assert spans(recorder, installation) == (["target.forward"] if on else [])
        assert vars(Target)["forward"] is hooked


def test_a_runner_that_is_seen_out_of_detail_waits_unseen_until_detail_comes(
    installation: Installation, recorder: Recorder
) -> None:
    in_force(installation)
    installation.detail(False)
    runner = RunnerV1(Target(), None)
    event = runner.prepare_inputs_event
    installation.hook_runner(runner)
    assert runner.prepare_inputs_event is event
    installation.detail(True)
    runner.prepare_inputs_event.synchronize()
    runner.model.compute_logits(1)
    assert spans(recorder, installation) == ["output.wait", "sample"]


def test_what_somebody_changed_out_of_detail_is_left_and_counted_once(
    installation: Installation, recorder: Recorder, fake_vllm: types.ModuleType
) -> None:
    original = fake_vllm.prepare
    installation.plan([Hook("draft.metadata", "fake.core:prepare"), Hook("schedule", "fake.core:Scheduler.schedule")])
    installation.install()
    installation.detail(False)
    fake_vllm.prepare = theirs = lambda rows: 0  # type: ignore[attr-defined]
    for on in (True, False, True):
        installation.detail(on)
        assert fake_vllm.prepare is theirs
    Scheduler().schedule()
    assert spans(recorder, installation) == ["schedule"]
    installation.remove()
    assert fake_vllm.prepare is theirs
    assert recorder.errors == 1
    assert "somebody patched over fake.core.prepare" in recorder.first_error
    fake_vllm.prepare = original  # type: ignore[attr-defined]


def test_all_workers_agree_with_the_engine_on_what_is_in_detail(recorder: Recorder) -> None:
    asked: list[list[bool]] = [[], []]
    workers = [Probes(recorder, lambda runner: None, lambda on, to=to: to.append(on) or on, every=2) for to in asked]
    engine = Probes(recorder, lambda runner: None, every=2)
    recorder.facts.drain()
    for number in range(4 * RUN):
        output = Scheduler().schedule()
        engine.schedule_after(1, output, None)
        for worker in workers[: 2 if number > RUN // 2 else 1]:
            worker.execute_before(types.SimpleNamespace(model_runner=worker), pickle.loads(pickle.dumps(output)))
    assert asked == [[False, True, False]] * 2
    told: dict[int, set[bool]] = {}
    for kind, step, _, *more in recorder.facts.drain():
        if kind == "execute":
            told.setdefault(step, set()).add(*more)
    assert [told[step] for step in sorted(told)] == ([{True}] * RUN + [{False}] * RUN) * 2


def test_a_worker_tells_what_is_in_force_and_asks_again_where_it_is_not_what_is_due(recorder: Recorder) -> None:
    answers = iter([True, True, False, True])
    probes = Probes(recorder, lambda runner: None, lambda on: next(answers), every=2)
    for step in [*range(2 * RUN + 1), None]:
        output = types.SimpleNamespace() if step is None else types.SimpleNamespace(**{STEP: step})
        probes.execute_before(types.SimpleNamespace(model_runner=probes), output)
    told = [fact[-1] for fact in recorder.facts.drain()]
    assert told == [True] * (RUN + 2) + [False] * (RUN - 2) + [True, True]
