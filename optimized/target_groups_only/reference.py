"""A small target and its drafter, whose layers' metadata is built group by group, into buffers that stay in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.target_groups_only.groups import TargetGroups, name_of

POISON, DRAFTS = -(2**20), 3
Layout = tuple[tuple[str, ...], ...]
"""By KV cache its groups, each one a letter a layer: t of the target, d of the drafter."""


@dataclass(frozen=True)
class Load:
    """By step, over and over: the tokens of each request.

    Before the steps of these numbers a graph is `captured`, or all groups are made anew, as after a sleep. `config` is
    what the server has beside its defaults.
    """

    steps: tuple[tuple[int, ...], ...]
    accepted: int = 2
    captured: frozenset[int] = frozenset()
    renewed: frozenset[int] = frozenset()
    config: dict[str, Any] = field(default_factory=dict)


class Group:
    """Layers that share metadata: of each request where it starts, how long it is, and its blocks."""

    def __init__(self, layer_names: list[str], rows: int, blocks: int, device: str) -> None:
        self.layer_names = layer_names
        self.buffer = torch.zeros(rows + 1, 2 + blocks, dtype=torch.int64, device=device)

    def build(self, starts: Tensor, lengths: Tensor, table: Tensor) -> Tensor:
        """Into the group's own buffer."""
        made = self.buffer[: len(starts)]
        made[:, 0], made[:, 1], made[:, 2:] = starts, lengths, table
        return made


class State:
    """A model state: builds for the groups that it is given."""

    def prepare_attn(
        self, batch: tuple[Tensor, Tensor], tables: Tensor, attn_groups: Any, for_capture: bool = False
    ) -> dict[str, Tensor]:
        """By layer; a capture is for lengths of nothing."""
        starts, lengths = batch
        found: dict[str, Tensor] = {}
        for table, groups in zip(tables, attn_groups, strict=True):
            for group in groups:
                metadata = group.build(starts, lengths * (not for_capture), table[: len(starts)])
                found |= dict.fromkeys(group.layer_names, metadata)
        return found


class OwnState(State):
    """One of somebody else's."""


class Drafter:
    """Builds for its own layers with groups of its own."""

    def __init__(self, own: list[list[Group]]) -> None:
        self.attn_groups = own
        self.draft_attn_layer_names = {name for of_cache in own for one in of_cache for name in one.layer_names}

    def propose(self, batch: tuple[Tensor, Tensor], tables: Tensor) -> dict[str, Tensor]:
        """Metadata of the drafter's own step."""
        starts, lengths = batch
        return State().prepare_attn((starts, lengths + DRAFTS), tables, self.attn_groups)


class OwnDrafter(Drafter):
    """One of somebody else's."""


class Runner:
    """A target with its groups, its state and its drafter, in a server with this beside its defaults."""

    def __init__(self, groups: list[list[Group]], state: State, drafter: Drafter, config: dict[str, Any]) -> None:
        parallel: dict[str, Any] = dict.fromkeys(("prefill_context_parallel_size", "decode_context_parallel_size"), 1)
        parallel |= {"use_ubatching": False, "kv_transfer_config": None} | config
        connector = parallel.pop("kv_transfer_config")
        self.vllm_config = SimpleNamespace(kv_transfer_config=connector, parallel_config=SimpleNamespace(**parallel))
        self.attn_groups, self.model_state, self.speculator = groups, state, drafter

    def prepare_attn(self, tables: Tensor) -> Tensor:
        """A step's blocks."""
        return tables


class Step:
    """A step of the target and its drafter's; requests grow by what is accepted."""

    def __init__(
        self, layout: Layout, load: Load, place: Place, kinds: tuple[type[State], type[Drafter]], blocks: int = 5
    ) -> None:
        random = torch.Generator().manual_seed(5)
        self.layout, self.load, self.kinds, self.device = layout, load, kinds, place.device
        self.rows, self.blocks, self.number = max(map(len, load.steps)), blocks, 0
        shape = len(layout), self.rows + 1, blocks
        self.tables = torch.randint(0, 999, shape, generator=random).to(place.device)
        self.lengths = torch.arange(7, 7 + self.rows + 1).to(place.device)
        self.switch = TargetGroups({name_of(State)}, {name_of(Drafter)})
        self._make()

    def inputs(self) -> dict[str, Tensor]:
        """The requests' lengths and blocks."""
        return {"lengths": self.lengths, "tables": self.tables}

    def poison(self) -> None:
        """Fill every group's buffer."""
        for groups in (*self.runner.attn_groups, *self.runner.speculator.attn_groups):
            for group in groups:
                group.buffer.fill_(POISON)

    def reference(self) -> dict[str, Tensor]:
        """For all groups."""
        return self._one(Runner.prepare_attn)

    def fast(self) -> dict[str, Tensor]:
        """For those that the optimization leaves."""
        return self._one(self.switch.stepping(Runner.prepare_attn))

    def next(self) -> None:
        """Requests grow, and groups are made anew where that is due."""
        self.lengths = self.lengths + self.load.accepted + 1
        self.number += 1
        if self.number in self.load.renewed:
            self._make()

    def _make(self) -> None:
        state, drafter = self.kinds[0](), self.kinds[1](self._groups("d"))
        self.runner = Runner(self._groups("td"), state, drafter, self.load.config)

    def _groups(self, letters: str) -> list[list[Group]]:
        """Those that have layers of these letters, with these layers alone."""
        found: list[list[Group]] = []
        for cache, groups in enumerate(self.layout):
            named = [
                [f"{one}{cache}.{at}.{place}" for place, one in enumerate(group)] for at, group in enumerate(groups)
            ]
            chosen = [[name for name in names if name[0] in letters] for names in named]
            found.append([Group(names, self.rows, self.blocks, self.device) for names in chosen if names])
        return found

    def _one(self, step: Any) -> dict[str, Tensor]:
        """What the target's layers and the drafter's find in their own steps."""
        tokens, runner = self.load.steps[self.number % len(self.load.steps)], self.runner
        starts = torch.tensor([0, *tokens], device=self.device).cumsum(0)
        batch = starts, self.lengths[: len(starts)]
        if self.number in self.load.captured:
            runner.model_state.prepare_attn(batch, self.tables, runner.attn_groups, for_capture=True)
        tables = step(runner, self.tables)
        found = runner.model_state.prepare_attn(batch, tables, runner.attn_groups)
        target = {name: made.clone() for name, made in found.items() if name[0] == "t"}
        drafts = runner.speculator.propose(batch, self.tables)
        return target | {name: made.clone() for name, made in drafts.items()}


BESIDE: Layout = (("ttt",), ("dd",))
"""A KV cache of each one's own."""


def cases() -> list[Case]:
    """Caches and groups of one's own and of both, steps of every kind, and what the drafter's groups are needed for."""

    def case(
        name: str,
        layout: Layout = BESIDE,
        steps: tuple[tuple[int, ...], ...] = ((4, 4, 4),),
        state: type[State] = State,
        drafter: type[Drafter] = Drafter,
        count: int = 4,
        **more: Any,
    ) -> Case:
        return Case(name, lambda place: Step(layout, Load(steps, **more), place, (state, drafter)), count)

    return [
        case("all accepted", accepted=DRAFTS),
        case("none accepted", accepted=0),
        case("idle requests", steps=((4, 0, 4), (0, 4, 4))),
        case("every row idle", steps=((0, 0, 0),)),
        case("an empty batch", steps=((),)),
        case("odd shapes", (("t",), ("ddd",), ("tt", "t")), ((1, 6, 2, 5, 3), (40,))),
        case("capacity reached", steps=((4,) * 32,)),
        case("one cache, a group each", (("tt", "d"),)),
        case("one group of both", (("td",), ("t",))),
        case("the drafter's first, and in between", (("d",), ("t", "d"), ("d", "dd"), ("ttt",))),
        case("layers of the drafter alone", (("dd",),)),
        case("a graph is captured in between", captured=frozenset({2})),
        case("all groups are made anew", renewed=frozenset({2}), count=6),
        case("a KV connector", config={"kv_transfer_config": "one"}),
        case("microbatches", config={"use_ubatching": True}),
        case("a context that is spread", config={"decode_context_parallel_size": 2}),
        case("a strange state", state=OwnState),
        case("a strange drafter", drafter=OwnDrafter),
        case("20 steps", (("tt", "d"), ("d",), ("t",)), ((4, 4), (30, 4, 4), (4,)), renewed=frozenset({9}), count=20),
    ]
