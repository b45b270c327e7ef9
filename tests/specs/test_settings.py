"""Settings change exactly one figure, with its unit, or say what is wrong."""

import dataclasses
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.errors import LadderSimError, PartitionError, SpecError, UnitError, UnknownNameError, UsageError
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import scenario_warnings
from ladder_sim.specs.settings import Overrides, settable
from ladder_sim.sweeps.grid import Grid

SCENARIO = Scenario(model="70b")


def override(overrides: Overrides) -> Scenario:
    return Scenario(model="70b", tp=SCENARIO.plan.tp, overrides=overrides)


@pytest.mark.parametrize(
    ("key", "text", "path", "expected"),
    [
        ("inter.bandwidth", "100Gb/s", "cluster.inter.bandwidth_Bps", 12.5e9),
        ("inter.bandwidth_Bps", "100Gb/s", "cluster.inter.bandwidth_Bps", 12.5e9),
        ("inter.bandwidth_Bps", 12.5e9, "cluster.inter.bandwidth_Bps", 12.5e9),
        ("intra.allreduce_floor", "5us", "cluster.intra.allreduce_floor_s", 5e-6),
        ("host.fabric", "pcie4-host", "cluster.host.fabric", "pcie4-host"),
        ("gpu.bf16", "500 TFLOP/s", "cluster.gpu.bf16_flops", 500e12),
        ("gpu.hbm", "96 GiB", "cluster.gpu.hbm_bytes", 96 * 2.0**30),
        ("gpu.hbm_bandwidth", "4 TB/s", "cluster.gpu.hbm_bandwidth_Bps", 4e12),
        ("gpu.sms", "144", "cluster.gpu.sms", 144),
        # as arrays and data frames hold them
        ("gpu.sms", np.int64(144), "cluster.gpu.sms", 144),
        ("inter.bandwidth_Bps", np.int64(12_500_000_000), "cluster.inter.bandwidth_Bps", 12.5e9),
        ("intra.allreduce_floor_s", np.float32(0.5), "cluster.intra.allreduce_floor_s", 0.5),
        ("cluster.gpus_per_node", "16", "cluster.gpus_per_node", 16),
        ("cluster.profile", "", "cluster.profile", ""),
        ("model.vocab", "128Ki", "model.vocab", 131072),
        ("model.gated_mlp", "False", "model.gated_mlp", False),
        ("stack.cuda_graphs", "off", "stack.cuda_graphs", "off"),
        ("stack.allreduce", "one-shot", "stack.allreduce", "one-shot"),
        ("stack.memory_overhead", "3GB", "stack.memory_overhead_bytes", 3e9),
        ("stack.collective_launch", "0", "stack.collective_launch_s", 0.0),
        ("workload.batch", "64", "workload.batch", 64),
        ("workload.dtype", "fp8", "workload.dtype", "fp8"),
    ],
)
def test_sets_one_figure(key: str, text: str | float, path: str, expected: object) -> None:
    changed = override({key: text})
    value: Any = changed
    for step in path.split("."):
        value = getattr(value, step)
    assert value == expected
    assert type(value) is type(expected)
    assert differences(SCENARIO, changed) == {path}
    # named as it is held, for a fit to leave it alone
    section, _, field = path.rpartition(".")
    assert set(changed.settings) == {f"{section.rpartition('.')[2]}.{field}"}


def differences(before: Any, after: Any, path: str = "") -> set[str]:
    found: set[str] = set()
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if field.name in ("source", "settings", "given") or old == new:
            continue
        where = f"{path}.{field.name}".lstrip(".")
        found |= differences(old, new, where) if dataclasses.is_dataclass(old) else {where}
    return found


def test_source_says_what_was_set() -> None:
    tier = override({"inter.bandwidth": "100Gb/s", "inter.allreduce_floor": "20us"}).cluster.inter
    assert tier.source.startswith(SCENARIO.cluster.inter.source)
    assert tier.source.endswith("; set by hand: bandwidth_Bps=12500000000.0, allreduce_floor_s=2e-05")


def test_settings_of_one_spec_are_checked_together() -> None:
    """heads 48 alone would leave 48 / 5; with kv_heads it is a valid model."""
    changed = override({"model.heads": "40", "model.kv_heads": "40", "workload.batch": "2"})
    assert (changed.model.heads, changed.model.kv_heads, changed.workload.batch) == (40, 40, 2)
    assert override({}) == SCENARIO


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("inter.bandwith", "inter.bandwidth"),
        ("iner.hop_latncy", "inter.hop_latency"),
        ("gpu.sm", "gpu.sms"),
        ("stack.cudagraphs", "stack.cuda_graphs"),
        ("model.layer", "model.layers"),
    ],
)
def test_unknown_setting(key: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        override({key: "1"})
    assert caught.value.message == f"unknown setting '{key}'"
    assert caught.value.hint == f"did you mean '{near}'? `ladder-sim list settings` shows all"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "key", ["", ".", "inter", "inter.", ".bandwidth", "model.name", "gpu.source", "model.ladder_layers"]
)
def test_not_a_setting(key: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        override({key: "1"})
    # the way out is one line, not all fifty names
    assert len(caught.value.hint) < 130


@pytest.mark.parametrize(
    ("key", "text", "kind", "message"),
    [
        ("inter.bandwidth", "100us", UnitError, "inter.bandwidth: '100us' is a time: must be a bandwidth"),
        ("intra.allreduce_floor", "5GB/s", UnitError, "intra.allreduce_floor: '5GB/s' is a bandwidth: must be a time"),
        ("gpu.hbm", "80GB/s", UnitError, "gpu.hbm: '80GB/s' is a bandwidth: must be a size"),
        ("inter.bandwidth", "100G", UnitError, "inter.bandwidth: '100G' has no known unit"),
        ("inter.bandwidth", "0", SpecError, "bandwidth_Bps is 0.0"),
        ("inter.allreduce_floor", "-5us", UnitError, "finite and not negative"),
        ("inter.allreduce_floor", "1000s", SpecError, "allreduce_floor_s is 1000.0"),
        ("gpu.sms", "1", SpecError, "sms is 1: must be a whole number from 2"),
        ("gpu.sms", "1.5", SpecError, "gpu.sms is '1.5': must be a whole number"),
        ("model.layers", "0", SpecError, "layers is 0"),
        ("model.layers", "20000", SpecError, "layers is 20000"),
        ("model.heads", "60", SpecError, "query heads must be a multiple"),
        ("model.intermediate", "28673", PartitionError, "intermediate is 28673"),
        ("stack.vocab_parallel", "maybe", SpecError, "stack.vocab_parallel is 'maybe': must be true or false"),
        ("stack.attention", "flush", UnknownNameError, "unknown stack.attention 'flush'"),
        ("workload.dtype", "fp9", UnknownNameError, "unknown workload.dtype 'fp9'"),
        ("workload.gen", "nan", UnitError, "workload.gen: 'nan'"),
        ("inter.fabric", " ", UnknownNameError, "unknown inter.fabric ' '"),
        ("intra.fabric", "mine.toml", UnknownNameError, "unknown intra.fabric 'mine.toml'"),
    ],
)
def test_bad_value(key: str, text: str, kind: type[LadderSimError], message: str) -> None:
    with pytest.raises(kind) as caught:
        override({key: text})
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("set_fabric", [override, lambda fabrics: Grid({"model": "8b", **fabrics})])
def test_a_mistyped_fabric_is_refused(set_fabric: Callable[[Overrides], object]) -> None:
    """Regression: no measurement applied to it, and nothing said so."""
    with pytest.raises(UnknownNameError) as caught:
        set_fabric({"inter.fabric": "ib-ndr40"})
    assert caught.value.message == "unknown inter.fabric 'ib-ndr40'"
    assert "ib-ndr400" in caught.value.hint
    assert "a .toml of `calibrate import nccl-tests` is yours" in caught.value.hint
    with pytest.raises(UnknownNameError, match="did you mean 'nvlink4-nvswitch'"):
        set_fabric({"intra.fabric": "nvlink4-nvswich"})


def test_a_cluster_file_may_name_a_fabric_of_its_own(tmp_path: Path) -> None:
    """A link that nobody measured: formulas price it."""
    text = (resources.files("ladder_sim.specs") / "data" / "clusters" / "h100-sxm.toml").read_text("utf-8")
    file = tmp_path / "own.toml"
    file.write_text(text.replace('fabric = "ib-ndr400"', 'fabric = "own-net"'))
    assert Scenario(cluster=str(file), nodes=2).cluster.inter.fabric == "own-net"


def test_every_listed_setting_can_be_set_to_itself_but_not_without_its_unit() -> None:
    names = settable()
    assert names == sorted(set(names))
    assert {name.split(".")[0] for name in names} == {
        *("model", "gpu", "cluster", "intra", "inter", "host", "stack", "workload"),
    }
    for name in names:
        section, _, field = name.partition(".")
        spec: Any = getattr(SCENARIO, section, None) or getattr(SCENARIO.cluster, section)
        full = next(f.name for f in dataclasses.fields(spec) if f.name in (field, *(field + s for s in ENDINGS)))
        value = getattr(spec, full)
        assert differences(SCENARIO, override({f"{section}.{full}": value})) == set(), name
        if full != field and value:
            for bare in (value, str(value)):
                with pytest.raises(UnitError, match="needs a unit"):
                    override({name: bare})


ENDINGS = ("_s", "_Bps", "_bytes", "_flops")


@given(st.dictionaries(st.sampled_from(settable()) | st.text(max_size=12), st.text(max_size=12), max_size=3))
def test_any_setting_is_applied_or_refused(overrides: dict[str, str]) -> None:
    try:
        override(overrides)
    except LadderSimError as error:
        assert error.hint  # noqa: PT017


@pytest.mark.parametrize("tier", ["intra", "inter", "host"])
@pytest.mark.parametrize("ending", ["", "_s"])
def test_a_floor_by_its_former_name_is_taken_and_said(tier: str, ending: str) -> None:
    """Who types the 5 us of a fabric as latency gets a speedup of 1.28 for 1.48."""
    with pytest.warns(
        FutureWarning, match=rf"{tier}\.latency{ending} is called allreduce_floor now: .* not the latency"
    ):
        former = override({f"{tier}.latency{ending}": "20us"})
    assert former == override({f"{tier}.allreduce_floor{ending}": "20us"})


def test_hops_yield_the_floor_of_an_all_reduce() -> None:
    """By NCCL 2.21.5, src/graph/tuning.cc, two nodes of eight GPUs: 6.8 + 2 (7 x 0.6 + 5.0) = 25.2 us by LL."""
    assert override({"inter.hop_latency": "5us"}).cluster.inter.allreduce_floor_s == pytest.approx(25.2e-6)
    assert override({"intra.hop_latency": "0.6us"}).cluster.intra.allreduce_floor_s == pytest.approx(15.2e-6)
    with pytest.raises(UsageError, match=r"inter\.hop_latency and inter\.allreduce_floor are both set"):
        override({"inter.hop_latency": "5us", "inter.allreduce_floor": "40us"})


def test_the_hops_of_a_file_yield_its_floor(tmp_path: Path) -> None:
    text = (resources.files("ladder_sim.specs") / "data" / "clusters" / "h100-sxm.toml").read_text("utf-8")
    both, hop = tmp_path / "both.toml", tmp_path / "hop.toml"
    both.write_text(text.replace('allreduce_floor_s = "40 us"', 'allreduce_floor_s = "40 us"\nhop_latency = "5us"'))
    with pytest.raises(SpecError, match=r"\[inter\] has hop_latency and allreduce_floor_s"):
        Scenario(cluster=str(both))
    hop.write_text(text.replace('allreduce_floor_s = "40 us"', 'hop_latency = "5us"'))
    assert Scenario(cluster=str(hop)).cluster.inter.allreduce_floor_s == pytest.approx(25.2e-6)
    by_hand = Scenario(cluster=str(hop), overrides={"inter.allreduce_floor": "40us"}).cluster.inter
    assert (by_hand.allreduce_floor_s, by_hand.hop_latency_s) == (40e-6, 0.0)


def test_a_floor_that_no_tier_has_is_warned_of() -> None:
    low = Scenario(model="405b", nodes=2, overrides={"inter.allreduce_floor": "5us"})
    (warning,) = (text for text in scenario_warnings(low) if "allreduce_floor" in text)
    assert "below the 15.2 us that NCCL takes over two nodes" in warning
    assert "the latency of a link is inter.hop_latency" in warning
    # not used in one node; and what is said of 405B on two nodes is no such warning
    assert not scenario_warnings(Scenario(overrides={"intra.allreduce_floor": "9us"}))
    assert not any("floor" in text for text in scenario_warnings(Scenario(model="405b", nodes=2)))
