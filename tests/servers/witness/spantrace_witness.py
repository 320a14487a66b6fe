"""A vLLM plugin that sees, independently of spantrace, what a server's processes do; tests ask it over a socket.

It logs every statistic that the API server observes, knows whether any function of vLLM was replaced, makes a
probe of spantrace fail, slows a function down, and holds the engine inside a hooked function.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import compared_models

DIRECTORY = "SPANTRACE_WITNESS_DIR"
REFUSE = "SPANTRACE_WITNESS_REFUSES"
SCHEDULER = "vllm.v1.core.sched.scheduler"
STEP = "spantrace_step"
_Key = tuple[str, str]


def register() -> None:
    """Called by vLLM once in each of its processes."""
    directory = Path(os.environ[DIRECTORY])
    _log_observations(directory / f"{os.getpid()}.observed")
    if marker := os.environ.get(REFUSE):
        _refuse_in_one_worker(Path(marker))
    server = socketserver.ThreadingUnixStreamServer(str(directory / f"{os.getpid()}.sock"), _Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="witness", daemon=True).start()


def _log_observations(path: Path) -> None:
    """Write the drafts, drafted tokens and accepted tokens per position of each call that counts them."""
    from vllm.v1.spec_decode.metrics import SpecDecodingProm

    original = SpecDecodingProm.observe

    @functools.wraps(original)
    def observe(self: Any, spec_decoding_stats: Any, *arguments: Any, **named: Any) -> None:
        stats = spec_decoding_stats
        seen = [stats.num_drafts, stats.num_draft_tokens, *stats.num_accepted_tokens_per_pos]
        with path.open("a") as log:
            log.write(json.dumps(seen) + "\n")
        original(self, spec_decoding_stats, *arguments, **named)

    SpecDecodingProm.observe = observe


class _Answer(socketserver.StreamRequestHandler):
    """One request: a JSON list of a question's name and its arguments; one answer: what its function returns."""

    def handle(self) -> None:
        name, *arguments = json.loads(self.rfile.readline())
        answer = QUESTIONS[name](*arguments)
        self.wfile.write(json.dumps(answer).encode())


def _refuse_in_one_worker(marker: Path) -> None:
    """Let the first worker that comes to apply an optimization fail at it."""
    import optimized
    from spantrace.errors import SpantraceError

    right = optimized.apply

    def apply(*arguments: Any, **named: Any) -> Any:
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text()
        if parent.startswith("VLLM::EngineCore"):
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                return right(*arguments, **named)
            raise SpantraceError("the witness refuses it in this process")
        return right(*arguments, **named)

    optimized.apply = apply


_remembered: dict[_Key, Any] = {}


def _remember() -> int:
    """Keep every function of every vLLM module and class, and its code; how many there are."""
    _remembered.update(_functions())
    return len(_remembered)


def _changed() -> list[str]:
    """The functions that are not the very same objects now or have other code, are gone, or are new in a class."""
    classes = {owner for owner, _ in _remembered if ":" in owner}
    now = {key: found for key, found in _functions() if key in _remembered or key[0] in classes}
    different = [key for key in now.keys() | _remembered.keys() if not _same(now.get(key), _remembered.get(key))]
    return sorted(":".join(key) for key in different)


def _functions() -> Iterator[tuple[_Key, Any]]:
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("vllm."):
            continue
        classes = [found for found in list(vars(module).values()) if _defined_in(found, module_name)]
        for owner, label in [(module, module_name), *((one, f"{module_name}:{one.__qualname__}") for one in classes)]:
            for name, found in list(vars(owner).items()):
                if isinstance(found, FunctionType | staticmethod | classmethod):
                    yield (label, name), (found, getattr(inspect.unwrap(found), "__code__", None))


def _same(one: Any, other: Any) -> bool:
    return one is not None and other is not None and all(a is b for a, b in zip(one, other, strict=True))


def _defined_in(found: object, module_name: str) -> bool:
    return isinstance(found, type) and found.__module__ == module_name


def _fail_after(calls: int) -> None:
    """From the given call on, the scheduler's output refuses the attribute in which spantrace numbers a step."""
    left = calls

    def refuse(output: Any, step: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("the witness refuses this step")
        vars(output)[STEP] = step

    _output_class().spantrace_step = property(lambda output: vars(output).get(STEP, 0), refuse)


def _mend() -> None:
    """Undo `_fail_after`."""
    del _output_class().spantrace_step


def _output_class() -> Any:
    return sys.modules["vllm.v1.core.sched.output"].SchedulerOutput


_reached, _released = threading.Event(), threading.Event()


def _hold() -> None:
    """Let the engine's thread stop inside the next `Scheduler.schedule`, until it is released."""
    scheduler = sys.modules[SCHEDULER].Scheduler
    original = scheduler._make_cached_request_data
    _reached.clear()
    _released.clear()

    @functools.wraps(original)
    def held(*arguments: Any, **named: Any) -> Any:
        scheduler._make_cached_request_data = original
        _reached.set()
        _released.wait()
        return original(*arguments, **named)

    scheduler._make_cached_request_data = held


_SAMPLER = "vllm.v1.sample.rejection_sampler"
_forwards: list[Any] = []


def _hold_up_samples(seconds: float) -> None:
    """Let every look at drafts take so much longer in this process; with 0 as long as before."""
    sampler = sys.modules[_SAMPLER].RejectionSampler
    if _forwards:
        sampler.forward = _forwards.pop()
    if not seconds:
        return
    original = sampler.forward
    _forwards.append(original)

    @functools.wraps(original)
    def late(*arguments: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return original(*arguments, **named)

    sampler.forward = late


_MAMBA = "vllm.v1.attention.backends.mamba_attn"
_METHOD = "_compute_common_metadata"
_mended: list[Any] = []
_builds = [0]
_different: list[str] = []


def _compare_builds() -> None:
    """Let every build of Mamba metadata also run the method that was replaced, and compare all fields."""
    builder = _builder()
    ours = vars(builder)[_METHOD]

    @functools.wraps(ours)
    def both(*arguments: Any, **named: Any) -> Any:
        got, wanted = ours(*arguments, **named), ours.__wrapped__(*arguments, **named)
        _builds[0] += 1
        _different.extend(name for name in vars(wanted) if not _equal(getattr(got, name), getattr(wanted, name)))
        return got

    _mended.append(ours)
    setattr(builder, _METHOD, both)


def _equal(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return type(one) is type(other) and bool(one == other)


def _mend_builds() -> None:
    """Undo `_compare_builds`."""
    setattr(_builder(), _METHOD, _mended.pop())


def _builder() -> Any:
    return sys.modules[_MAMBA].BaseMambaAttentionMetadataBuilder


def _spoil_builds() -> None:
    """Let uniform-decode-metadata, when it is switched on next, give each request the next one's states."""
    from dataclasses import replace

    from optimized.uniform_decode_metadata.vllm import Shortcut

    right = Shortcut.sharing

    def sharing(switch: Any, original: Any, *others: Any) -> Any:
        compute = right(switch, original, *others)

        @functools.wraps(compute)
        def wrong(*arguments: Any, **named: Any) -> Any:
            before = switch.counts.hits
            built = compute(*arguments, **named)
            if switch.counts.hits == before:
                return built
            return replace(built, state_indices_tensor_d=built.state_indices_tensor_d + 1)

        return wrong

    _mended.append(right)
    Shortcut.sharing = sharing  # type: ignore[method-assign]


def _mend_spoilt_builds() -> None:
    """Undo `_spoil_builds`."""
    from optimized.uniform_decode_metadata.vllm import Shortcut

    Shortcut.sharing = _mended.pop()  # type: ignore[method-assign]


_DSPARK = "vllm.v1.worker.gpu.spec_decode.dspark.speculator"
_LOOP = "_sample_sequential"
_drafts: list[list[Any]] = []


def _compare_drafts() -> None:
    """Let every DSpark draft also run the loop that was replaced, on the same inputs, and keep what both drafted."""
    owner = _speculator()
    ours = vars(owner)[_LOOP]

    @functools.wraps(ours)
    def both(speculator: Any, requests: int, hidden: Any) -> None:
        tokens, found = speculator.draft_tokens[:requests], []
        for side in (ours.__wrapped__, ours):
            tokens.fill_(-1)
            side(speculator, requests, hidden)
            found.append(tokens.tolist())
        _drafts.append(found)

    _mended.append(ours)
    setattr(owner, _LOOP, both)


def _mend_drafts() -> None:
    """Undo `_compare_drafts`."""
    setattr(_speculator(), _LOOP, _mended.pop())


def _speculator() -> Any:
    return sys.modules[_DSPARK].DSparkSpeculator


_slowed: list[tuple[Any, str, Any]] = []
_profiles: dict[str, str] = {}


def slow_on_purpose(seconds: float) -> None:
    """Busy for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _slow(module: str, owner: str, name: str, ms: float) -> None:
    """Let each call of a class's method take so many ms longer, and look which profile function its thread has."""
    holder = getattr(sys.modules[module], owner)
    original = vars(holder)[name]

    @functools.wraps(original)
    def slowed(*arguments: Any, **named: Any) -> Any:
        _profiles[name] = repr(sys.getprofile())
        slow_on_purpose(ms / 1e3)
        return original(*arguments, **named)

    _slowed.append((holder, name, original))
    setattr(holder, name, slowed)


def _quicken() -> None:
    """Undo `_slow`."""
    while _slowed:
        setattr(*_slowed.pop())


QUESTIONS = {
    **compared_models.QUESTIONS,
    "slow": _slow,
    "quicken": _quicken,
    "profile_of": _profiles.get,
    "compare_drafts": _compare_drafts,
    "compared_drafts": lambda: _drafts,
    "mend_drafts": _mend_drafts,
    "spoil_builds": _spoil_builds,
    "mend_spoilt_builds": _mend_spoilt_builds,
    "compare_builds": _compare_builds,
    "compared_builds": lambda: (_builds[0], _different),
    "mend_builds": _mend_builds,
    "remember": _remember,
    "changed": _changed,
    "fail_after": _fail_after,
    "mend": _mend,
    "hold": _hold,
    "hold_up_samples": _hold_up_samples,
    "reached": _reached.is_set,
    "release": _released.set,
}
