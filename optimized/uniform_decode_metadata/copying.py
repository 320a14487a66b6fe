"""Mamba2's build, rewritten: its result is the common one's fields and a few more, copied instead of constructed.

dataclasses.replace() reads every field and runs a constructor of some thirty arguments for it, once a group.
"""

from __future__ import annotations
import __future__

import ast
import textwrap
from dataclasses import replace
from functools import wraps
from typing import Any

from spantrace.patching import Function

_STOCK, _OURS = "replace", "spantrace_replaced"


def replaced(one: Any, /, **changes: Any) -> Any:
    """What dataclasses.replace() gives, which is asked where an object of the class is more than its fields."""
    fields = vars(one)
    if hasattr(one, "__post_init__") or not changes.keys() <= fields.keys():
        return replace(one, **changes)
    made = object.__new__(type(one))
    made.__dict__ = fields | changes
    return made


def with_copies(original: Function, text: str) -> Function:
    """The method `original`, whose source is `text`, with `replaced` for dataclasses.replace()."""
    (method,) = ast.parse(textwrap.dedent(text)).body
    if not isinstance(method, ast.FunctionDef) or method.decorator_list:
        raise ValueError("it is no plain method")
    names = [node for node in ast.walk(method) if isinstance(node, ast.Name) and node.id == _STOCK]
    if not names or original.__globals__.get(_STOCK) is not replace:
        raise ValueError(f"it does not call dataclasses.{_STOCK}()")
    for node in names:
        node.id = _OURS
    module = ast.parse(f"def make({_OURS}):\n    return {method.name}")
    (make,) = module.body
    assert isinstance(make, ast.FunctionDef)
    make.body.insert(0, method)
    return compiled(original, ast.fix_missing_locations(module), replaced)


def compiled(original: Function, module: ast.Module, *given: Any) -> Function:
    """What the function `make` of a module makes of `given`, in place of `original` and in its module."""
    ast.increment_lineno(module, original.__code__.co_firstlineno - 1)
    flags = __future__.annotations.compiler_flag
    code = compile(module, original.__code__.co_filename, "exec", flags, dont_inherit=True)
    made: dict[str, Any] = {}
    exec(code, original.__globals__, made)
    return wraps(original)(made["make"](*given))
