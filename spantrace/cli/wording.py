"""Sentences about recordings: the configuration line, the verdict, economics and trust as a person reads them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spantrace.cli.traces import trace_line
from spantrace.legible import legible
from spantrace.ranks import ranks
from spantrace.spans import GraphMode, Kind
from spantrace.tables import Document, Fact, Format, Headline, many, number, percent

if TYPE_CHECKING:
    from analyzers.co_saturation import CoSaturation
    from analyzers.economics import Acceptance, Economics
    from analyzers.statistics import Cost
    from analyzers.trust import Trust
    from spantrace.recording import Recording

BORDER = 0.01
_PARALLEL = {"tensor_parallel": "TP", "pipeline_parallel": "PP", "data_parallel": "DP"}
DOUBT_STYLES = ("yellow", "red")
"""Of a doubt, and of one that says not to quote the figures."""
_STYLES = {"HOST-BOUND": "bold red", "GPU-BOUND": "bold yellow", "CO-SATURATED": "bold green"}


def kinds_of(name: str) -> frozenset[Kind]:
    """The kinds that `--kind NAME` chooses: one of them, or all that ran a step."""
    if name == "all":
        return frozenset(Kind) - {Kind.EMPTY, Kind.GHOST, Kind.WARMUP, Kind.DELAYED}
    return frozenset({Kind[name.upper().replace("-", "_")]})


def kind_names() -> list[str]:
    """What `--kind` accepts."""
    return [*(kind.name.lower().replace("_", "-") for kind in Kind), "all"]


def warn(document: Document, form: Format) -> None:
    """Say the doubts on stderr where the format has no place for them to be read."""
    if form in (Format.JSON, Format.CSV):
        for fact in document.facts:
            if fact.style in DOUBT_STYLES:
                print(f"spantrace: {fact.label}: {legible(' '.join(fact.parts))}", file=sys.stderr)


def configuration_line(recording: Recording, kinds: frozenset[Kind]) -> tuple[str, ...]:
    """Model and drafter, vLLM and runner, GPU and its clock, batch: what the figures are of."""
    import numpy as np

    header, cycles = recording.header, recording.cycles
    server = header.get("server") or {}
    chosen = np.isin(cycles.kind, [int(kind) for kind in kinds])
    if header.get("trace"):
        return trace_line(header, int(min(cycles.batch[chosen], default=0)), int(cycles.batch[chosen].max(initial=0)))
    graphs = _graphs(cycles.graph_mode[chosen].tolist())
    if engine := server.get("engine"):
        stack = [str(engine), f"torch {server.get('torch')}", str(server.get("dtype"))]
    else:
        stack = [f"vLLM {server.get('vllm') or 'unknown'}"]
    stack += [f"{server['runner']} runner"] if server.get("runner") else []
    stack += [f"{graphs} graphs"] if graphs else []
    stack += [f"{short} {size}" for key, short in _PARALLEL.items() if (size := server.get(key) or 1) > 1]
    batch = cycles.batch[chosen]
    sizes = f"batch {batch.min()}" if len(batch) else "no cycle"
    if len(batch) and batch.max() > batch.min():
        sizes += f" to {batch.max()}, median {np.median(batch):g}"
    which = [f"rank {header['rank']} of {len(ranks(header))}"] if "rank" in header else []
    return (_model(server), ", ".join(stack), device(header), sizes, *which)


def _model(server: dict[str, object]) -> str:
    name, drafter = _basename(server.get("model") or "unknown model"), _basename(server.get("drafter") or "")
    if not server.get("method"):
        return f"{name}, no speculation"
    by = f" {drafter}" if drafter and drafter not in (name, server["method"]) else ""
    return f"{name} + {server['method']}{by} K={server.get('num_speculative_tokens')}"


def _basename(path: object) -> str:
    return str(path).rstrip("/").rsplit("/", 1)[-1]


def _graphs(modes: Sequence[int]) -> str:
    names = [GraphMode(mode).name for mode in sorted(set(modes))]
    known = [name.lower() if name == "NONE" else name for name in names if name != "UNKNOWN"]
    return "/".join(known).replace("none", "no")


def device(header: dict[str, object]) -> str:
    """The GPU with its clock and its company, or the CPU where there is none."""
    gpu, host = header.get("gpu"), header.get("host")
    if not isinstance(gpu, dict):
        cpu = host.get("cpu") if isinstance(host, dict) else None
        return f"no GPU, {cpu or 'unknown CPU'}"
    others = gpu.get("other_processes")
    shared = f"{many(len(others or ()), 'other process', 'other processes')} on it"
    company = [] if others is None else [shared if others else "alone"]
    clock = [f"{gpu['sm_mhz']:g} MHz"] if gpu.get("sm_mhz") else []
    return ", ".join([str(gpu.get("name")).removeprefix("NVIDIA "), *clock, *company])


def is_synthetic(recording: Recording) -> bool:
    """Whether the server was told what to accept."""
    return (recording.header.get("server") or {}).get("rejection_sample_method") == "synthetic"


def cycles_line(trust: Trust, recording: Recording, kinds: frozenset[Kind]) -> tuple[str, ...]:
    """How many cycles of which kind the figures are of, and how many are left out of them."""
    kind = next(iter(kinds)).name.lower().replace("_", " ") if len(kinds) == 1 else ""
    name = "steady decode cycle" if kind == "steady" else f"{kind} cycle".strip()
    left = ", ".join(f"{count:,} {what}" for what, count in trust.left_out.items())
    counted = many(trust.cycles, name) + ("" if kind else " of all kinds") + (f" (left out: {left})" if left else "")
    created = recorded(recording)
    return (counted, *([f"recorded {created}"] if created else []))


def recorded(recording: Recording) -> str:
    """When it was recorded, to the minute; "" where it does not say."""
    return str(recording.header.get("created") or "")[:16].replace("T", " ")


def verdict(found: CoSaturation) -> Headline:
    """Who bounds the cycle in one word, the numbers, what less work can win, the intervals and the threshold."""
    from analyzers.co_saturation import BUSY

    word = found.verdict.value.upper()
    measured = [("period", found.period), ("host", found.host if found.host_known else None), ("GPU", found.gpu)]
    shown = ", ".join(f"{name} {_interval(cost)}" for name, cost in measured if cost is not None)
    sentences = [_work(found), *_wins(found), f"95% intervals of the medians: {shown} ms."]
    if found.gpu is not None and found.host_known:
        sentences[-1] += f" A side is saturated from {BUSY:.0%} of the period."
        if not found.full_graphs and found.kernels is None:
            sentences.append(
                "Without FULL graphs a GPU span includes the gaps between launches: the GPU may be less busy than this."
            )
    return Headline(word, tuple(sentences), _STYLES.get(word, "bold cyan"))


def _work(found: CoSaturation) -> str:
    period, works = number(found.period.ms), f"works {number(found.host.ms)} of"
    inside = [f"{one.role} {number(one.work.ms)}" for one in found.processes if len(found.processes) > 1]
    if found.unattributed.share >= 0.05:
        inside.append(f"{number(found.unattributed.ms)} more in no span")
    detail = f" ({', '.join(inside)})" if inside else ""
    if found.gpu is None:
        return (
            f"The host {works} {period} ms{detail} and only waits for {number(found.wait.ms)} ms. "
            "Without a GPU track there is no verdict on who bounds the cycle."
        )
    most = "" if found.kernels else "at most "
    gpu = f"is busy {most}{number(found.gpu.ms)} ms ({_near(found.gpu.share)})"
    gpu += f", {number(found.kernels.ms)} of it in kernels" if found.kernels else ""
    if not found.host_known:
        return f"Of {period} ms the GPU {gpu}. Without a span of the host there is no verdict on who bounds the cycle."
    between = f", {number(found.between.ms)} ms pass between cycles" if found.between.share >= 0.05 else ""
    waits = f"waits {number(found.wait.ms)} ms for the GPU"
    return f"The host {works} {period} ms{detail} and {waits}, which {gpu}{between}."


def _near(share: float) -> str:
    """A share as percent, with a decimal and a word where it is about the one from which a side is saturated."""
    from analyzers.co_saturation import BUSY

    return f"{share:.1%}, borderline" if abs(share - BUSY) < BORDER else percent(share)


def _wins(found: CoSaturation) -> list[str]:
    if found.gpu is None or found.host_win is None or found.gpu_win is None:
        return []
    rest = found.period.ms - found.wait.ms
    return [
        f"1 ms less host work {_win(found.host_win, found, f'until the GPU binds at {number(found.gpu.ms)} ms')}. "
        f"1 ms less GPU work {_win(found.gpu_win, found, f'until the host binds at {number(rest)} ms')}."
    ]


def _win(win: float, found: CoSaturation, until: str) -> str:
    from analyzers.co_saturation import NOTHING

    return "wins nothing" if win < NOTHING * found.period.ms else f"can win up to {win:.2g} ms, {until}"


def _interval(cost: Cost) -> str:
    low, high = cost.median.low, cost.median.high
    if low is None or high is None:
        return f"{cost.ms:.3f} (too few cycles)"
    return f"{low:.3f} .. {high:.3f}"


def speculation(found: Economics, synthetic: bool = False) -> Fact:
    """What speculation earns, or that there is none; `synthetic` where the server was told what to accept."""
    token = f"{number(found.ms_per_token)} ms per token" if found.ms_per_token is not None else "ms per token unknown"
    got = found.acceptance
    if got is None:
        return Fact("speculation", ("none", token))
    counts = " ".join(f"{count:,}" for count in got.histogram)
    parts = [
        *acceptance(got, synthetic),
        f"requests that accepted 0 to {got.positions}: {counts}",
        token + (f", {number(found.ms_per_accepted)} per accepted draft" if found.ms_per_accepted else ""),
    ]
    return Fact("speculation", (*parts, *_drafter(found), _break_even(found)))


def acceptance(got: Acceptance, synthetic: bool) -> list[str]:
    """How many of its drafts a request accepts in a cycle, in all and at each position."""
    positions = " ".join("-" if rate is None else f"{rate:.2f}" for rate in got.per_position)
    per_request = got.accepted / got.drafting, got.drafted / got.drafting
    rate = percent(got.rate) + (", synthetic" if synthetic else "")
    return [
        f"accepted {per_request[0]:.2f} of {per_request[1]:.2g} drafted ({rate}), length {got.length:.2f}",
        f"per position {positions}",
    ]


def _drafter(found: Economics) -> list[str]:
    sides = [("GPU", found.drafter_gpu_share), ("host", found.drafter_host_share)]
    shares = [f"{percent(share)} on the {side}" for side, share in sides if share is not None]
    return [f"the drafter's part of the cycle: {', '.join(shares)}"] if shares else []


def _break_even(found: Economics) -> str:
    if found.break_even_length is None or found.baseline_ms_per_token is None:
        return "break-even length unknown (--baseline)"
    gain = f", {found.speedup:.2f}x its tokens per second" if found.speedup else ""
    return (
        f"break-even length {found.break_even_length:.2f} "
        f"(baseline {number(found.baseline_ms_per_token)} ms per token{gain})"
    )
