"""What stands in for the parts of a server that a test of vLLM's own classes does without."""

from __future__ import annotations

from typing import Any

from torch import nn


def bare(kind: type, **attributes: Any) -> Any:
    """A module of that class without its own constructor, which would need a server."""
    made = object.__new__(kind)
    nn.Module.__init__(made)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


class Graph:
    """What is replayed, in place of a GPU's."""

    def replay(self) -> None:
        pass


def planted(*_: Any) -> Any:
    """Fails, whatever it is given."""
    raise RuntimeError("planted")
