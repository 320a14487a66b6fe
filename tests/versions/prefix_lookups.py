"""Drives the scheduler of one vLLM, whose sources come first on the path, with prompts that are resent.

python prefix_lookups.py PLAN, where PLAN is a JSON list of runs, the fields of `Run`; prints as JSON what each
did. It needs PyTorch and what vLLM imports, and neither a GPU nor vLLM's own kernels.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import vllm
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

import optimized

ID = "keep-last-block"
DRAFTS, VOCABULARY, LONGEST, SEATS, MOST_STEPS = 3, 320, 4096, 8, 2000
SHAPE = {
    "model_type": "qwen3",
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": LONGEST,
}
DRAFTER = {"num_target_layers": 2, "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1]}}
MODELS = {
    "target": SHAPE | {"architectures": ["Qwen3ForCausalLM"]},
    "drafter": SHAPE | DRAFTER | {"architectures": ["DFlashDraftModel"]},
}
EXPORTS = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1}


@dataclass(frozen=True)
class Run:
    """A traffic of requests through a fresh scheduler.

    `layout` names its groups of layers; `arm` is "stock", "kept" (with the optimization) or "never" (made to drop
    nothing); before the steps in `toggles` the optimization is switched over. With `prompt` the traffic is one prompt
    of so many tokens, sent twice; otherwise it is drawn from the seed.
    """

    layout: str = "full"
    arm: str = "stock"
    method: str | None = "dflash"
    seed: int = 0
    requests: int = 24
    budget: int = 256
    blocks: int = 4000
    toggles: tuple[int, ...] = ()
    prompt: int = 0
    caching: bool = True
    trouble: str = ""


@dataclass
class Trace:
    """What a scheduler did: the tokens scheduled per step and request, what each found cached, and how it was asked."""

    steps: list[dict[str, int]] = field(default_factory=list)
    cached: dict[str, int] = field(default_factory=dict)
    lookaheads: set[int] = field(default_factory=set)
    for_eagle: set[bool] = field(default_factory=set)
    counts: list[dict[str, Any]] = field(default_factory=list)


def groups_of(layout: str) -> list[KVCacheGroupSpec]:
    """The groups of a layout: attention alone, beside a window, or beside states in larger blocks."""
    attention = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    full = FullAttentionSpec(block_size=64 if layout in ("states", "exported") else 16, **attention)
    found = [KVCacheGroupSpec(["full"], full)]
    if layout == "window":
        found.append(KVCacheGroupSpec(["window"], SlidingWindowSpec(block_size=16, sliding_window=40, **attention)))
    if layout in ("states", "fine states", "exported", "fine exported"):
        known = {name: value for name, value in EXPORTS.items() if name in MambaSpec.__dataclass_fields__}
        states = MambaSpec(
            block_size=64,
            shapes=((1, 1),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
            num_speculative_blocks=DRAFTS,
            **(known if "exported" in layout else {}),
        )
        found.append(KVCacheGroupSpec(["states"], states))
    return found


class Maker:
    """Makes schedulers; the models' configurations, which take vLLM seconds to inspect, are made once."""

    def __init__(self, folder: Path) -> None:
        for name, content in MODELS.items():
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(content))
        self.target = ModelConfig(model=str(folder / "target"), skip_tokenizer_init=True, dtype="float32")
        self.speculation = SpeculativeConfig(
            method="dflash",
            model=str(folder / "drafter"),
            num_speculative_tokens=DRAFTS,
            target_model_config=self.target,
            target_parallel_config=ParallelConfig(),
        )

    def scheduler(self, run: Run) -> Scheduler:
        """A scheduler as a server would have it with the drafter that the run names."""
        with ExitStack() as stack:
            if run.method == "unheard-of":
                stack.enter_context(mock.patch.object(SpeculativeConfig, "use_eagle", return_value=True))
            if run.arm != "never":
                return self._made(run)
            stock = self._made(run)
            if hasattr(SpeculativeConfig, "use_eagle_block_drop"):
                stack.enter_context(mock.patch.object(self.speculation, "disable_eagle_block_drop", True))
                return self._made(run)
            stack.enter_context(mock.patch.object(SpeculativeConfig, "use_eagle", return_value=False))
            found = self._made(run)
            for name in ("num_lookahead_tokens", "num_prefill_lookahead"):
                if hasattr(stock, name):
                    setattr(found, name, getattr(stock, name))
            return found

    def _made(self, run: Run) -> Scheduler:
        groups = groups_of(run.layout)
        size = max(group.kv_cache_spec.block_size for group in groups)
        scheduling = SchedulerConfig(
            max_num_seqs=SEATS,
            max_num_batched_tokens=run.budget,
            max_model_len=LONGEST,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        )
        cache = CacheConfig(block_size=size, enable_prefix_caching=run.caching)
        self.speculation.method = "dflash"
        config = VllmConfig(
            model_config=self.target,
            scheduler_config=scheduling,
            cache_config=cache,
            speculative_config=self.speculation if run.method else None,
        )
        self.speculation.method = run.method or "dflash"
        cache.num_gpu_blocks, cache.mamba_cache_mode = run.blocks, "align"
        return Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=run.blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=size,
            hash_block_size=16 if run.layout.startswith("fine") else size,
            log_stats=True,
        )


class Traffic:
    """Requests that resend prompts, parts of them, and the conversations that came of them."""

    def __init__(self, run: Run, scheduler: Scheduler) -> None:
        self.run, self.scheduler, self.random = run, scheduler, random.Random(run.seed)
        self.bases = [[self.random.randrange(4, VOCABULARY) for _ in range(600)] for _ in range(3)]
        self.hash = get_request_block_hasher(16 if run.layout.startswith("fine") else scheduler.block_size, sha256)
        self.sent: list[Request] = []

    def waits(self) -> bool:
        """Whether a request is still to be sent."""
        return len(self.sent) < (2 if self.run.prompt else self.run.requests)

    def send(self) -> None:
        """Send the next requests; one after another where it is one prompt."""
        if self.run.prompt:
            if self.waits() and all(request.is_finished() for request in self.sent):
                self._send(self.bases[0][: self.run.prompt], 12)
            return
        for _ in range(self.random.choice((0, 1, 3))):
            if self.waits():
                self._send(self._prompt(), self.random.randrange(1, 30))

    def _prompt(self) -> list[int]:
        over = [request for request in self.sent if request.is_finished()]
        if over and self.random.random() < 0.4:
            before = list(self.random.choice(over).all_token_ids)
        else:
            before = self.random.choice(self.bases)[: self.random.choice((5, 16, 64, 65, 200, 256, 257, 500, 600))]
        more = self.random.choice((0, 0, 1, 3, 40))
        return before + [self.random.randrange(4, VOCABULARY) for _ in range(more)]

    def _send(self, prompt: list[int], answer: int) -> None:
        request = Request(
            request_id=str(len(self.sent)),
            prompt_token_ids=prompt[:2000],
            sampling_params=SamplingParams(max_tokens=answer, ignore_eos=True),
            pooling_params=None,
            block_hasher=self.hash,
        )
        self.sent.append(request)
        self.scheduler.add_request(request)


def answer_of(scheduler: Scheduler, output: Any) -> ModelRunnerOutput:
    """One token more of each request that has been computed to its end, and the drafts that are accepted before it."""
    names = list(output.num_scheduled_tokens)
    tokens = []
    for name in names:
        request = scheduler.requests[name]
        draws = random.Random(f"{name} {request.num_tokens}")
        drafted = len(output.scheduled_spec_decode_tokens.get(name, ()))
        ended = request.num_computed_tokens >= request.num_tokens
        accepted = draws.randint(0, drafted)
        tokens.append([draws.randrange(4, VOCABULARY) for _ in range(1 + accepted)] if ended else [])
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=tokens,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


@contextmanager
def watched(scheduler: Scheduler, trace: Trace) -> Iterator[None]:
    """Note with how many tokens of look-ahead blocks are allocated, and whether the scheduler still is for EAGLE."""
    allocate = scheduler.kv_cache_manager.allocate_slots

    def noting(*args: Any, **named: Any) -> Any:
        trace.lookaheads.add(named["num_lookahead_tokens"])
        trace.for_eagle.add(scheduler.use_eagle)
        return allocate(*args, **named)

    with mock.patch.object(scheduler.kv_cache_manager, "allocate_slots", noting):
        yield


def toggle(trace: Trace) -> None:
    """Switch the optimization over."""
    if ID in optimized.applied():
        trace.counts += optimized.revert([ID])
    else:
        optimized.apply([ID], vllm.__version__)


def state_of(scheduler: Scheduler) -> list[tuple[int, str, int]]:
    """Every attribute of the scheduler, its coordinator and their managers that could be changed, by identity."""
    cache = scheduler.kv_cache_manager
    owners = [scheduler, cache, cache.coordinator, *cache.coordinator.single_type_managers]
    names = ("eagle", "attention_groups", "mamba_has", "lookahead")
    return [
        (index, name, id(value))
        for index, owner in enumerate(owners)
        for name, value in vars(owner).items()
        if any(part in name for part in names)
    ]


def carried_out(maker: Maker, run: Run) -> dict[str, Any]:
    """Send the traffic of a run until all requests are answered."""
    scheduler, trace = maker.scheduler(run), Trace()
    traffic, before = Traffic(run, scheduler), state_of(scheduler)
    if run.arm == "kept":
        toggle(trace)
    with watched(scheduler, trace), trouble(run.trouble):
        while traffic.waits() or scheduler.has_requests():
            if len(trace.steps) in run.toggles:
                toggle(trace)
            traffic.send()
            step(scheduler, trace)
            assert len(trace.steps) < MOST_STEPS, f"{run} does not come to an end"
    trace.counts += optimized.revert([ID])
    pool = scheduler.kv_cache_manager.block_pool
    return {
        **vars(trace),
        "lookaheads": sorted(trace.lookaheads),
        "for_eagle": sorted(trace.for_eagle),
        "answers": {request.request_id: list(request.output_token_ids) for request in traffic.sent},
        "restored": state_of(scheduler) == before,
        "free": pool.get_num_free_blocks() == run.blocks - 1 and scheduler.reset_prefix_cache(),
    }


@contextmanager
def trouble(name: str) -> Iterator[None]:
    """With a function of the optimization that fails."""

    def failing(*_: Any) -> None:
        raise RuntimeError("planted")

    with ExitStack() as stack:
        if name:
            stack.enter_context(mock.patch(f"optimized.keep_last_block.vllm.{name}", failing))
        yield


def step(scheduler: Scheduler, trace: Trace) -> None:
    """One step of the engine's loop, without a model."""
    output = scheduler.schedule()
    trace.steps.append(dict(output.num_scheduled_tokens))
    for request in output.scheduled_new_reqs:
        trace.cached[request.req_id] = request.num_computed_tokens
    scheduler.update_from_output(output, answer_of(scheduler, output))
    running = [request for request in scheduler.running if request.num_computed_tokens >= request.num_prompt_tokens]
    if scheduler.num_spec_tokens:
        drafts = [[7] * DRAFTS for _ in running]
        scheduler.update_draft_token_ids(DraftTokenIds([request.request_id for request in running], drafts))


def refusals(maker: Maker) -> dict[str, str | None]:
    """Why a scheduler must go on dropping blocks, in each of the situations that can be made here."""
    from optimized.keep_last_block.vllm import refusal

    plain, connected, other, shared = (maker.scheduler(Run()) for _ in range(4))
    connected.connector = plain
    coordinator = other.kv_cache_manager.coordinator
    coordinator.__class__ = type("OtherCoordinator", (type(coordinator),), {})
    shared.kv_cache_manager.mamba_shared_prefix_checkpoint = True
    shared.kv_cache_manager.mamba_fine_grained_prefix_cache = True
    return {
        "none": refusal(plain),
        "connector": refusal(connected),
        "coordinator": refusal(other),
        "shared": refusal(shared),
        "caching": refusal(maker.scheduler(Run(caching=False))),
        "never": refusal(maker.scheduler(Run(arm="never"))),
        "fine exported": refusal(maker.scheduler(Run("fine exported"))),
    }


def main(plan: list[dict[str, Any]]) -> dict[str, Any]:
    """What each run of the plan did, and what is refused."""
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as scratch:
        maker = Maker(Path(scratch))
        return {"runs": [carried_out(maker, Run(**run)) for run in plan], "refusals": refusals(maker)}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
