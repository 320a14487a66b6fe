"""Where parts of graphs end in the installed vLLM, as JSON: python pass_graph_sites.py TARGET METHOD DRAFTER RUNNER.

Prints why a site cannot be marked, by name, and in which order one decode step passes those that can; and both for the
target with its model set as compiled.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
PROMPT = "the quick brown fox jumps over the lazy dog"
passed: list[str] = []
stack = ExitStack()


def main(target: str, method: str, drafter: str, runner: str) -> None:
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "V2" else "0"
    from vllm import LLM, SamplingParams

    model = LLM(
        target,
        load_format="spantrace-random",
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=2,
        block_size=32,
        enable_prefix_caching=False,
        speculative_config={"method": method, "model": drafter, "num_speculative_tokens": 3},
    )
    (sites,) = model.collective_rpc(mark)
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    model.generate([PROMPT], greedy, use_tqdm=False)
    stack.close()
    (compiled,) = model.collective_rpc(of_compiled)
    print(json.dumps({**sites, "passed": passed, "compiled": compiled}))


def mark(worker: Any) -> dict[str, dict[str, str]]:
    from spantrace.vllm_adapter import graph_sites

    runner = worker.model_runner
    drafter = (getattr(runner, "speculator", None) or runner.drafter).model
    targets, drafters = graph_sites.target_sites(runner.model), graph_sites.drafter_sites(drafter, True)
    passed.append("")
    stack.enter_context(graph_sites.marked([*targets, *drafters], passed.append))
    rest = graph_sites.drafter_rest(drafter)
    return {
        "target": {site.name: site.why for site in targets},
        "drafter": {site.name: site.why for site in drafters} | {rest: "rest"},
    }


def of_compiled(worker: Any) -> dict[str, str]:
    from spantrace.vllm_adapter import graph_sites

    model = worker.model_runner.model
    model.model.do_not_compile = False
    return {site.name: site.why for site in graph_sites.target_sites(model)}


if __name__ == "__main__":
    main(*sys.argv[1:])
