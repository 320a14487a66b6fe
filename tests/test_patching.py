"""Patches are all-or-nothing and give back the very objects."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spantrace.patching import CodePatch, Patch, PatchSet, own_function, plan


def loud(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return "loud", function(*arguments)

    return wrapper


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    def method(self) -> str:
        return "method"

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def klass(cls) -> str:
        return cls.__name__

    value = 3


def test_every_kind_of_attribute_is_replaced_and_given_back() -> None:
    before = dict(vars(Owner))
    patches = PatchSet()
    for name in ("method", "static", "klass", "inherited"):
        patches.add(plan(Owner, name, loud))
    patches.install()
    owner = Owner()
    assert owner.method() == ("loud", "method")
    assert Owner.static() == owner.static() == ("loud", "static")
    assert Owner.klass() == ("loud", "Owner")
    assert owner.inherited() == ("loud", "base")
    assert Base().inherited() == "base"
    patches.revert()
    after = dict(vars(Owner))
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    assert patches.conflicts == []


def test_a_module_global_is_replaced_in_that_module_only() -> None:
    consumer, source = types.ModuleType("consumer"), types.ModuleType("source")
    consumer.f = source.f = lambda: 1  # type: ignore[attr-defined]
    patches = PatchSet()
    patches.add(plan(consumer, "f", loud))
    patches.install()
    assert consumer.f() == ("loud", 1)
    assert source.f() == 1
    patches.revert()
    assert consumer.f is source.f


@pytest.mark.parametrize(("name", "error"), [("absent", AttributeError), ("value", TypeError)])
def test_what_is_no_function_is_refused(name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        plan(Owner, name, loud)


class Sealed(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise RuntimeError("sealed")


class Closed(metaclass=Sealed):
    def method(self) -> str:
        return "closed"


def test_one_failure_takes_back_what_was_installed() -> None:
    original = vars(Owner)["method"]
    patches = PatchSet()
    patches.add(plan(Owner, "method", loud))
    patches.add(plan(Closed, "method", loud))
    with pytest.raises(RuntimeError, match="sealed"):
        patches.install()
    assert vars(Owner)["method"] is original


def test_somebody_elses_patch_on_top_is_left_and_named() -> None:
    original = vars(Owner)["method"]
    patches = PatchSet()
    patches.add(plan(Owner, "method", loud))
    patches.install()
    theirs = loud(vars(Owner)["method"])
    Owner.method = theirs  # type: ignore[method-assign]
    patches.revert()
    try:
        assert vars(Owner)["method"] is theirs
        assert patches.conflicts == ["Owner.method"]
    finally:
        Owner.method = original  # type: ignore[method-assign]


def test_a_patch_added_to_a_set_in_force_is_installed_at_once() -> None:
    patches = PatchSet()
    patches.add(plan(Owner, "method", loud))
    patches.install()
    patches.add(plan(Owner, "static", loud))
    assert Owner.static() == ("loud", "static")
    patches.revert()
    assert Owner.static() == "static"


def test_an_instance_attribute_can_be_patched() -> None:
    class Thing:
        pass

    thing = Thing()
    thing.event = "original"  # type: ignore[attr-defined]
    patch = Patch(thing, "event", "original", "proxy")
    patch.install()
    assert thing.event == "proxy"  # type: ignore[attr-defined]
    assert patch.revert()
    assert thing.event == "original"  # type: ignore[attr-defined]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    yield


class Decorated(Owner):
    @quiet()
    def method(self) -> str:
        return super().method() + "!"

    @loud
    def foreign(self) -> str:
        return "foreign"

    alias = Owner.method


def test_a_classs_own_function_is_found_under_a_context_decorator_only() -> None:
    assert own_function(Owner, "method") is vars(Owner)["method"]
    assert own_function(Decorated, "method") is vars(Decorated)["method"].__wrapped__
    for name in ("foreign", "alias", "inherited", "static", "klass", "value", "absent"):
        assert own_function(Decorated, name) is None, name
    assert own_function(Owner, "static") is vars(Owner)["static"].__func__
    assert own_function(Owner, "klass") is None
    assert own_function(types.ModuleType("m"), "method") is None


def other_code(function: types.FunctionType) -> CodePatch:
    def stand_in(self: object) -> str:
        return "other"

    free = stand_in.__code__.replace(co_freevars=function.__code__.co_freevars)
    return CodePatch(function, function.__code__, free)


def test_code_is_replaced_without_setting_an_attribute_and_given_back() -> None:
    function = own_function(Owner, "method")
    assert function is not None
    patches, code, bound = PatchSet(), function.__code__, Owner().method
    patches.add(other_code(function))
    for _ in range(2):
        patches.install()
        assert vars(Owner)["method"] is function
        assert bound() == "other"
        patches.revert()
        assert function.__code__ is code
        assert bound() == "method"


def test_code_that_somebody_gave_it_since_is_left_and_named() -> None:
    function = own_function(Owner, "method")
    assert function is not None
    patches, code = PatchSet(), function.__code__
    patches.add(other_code(function))
    patches.install()
    function.__code__ = theirs = code.replace(co_name="theirs")
    patches.revert()
    assert function.__code__ is theirs
    assert patches.conflicts == ["Owner.method"]
    function.__code__ = code


def test_what_somebody_changed_while_a_set_was_out_of_force_is_given_up_by_name() -> None:
    original, static = vars(Owner)["method"], vars(Owner)["static"]
    patches = PatchSet()
    patches.add(plan(Owner, "method", loud))
    patches.add(plan(Owner, "static", loud))
    for _ in range(2):
        patches.restore()
        assert Owner.static() == ("loud", "static")
        patches.revert()
    Owner.method = theirs = lambda self: "theirs"  # type: ignore[method-assign]
    try:
        for _ in range(2):
            patches.restore()
            assert vars(Owner)["method"] is theirs
            assert Owner.static() == ("loud", "static")
            patches.revert()
        assert patches.conflicts == ["Owner.method"]
        assert vars(Owner)["static"] is static
    finally:
        Owner.method = original  # type: ignore[method-assign]


def test_a_set_without_changes_is_in_force_too() -> None:
    patches = PatchSet()
    patches.install()
    patches.add(plan(Owner, "static", loud))
    assert Owner.static() == ("loud", "static")
    patches.revert()
