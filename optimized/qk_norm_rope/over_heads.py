"""One launch over the query and key heads of a block, by the kernel of either order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from optimized import launching
from optimized.head_order import OPTIONS

if TYPE_CHECKING:
    from optimized.reference_cycle.attention import HeadNorms


@dataclass(frozen=True)
class Pair:
    """What becomes of a layer's heads: norm weights [head_dim], cos | sin by position, and how many heads there are."""

    query: Tensor
    key: Tensor
    table: Tensor
    heads: int
    kv_heads: int
    epsilon: float


def over_heads(
    kernel: Any,
    qkv: Tensor,
    positions: Tensor,
    norms: HeadNorms | Pair,
    out: tuple[Tensor, Tensor],
    sizes: dict[str, Any],
) -> None:
    """Norm and rotate the queries and keys of qkv [tokens, (heads + 2 kv_heads) head_dim] into those of `out`.

    Positions are int64 [tokens], side by side; `sizes` are what the kernel is compiled for.
    """
    rows = len(qkv) * (norms.heads + norms.kv_heads)
    arguments = {
        "qkv": qkv,
        "positions": positions,
        "table": norms.table,
        "query_norm": norms.query,
        "key_norm": norms.key,
        "queries": out[0],
        "keys": out[1],
        "rows": rows,
        "qkv_row": qkv.stride(0),
        "epsilon": norms.epsilon,
        "HEADS": norms.heads,
        "KEY_HEADS": norms.kv_heads,
        **sizes,
    }
    launching.launch(kernel, qkv.device.type, (-(-rows // sizes["ROWS"]),), arguments, **OPTIONS)
