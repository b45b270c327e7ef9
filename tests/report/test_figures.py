"""Every figure renders in every format and holds the data it claims to."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.analysis.advise import advise
from ladder_sim.analysis.breakeven import breakeven
from ladder_sim.analysis.compare import compare
from ladder_sim.analysis.sensitivity import sensitivity
from ladder_sim.analysis.versus import versus
from ladder_sim.analysis.winners import Winners, winners
from ladder_sim.errors import MissingDependencyError, UsageError, install_command
from ladder_sim.report.advise import pareto_figure
from ladder_sim.report.breakeven import breakeven_figure
from ladder_sim.report.compare import comparison_figure
from ladder_sim.report.figures import style
from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
from ladder_sim.report.figures.style import VARIANT_COLOURS, log_axis, save_figure, variant_colour
from ladder_sim.report.sensitivity import tornado_figure
from ladder_sim.report.sweep import speedup_lines, speedup_map, sweep_figure
from ladder_sim.report.versus import versus_figure, winners_figure
from ladder_sim.specs import catalog
from ladder_sim.sweeps.run import sweep
from ladder_sim.wirings.names import FAMILIES
from tests.support.browser import browser_path

SMALL = {"model": "8b", "tp": 4}


def _traces(figure: go.Figure) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name}


def test_speedup_lines_hold_every_variants_speedup() -> None:
    table = sweep(None, {**SMALL, "intra.bandwidth": "50:400:x2GB/s"})
    traces = _traces(sweep_figure(table))
    assert list(traces) == ["parallel", "ladder", "upper-bound"]
    for name, trace in traces.items():
        assert np.array_equal(trace.y, table[f"{name}.speedup"])
        assert trace.x.tolist() == [50.0, 100.0, 200.0, 400.0]
        assert trace.line.color == VARIANT_COLOURS[name]


def test_large_numbers_of_an_axis_are_written_out() -> None:
    assert log_axis("perplexity", [6.5, 20_760.0])["ticktext"][-2:] == ["10000", "20000"]
    prompts = sweep_figure(sweep(None, {**SMALL, "prompt": "8192:32768:x2"}))
    assert list(prompts.layout.xaxis.ticktext) == ["8192", "16384", "32768"]


def test_axes_keep_the_unit_that_was_typed() -> None:
    typed = {"intra.bandwidth": "400:3200:x2Gb/s"}
    lines = sweep_figure(sweep(None, {**SMALL, **typed}))
    assert lines.layout.xaxis.title.text == "intra.bandwidth (Gb/s)"
    assert list(lines.data[0].x) == [400.0, 800.0, 1600.0, 3200.0]
    cells = sweep_figure(sweep(None, {**SMALL, **typed, "intra.allreduce_floor": "1000,2000ns"}))
    names = {*cells.layout.xaxis.ticktext, *cells.layout.yaxis.ticktext}
    assert {"400 Gb/s", "3200 Gb/s", "1000 ns", "2000 ns"} <= names
    point = {"model": "405b", "nodes": 2, "inter.allreduce_floor": "40000ns"}
    for given in ("1000:40000ns", None):
        result = breakeven(None, "inter.allreduce_floor", given, gain=0.1, **point)
        drawn = breakeven_figure(result)
        assert drawn.layout.xaxis.title.text == "inter.allreduce_floor (ns)"
        assert all(mark.text[0].endswith(" ns") for mark in drawn.data[1:])
    scenario = Scenario(model="405b", nodes=2, overrides={"inter.allreduce_floor": "40000ns"})
    bars = tornado_figure(sensitivity(scenario, ["ladder"]), "ladder", "").data[0].y
    assert "inter.allreduce_floor (40000 ns)" in bars


def test_a_map_holds_each_cell_where_it_belongs_and_its_break_even() -> None:
    table = sweep(None, {"model": "70b", "stack": "vllm", "batch": "1:32", "intra.allreduce_floor": "2:10:+4us"})
    heat, contour = speedup_map(table, "ladder", "parallel").data
    assert heat.z.shape == (6, 3)
    for row in range(len(table)):
        at = (
            [1, 2, 4, 8, 16, 32].index(table["batch"][row]),
            [2e-6, 6e-6, 10e-6].index(table["intra.allreduce_floor_s"][row]),
        )
        assert heat.z[at] == table["ladder.tokens_per_s"][row] / table["parallel.tokens_per_s"][row]
    assert heat.z.min() < 1 < heat.z.max()
    assert contour.contours.start == contour.contours.end == 1.0
    assert len(speedup_map(table, "ladder", "standard").data) == 1


def test_a_map_of_a_page_names_few_values_below() -> None:
    """Regression: on a phone the last two names touched."""
    for name, given, expected in (
        ("prompt", "128:32768:x2", ["128", "512", "2048", "8192", "32768"]),
        # of many values round ones are named
        ("intra.allreduce_floor", "1:1024:x1.5us", ["1", "5", "20", "100", "500"]),
    ):
        table = sweep(None, {"model": "8b", "tp": 2, "batch": "1,2", name: given})
        assert list(speedup_map(table, compact=True).layout.xaxis.ticktext) == expected
        assert len(speedup_map(table).layout.xaxis.ticktext) > len(expected)


def test_a_map_leaves_out_what_cannot_run() -> None:
    table = sweep(None, {"model": "70b,405b", "batch": "1,2"})
    assert np.isnan(sweep_figure(table).data[0].z).tolist() == [[False, False], [True, True]]


def test_a_sweep_over_too_much_or_nothing_is_no_figure() -> None:
    with pytest.raises(UsageError, match=r"3 fields vary \(tp, batch, gen\)"):
        sweep_figure(sweep(None, {"model": "8b", "tp": "2,4", "batch": "1,2", "gen": "2,4"}))
    with pytest.raises(UsageError, match="0 fields vary"):
        sweep_figure(sweep(None, {"model": "8b"}))
    with pytest.raises(UsageError, match="the sweep holds no ladder"):
        sweep_figure(sweep(None, {"model": "8b", "tp": "2,4", "batch": "1,2"}, ["parallel"]))


def test_the_breakdown_sums_to_the_request() -> None:
    scenario = Scenario(model="405b", nodes=2)
    predictions = predict(scenario)
    figure = breakdown_figure(scenario, predictions)
    for index, prediction in enumerate(predictions.values()):
        assert sum(trace.x[index] for trace in figure.data) == pytest.approx(prediction.request_s, rel=0.01)


def test_the_timeline_shows_the_layers_that_most_are_like() -> None:
    """Guards against the first dense layers of a model with experts, and none of its messages."""
    scenario = Scenario(model="deepseek-v2-lite", attention_dp=8, ep=8, batch=8, stack="vllm")
    figure = timeline_figure(scenario, predict(scenario, ["standard"]))
    ops = {op for trace in figure.data if trace.name != "exposed" for op, _ in trace.customdata}
    assert {op.partition(".")[2] for op in ops} >= {"mlp.experts", "mlp.dispatch", "mlp.combine"}
    short = Scenario(model=dataclasses.replace(catalog.model("8b"), layers=1), tp=2)
    assert timeline_figure(short, predict(short, ["standard"])).data


def test_the_timeline_holds_the_simulated_ops() -> None:
    """Lanes of every variant; ladder's all-reduces overlap compute, standard's do not."""
    scenario = Scenario(model="405b", nodes=2)
    predictions = predict(scenario, ["standard", "ladder"])
    figure = timeline_figure(scenario, predictions)
    for variant, prediction in predictions.items():
        assert prediction.request.decode is not None
        bars = [
            (lane, base, base + length, op)
            for trace in figure.data
            if trace.name != "exposed"
            for lane, base, length, (op, _) in zip(trace.y, trace.base, trace.x, trace.customdata, strict=True)
            if lane.startswith(f"{variant}<br>")
        ]
        gemms = [op for _, _, _, op in bars if op.endswith((".qkv", ".o", ".up", ".down"))]
        assert len(gemms) == 2 * 4
        seconds = {op.op.name: op.seconds for op in prediction.request.decode.ops}
        for _, start, end, op in bars:
            assert end - start <= 1e6 * seconds[op] + 1e-9
        compute, comm = ([bar for bar in bars if bar[0].endswith(lane)] for lane in ("compute", "communication"))
        overlaps = [min(end, stop) - max(start, begin) for _, start, end, _ in comm for _, begin, stop, _ in compute]
        assert (max(overlaps) > 1.0) is (variant == "ladder")
    with pytest.raises(UsageError, match="one new token"):
        timeline_figure(scenario, predict(Scenario(model="8b", gen=1)))


def test_breakeven_marks_its_crossings_in_the_axis_unit() -> None:
    result = breakeven(None, "inter.allreduce_floor", "1:40us", gain=0.3, model="405b", nodes=2)
    line, *marks = breakeven_figure(result).data
    assert np.array_equal(line.y, result.speedups)
    assert line.x[-1] == pytest.approx(40.0)
    assert [mark.x[0] for mark in marks] == pytest.approx([crossing.value * 1e6 for crossing in result.crossings])
    assert marks


def test_the_tornado_shows_both_changes_heaviest_first() -> None:
    sensitivities = sensitivity(Scenario(model="405b", nodes=2), ["ladder"])
    lower, higher = tornado_figure(sensitivities, "ladder", "").data
    widest = [max(abs(low), abs(high)) for low, high in zip(lower.x, higher.x, strict=True)]
    assert widest == sorted(widest, reverse=True)
    heaviest = max(sensitivities, key=lambda item: item.widest("ladder")).responses["ladder"]
    assert (lower.x[0], higher.x[0]) == (100 * heaviest.request_lower, 100 * heaviest.request_higher)


def test_pareto_holds_every_option_and_the_front() -> None:
    advice = advise(None, "tpot", model="70b")
    front, *variants = pareto_figure(advice).data
    assert list(front.x) == [1e3 * option.tpot_s for option in advice.front]
    assert sum(len(trace.x) for trace in variants) == len(advice.options)
    assert {trace.name: trace.marker.color for trace in variants} == {
        name: VARIANT_COLOURS[name] for name in ("standard", "parallel", "ladder")
    }


def test_the_front_has_intervals_inside_the_axis_and_names_that_are_apart() -> None:
    advice = advise(gpus=4, model="8b", stack="vllm", concurrency="8:64")
    drawn = pareto_figure(advice)
    front = drawn.data[0]
    low, high = drawn.layout.yaxis.range
    for option, above, below in zip(advice.front, front.error_y.array, front.error_y.arrayminus, strict=True):
        rate = advice.predictions[option].tokens_per_s
        assert option.tokens_per_gpu + above == pytest.approx(rate.high / option.plan.gpus)
        assert option.tokens_per_gpu - below == pytest.approx(rate.low / option.plan.gpus)
        assert 10**low < rate.low / option.plan.gpus < rate.high / option.plan.gpus < 10**high
    named = [option for option, text in zip(advice.front, front.text, strict=True) if text]
    assert named[0] is advice.front[0]
    for before, after in itertools.pairwise(named):
        assert max(after.tpot_s / before.tpot_s, after.tokens_per_gpu / before.tokens_per_gpu) > 1.15
    # of a part of a page: neither
    compact = pareto_figure(advice, compact=True).data[0]
    assert (compact.error_y.array, compact.mode) == (None, "lines")


def test_the_comparison_holds_rates_and_intervals() -> None:
    candidates = compare(None, ["h100-sxm", "h200-sxm"], model="70b")
    for trace, candidate in zip(comparison_figure(candidates).data, candidates, strict=True):
        rates = [prediction.tokens_per_s for prediction in candidate.predictions.values()]
        assert list(trace.y) == [rate.value for rate in rates]
        assert [y + more for y, more in zip(trace.y, trace.error_y.array, strict=True)] == pytest.approx(
            [rate.high for rate in rates]
        )


def test_every_variant_has_a_colour_of_its_own() -> None:
    families = {name.partition(":")[0] for name in FAMILIES} | {"hybrid-ladder"}
    assert len({variant_colour(name) for name in families}) == len(families)
    assert variant_colour("hybrid-delayed:2:8") == variant_colour("delayed:1")


@cache
def _winners() -> Winners:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ladder_sim.analysis.winners._REQUESTS", (1, 8))
        return winners(versus(Scenario(model="8b"), "ladder", "fused-norm"))


def _figures() -> dict[str, Callable[[], go.Figure]]:
    scenario = Scenario(model="8b")
    return {
        "lines": lambda: speedup_lines(sweep(None, {**SMALL, "batch": "1:4"})),
        "map": lambda: speedup_map(sweep(None, {**SMALL, "batch": "1:4", "gen": "2,4"})),
        "breakdown": lambda: breakdown_figure(scenario, predict(scenario)),
        "timeline": lambda: timeline_figure(scenario, predict(scenario)),
        "breakeven": lambda: breakeven_figure(breakeven(None, "intra.allreduce_floor", **SMALL)),
        "tornado": lambda: tornado_figure(sensitivity(scenario), "ladder", ""),
        "pareto": lambda: pareto_figure(advise(model="8b")),
        "versus": lambda: versus_figure(versus(scenario, "ladder")),
        "winners": lambda: winners_figure(_winners()),
        "comparison": lambda: comparison_figure(compare(None, ["h100-sxm", "h200-sxm"], model="8b")),
    }


@pytest.mark.parametrize("name", list(_figures()))
def test_every_figure_is_a_page_that_needs_no_network(name: str, tmp_path: Path) -> None:
    page = tmp_path / "figure.html"
    save_figure(_figures()[name](), page)
    text = page.read_text(encoding="utf-8")
    assert "plotly.js v" in text
    assert '<script src="http' not in text
    first = text
    save_figure(_figures()[name](), page)
    assert page.read_text(encoding="utf-8") == first


@pytest.mark.browser
def test_a_figure_is_drawn_as_png_and_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # kaleido looks there first
    monkeypatch.setenv("BROWSER_PATH", browser_path())
    figure = _figures()["tornado"]()
    for form, start in (("png", b"\x89PNG"), ("svg", b"<svg")):
        save_figure(figure, tmp_path / f"figure.{form}")
        assert (tmp_path / f"figure.{form}").read_bytes().startswith(start)
    assert b"gpu.hbm_bandwidth" in (tmp_path / "figure.svg").read_bytes()


def test_what_cannot_be_drawn_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="unknown extension"):
        save_figure(go.Figure(), tmp_path / "figure.gif")
    with pytest.raises(UsageError, match="no such folder"):
        save_figure(go.Figure(), tmp_path / "none" / "figure.html")
    monkeypatch.setattr(style, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="needs kaleido") as caught:
        save_figure(go.Figure(), tmp_path / "figure.png")
    assert caught.value.hint == f"{install_command('plots')}, or write an .html file"
    assert caught.value.exit_code == 4


def test_a_picture_is_drawn_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser would fetch MathJax from a CDN, and look up search hosts."""
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(style, "find_spec", lambda _: object())
    monkeypatch.setattr("kaleido.calc_fig_sync", lambda *_, kopts: calls.append(dict(kopts)) or b"")
    save_figure(go.Figure(), tmp_path / "figure.png")
    (options,) = calls
    assert (options["mathjax"], options["proxy_server"]) == (False, "127.0.0.1:9")


def test_no_browser_is_a_missing_dependency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Kaleido requires Google Chrome to be installed.")

    monkeypatch.setattr(style, "find_spec", lambda _: object())
    monkeypatch.setattr("kaleido.calc_fig_sync", fail)
    with pytest.raises(MissingDependencyError, match="needs Chrome or Chromium"):
        save_figure(go.Figure(), tmp_path / "figure.png")
