"""Judges an optimization on a case: every output and carried state against the reference, bit by bit and by size.

`spantrace verify`, the tests and the self-test of PINNED optimizations all judge by `judge`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from optimized.cases import Case, Place, Problem
from optimized.optimization import Agreement, Optimization
from spantrace.errors import SpantraceError

TOLERANCES = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}
"""t of |got - wanted| <= t (1 + |wanted|), between computations that batch the same rows differently."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Judgement:
    """How the results of all steps of one case compare with the reference's.

    Of `elements` in `tensors` results, `unequal` differ in some bit (two NaN count as equal) and `outside` differ by
    more than the tier allows, which is any bit unless it is TOLERANT. `error` is the largest difference,
    `used` the largest share of the tolerance, None where there is none. `faults` are what else is wrong, in words.
    """

    optimization: str
    case: str
    tier: Agreement
    place: Place
    steps: int
    tensors: int
    elements: int
    unequal: int
    outside: int
    error: float
    tolerance: float | None
    used: float | None
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the implementation agrees, as far as its tier demands."""
        return not self.outside and not self.faults


def choose_place(device: str | None = None, dtype: str | None = None) -> Place:
    """A place of this machine: a GPU if there is one, and bfloat16 there, float32 on a CPU, unless told otherwise."""
    found = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if found == "cuda" and not torch.cuda.is_available():
        raise SpantraceError("PyTorch finds no CUDA device here; use --device cpu")
    return Place(found, dtype or ("bfloat16" if found == "cuda" else "float32"))


def judge(optimization: Optimization, case: Case, place: Place) -> Judgement:
    """Carry the case through all its steps, three times in parallel.

    The reference computes, and the implementation does twice, once with its output buffers poisoned before each step:
    what a step leaves unwritten, or reads of them, shows. Inputs must stay as they were. A step that raises is a fault.
    """
    place = case.at(place)
    tally = _Tally(TOLERANCES[place.dtype] if optimization.agreement is Agreement.TOLERANT else None)
    try:
        problems = wanted, got, again = case.make(place), case.make(place), case.make(place)
        for _ in range(case.steps):
            got.poison()
            tally.compare(wanted, got, again)
            for problem in problems:
                problem.next()
    except Exception as error:
        tally.fault(f"{type(error).__name__}: {' '.join(str(error).split())}")
    return tally.judgement(optimization, case, place)


class _Tally:
    """Adds up what the steps of one case show."""

    def __init__(self, tolerance: float | None) -> None:
        self.tolerance = tolerance
        self.tensors = self.elements = self.unequal = self.outside = 0
        self.error = self.used = 0.0
        self.devices: set[str] = set()
        self.faults: dict[str, None] = {}

    def compare(self, wanted: Problem, got: Problem, again: Problem) -> None:
        """One step of each."""
        given = {name: value.clone() for name, value in got.inputs().items()}
        right, results, repeated = wanted.reference(), got.fast(), again.fast()
        for name, value in given.items():
            if _unequal(got.inputs()[name], value).any():
                self.fault(f"the input {name} was changed")
        for name in right.keys() ^ results.keys():
            self.fault(f"{name} is given by one side only")
        for name in [name for name in right if name in results]:
            self._measure(name, results[name], right[name])
            if not _same_kind(results[name], repeated[name]) or _unequal(results[name], repeated[name]).any():
                self.fault(f"{name} shows the poison of the buffers, or differs from run to run")

    def judgement(self, optimization: Optimization, case: Case, place: Place) -> Judgement:
        """All of it."""
        if self.devices and place.device not in self.devices:
            self.fault(f"nothing was computed on {place.device}")
        if not self.elements and not self.faults:
            self.fault("there was nothing to compare")
        return Judgement(
            optimization.id,
            case.name,
            optimization.agreement,
            place,
            case.steps,
            self.tensors,
            self.elements,
            self.unequal,
            self.outside,
            self.error,
            self.tolerance,
            self.used if self.tolerance is not None else None,
            tuple(self.faults),
        )

    def _measure(self, name: str, got: Tensor, wanted: Tensor) -> None:
        self.tensors += 1
        self.elements += wanted.numel()
        self.devices.add(got.device.type)
        if not _same_kind(got, wanted):
            self.fault(f"{name} is {_kind(got)}, not {_kind(wanted)}")
            return
        if not wanted.numel():
            return
        unequal = _unequal(got, wanted)
        error = (got.double() - wanted.double()).abs().masked_fill(~unequal, 0.0).nan_to_num(torch.inf, torch.inf)
        self.unequal += int(unequal.sum())
        self.error = max(self.error, float(error.max()))
        if self.tolerance is None:
            self.outside += int(unequal.sum())
            return
        used = (error / (self.tolerance * (1 + wanted.double().abs()))).nan_to_num(torch.inf)
        self.outside += int((used > 1).sum())
        self.used = max(self.used, float(used.max()))

    def fault(self, sentence: str) -> None:
        """Note what is wrong, once."""
        self.faults[sentence] = None


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _same_kind(one: Tensor, other: Tensor) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape)


def _unequal(one: Tensor, other: Tensor) -> Tensor:
    """Where two tensors of one kind differ in some bit; the bits of a NaN say nothing."""
    if not one.is_floating_point():
        return one != other
    bits = _BITS[one.element_size()]
    return (one.view(bits) != other.view(bits)) & ~(one.isnan() & other.isnan())
