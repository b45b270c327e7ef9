"""One prediction or several: what `predict` returns, and what it looks like printed, in a notebook and as JSON."""

import dataclasses
import html
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ladder_sim
from ladder_sim import Prediction, Predictions, Scenario, predict
from ladder_sim.analysis.sensitivity import sensitivity
from ladder_sim.display.document import Notes
from ladder_sim.errors import MissingDependencyError, UnknownNameError, UsageError
from ladder_sim.report.prediction import prediction_fields
from ladder_sim.report.report import LINES, WIDTH
from ladder_sim.specs.scenario_warnings import Caution
from ladder_sim.sweeps.run import sweep
from tests.support.commands import run

COMMAND = "predict --model 405b --nodes 2"
SCENARIO = Scenario(model="405b", nodes=2)


def test_a_single_name_gives_its_prediction_and_says_what_will() -> None:
    """Regression: the letters of a name were taken for names."""
    with pytest.warns(DeprecationWarning, match=re.escape('ask predict(..., ["ladder"])')):
        ladder = predict(SCENARIO, " Ladder ")
    assert isinstance(ladder, Prediction)
    assert prediction_fields(ladder) == prediction_fields(predict(SCENARIO, ["ladder"])["ladder"])
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
    variant, _, more = flags.removeprefix("--variant ").partition(" ")
    predictions = predict(SCENARIO, variant.split(",") if variant else None, jitter=0.05 if more else 0.0)
    for explain, text in (("", str(predictions)), ("--explain", predictions.explain())):
        ran = run(*shlex.split(f"{COMMAND} {flags} {explain}"))
        assert (f"{text}\n", "") == (ran.out, ran.err)


@pytest.mark.parametrize("variants", [None, ["ladder"], ["standard", "desync:4"]])
def test_to_dict_is_the_json_of_the_command(variants: list[str] | None, tmp_path: Path) -> None:
    command = [*shlex.split(COMMAND), *([] if variants is None else ["--variant", ",".join(variants)])]
    answer = predict(SCENARIO, variants)
    assert answer.to_dict() == json.loads(run(*command, "--json").out)
    # plain values: what is written and read again is the same
    assert json.loads(json.dumps(answer.to_dict())) == answer.to_dict()
    assert answer.to_csv(tmp_path / "answer.csv") == run(*command, "--csv").out == (tmp_path / "answer.csv").read_text()


def test_a_frame_has_the_rows_of_the_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = predict(SCENARIO)
    frame = answer.to_frame()
    assert list(frame["variant"]) == list(answer)
    assert list(frame.columns) == answer.to_csv().partition("\n")[0].split(",")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pandas") as caught:
        answer.to_frame()
    assert caught.value.hint == "pip install pandas"


def test_plots_are_those_of_the_command() -> None:
    answer = predict(SCENARIO)
    assert [answer.plot(kind).data[0].name for kind in ("breakdown", "timeline")]
    assert answer.plot().to_json() == answer.plot("breakdown").to_json()
    with pytest.raises(UnknownNameError, match="'timelin'"):
        answer.plot("timelin")


def test_a_notebook_shows_the_same_text_and_folds_the_rest() -> None:
    answer = predict(SCENARIO)
    text = html.unescape(re.sub(r"<[^>]*>", "", answer._repr_html_()))
    shown, _, folded = text.partition("Explain")
    assert [line.rstrip() for line in shown.splitlines()] == str(answer).splitlines()
    assert [line.rstrip() for line in folded.splitlines()] == answer.explain().splitlines()
    # no colours of its own: readable on light and dark pages
    assert "color" not in answer._repr_html_()


def test_names_are_no_markup() -> None:
    name = "[bold]<b>&amp;</b>"
    odd = SCENARIO.having(model=dataclasses.replace(SCENARIO.model, name=name))
    assert html.escape(name) in predict(odd, ["ladder"])._repr_html_()


def test_a_long_warning_is_whole_where_all_is_said() -> None:
    long = dataclasses.replace(SCENARIO.model, name="long" + 60 * " name", multimodal=True)
    answer = predict(SCENARIO.having(model=long), ["ladder"])
    said = " ".join(answer.explain().split())
    assert [text for text in answer.confidence.warnings if f"warning: {text}" not in said] == []
    assert len(answer.confidence.warnings) == 2


def test_the_representation_is_a_line() -> None:
    """Of the numbers; graphs and timelines are left out."""
    answer = predict(SCENARIO, ["ladder"])
    assert repr(answer) == f"<Predictions: {answer.summary}>"
    assert len(repr(answer["ladder"])) < 300


BRIEFS: list[dict[str, Any]] = [
    {"model": "70b", "stack": "vllm", "concurrency": 64},
    {"model": "405b", "nodes": 2},
    {
        "model": "405b",
        "nodes": 2,
        "stack": "vllm",
        "concurrency": 32,
        "pp": 2,
        "overrides": {"inter.bandwidth": "1GB/s"},
    },
    {"model": "8b", "tp": 1},
    {"model": "8b", "tp": 2, "gen": 1, "p2p": False, "technique": "token-split", "stack": "vllm"},
    {"model": "qwen3-30b-a3b", "stack": "sglang", "concurrency": 64, "cluster": "b200-sxm"},
    {"model": "deepseek-v3", "cluster": "h200-sxm", "stack": "trtllm", "concurrency": 512, "prompt": 8000, "gen": 2000},
    {"model": "gpt-oss-120b", "cluster": "l40s-pcie", "stack": "vllm", "tp": 4, "concurrency": 300, "prompt": 9000},
]


@pytest.mark.parametrize("variants", [None, ["standard"], ["upper-bound"], ["ladder"], ["desync:4", "partial:50"]])
@pytest.mark.parametrize("fields", BRIEFS)
def test_an_answer_is_short_and_says_its_figures(fields: dict[str, Any], variants: list[str] | None) -> None:
    answer = predict(Scenario(**fields), variants, ignore_memory=True)
    lines = str(answer).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    rewired = [each for name, each in answer.items() if name not in ("standard", "upper-bound")]
    if rewired:
        best = max(each.speedup.value for each in rewired)
        assert f"{best:.2f}x" in answer.summary
    assert answer.summary.endswith(".")
    # what has no room is behind --explain, and the answer says so
    everything = " ".join(answer.explain().split())
    missing = [text for text in answer.confidence.warnings if text not in " ".join(" ".join(lines).split())]
    assert bool(missing) <= lines[-1].startswith("more ")
    assert all(text in everything for text in answer.confidence.warnings)


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
