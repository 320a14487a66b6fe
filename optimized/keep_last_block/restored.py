"""Where vLLM has the fix: its prefix cache drops the last block of a hit again, as before it."""

from __future__ import annotations

from optimized.keep_last_block.kept import METHODS
from optimized.keep_last_block.sources import FIND, LOCAL, SPLIT
from optimized.late import late
from optimized.optimization import Agreement, Optimization, needs_package
from optimized.seams import Seam

_UPSTREAM = "vllm ==0.33.0"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler."
_COORDINATOR = "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator."
_UNITARY = "vllm.v1.core.kv_cache_coordinator:UnitaryKVCacheCoordinator."
_HYBRID = "vllm.v1.core.kv_cache_coordinator:HybridKVCacheCoordinator."
_MANAGER = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager."
_MAMBA = "vllm.v1.core.single_type_kv_cache_manager:MambaManager."
_CACHE = "vllm.v1.core.kv_cache_manager:"
_HASHES = {
    LOCAL: "8e6f6ae6a7ab8f04d4d2c5a49510b90dcead51c2b716ac77b15342db3f1f830a",
    FIND: "ae0e67c0720ab7605ce0888dc8f7ad73e926b27ca697b6a2f528849c02777dd3",
    SPLIT: "9af6739dbbdf081fb40351995325825352f9a96f86df21cdcc88cd357c120244",
    _SCHEDULER + "__init__": "be8d75276383af5ea7a9eff2920326a38420de9983564084563e131c5ffcccae",
    _COORDINATOR + "__init__": "0ebbd79eb9e3abfa20a9db6d28797821134b3b1d850f070cdc1136167e54ea97",
    _COORDINATOR + "cache_blocks": "e3e02a290b355aba6c6f12e1cb135ba371ca7dddcb050c97d1f424485a318957",
    _UNITARY + "find_longest_cache_hit": "f431d3ea69db04aa5ebfc18d2fe0958956e5e9bc33bfd1d032e2dd7349379260",
    _HYBRID + "find_longest_cache_hit": "0d109ac725cf33e2100d6a1a39dd9116d82429cd990917fceb06d1d89010eed4",
    _HYBRID + "verify_and_split_kv_cache_groups": "f79ef9f132d8dd2b908e475f3384a2043e54c368947b5ed2bc130034a94d1eeb",
    _HYBRID + "get_num_cacheable_tokens": "4b00f5b368d98de1e20790992820757d35562748ad9d72e72b8fa561d0e48098",
    _MANAGER + "cache_blocks": "11b6adde36e893ecf58e6f94f7b7f2d531a19635bd84b6314f34a96a1b9124c5",
    _MAMBA + "_cache_partial_tail_block": "695c8bfa3b68167b26c4badc85635214ac2694da2c0567382272430a894c8575",
    _MAMBA + "_needs_internal_checkpoint": "e2e45e2a0c68b5dac2b09b7ff65442b1040c2bd98bd38e5c5e1978c34314703b",
    _MAMBA + "get_num_blocks_to_allocate": "3e72800c11bdd2aa06782a99358f9e82300dd7159c17dde2e6a93549838f42d5",
    _CACHE + "KVCacheManager.__init__": "4cb520c91372856609c73ccf44f70deeb755db584fe190666958428a5d5193f3",
}
"""Of 0.33.0: what is replaced, and all that writes or reads which groups drop a block, as far as caching goes."""


RESTORED_STOCK = Optimization(
    id="stock-keep-last-block",
    restores="keep-last-block",
    summary="a hit in the prefix cache is without its last block with DFlash and DSpark again, which is computed anew",
    seed="vLLM, four fixes for DFlash and DSpark, fix 1",
    figure="2,192 tokens less of a 30,000 token prompt cached, first token after 258 instead of 203 ms on a GB200, "
    "claimed there",
    targets=("target.forward",),
    seams=tuple(Seam(owner, _UPSTREAM) for owner in (LOCAL, FIND, SPLIT)),
    requirements=(needs_package("vllm"),),
    guard="where keep-last-block would keep it, and nothing is dropped; a hit is one lookup",
    agreement=Agreement.BITWISE,
    memory=lambda _: 0,
    live_switchable=True,
    vllm_switch=late("optimized.keep_last_block.dropped:DroppedBlocks"),
    cases=late("optimized.keep_last_block.dropped_reference:cases"),
    sources={target: {"0.33.0": text} for target, text in _HASHES.items()},
    methods=METHODS,
    evidence="examples/results/h200-campaign-0.33.0-stock.spantrace",
)
