"""Steps of a running engine in place of simulated ones: their times, their file, and the command that takes them."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ladder_sim import Scenario
from ladder_sim.errors import SpecError, UnknownNameError, UsageError
from ladder_sim.serving import MeasuredSteps, Request, Service
from ladder_sim.serving.replicas.simulation import Pool, simulate
from ladder_sim.serving.steps.mix import Mix
from tests.support.commands import run
from tests.support.replicas import SERVER


def to_toml(steps: MeasuredSteps, **changed: object) -> str:
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in (asdict(steps) | changed).items())


def test_a_step_costs_what_it_runs() -> None:
    mix = Mix.of(decode=[1000, 500], prefill=[(300, 0)])
    assert SERVER.of_mix(mix) == pytest.approx(0.008 + 300 * 200e-6 + 2 * 400e-6 + 1500 * 2e-6)
    assert SERVER.slower(1.5).of_mix(mix) == pytest.approx(1.5 * SERVER.of_mix(mix))


@pytest.mark.parametrize("concurrency", [0, 1])
def test_a_first_token_holds_the_time_of_the_front_end(concurrency: int) -> None:
    """One at a time: nobody waits, whether requests come at times of their own or after each other."""
    requests = [Request(arrival_s=0.0 if concurrency else 10.0 * number, prompt=300, gen=2) for number in range(3)]
    spec = replace(SERVER.spec, frontend_steps=2.0, frontend_token_s=1e-5)
    answers = simulate("standard", Pool(times=SERVER, spec=spec), requests, concurrency=concurrency).answers
    prompt_s, token_s = SERVER.of_mix(Mix.of(prefill=[(300, 0)])), SERVER.of_mix(Mix.of(decode=[301]))
    assert [answer.ttft_s for answer in answers] == pytest.approx(3 * [0.012 + 2.0 * token_s + 0.003 + prompt_s])
    assert [answer.tpot_s for answer in answers] == pytest.approx(3 * [token_s])


def test_other_wirings_take_the_simulated_ratio() -> None:
    scenario = Scenario(model="70b", stack="vllm")
    service = Service(scenario=scenario, context=2048, steps=SERVER)
    assert service.spec == SERVER.spec
    simulated = Service(scenario=scenario, context=2048, changed={"step_tokens": 2048, "step_requests": 128})
    mix = Mix.of(decode=[1000] * 32)
    ratio = simulated.times("ladder").of_mix(mix) / simulated.times("standard").of_mix(mix)
    assert ratio < 0.9
    assert service.times("standard").of_mix(mix) == SERVER.of_mix(mix)
    assert service.times("ladder").of_mix(mix) == pytest.approx(ratio * SERVER.of_mix(mix))
    assert service.times("ladder").slower(2.0).of_mix(mix) == pytest.approx(2.0 * ratio * SERVER.of_mix(mix))


def test_the_file_is_what_was_fitted(tmp_path: Path) -> None:
    path = tmp_path / "steps.toml"
    path.write_text(to_toml(SERVER), "utf-8")
    assert MeasuredSteps.read(path) == SERVER


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"step_s": -0.01}, "step_s"),
        ({"step_s": float("nan")}, "step_s"),
        ({"step_tokens": 0}, "step_tokens"),
        ({"block_tokens": 200_000}, "block_tokens"),
        ({"ahead": "maybe"}, "ahead"),
        ({"error": "wide"}, "error"),
        ({"prompt_s": 0.1}, "prompt_s"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    path = tmp_path / "steps.toml"
    path.write_text(to_toml(SERVER, **changed).replace("NaN", "nan"), "utf-8")
    with pytest.raises((SpecError, UnknownNameError, UsageError), match=message):
        MeasuredSteps.read(path)


def test_a_file_that_lacks_a_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.toml"
    path.write_text(to_toml(SERVER).replace("kv_tokens", "# kv_tokens"), "utf-8")
    with pytest.raises(SpecError, match="kv_tokens is missing"):
        MeasuredSteps.read(path)


def test_the_commands_take_measured_steps(tmp_path: Path) -> None:
    path = tmp_path / "steps.toml"
    path.write_text(to_toml(SERVER), "utf-8")
    load = [f"--steps={path}", "--rate=2", "--prompt=300", "--gen=50", "--requests=20"]
    shown = run("serve", *load, "--variant=standard", "--explain").out
    assert "At 2 requests/s" in shown
    assert "steps of vllm 0.32.0, TP 2; " in shown
    assert "fitted to 1000 steps of vllm 0.32.0, TP 2, half of them within 5.0%" in shown
    assert "times to first token hold 12.0 ms of its front end" in shown
    # nothing was compared with it
    assert "Predictions were compared" not in shown
    both = run("serve", *load, "--model=70b", "--stack=vllm", "--explain").out
    assert "ladder: times the ratio to standard as simulated for llama-3.1-70b, TP 8 on h100-sxm" in both
    load = ["--explain", *load]
    needs = run("capacity", *load, "--slo=tpot_p95=30ms", "--variant=standard").out
    assert "fitted to 1000 steps of vllm 0.32.0, TP 2" in needs
    assert "Predictions were compared" not in needs
    variants = "--variant=standard,ladder,upper-bound"
    needs = run("capacity", *load, "--model=70b", "--stack=vllm", "--slo=tpot_p95=30ms", "--seeds=1", variants).out
    assert "ladder, upper-bound: times the ratio to standard" in needs
    # a replica of the second plan has more GPUs than the first needs
    needs = run("capacity", *load, "--model=70b", "--stack=vllm", "--slo=tpot_p95=30ms", "--seeds=1", "--tp=4,8").out
    assert "TP 8: standard needs more GPUs" in needs
