"""What the commands about optimizations share: which ones are meant, and the machine that the figures are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optimized.cases import Place
    from optimized.optimization import Optimization


def chosen(ids: Sequence[str]) -> list[Optimization]:
    """The optimizations that the arguments name, each one id or several as a,b; all of them without arguments."""
    import optimized

    known = optimized.discover()
    return list(known.values()) if is_all(ids) else [known[name] for name in optimized.select(",".join(ids))]


def is_all(ids: Sequence[str]) -> bool:
    """Whether the arguments ask for everything, and for nothing by name."""
    return not ids or list(ids) == ["all"]


def ready(
    items: list[Optimization],
    verb: str,
    device: str | None,
    against: Callable[[Optimization], list[str]] = lambda _: [],
) -> tuple[list[Optimization], dict[str, str]]:
    """Those whose requirements hold on the device and that nothing is `against`, and by id why the others cannot be.

    Raises SpantraceError where there is none.
    """
    from spantrace.errors import EXIT_NOT_COMPARABLE, SpantraceError

    left_out = {item.id: "; ".join(reasons) for item in items if (reasons := item.unmet(device) + against(item))}
    held = [item for item in items if item.id not in left_out]
    if not held:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "none is chosen"
        raise SpantraceError(f"there is nothing to {verb}: {why}", EXIT_NOT_COMPARABLE)
    return held, left_out


def restored(ids: Iterable[str]) -> list[str]:
    """A sentence on each of these that rebuilds stock: which fix it takes out, and how much of it."""
    import optimized

    items = [item for name in ids if (item := optimized.discover().get(name)) and item.restores]
    return [f"{item.restores} is restored to stock: {item.summary}" for item in items]


def tell_left_out(text: str, vllm: str | None = None, place: Place | None = None) -> None:
    """Say on stderr what "all" leaves out here, of the built-in cycle's or of the vLLM of that version's, and why."""
    import click

    import optimized

    why = optimized.left_out(text, vllm, place)
    for reason in dict.fromkeys(why.values()):
        without = ", ".join(name for name, other in why.items() if other == reason)
        click.echo(f"spantrace: all leaves out {without}: {reason}", err=True)


def machine(device: str, dtype: str) -> tuple[str, ...]:
    """The device, the dtype, and the versions that the arithmetic depends on."""
    from importlib.util import find_spec

    import torch

    threads = torch.get_num_threads()
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {threads} thread{'s' * (threads != 1)}"
    versions = [f"torch {torch.__version__}"]
    if find_spec("triton"):
        import triton

        versions.append(f"triton {triton.__version__}")
    return name.removeprefix("NVIDIA "), dtype, ", ".join(versions)


def places(item: Optimization) -> str:
    """Where it can fire: the built-in cycle, and runs of vLLM versions."""
    from optimized.seams import BUILT_IN
    from spantrace.vllm_adapter.hooks import SUPPORTED

    runs: list[list[str]] = []
    known, previous = item.versions(), ""
    for version in SUPPORTED:
        if version in known:
            if previous in known:
                runs[-1][1:] = [version]
            else:
                runs.append([version])
        previous = version
    places = [BUILT_IN] if item.seams_at() else []
    places += [f"vLLM {', '.join(' to '.join(run) for run in runs)}"] if runs else []
    return "; ".join(places)
