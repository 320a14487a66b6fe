"""What optimizations save together is held against what each saves alone only where each of them fired."""

from __future__ import annotations

import json

import pytest
from campaigns import campaign, counts, resample_less
from recordings import NEMOTRON_HOST

from analyzers.attribution import STOCK, Attribution, attribute
from analyzers.interactions import Untold
from spantrace.cli.attributing import attribution_document
from spantrace.tables import markdown, to_json

METADATA = "target.metadata"
SAVED = {"one": 0.8, "two": 0.6, "idle": 0.5}
"""Of what never fired it is noise."""


@pytest.fixture(autouse=True)
def _resample_less(monkeypatch: pytest.MonkeyPatch) -> None:
    resample_less(monkeypatch)


def found(together: tuple[str, ...], silent_alone: tuple[str, ...], silent_together: tuple[str, ...]) -> Attribution:
    """Arms of each alone and of these together; 0.9 ms are saved where both that do something are on."""
    on = {**{name: (name,) for name in together}, "all": together}
    arms = {name: {METADATA: NEMOTRON_HOST[METADATA] - SAVED[name]} for name in together}
    runs = campaign({STOCK: {}, **arms, "all": {METADATA: NEMOTRON_HOST[METADATA] - 0.9}}, seed=5, kernels=None)
    for name, windows in runs.items():
        silent = silent_together if name == "all" else silent_alone
        for run in windows:
            run.header["optimizations"] = [counts(one, 0 if one in silent else 9) for one in on.get(name, ())]
    sets = {name: frozenset(ids) for name, ids in on.items()}
    return attribute(runs, sets, dict.fromkeys(together, (METADATA,)))


def test_what_never_fired_is_left_out_of_the_sum_and_named() -> None:
    campaign = found(("one", "two", "idle"), ("idle",), ("idle",))
    (one,) = campaign.interactions
    assert (one.left_out, campaign.untold) == (("idle",), ())
    assert one.sum_ms == pytest.approx(SAVED["one"] + SAVED["two"], abs=0.2)
    assert "without idle, which never fired in it" in markdown(attribution_document(campaign))


@pytest.mark.parametrize(
    ("together", "silent_alone", "silent_together", "silent"),
    [
        (("one", "idle"), ("idle",), ("idle",), ("idle",)),
        (("one", "two"), ("two",), (), ("two",)),
        (("one", "two"), (), ("one", "two"), ("one", "two")),
    ],
)
def test_there_is_no_interaction_with_a_switch_that_never_fired(
    together: tuple[str, ...], silent_alone: tuple[str, ...], silent_together: tuple[str, ...], silent: tuple[str, ...]
) -> None:
    campaign = found(together, silent_alone, silent_together)
    assert (campaign.interactions, campaign.untold) == ((), (Untold("all", silent),))
    document = attribution_document(campaign)
    assert f"interaction: all: not told, {' and '.join(silent)} never fired" in markdown(document)
    assert json.loads(to_json(document))["interactions_untold"] == [{"arm": "all", "silent": list(silent)}]
