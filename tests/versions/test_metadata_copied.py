"""Mamba2's build with its result's fields copied, for every supported vLLM, against its own that constructs them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mamba_builds import BATCHES, DECODES, DRAFTS, Stock, accepted_of  # noqa: E402

from optimized.uniform_decode_metadata import copying  # noqa: E402
from optimized.uniform_decode_metadata.copying import replaced, with_copies  # noqa: E402
from optimized.uniform_decode_metadata.sources import MAMBA2, MAMBA2_FIELDS  # noqa: E402

pytestmark = pytest.mark.versions
CHUNK = 128


@dataclasses.dataclass
class Checked:
    """A class whose constructor does more than to keep what it is given."""

    one: int
    other: int = 0

    def __post_init__(self) -> None:
        self.other = 2 * self.one


def of_this_version(stock: Stock) -> tuple[Any, Any]:
    """Mamba2's build and the class of its results, in the module of the common ones."""
    for target in (MAMBA2_FIELDS, MAMBA2):
        stock.define(stock.text_of(target))
    return stock.module["build"], stock.module["Mamba2AttentionMetadata"]


def builder_of(stock: Stock, metadata_cls: Any) -> Any:
    """A builder whose common metadata are of Mamba2's class; other versions are told of other things."""
    found = stock.group("none", True, metadata_cls=metadata_cls, chunk_size=CHUNK)
    method = stock.module["_compute_common_metadata"]
    found._compute_common_metadata = lambda *given, **named: method(
        found, *given, **{name: value for name, value in named.items() if name in method.__code__.co_varnames}
    )
    return found


def fields_of(metadata: Any) -> dict[str, Any]:
    return {one.name: getattr(metadata, one.name) for one in dataclasses.fields(metadata)}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("name", DECODES)
def test_every_field_is_what_the_constructor_gives(stock: Stock, name: str) -> None:
    build, kind = of_this_version(stock)
    copying_build = with_copies(build, stock.text_of(MAMBA2))
    batch, found = DECODES[name], []
    for method in (build, copying_build):
        builder = builder_of(stock, kind)
        found.append(method(builder, 0, batch, num_accepted_tokens=accepted_of(batch)))
    wanted, got = map(fields_of, found)
    assert type(found[0]) is type(found[1]) is kind
    assert vars(found[1]).keys() == wanted.keys()
    assert [field for field in wanted if not same(wanted[field], got[field])] == []
    assert (got["chunk_size"], got["num_decodes"]) == (CHUNK, batch.num_reqs)


@pytest.mark.parametrize("name", BATCHES)
def test_an_object_of_the_class_is_replaced_whatever_it_holds(stock: Stock, name: str) -> None:
    _, kind = of_this_version(stock)
    batch = BATCHES[name]
    method = stock.module["_compute_common_metadata"]
    one = method(builder_of(stock, kind), batch, num_accepted_tokens=accepted_of(batch))
    before, changes = fields_of(one), {"chunk_size": 7, "num_reqs": -1, "seq_idx_p": torch.arange(DRAFTS)}
    wanted, got = (fields_of(how(one, **changes)) for how in (dataclasses.replace, replaced))
    assert all(got[field] is wanted[field] for field in wanted)
    assert all(value is before[field] for field, value in fields_of(one).items())


def test_a_change_that_is_lost_shows(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    build, kind = of_this_version(stock)
    monkeypatch.setattr(copying, "replaced", lambda one, **_: one)
    batch, wrong = DECODES["four decodes"], with_copies(build, stock.text_of(MAMBA2))
    got = wrong(builder_of(stock, kind), 0, batch, num_accepted_tokens=accepted_of(batch))
    assert got.chunk_size != CHUNK


def test_a_constructor_that_does_more_is_run() -> None:
    one = Checked(1)
    one.other = 5
    assert replaced(one, one=3) == dataclasses.replace(one, one=3) == Checked(3)
    with pytest.raises(TypeError, match="third"):
        replaced(DECODES["one decode"], third=1)


def test_a_build_that_replaces_nothing_is_refused(stock: Stock) -> None:
    build, _ = of_this_version(stock)
    text = stock.text_of(MAMBA2)
    with pytest.raises(ValueError, match=r"it does not call dataclasses\.replace"):
        with_copies(build, text.replace("replace(", "another("))
    with pytest.raises(ValueError, match="it is no plain method"):
        with_copies(build, "@property\n" + text)
