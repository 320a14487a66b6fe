"""What a recording can do inside its spans, on their own threads: hold one up, or look at what it runs."""

from __future__ import annotations

from typing import Protocol

from spantrace.wrapping import Flag


class Inside(Protocol):
    """Called in the functions of spans while their flags are raised; none of it may raise."""

    def place(self, span: str, in_draft: str | None = None, gpu: bool = False) -> Flag:
        """A flag that is raised while `hold` is to be called in the function of these names."""

    def hold(self) -> None:
        """Called inside such a function, before what it does."""

    def new_cycle(self, turn: bool | None = None) -> None:
        """A cycle begins: by the loop's `turn`, by a worker's step, or, where there is but one of these, by None."""

    def enter_draft(self, *_: object) -> None:
        """draft.propose begins; called with that call's arguments."""

    def end(self) -> object:
        """Do nothing in the spans any more."""
