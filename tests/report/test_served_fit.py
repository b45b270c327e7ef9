"""What `serve` and `capacity` print by default: few lines that say what JSON says, whatever is asked."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ladder_sim import Scenario, capacity, serve
from ladder_sim.errors import UsageError
from ladder_sim.serving import Request
from tests.support.commands import run
from tests.support.fits import lines_of

EIGHT = Scenario(model="8b", tp=2, stack="vllm")
FEW: dict[str, Any] = {"prompt": 400, "gen": 20, "requests": 40, "seeds": 1}
SERVED: dict[str, dict[str, Any]] = {
    "a rate": {"rate": 20.0, **FEW},
    "an SLO, a price": {"rate": 20.0, "slo": "ttft_p95=500ms,tpot_p95=6ms", "usd_per_gpu_hour": 2.0, **FEW, "seeds": 2},
    "more than it carries": {"rate": 5000.0, "concurrency": 500, **FEW, "requests": 400},
    "clients": {"concurrency": 4, "slo": "tpot_p95=1us", **FEW},
    "one token": {"rate": 20.0, "slo": "tpot_p95=1s", **FEW, "gen": 1},
    "long names": {
        "concurrency": 4,
        "variants": ["standard", "hybrid-ladder:16", "hybrid-desync:4:16", "upper-bound"],
        **FEW,
    },
    "one rewired": {"rate": 9.0, "variants": "ladder", **FEW},
    "a bound alone": {"rate": 9.0, "variants": "upper-bound", **FEW},
    "requests of one's own": {"trace": [Request(arrival_s=0.1 * at, prompt=374, gen=44) for at in range(3)]},
}
NEEDED: dict[str, dict[str, Any]] = {
    "a rate": {"rate": 300.0, "slo": "ttft_p95=300ms,tpot_p95=8ms", "usd_per_gpu_hour": 2.0},
    "nothing is enough": {"rate": 4.0, "slo": "ttft_p95=1us"},
    "one is not enough": {"rate": 4.0, "slo": "tpot_p95=4.4ms"},
    "one variant": {"rate": 4.0, "slo": "e2e_mean=9s", "variants": "standard"},
    "several": {"rate": 90.0, "slo": "ttft_p95=1s", "variants": ["standard", "hybrid-ladder:16", "upper-bound"]},
    "one GPU": {"rate": 4.0, "slo": "ttft_p95=1s", "tp": 1},
    "plans": {"rate": 90.0, "slo": "ttft_p95=1s", "tp": [1, 2]},
}


def said(text: str, value: float) -> bool:
    """Whether a text has a figure, rounded to the digits that it shows."""
    numbers = re.findall(r"\d+(?:\.\d+)?", text)
    return any(abs(float(number) - value) <= 0.51 * 10.0 ** -len(number.partition(".")[2]) for number in numbers)


@pytest.mark.parametrize("case", SERVED)
def test_served_requests_fit_and_the_sentence_says_their_times(case: str) -> None:
    served = serve(EIGHT, **SERVED[case])
    lines = lines_of(served)
    rows: Mapping[str, Any] = {row["variant"]: row for row in served.to_dict()["rows"]}
    first = rows[served.first]
    summary = served.summary
    if not first["stable"]:
        assert "keep" in summary
    elif not served.slo:
        scale = 1.0 if first["ttft_p95_s"] >= 1.0 else 1e3
        assert said(summary, scale * first["ttft_p95_s"]), summary
    else:
        assert ("keeps the SLO" in summary.partition(";")[0]) == first["promise_kept"]
        assert ("probably" in summary) == any(row["unsure"] for row in rows.values())
    table = [line for line in lines if line.split()[:1] == [served.first]]
    assert len(table) <= 1
    for line in table:
        assert said(line, 1e3 * first["ttft_p95_s"])
        assert said(line, 1e3 * first["e2e_p95_s"])
    explained = served.explain()
    for metric in ("TTFT", "TPOT", "ITL", "E2E"):
        assert any(line.startswith(f"{metric} ") and "p99" in line for line in explained.splitlines())
    assert served.interval_note in " ".join(explained.split())
    assert all(text in explained for text in served.cautions)


@pytest.mark.parametrize("case", NEEDED)
def test_capacity_fits_and_the_sentence_says_the_gpus(case: str) -> None:
    need = capacity(EIGHT, pp=1, prompt=400, gen=20, requests=40, seeds=1, **NEEDED[case])
    lines_of(need)
    rows = {row["variant"]: row for row in need.to_dict()["rows"]}
    summary, able = need.summary, [name for name, row in rows.items() if row["gpus"]]
    assert ("no number of gpus" in summary.lower()) == (len(able) < len(rows))
    if not able:
        assert summary.startswith("No number of GPUs keeps the SLO at 4 requests/s")
    elif "standard" in able:
        assert re.search(rf"need {rows['standard']['gpus']:.0f} GPUs?\b.*with your weights", summary), summary
    if "ladder" in able:
        assert re.search(rf"{rows['ladder']['gpus']:.0f} (GPUs?,? )?(perhaps \d+, )?(\(.*\) )?with ladder", summary), (
            summary
        )
    explained = need.explain()
    assert all(plan["plan"] in explained for plan in need.to_dict()["plans"])
    assert all(reason in explained for each in need.values() for reason in each.reasons)
    assert need.interval_note in " ".join(explained.split())


def test_a_rate_that_slower_steps_do_not_carry_is_said() -> None:
    """On as many GPUs as predicted steps need."""
    need = capacity(EIGHT, "standard", pp=1, prompt=400, gen=20, requests=40, seeds=1, rate=300.0, slo="tpot_p95=8ms")
    fleet = need["standard"]
    carried = fleet.rate_limit.low * fleet.need.sizes.groups
    assert math.isfinite(carried)
    assert (carried < 300.0) == ("At the low end of its interval, standard carries" in str(need))


@pytest.mark.slow
def test_commands_print_what_python_prints(tmp_path: Path) -> None:
    flags = ("--model", "8b", "--tp", "2", "--stack", "vllm", "--rate", "20", "--requests", "30", "--seeds", "1")
    asked: dict[str, Any] = {"rate": 20.0, "requests": 30, "seeds": 1}
    for answer, *command in (
        (serve(EIGHT, **asked), "serve", *flags),
        (capacity(EIGHT, pp=1, slo="ttft_p95=1s", **asked), "capacity", *flags, "--pp", "1", "--slo", "ttft_p95=1s"),
    ):
        assert run(*command).out == f"{answer}\n"
        assert run(*command, "--explain").out == f"{answer.explain()}\n"
        path = tmp_path / "rows.csv"
        assert answer.to_csv(path) == run(*command, "--csv").out == path.read_text("utf-8")


def test_a_figure_of_requests_needs_their_steps() -> None:
    load: dict[str, Any] = {"rate": 20.0, **FEW, "requests": 10}
    with pytest.raises(UsageError, match="steps that the figure shows were not kept"):
        serve(EIGHT, "standard", **load).plot()
    assert serve(EIGHT, "standard", record=True, **load).plot("load").data


def test_capacity_says_whole_nodes_and_what_else_would_do() -> None:
    scenario = EIGHT.replace(gpus_per_node=3, tp=1)
    requests: dict[str, Any] = {"rate": 900.0, "prompt": 400, "gen": 20, "requests": 40}
    need = capacity(scenario, "standard", pp=1, seeds=1, slo="tpot_p95=12ms", **requests)
    (row,) = need.to_dict()["rows"]
    gpus = need["standard"].gpus.value
    assert row["nodes"] == math.ceil(gpus / 3) > 1
    assert (gpus % 3 > 0) == (f" on {row['nodes']:.0f} nodes" in need.summary)
    (instead,) = re.findall(r"(\d+) GPUs? of TP \d carry", " ".join(need.explain().split()))
    assert int(instead) == gpus - need["standard"].group_gpus


def test_published_loads_of_a_deployment_are_its_evidence() -> None:
    asked: dict[str, Any] = {"rate": 1.0, "requests": 30, "seeds": 1}
    published = "4 published loads of this deployment"
    said = {
        tp: " ".join(serve(Scenario(model="70b", stack="vllm", tp=tp), "standard", **asked).explain().split())
        for tp in (4, 8)
    }
    assert published in said[4]
    assert published not in said[8]


def test_a_group_less_carries_its_share_at_least() -> None:
    """Regression: 69 groups carried 20 requests/s, and 68 of them 6: alone, requests reach a group less evenly."""
    need = capacity(
        Scenario(model="405b", cluster="mi300x", stack="sglang@0.5.6"),
        "ladder",
        tp=4,
        prompt=16384,
        gen=8,
        rate=20.0,
        requests=60,
        seeds=1,
        slo="itl_p99=80ms",
    )
    groups = need["ladder"].need.sizes.groups
    (carried,) = re.findall(r"carry ([\d.]+) requests/s", " ".join(need.explain().split()))
    assert float(carried) == pytest.approx(20.0 * (groups - 1) / groups, rel=0.01)
