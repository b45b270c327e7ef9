"""One prediction or several: what `predict` returns, and what it looks like printed, in a notebook and as JSON."""

import dataclasses
import html
import json
import re
import shlex
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import ladder_sim
from ladder_sim import Prediction, Predictions, Scenario, predict
from ladder_sim.analysis.sensitivity import sensitivity
from ladder_sim.display.notes import Notes
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.scenario_warnings import Caution
from ladder_sim.sweeps.run import sweep
from tests.support.commands import run

COMMAND = "predict --model 405b --nodes 2"
SCENARIO = Scenario(model="405b", nodes=2)


def test_a_single_name_gives_its_prediction() -> None:
    """Regression: the letters of a name were taken for names."""
    ladder = predict(SCENARIO, " Ladder ")
    assert isinstance(ladder, Prediction)
    assert ladder.fields() == predict(SCENARIO, ["ladder"])["ladder"].fields()
    assert sweep(None, {"model": "8b"}, "ladder").variants == ("ladder",)
    assert list(sensitivity(SCENARIO, "ladder")[0].responses) == ["ladder"]
    with pytest.raises(UnknownNameError, match="'ladde'"):
        predict(SCENARIO, "ladde")


@pytest.mark.parametrize("several", [["ladder", "standard"], ("ladder", "standard"), ["ladder", "standard", "Ladder"]])
def test_several_names_give_predictions_in_their_order(several: list[str]) -> None:
    predictions = predict(SCENARIO, several)
    assert isinstance(predictions, Predictions)
    assert list(predictions) == ["ladder", "standard"]


@pytest.mark.parametrize("nothing", ["", [], ()])
def test_no_name_is_refused(nothing: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        predict(SCENARIO, nothing)
    assert caught.value.hint


@pytest.mark.parametrize("flags", ["", "--variant ladder", "--variant standard,desync:4 --set jitter=0.05"])
def test_printed_is_what_the_command_prints(flags: str) -> None:
    """The table, then the warnings, which the command writes to stderr."""
    ran = run(*shlex.split(f"{COMMAND} {flags}"))
    variant, _, more = flags.removeprefix("--variant ").partition(" ")
    predictions = predict(SCENARIO, variant.split(",") if variant else None, jitter=0.05 if more else 0.0)
    assert f"{predictions}\n" == ran.out + ran.err
    if len(predictions) == 1:
        assert str(predictions["ladder"]) == str(predictions)


@pytest.mark.parametrize("variant", [None, "ladder", ["standard", "desync:4"]])
def test_to_dict_is_the_json_of_the_command(variant: str | list[str] | None) -> None:
    flags = [] if variant is None else ["--variant", variant if isinstance(variant, str) else ",".join(variant)]
    answer = predict(SCENARIO, variant).to_dict()  # type: ignore[arg-type]
    assert answer == json.loads(run(*shlex.split(COMMAND), *flags, "--json").out)
    # plain values: what is written and read again is the same
    assert json.loads(json.dumps(answer)) == answer


def test_a_notebook_shows_the_same_text() -> None:
    predictions = predict(SCENARIO)
    page = predictions._repr_html_()
    text = html.unescape(re.sub(r"<[^>]*>", "", page))
    assert [line.rstrip() for line in text.splitlines()] == str(predictions).splitlines()
    # no colours of its own: readable on light and dark pages
    assert "color" not in page


def test_names_are_no_markup() -> None:
    name = "[bold]<b>&amp;</b>"
    odd = SCENARIO.having(model=dataclasses.replace(SCENARIO.model, name=name))
    assert html.escape(name) in predict(odd, "ladder")._repr_html_()


def test_a_long_warning_is_whole() -> None:
    long = dataclasses.replace(SCENARIO.model, name="long" + 60 * " name", multimodal=True)
    prediction = predict(SCENARIO.having(model=long), "ladder")
    shown = " ".join(str(prediction).split())
    assert [text for text in prediction.confidence.warnings if f"warning: {text}" not in shown] == []
    assert len(prediction.confidence.warnings) == 2


def test_the_representation_is_a_line() -> None:
    """Of the numbers; graphs and timelines are left out."""
    assert len(repr(predict(SCENARIO, "ladder"))) < 300


@pytest.mark.parametrize(
    ("function", "command"),
    [
        ("advise", "advise"),
        ("breakeven", "breakeven inter.allreduce_floor --nodes 2"),
        ("compare", "compare h100-sxm h200-sxm"),
        ("predict", "predict"),
        ("sensitivity", "sensitivity"),
        ("sweep", "sweep"),
        ("validate", "validate"),
    ],
)
def test_the_command_calls_the_public_function(function: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no second set of functions."""

    def called(*given: object, **named: object) -> None:
        raise UsageError("called", hint="the public function")

    public = getattr(ladder_sim, function)
    assert public.__doc__
    assert "Examples" in public.__doc__
    monkeypatch.setattr(sys.modules[public.__module__], function, called)
    assert "called" in run(*shlex.split(command)).err


def test_a_warning_says_which_parts_it_is_about_unless_it_names_them() -> None:
    """Regression: a part whose name stood in the text by chance was not named."""
    kv_heads = "8 KV heads on 16 ranks: each KV head is held by 2 ranks"
    lossy = Caution("technique int8 is lossy: answers change", "technique", "int8")
    of_parts = {"16": (kv_heads, "all"), "int8": (lossy, "all"), "technique int8": (lossy, "all"), "8": ("all",)}
    confidences: Any = {name: SimpleNamespace(warnings=warnings) for name, warnings in of_parts.items()}
    assert Notes(confidences=confidences).warnings == [f"16: {kv_heads}", "all", lossy]
