"""The closed loop at small size, and what is made of its result."""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_sim import predict
from ladder_sim.costs.in_place import InPlace
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.errors import ProfileError, UsageError, install_command
from ladder_sim.report import console
from ladder_sim.report.crosscheck import crosscheck_page, crosscheck_report
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.runs import Compared, bootstrap
from ladder_sim_calibration.__main__ import main
from ladder_sim_calibration.crosscheck import run as crosscheck_run
from ladder_sim_calibration.crosscheck.run import cross_check
from ladder_sim_calibration.passes.fit import profile_of, times_of
from ladder_sim_calibration.passes.observations import Observations, OnLink, message_bytes, ops_of, steps
from ladder_sim_calibration.passes.observe import Experiment
from ladder_sim_calibration.passes.timers import OverlapTime
from ladder_sim_runtime.config import CommConfig, ModelConfig
from ladder_sim_runtime.runs import RequestTimes
from tests.support.commands import process
from tests.support.schemas import check
from tests.support.strategies import damaged
from tests.support.terminal import progress_of

pytestmark = pytest.mark.torch

VARIANTS = ("standard", "parallel", "ladder", "desync:2", "upper-bound")
# with kernels, messages or waits that those have not
OTHERS = (
    "delayed:1",
    "drop:1",
    "partial:50",
    "hybrid-ladder:2:2",
    "standard+sequence-parallel",
    "ladder+token-split:2",
)
SMALL = {"model.layers": "4", "model.vocab": "512"}
# bytes of the messages of a decode step and of a prompt of 16 tokens
SIZES = (6144.0, 98304.0)


EMULATED = CommConfig(backend="emulate")


def own_scenario(model: str, stack: str, **how: Any) -> Scenario:
    return Scenario(model=model, stack=stack, cluster="this-machine", **how)


def small(scenario: Scenario, variants: tuple[str, ...], **how: Any) -> Experiment:
    own = {"shares": (0.4,), "rounds": 2, "links": EMULATED, **how}
    return Experiment(scenario=scenario, variants=variants, runs=variants, **own)


def experiment() -> Experiment:
    scenario = own_scenario("1b", "gpt-fast", tp=8, batch=1, prompt=16, gen=4, overrides=SMALL)
    return small(scenario, VARIANTS, rounds=9)


def checked(experiment: Experiment) -> dict[str, Any]:
    made = cross_check(experiment)
    assert made
    return made[0]


@pytest.fixture(scope="module")
def both() -> Any:
    threads = torch.get_num_threads()
    measured = cross_check(experiment())
    torch.set_num_threads(threads)
    assert measured
    return json.loads(json.dumps(measured[0])), measured[1]


@pytest.fixture(scope="module")
def result(both: Any) -> Any:
    return both[0]


@pytest.fixture(scope="module")
def profile(both: Any) -> CalibrationProfile:
    own: CalibrationProfile = both[1]
    return own


def test_every_variant_is_predicted_and_measured(result: Any) -> None:
    """`calibrate check --gate` judges the errors, on a quiet machine (docs/development.md)."""
    check("crosscheck", result)
    rows = {(row["link"], row["variant"], row["quantity"]): row for row in result["rows"]}
    assert {variant for link, variant, _ in rows if link == "40%"} == set(VARIANTS)
    assert rows["40%", "ladder", "speedup"]["predicted"] > 1.0
    for row in rows.values():
        assert 0 < row["low"] <= row["measured"] <= row["high"]
        assert row["predicted"] > 0
    # what is calibrated on is not judged
    assert rows["calibration", "standard", "prefill"]["bound"] is None
    assert rows["40%", "standard", "prefill"]["bound"] == 0.1


def test_other_wirings_and_techniques_are_predicted_and_measured() -> None:
    """Parts of a batch of 32 take turns in a decode step."""
    few = SMALL | {"model.layers": "2"}
    scenario = own_scenario("1b", "gpt-fast", tp=8, batch=32, prompt=4, gen=3, overrides=few)
    rows = checked(small(scenario, OTHERS))["rows"]
    assert {row["variant"] for row in rows} == {"standard", *OTHERS}
    predicted = {(row["variant"], row["quantity"]): row["predicted"] for row in rows if row["link"] == "40%"}
    # shorter GEMMs, twice as many messages, of which all but the last are under the other part
    assert predicted["ladder+token-split:2", "decode"] != predicted["standard", "decode"]
    assert all(row["bound"] for row in rows if row["link"] == "40%" and row["quantity"] == "speedup")


def test_techniques_that_real_passes_have_not_are_refused() -> None:
    with pytest.raises(UsageError, match="technique 'fused-norm' cannot run in real passes"):
        cross_check(replace(experiment(), runs=("standard+fused-norm",)))


LATENT = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 96,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}


def test_experts_and_latent_attention_are_predicted_and_measured(tmp_path: Path) -> None:
    """Every kernel of theirs is timed in its place, and the graph says which it is."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LATENT))
    scenario = own_scenario(str(file), "gpt-fast", tp=4, batch=1, prompt=8, gen=3, overrides={})
    rows = checked(small(scenario, ("parallel", "ladder")))["rows"]
    assert {row["variant"] for row in rows} == {"standard", "parallel", "ladder"}
    assert all(row["predicted"] > 0 for row in rows)


OLMO = {
    "model_type": "olmo2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("stack", ["gpt-fast", "vllm"])
def test_norms_behind_blocks_and_over_all_heads_are_predicted_and_measured(stack: str, tmp_path: Path) -> None:
    """Regression: they were refused, though the runtime has them."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(OLMO))
    scenario = own_scenario(str(file), stack, tp=4, batch=1, prompt=8, gen=3, overrides={})
    assert ModelConfig.of(scenario.model).norms_behind
    # squares of queries and keys are 32-bit on every machine
    for phase, tokens in (("prefill", 8), ("decode", 1)):
        messages = [message_bytes(op) for op in ops_of(scenario, "standard", phase) if op.kind == "all_reduce"]
        assert set(messages) == {tokens * 2 * 4, tokens * 64 * 4}
        assert messages.count(tokens * 2 * 4) == 2
    result, profile = cross_check(small(scenario, ("ladder", "upper-bound"))) or ({}, None)
    assert {row["variant"] for row in result["rows"]} == {"standard", "ladder", "upper-bound"}
    assert all(row["predicted"] > 0 for row in result["rows"])
    assert profile
    assert profile.in_place
    sent = profile.in_place.collectives["all_reduce"]
    # messages of a pass take equally long
    seconds = sent.seconds.tolist()
    assert [sent.size_bytes.tolist(), seconds] == [[8, 64, 256, 2048], 2 * seconds[:2]]


def test_parts_that_the_runtime_has_not_are_refused() -> None:
    scenario = own_scenario("gpt-oss-20b", "gpt-fast", tp=4, batch=1, prompt=8, gen=3, overrides={"model.layers": "2"})
    with pytest.raises(UsageError, match="gpt-oss-20b has attention sinks, which real passes here do not run"):
        cross_check(small(scenario, ("ladder",)))


def test_real_passes_have_the_norms_of_queries_and_keys_of_their_model() -> None:
    for name, norms in (("qwen3-30b-a3b", "heads"), ("minimax-m2.5", "all"), ("8b", "none")):
        config = ModelConfig.of(catalog.model(name))
        assert (config.qk_norm, config.norms_behind) == (norms, False)
    for name, norms in (
        ("gemma-3-4b", "norms both before and behind its blocks"),
        ("llama-4-scout", "norms without weights"),
    ):
        with pytest.raises(UsageError, match=f"{name} has {norms}, which real passes here do not run"):
            ModelConfig.of(catalog.model(name))


def test_it_is_shown_as_a_table_and_as_a_page(result: Any) -> None:
    shown = console.to_text(crosscheck_report(result))
    assert "ladder-1b: 4 layers, hidden 1536, TP 8" in shown
    assert shown.count("ladder ") >= 3
    assert "Error of speedup: " in shown
    text = crosscheck_page(result)
    assert text.startswith("<!doctype html>")
    assert "desync:2" in text
    assert 'src="http' not in text


def test_the_gate_fails_if_an_error_exceeds_its_bound(
    result: Any, profile: CalibrationProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    for beyond, code in ((False, 0), (True, 1)):
        rows = [{**row, "beyond": False} for row in result["rows"]]
        rows[-1]["beyond"] = beyond
        checked = {**result, "rows": rows}, profile
        monkeypatch.setattr(crosscheck_run, "cross_check", lambda _, checked=checked: checked)
        assert main(["check", "--model", "1b", "--gate"]) == code


@pytest.mark.parametrize(
    ("predicted", "exceeds"), [(1.0, False), (1.15, False), (1.25, True), (0.86, False), (0.75, True)]
)
def test_only_an_error_that_noise_does_not_explain_exceeds_its_bound(predicted: float, exceeds: bool) -> None:
    row = Compared(variant="ladder", quantity="tpot_s", predicted=predicted, measured=1.0, low=0.95, high=1.05)
    assert row.exceeds(0.1) is exceeds


def test_the_bootstrap_holds_the_median() -> None:
    sample = np.random.default_rng(1).lognormal(size=30)
    low, high = bootstrap(sample)
    assert low < np.median(sample) < high
    assert bootstrap(sample) == (low, high)


def planted(*, kernel_s: float = 1e-3, message_s: float = 0.5e-3, resume_s: float = 0.0) -> Observations:
    """A machine on which every kernel and every message takes the same."""
    scenario = own_scenario("1b", "gpt-fast", tp=8, batch=1, prompt=16, gen=3, overrides=SMALL)
    curve = Curve(size_bytes=np.array([1.0, 1e9]), seconds=np.array([message_s, message_s * 1.000001]))
    observed = Observations(scenario=scenario, links=("slow",), calibration_link="slow", emulated={"slow": curve})
    passes_s = []
    for phase in ("prefill", "decode"):
        seconds = 0.0
        for step in steps(scenario, phase):
            for variant in ("upper-bound", "standard", "ladder"):
                for op in ops_of(scenario, variant, phase, step):
                    if op.stream == "compute":
                        observed.kernels[phase].setdefault((op.kind, op.shape), []).append(kernel_s)
            kernels = sum(op.stream == "compute" for op in ops_of(scenario, "upper-bound", phase, step))
            seconds += kernels * kernel_s
        passes_s.append(seconds)
    observed.load.append(0.0)
    observed.compute_only.append(RequestTimes(*passes_s))
    # 8 messages in each of 1 and 2 passes
    waited = [8 * count * (message_s + resume_s) for count in (1, 2)]
    observed.requests[OnLink("slow", "standard")].append(
        RequestTimes(*(a + w for a, w in zip(passes_s, waited, strict=True)))
    )
    return observed


def fitted(observed: Observations) -> CalibrationProfile:
    return profile_of(observed, created="2026-11-26")


def in_place(observed: Observations) -> InPlace:
    times = fitted(observed).in_place
    assert times
    return times


def test_what_a_wait_costs_is_found_and_does_not_slow_the_link() -> None:
    waits = in_place(planted(resume_s=50e-6)).waits
    assert {size: wait.wake_s for size, wait in waits.items()} == pytest.approx(dict.fromkeys(SIZES, 50e-6), rel=1e-3)
    # messages far longer than the blocks: ladder takes as long as the link, however late the computation goes on
    observed = planted(message_s=20e-3)
    even, late = (fitted(planted(message_s=20e-3, resume_s=resume_s)) for resume_s in (0.0, 1e-3))
    before, after = (times_of(observed.scenario, "ladder", profile).prefill_s for profile in (even, late))
    assert after == pytest.approx(before, abs=2.5e-3)
    before, after = (times_of(observed.scenario, "standard", profile).prefill_s for profile in (even, late))
    assert after == pytest.approx(before + 8e-3, rel=1e-3)


def test_what_a_wait_costs_is_found_on_a_machine_that_changes_its_pace() -> None:
    """Requests with and without communication are told apart within a round; in the second one the pace changed."""
    observed = planted(resume_s=50e-6)
    observed.load.extend((0.0, 0.0))
    alone, standard = observed.compute_only, observed.requests[OnLink("slow", "standard")]
    slow, longer = (
        RequestTimes(*(1.5 * seconds for seconds in alone[0])),
        RequestTimes(*(0.5 * seconds for seconds in alone[0])),
    )
    alone += [slow, slow]
    standard += [standard[0], RequestTimes(*(sum(both) for both in zip(standard[0], longer, strict=True)))]
    waits = in_place(observed).waits
    assert {size: wait.wake_s for size, wait in waits.items()} == pytest.approx(dict.fromkeys(SIZES, 50e-6), rel=1e-3)


@pytest.mark.parametrize("message_s", [0.5e-3, 20e-3])
def test_the_critical_path_adds_up_with_the_time_to_wake_up(message_s: float) -> None:
    """Regression: both engines agree, and a pass's time is what its critical path was made of."""
    observed = planted(message_s=message_s, resume_s=1e-3)
    for engine in ("fast", "des"):
        answer = predict(observed.scenario, ["standard", "ladder"], profile=fitted(observed), engine=engine)
        for prediction in answer.values():
            parts_s = prediction.request.breakdown.limits_s
            assert sum(parts_s.values()) == pytest.approx(prediction.request_s)
            assert prediction.request_s == pytest.approx(
                sum(times_of(observed.scenario, prediction.variant, fitted(observed)))
            )


def over_gloo(observed: Observations, **how: Any) -> Observations:
    """The same over a real link, on which a message takes 5 ms alone."""
    real = replace(observed, emulated={}, links=("gloo",), calibration_link="gloo", **how)
    for size in SIZES:
        real.collectives["all_reduce", size].append(5e-3)
    real.collectives["broadcast", 8.0].append(1e-3)
    real.requests[OnLink("gloo", "standard")] = real.requests.pop(OnLink("slow", "standard"))
    return real


def test_a_message_and_a_computation_at_the_same_time_slow_each_other() -> None:
    """Alone a message takes 5 ms, during kernels 7.5 ms, and they lose 40 % of their core to it."""
    observed = over_gloo(planted(message_s=5e-3))
    apart = fitted(replace(observed, overlaps={size: [OverlapTime(5e-3, 0.0)] for size in SIZES}))
    together = fitted(replace(observed, overlaps={size: [OverlapTime(7.5e-3, 3e-3)] for size in SIZES}))
    assert together.in_place
    assert [round(wait.slowed, 3) for wait in together.in_place.waits.values()] == [0.5, 0.5]
    assert [round(wait.core_share, 3) for wait in together.in_place.waits.values()] == [0.4, 0.4]
    scenario = observed.scenario
    assert times_of(scenario, "standard", together) == pytest.approx(times_of(scenario, "standard", apart), rel=1e-3)
    # ladder's blocks of 4 and 5 kernels of 1 ms hide their messages of 5 ms; slowed, 8 of 7.5 ms follow each other
    kernels_s = 1e-3 * sum(op.stream == "compute" for op in ops_of(scenario, "ladder", "prefill"))
    assert times_of(scenario, "ladder", apart).prefill_s == pytest.approx(kernels_s, abs=6e-3)
    assert times_of(scenario, "ladder", together).prefill_s == pytest.approx(kernels_s + 8 * 3e-3, abs=8e-3)


def test_a_message_takes_time_however_noisy_the_machine() -> None:
    """Regression: a standard that noise made faster than its kernels gave messages a negative time."""
    observed = over_gloo(planted(message_s=5e-3))
    observed.requests[OnLink("gloo", "standard")] = [RequestTimes(1e-3, 1e-3)]
    assert in_place(observed).collectives["all_reduce"].seconds.tolist() == pytest.approx([5e-5, 5e-5])


def test_a_link_is_faster_by_the_same_share_for_every_message_of_a_phase() -> None:
    """Regression: partial's messages of half the size took twice as long as whole ones."""
    observed = over_gloo(planted(message_s=5e-3, resume_s=-2e-3))
    for size in SIZES:
        observed.collectives["all_reduce", size / 2].append(5e-3)
    observed.requests[OnLink("gloo", "partial:50")] = observed.requests[OnLink("gloo", "standard")]
    collectives = in_place(observed).collectives
    assert collectives["all_reduce"].seconds.tolist() == pytest.approx([3e-3] * 4)
    assert collectives["broadcast"].seconds.tolist() == [1e-3]


def test_an_answer_of_one_token_has_no_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    few = SMALL | {"model.layers": "2"}
    scenario = own_scenario("1b", "gpt-fast", tp=8, batch=1, prompt=16, gen=1, overrides=few)
    screen = progress_of(monkeypatch)
    rows = checked(small(scenario, ("ladder",)))["rows"]
    # two rounds of two wirings, and of what predictions are calibrated on
    assert re.search(r"100 %, (\d+) of \1 measurements", screen.getvalue())
    # standard always runs
    assert {(row["variant"], row["quantity"]) for row in rows if row["link"] == "40%"} == {
        ("standard", "prefill"),
        ("standard", "request"),
        ("ladder", "prefill"),
        ("ladder", "request"),
        ("ladder", "speedup"),
    }


def test_ranks_that_refuse_keep_their_exit_code() -> None:
    command = [
        sys.executable,
        "-m",
        "ladder_sim_calibration",
        "check",
        "--backend=gloo",
        "--variant=ladder",
        "--model=1b",
    ]
    for flags, part in ((["--tp=1"], "--tp is 1"), (["--set=model.layers=x"], "layers"), (["--tp=3"], "tp 3")):
        done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
        assert done.returncode in (2, 3)
        assert done.stderr.startswith("error: ")
        assert part in done.stderr


def test_a_profile_can_be_used_again(profile: CalibrationProfile, tmp_path: Path) -> None:
    """Also on other links: they follow from the profile's upper bound."""
    file = tmp_path / "mine.json.gz"
    save_profile(profile, file)
    again = load_profile(file)
    rows = checked(replace(experiment(), runs=("standard", "ladder"), rounds=2, profile=again))["rows"]
    assert len(rows) == 7
    assert {row["link"] for row in rows} == {"40%"}
    scenario = experiment().scenario
    assert times_of(scenario, "ladder", again) == pytest.approx(times_of(scenario, "ladder", profile))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"tp": "4"}, "measured on TP 4; these runs: TP 8"),
        ({"cpu": "abacus", "tp": "4"}, "measured on abacus, TP 4; these runs: "),
    ],
)
def test_a_profile_of_other_runs_or_another_machine_is_refused(
    profile: CalibrationProfile, change: dict[str, str], part: str
) -> None:
    other = replace(profile, environment={**profile.environment, **change})
    with pytest.raises(ProfileError, match=part):
        cross_check(replace(experiment(), profile=other))


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_a_profile_of_passes_is_seen(
    profile: CalibrationProfile, tmp_path: Path, data: st.DataObject
) -> None:
    """It is refused, or predicts a time."""
    file = tmp_path / "mine.json"
    save_profile(profile, file)
    document = json.loads(file.read_text("utf-8"))
    changed = data.draw(damaged(document["in_place"]))
    file.write_bytes(
        json.dumps({**document, "in_place": None}).encode().replace(b'"in_place": null', b'"in_place": ' + changed, 1)
    )
    try:
        times = times_of(experiment().scenario, "ladder", load_profile(file))
    except UsageError as error:
        assert error.hint  # noqa: PT017
        return
    assert 0 < sum(times) < float("inf")


def test_what_no_pass_ran_is_named() -> None:
    profile = fitted(planted())
    times = profile.in_place
    assert times
    for change, part in (({"kernels": {}}, "ran no embedding"), ({"collectives": {}}, "ran no broadcast")):
        with pytest.raises(UsageError, match=part):
            times_of(planted().scenario, "upper-bound", replace(profile, in_place=replace(times, **change)))  # type: ignore[arg-type]


def test_a_message_is_counted_in_the_bytes_of_the_machine() -> None:
    scenario = planted().scenario
    sizes = {op.kind: message_bytes(op) for op in ops_of(scenario, "upper-bound", "decode") if op.stream == "comm"}
    sizes |= {op.kind: message_bytes(op) for op in ops_of(scenario, "standard", "decode") if op.stream == "comm"}
    assert sizes == {"broadcast": 8, "all_reduce": 1536 * 4}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "the following arguments are required: --model"),
        (("--model", "1b", "--save", "x.csv"), "must end in .json or .txt"),
        (("--model", "1b", "--save", "nowhere/x.json"), "no such folder"),
        (("--model", "1b", "--rounds", "1"), "--rounds is 1"),
        (("--model", "1b", "--out", "nowhere/x.json.gz"), "no such folder"),
    ],
)
def test_what_the_command_line_refuses(
    arguments: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    assert part in capsys.readouterr().err


def test_measuring_without_torch_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    assert main(["check", "--model", "1b"]) == 4
    assert f"hint: {install_command('runtime')}" in capsys.readouterr().err


def test_the_simulators_command_line_passes_everything_on(tmp_path: Path) -> None:
    flags = ("--set=model.layers=2", "--set=model.vocab=512", "--tp=2", "--prompt=8", "--gen=2", "--rounds=2")
    out, page = tmp_path / "result.json", tmp_path / "page.html"
    output = (f"--save={out}", f"--html={page}", "--variant=standard,ladder", "--variant=upper-bound")
    ran = process("calibrate", "check", "--model=1b", "--backend=gloo", *flags, *output)
    assert ran.code == 0, ran.err
    assert {row["variant"] for row in json.loads(out.read_text())["rows"]} == {"standard", "ladder", "upper-bound"}
    assert page.exists()
    assert "usage: ladder-sim calibrate check" in process("calibrate", "check", "--help").out
