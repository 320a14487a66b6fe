"""What a chain of greedy tokens must be, request by request and step by step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.cases import Case, Place
from optimized.markov_chain.chain import Chosen, Head, draft, empty_keys


@dataclass(frozen=True)
class Shape:
    """B requests, K steps, and a Markov head of that rank over that many tokens, whose rows are longer by `padding`."""

    batch: int = 3
    steps: int = 3
    vocab: int = 150
    rank: int = 8
    padding: int = 0


class Chain:
    """Blocks whose first tokens are the last ones of the blocks before.

    `whole` numbers add up to the same in any order and any dtype, and give many equal scores; others are spread, and
    one token of each step stands out by more than rounding can. `odd` scores are put among the logits.
    """

    def __init__(self, shape: Shape, first: tuple[int, ...], whole: bool, odd: tuple[float, ...], place: Place) -> None:
        self.shape, self.whole, self.odd, self.place = shape, whole, odd, place
        self.random = torch.Generator().manual_seed(9)
        words = shape.vocab + shape.padding
        self.embedding = self._numbers(1, words, shape.rank)
        self.projection = self._numbers(shape.rank**-0.5, words, shape.rank)
        repeated = [first[row % len(first)] for row in range(shape.batch)]
        self.first = torch.tensor(repeated, dtype=torch.int64, device=place.device)
        self.keys = empty_keys(shape.steps, shape.batch, place.device)
        tokens = torch.zeros(shape.batch, shape.steps, dtype=torch.int64, device=place.device)
        self.out = Chosen(tokens, torch.zeros(shape.batch, shape.steps, shape.vocab, dtype=self.dtype).to(place.device))
        self._draw()

    @property
    def dtype(self) -> torch.dtype:
        """Of the logits and the head."""
        found: torch.dtype = getattr(torch, self.place.dtype)
        return found

    def inputs(self) -> dict[str, Tensor]:
        """The logits, the tokens before the first step, and the head."""
        return {name: getattr(self, name) for name in ("logits", "first", "embedding", "projection")}

    def poison(self) -> None:
        """Fill the results, and the keys with one that no score exceeds."""
        assert self.out.refined is not None
        self.out.refined.fill_(float("nan"))
        self.out.tokens.fill_(-(2**40))
        self.keys.fill_(2**63 - 1)

    def reference(self) -> dict[str, Tensor]:
        """Each request by itself, its bias in float64."""
        tokens, refined = torch.empty_like(self.out.tokens), torch.empty_like(self.logits)
        projection = self.projection[: self.shape.vocab].double()
        for row, token in enumerate(self.first.tolist()):
            for step in range(self.shape.steps):
                bias = (projection @ self.embedding[token].double()).to(self.dtype)
                refined[row, step] = self.logits[row, step] + bias
                token = int(refined[row, step].argmax())
                tokens[row, step] = token
        return self._results(tokens, refined)

    def fast(self) -> dict[str, Tensor]:
        """All requests at once, one kernel a step."""
        draft(self.logits, self.first, Head(self.embedding, self.projection), self.keys, self.out)
        assert self.out.refined is not None
        return self._results(self.out.tokens.clone(), self.out.refined.clone())

    def next(self) -> None:
        """Other logits, after the tokens that were chosen."""
        self._draw()

    def _results(self, tokens: Tensor, refined: Tensor) -> dict[str, Tensor]:
        self.last = tokens[:, -1]
        return {"tokens": tokens, "refined": refined}

    def _numbers(self, size: float, *shape: int) -> Tensor:
        if self.whole:
            drawn = torch.randint(-1, 2, shape, generator=self.random).double()
        else:
            drawn = size * torch.randn(shape, generator=self.random, dtype=torch.float64)
        return drawn.to(self.place.device, self.dtype)

    def _draw(self) -> None:
        shape = self.shape
        if hasattr(self, "last"):
            self.first = self.last.clone()
        drawn = self._numbers(1, shape.batch, shape.steps, shape.vocab + shape.padding)
        self.logits = drawn[..., : shape.vocab]
        if not self.whole:
            places = torch.randint(shape.vocab, (shape.batch, shape.steps, 1), generator=self.random)
            self.logits.scatter_(2, places.to(drawn.device), 20.0)
        for score in self.odd:
            places = torch.randint(shape.vocab, (shape.batch, shape.steps, 3), generator=self.random)
            self.logits.scatter_(2, places.to(drawn.device), score)


def cases() -> list[Case]:
    """Whole numbers with many equal scores, spread ones, odd shapes, infinite scores, and 20 steps."""
    small, plain = Shape(), (7, 2, 140)

    def case(
        name: str,
        shape: Shape = small,
        first: tuple[int, ...] = plain,
        whole: bool = True,
        odd: tuple[float, ...] = (),
        steps: int = 1,
    ) -> Case:
        return Case(name, lambda place: Chain(shape, first, whole, odd, place), steps)

    return [
        case("all accepted, spread scores", Shape(4, 7), whole=False),
        case("none accepted, one newest token for all", first=(5,)),
        case("idle rows", Shape(5), first=(0, 9, 0)),
        case("every row idle", first=(0,)),
        case("odd shapes", Shape(7, 2, 261, 5), first=(260, 0)),
        case("odd shapes, one step of one request", Shape(1, 1, 1, 1), first=(0,)),
        case("longer rows than tokens", Shape(2, 2, 61, 16, padding=3)),
        case("more requests than a program takes", Shape(65, 1, 40, 3), first=(3, 39, 8)),
        case("capacity reached, the last tile full", Shape(2, 15, 256, 16), first=(255,)),
        case("wide rank, spread scores", Shape(2, 2, 45, 256), first=(44, 1), whole=False),
        case("infinities", odd=(float("inf"), float("-inf"))),
        case("nothing but minus infinity", Shape(2, 2, 3), first=(1,), odd=(float("-inf"),) * 9),
        case("20 steps", Shape(2, 3, 131), first=(1, 130), steps=20),
    ]
