"""What speculation earns: tokens accepted, time per token, the drafter's share, and the length that breaks even."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzers.per_cycle import STEADY, Ints, PerCycle, chosen_cycles, measure, periods
from analyzers.statistics import blocks_of
from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError
from spantrace.recording import Recording
from spantrace.spans import Kind, Track


@dataclass(frozen=True)
class Acceptance:
    """Counts over all chosen cycles; position j is the j-th draft token of a request.

    `length` is tokens per request and cycle that verified drafts (accepted plus the target's own one), `rate` accepted
    over drafted, `per_position` the same for each position, `histogram[a]` requests that accepted exactly a drafts.
    A draft is accepted only after all before it, so `histogram[a]` = accepted at a-1 less accepted at a, also
    where requests had fewer drafts than K; whether a request accepted all it had is then not in it.
    """

    positions: int
    drafting: int
    drafted: int
    accepted: int
    length: float
    rate: float
    per_position: tuple[float | None, ...]
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class Economics:
    """`acceptance` is None without speculation, a time or share None where it is unknown; all times in ms.

    `ms_per_token` is what one request waits for a token on average, `ms_per_emitted` and `ms_per_accepted` the server's
    period over all its requests' emitted, or accepted draft, tokens. `tokens_per_request` counts per cycle.
    `break_even_length` is the tokens per request and cycle at which speculation is as fast as the baseline.
    """

    acceptance: Acceptance | None
    tokens_per_request: float | None
    ms_per_token: float | None
    ms_per_emitted: float | None
    ms_per_accepted: float | None
    drafter_host_share: float | None
    drafter_gpu_share: float | None
    baseline_ms_per_token: float | None
    break_even_length: float | None

    @property
    def tokens_per_s(self) -> float | None:
        """What the server emits in a second of cycles at the median period, None where that is unknown."""
        return 1e3 / self.ms_per_emitted if self.ms_per_emitted else None

    @property
    def speedup(self) -> float | None:
        """Tokens per second over the baseline's, None without one."""
        if self.baseline_ms_per_token is None or not self.ms_per_token:
            return None
        return self.baseline_ms_per_token / self.ms_per_token


def economics(recording: Recording, baseline: Recording | None = None, kinds: frozenset[Kind] = STEADY) -> Economics:
    """Price the tokens of the cycles of `kinds`; a `baseline` that speculates, or at another batch, is an error."""
    cycle = measure(recording, kinds)
    which = np.flatnonzero(cycle.chosen)
    batch, accepted, period = _totals(recording, which)
    emitted, (token, each) = batch + accepted, _waits(recording, which)
    base = None if baseline is None else _baseline_ms(recording, baseline, kinds)
    host, gpu = _drafter(cycle)
    return Economics(
        acceptance=_acceptance(recording, kinds),
        tokens_per_request=emitted / batch if batch else None,
        ms_per_token=token,
        ms_per_emitted=each,
        ms_per_accepted=None if period is None or not accepted else period * len(which) / accepted,
        drafter_host_share=host,
        drafter_gpu_share=gpu,
        baseline_ms_per_token=base,
        break_even_length=None if base is None or period is None else period / base,
    )


def own_load(recording: Recording, *, blocks: bool = False) -> list[dict[str, float]]:
    """What the steady cycles say of a load that nobody measured from outside, of all or of each block of them."""
    which = np.flatnonzero(chosen_cycles(recording, STEADY))
    found = []
    for part in np.array_split(which, blocks_of(len(which)) if blocks else 1):
        token, each = _waits(recording, part)
        found.append({} if token is None or each is None else {"itl_ms": token, "tokens_per_s": 1e3 / each})
    return found


def _waits(recording: Recording, which: Ints) -> tuple[float | None, float | None]:
    """What a request waits for a token, and the server's period over the tokens of all its requests, in ms."""
    batch, accepted, period = _totals(recording, which)
    emitted = batch + accepted
    if period is None or not emitted:
        return None, None
    return period * batch / emitted, period * len(which) / emitted


def _acceptance(recording: Recording, kinds: frozenset[Kind]) -> Acceptance | None:
    cycles, chosen = recording.cycles, chosen_cycles(recording, kinds)
    drafted = cycles.drafted[chosen].sum(axis=0, dtype=np.int64)
    accepted = cycles.accepted[chosen].sum(axis=0, dtype=np.int64)
    drafting = int(cycles.drafting[chosen].sum())
    if not len(drafted) or not drafting:
        return None
    at_least = np.concatenate([[drafting], accepted, [0]])
    return Acceptance(
        positions=len(drafted),
        drafting=drafting,
        drafted=int(drafted.sum()),
        accepted=int(accepted.sum()),
        length=1 + float(accepted.sum()) / drafting,
        rate=float(accepted.sum()) / max(int(drafted.sum()), 1),
        per_position=tuple(float(a) / int(d) if d else None for a, d in zip(accepted, drafted, strict=True)),
        histogram=tuple(int(count) for count in at_least[:-1] - at_least[1:]),
    )


def _totals(recording: Recording, which: Ints) -> tuple[int, int, float | None]:
    """Requests and accepted drafts summed over some cycles, given by their indices, and their median period in ms.

    Another profiler's trace does not tell what was accepted, so that how many tokens its requests got is not known: 0.
    """
    known = periods(recording)[which]
    known = known[known > 0]
    period = float(np.median(known)) / 1e6 if len(known) else None
    told = not recording.header.get("trace")
    batch = int(recording.cycles.batch[which].sum()) if told else 0
    return batch, int(recording.cycles.accepted[which].sum()), period


def _baseline_ms(recording: Recording, baseline: Recording, kinds: frozenset[Kind]) -> float:
    """The baseline's steady period: without speculation every request gets one token a cycle."""
    if int(baseline.cycles.drafting.sum()):
        raise SpantraceError("the baseline was recorded with speculation; record the server without a drafter")
    period = _totals(baseline, np.flatnonzero(chosen_cycles(baseline, STEADY)))[2]
    if period is None:
        raise SpantraceError("the baseline has no steady decode cycle; record it under load")
    sizes = [float(np.median(side.cycles.batch[chosen_cycles(side, STEADY)])) for side in (baseline, recording)]
    if sizes[0] != sizes[1]:
        raise SpantraceError(
            f"the baseline ran at batch {sizes[0]:g}, the recording at {sizes[1]:g}; record both at one batch",
            EXIT_NOT_COMPARABLE,
        )
    return period


def _drafter(cycle: PerCycle) -> tuple[float | None, float | None]:
    found = [cycle.cost("draft.propose", track) for track in (Track.HOST, Track.GPU)]
    host, gpu = (None if one is None else one.share for one in found)
    return host, gpu
