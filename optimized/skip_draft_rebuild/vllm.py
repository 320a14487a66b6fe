"""What goes into vLLM's drafters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from optimized.skip_draft_rebuild.replays import WithoutRebuild, WithRebuild
from spantrace.patching import Function

_DISPATCH = "dispatch_cg_and_sync_dp"
_SETTLE = "DraftModelSpeculator._prepare_eplb_forward"


def _harmless() -> type:
    """The one builder of which it is known that it leaves nothing behind, unless R-SWA is on."""
    from vllm.v1.attention.backends.triton_attn import TritonAttentionMetadataBuilder

    found: type = TritonAttentionMetadataBuilder
    return found


class SkipRebuild(WithoutRebuild):
    """The switch; a hit is a FULL replay for which nothing was built."""

    def __init__(self) -> None:
        super().__init__(_harmless())

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """By version the drafter builds its metadata with the one method or the other."""
        return {
            _DISPATCH: self.dispatching,
            "DFlashSpeculator._build_draft_attn_metadata": self.building,
            "DraftModelSpeculator._build_uniform_attn_metadata": self.building,
            _SETTLE: self.settling,
        }


class RestoreRebuild(WithRebuild):
    """The switch; a hit is a FULL replay for which metadata was built and read by nobody."""

    def __init__(self) -> None:
        super().__init__(_harmless())

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The method in the middle is called where a replay is prepared, and where a graph is captured."""
        return {
            _DISPATCH: self.dispatching,
            "DFlashSpeculator._num_graph_context_tokens": self.preparing,
            _SETTLE: self.settling,
        }
