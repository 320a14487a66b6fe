"""The work of a cycle, counted instead of timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from every_one import ALL, where_it_fires  # noqa: E402
from small_cycles import SMALL, WITH_STATES, small  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import optimized  # noqa: E402
from optimized import launching  # noqa: E402
from optimized.optimization import Optimization  # noqa: E402
from optimized.reference_cycle.cycle import Cycle, random_prompts  # noqa: E402
from optimized.reference_cycle.settings import Settings  # noqa: E402

pytestmark = pytest.mark.usefixtures("interpreted")


class Operations(TorchDispatchMode):
    """How many operations PyTorch carries out, each a launch on a GPU, and kernels it launches besides."""

    done = 0
    interpreting = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.done += not self.interpreting
        return func(*args, **(kwargs or {}))

    @contextmanager
    def with_kernels(self) -> Iterator[None]:
        """Count an interpreted kernel once, whatever PyTorch does for the interpreter."""
        if find_spec("triton") is None:
            yield
            return
        from triton.runtime.interpreter import GridExecutor

        run = GridExecutor.__call__

        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self.done, self.interpreting = self.done + 1, True
            try:
                return run(executor, *args, **kwargs)
            finally:
                self.interpreting = False

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GridExecutor, "__call__", launch)
            yield


class Work(TorchFunctionMode):
    """Multiply-adds of linear layers, products of attention, and rows of embeddings read."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.embedding, self.done = embedding, Counter[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            self.done["linear"] += args[0].numel() // args[0].shape[-1] * args[1].numel()
        elif func is F.scaled_dot_product_attention:
            self.done["attention"] += args[0].numel() * args[1].shape[2]
        elif func in (torch.Tensor.__getitem__, torch.Tensor.index_select) and args[0] is self.embedding:
            self.done["embedding"] += args[-1].numel()
        return func(*args, **(kwargs or {}))


@cache
def work_of_a_cycle(settings: Settings, *ids: str) -> tuple[Counter[str], int]:
    """The work by kind, and how many operations it was split into."""
    optimized.apply(ids)
    cycle = Cycle(settings)
    cycle.add(random_prompts(settings, settings.batch, settings.context // 4), settings.context // 4)
    cycle.step()
    with Work(cycle.target.embedding) as work, Operations() as operations, operations.with_kernels():
        cycle.step()
    optimized.revert()
    return work.done, operations.done


@where_it_fires
def test_each_does_less_work_of_some_kind_or_in_fewer_operations_and_no_kind_more(
    item: Optimization, drafter: str
) -> None:
    settings = small(WITH_STATES if item.needs_states else SMALL, drafter=drafter, context=64)
    (stock, operations), (alone, fewer) = work_of_a_cycle(settings), work_of_a_cycle(settings, item.id)
    assert all(alone[kind] <= stock[kind] for kind in stock)
    assert fewer < operations or any(alone[kind] < stock[kind] for kind in stock)


def test_all_of_them_do_much_less_work() -> None:
    settings = Settings(context=512)
    stock, _ = work_of_a_cycle(settings)
    everything_on, _ = work_of_a_cycle(settings, *ALL)
    assert 2 * everything_on["linear"] < stock["linear"]
    assert 1.2 * everything_on["attention"] < stock["attention"]
    shape, drafted = settings.geometry.dflash, settings.speculative + 1
    filler = settings.batch * (settings.speculative - 1)
    read_by_pytorch = 0 if launching.why_no_kernels("cpu") is None else settings.batch + 1
    lookups = filler + settings.batch * drafted - read_by_pytorch
    assert stock["embedding"] - everything_on["embedding"] == lookups
    context = shape.layers * 2 * shape.kv_heads * shape.head_dim * settings.geometry.hidden
    spared = work_of_a_cycle(settings, "context-kv-cache")[0]["linear"]
    assert stock["linear"] - spared == settings.batch * (settings.context - drafted) * context
