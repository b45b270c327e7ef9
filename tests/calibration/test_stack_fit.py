"""Fits of a stack's figures to end-to-end runs: what they recover, refuse and keep, what predictions make of them."""

import dataclasses
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import IDENTIFIED, CalibrationProfile, FittedFigure, StackFit
from ladder_sim.costs.profile_file import load_profile, save_profile
from ladder_sim.errors import ProfileError, UsageError
from ladder_sim.prediction import resolve_profile
from ladder_sim.validation.compare import unseen, validate
from ladder_sim.validation.dataset import PROTOCOLS, Configuration, Measurement, read_dataset
from ladder_sim_calibration.__main__ import main
from ladder_sim_calibration.stack_fit.fit import conformal, fit_stack, unseen_runs
from ladder_sim_calibration.stack_fit.problem import PRIORS, Problem
from tests.conftest import REPO
from tests.support.commands import run

SHIPPED = {"A": "h100-sxm-gpt-fast-a", "B": "h100-sxm-gpt-fast"}


@pytest.fixture(scope="module")
def base() -> CalibrationProfile:
    return load_profile("h100-sxm")


def configuration(**fields: object) -> Configuration:
    plain = Configuration(
        source="", model="8b", cluster="h100-sxm", nodes=1, tp=4, p2p=True, stack="gpt-fast", dtype="bf16",
        batch=1, prompt=64, gen=32,
    )  # fmt: skip
    return dataclasses.replace(plain, **fields)  # type: ignore[arg-type]


def runs_with(
    figures: Mapping[str, float], configurations: Sequence[Configuration], base: CalibrationProfile
) -> list[Measurement]:
    """Runs as they would be measured if the figures were these."""
    variants = ("standard", "ladder", "upper-bound")
    measurements = []
    for one in configurations:
        columns = {name: [value] * 2 for name, value in figures.items()}
        times = simulate_requests(one.scenario(), columns, variants, base)
        measurements += [
            Measurement(
                line=len(measurements) + number,
                configuration=one,
                variant=variant,
                tokens_per_s=one.batch * one.gen / float(times[variant].request_s[0]),
                ttft_s=float(times[variant].ttft_s[0]),
                tpot_s=float(times[variant].decode_s[0]) / (one.gen - 1),
            )
            for number, variant in enumerate(variants)
        ]
    return measurements


def whole(runs: Sequence[Measurement]) -> list[Measurement]:
    """The same runs where prefill and decode were not timed apart."""
    return [dataclasses.replace(run, ttft_s=None, tpot_s=None) for run in runs]


def fitted(profile: CalibrationProfile) -> StackFit:
    assert profile.stack_fit is not None
    return profile.stack_fit


@pytest.mark.slow
def test_planted_figures_are_recovered(base: CalibrationProfile) -> None:
    """Known figures, other than the priors' medians, come back within their own intervals."""
    planted = {"stack.gemv_factor": 0.85, "stack.collective_launch_s": 4e-6, "stack.prompt_factor": 1.2}
    shapes = [configuration(tp=tp, batch=batch) for tp in (2, 8) for batch in (1, 8)]
    runs = runs_with(planted, shapes, base)
    fit = fit_stack(
        runs,
        # tables that are not shipped
        dataclasses.replace(base, name="own"),
        name="planted",
        dataset="planted",
        created="2026-01-01",
        starts=2,
        draws=12,
        workers=2,
    )
    stack_fit = fitted(fit.profile)
    for name, value in planted.items():
        figure = stack_fit.figures[name]
        assert abs(np.log(figure.value / value)) < 2.0 * figure.log_sd + 0.02, name
    assert np.abs(fit.log_errors).max() < 0.02
    assert stack_fit.figures["stack.gemv_factor"].identified
    # without a run that lacks peer-to-peer access nothing is known about the way through host memory
    assert {"host.allreduce_floor_s", "host.bandwidth_Bps", "host_low_latency_share"} <= set(fit.left_out)
    assert stack_fit.figures["host.allreduce_floor_s"].value == stack_fit.figures["host.allreduce_floor_s"].default
    assert not stack_fit.figures["host.bandwidth_Bps"].identified
    assert (stack_fit.tps, stack_fit.host_tps, stack_fit.models, stack_fit.rows) == ((2, 8), (), ("llama-3.1-8b",), 12)
    assert (stack_fit.allreduce, stack_fit.families, stack_fit.nodes) == ("nccl", ("llama",), (1,))
    # made on the tables in its own file: nothing is taken over from another GPU
    assert stack_fit.base == fit.profile.tables_of == "planted"
    scenario = runs[0].configuration.scenario()
    assert not any(
        "taken over" in text for text in predict(scenario, profile=fit.profile)["ladder"].confidence.warnings
    )


def test_few_runs_fit_few_figures(base: CalibrationProfile) -> None:
    problem = Problem(tuple(runs_with({}, [configuration(tp=1)], base)[:2]), base)
    sensitive = [name for name, fitted_here in zip(problem.figures, problem.fitted, strict=True) if fitted_here]
    assert sensitive
    # one GPU: nothing is communicated, and nothing waits for the slowest
    assert not {"stack.collective_launch_s", "rank_skew"} & set(sensitive)
    # one sequence
    assert "stack.batched_attention_s" not in sensitive
    assert set(sensitive) | set(problem.left_out) == set(PRIORS)


def test_runs_that_cannot_be_fitted_together_are_refused(base: CalibrationProfile) -> None:
    one = Measurement(line=7, configuration=configuration(), variant="standard", tokens_per_s=100.0)
    other = dataclasses.replace(one, line=9, configuration=configuration(stack="vllm"))
    with pytest.raises(UsageError, match="line 9: stack 'vllm', but 'gpt-fast' before"):
        Problem((one, other), base)
    with pytest.raises(UsageError, match="1 runs: must be 2"):
        fit_stack((one,), base, name="one", dataset="", created="2026-11-27")
    with pytest.raises(UsageError, match="another GPU"):
        Problem((one, dataclasses.replace(one, variant="ladder")), load_profile("a100-sxm"))


def test_errors_that_runs_share_cost_less_than_their_own(base: CalibrationProfile) -> None:
    """All runs of one TP degree and batch 2 % too fast is one error; one of them alone so would be three sigma."""
    runs = whole(runs_with({}, [configuration(batch=batch) for batch in (1, 4)], base))

    def cost(off: Sequence[int]) -> float:
        shifted = [
            dataclasses.replace(row, tokens_per_s=row.tokens_per_s * (1.02 if at in off else 1.0))
            for at, row in enumerate(runs)
        ]
        return Problem(tuple(shifted), base).solve_from(np.zeros(len(Problem(tuple(runs), base).figures))).cost

    assert cost([0, 1, 2]) < cost([1])


def test_a_fit_sees_what_a_sum_hides(base: CalibrationProfile) -> None:
    """Where prefills and decode steps were timed apart, errors that cancel in the throughput count; prefills' less."""
    apart = runs_with({}, [configuration(batch=batch) for batch in (1, 4)], base)
    problem = Problem(tuple(apart), base)
    assert problem.observed == [(row, name) for row in range(len(apart)) for name in ("ttft_s", "tpot_s")]
    summed = Problem(tuple(whole(apart)), base)
    assert summed.observed == [(row, "tokens_per_s") for row in range(len(apart))]
    for each in (problem, summed):
        np.testing.assert_allclose(each.logs(np.zeros(len(each.figures))), each.measured, atol=1e-9)

    def cost(**factors: float) -> float:
        first, *others = apart
        off = {name: getattr(first, name) * factor for name, factor in factors.items()}
        return (
            Problem((dataclasses.replace(first, **off), *others), base).solve_from(np.zeros(len(problem.figures))).cost
        )

    assert cost() < 1e-9
    assert 0.0 < cost(ttft_s=1.05) < cost(tpot_s=1.05)


@pytest.mark.parametrize("protocol", SHIPPED)
def test_shipped_fits_saw_their_protocols_rows_and_no_others(protocol: str, base: CalibrationProfile) -> None:
    """The figures shipped are where the fit to exactly these rows stops: any other row would move them."""
    stack_fit = fitted(load_profile(SHIPPED[protocol]))
    data = read_dataset("ladder-h100").measurements
    rows = tuple(filter(PROTOCOLS[protocol].fits, data))
    assert (stack_fit.runs, stack_fit.protocol, stack_fit.rows) == ("ladder-h100", protocol, len(rows))
    # evidence is of all rows: those that the fit did not see say how wide intervals must be
    scenarios = [row.configuration.scenario() for row in data]
    assert {stack_fit.allreduce} == {each.stack.allreduce for each in scenarios}
    assert set(stack_fit.families) == {each.model.family for each in scenarios}
    assert set(stack_fit.nodes) == {each.group_nodes for each in scenarios}
    assert set(stack_fit.dtypes) == {each.workload.dtype for each in scenarios}
    unseen_models = {row.configuration.model for row in data if row not in rows}
    assert set(stack_fit.left_out_models) == unseen_models
    assert set(stack_fit.models) == {row.configuration.model for row in rows}
    problem = Problem(rows, base)
    assert list(stack_fit.figures) == list(problem.figures)
    at = np.array(
        [np.log(one.value / one.default) / PRIORS[name] if one.value != one.default else 0.0
         for name, one in stack_fit.figures.items()]
    )  # fmt: skip
    again = problem.solve_from(at)
    assert again.cost == pytest.approx(stack_fit.cost, rel=0.01)
    np.testing.assert_allclose(again.at[problem.fitted], at[problem.fitted], atol=0.15)


@pytest.mark.parametrize("level", ["protocol-a", "protocol-b"])
@pytest.mark.parametrize("name", ["ladder-70b", "ladder-h100"])
def test_unseen_rows_are_those_that_the_protocol_keeps_back(level: str, name: str) -> None:
    """Of either data set of the package: both hold the runs of the fit."""
    data = read_dataset(name)
    kept = tuple(row for row in data.measurements if not PROTOCOLS[level[-1].upper()].fits(row))
    assert tuple(one.measurement for one in unseen(validate(data, level)[level])) == kept  # type: ignore[arg-type]


def test_profiles_with_a_fit_survive_their_file(tmp_path: Path, base: CalibrationProfile) -> None:
    shipped = load_profile(SHIPPED["B"])
    own = dataclasses.replace(shipped, name="own", base="", gemm=base.gemm)
    for profile, size in ((shipped, 20_000), (own, 200_000)):
        path = tmp_path / f"{profile.name}.json.gz"
        save_profile(profile, path)
        again = load_profile(path)
        # tables of a shipped profile are named, others are held
        assert path.stat().st_size < size
        assert (again.base, again.tables_of) == (profile.base, profile.tables_of)
        assert again.gemm["bf16"].seconds.shape == base.gemm["bf16"].seconds.shape
        before, after = fitted(profile), fitted(again)
        np.testing.assert_array_equal(before.draws, after.draws)
        assert dataclasses.replace(before, draws=after.draws) != after or before.figures == after.figures
        assert (before.figures, before.fitted_scale, before.other_scale) == (
            after.figures,
            after.fitted_scale,
            after.other_scale,
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"figures": {"stack.gem_factor": FittedFigure(value=1, default=1, prior_log_sd=1, log_sd=1)}}, "gem_factor"),
        ({"draws": ((1.0, 1.0),) * 3}, r"draws\[0\] has 2 entries"),
    ],
)
def test_broken_fits_are_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    shipped = load_profile(SHIPPED["B"])
    broken = dataclasses.replace(shipped, stack_fit=dataclasses.replace(fitted(shipped), **change))  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match=says):
        save_profile(broken, tmp_path / "broken.json.gz")


def test_a_base_that_is_not_shipped_is_refused(tmp_path: Path) -> None:
    broken = dataclasses.replace(load_profile(SHIPPED["B"]), base="h100")
    with pytest.raises(ProfileError, match="base is 'h100'"):
        save_profile(broken, tmp_path / "broken.json.gz")


# what predictions make of a fit


def test_what_a_scenario_states_otherwise_stays() -> None:
    profile = load_profile(SHIPPED["B"])
    # the second is what the catalog states as well
    for given, value in (("9us", 9e-6), ("2.5us", 2.5e-6)):
        own = Scenario(model="70b", overrides={"stack.collective_launch": given})
        assert Hardware.of(own, profile).figure("stack.collective_launch_s") == value
    skewed = Scenario(model="70b", overrides={"cluster.rank_skew": "0.02"})
    assert Hardware.of(skewed, profile).rank_skew == 0.02
    hardware = Hardware.of(Scenario(model="70b"), profile)
    assert hardware.figure("stack.collective_launch_s") == fitted(profile).figures["stack.collective_launch_s"].value
    other = Scenario(model="70b", stack="vllm")
    assert Hardware.of(other, profile).figure("stack.gemv_factor") == 1.0


def test_another_gpu_takes_over_its_stacks_figures_and_says_so() -> None:
    scenario = Scenario(model="8b", cluster="a100-sxm-hdr", tp=4)
    profile = resolve_profile(scenario, None)
    assert profile is not None
    assert profile.gemm is load_profile("a100-sxm").gemm
    assert fitted(profile) is fitted(load_profile(SHIPPED["B"]))
    warnings = predict(scenario, ["ladder"])["ladder"].confidence.warnings
    assert any("stack 'gpt-fast' was fitted to runs on h100-sxm" in warning for warning in warnings)
    # an interval is no narrower than where the fit was made
    here = predict(Scenario(model="8b", tp=4), ["ladder"])["ladder"]
    there = predict(scenario, ["ladder"])["ladder"]
    assert there.tokens_per_s.log_width > here.tokens_per_s.log_width


def test_intervals_widen_beyond_the_runs() -> None:
    profile = load_profile(SHIPPED["B"])
    scale = fitted(profile)
    assert scale.scale("llama-3.1-70b", 4) == scale.fitted_scale
    assert scale.scale("llama-3.1-70b", 8) == scale.scale("llama-3.1-8b", 4) == scale.other_scale
    scenario = Scenario(model="70b", tp=8)
    shown = {"rate": "tokens_per_s", "speedup": "speedup", "tpot": "tpot", "ttft": "ttft"}
    for widened in shown:
        other_scale = dataclasses.replace(scale.other_scale, **{widened: 10 * getattr(scale.other_scale, widened)})
        wide = dataclasses.replace(profile, stack_fit=dataclasses.replace(scale, other_scale=other_scale))
        before, after = (predict(scenario, ["ladder"], profile=each)["ladder"] for each in (profile, wide))
        for name, figure in shown.items():
            narrow, wider = getattr(before, figure), getattr(after, figure)
            assert wider.value == narrow.value
            assert wider.log_width == pytest.approx((10 if name == widened else 1) * narrow.log_width)
    standard = predict(scenario, ["standard"], profile=profile)["standard"].speedup
    assert standard.low == standard.high == 1.0


def test_an_unknown_figure_widens_the_intervals_that_depend_on_it() -> None:
    """The spread of the draws is what is not known: half of it, less wide intervals."""
    profile = load_profile(SHIPPED["B"])
    full = fitted(profile)
    values = np.array([figure.value for figure in full.figures.values()])
    half = dataclasses.replace(full, draws=np.sqrt(full.draws * values))
    scenario = Scenario(model="70b", tp=8, p2p=False)
    wide, narrow = (
        predict(scenario, ["ladder"], profile=dataclasses.replace(profile, stack_fit=one))["ladder"].tokens_per_s
        for one in (full, half)
    )
    assert narrow.log_width < wide.log_width


def test_a_run_that_was_left_out_is_judged_by_the_fit_without_it(base: CalibrationProfile) -> None:
    """By every figure that was measured; its speedup where standard ran too."""
    runs = runs_with({}, [configuration(batch=batch) for batch in (1, 4)], base)
    runs = [*runs[:3], *whole(runs[3:])]
    slow = dataclasses.replace(runs[1], tokens_per_s=runs[1].tokens_per_s / 2.0)
    problem = Problem((runs[0], slow, *runs[2:]), base)
    solutions = [(group, np.zeros(len(problem.figures))) for group in set(problem.groups)]
    errors = [each.log_errors for each in unseen_runs(problem, problem.groups, solutions)]
    assert [set(each) for each in errors] == [
        {"rate", "tpot", "ttft"}, *[{"rate", "tpot", "ttft", "speedup"}] * 2, {"rate"}, *[{"rate", "speedup"}] * 2
    ]  # fmt: skip
    assert errors[1] == pytest.approx({"rate": np.log(2), "speedup": np.log(2), "tpot": 0.0, "ttft": 0.0}, abs=1e-9)
    assert max(abs(value) for each in (errors[0], *errors[2:]) for value in each.values()) < 1e-9


def test_conformal_by_hand() -> None:
    assert conformal([0.1 * rank for rank in range(1, 20)]) == pytest.approx(1.8)
    assert conformal([5.0] * 8) == 1.0
    assert IDENTIFIED < 1.0


@pytest.mark.slow
def test_the_command_fits_a_users_runs(tmp_path: Path) -> None:
    """End to end: fit, then compare with the same runs, then predict from the new profile."""
    runs = tmp_path / "runs.csv"
    runs.write_text(
        "model,cluster,tp,variant,batch,prompt,gen,tokens_per_s\n"
        "8b,h100-sxm,2,standard,1,64,32,220\n8b,h100-sxm,2,upper-bound,1,64,32,240\n"
    )
    out = tmp_path / "mine.json.gz"
    ran = calibrate("--runs", str(runs), "--base", "h100-sxm", "--out", str(out), "--draws", "2")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == str(out)
    assert "stack.gemv_factor" in ran.stderr
    assert "not fitted: host.allreduce_floor_s" in ran.stderr
    compared = run("validate", str(runs), "--profile", str(out))
    assert compared.code == 0, compared.err
    assert " fit " in compared.out
    assert "profile mine" in run("predict", "--model", "8b", "--profile", str(out), "--explain").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--runs", "nowhere.csv", "--out", "a.json"), "no such file"),
        (("--runs", "ladder-70b", "--out", "no/such/folder.json"), "no such folder"),
        (("--runs", "ladder-70b", "--out", "a.json", "--draws", "1"), "--draws is 1: must be a whole number from 2"),
        (("--runs", "ladder-70b", "--out", "a.json", "--base", "h100"), "did you mean 'h100-sxm'"),
    ],
)
def test_what_cannot_be_fitted_is_refused_at_once(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit-stack", "--base", "h100-sxm", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err


def calibrate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ladder_sim_calibration", "fit-stack", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPO)
