"""A sampler of a vLLM gets requests on the CPU: python sampler_of_this_version.py VERSION FOLDER-OF-ITS-SOURCES.

The runner's `add_requests`, the sampler and all its states are vLLM's own; what stands in for a GPU is what vLLM
itself puts in for a CPU, and Triton's interpreter. Every situation is run twice from the same seeds, without and with
the switch. Prints what happened as JSON.
"""

from __future__ import annotations

import inspect
import json
import random
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

VERSION, TREE = sys.argv[1:]
sys.path.insert(0, TREE)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import vllm.v1.worker.cpu.shm  # noqa: E402, F401  (what vLLM puts in for a CPU, before anything imports it by name)
from vllm.sampling_params import SamplingParams, StructuredOutputsParams  # noqa: E402
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor  # noqa: E402
from vllm.v1.worker.gpu.model_runner import GPUModelRunner  # noqa: E402
from vllm.v1.worker.gpu.sample.sampler import Sampler  # noqa: E402
from vllm.v1.worker.gpu.states import RequestState  # noqa: E402

import optimized  # noqa: E402

ID = "unchanged-sampling"
CPU = torch.device("cpu")
ROWS, LONGEST, VOCABULARY, STEPS = 8, 48, 96, 30
Arrays = dict[str, torch.Tensor]
REASONING = SimpleNamespace(
    reasoning_start_token_ids=[1], reasoning_end_token_ids=[2, 3], natural_reasoning_end_token_ids=[2]
)


def sampler(requests: RequestState, owner: type = Sampler, **others: Any) -> Any:
    """Of that version, with all it can have."""
    offered = {
        "vllm_config": SimpleNamespace(reasoning_config=REASONING),
        "max_num_reqs": ROWS,
        "vocab_size": VOCABULARY,
        "device": CPU,
        "req_states": requests,
        "reasoning_config": REASONING,
        "enable_trace_replay": True,
    }
    known = inspect.signature(Sampler.__init__).parameters
    return owner(**{name: value for name, value in offered.items() if name in known}, **others)


def parameters(draw: random.Random) -> SamplingParams:
    """Any that a request may have in that version; each one is sometimes left out."""

    def tokens(most: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, most))]

    offered: dict[str, Any] = {
        "temperature": draw.choice([0.0, 1.0, draw.uniform(0.1, 2.0)]),
        "top_p": draw.uniform(0.1, 1.0),
        "top_k": draw.randint(1, VOCABULARY + 5),
        "min_p": draw.random(),
        "seed": draw.randrange(10_000),
        "repetition_penalty": draw.uniform(0.5, 1.5),
        "frequency_penalty": draw.uniform(-1.0, 1.0),
        "presence_penalty": draw.uniform(-1.0, 1.0),
        "min_tokens": draw.randint(1, 9),
        "stop_token_ids": tokens(5),
        "logit_bias": dict.fromkeys(tokens(6), draw.uniform(-5.0, 5.0)),
        "allowed_token_ids": tokens(7),
        "_bad_words_token_ids": [tokens(3) for _ in range(draw.randint(1, 4))],
        "logprobs": draw.randint(0, 5),
        "logprob_token_ids": tokens(4),
        "structured_outputs": StructuredOutputsParams(regex="a*"),
        "thinking_token_budget": draw.randint(0, 50),
        "trace_decode_token_ids": tokens(9),
        "watermarking": draw.random() < 0.5,
    }
    made = SamplingParams(max_tokens=16)
    for name, value in offered.items():
        if name in SamplingParams.__struct_fields__ and draw.random() < 0.6:
            setattr(made, name, value)
    made._all_stop_token_ids = set(made.stop_token_ids or ())
    return made


class Runner:
    """A runner's requests, which come and go at random, and its sampler."""

    def __init__(self, seed: int, owner: type = Sampler, processor: type | None = None, **others: Any) -> None:
        np.random.seed(seed)
        self.draw = random.Random(seed)
        requests = RequestState(ROWS, LONGEST, 64, 2, VOCABULARY, CPU)
        if processor is not None:
            others["custom_logits_processors"] = [processor(None, requests)]
        self.made, self.coming, self.added = object.__new__(GPUModelRunner), 0, list[int]()
        nothing = SimpleNamespace(
            add_request=_nothing, remove_request=_nothing, apply_staged_writes=_nothing, append_block_ids=_nothing
        )
        for name in ("model_state", "block_tables", "lora_state", "prompt_logprobs_worker"):
            setattr(self.made, name, nothing)
        for name in ("pooling_runner", "encoder_cache", "adaptive_verification", "pp_handler"):
            setattr(self.made, name, None)
        self.made.is_last_pp_rank, self.made.req_states = True, requests
        self.made.sampler = sampler(requests, owner, **others)

    def step(self) -> None:
        """Some requests end, some come, and the runner adds them."""
        running = self.made.req_states.req_id_to_index
        for name in [name for name in running if self.draw.random() < 0.15]:
            self.made._remove_request(name)
        room = ROWS - len(running)
        new = [self._request() for _ in range(min(room, self.draw.choice([0, 0, 0, 1, 1, 2])))]
        if running and self.draw.random() < 0.1:
            new.append(self._request(self.draw.choice(list(running))))
        self.added.append(len(new))
        self.made.add_requests(SimpleNamespace(scheduled_new_reqs=new))

    def _request(self, name: str = "") -> SimpleNamespace:
        """A request of a new name, or one that is given again."""
        self.coming += 1
        prompt = [self.draw.randrange(VOCABULARY) for _ in range(self.draw.randint(1, LONGEST // 2))]
        return SimpleNamespace(
            req_id=name or f"request {self.coming}",
            prompt_len=self.draw.randint(1, len(prompt)),
            prefill_token_ids=prompt,
            prompt_token_ids=prompt,
            num_computed_tokens=0,
            sampling_params=parameters(self.draw),
            pooling_params=None,
            mm_features=[],
            block_ids=([1],),
            lora_request=None,
        )

    def quiet(self) -> int:
        """Steps without a new request, but for the first."""
        return self.added[1:].count(0)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def held(owner: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What a sampler's states hold for the GPU, by name."""
    for key, value in vars(owner).items():
        path = f"{name}.{key}".lstrip(".")
        if isinstance(value, (UvaBackedTensor, StagedWriteTensor, torch.Tensor)):
            yield path, value
        elif key == "logits_processors":
            for number, one in enumerate(value):
                yield from held(one, f"{path}.{number}")
        elif key.endswith("_state") or key.endswith("_states"):
            yield from held(value, path) if key != "req_states" and value is not None else ()


def seen(made: Any) -> Arrays:
    """What the GPU would read now."""
    return {name: getattr(one, "gpu", one).clone() for name, one in held(made)}


def moved(made: Any) -> None:
    """What the GPU itself writes between two steps."""
    for name, one in held(made):
        if isinstance(one, torch.Tensor) and ("cached" in name or "output_bin_counts" in name):
            one.add_(1)


def run(runner: Runner, before: Callable[[int, Runner], None] = _nothing) -> tuple[list[Arrays], int, bool]:
    """What the GPU reads in each step, in how many its buffers changed, and whether a step behind still reads right."""
    made, read, changed, intact = runner.made.sampler, list[Arrays](), 0, True
    launched = {name: one.gpu for name, one in held(made) if isinstance(one, UvaBackedTensor)}
    for number in range(STEPS):
        before(number, runner)
        was = {name: tensor.clone() for name, tensor in launched.items()}
        runner.step()
        intact &= all(torch.equal(launched[name], was[name]) for name in was)
        now = {name: one.gpu for name, one in held(made) if isinstance(one, UvaBackedTensor)}
        changed += any(now[name] is not launched[name] for name in now)
        launched = now
        read.append(seen(made))
        moved(made)
    return read, changed, intact


def unlike(one: list[Arrays], other: list[Arrays]) -> list[int]:
    """The steps in which anything differs."""
    return [
        number
        for number, (left, right) in enumerate(zip(one, other, strict=True))
        if left.keys() != right.keys() or any(not torch.equal(left[name], right[name]) for name in left)
    ]


def counted() -> dict[str, Any]:
    return next(one for one in optimized.counts() if one["id"] == ID)


def twice(make: Callable[[], Runner], before: Callable[[int, Runner], None] = _nothing) -> dict[str, Any]:
    """Without the switch and with it."""
    stock, always, _ = run(make(), before)
    optimized.apply([ID], VERSION)
    try:
        runner = make()
        on, changed, intact = run(runner, before)
        counts = counted()
    finally:
        optimized.revert([ID])
    return {
        "unlike": unlike(stock, on),
        "copied": [always, changed],
        "intact": intact,
        "quiet": runner.quiet(),
        "counts": counts,
    }


def switched() -> dict[str, Any]:
    """Steps that differ where the switch is put on and taken off in the middle, and what each time on counted."""
    stock, _, _ = run(Runner(5))
    counts: list[dict[str, Any]] = []

    def before(number: int, runner: Runner) -> None:
        if number in (6, 21):
            optimized.apply([ID], VERSION)
        if number in (13, 27):
            counts.extend(optimized.revert([ID]))

    runner = Runner(5)
    on, _, _ = run(runner, before)
    quiet = [runner.added[begin + 1 : end].count(0) for begin, end in ((6, 13), (21, 27))]
    return {"unlike": unlike(stock, on), "hits": [one["hits"] for one in counts], "quiet": quiet}


def planted(number: int, runner: Runner) -> None:
    """A parameter that changes without a request, in steps that add none."""
    runner.made.sampler.sampling_states.temperature.np[3] = number


def breaking() -> dict[str, Any]:
    """A request that is refused in the middle, and copies that break off: what is raised, and what follows."""
    optimized.apply([ID], VERSION)
    try:
        made = Runner(7).made.sampler
        bad = SamplingParams(temperature=0.25)
        bad.logit_bias = dict.fromkeys(range(1025), 1.0)
        given = (0, 4, bad) if "prompt_len" in inspect.signature(Sampler.add_request).parameters else (0, bad)
        made.apply_staged_writes()
        said, parameter = [_raised(lambda: made.add_request(*given))], made.sampling_states.temperature
        made.apply_staged_writes()
        found = [float(parameter.gpu[0])]
        parameter.np[0] = 0.5
        made.sampling_states.add_request(1, SamplingParams(temperature=0.75))
        said.append(_raised(lambda: made.add_request(*given)))
        copy, parameter.copy_to_uva = parameter.copy_to_uva, _fails
        said += [_raised(made.apply_staged_writes) for _ in range(2)]
        parameter.copy_to_uva = copy
        made.apply_staged_writes()
        found.append(float(parameter.gpu[1]))
        made.apply_staged_writes()
        return {"raised": said, "found": found, "counts": counted()}
    finally:
        optimized.revert([ID])


def _raised(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _fails() -> None:
    raise RuntimeError("planted")


def strangers() -> dict[str, Any]:
    """A logits processor of a user's, and a sampler that knows more of itself; where that version has such."""

    class Warmer(Sampler):  # type: ignore[misc]
        """Changes a parameter in every step."""

        def apply_staged_writes(self) -> None:
            self.sampling_states.temperature.np += 1
            super().apply_staged_writes()

    found = {"sampler": twice(lambda: Runner(11, Warmer))}
    if "custom_logits_processors" in inspect.signature(Sampler.__init__).parameters:
        from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

        class Own(LogitsProcessor):  # type: ignore[misc]
            """Changes what the GPU reads in every step."""

            def __init__(self, *_: Any) -> None:
                self.steps = UvaBackedTensor(ROWS, dtype=torch.int32)

            def apply_staged_writes(self) -> None:
                self.steps.np += 1
                self.steps.copy_to_uva()

            def apply(self, logits: Any, ctx: Any) -> Any:
                return logits

        found["processor"] = twice(lambda: Runner(12, processor=Own))
    if VERSION >= "0.30.0":
        from vllm.v1.watermarking.gpu_sampler import GPUWatermarkSampler

        found["watermark"] = twice(lambda: Runner(13, GPUWatermarkSampler, watermarker=None))
    return found


def _names(states: dict[str, Any], kind: type) -> list[str]:
    return sorted({name.rpartition(".")[2] for name, one in states.items() if isinstance(one, kind)})


def main() -> None:
    """Everything."""
    states = dict(held(Runner(1).made.sampler))
    print(
        json.dumps(
            {
                "pooled": _names(states, UvaBackedTensor),
                "staged": _names(states, StagedWriteTensor),
                "plain": twice(lambda: Runner(2)),
                "planted": twice(lambda: Runner(4), planted),
                "switched": switched(),
                "breaking": breaking(),
                **strangers(),
            }
        )
    )


main()
