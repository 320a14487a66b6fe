"""What each optimization does to the built-in cycle on a GPU, alone and together.

For each batch and context the weights are made once; then short windows of stock code, of each optimization (or of each
set that --arms names) alone and of all of them take turns in one process, every second round in reverse order, so that
a drift hits all arms alike. The drafter's own tokens are verified, of which a random one gets none right: the time of a
cycle does not depend on it, so tokens/s are stated at a length. Tables go to --out after each place. Without a GPU:
`--geometry tiny --device cpu --dtype float32 --batches 1,8 --contexts 256`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import optimized
from analyzers.statistics import shift
from optimized.reference_cycle.cycle import Cycle, random_prompts
from optimized.reference_cycle.geometry import GEOMETRIES
from optimized.reference_cycle.load import Load
from optimized.reference_cycle.settings import Settings

STOCK, ALL, EACH = "stock", "all", "each"
WARMUP, FEWEST, MOST = 3, 8, 40
"""Cycles of a window that are left out, and the least and the most that are measured."""


@dataclass
class Arm:
    """One configuration at one batch: its windows of cycle times in ns, and what its optimizations counted."""

    name: str
    ids: list[str]
    windows: list[list[int]] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    turned_away: dict[str, int] = field(default_factory=dict)

    def count(self, counts: list[dict[str, Any]]) -> None:
        """Add what was counted in a window."""
        for one in counts:
            self.hits[one["id"]] = self.hits.get(one["id"], 0) + one["hits"]
            for reason, number in one["reasons"].items():
                self.turned_away[reason] = self.turned_away.get(reason, 0) + number

    def median_ms(self) -> float:
        """The median of the windows' medians."""
        return float(np.median([np.median(window) for window in self.windows])) / 1e6


def arms(settings: Settings, wanted: str) -> list[Arm]:
    """Stock, each optimization that fires with this drafter alone (or what is wanted instead), and all of them."""
    every = [name for name in optimized.select(ALL) if settings.drafter in optimized.discover()[name].drafters]
    alone = every if wanted == EACH else wanted.split(",")
    return [Arm(STOCK, []), *(Arm(name, optimized.select(name)) for name in alone), Arm(ALL, every)]


def measure(settings: Settings, found: list[Arm], prompt: int, rounds: int, seconds: float) -> list[Arm]:
    """Every arm's windows at one batch and context, of which `prompt` tokens are prefilled."""
    began = time.monotonic()
    cycle = Cycle(settings)
    load = Load(cycle, random_prompts(settings, settings.batch, prompt), settings.context - prompt)
    _wait(settings)
    print(f"batch {settings.batch}: weights and caches in {time.monotonic() - began:.1f} s", flush=True)
    load.step()
    _wait(settings)
    print(f"batch {settings.batch}: prompts prefilled after {time.monotonic() - began:.1f} s", flush=True)
    for turn in range(rounds):
        for arm in found if turn % 2 == 0 else reversed(found):
            _window(cycle, load, arm, seconds)
        medians = ", ".join(f"{arm.name} {np.median(arm.windows[-1]) / 1e6:.2f}" for arm in found)
        print(f"batch {settings.batch}: round {turn + 1} of {rounds}, ms: {medians}", flush=True)
    return found


def _window(cycle: Cycle, load: Load, arm: Arm, seconds: float) -> None:
    """One window of one arm; the first cycles capture the graphs anew."""
    optimized.apply(arm.ids)
    cycle.forget_graphs()
    try:
        for _ in range(WARMUP):
            load.step()
        periods: list[int] = []
        spent, last = 0, time.perf_counter_ns()
        while len(periods) < FEWEST or (spent < seconds * 1e9 and len(periods) < MOST):
            prefilled = load.step().prefilled
            now = time.perf_counter_ns()
            if not prefilled:
                periods.append(now - last)
            spent, last = spent + now - last, now
        arm.windows.append(periods)
    finally:
        arm.count(optimized.revert())


def _wait(settings: Settings) -> None:
    if settings.device == "cuda":
        torch.cuda.synchronize()


def row(arm: Arm, stock: Arm, settings: Settings, length: float) -> dict[str, Any]:
    """One line of the table."""
    windows, base = ([np.array(one, dtype=np.float64) for one in side.windows] for side in (arm, stock))
    against = shift(base, windows) if arm is not stock else None
    ms = arm.median_ms()
    return {
        "batch": settings.batch,
        "context": settings.context,
        "arm": arm.name,
        "cycle_ms": ms,
        "ratio": against.ratio if against else None,
        "low": against.low if against else None,
        "high": against.high if against else None,
        "p": against.p if against else None,
        "saved_ms": stock.median_ms() - ms,
        "tokens_per_s": settings.batch * length / ms * 1e3,
        "cycles": sum(len(window) for window in arm.windows),
        "windows": len(arm.windows),
        "hits": arm.hits,
        "turned_away": arm.turned_away,
    }


def markdown(rows: list[dict[str, Any]], heading: str, length: float) -> str:
    """The table as it goes into a README."""
    lines = [
        heading,
        "",
        "| batch | context | optimizations | cycle ms | saved ms | of stock | 95% interval "
        f"| tokens/s at {length:g} a cycle | hits |",
        "|--:|--:|:--|--:|--:|--:|:--|--:|:--|",
    ]
    for one in rows:
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.3f}"
        interval = "" if one["low"] is None else f"{one['low']:.3f} .. {one['high']:.3f}"
        hits = ", ".join(
            f"{count:,}" if len(one["hits"]) == 1 else f"{n} {count:,}" for n, count in one["hits"].items()
        )
        lines.append(
            f"| {one['batch']} | {one['context']} | {one['arm']} | {one['cycle_ms']:.3f} | {one['saved_ms']:.3f} "
            f"| {ratio} | {interval} | "
            f"{one['tokens_per_s']:,.0f} | {hits} |"
        )
    return "\n".join(lines) + "\n"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--geometry", default="qwen3-8b", choices=GEOMETRIES)
    parser.add_argument("--layers", type=int, help="layers of the target, where the whole one does not fit")
    parser.add_argument("--drafter", default="dflash", choices=("dflash", "dspark", "eagle"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batches", default="1,8,32,64", type=_numbers)
    parser.add_argument("--contexts", default="2048", type=_numbers)
    parser.add_argument(
        "--prompt",
        type=int,
        help="tokens of a context that are prefilled (default: half); stock attends to the whole table, however short",
    )
    parser.add_argument("--arms", default=EACH, help="ids and sets, each an arm of its own")
    parser.add_argument("--draft-length", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=4, help="windows of each arm; an interval takes 4")
    parser.add_argument(
        "--seconds", type=float, default=0.6, help="of one window, in which 8 to 40 cycles are measured"
    )
    parser.add_argument("--length", type=float, default=3.6, help="tokens a request and cycle, for tokens/s")
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def main() -> None:
    """Measure place by place and write what there is after each."""
    chosen = options()
    geometry = GEOMETRIES[chosen.geometry].scaled(layers=chosen.layers)
    same = {name: getattr(chosen, name) for name in ("drafter", "draft_length", "device", "dtype")}
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    heading = (
        f"{geometry.name} ({geometry.layers} layers) + {chosen.drafter} K={chosen.draft_length}, {chosen.dtype}, "
        f"torch {torch.__version__}, {device}; {chosen.rounds} windows an arm, interleaved"
    )
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    for batch, context in product(chosen.batches, chosen.contexts):
        settings = Settings(geometry, batch=batch, context=context, **same)
        found = _place(settings, chosen)
        rows += [row(arm, found[0], settings, chosen.length) for arm in found]
        windows += [{"batch": batch, "context": context, **asdict(arm)} for arm in found]
        (chosen.out / "table.md").write_text(markdown(rows, heading, chosen.length))
        result = {"heading": heading, "rows": rows, "windows": windows, "peak_gib": _peak_gib(chosen.device)}
        (chosen.out / "results.json").write_text(json.dumps(result, indent=1))
    print(markdown(rows, heading, chosen.length))


def _place(settings: Settings, chosen: argparse.Namespace) -> list[Arm]:
    """The arms at one batch and context, none where they do not fit."""
    gc.collect()
    if settings.device == "cuda":
        torch.cuda.empty_cache()
    prompt = chosen.prompt or settings.context // 2
    try:
        return measure(settings, arms(settings, chosen.arms), prompt, chosen.rounds, chosen.seconds)
    except torch.OutOfMemoryError as error:
        print(f"batch {settings.batch}, context {settings.context}: left out, {str(error).splitlines()[0]}", flush=True)
        return []


def _peak_gib(device: str) -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None


if __name__ == "__main__":
    main()
