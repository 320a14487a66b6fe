"""What a model runner gives to the Mamba builders of its KV groups, step after step, in tensors that stay in place."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from mamba_builds import BLOCKS, GROUPS, MOST_REQUESTS, OWN_ROWS, Batch, Stock, equal, shared_build

from optimized.uniform_decode_metadata import ahead
from optimized.uniform_decode_metadata.vllm import Shortcut

STALE = 77
"""A block that no step gives to a request; what a table's rows hold before they are written."""


class Runner:
    """A runner that writes all requests' rows before the first build, "V2" with those that pad the batch.

    "V1" empties what pads a group's table right before that group's build.
    """

    def __init__(
        self, stock: Stock, mode: str, graphs: bool = True, which: str = "V2", switch: Shortcut | None = None
    ) -> None:
        self.stock, self.mode, self.graphs, self.which = stock, mode, graphs, which
        self.builders = [self.builder() for _ in range(GROUPS)]
        self.tables = [self.table() for _ in range(GROUPS)]
        self.lengths = torch.zeros(2 * MOST_REQUESTS, dtype=torch.int32)
        self.accepted = torch.zeros(2 * MOST_REQUESTS, dtype=torch.int32)
        self.method = shared_build(stock, switch) if switch else stock.module["_compute_common_metadata"]

    def builder(self) -> Any:
        """A builder with buffers of its own."""
        made = self.stock.group(self.mode, self.graphs)
        made.vllm_config.use_v2_model_runner = self.which == "V2"
        return made

    def table(self) -> Any:
        """A block table, int32 [rows, blocks]."""
        return torch.full((2 * MOST_REQUESTS, BLOCKS), STALE, dtype=torch.int32)

    def prepare(self, batch: Batch, seed: int) -> Batch:
        """Write a step's blocks, lengths and accepted tokens; the batch as the builders are given it, less a table."""
        random, padded = torch.Generator().manual_seed(seed), batch.num_reqs
        requests = int((batch.query_start_loc_cpu.diff() > 0).sum())
        for table in self.tables:
            table[:requests] = torch.randint(100, 10_000, (requests, BLOCKS), generator=random, dtype=torch.int32)
            if self.which == "V2":
                table[requests:padded] = 0
        self.lengths[:padded] = batch.seq_lens
        if self.which == "V2":
            self.accepted = torch.zeros_like(self.accepted)
        self.accepted[:padded] = torch.randint(1, 5, (padded,), generator=random, dtype=torch.int32)
        self.accepted[requests:padded] = 1
        return batch.replace(seq_lens=self.lengths[:padded], is_prefilling=batch.is_prefilling.clone())

    def one(self, group: int, batch: Batch) -> Any:
        """A group's metadata."""
        padded, requests = batch.num_reqs, int((batch.query_start_loc_cpu.diff() > 0).sum())
        table = self.tables[group][:padded]
        table[requests:] = 0
        given = batch.replace(block_table_tensor=table, is_prefilling=batch.is_prefilling[:])
        return self.method(self.builders[group], given, num_accepted_tokens=self.accepted[:padded])

    def step(self, batch: Batch, seed: int, order: tuple[int, ...] = tuple(range(GROUPS))) -> list[Any]:
        """The metadata of groups in this order."""
        prepared = self.prepare(batch, seed)
        return [self.one(group, prepared) for group in order]


def unlike(theirs: Runner, ours: Runner, wanted: list[Any], got: list[Any], order: Any = range(GROUPS)) -> list[str]:
    """The fields in which metadata differ, and the groups' own buffers that differ anywhere."""
    found = []
    for group, one, other in zip(order, wanted, got, strict=True):
        assert type(one) is type(other)
        names = [each.name for each in fields(one) if not equal(getattr(one, each.name), getattr(other, each.name))]
        own = [vars(side.builders[group]) for side in (theirs, ours)]
        names += [
            f"own {name}"
            for name in (*OWN_ROWS, "state_indices_tensor_d")
            if not torch.equal(own[0][name], own[1][name])
        ]
        found += [f"{group}: {name}" for name in names]
    return found


def sides(stock: Stock, mode: str, graphs: bool = True, which: str = "V2") -> tuple[Runner, Runner, Shortcut]:
    """Two runners alike, the second one with our method, and its switch."""
    switch = Shortcut()
    return Runner(stock, mode, graphs, which), Runner(stock, mode, graphs, which, switch), switch


def counted_launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups each launch from now on is for."""
    counted: list[int] = []
    right = ahead.launch

    def counting(kernel: Any, device: str, grid: tuple[int, ...], *others: Any, **options: Any) -> None:
        counted.append(grid[0])
        right(kernel, device, grid, *others, **options)

    monkeypatch.setattr(ahead, "launch", counting)
    return counted
