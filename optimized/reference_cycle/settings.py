"""The settings of one run and what follows from them; torch is imported only to name a dtype."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal

from optimized.reference_cycle.geometry import Geometry
from spantrace.errors import SpantraceError

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float64", "float16", "bfloat16")
DRAFTERS = ("dflash", "dspark", "eagle")
DrafterKind = Literal["dflash", "dspark", "eagle", "none"]


@dataclass(frozen=True)
class Settings:
    """One run: `draft_length` tokens (K) a cycle for `batch` requests of up to `context` tokens, prompt and output.

    `pages` of the paged caches, the null page included, default to what the whole batch can need.
    """

    geometry: Geometry = field(default_factory=Geometry)
    drafter: DrafterKind = "dflash"
    draft_length: int = 7
    batch: int = 8
    context: int = 2048
    page_size: int = 16
    pages: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.drafter not in (*DRAFTERS, "none"):
            raise SpantraceError(f"no drafter is called {self.drafter!r}; choose {', '.join(DRAFTERS)} or none")
        if self.dtype not in DTYPES:
            raise SpantraceError(f"{self.dtype!r} is no dtype of the cycle; choose one of {', '.join(DTYPES)}")
        for name in ("batch", "context", "page_size", "draft_length"):
            if getattr(self, name) < 1:
                raise SpantraceError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def speculative(self) -> int:
        """Drafted tokens a cycle (K); 0 without a drafter."""
        return 0 if self.drafter == "none" else self.draft_length

    @property
    def lookahead(self) -> int:
        """Token positions past the cached ones that one cycle may touch: 2K rows verified, or K+1 and then a block."""
        return 2 * self.speculative + 2

    @property
    def table_width(self) -> int:
        """Pages of one request at the longest context (MB)."""
        return -(-(self.context + self.lookahead) // self.page_size)

    @property
    def capacity(self) -> int:
        """Columns of one request's block table, in tokens."""
        return self.table_width * self.page_size

    @property
    def page_count(self) -> int:
        """Pages of the pools, page 0 included, which belongs to nobody."""
        return self.pages if self.pages is not None else 1 + self.batch * self.table_width

    @property
    def draft_context(self) -> int:
        """Most context tokens of a request that the drafter keeps (max_ctx)."""
        longest = self.geometry.longest_draft_context
        return self.context if longest is None else min(self.context, longest)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        import torch

        return getattr(torch, self.dtype)

    def without_drafter(self) -> Settings:
        """The same target, decoding one token a cycle."""
        return replace(self, drafter="none")


def describe(settings: Settings) -> dict[str, str | int | float | bool | None]:
    """The settings as plain values for a recording's header, the geometry by its name."""
    plain = {item.name: getattr(settings, item.name) for item in fields(settings) if item.name != "geometry"}
    return {"geometry": settings.geometry.name, **plain, "draft_length": settings.speculative}
