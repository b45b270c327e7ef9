"""What `versus` and `advise` print by default: few lines that say what JSON says, whatever is asked."""

import re
from typing import Any

import pytest

from ladder_sim import Scenario, advise, versus
from ladder_sim.answer import Answer
from ladder_sim.report.brief import LINES, WIDTH
from tests.support.commands import run

SERVED = {"model": "70b", "stack": "vllm", "concurrency": 64}
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


def lines_of(answer: Answer) -> list[str]:
    lines = str(answer).splitlines()
    assert len(lines) <= LINES, answer
    assert max(map(len, lines)) <= WIDTH, answer
    assert " ".join(lines).startswith(answer.summary)
    # all of it stands before what explains it, but for what was cut
    assert answer.explain().startswith("\n".join(lines))
    return lines


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
    assert "SLO tpot_p95=30.0ms" in " ".join(lines)
    assert any(line.startswith("standard") and line.split()[3] == "2" for line in lines)
