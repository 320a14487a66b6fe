"""Reads traces of torch.profiler (Kineto JSON, plain or gzip), as vLLM, SGLang and TensorRT-LLM write them too.

Events are read one after another and only what is needed of them is kept. Times are decimals of microseconds, read
exactly: as float64 they would be off by up to 253 ns. Of what else recorders embed (environments, command lines)
nothing is kept but the name of the GPU and the offset to the wall clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, DecimalException
from itertools import chain
from pathlib import Path
from typing import Any

import ijson

from spantrace.errors import SpantraceError
from spantrace.importers.annotations import step_number
from spantrace.importers.trace import LARGEST_TIME, Columns, Labels, Trace
from spantrace.importers.unpacking import Text
from spantrace.shareable import shareable_header

_PIECE, _LONGEST_HEAD = 1 << 12, 1 << 24
"""What comes before the events is read in small pieces, and may be so long, in bytes."""
_TABLES = {
    "user_annotation": "annotations",
    "cuda_runtime": "calls",
    "cuda_driver": "calls",
    "hip_runtime": "calls",
    "Runtime": "calls",
    "kernel": "kernels",
    "Kernel": "kernels",
    "gpu_memcpy": "copies",
    "gpu_memset": "copies",
    "Memcpy": "copies",
    "Memset": "copies",
}
"""Categories of events, those of older releases capitalized."""
_OUR_TABLES = {**_TABLES, "gpu_user_annotation": "parts"}
"""Of a trace that spantrace wrote; in another's, what is annotated on the GPU is told by its kernels."""


def read_trace(path: Path) -> Trace:
    """Read a trace; one whose end is missing is `cut`. SpantraceError where it is none or is damaged."""
    with path.open("rb") as file:
        text, head = Text(file), _Head()
        chunks = text.chunks()
        for chunk in chunks:
            if head.take(chunk):
                break
        if not head.prefix:
            raise SpantraceError(f"it is no trace: {head.why or 'it has no traceEvents'}")
        reader = _Reader(_TABLES if head.about is None else _OUR_TABLES)
        ended = reader.read(head, chunks)
    return reader.trace(head, cut=text.cut or not ended)


class _Head:
    """What comes before the events, whose path is `prefix`: a GPU's name, the clock's offset, a header of ours."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.prefix = ""
        self.why = ""
        self.gpu_name: str | None = None
        self.realtime_offset_ns = 0
        self._about = ijson.ObjectBuilder()
        self._events = ijson.sendable_list()
        self._parser = ijson.parse_coro(self._events)

    def take(self, chunk: bytes) -> bool:
        """Read on; True once the events begin, or it is clear that there are none."""
        self.seen.append(chunk)
        for start in range(0, len(chunk), _PIECE):
            try:
                self._parser.send(chunk[start : start + _PIECE])
            except ijson.JSONError:
                self.why = "it is not JSON"
            for prefix, event, value in self._events:
                self._see(prefix, event, value)
                if self.prefix:
                    return True
            del self._events[:]
            if self.why:
                return True
        return sum(map(len, self.seen)) > _LONGEST_HEAD

    def _see(self, prefix: str, event: str, value: Any) -> None:
        if event == "start_array" and prefix in ("", "traceEvents"):
            self.prefix = f"{prefix}.item".lstrip(".")
        elif prefix == "deviceProperties.item.name" and self.gpu_name is None:
            self.gpu_name = str(value)
        elif prefix == "baseTimeNanoseconds" and isinstance(value, int):
            self.realtime_offset_ns = value
        elif prefix == "spantrace" or prefix.startswith("spantrace."):
            self._about.event(event, value)

    @property
    def about(self) -> dict[str, Any] | None:
        """The header of the recording that spantrace exported, None where another program wrote the trace."""
        value = getattr(self._about, "value", None)
        return shareable_header(_with_floats(value)) if isinstance(value, dict) else None


class _Reader:
    """Collects the events of the categories that have a table."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self._wanted = wanted
        self._labels = Labels()
        self._tables = {name: Columns() for name in ("annotations", "calls", "kernels", "copies", "parts")}
        self._faults: Counter[str] = Counter()
        self._read = 0
        self._steps: list[dict[str, Any]] = []

    def read(self, head: _Head, chunks: Iterator[bytes]) -> bool:
        """Read all events, from the head's chunks on; False for an end that comes too early, after those before it."""
        events = ijson.sendable_list()
        parser = ijson.items_coro(events, head.prefix)
        try:
            for chunk in chain(head.seen, chunks):
                self._feed(parser, events, chunk)
        except ijson.JSONError as error:
            told = f"it is damaged after {self._read:,} events: what follows is not JSON; copy it anew"
            raise SpantraceError(told) from error
        try:
            parser.close()
        except ijson.JSONError:
            return False
        return True

    def _feed(self, parser: Any, events: Any, chunk: bytes) -> None:
        try:
            parser.send(chunk)
        finally:
            for event in events:
                self._take(event)
            del events[:]

    def _take(self, event: Any) -> None:
        self._read += 1
        if not isinstance(event, dict):
            self._faults["not an event"] += 1
            return
        category = event.get("cat")
        table = self._wanted.get(category) if isinstance(category, str) else None
        if table is None:
            return
        if (phase := event.get("ph")) != "X":
            self._faults["begin or end"] += phase in ("B", "E")
            return
        start, length = self._nanoseconds(event.get("ts")), self._nanoseconds(event.get("dur"))
        if start is None or length is None:
            self._faults["without a time" if start is None else "without dur"] += 1
        elif length < 0:
            self._faults["of negative length"] += 1
        else:
            self._keep(table, event, start, start + length)

    def _keep(self, table: str, event: dict[str, Any], start: int, end: int) -> None:
        found, number = event.get("args"), self._labels.number
        args: dict[str, Any] = found if isinstance(found, dict) else {}
        name = event.get("name", "")
        if table == "annotations" and "period_ns" in args and step_number(str(name)) is not None:
            self._steps.append({**args, "start": start, "end": end})
        self._tables[table].add(
            (
                start,
                end,
                number(event.get("pid", "")),
                number(event.get("tid", "")),
                number(name),
                _whole(args.get("correlation"), 0),
                _whole(args.get("cycle"), -1),
            )
        )

    def _nanoseconds(self, value: Any) -> int | None:
        """A time in microseconds as whole nanoseconds, exactly; None where it is none."""
        self._faults["with a time as text"] += isinstance(value, str)
        if not isinstance(value, (int, Decimal, str)):
            return None
        try:
            nanoseconds = (Decimal(value) * 1000).to_integral_value()
            return int(nanoseconds) if abs(nanoseconds) < LARGEST_TIME // 2 else None
        except (DecimalException, ValueError):
            return None

    def trace(self, head: _Head, *, cut: bool) -> Trace:
        """All that was read, of a file that was `cut` or not."""
        tables = {name: columns.events(self._faults) for name, columns in self._tables.items()}
        return Trace(
            "PyTorch profiler",
            annotations=tables["annotations"],
            calls=tables["calls"],
            kernels=tables["kernels"],
            copies=tables["copies"],
            parts=tables["parts"],
            labels=self._labels.all(),
            read=self._read,
            faults=self._faults,
            cut=cut,
            gpu_name=head.gpu_name,
            realtime_offset_ns=head.realtime_offset_ns,
            steps=self._steps,
            about=head.about,
        )


def _whole(value: object, otherwise: int) -> int:
    """A whole number that is not negative and fits; else what it is `otherwise`."""
    return value if isinstance(value, int) and 0 <= value < LARGEST_TIME else otherwise


def _with_floats(value: Any) -> Any:
    """Maps and lists whose decimals are floats, which need not be exact."""
    if isinstance(value, dict):
        return {name: _with_floats(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_floats(one) for one in value]
    return float(value) if isinstance(value, Decimal) else value
