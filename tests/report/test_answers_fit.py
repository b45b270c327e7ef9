"""What answers of many predictions print by default: few lines that say what JSON says, whatever is asked."""

import re
from typing import Any

import pytest

from ladder_sim import Scenario, advise, breakeven, compare, predict, sensitivity, sweep, versus
from ladder_sim.report.report import LINES
from ladder_sim.specs.scenario_warnings import gravity
from tests.support.commands import run
from tests.support.fits import lines_of

SERVED: dict[str, Any] = {"model": "70b", "stack": "vllm", "concurrency": 64}
VERSUS: dict[str, dict[str, Any]] = {
    "served": {"scenario": Scenario(**SERVED)},
    "nothing is clearly faster": {"scenario": Scenario(model="70b", cluster="l40s-pcie", stack="gpt-fast", gen=16)},
    "one token": {"scenario": Scenario(model="8b", tp=4, gen=1, stack="vllm")},
    "one option": {"scenario": Scenario(model="8b", tp=2), "variants": "standard", "techniques": "none"},
    "two nodes": {"scenario": Scenario(model="405b", nodes=2, gen=16), "variants": ["parallel", "ladder"]},
}
ADVISE: dict[str, dict[str, Any]] = {
    "served": {"gpus": 8, **SERVED},
    "static": {"model": "8b", "batch": "1:16", "tp": "1:4", "dp": 1, "usd_per_gpu_hour": 2.0},
    "experts": {"model": "mixtral-8x7b", "gpus": 4, "concurrency": "8,16", "max_tpot_s": 0.012},
    "one plan": {"model": "8b", "gpus": 1, "concurrency": 4, "variants": "standard"},
    "retrained alone": {"model": "8b", "gpus": 2, "concurrency": 4, "variants": "ladder", "objective": "tpot"},
    "one token": {"model": "8b", "gpus": 2, "concurrency": 4, "gen": 1, "objective": "ttft"},
}


SWEEPS: dict[str, dict[str, Any]] = {
    "served": {"axes": {"tp": [2, 4, 8], "concurrency": [16, 64, 256]}, "model": "70b", "stack": "vllm"},
    "links in a unit": {"axes": {"intra.bandwidth": "50:900:x2GB/s"}, "variants": "ladder", "model": "8b"},
    "some cannot run": {"axes": {"model": ["70b", "405b"], "batch": [1, 64]}, "usd_per_gpu_hour": 2.0},
    "none can run": {"axes": {"batch": [1, 2]}, "model": "405b"},
    "one point": {"axes": {}, "model": "8b", "tp": 1},
    "one token": {"axes": {"gen": [1, 2]}, "variants": "standard", "model": "8b"},
    "no intervals": {"axes": {"batch": "1:40:+1"}, "intervals": False, "model": "8b"},
    "nobody can run it": {"axes": {"tp": [1, 2]}, "variants": "upper-bound", "model": "8b"},
    "many fields": {"axes": {"stack": "vllm,trtllm", "dtype": "bf16,fp8", "prompt": "64,128", "gen": "8,9"}, "tp": 2},
}
BREAKEVENS: dict[str, dict[str, Any]] = {
    "links": {"field": "inter.allreduce_floor", "given": "1:400us", "gain": "20%", "model": "405b", "nodes": 2},
    "falls": {"field": "batch", "given": "1:256", "gain": 0.2, "model": "70b"},
    "nothing crosses": {"field": "tp", "given": "1:8", "gain": 1.0, "model": "70b"},
    "what was asked cannot run": {"field": "tp", "given": "8:16", "model": "405b", "tp": 7},
    "one value can run": {"field": "batch", "model": "8b", "stack": "vllm", "concurrency": 4},
    "loses": {"field": "batch", "given": "1:64", "gain": -0.1, "over": "parallel", "model": "8b"},
}
SENSITIVITIES: dict[str, dict[str, Any]] = {
    "served": {"scenario": Scenario(**SERVED)},
    "two nodes": {"scenario": Scenario(model="405b", nodes=2), "step": 0.5},
    "one GPU": {"scenario": Scenario(model="8b", tp=1), "variants": "standard"},
    "one token": {"scenario": Scenario(model="8b", gen=1), "variants": ["ladder", "upper-bound"]},
}
COMPARISONS: dict[str, dict[str, Any]] = {
    "clusters": {"names": ["h100-sxm", "h200-sxm", "b200-sxm", "gb200-nvl72"], "tp": 8, **SERVED},
    "engines": {"names": ["vllm", "sglang"], "usd_per_gpu_hour": [2.0], **SERVED},
    "standard alone": {"names": ["h100-sxm", "a100-sxm-hdr"], "variants": "standard", "model": "8b", "gen": 1},
    "one GPU": {"names": ["h100-sxm", "l40s-pcie"], "model": "8b", "tp": 1},
}


@pytest.mark.parametrize("case", VERSUS)
def test_versus_fits_and_says_what_gains_most(case: str) -> None:
    result = versus(**VERSUS[case])
    lines_of(result)
    rows = {row["option"]: row for row in result.to_dict()["rows"]}
    own, retrained = result.best_own, result.best_retrained
    clear = result.faster(own, result.options["standard"])
    assert (f"Keep your weights: {own.name}, {rows[own.name]['gain']:.2f}x (" in result.summary) == clear
    assert ("nothing is clearly faster than standard" in result.summary) == (not clear and len(result.own) > 1)
    assert ("Retrain: " in result.summary) == (retrained is not None)
    if retrained:
        assert f"{retrained.name}, {rows[retrained.name]['gain']:.2f}x (" in result.summary
    # what nothing above it in the table beats is tied with nothing there
    table = result.report.brief.table
    assert table is not None
    for weights in ("yours", "retrained"):
        kind = [row for row in table.rows if row[1] == weights]
        assert not (kind and str(kind[0][0]).endswith("="))
    explained = result.explain()
    assert all(name in explained for name in rows if name != "upper-bound")


@pytest.mark.parametrize("case", ADVISE)
def test_advice_fits_and_says_the_best_figure(case: str) -> None:
    given = dict(ADVISE[case])
    objective, variants = given.pop("objective", None), given.pop("variants", ("standard", "ladder"))
    advice = advise(None, objective, variants, **given)
    lines_of(advice)
    rows = advice.to_dict()["rows"]
    name, scale = {"tpot": ("tpot_s", 1e3), "ttft": ("ttft_s", 1e3)}.get(advice.objective, (advice.objective, 1.0))
    name = name.replace("tokens_per_gpu", "tokens_per_s_per_gpu")
    for variant in {"standard", advice.best.variant} & set(advice.variants):
        best = next(row for row in rows if row["variant"] == variant and row["outcome"] in ("front", "dominated"))
        said = [float(number) for number in re.findall(r"[\d.]+(?= \(| [a-z])", advice.summary)]
        assert any(abs(number - scale * best[name]) < 0.006 * number for number in said), advice.summary
    assert ("your weights" in advice.summary) == ("standard" in advice.variants)
    assert ("a recommendation for serving" in str(advice)) == ("batch" in given)


def test_a_price_a_bound_and_several_loads_have_their_columns() -> None:
    text = str(advise(None, variants="standard", **ADVISE["static"]))
    assert {"batch", "$/Mtoken"} <= set(text.split())
    served = advise(None, variants="standard", **ADVISE["experts"]).explain()
    assert "TPOT over 12.0 ms" in served
    assert "in flight" in served


@pytest.mark.slow
def test_commands_print_what_python_prints() -> None:
    flags = ("--model", "70b", "--stack", "vllm", "--concurrency", "64")
    for command, answer in (("versus", versus(Scenario(**SERVED))), ("advise", advise(**SERVED))):
        assert run(command, *flags).out == f"{answer}\n"
        assert run(command, *flags, "--explain").out == f"{answer.explain()}\n"


@pytest.mark.slow
def test_gpus_under_load_are_in_the_first_sentence() -> None:
    command = ("versus", "--model", "8b", "--tp", "2", "--gen", "32", "--stack", "vllm", "--technique", "none")
    load = ("--variant", "ladder", "--slo", "tpot_p95=30ms", "--requests", "12", "--seeds", "1", "--rate", "4")
    lines = run(*command, *load).out.splitlines()
    assert len(lines) <= LINES
    sentence = "4 requests/s need 2 GPUs with standard (your weights), 2 GPUs with ladder (retrained)."
    assert lines[0] == sentence
    assert "SLO TPOT p95 30 ms" in " ".join(lines)
    assert any(line.startswith("standard") and line.split()[3] == "2" for line in lines)


@pytest.mark.parametrize("case", SWEEPS)
def test_a_sweep_fits_and_says_the_ends_of_what_is_gained(case: str) -> None:
    given = dict(SWEEPS[case])
    table = sweep(None, given.pop("axes"), given.pop("variants", None), **given)
    lines_of(table)
    rows = [row for row in table.to_dict()["rows"] if not row["infeasible"]]
    assert len(table.to_frame()) == len(table) == len(table.to_dict()["rows"])
    if not rows:
        assert table.summary == "None of 2 points can run."
        return
    names = [name for name in table.variants if name != "standard"]
    columns = [f"{name}.speedup" for name in names] or ["standard.tokens_per_s"]
    said = [float(number) for number in re.findall(r"\d+\.?\d*", table.summary)]
    ends = [[end(row[name] for row in rows) for end in (min, max)] for name in columns]
    # as they are rounded
    assert any(all(any(abs(number - end) < 0.006 * end for number in said) for end in each) for each in ends), (
        table.summary
    )


def test_a_table_shows_the_points_that_differ_most() -> None:
    """Of many points the first were shown, which differ least."""
    table = sweep(None, {"batch": "1:64:+1"}, ["ladder"], model="8b")
    lines = lines_of(table)
    head = next(number for number, line in enumerate(lines) if line.startswith("batch"))
    shown = [int(line.split()[0]) for line in lines[head + 1 : head + 9]]
    gains = table["ladder.speedup"]
    assert {int(table["batch"][end]) for end in (gains.argmin(), gains.argmax())} <= set(shown)
    assert shown == sorted(shown)
    # apart from each other, not next to each other
    assert max(shown) - min(shown) > 48
    assert "56 more points" in lines[-1] or "56 more points" in str(table)


@pytest.mark.parametrize(
    "flags", ["--tp 1:4 --batch 1,3", "--model 8b,405b --gen 1,2 --price 2", "--set gpu.kernel=2,3us"]
)
def test_a_sweep_in_python_is_that_of_the_command(flags: str) -> None:
    words = flags.split()
    given = {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2], strict=True) if name != "--set"}
    given |= dict(value.split("=") for name, value in zip(words[::2], words[1::2], strict=True) if name == "--set")
    price = float(given.pop("price", 0.0)) or None
    table = sweep(None, given, usd_per_gpu_hour=price)
    assert table.to_csv() == run("sweep", *words, "--csv").out
    assert f"{table}\n" == run("sweep", *words).out
    assert f"{table.explain()}\n" == run("sweep", *words, "--explain").out


@pytest.mark.parametrize("case", BREAKEVENS)
def test_a_break_even_fits_and_says_where(case: str) -> None:
    result = breakeven(**BREAKEVENS[case])
    lines_of(result)
    answer = result.to_dict()
    if answer["crossings"]:
        value = answer["crossings"][0]["value"]
        assert f"{1e6 * value:.3g} us" in result.summary or f" {value:.0f}" in result.summary
    else:
        assert "tried" in result.summary
        above = result.ends[0][1].value > result.target
        assert ("less than" in result.summary or "not faster" in result.summary) != above
    for start, stop in result.sure:
        assert result.beside[start].low >= result.target * (1 - 1e-5)
        assert result.beside[stop].low >= result.target * (1 - 1e-5)


@pytest.mark.parametrize("case", SENSITIVITIES)
def test_sensitivities_fit_and_say_what_matters_most(case: str) -> None:
    result = sensitivity(**SENSITIVITIES[case])
    lines_of(result)
    rows = result.to_dict()["rows"]
    bought = [row for row in rows if not row["figure"].startswith(("stack.", "overlap."))]
    top = next(row for row in bought if row["variant"] == result.variants[0])
    assert f"{abs(100 * top['request_higher']):.1f} %" in result.summary
    assert len(result) * len(result.variants) == len(rows)
    assert "elasticity" in result.explain()


@pytest.mark.parametrize("case", COMPARISONS)
def test_a_comparison_fits_and_says_least_and_most(case: str) -> None:
    given = dict(COMPARISONS[case])
    result = compare(None, given.pop("names"), given.pop("variants", None), **given)
    lines_of(result)
    rows = result.to_dict()["rows"]
    assert len(result) == len({row["name"] for row in rows})
    if {row["variant"] for row in rows} == {"standard"}:
        assert all(row["name"] in result.summary for row in rows)
        return
    gains = {
        name: [f"{row['speedup']:.2f}x" for row in rows if row["variant"] == name] for name in ("parallel", "ladder")
    }
    assert any(min(each) in result.summary and max(each) in result.summary for each in gains.values())


def test_printed_is_what_the_commands_print() -> None:
    answers = {
        "breakeven batch=1:8 --model 8b": breakeven(None, "batch", "1:8", model="8b"),
        "sensitivity --model 8b": sensitivity(model="8b"),
        "compare h100-sxm h200-sxm --model 8b": compare(None, ["h100-sxm", "h200-sxm"], model="8b"),
    }
    for command, answer in answers.items():
        assert f"{answer}\n" == run(*command.split()).out
        assert f"{answer.explain()}\n" == run(*command.split(), "--explain").out
        assert answer.to_csv() == run(*command.split(), "--csv").out


def test_options_that_were_named_have_their_rows() -> None:
    answer = versus(Scenario(model="8b", stack="vllm", concurrency=16), ["ladder", "partial:2", "desync:4"])
    shown = lines_of(answer)
    for name in ("ladder", "partial:2", "desync:4"):
        assert any(line.startswith(name) for line in shown), name


@pytest.mark.parametrize("model", ["qwen3-235b", "gpt-oss-120b"])
def test_the_error_of_the_nearest_servings_has_room(model: str) -> None:
    """Where all of the evidence has no room, the first sentence of it is the error."""
    predictions = predict(model=model, cluster="h200-sxm", stack="vllm", concurrency=32)
    assert "left-out error TPOT" in " ".join(lines_of(predictions))


def test_an_error_names_the_gpu_that_no_run_had() -> None:
    """What was never measured had no room: servings of H100s alone spoke for an MI300X."""
    asked = Scenario(model="mistral-nemo-12b", stack="vllm", concurrency=8)
    answers = [
        " ".join(" ".join(lines_of(predict(asked.replace(cluster=name)))).split()) for name in ("mi300x", "h100-sxm")
    ]
    assert ["none on MI300X 192GB" in answer for answer in answers] == [True, False]


def test_links_that_no_run_had_are_named_with_their_engine_and_gpu() -> None:
    """Regression: "Never measured: nvlink4-nvswitch" on an H200, whose fabric is the runs' own by name."""
    answer = " ".join(" ".join(lines_of(predict(model="8b", cluster="h200-sxm"))).split())
    assert "Never measured: gpt-fast over nvlink4-nvswitch of H200 SXM5 141GB." in answer


def test_figures_by_hand_are_what_no_run_had() -> None:
    """The all-reduce was named, which all runs had."""
    eager = Scenario(model="70b", overrides={"stack.cuda_graphs": "off"})
    answer = " ".join(" ".join(lines_of(predict(eager))).split())
    assert "Never measured: gpt-fast with stack.cuda_graphs by hand." in answer


CROWDED: list[dict[str, Any]] = [
    {"model": "gpt-oss-120b", "cluster": "h200-sxm", "stack": "vllm", "concurrency": 32},
    {"model": "gpt-oss-120b", "cluster": "a100-sxm-hdr", "nodes": 2, "tp": 2, "stack": "vllm", "batch": 2, "gen": 2},
    {"model": "mixtral-8x7b", "cluster": "l40s-pcie", "tp": 8, "stack": "sglang", "concurrency": 8, "prompt": 16},
    {"model": "minimax-m2.5", "cluster": "a100-sxm-roce", "tp": 8, "stack": "vllm", "concurrency": 64, "gen": 16},
    {"model": "deepseek-v3", "cluster": "h200-sxm", "dtype": "fp8", "stack": "vllm", "concurrency": 64},
]


@pytest.mark.parametrize("asked", CROWDED, ids=lambda asked: f"{asked['model']} on {asked['cluster']}")
def test_reasons_have_room_before_cautions(asked: dict[str, Any]) -> None:
    """Cautions took the lines of why and evidence in answers about models with experts."""
    predictions = predict(Scenario(**asked), ignore_memory=True)
    lines = lines_of(predictions)
    words = [line.split(" ", 1)[0] for line in lines]
    warnings = predictions.confidence.warnings
    doubts = [text for text in warnings if gravity(text) == 2]
    assert "evidence" in words
    # that several figures are in doubt says more than why
    assert "why" in words or len(doubts) > 1
    hidden = len(warnings) - words.count("caution")
    assert lines[-1].endswith(f" and {hidden} caution{'s' if hidden > 1 else ''}") == (hidden > 0)
    explained = " ".join(predictions.explain().split())
    assert all(" ".join(text.split()) in explained for text in warnings)
    if doubts:
        assert " ".join(doubts[0].split()).partition(". ")[0] in " ".join(" ".join(lines).split())


def test_plans_of_long_names_take_one_table() -> None:
    """They took two, and the answer 15 lines, without evidence."""
    lines = lines_of(advise(model="qwen3-30b-a3b", stack="vllm"))
    assert any(line.startswith("evidence") for line in lines)
