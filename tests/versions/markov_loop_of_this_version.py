"""A DSpark drafter of a vLLM drafts on the CPU: python markov_loop_of_this_version.py VERSION FOLDER-OF-ITS-SOURCES.

The drafter, its model, its Markov head and its logits' processor are vLLM's own classes, with what they need of a
server filled in by hand; the chain's kernels are interpreted. Prints what happened in each situation as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VERSION, TREE = sys.argv[1:]
sys.path.insert(0, TREE)
sys.path.append(str(Path(__file__).parents[1]))

import torch  # noqa: E402
from stand_ins import Graph, bare, planted  # noqa: E402
from torch import nn  # noqa: E402
from vllm.model_executor.layers.logits_processor import LogitsProcessor  # noqa: E402
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod  # noqa: E402
from vllm.model_executor.models.qwen3_dspark import DSparkMarkovHead, Qwen3DSparkForCausalLM  # noqa: E402
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator  # noqa: E402

import optimized  # noqa: E402
from optimized.launching import INTERPRET  # noqa: E402
from optimized.markov_chain import vllm as switch  # noqa: E402

ID = "markov-chain"
STEPS, QUERIES, MOST, VOCAB, PADDED, RANK, HIDDEN = 3, 4, 4, 300, 320, 16, 24
CPU = torch.device("cpu")


def table(rows: int, width: int, seed: int) -> nn.Module:
    """An unquantized head, padded as vLLM pads it."""
    drawn = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * width**-0.5
    made = bare(nn.Module, weight=nn.Parameter(drawn, requires_grad=False), tp_size=1)
    made.quant_method = UnquantizedEmbeddingMethod()
    made.quant_method.process_weights_after_loading(made)
    return made


def model() -> Any:
    """A drafter's model, as far as it is asked for logits."""
    head = bare(DSparkMarkovHead, markov_w1=nn.Embedding(VOCAB, RANK), markov_w2=table(PADDED, RANK, 1))
    with torch.no_grad():
        head.markov_w1.weight.normal_(generator=torch.Generator().manual_seed(2)).mul_(3.0)
    processor = bare(
        LogitsProcessor,
        scale=1.0,
        soft_cap=None,
        logits_as_input=False,
        org_vocab_size=VOCAB,
        vocab_size=VOCAB,
        head_dtype=None,
        use_all_gather=False,
    )
    processor._gather_logits = lambda logits: logits
    inner = bare(nn.Module, markov_head=head)
    return bare(
        Qwen3DSparkForCausalLM,
        model=inner,
        lm_head=table(PADDED, HIDDEN, 3),
        logits_processor=processor,
        draft_id_to_target_id=None,
    )


def speculator(**changes: Any) -> Any:
    """A drafter of so many requests at most, greedy unless changed."""
    made: Any = object.__new__(DSparkSpeculator)
    fields = {
        "model": model(),
        "device": CPU,
        "num_speculative_steps": STEPS,
        "max_num_reqs": MOST,
        "sample_indices": torch.arange(MOST * STEPS) + torch.arange(MOST).repeat_interleave(STEPS),
        "sample_idx_mapping": torch.arange(MOST).repeat_interleave(STEPS),
        "sample_pos": torch.arange(MOST * STEPS),
        "input_buffers": SimpleNamespace(input_ids=torch.arange(7, 7 + MOST * QUERIES, dtype=torch.int32)),
        "_anchor_idx": torch.arange(MOST) * QUERIES,
        "_step_cols": torch.arange(STEPS, dtype=torch.int32),
        "draft_tokens": torch.full((MOST, STEPS), -1),
        "draft_logits": None,
        "_d2t_scatter_index": None,
        "_draft_topk": None,
        "use_confidence_head": False,
        "enable_adaptive_verification": False,
        "acceptance_estimator": None,
        "draft_watermarker": None,
    }
    for name, value in {**fields, **changes}.items():
        setattr(made, name, value)
    return made


def drafted(made: Any, requests: int) -> list[list[int]]:
    """What it drafts for so many requests; the rows of others stay as they are."""
    made.draft_tokens.fill_(-1)
    hidden = torch.randn(MOST * QUERIES, HIDDEN, generator=torch.Generator().manual_seed(requests))
    made._sample_sequential(requests, hidden)
    found: list[list[int]] = made.draft_tokens.tolist()
    return found


def counted() -> dict[str, Any]:
    """What is counted so far."""
    (said,) = optimized.counts()
    return said


def greedy() -> dict[str, Any]:
    """Stock, on, and off again."""
    made, found = speculator(), {}
    found["stock"] = [drafted(made, requests) for requests in (1, 3, MOST)]
    optimized.apply([ID], VERSION)
    found["on"] = [drafted(made, requests) for requests in (1, 3, MOST)]
    found["counts"], found["bytes"] = counted(), optimized.allocated(ID)
    found["left behind"] = hasattr(made.model, switch.HOOK)
    optimized.revert()
    found["off"] = [drafted(made, requests) for requests in (1, 3, MOST)]
    return found


def refused() -> dict[str, str | None]:
    """Why a drafter is left alone, by what is unlike the one that is taken."""
    found = {"nothing": switch.why_not_in_vllm(speculator())}
    for name, value in (("draft_logits", torch.zeros(1)), ("_draft_topk", 8), ("acceptance_estimator", object())):
        found[name] = switch.why_not_in_vllm(speculator(**{name: value}))
    confident = {"use_confidence_head": True, "enable_adaptive_verification": True}
    found["confidence"] = switch.why_not_in_vllm(speculator(**confident))
    changed = {name: speculator() for name in ("vocabulary", "hook", "scale", "dtype", "quantized", "ranks", "model")}
    changed["vocabulary"].model.draft_id_to_target_id = torch.zeros(1)
    changed["hook"].model.sample_sequential = lambda *_: True
    changed["scale"].model.logits_processor.scale = 2.0
    changed["dtype"].model.logits_processor.head_dtype = torch.float64
    changed["quantized"].model.model.markov_head.markov_w2.quant_method = object()
    changed["ranks"].model.model.markov_head.markov_w2.tp_size = 2
    changed["model"].model = SimpleNamespace()
    return found | {name: switch.why_not_in_vllm(made) for name, made in changed.items()}


def left_alone() -> dict[str, Any]:
    """A drafter that is refused drafts as ever, and so does one whose chain fails, for good."""
    found, made = {}, speculator()
    made.model.draft_id_to_target_id = torch.zeros(VOCAB, dtype=torch.int64)
    stock = drafted(made, 3)
    optimized.apply([ID], VERSION)
    found["refused"] = [drafted(made, 3) == stock, counted()]
    optimized.revert()
    right, made = switch.draft, speculator()
    stock = drafted(made, 3)
    optimized.apply([ID], VERSION)
    switch.draft = planted
    found["failed"] = [drafted(made, 3) == stock]
    switch.draft = right
    found["failed"] += [drafted(made, 3) == stock, counted(), hasattr(made.model, switch.HOOK)]
    optimized.revert()
    return found


def replays() -> dict[str, Any]:
    """Three graphs of one drafter, of which the second was captured where the chain failed and the third unseen.

    A fourth is another manager's.
    """
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

    made, other = (object.__new__(CudaGraphManager) for _ in range(2))
    sizes = [BatchExecutionDescriptor(CUDAGraphMode.FULL, n * QUERIES, n, QUERIES) for n in (1, 2, 3)]
    made.graphs = other.graphs = {size: Graph() for size in sizes}
    optimized.apply([ID], VERSION)
    drafter = speculator(device=torch.device("cuda"), query_cudagraph_manager=made)
    drafter.draft_tokens.fill_(-1)
    capturing, torch.cuda.is_current_stream_capturing = torch.cuda.is_current_stream_capturing, lambda: True
    try:
        drafted(drafter, 1)
        chain, switch.draft = switch.draft, planted
        drafted(drafter, 2)
        switch.draft = chain
        at_capture = counted()
    finally:
        torch.cuda.is_current_stream_capturing = capturing
    for manager, size in [(made, sizes[0]), (other, sizes[0]), (made, sizes[0]), (made, sizes[1]), (made, sizes[2])]:
        manager.run_fullgraph(size)
    found = {"at capture": at_capture["hits"] + at_capture["fallbacks"], "counts": counted()}
    optimized.revert()
    made.run_fullgraph(sizes[0])
    return found


if __name__ == "__main__":
    os.environ[INTERPRET] = "1"
    hooked = switch.HOOK in DSparkSpeculator._sample_sequential.__code__.co_consts
    facts = {"hooked": hooked, "greedy": greedy(), "refused": refused(), "left alone": left_alone()}
    print(json.dumps(facts | {"replays": replays()}))
