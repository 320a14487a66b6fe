"""The campaigns that are combined, each by itself: what to doubt in it, which code it ran, how it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from spantrace.cli import measuring, saved
from spantrace.cli.wording import DOUBT_STYLES
from spantrace.errors import SpantraceError
from spantrace.tables import Fact, many

if TYPE_CHECKING:
    from analyzers.attribution import Attribution
    from spantrace.campaign.store import Store
    from spantrace.cli.finished import Runs


@dataclass(frozen=True)
class Member:
    """A campaign with what its finished windows show; `final` is the re-run on the code as it is now."""

    store: Store
    found: Attribution
    runs: Runs
    final: bool = False

    @property
    def name(self) -> str:
        """What the campaign is called: its directory."""
        return str(self.store.directory)


def refuse_copies(stores: Sequence[Store]) -> None:
    """SpantraceError where two campaigns hold a recording that is the same."""
    seen: dict[str, Store] = {}
    for store in stores:
        own = {sha256(store.path(store.windows[number - 1]).read_bytes()).hexdigest() for number in store.done()}
        if same := own & seen.keys():
            other = seen[min(same)].directory
            raise SpantraceError(
                f"{store.directory} holds the same recordings as {other}, which confirms nothing; name another campaign"
            )
        seen |= dict.fromkeys(own, store)


def doubts(members: Sequence[Member]) -> tuple[str, ...]:
    """In what the other plans differ, but for how often each arm is measured, and which arms' code is not that of
    every day."""
    plan, others = members[0].store.plan, members[1:]
    apart = {
        one.name: [field.name for field in fields(plan) if field.name != "repeats"
                   and getattr(plan, field.name) != getattr(one.store.plan, field.name)]
        for one in others
    }  # fmt: skip
    differing = [f"the plan of {name} has other {', '.join(keys)}" for name, keys in apart.items() if keys]
    days = [measuring.codes(one.store) for one in members if not one.final]
    changed = [arm for arm in _arms(days) if len({codes[arm] for codes in days if arm in codes}) > 1]
    return (*differing, *([f"not all days ran the same code in {', '.join(changed)}"] if changed else []))


def _arms(days: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(arm for codes in days for arm in codes))


def member_facts(members: Sequence[Member], headings: Mapping[str, str]) -> list[Fact]:
    """The code that each column ran, and what is told of a campaign's arms and windows where it is shown alone."""
    every = {headings[one.name]: measuring.codes(one.store) for one in members}
    alike = len({tuple(codes.items()) for codes in every.values()}) == 1
    columns = {"every campaign": next(iter(every.values()))} if alike else every
    parts = (f"{name}: {', '.join(f'{arm} {code}' for arm, code in codes.items())}" for name, codes in columns.items())
    return [Fact("code", tuple(parts)), *(fact for one in members for fact in _facts(one, headings[one.name]))]


def _facts(member: Member, heading: str) -> list[Fact]:
    store = member.store
    told = saved.arm_facts(member.found) + measuring.restored(store.plan, member.runs) + measuring.wrong(store)
    if missing := len(store.missing()):
        told.append(Fact("missing", (f"{missing} of {many(len(store.windows), 'window')}",), DOUBT_STYLES[0]))
    return [replace(fact, parts=(f"{heading}: {fact.parts[0]}", *fact.parts[1:])) for fact in told]


def member_data(members: Sequence[Member]) -> dict[str, Any]:
    """Each campaign's plan and windows, and the counts and contended runs of its arms, as JSON has them."""
    return {
        one.name: {
            **measuring.data(one.store),
            "arms": [{"name": arm.name, "fired": arm.fired, "silent": arm.silent, "contended": arm.contended}
                     for arm in one.found.arms],
            "stock_contended": one.found.stock_contended,
        }
        for one in members
    }  # fmt: skip
