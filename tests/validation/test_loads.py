"""Measured loads next to simulations of the same requests: scenarios, errors, and what is refused."""

import json
from functools import cache
from pathlib import Path

import pytest

from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.report.errors import loads_figure
from ladder_sim.serving.requests.results import read_results
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.load import LoadValidation, compare_loads, gate_loads, summarize_loads
from tests.conftest import DATA
from tests.support.commands import run
from tests.support.replicas import outcomes

FOLDER = DATA / "results"
SERVER = {"model": "8b", "cluster": "h100-sxm", "tp": 1, "stack": "vllm"}
FLAGS = ("--model", "8b", "--cluster", "h100-sxm", "--tp", "1")


@cache
def compared(name: str, **given: object) -> LoadValidation:
    return compare_loads(read_results(FOLDER / name), given, {}, name=name)


def test_each_figure_stands_next_to_a_simulation_of_the_same_requests() -> None:
    (load,) = compared("vllm_rate.json", **SERVER)
    requests = load.result.requests
    outcome = outcomes(Scenario(concurrency=1, **SERVER), requests, ["standard"])["standard"]  # type: ignore[arg-type]
    assert load.figures.keys() == load.result.figures.keys()
    assert load.figures["ttft_p95_s"].predicted.value == pytest.approx(outcome.seconds("ttft", 95))
    assert load.figures["tpot_mean_s"].predicted.value == pytest.approx(outcome.seconds("tpot"))
    assert load.figures["tokens_per_s"].predicted.value == pytest.approx(outcome.tokens_per_s)
    assert load.figures["tpot_mean_s"].measured == load.result.figures["tpot_mean_s"]
    # a closed loop keeps its clients busy, whatever the times in the file
    (closed,) = compared("vllm_concurrency.json", **SERVER)
    assert closed.figures["requests_per_s"].predicted.value > load.figures["requests_per_s"].predicted.value


def test_an_inferencex_row_says_what_served_it() -> None:
    served, _, unknown, drafts = compared("inferencex.json")
    assert served.scenario is not None
    scenario = served.scenario
    names = (scenario.model.name, scenario.cluster.name, scenario.stack.name, scenario.workload.dtype)
    assert names == ("minimax-m2.5", "h200-sxm", "vllm", "fp8-block")
    assert (scenario.plan.tp, scenario.plan.ep) == (8, 1)
    # measured next to predicted: within what servings of this model and engine err
    assert abs(served.figures["tpot_mean_s"].error) < 0.1
    assert "unknown system 'mi250x'" in unknown.note
    assert "speculative decoding" in drafts.note
    assert summarize_loads((served, unknown, drafts))["tpot_mean_s"].rows == 1


def of_row(tmp_path: Path, fields: dict[str, object], **given: object) -> Scenario:
    """The scenario of an InferenceX row that is not simulated."""
    row = json.loads((FOLDER / "inferencex.json").read_text("utf-8"))[0]
    path = tmp_path / "row.json"
    path.write_text(json.dumps(row | {"spec_decoding": "mtp"} | fields), "utf-8")
    (load,) = compare_loads(read_results(path), given, {})
    assert load.scenario is not None
    return load.scenario


def test_flags_count_before_the_file(tmp_path: Path) -> None:
    scenario = of_row(tmp_path, {}, cluster="b200-sxm", tp=4)
    assert (scenario.cluster.name, scenario.plan.tp) == ("b200-sxm", 4)


@pytest.mark.parametrize(
    ("model_id", "says"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "measured model llama-3.1-70b; predicted is model llama-3.1-8b"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "measured dtype fp8-dynamic; predicted is dtype bf16"),
        ("meta-llama/Llama-3.1-8B-Instruct", ""),
        ("our-model", ""),
    ],
)
@pytest.mark.filterwarnings("ignore:.*FP8-dynamic")
def test_another_model_than_the_file_says_is_said(tmp_path: Path, model_id: str, says: str) -> None:
    """Regression: times of a 70B next to predictions of an 8B, without a word."""
    document = json.loads((FOLDER / "vllm_concurrency.json").read_text("utf-8"))
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document | {"model_id": model_id}), "utf-8")
    (load,) = compare_loads(read_results(path), SERVER, {})
    said = [text for text in load.cautions if text.startswith("the file says that it ")]
    assert [f"the file says that it {says}, as given"] * bool(says) == said


def test_a_plan_that_the_file_does_not_say_is_said(tmp_path: Path) -> None:
    row = json.loads((FOLDER / "inferencex.json").read_text("utf-8"))[0]
    path = tmp_path / "row.json"
    path.write_text(json.dumps(row), "utf-8")
    (load,) = compare_loads(read_results(path), {"tp": 4}, {})
    assert "the file says that it measured tp 8; predicted is tp 4, as given" in load.cautions


def test_attention_dp_of_inferencex_shares_out_requests(tmp_path: Path) -> None:
    plan = of_row(tmp_path, {"dp_attention": "true", "ep": 8}).plan
    assert (plan.tp, plan.attention_dp, plan.ep) == (1, 8, 8)


def test_engines_and_systems_of_inferencex_have_the_names_of_this_catalog(tmp_path: Path) -> None:
    scenario = of_row(tmp_path, {"framework": "trt", "hw": "b200", "precision": "fp4"})
    assert (scenario.stack.name, scenario.cluster.name, scenario.workload.dtype) == ("trtllm", "b200-sxm", "nvfp4")


def test_what_the_file_does_not_say_must_be_given() -> None:
    with pytest.raises(UsageError, match="does not say cluster, tp") as fault:
        compared("vllm_rate.json", model="8b")
    assert fault.value.hint == "add --cluster h100-sxm --tp 8"
    with pytest.raises(UsageError, match="does not say stack"):
        compared("aiperf_concurrency.json", model="8b", cluster="h100-sxm", tp=1)
    with pytest.raises(UsageError, match="unknown model 'tiny-llama'") as fault:
        compared("vllm_rate.json", cluster="h100-sxm", tp=1)
    assert "--model" in fault.value.hint


@pytest.mark.parametrize(
    "name", ["sglang_bench_serving.jsonl", "genai_perf_profile_export.json", "aiperf_profile_export_loadgen.json"]
)
def test_results_of_other_generators_are_compared(name: str) -> None:
    flags = ("--model", "70b", "--cluster", "h100-sxm", "--tp", "8", "--stack", "sglang")
    code, shown, _ = run("validate", str(FOLDER / name), *flags)
    assert code == 0
    assert "TPOT mean" in shown
    _, explained, _ = run("validate", str(FOLDER / name), *flags, "--explain")
    assert ("1 because: contradicts itself" in explained) == name.startswith("sglang")


def test_failed_requests_are_counted_aloud(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    document = json.loads((FOLDER / "vllm_concurrency.json").read_text("utf-8"))
    path.write_text(json.dumps(document | {"failed": 4}), "utf-8")
    _, shown, _ = run("validate", str(path), *FLAGS)
    assert "4 of 20 requests failed where it was measured, and are left out" in " ".join(shown.split())


def test_a_file_of_which_nothing_is_compared_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    path.write_text((FOLDER / "sglang_bench_serving.jsonl").read_text("utf-8").splitlines()[0], "utf-8")
    code, shown, error = run("validate", str(path), *FLAGS)
    assert (code, shown) == (2, "")
    assert "none of its 1 rows could be predicted; the first: contradicts itself: 0.2400 requests/s" in error


def test_a_gate_judges_the_mean_time_per_token() -> None:
    loads = compared("vllm_rate.json", **SERVER)
    gate_loads(loads, 10.0)
    with pytest.raises(LadderSimError, match="mean absolute error of TPOT"):
        gate_loads(loads, 0.01)
    with pytest.raises(LadderSimError, match="a load is not predicted: unknown system"):
        gate_loads(compared("inferencex.json"), 10.0)


def test_the_command_shows_figures_and_writes_them(tmp_path: Path) -> None:
    path = str(FOLDER / "vllm_rate.json")
    code, shown, _ = run("validate", path, *FLAGS)
    assert code == 0
    assert "vllm bench serve, 24 requests, as recorded" in shown
    assert "TPOT p99" in shown
    code, text, _ = run("validate", path, *FLAGS, "--json")
    document = json.loads(text)
    assert code == 0
    assert {row["figure"] for row in document["rows"]} >= {"ttft_mean_s", "tpot_p99_s", "tokens_per_s"}
    assert document["summary"]["ttft_mean_s"]["n"] == 1
    assert run("validate", path, *FLAGS, "--max-error", "1")[0] == 1
    code, _, error = run("validate", path)
    assert code == 2
    assert "--model" in error


def test_many_loads_are_summed_up() -> None:
    shown = compared("inferencex.json").explain()
    assert "errors of all loads" in shown
    assert "1 load: not predicted: unknown system 'mi250x'" in shown


def test_flags_of_a_scenario_are_refused_with_a_table() -> None:
    assert run("validate", "--level", "roofline", "--json").code == 0
    for flags in (("--tp", "4"), ("--set", "intra.allreduce_floor=5us"), ("--no-p2p",)):
        code, _, error = run("validate", *flags)
        assert code == 2
        assert "the scenario is in the table" in error
    assert run("validate", str(FOLDER / "vllm_rate.json"), "--level", "roofline")[0] == 2


def test_the_figure_has_a_point_for_each_time() -> None:
    loads = compared("vllm_rate.json", **SERVER)
    drawn = loads_figure(loads)
    points = sum(len(trace.x) for trace in drawn.data if trace.mode == "markers")
    assert points == sum("per_s" not in name for name in loads[0].figures)
