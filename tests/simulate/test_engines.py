"""Whole predictions: both engines agree, and a batch of hardware figures gives what each figure gives alone."""

import dataclasses
import importlib.util
import random
import sys
from collections.abc import Mapping
from itertools import product
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import LadderSimError, UnknownNameError, UsageError
from ladder_sim.kernels import Phase
from ladder_sim.prediction import predict
from ladder_sim.simulate.passes import simulate
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import find_setting
from tests.conftest import REPO
from tests.support.scenarios import VARIANTS

RTOL = 1e-9
SAMPLE = 40
PHASES: tuple[Phase, ...] = ("prefill", "decode")
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"stack.cuda_graphs": "off"},
    {"stack.cuda_graphs": "off", "stack.eager_launch": "12 us"},
    {"stack.cuda_graphs": "all"},
    {"stack.stream_wait": "0", "stack.collective_launch": "0"},
)

# of a figure's own value
FACTORS = np.array([0.25, 0.5, 0.9, 1.0, 1.3, 2.0, 4.0])


@pytest.fixture(scope="module")
def engines_agree() -> ModuleType:
    """The benchmark over the whole catalog, of which this file takes a sample."""
    spec = importlib.util.spec_from_file_location("engines_agree", REPO / "benchmarks" / "engines_agree.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def sampled() -> list[tuple[str, Scenario]]:
    """Scenarios of the catalog drawn at random, with other settings and workloads than the defaults."""
    chance = random.Random(20)
    scenarios: dict[str, Scenario] = {}
    while len(scenarios) < SAMPLE:
        names = {
            "model": chance.choice(catalog.model_names()),
            "cluster": chance.choice(catalog.cluster_names()),
            "stack": chance.choice(catalog.stack_names()),
        }
        nodes, batch = chance.choice((1, 1, 2)), chance.choice((1, 4, 16, 64))
        settings, p2p = chance.randrange(len(SETTINGS)), chance.random() > 0.1
        try:
            scenario = Scenario(
                **names,
                nodes=nodes,
                batch=batch,
                prompt=chance.choice((17, 128, 1024)),
                gen=chance.choice((1, 2, 40)),
                p2p=p2p,
                overrides=SETTINGS[settings],
            )
            predict(scenario, ["standard"], ignore_memory=True)
        except LadderSimError:
            continue
        name = "-".join((*names.values(), str(nodes), str(batch), f"set{settings}", "p2p" if p2p else "host"))
        scenarios[name] = scenario
    return list(scenarios.items())


@pytest.mark.slow
def test_engines_agree_on_a_sample_of_the_catalog(engines_agree: ModuleType) -> None:
    for name, scenario in sampled():
        fast, des = (predict(scenario, VARIANTS, ignore_memory=True, engine=engine) for engine in ("fast", "des"))
        for variant in VARIANTS:
            one, other = fast[variant], des[variant]
            where = f"{name} {variant}"
            scale_s = RTOL * other.request_s
            assert one.ttft_s == pytest.approx(other.ttft_s, rel=RTOL), where
            assert one.tpot_s == (other.tpot_s and pytest.approx(other.tpot_s, rel=RTOL)), where
            for figure in ("comm_s", "exposed_comm_s", "slowed_s", "busy_s"):
                ours, theirs = getattr(one.breakdown, figure), getattr(other.breakdown, figure)
                assert ours == pytest.approx(theirs, rel=RTOL, abs=scale_s), where
            # paths of equal length may share the request differently
            assert sum(one.breakdown.limits_s.values()) == pytest.approx(
                sum(other.breakdown.limits_s.values()), rel=RTOL
            ), where
            assert one.speedup.value == pytest.approx(other.speedup.value, rel=RTOL), where


def test_the_sample_holds_contention_and_launches() -> None:
    """What the engines are to agree on does occur."""
    slowed = launched = 0
    for _, scenario in sampled():
        ladder = predict(scenario, ["ladder"], ignore_memory=True)["ladder"]
        slowed += ladder.breakdown.slowed_s > 0.001 * ladder.request_s
        launched += ladder.breakdown.limits_s.get("launches", 0.0) > 0.05 * ladder.request_s
    assert slowed > SAMPLE / 4
    assert launched >= SAMPLE / 10


def test_the_benchmark_measures_the_difference(engines_agree: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = engines_agree.fitting("llama-3.1-8b", "h100-sxm", "vllm", 1, 128)
    assert scenario is not None
    assert engines_agree.difference(scenario).relative < RTOL
    # as if one engine had no contention
    real = engines_agree.predict

    def wrong(scenario: Scenario, variants: list[str], *, engine: str) -> object:
        profile = load_profile("h100-sxm")
        return real(scenario, variants, engine="fast", profile="none" if engine == "des" else profile)

    monkeypatch.setattr(engines_agree, "predict", wrong)
    assert engines_agree.difference(scenario).relative > engines_agree.BOUND


def test_a_model_that_fits_nowhere_is_left_out(engines_agree: ModuleType) -> None:
    assert engines_agree.fitting("llama-3.1-405b", "l40s-pcie", "vllm", 64, 4096) is None


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(UsageError, match="simpy"):
        predict(Scenario(model="8b"), ["standard"], engine="simpy")  # type: ignore[arg-type]


# hardware figures


def test_unknown_figures_are_named() -> None:
    hardware = Hardware.of(Scenario(model="8b"))
    for name in ("inter.bandwith_Bps", "inter", "bandwidth_Bps", "inter.fabric", "rank_skew.x", ""):
        with pytest.raises(UnknownNameError) as caught:
            hardware.vary({name: [1.0, 2.0]})
        assert f"'{name}'" in caught.value.message
    with pytest.raises(UnknownNameError, match=r"inter\.bandwidth_Bps"):
        hardware.vary({"inter.bandwith_Bps": [1.0]})


def test_varying_replaces_only_what_is_named() -> None:
    hardware = Hardware.of(Scenario(model="8b", nodes=2))
    varied = hardware.vary({"inter.bandwidth_Bps": [25e9, 50e9], "rank_skew": [0.0, 0.1]})
    np.testing.assert_array_equal(varied.inter.bandwidth_Bps, [25e9, 50e9])
    np.testing.assert_array_equal(varied.rank_skew, [0.0, 0.1])
    assert varied.inter.allreduce_floor_s == hardware.inter.allreduce_floor_s
    assert varied.intra is hardware.intra
    assert isinstance(hardware.inter.bandwidth_Bps, float)
    assert hardware.vary({}).inter is hardware.inter


def test_every_figure_can_be_varied() -> None:
    hardware = Hardware.of(Scenario(model="8b"))
    for name in Hardware.figures():
        varied = hardware.vary({name: [1.0, 2.0, 3.0]})
        np.testing.assert_array_equal(varied.figure(name), [1.0, 2.0, 3.0])


def test_figures_vary_together() -> None:
    """Arrays of two lengths have no configurations in common."""
    hardware = Hardware.of(Scenario(model="8b"))
    with pytest.raises((LadderSimError, ValueError), match="length"):
        hardware.vary({"inter.bandwidth_Bps": [25e9, 50e9], "inter.allreduce_floor_s": [1e-5, 2e-5, 3e-5]})


def own_value(scenario: Scenario, figure: str) -> float:
    value = Hardware.of(scenario).figure(figure)
    assert isinstance(value, float)
    # launches and gaps that cost nothing by default
    return value or 1e-6


def unset(figure: str) -> bool:
    """Whether only profiles have a figure."""
    name = figure if "." in figure else f"cluster.{figure}"
    return not name.startswith("overlap.") and find_setting(name) is None


def batched(
    scenario: Scenario, phase: Phase, profile: CalibrationProfile, figures: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    # what no setting has is measured by the profile, which tells whose kernels its floor is of
    overheads = {name.removeprefix("stack."): float(values[0]) for name, values in figures.items() if unset(name)}
    profile = dataclasses.replace(profile, overheads=overheads) if overheads else profile
    costs = KernelCosts(scenario, profile, Hardware.of(scenario).vary(figures))
    seconds = simulate(scenario, phase, 1025 if phase == "decode" else 1024, costs).seconds
    return np.broadcast_to(seconds, len(next(iter(figures.values()))))


def alone(
    flags: Mapping[str, object],
    phase: Phase,
    profile: CalibrationProfile,
    figures: Mapping[str, NDArray[np.float64]],
    overrides: Mapping[str, str],
) -> list[float]:
    """One prediction per configuration, its figures given as by ``--set``, or in a profile's overlap or overheads."""
    seconds = []
    for values in zip(*figures.values(), strict=True):
        names = (name if "." in name else f"cluster.{name}" for name in figures)
        own = dict(zip(names, map(float, values), strict=True))
        overlap = {name.removeprefix("overlap."): own.pop(name) for name in list(own) if name.startswith("overlap.")}
        overheads = {name.removeprefix("stack."): own.pop(name) for name in list(own) if find_setting(name) is None}
        scenario = Scenario(**flags, overrides={**overrides, **own})  # type: ignore[arg-type]
        profile = dataclasses.replace(profile, overlap={**profile.overlap, **overlap}, overheads=overheads)
        kv_len = 1025 if phase == "decode" else 1024
        seconds.append(simulate(scenario, phase, kv_len, KernelCosts(scenario, profile)).seconds)
    return seconds


CASES: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "gpt-fast": ({"model": "70b", "stack": "gpt-fast", "batch": 1, "variant": "ladder"}, {}),
    "two nodes": ({"model": "405b", "stack": "vllm", "nodes": 2, "batch": 4, "variant": "ladder"}, {}),
    "eager": ({"model": "1b", "stack": "vllm", "variant": "desync:3"}, {"stack.cuda_graphs": "off"}),
    "no p2p": ({"model": "8b", "stack": "gpt-fast", "p2p": False, "variant": "ladder"}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_varying_one_figure_equals_setting_it(case: str, h100: CalibrationProfile) -> None:
    flags, overrides = CASES[case]
    scenario = Scenario(**flags, overrides=overrides)  # type: ignore[arg-type]
    for figure, phase in product(Hardware.figures(), PHASES):
        # a share is 1 at most
        most = 1.0 if figure == "stack.sustained_rate" else np.inf
        figures = {figure: np.minimum(FACTORS * own_value(scenario, figure), most)}
        # a figure that no op of the pass depends on may leave one value
        seconds = np.broadcast_to(batched(scenario, phase, h100, figures), FACTORS.shape)
        expected_s = alone(flags, phase, h100, figures, overrides)
        np.testing.assert_allclose(seconds, expected_s, rtol=RTOL, err_msg=f"{figure}, {phase}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_varying_many_figures_equals_setting_them(variant: str, h100: CalibrationProfile) -> None:
    flags: dict[str, object] = {"model": "405b", "nodes": 2, "variant": variant}
    scenario = Scenario(**flags)  # type: ignore[arg-type]
    chance = np.random.default_rng(4)
    names = [
        *(
            "inter.bandwidth_Bps",
            "inter.allreduce_floor_s",
            "intra.bandwidth_Bps",
            "intra.allreduce_floor_s",
            "rank_skew",
        ),
        *("stack.collective_launch_s", "stack.stream_wait_s", "stack.kernel_gap_s", "gpu.kernel_s"),
    ]
    figures = {name: own_value(scenario, name) * chance.uniform(0.3, 3.0, 8) for name in names}
    for phase in PHASES:
        expected_s = alone(flags, phase, h100, figures, {})
        np.testing.assert_allclose(batched(scenario, phase, h100, figures), expected_s, rtol=RTOL, err_msg=phase)


@pytest.mark.parametrize("variant", ["standard", "ladder"])
def test_an_algorithm_is_chosen_for_each_configuration(variant: str, h100: CalibrationProfile) -> None:
    """A slow link makes another all-reduce the fastest; which one decides how many SMs it holds."""
    flags: dict[str, object] = {"model": "70b", "stack": "vllm", "batch": 64, "variant": variant}
    scenario = Scenario(**flags)  # type: ignore[arg-type]
    for figure in ("intra.bandwidth_Bps", "intra.allreduce_floor_s"):
        figures = {figure: np.geomspace(0.02, 50.0, 9) * own_value(scenario, figure)}
        seconds = batched(scenario, "decode", h100, figures)
        np.testing.assert_allclose(seconds, alone(flags, "decode", h100, figures, {}), rtol=RTOL)


@pytest.mark.parametrize("figure", ["intra.bandwidth_Bps", "inter.bandwidth_Bps", "stack.graph_launch_s"])
def test_there_is_a_time_for_every_configuration(figure: str, h100: CalibrationProfile) -> None:
    """Also where the figure does not matter."""
    scenario = Scenario(model="8b", variant="ladder")
    seconds = batched(scenario, "prefill", h100, {figure: FACTORS * own_value(scenario, figure)})
    assert seconds.shape == FACTORS.shape


def test_batches_hold_the_times_of_predictions(h100: CalibrationProfile) -> None:
    scenario = Scenario(model="405b", nodes=2, variant="ladder", gen=2)
    figures = {"inter.bandwidth_Bps": np.array([10e9, 50e9])}
    predicted = [
        predict(
            Scenario(model="405b", nodes=2, gen=2, overrides={"inter.bandwidth": speed}),
            ["ladder"],
            profile=h100,
            ignore_memory=True,
        )["ladder"]
        for speed in ("10 GB/s", "50 GB/s")
    ]
    np.testing.assert_allclose(
        batched(scenario, "prefill", h100, figures), [one.ttft_s for one in predicted], rtol=RTOL
    )
    np.testing.assert_allclose(batched(scenario, "decode", h100, figures), [one.tpot_s for one in predicted], rtol=RTOL)
