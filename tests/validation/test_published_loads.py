"""Loads that others published, and what is known of their servers."""

import csv
from dataclasses import replace

import pytest

from benchmarks.evidence import LOADS
from ladder_sim.confidence import Interval
from ladder_sim.errors import UnknownNameError
from ladder_sim.serving.requests.results import read_results
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.campaigns import server_of
from ladder_sim.validation.compare import Quantity
from ladder_sim.validation.dataset import result_file
from ladder_sim.validation.load import GROWS, LoadComparison, LoadValidation, compare_loads
from tests.support.commands import run

RESULTS = read_results(result_file("published"))


def test_every_load_names_its_source_and_its_server() -> None:
    for each in RESULTS:
        assert each.server["source"]
        assert not each.left_out
        server = server_of(each.server["campaign"])
        assert server.source
        scenario = Scenario(**server.scenario, concurrency=1, overrides=server.server)
        assert scenario.step_requests == server.server.get("stack.step_requests", scenario.step_requests)


def test_loads_of_several_tools_are_called_by_their_file() -> None:
    figures = {"tpot_mean_s": Quantity(predicted=Interval(value=0.01, low=0.01, high=0.01), measured=0.01)}
    by_tool = {each.tool: each for each in RESULTS}
    assert len(by_tool) > 1
    rows = [
        LoadComparison(result=each, scenario=Scenario(model="8b"), figures=figures, confidence=None)
        for each in by_tool.values()
    ]
    asked = LoadValidation(name="published", rows=tuple(rows)).report.brief.asked
    assert f"first of {len(rows)} loads of published" in asked


def test_a_campaign_that_is_not_known_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown campaign 'none'"):
        server_of("none")


def test_the_file_of_the_page_has_every_published_figure() -> None:
    """`ladder-sim validate published --csv` writes it."""
    with LOADS.open(encoding="utf-8", newline="") as file:
        rows = [
            (int(row["load"]), row["source"], row["figure"], float(row["measured"])) for row in csv.DictReader(file)
        ]
    assert rows == [
        (number, each.server["source"], figure, pytest.approx(measured))
        for number, each in enumerate(RESULTS, 1)
        for figure, measured in each.figures.items()
    ]


def test_a_load_is_served_by_what_its_campaign_says() -> None:
    """The one whose requests were published one by one."""
    (each,) = compare_loads([RESULTS[-1]], {}, {})
    assert each.scenario is not None
    assert (each.scenario.cluster.name, each.scenario.step_requests) == ("rtx-pro-6000", 128)
    assert len(each.figures) == len(RESULTS[-1].figures)
    assert abs(each.figures["tpot_mean_s"].error) < 0.1
    # what is given counts
    (other,) = compare_loads([RESULTS[-1]], {"cluster": "l40s-pcie"}, {"stack.step_requests": 64})
    assert other.scenario is not None
    assert (other.scenario.cluster.name, other.scenario.step_requests) == ("l40s-pcie", 64)


def test_requests_are_as_their_campaign_says() -> None:
    """BLIS: a system prompt that the cache has, and requests that come at equal distances."""
    (published,) = [each for each in RESULTS if "66-qwen2-5-7b" in each.server["source"]]
    few = replace(published, requests=replace(published.requests, requests=20))
    (known,) = compare_loads([few], {}, {})
    said = {name: value for name, value in few.server.items() if name != "campaign"}
    server = server_of("blis-66")
    (unknown,) = compare_loads([replace(few, server=said)], server.scenario, server.server)
    assert known.figures["ttft_mean_s"].predicted.value < 0.95 * unknown.figures["ttft_mean_s"].predicted.value


def test_the_package_names_its_loads() -> None:
    done = run("validate", "published", "--level", "roofline")
    assert done.code == 2
    assert "--level is for runs of static batches" in done.err


def test_times_of_a_queue_that_grows_are_counted_apart() -> None:
    """They grow with the number of requests, and averages of errors with them: TTFT was off by 982 % of 33 loads."""

    def off(times: float, *, stable: bool) -> LoadComparison:
        values = {"tpot_mean_s": 1.1, "ttft_mean_s": times}
        figures = {
            name: Quantity(predicted=Interval(value=value, low=value, high=value), measured=1.0)
            for name, value in values.items()
        }
        result = replace(RESULTS[1], figures=dict.fromkeys(figures, 1.0))
        scenario = Scenario(model="8b")
        return LoadComparison(result=result, scenario=scenario, figures=figures, confidence=None, stable=stable)

    loads = LoadValidation(name="published", rows=(off(1.2, stable=True), off(250.0, stable=False)))
    summary, text = loads.to_dict()["summary"], " ".join(str(loads).split())
    assert (summary["ttft_mean_s"]["n"], summary["tpot_mean_s"]["n"]) == (1, 2)
    assert "mean TTFT by 20.0 % on average" in text
    assert "of 1 load the queue grows in the prediction: TTFT and E2E there are not counted." in text
    assert [row["note"] for row in loads.to_dict()["rows"]] == ["", "", "", GROWS]
    assert "250" in str(LoadValidation(name="one", rows=loads.rows[1:]))


def test_more_requests_than_a_server_answers_make_its_queue_grow() -> None:
    load = RESULTS[-1]
    (kept,), (crowded,) = (
        compare_loads([load], {"cluster": cluster}, {"stack.step_requests": requests})
        for cluster, requests in (("h100-sxm", 256), ("l40s-pcie", 8))
    )
    assert {name for name in crowded.figures if name not in crowded.judged} == {"ttft_mean_s", "e2e_mean_s"}
    assert not crowded.stable
    assert kept.judged.keys() >= kept.figures.keys() - {"ttft_mean_s", "e2e_mean_s"}
