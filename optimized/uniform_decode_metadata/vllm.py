"""The builder's method, rewritten: its sorting of the batch runs only where the batch is not all decodes.

The sorting is in the middle of a long method that differs between versions, so the method's own source is taken,
put behind a condition there, and compiled in its module; everything else stays as that version has it.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from optimized.optimization import Counts
from optimized.uniform_decode_metadata.ahead import Ahead
from optimized.uniform_decode_metadata.metadata import Offsets, why_not
from optimized.uniform_decode_metadata.sharing import AHEAD, FIRST, SHARED, FirstBuild
from optimized.uniform_decode_metadata.sources import UPDATE
from spantrace.patching import Function

_FIRST, _LAST, _TABLE = "query_lens_cpu", "split_decodes_and_prefills", "mamba_get_block_table_tensor"
_INTO_BUFFERS = UPDATE.rpartition(".")[2]
_SHORTCUT = """
def make(spantrace_all_decode, spantrace_block_table):
    if spantrace_all_decode(is_prefilling, common_attn_metadata.max_query_len, decode_threshold):
        num_decodes, num_prefills = num_reqs, 0
        num_decode_tokens, num_prefill_tokens = common_attn_metadata.num_actual_tokens, 0
    return _compute_common_metadata
"""
_ONE_KERNEL = Version("0.33.0")
"""From this version on the block table is one kernel's work, and there are no offsets to keep."""


def rewrite(text: str) -> ast.Module:
    """The module that defines `make`, which gives the method of this text with the shortcut in it."""
    (method,) = ast.parse(textwrap.dedent(text)).body
    if not isinstance(method, ast.FunctionDef) or method.decorator_list:
        raise ValueError("it is no plain method")
    first = next(index for index, line in enumerate(method.body) if _assigns(line, _FIRST))
    last = next(index for index, line in enumerate(method.body) if _calls(line, _LAST))
    module = ast.parse(_SHORTCUT)
    (make,) = module.body
    assert isinstance(make, ast.FunctionDef)
    condition = make.body[0]
    assert isinstance(condition, ast.If)
    ast.increment_lineno(condition, method.body[first].lineno - condition.lineno)
    condition.orelse = method.body[first : last + 1]
    method.body[first : last + 1] = [condition]
    for node in ast.walk(method):
        if isinstance(node, ast.Name) and node.id == _TABLE:
            node.id = "spantrace_block_table"
    make.body[0] = method
    return ast.fix_missing_locations(module)


def _assigns(line: ast.stmt, name: str) -> bool:
    return isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name


def _calls(line: ast.stmt, name: str) -> bool:
    return isinstance(line, ast.Assign) and isinstance(line.value, ast.Call) and ast.unparse(line.value.func) == name


def with_shortcut(original: Function, text: str, all_decode: Function, block_table: Function) -> Function:
    """The method `original`, whose source is `text`, with the shortcut where `all_decode` says so."""
    module = ast.increment_lineno(rewrite(text), original.__code__.co_firstlineno - 1)
    flags = __future__.annotations.compiler_flag
    code = compile(module, original.__code__.co_filename, "exec", flags, dont_inherit=True)
    made: dict[str, Any] = {}
    exec(code, original.__globals__, made)
    return wraps(original)(made["make"](all_decode, block_table))


class Shortcut:
    """The switch; a hit is a build that took the shortcut, or an earlier group's result of the same step."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.offsets = Offsets()
        self.ahead = Ahead()
        self._first: FirstBuild | None = None
        self._rows: Tensor | None = None

    def stand_ins(self) -> Mapping[str, Callable[[Function], Function]]:
        """The one seam."""
        return {"BaseMambaAttentionMetadataBuilder._compute_common_metadata": self._rewritten}

    def allocated(self) -> int:
        """Bytes of the kept offsets, of the rows that a step's groups share, and of where these lie."""
        return self.offsets.nbytes() + self.ahead.nbytes() + (self._first.nbytes() if self._first else 0)

    def close(self) -> None:
        """Drop the offsets and what was kept of the last step."""
        self.offsets.clear()
        self.ahead.clear()
        self._first = self._rows = None

    def all_decode(self, is_prefilling: Tensor, longest_query: int, decode_threshold: int) -> bool:
        """Whether the batch need not be sorted; counted."""
        try:
            reason = why_not(is_prefilling, longest_query, decode_threshold)
        except Exception as error:
            self.counts.failed(error)
            return False
        if reason is not None:
            self.counts.fallbacks[reason] += 1
        self.counts.hits += reason is None
        return reason is None

    def block_table(self, stock: Function, table: Tensor, lengths: Tensor, spec: Any, mode: str) -> Any:
        """What vLLM's own function gives, without making the offsets anew."""
        if mode != "align":
            return stock(table, lengths, spec, mode)
        try:
            self._rows = self.offsets.rows(lengths, spec.block_size, 1 + spec.num_speculative_blocks)
            return torch.gather(table, 1, self._rows)
        except Exception as error:
            self._rows = None
            self.counts.failed(error)
            return stock(table, lengths, spec, mode)

    def sharing(self, original: Function, build: Function, block_table: Function) -> Function:
        """The method `original` as `build` does it for a step's first group, whose result the later ones take."""

        @wraps(original)
        def compute(
            builder: Any, common_attn_metadata: Any, *, num_accepted_tokens: Tensor | None = None, **others: Any
        ) -> Any:
            given = builder, common_attn_metadata, num_accepted_tokens
            if (taken := self._taken(*given, block_table)) is not None:
                return taken
            if (followed := self._followed(*given)) is not None:
                return followed
            last, self._first, self._rows = self._first, None, None
            before = self.counts.hits
            metadata = build(builder, common_attn_metadata, num_accepted_tokens=num_accepted_tokens, **others)
            if self.counts.hits > before:
                self._keep(original, *given, metadata, last)
            return metadata

        return compute

    def _taken(self, builder: Any, common: Any, accepted: Tensor | None, block_table: Function) -> Any:
        """An earlier group's result as this group's; None where there is none that fits."""
        first = self._first
        if first is None:
            return None
        try:
            if not first.serves(builder, common, accepted):
                return None
            table = common.block_table_tensor
            metadata = first.take_ahead(builder, table)
            if metadata is not None:
                self.counts.sorts[AHEAD] += 1
            else:
                mode = builder.vllm_config.cache_config.mamba_cache_mode
                blocks = partial(block_table, table, common.seq_lens, builder.kv_cache_spec, mode)
                metadata = first.take(builder, table, blocks)
                self._rows = None
                if self.ahead.runs_on(table.device):
                    first.remember(builder, table)
        except Exception as error:
            self.counts.failed(error)
            return None
        self.counts.hits += 1
        self.counts.sorts[SHARED] += 1
        return metadata

    def _followed(self, builder: Any, common: Any, accepted: Tensor | None) -> Any:
        """The first group's result in the step after the last one; None where that does not tell of it."""
        first = self._first
        if first is None or first.own is None:
            return None
        try:
            metadata = first.follow(builder, common, accepted, self.ahead)
        except Exception as error:
            self.counts.failed(error)
            return None
        if metadata is not None:
            self.counts.hits += 1
            self.counts.sorts[FIRST] += 1
        return metadata

    def _keep(
        self,
        original: Function,
        builder: Any,
        common: Any,
        accepted: Tensor | None,
        metadata: Any,
        last: FirstBuild | None,
    ) -> None:
        """Keep a first build for the later groups, unless a subclass puts it into buffers in a way of its own."""
        try:
            if getattr(builder, _INTO_BUFFERS).__func__.__globals__ is not original.__globals__:
                return
            self._first = first = FirstBuild.of(builder, common, accepted, metadata, self._rows)
            if first is not None and self.ahead.runs_on(common.block_table_tensor.device):
                if last is not None:
                    first.write_ahead(last, common, self.ahead)
                first.remember(builder, common.block_table_tensor)
        except Exception as error:
            self.counts.failed(error)

    def _rewritten(self, original: Function) -> Function:
        from vllm import __version__

        stock = original.__globals__[_TABLE]
        keeps = Version(__version__) < _ONE_KERNEL
        block_table = partial(self.block_table, stock) if keeps else stock
        build = with_shortcut(original, inspect.getsource(original), self.all_decode, block_table)
        return self.sharing(original, build, block_table)
