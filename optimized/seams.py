"""Where an optimization is put in: methods and functions of the built-in cycle or of vLLM."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

BUILT_IN = "built-in cycle"
_OWNER = re.compile(r"[a-z_][\w.]*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


@dataclass(frozen=True)
class Seam:
    """What is replaced, "module:Class.method" or "module:function", and where: `BUILT_IN`, or "vllm" and versions.

    A function is replaced in the module that calls it; where that one imports it, `defined` says which one it is, again
    as "module:function".
    """

    owner: str
    where: str = BUILT_IN
    defined: str = ""

    def __post_init__(self) -> None:
        if not all(_OWNER.fullmatch(name) for name in (self.owner, self.source)):
            raise ValueError(f"{self.owner!r} is neither module:Class.method nor module:function")
        if self.where != BUILT_IN:
            name, _, versions = self.where.partition(" ")
            if name != "vllm" or not versions or not is_specifier(versions):
                raise ValueError(f"{self.where!r} is neither {BUILT_IN!r} nor a vllm with a version specifier")

    @property
    def source(self) -> str:
        """Where its text stands."""
        return self.defined or self.owner

    @property
    def method(self) -> str:
        """The class and the method, or the function, without the module."""
        return self.owner.partition(":")[2]

    @property
    def module(self) -> str:
        """The module alone."""
        return self.owner.partition(":")[0]

    def is_in(self, vllm: str | None) -> bool:
        """Whether it is a seam of the vLLM of that version, or, where that is None, of the built-in cycle."""
        if vllm is None or self.where == BUILT_IN:
            return vllm is None and self.where == BUILT_IN
        try:
            return vllm in SpecifierSet(self.where.partition(" ")[2])
        except InvalidVersion:
            return False


def is_specifier(text: str) -> bool:
    """Whether a text specifies versions, and not all of them."""
    try:
        return bool(str(SpecifierSet(text)))
    except InvalidSpecifier:
        return False
