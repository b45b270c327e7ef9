"""What was compared with end-to-end runs, what was not, and how much wider the intervals are for it."""

import csv
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ladder_sim.confidence import errors
from ladder_sim.confidence.errors import UNCHECKED, Unchecked
from ladder_sim.confidence.runs import Compared, parts_alike
from ladder_sim.costs.profile import run_sizes
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.display.labels import validated_lines
from ladder_sim.prediction import Prediction, predict
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.dataset import read_dataset
from tests.conftest import DATA, REPO

# parts that widen intervals
FIVE = {"stack", "gpu", "links", "model_family", "precision"}
RUNS = (
    "runs of gpt-fast on H100 SXM5 80GB: llama-3.1-405b-kv16, llama-3.1-70b, llama-3.1-8b in fp16, TP 1-16, "
    "batch 1-256, prompt 1024 + 512."
)


def answer(**fields: Any) -> dict[str, Prediction]:
    return predict(Scenario(**fields), ignore_memory=True)


def unchecked(**fields: Any) -> set[str]:
    return {part for part, checked in answer(**fields)["standard"].confidence.validated.items() if not checked}


def recorded(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def share_inside(log_errors: Sequence[float], log_widths: Sequence[float]) -> float:
    return sum(abs(error) <= width for error, width in zip(log_errors, log_widths, strict=True)) / len(log_errors)


def test_runs_that_were_compared_are_checked_in_every_part() -> None:
    for scenario in {run.configuration.scenario() for run in read_dataset().measurements}:
        confidence = predict(scenario, ignore_memory=True)["standard"].confidence
        assert list(confidence.validated) == list(UNCHECKED)
        assert all(confidence.validated.values())


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        # bf16 is priced by the tables of fp16
        ({}, set()),
        ({"model": "llama-2-70b"}, set()),
        ({"model": "405b"}, set()),
        ({"model": "1b", "tp": 2}, {"model_size"}),
        ({"batch": 512, "prompt": 300, "gen": 16}, {"batch", "prompt", "gen"}),
        ({"tp": 1}, set()),
        ({"model": "8b", "cluster": "h100-p5", "tp": 2, "profile": "none"}, set()),
        # tables of another GPU
        ({"profile": "b200-sxm"}, {"gpu"}),
        ({"stack": "vllm"}, {"stack"}),
        ({"allreduce": "one-shot"}, {"stack"}),
        ({"overrides": {"stack.stream_wait": "5us"}}, {"stack"}),
        ({"cluster": "h200-sxm"}, {"gpu", "links"}),
        ({"overrides": {"gpu.hbm_bandwidth": "5TB/s"}}, {"gpu"}),
        # the roofline does not depend on them, contention and waits do
        ({"overrides": {"gpu.sms": "100"}}, {"gpu"}),
        ({"overrides": {"cluster.rank_skew": "0.5"}}, {"gpu"}),
        # times of another GPU, carried over
        ({"overrides": {"cluster.profile": "a100-sxm"}}, {"gpu"}),
        ({"profile": "h200-sxm"}, {"gpu"}),
        ({"profile": "h100-sxm"}, set()),
        ({"overrides": {"intra.bandwidth": "100GB/s"}}, {"links"}),
        # links that no rank uses
        ({"overrides": {"inter.bandwidth": "100Gb/s"}}, set()),
        # over two nodes standard ran, and other wirings did not
        ({"model": "405b", "nodes": 2}, {"wiring"}),
        ({"model": "405b", "nodes": 4, "tp": 32}, {"links", "tp", "wiring"}),
        ({"p2p": False}, set()),
        ({"p2p": False, "overrides": {"cluster.host_low_latency_share": "0.5"}}, {"links"}),
        ({"overrides": {"cluster.host_low_latency_share": "0.5"}}, set()),
        ({"model": "qwen3-32b"}, {"model_family"}),
        ({"overrides": {"model.qkv_bias": "true"}}, {"model_family"}),
        ({"dtype": "fp8"}, {"precision"}),
        ({"technique": "fused-norm"}, {"technique"}),
        ({"cluster": "a100-sxm-hdr"}, {"gpu", "links"}),
        ({"cluster": "b200-sxm", "stack": "trtllm", "dtype": "fp8", "model": "qwen2.5-72b"}, FIVE),
    ],
)
def test_what_no_fits_runs_had_is_not_checked(fields: Mapping[str, Any], parts: set[str]) -> None:
    profile = fields.get("profile")
    scenario = Scenario(**{name: value for name, value in fields.items() if name != "profile"})
    confidence = predict(scenario, profile=profile, ignore_memory=True)["standard"].confidence
    assert {part for part, checked in confidence.validated.items() if not checked} == parts
    runs, *lines = validated_lines(confidence)
    engine, sheets = scenario.stack.name, " from datasheets" if profile == "none" else ""
    assert runs == (
        f"Predictions{sheets} were compared with {RUNS}"
        if engine == "gpt-fast"
        else f"Nothing like this was measured: no static batch of dense models under {engine}. Nearest: {RUNS}"
    )
    wider = "".join(line for line in lines if line.startswith("Not in these runs, so intervals are wider: "))
    for part in UNCHECKED:
        name = {"gpu": "GPU", "tp": "TP", "gen": "new tokens"}.get(part, part.replace("_", " "))
        assert (f"{name} (" in wider) == (part in parts)


def test_a_wiring_that_no_run_had_widens_its_own_interval() -> None:
    """Regression: it had the interval of one that runs had."""
    answers = answer()
    wider = predict(Scenario(), ["standard", "ladder", "ladder:2", "hybrid-ladder:16"])
    confidence = wider.confidence
    assert {part for part, checked in confidence.validated.items() if not checked} == {"wiring"}
    assert confidence.unchecked_wirings == ["ladder:2"]
    assert wider["ladder"].speedup == answers["ladder"].speedup
    widths = {name: wider[name].speedup.log_width for name in ("ladder", "ladder:2")}
    assert widths["ladder:2"] > 1.2 * widths["ladder"]
    assert any(line.endswith("wiring (ladder:2).") for line in validated_lines(confidence))


def test_the_range_is_that_of_the_data_set() -> None:
    """Every size of the runs is in it, and none beyond."""
    fit = load_profile("h100-sxm-gpt-fast").stack_fit
    assert fit is not None
    sizes = [run_sizes(run.configuration.scenario()) for run in read_dataset(fit.runs).measurements]
    assert fit.sizes == {
        name: (min(each[name] for each in sizes), max(each[name] for each in sizes)) for name in sizes[0]
    }


def test_a_fit_that_does_not_say_its_sizes_holds_none() -> None:
    profile = load_profile("h100-sxm-gpt-fast")
    assert profile.stack_fit is not None
    silent = dataclasses.replace(profile.stack_fit, sizes={})
    parts = parts_alike(Scenario(), profile, Compared(profile.cluster, silent))
    assert {part for part, alike in parts.items() if not alike} == set(UNCHECKED) - FIVE - {
        "experts",
        "layers",
        "plan",
        "technique",
        "wiring",
    }


def test_answers_of_several_scenarios_say_each_value_once() -> None:
    every = [answer(batch=batch)["standard"].confidence for batch in (1, 512, 1024)]
    runs, wider, stack = validated_lines(*every)
    assert runs == f"Predictions were compared with {RUNS}"
    assert wider == "Not in these runs, so intervals are wider: batch (512; 1024)."
    assert stack.startswith("Stack gpt-fast: the benchmark of the paper's authors, on NCCL;")
    assert not any("Stack" in line for line in validated_lines(answer(stack="vllm")["standard"].confidence))


def test_an_edited_file_is_another_stack_under_any_name(tmp_path: Path) -> None:
    """`show --toml gpt-fast` gives the file to start from, which keeps its name."""
    text, file = catalog.toml_text("gpt-fast"), tmp_path / "lab.toml"
    for old, new, parts in [
        ("", "", set()),
        ('collective_launch_s = "2.5 us"', 'collective_launch_s = "50 us"', {"stack"}),
        ('residual_add = "compiled"', 'residual_add = "fused"', {"stack"}),
        ('profile = "h100-sxm-gpt-fast"', 'profile = ""', set()),
    ]:
        assert old in text
        file.write_text(text.replace(old, new) if old else text, "utf-8")
        assert unchecked(stack=str(file)) == parts
        lines = validated_lines(answer(stack=str(file))["standard"].confidence)
        assert any(
            "stack (gpt-fast, all-reduce nccl, other figures than the catalog's)" in line for line in lines
        ) == bool(parts)


def test_what_was_set_by_hand_is_named() -> None:
    """Without it, the stack that was not compared has the name of the one that was."""
    changes = {
        "stack.stream_wait": "5us",
        "gpu.bf16": "500TFLOP/s",
        "intra.allreduce_floor": "9us",
        "model.layers": "79",
    }
    (wider,) = (
        line
        for line in validated_lines(answer(overrides=changes)["standard"].confidence)
        if line.startswith("Not in these runs")
    )
    for part, name in zip(("stack", "GPU", "links", "model family"), changes, strict=True):
        (detail,) = re.findall(rf"{part} \(([^)]*)\)", wider)
        assert detail.endswith(f", {name} by hand")


def test_a_model_of_no_known_family_is_not_checked() -> None:
    model = dataclasses.replace(catalog.model("70b"), name="own", family="")
    assert unchecked(model=model) == {"model_family"}


@pytest.mark.parametrize(
    "fields",
    [
        {"stack": "vllm"},
        {"cluster": "h200-sxm"},
        {"model": "405b", "nodes": 4, "tp": 32},
        {"model": "qwen3-32b", "dtype": "fp8", "cluster": "b200-sxm", "stack": "trtllm"},
        {"model": "8b", "tp": 1, "cluster": "a100-sxm-hdr"},
    ],
)
def test_intervals_widen_around_the_same_prediction(fields: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wider = answer(**fields)
    shown = {name: (each.tokens_per_s, each.speedup) for name, each in wider.items()}
    monkeypatch.setattr(errors, "UNCHECKED", dict.fromkeys(UNCHECKED, Unchecked()))
    for name, each in answer(**fields).items():
        rate, gain = shown[name]
        assert (rate.value, gain.value) == (each.tokens_per_s.value, each.speedup.value)
        assert rate.log_width > each.tokens_per_s.log_width
        differs = name != "standard" and each.speedup.value != 1.0
        assert (gain.log_width > each.speedup.log_width) == differs


def test_widths_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack whose kernels may err by a tenth and whose collectives by a half."""
    monkeypatch.setattr(errors, "UNCHECKED", dict.fromkeys(UNCHECKED, Unchecked()))
    known = answer(stack="vllm")
    before = {name: (each.tokens_per_s.log_width, each.speedup.log_width) for name, each in known.items()}
    monkeypatch.setitem(errors.UNCHECKED, "stack", Unchecked(kernels=0.1, collectives=0.5))
    predictions = answer(stack="vllm")
    base = predictions["standard"]
    waits = base.breakdown.exposed_comm_s / base.request_s
    for name, each in predictions.items():
        critical = each.breakdown.collectives_s / each.request_s
        exposed_s = each.breakdown.exposed_comm_s
        rate = math.log1p(math.hypot(0.1 * (1 - critical), 0.5 * critical))
        fewer_waits = math.hypot(0.1, 0.5) * (waits - exposed_s / each.request_s)
        fewer_kernels = 0.1 * (1 - (each.request_s - exposed_s) / (base.request_s * (1 - waits)))
        gain = math.log1p(math.hypot(fewer_waits, fewer_kernels))
        assert each.tokens_per_s.log_width == pytest.approx(math.hypot(before[name][0], rate))
        assert each.speedup.log_width == pytest.approx(math.hypot(before[name][1], gain))


def test_what_takes_no_time_widens_nothing() -> None:
    """Links, on one GPU."""
    alone = answer(model="8b", tp=1, overrides={"intra.bandwidth": "100GB/s"})
    as_measured = answer(model="8b", tp=1)
    for name, each in alone.items():
        assert each.tokens_per_s == as_measured[name].tokens_per_s


def test_servings_lie_in_the_intervals_of_engines() -> None:
    """Nine tenths do. Between two steps of a request the prompts of others are prefilled."""
    errors, widths = [], []
    for row in recorded("serving_h100.csv"):
        fields = {"model": row["model"], "stack": row["stack"], "dtype": row["dtype"], "tp": int(row["tp"])}
        flying, prompt, gen = (int(row[name]) for name in ("concurrency", "prompt", "gen"))
        batch = answer(**fields, batch=flying, prompt=prompt, gen=gen)["standard"]
        prefill = answer(**fields, prompt=prompt, gen=1)["standard"]
        assert batch.tpot_s is not None
        tpot_s = batch.tpot_s + (flying - 1) / gen * prefill.ttft_s
        errors.append(math.log(tpot_s / (1e-3 * float(row["tpot_ms"]))))
        widths.append(batch.tokens_per_s.log_width)
    assert len(errors) == 113
    assert share_inside(errors, widths) >= 0.9


def test_prefills_with_multimem_and_without_all_reduces() -> None:
    """Prompts from 1k to 64k on four and eight H100s, with the all-reduce that the artifact ran."""
    page = (REPO / "docs" / "evidence.md").read_text("utf-8")
    for tp in ("4", "8"):
        errors = []
        for row in (row for row in recorded("tokenweave_prefill.csv") if row["tp"] == tp):
            fields = {"model": "70b", "stack": "vllm", "allreduce": "multimem", "gen": 1}
            predictions = answer(**fields, tp=int(tp), prompt=int(row["prompt"]))
            standard_s, bound_s = (1e-3 * float(row[name]) for name in ("ttft_ms", "without_allreduce_ms"))
            ratio = predictions["standard"].ttft_s / predictions["upper-bound"].ttft_s
            errors.append(
                (
                    abs(predictions["standard"].ttft_s / standard_s - 1),
                    abs(predictions["upper-bound"].ttft_s / bound_s - 1),
                    abs(ratio / (standard_s / bound_s) - 1),
                )
            )
        assert len(errors) == 7
        standard, bound, gain = (sum(column) / len(errors) for column in zip(*errors, strict=True))
        assert standard <= 0.06, tp
        assert bound <= 0.06, tp
        assert gain <= 0.05, tp
        assert f"| {tp} | {100 * standard:.1f} % | {100 * bound:.1f} % | {100 * gain:.1f} % |" in page


def test_prefills_without_all_reduces_lie_in_the_intervals_of_an_engine() -> None:
    rate_errors, rate_widths, gain_errors, gain_widths = [], [], [], []
    for row in recorded("tokenweave_prefill.csv"):
        standard_ms, bound_ms = float(row["ttft_ms"]), float(row["without_allreduce_ms"])
        predictions = answer(model="70b", stack="vllm", tp=int(row["tp"]), prompt=int(row["prompt"]), gen=1)
        for name, measured_ms in (("standard", standard_ms), ("upper-bound", bound_ms)):
            rate_errors.append(math.log(1e3 * predictions[name].ttft_s / measured_ms))
            rate_widths.append(predictions[name].tokens_per_s.log_width)
        bound = predictions["upper-bound"].speedup
        gain_errors.append(math.log(bound.value / (standard_ms / bound_ms)))
        gain_widths.append(bound.log_width)
    assert len(gain_errors) == 14
    assert share_inside(rate_errors, rate_widths) >= 0.9
    assert share_inside(gain_errors, gain_widths) >= 0.9
    # what is known without them would not hold them
    assert share_inside(gain_errors, [width / 3 for width in gain_widths]) < 0.9


def test_the_page_states_the_figures() -> None:
    page = (REPO / "docs" / "how" / "intervals.md").read_text("utf-8")
    for part, adds in UNCHECKED.items():
        name = "GPU" if part == "gpu" else part.replace("_", " ")
        kernels, collectives = (
            f"{share:.0%}".replace("%", " %") if share else "-" for share in dataclasses.astuple(adds)
        )
        assert f"| {name} | {kernels} | {collectives} |" in page
