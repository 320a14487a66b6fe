"""The chain in vLLM's DSpark drafter, runner V2: where its own loop would begin, and never in the middle of it.

From 0.33 on the drafter asks its model's `sample_sequential` whether that has drafted, False being that nothing was
done and the loop must run. The model is lent such a method for the length of the call; older drafters are asked the
same before their loop. A FULL graph keeps what it was captured with, so it is switched at the server's start only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from optimized.markov_chain.chain import Chosen, Head, draft, empty_keys, why_not
from optimized.objections import first_objection
from optimized.optimization import Counts
from spantrace.patching import Function

HOOK = "sample_sequential"
UNSEEN = "no graph of as many requests was captured with the switch"
_PLAIN = ("UnquantizedEmbeddingMethod", "UnquantizedLinearMethod")
_keys: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()
"""By drafter the keys of its chain; captured graphs write them, so they outlive the switch."""


def why_not_in_vllm(speculator: Any) -> str | None:
    """Why this drafter's loop is left as it is, whatever it is about to draft; nothing is read from the GPU."""
    from vllm import envs
    from vllm.model_executor.models.qwen3_dspark import Qwen3DSparkForCausalLM

    model = speculator.model
    if type(model) is not Qwen3DSparkForCausalLM:
        return f"the drafter is a {type(model).__name__}, whose Markov head is not known"
    head, processor = model.model.markov_head, model.logits_processor
    confident = getattr(speculator, "use_confidence_head", getattr(speculator, "enable_adaptive_verification", False))
    objections = {
        "drafts are sampled, not greedy": speculator.draft_logits is not None,
        "only some candidates are refined": getattr(speculator, "_draft_topk", None) is not None,
        "the confidence of the drafts is asked for": confident,
        "the acceptance of the drafts is estimated": getattr(speculator, "acceptance_estimator", None) is not None,
        "the drafter's vocabulary is a part of the target's": model.draft_id_to_target_id is not None,
        "the model drafts by itself": hasattr(model, HOOK) or hasattr(model, "apply_output_logit_transform"),
        "the logits are scaled or capped": processor.scale != 1.0 or processor.soft_cap is not None,
        "the head has a dtype of its own": getattr(processor, "head_dtype", None)
        not in (None, _projection(head).dtype),
        "the Markov head is quantized": type(head.markov_w2.quant_method).__name__ not in _PLAIN,
        "the Markov head is spread over ranks": any(getattr(part, "tp_size", 1) > 1 for part in _parts(head)),
        "results must not depend on the batch": bool(envs.VLLM_BATCH_INVARIANT),
    }
    return first_objection(objections)


class DrafterChain:
    """The switch; a hit is a step's drafts, whether drafted by the call or by the replay of a graph."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._broken: str | None = None
        self._captured: WeakKeyDictionary[Any, dict[int, str | None]] = WeakKeyDictionary()

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The loop, and the replay of a graph that holds it."""
        return {
            "DSparkSpeculator._sample_sequential": self._sample_sequential,
            "CudaGraphManager.run_fullgraph": self._run_fullgraph,
        }

    def allocated(self) -> int:
        """Bytes of all drafters' keys; captured graphs keep them after the switch is off."""
        return sum(keys.nbytes for keys in _keys.values())

    def close(self) -> None:
        """Forget which graphs hold the chain."""
        self._captured.clear()

    def _sample_sequential(self, original: Function) -> Function:
        asks_the_model = HOOK in original.__code__.co_consts

        @wraps(original)
        def sample_sequential(speculator: Any, num_reqs: int, head_hidden: Tensor) -> None:
            if self._objects(speculator, num_reqs):
                original(speculator, num_reqs, head_hidden)
            elif asks_the_model:
                self._lend(speculator.model, lambda: original(speculator, num_reqs, head_hidden))
            elif not self._drafts(speculator, num_reqs, head_hidden):
                original(speculator, num_reqs, head_hidden)

        return sample_sequential

    def _lend(self, model: Any, call: Callable[[], None]) -> None:
        """Let the model draft by the chain for as long as the call lasts."""
        setattr(model, HOOK, self._drafts)
        try:
            call()
        finally:
            delattr(model, HOOK)

    def _objects(self, speculator: Any, requests: int) -> bool:
        """Whether there is a reason against this drafter; counted."""
        try:
            reason = self._broken or why_not_in_vllm(speculator)
        except Exception as error:
            self._failed(speculator, requests, error)
            return True
        if reason is not None:
            self._note(speculator, requests, reason)
        return reason is not None

    def _drafts(self, speculator: Any, requests: int, hidden: Tensor) -> bool:
        """Draft, as the model's hook is asked to: False where nothing was done that the loop does not overwrite."""
        try:
            reason = _draft(speculator, requests, hidden)
        except Exception as error:
            self._failed(speculator, requests, error)
            return False
        self._note(speculator, requests, reason)
        return reason is None

    def _failed(self, speculator: Any, requests: int, error: Exception) -> None:
        """Count it, and draft no more."""
        self.counts.failed(error)
        self._broken = "it failed before"
        if _capturing(speculator):
            self._note(speculator, requests, self._broken)

    def _note(self, speculator: Any, requests: int, reason: str | None) -> None:
        """Count a step's drafts now, or remember of a graph of so many requests that is captured what a replay is."""
        if _capturing(speculator):
            self._captured.setdefault(speculator.query_cudagraph_manager, {})[requests] = reason
        else:
            self._count(reason)

    def _count(self, reason: str | None) -> None:
        if reason is None:
            self.counts.hits += 1
        else:
            self.counts.fallbacks[reason] += 1

    def _run_fullgraph(self, original: Function) -> Function:
        @wraps(original)
        def run_fullgraph(manager: Any, desc: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(manager, desc, *args, **kwargs)
            if (held := self._captured.get(manager)) is not None:
                self._count(held.get(getattr(desc, "num_reqs", -1), UNSEEN))
            return result

        return run_fullgraph


def _draft(speculator: Any, requests: int, hidden: Tensor) -> str | None:
    """Fill the drafter's tokens of so many requests; why they were not filled."""
    steps, head = speculator.num_speculative_steps, speculator.model.model.markov_head
    logits = speculator.model.compute_draft_logits(hidden[speculator.sample_indices[: requests * steps]])
    logits = logits.view(requests, steps, logits.shape[-1])
    weights = Head(head.markov_w1.weight.data, _projection(head))
    if reason := why_not(logits, weights):
        return reason
    if speculator not in _keys:
        # What is made in inference mode could not be filled outside of it.
        with torch.inference_mode(False):
            _keys[speculator] = empty_keys(steps, speculator.max_num_reqs, logits.device)
    first = speculator.input_buffers.input_ids[speculator._anchor_idx[:requests]]
    draft(logits, first, weights, _keys[speculator][:, :requests], Chosen(speculator.draft_tokens[:requests]))
    return None


def _capturing(speculator: Any) -> bool:
    return torch.device(speculator.device).type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def _projection(head: Any) -> Tensor:
    found: Tensor = head.markov_w2.weight.data
    return found


def _parts(head: Any) -> tuple[Any, Any]:
    return head.markov_w1, head.markov_w2
