"""Which collective a stack takes, what it needs, and its time next to measurements."""

import csv
import dataclasses
from typing import get_args

import numpy as np
import pytest

from ladder_sim.costs.collectives.algorithms import ALGORITHMS, ALL_REDUCE, OWN
from ladder_sim.costs.collectives.network import Network
from ladder_sim.costs.estimate import CollectiveTimes
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import CollectiveKind, Op
from ladder_sim.kernels import CollectiveShape
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario_warnings import scenario_warnings
from ladder_sim.specs.stack import AllReduce, AllReduceRule, OwnAllReduce
from tests.conftest import DATA
from tests.support.networks import SIZES, network, one_by_one, scenario, times
from tests.support.scenarios import SERVING


def test_one_shot_is_much_cheaper_for_small_messages(h100: CalibrationProfile) -> None:
    """What decides whether ladder is worth it: the same 16 KB by NCCL and by a custom kernel."""
    small = np.array([16384.0])
    nccl, custom = (times(small, h100, tp=8, allreduce=name).seconds[0] for name in ("nccl", "one-shot"))
    assert 15e-6 < nccl < 20e-6
    assert 3e-6 < custom < 6e-6


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("measured", [True, False])
def test_auto_is_the_fastest(h100: CalibrationProfile, measured: bool, tp: int) -> None:
    profile = h100 if measured else None
    auto = one_by_one(SIZES, profile, tp=tp, allreduce="auto")
    singly = [one_by_one(SIZES, profile, tp=tp, allreduce=name) for name in ("nccl", "one-shot", "two-shot")]
    np.testing.assert_array_equal(auto, np.min(singly, axis=0))
    assert times(SIZES[:1], profile, tp=tp, allreduce="auto").most_common == "one-shot"


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("engine", SERVING)
def test_auto_is_what_the_engine_measured(engine: str, tp: int) -> None:
    profile = load_profile(f"h100-sxm-{engine}")
    curve = profile.collectives["all_reduce"][OWN][tp]
    auto = times(curve.size_bytes, profile, tp=tp, stack=engine, allreduce="auto")
    np.testing.assert_allclose(auto.seconds, curve.seconds)
    assert auto.in_range.all()
    # by name, or where the engine cannot use its own kernels, the others
    assert times(SIZES, profile, tp=tp, stack=engine, allreduce="nccl").most_common == "nccl"
    small = SIZES[SIZES < 2**20]
    host = times(small, profile, tp=tp, stack=engine, allreduce="auto", p2p=False)
    assert (host.seconds > times(small, profile, tp=tp, stack=engine, allreduce="auto").seconds).all()
    faster = times(SIZES, profile, tp=tp, stack=engine, allreduce="auto", overrides={"intra.bandwidth": "900GB/s"})
    assert (faster.seconds <= times(SIZES, profile, tp=tp, stack=engine, allreduce="auto").seconds).all()
    assert faster.source == "transferred"


@pytest.mark.parametrize("allreduce", ["one-shot", "two-shot", "nvls", "multimem"])
def test_custom_kernels_need_peer_to_peer(allreduce: str) -> None:
    with pytest.raises(UsageError, match=f"'{allreduce}' needs peer-to-peer") as caught:
        network(None, p2p=False, allreduce=allreduce)
    assert "--allreduce nccl" in caught.value.hint


def recorded(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("all_reduce", "multimem_all_reduce_us"),
        ("all_gather", "multimem_ag_us"),
        ("reduce_scatter", "multimem_rs_us"),
    ],
)
def test_multimem_against_its_measurements(h100: CalibrationProfile, kind: str, column: str) -> None:
    """Two figures; each size is left out of their fit once."""
    rows = recorded("tokenweave_allreduce.csv")
    sizes = np.array([2 * float(row["BL"]) * float(row["hidden_size"]) for row in rows])
    measured_s = np.array([float(row[column]) * 1e-6 for row in rows])
    chosen = network(h100, tp=8).alone(kind, "multimem", sizes)
    assert (chosen.most_common, chosen.in_range.any(), chosen.source) == ("multimem", False, "fitted")
    errors = np.abs(chosen.seconds / measured_s - 1)
    assert errors.mean() <= 0.02
    assert errors.max() <= 0.05
    left_out = []
    for at in range(len(sizes)):
        kept = np.arange(len(sizes)) != at
        line = np.stack([np.ones(kept.sum()), sizes[kept]]).T / measured_s[kept, np.newaxis]
        floor_s, per_byte_s = np.linalg.lstsq(line, np.ones(kept.sum()), rcond=None)[0]
        left_out.append(abs((floor_s + per_byte_s * sizes[at]) / measured_s[at] - 1))
    assert np.mean(left_out) <= 0.08


# copies into and out of a symmetric buffer are in vLLM's measurements
@pytest.mark.parametrize(
    ("algorithm", "gpus", "mean", "copies"),
    [
        ("mnnvl-one-shot", 8, 0.03, 0),
        ("mnnvl-one-shot", 16, 0.05, 0),
        ("mnnvl-two-shot", 8, 0.04, 0),
        ("mnnvl-two-shot", 16, 0.05, 0),
        ("pcie-one-shot", 4, 0.03, 0),
        ("pcie-one-shot", 8, 0.06, 0),
        # rounded to a microsecond
        ("multimem", 6, 0.08, 2),
        ("symmetric-two-shot", 6, 0.18, 2),
    ],
)
def test_algorithms_against_their_measurements(algorithm: str, gpus: int, mean: float, copies: int) -> None:
    every = recorded("allreduce_algorithms.csv")
    rows = [row for row in every if (row["algorithm"], row["gpus"]) == (algorithm, str(gpus))]
    own = OwnAllReduce(
        rules=(AllReduceRule(up_to=((algorithm, 1e12),)),),
        symmetric_copies=copies,
        gpus_without_nvlink=8 if algorithm == "pcie-one-shot" else 2,
    )
    stack = dataclasses.replace(catalog.stack("vllm"), own_allreduce=own)
    # six ranks divide the intermediate size
    fields = {"model": "1b", "overrides": {"model.intermediate": "4608"}} if gpus == 6 else {}
    (cluster,) = {row["cluster"] for row in rows}
    group = network(None, cluster=cluster, tp=gpus, stack=stack, **fields)
    errors = []
    for row in rows:
        chosen = group.times("all_reduce", np.array([float(row["bytes"])]))
        if algorithm in chosen.names:
            errors.append(abs(chosen.seconds[0] / (1e-6 * float(row["time_us"])) - 1))
    assert len(errors) >= 5
    assert np.mean(errors) <= mean


def test_every_name_is_a_row() -> None:
    assert {*ALL_REDUCE, "auto"} - {OWN} == set(get_args(AllReduce))
    for row in ALGORITHMS.values():
        assert set(row.nearest) <= set(ALL_REDUCE)
        assert not row.measured_on or row.measured_on in catalog.cluster_names()


def test_nccls_symmetric_kernels_beat_vllms_own_where_vllm_says() -> None:
    """On 4 and 8 GPUs up to 16 KB and for large messages, not between (vLLM 0.32.0, all_reduce_utils.py)."""
    profile = load_profile("h100-sxm-vllm")
    for tp, wins, loses in ((4, (2, 8, 16, 512, 16384), (128, 256)), (8, (2, 8, 16, 128, 1024, 16384), (64,))):
        for size in (*wins, *loses):
            ncclsymm, own = (
                times(np.array([1024.0 * size]), profile, tp=tp, stack="vllm", allreduce=name).seconds[0]
                for name in ("nccl-symmetric", "auto")
            )
            assert (ncclsymm < own) == (size in wins), (tp, size)


@pytest.mark.parametrize(
    ("tp", "roots", "low_KB", "high_KB"), [(4, 2, 120, 512), (4, 1, 120, 512), (8, 2, 40, 90), (8, 1, 90, 200)]
)
def test_pcie_one_shot_ends_where_nccl_is_faster(tp: int, roots: int, low_KB: float, high_KB: float) -> None:
    """Earlier where messages cross between the CPU's sockets; four GPUs lie below one of them."""
    fields = {"cluster": "rtx-pro-6000", "tp": tp, "overrides": {"cluster.pcie_roots": str(roots)}}
    names = [
        times(np.array([1024.0 * size]), None, allreduce="pcie-one-shot", **fields).most_common
        for size in (1, low_KB, high_KB, 4096)
    ]
    assert names == ["pcie-one-shot", "pcie-one-shot", "nccl", "nccl"]


@pytest.mark.parametrize(
    ("stack", "cluster", "tp", "expected"),
    [
        (
            "vllm",
            "h100-sxm",
            2,
            {4: "one-shot", 8192: "symmetric-two-shot", 65536: "symmetric-two-shot", 65537: "nccl"},
        ),
        ("vllm", "h100-sxm", 4, {511: "one-shot", 512: "two-shot", 8192: "multimem", 32768: "multimem", 40000: "nccl"}),
        ("vllm", "h100-sxm", 8, {255: "one-shot", 256: "multimem", 65536: "multimem", 65537: "nccl"}),
        ("vllm", "h100-sxm@0.12", 8, {255: "one-shot", 256: "multimem"}),
        ("vllm", "b200-sxm", 4, {511: "one-shot", 512: "two-shot", 2048: "symmetric-two-shot", 40000: "nccl"}),
        ("vllm", "b200-sxm", 8, {512: "two-shot", 1024: "multimem", 131072: "multimem", 131073: "nccl"}),
        ("vllm", "a100-sxm-hdr", 8, {255: "one-shot", 256: "two-shot", 8192: "nccl"}),
        ("vllm", "gb200-nvl72", 8, {128: "mnnvl-one-shot", 129: "mnnvl-two-shot", 1025: "multimem"}),
        ("vllm", "gb200-nvl72", 16, {64: "mnnvl-one-shot", 65: "mnnvl-two-shot", 65537: "nccl"}),
        ("vllm", "gb200-nvl72", 64, {16: "nccl"}),
        ("trtllm", "h100-sxm", 8, {512: "one-shot", 513: "nccl"}),
        ("trtllm", "gb200-nvl72", 64, {16: "mnnvl-one-shot", 17: "mnnvl-two-shot"}),
        ("sglang", "h100-sxm", 8, {128: "push", 129: "two-shot", 512: "multimem", 16385: "nccl"}),
        ("sglang", "a100-sxm-hdr", 4, {1024: "push", 1025: "two-shot", 16385: "nccl"}),
    ],
)
@pytest.mark.parametrize("measured", [True, False])
def test_rules_of_stacks(stack: str, cluster: str, tp: int, expected: dict[int, str], measured: bool) -> None:
    """What auto is, by the size in KB, priced by the engine's own curve or by formulas."""
    cluster, at, version = cluster.partition("@")
    own = scenario(stack=f"{stack}{at}{version}", cluster=cluster, tp=tp)
    profile = resolve_profile(own, None if measured else "none")
    group = Network(own, profile, Hardware.of(own))
    for size, name in expected.items():
        assert group.times("all_reduce", np.array([1024.0 * size])).most_common == name, size
    # of many messages at once, each its own
    together = group.times("all_reduce", np.array([1024.0 * size for size in expected]))
    choice = np.broadcast_to(together.choice, len(expected))
    assert [together.algorithms[number] for number in choice] == list(expected.values())
    alone = [group.times("all_reduce", np.array([1024.0 * size])).seconds[0] for size in expected]
    np.testing.assert_allclose(together.seconds, alone)


@pytest.mark.parametrize(
    ("cluster", "stack", "mean"),
    [
        ("h100-sxm", "vllm", 0.04),
        ("h200-sxm", "vllm", 0.04),
        ("b200-sxm", "vllm", 0.15),
        ("h100-sxm", "trtllm", 0.06),
        ("b200-sxm", "trtllm", 0.08),
        ("h100-sxm", "sglang", 0.12),
        ("h200-sxm", "sglang", 0.15),
    ],
)
def test_rules_price_what_engines_measured(cluster: str, stack: str, mean: float) -> None:
    """With their own curves left out: the tables of the GPU alone."""
    for tp, curve in load_profile(f"{cluster}-{stack}").collectives["all_reduce"][OWN].items():
        group, errors = network(load_profile(cluster), cluster=cluster, stack=stack, tp=tp), []
        for size, measured_s in zip(curve.size_bytes, curve.seconds, strict=True):
            chosen = group.times("all_reduce", np.array([size]))
            # the tables' one-shot kernel is TensorRT-LLM's; vLLM's takes a third longer
            if stack != "vllm" or chosen.most_common != "one-shot":
                errors.append(abs(chosen.seconds[0] / measured_s - 1))
        assert len(errors) >= 5
        assert np.mean(errors) <= mean, tp


def test_more_gpus_than_were_measured_follow_the_rule() -> None:
    """GB200 was measured on up to four; a curve of those says nothing about kernels across trays."""
    profile = load_profile("gb200-nvl72-trtllm")
    fields = {"cluster": "gb200-nvl72", "stack": "trtllm", "tp": 16}
    auto, nccl = (times(np.array([16384.0]), profile, allreduce=name, **fields) for name in ("auto", "nccl"))
    assert (auto.most_common, auto.source, auto.in_range.any()) == ("mnnvl-one-shot", "transferred", False)
    # 5.0 us by a kernel, tens by NCCL on 16 GB300s
    assert auto.seconds[0] == pytest.approx(5.0e-6, rel=0.1)
    assert nccl.seconds[0] > 30e-6


def test_reduce_scatter_and_all_gather_are_less_than_an_all_reduce(h100: CalibrationProfile) -> None:
    """NCCL's, as measured and by formula, in a node and across; both halves take about as long as the whole."""
    curves = h100.collectives["reduce_scatter"]["nccl"]
    measured = times(curves[8].size_bytes, h100, kind="reduce_scatter", tp=8)
    np.testing.assert_allclose(measured.seconds, curves[8].seconds)
    assert measured.in_range.all()
    large = np.array([2.0**28])
    for fields in ({"tp": 8}, {"nodes": 2}, {"tp": 2, "p2p": False}):
        for profile in (h100, None):
            scatter, gather, whole = (
                times(large, profile, kind=kind, **fields).seconds[0]
                for kind in ("reduce_scatter", "all_gather", "all_reduce")
            )
            assert max(scatter, gather) < whole <= 1.3 * (scatter + gather), fields


@pytest.mark.parametrize(
    ("allreduce", "fields", "need", "nearest", "way"),
    [
        ("multimem", {"cluster": "l40s-pcie"}, "NVLink switch; l40s-pcie has pcie4", "two-shot", "intra.switch=true"),
        ("mnnvl-one-shot", {"cluster": "l40s-pcie"}, "NVLink switch", "one-shot", "intra.switch=true"),
        ("symmetric-two-shot", {"cluster": "rtx-pro-6000"}, "between all GPUs", "two-shot", "intra.full_nvlink=true"),
        ("nccl-symmetric", {"cluster": "rtx-pro-6000"}, "NVLink switch", "nccl", "intra.switch=true"),
        ("pcie-one-shot", {}, "h100-sxm has nvlink4-nvswitch", "one-shot", "--cluster rtx-pro-6000"),
        ("push", {"cluster": "gb200-nvl72", "tp": 64}, "16 GPUs of a node", "mnnvl-one-shot", "--tp 16 or less"),
        ("multimem", {"cluster": "gb200-nvl72", "tp": 64}, "there are 64", "mnnvl-two-shot", "--tp 16 or less"),
        ("push", {"p2p": False}, "peer-to-peer", "nccl", "leave out --no-p2p"),
        ("multimem", {"cluster": "mi300x"}, "an NVLink switch; mi300x has xgmi3-mesh", "two-shot", "switch=true"),
        ("symmetric-two-shot", {"cluster": "mi300x"}, "NVLink between all GPUs", "two-shot", "full_nvlink=true"),
        ("pcie-one-shot", {"cluster": "mi300x"}, "mi300x has xgmi3-mesh", "one-shot", "--cluster rtx-pro-6000"),
    ],
)
def test_what_does_not_work_names_the_nearest(
    allreduce: str, fields: dict[str, object], need: str, nearest: str, way: str
) -> None:
    with pytest.raises(UsageError, match=f"^all-reduce '{allreduce}' needs ") as caught:
        network(None, allreduce=allreduce, **fields)
    assert need in str(caught.value)
    assert f"use --allreduce {nearest}, or " in caught.value.hint
    assert way in caught.value.hint
    network(None, allreduce=nearest, **fields)


def test_nvls_needs_a_switch() -> None:
    cluster = catalog.cluster("h100-sxm")
    bridged = dataclasses.replace(
        cluster, intra=dataclasses.replace(cluster.intra, fabric="nvlink4-bridge", switch=False)
    )
    with pytest.raises(UsageError, match="NVLink switch") as caught:
        network(None, cluster=bridged, allreduce="nvls")
    assert "--allreduce nccl" in caught.value.hint
    assert "--set intra.switch=true" in caught.value.hint


@pytest.mark.parametrize(
    ("stack", "tp", "own"),
    [("vllm", 8, False), ("vllm", 4, False), ("vllm", 2, True), ("trtllm", 2, False), ("gpt-fast", 2, False)],
)
@pytest.mark.parametrize("cluster", ["h100-pcie", "l40s-pcie", "rtx-pro-6000"])
def test_custom_kernels_need_nvlink(cluster: str, stack: str, tp: int, own: bool) -> None:
    """vLLM takes its own on two GPUs without NVLink, TensorRT-LLM and gpt-fast on none."""
    chosen = times(SIZES, None, cluster=cluster, stack=stack, allreduce="auto", tp=tp)
    assert chosen.names == ({"one-shot", "nccl"} if own else {"nccl"})
    linked = scenario(cluster=cluster, stack=stack, allreduce="auto", tp=tp, overrides={"intra.full_nvlink": "true"})
    assert Network(linked, None, Hardware.of(linked)).times("all_reduce", SIZES).names >= {"one-shot", "nccl"}
    warned = any(
        "does not use its own all-reduce" in text
        for text in scenario_warnings(scenario(cluster=cluster, stack=stack, allreduce="auto", tp=tp))
    )
    assert warned == (not own)
    assert not any("its own all-reduce" in text for text in scenario_warnings(linked))


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        (2, {2**22: "one-shot", 2**23: "nccl"}),
        (4, {2**18: "one-shot", 2**19: "two-shot", 2**23: "nccl"}),
        (8, {2**17: "one-shot", 2**18: "two-shot", 2**23: "nccl"}),
    ],
)
def test_a_mesh_takes_vllms_own_kernels(tp: int, expected: dict[int, str]) -> None:
    for size, name in expected.items():
        chosen = times(np.array([float(size)]), None, cluster="mi300x", stack="vllm", allreduce="auto", tp=tp)
        assert chosen.most_common == name, size


@pytest.mark.parametrize("cluster", ["mi300x", "mi325x", "mi355x"])
def test_a_group_on_a_mesh_has_the_links_inside_it(cluster: str) -> None:
    """TP 2 is never faster per byte than one link, and 8 GPUs never than their seven."""
    intra = catalog.cluster(cluster).intra
    link_Bps = intra.bandwidth_Bps / intra.mesh_links
    for kind, traffic in (("all_reduce", 2.0), ("all_gather", 1.0), ("reduce_scatter", 1.0), ("all_to_all", 1.0)):
        for tp in (2, 4, 8):
            wire_s = traffic * (tp - 1) / tp * SIZES / ((tp - 1) * link_Bps)
            for stack in ("vllm", "gpt-fast"):
                seconds = times(SIZES, None, kind=kind, cluster=cluster, stack=stack, allreduce="auto", tp=tp).seconds
                assert (seconds >= wire_s).all(), (kind, tp)
    # across nodes, TP 2 in each of two
    nodes = times(SIZES, None, cluster=cluster, stack="vllm", allreduce="auto", tp=4, nodes=2, gpus_per_node=2)
    assert (nodes.seconds >= SIZES / link_Bps).all()


def test_a_measured_curve_on_a_mesh_is_itself(h100: CalibrationProfile) -> None:
    """A curve of two GPUs is read against one link, as it is priced."""
    curve = {2: h100.collectives["all_reduce"]["nccl"][2]}
    cluster = catalog.cluster("mi300x")
    collectives = {"all_reduce": {"nccl": curve}}
    profile = dataclasses.replace(h100, cluster=cluster, cluster_name="mi300x", collectives=collectives)
    slow = curve[2].size_bytes / (cluster.intra.bandwidth_Bps / 7)
    priced = times(curve[2].size_bytes, profile, cluster="mi300x", allreduce="nccl", tp=2)
    np.testing.assert_allclose(priced.seconds, np.maximum(curve[2].seconds, slow))


# vLLM's custom all-reduce on 8 MI355X (vllm-project/vllm#39080), and on 4 GPUs of the MI300 class
# (vllm-project/vllm#19744); bytes and microseconds
MI355X_US = {24576: 6.3, 49152: 6.7, 98304: 7.6, 196608: 10.0, 393216: 13.1, 786432: 16.0, 1572864: 24.2}
MI300_US = {2048: 7.18, 16384: 7.26, 32768: 7.58, 262144: 14.39, 524288: 14.65, 1048576: 22.91, 4194304: 63.86}


@pytest.mark.parametrize(
    ("cluster", "tp", "measured_us", "mean", "most"),
    [("mi355x", 8, MI355X_US, 0.11, 0.32), ("mi300x", 4, MI300_US, 0.06, 0.15)],
)
def test_a_mesh_against_measurements(
    cluster: str, tp: int, measured_us: dict[int, float], mean: float, most: float
) -> None:
    """One floor is fitted on each; the slopes are the links' and those of the kernels on NVLink."""
    sizes = np.array(list(measured_us), np.float64)
    predicted = times(sizes, None, cluster=cluster, stack="vllm", allreduce="auto", tp=tp)
    error = np.abs(1e6 * predicted.seconds / np.array(list(measured_us.values())) - 1.0)
    assert error.mean() <= mean
    assert error.max() <= most
    assert not predicted.in_range.any()


def test_a_mesh_that_was_measured() -> None:
    """By the seven rows themselves, and each that has neighbours by those."""
    profile = load_profile("mi355x-vllm")

    def all_reduces(sizes: np.ndarray, profile: CalibrationProfile) -> CollectiveTimes:
        return times(sizes, profile, cluster="mi355x", stack="vllm", tp=8)

    own = all_reduces(np.array(list(MI355X_US), np.float64), profile)
    np.testing.assert_allclose(1e6 * own.seconds, list(MI355X_US.values()), rtol=1e-6)
    assert own.in_range.all()
    errors = []
    for name, curves in profile.collectives["all_reduce"].items():
        for at in range(1, len(curves[8].size_bytes) - 1):
            sizes, seconds = (np.delete(values, at) for values in (curves[8].size_bytes, curves[8].seconds))
            others = {**profile.collectives["all_reduce"], name: {8: Curve(size_bytes=sizes, seconds=seconds)}}
            without = dataclasses.replace(profile, collectives={"all_reduce": others})
            left_s = all_reduces(curves[8].size_bytes[at : at + 1], without).seconds
            errors.append(abs(float(left_s[0]) / curves[8].seconds[at] - 1.0))
    assert np.mean(errors) <= 0.04
    assert max(errors) <= 0.06


def test_every_nvlink_cluster_is_fully_connected() -> None:
    for name in catalog.cluster_names():
        intra = catalog.cluster(name).intra
        assert intra.full_nvlink == intra.fabric.startswith("nvlink"), name


def test_another_cards_all_reduce_is_transferred() -> None:
    """The H100 PCIe has the link of the RTX PRO 6000, figure by figure, and was never measured."""
    own, other = (
        times(SIZES, load_profile(profile), cluster=cluster, stack="vllm")
        for cluster, profile in (("rtx-pro-6000", "rtx-pro-6000"), ("h100-pcie", "h100-sxm"))
    )
    assert own.in_range.any()
    assert not other.in_range.any()
    assert other.source == "transferred"
    # the sweep over InfiniBand was made on H100s, whose figures a B200 does not have
    like_h100 = {"intra.fabric": "nvlink4-nvswitch", "intra.bandwidth": "450GB/s", "intra.allreduce_floor": "15.6us"}
    blackwell = {"cluster": "b200-sxm", "nodes": 2, "overrides": {**like_h100, "inter.allreduce_floor": "40us"}}
    assert times(SIZES, load_profile("h100-sxm"), nodes=2).in_range.any()
    assert times(SIZES, load_profile("h100-sxm"), **blackwell).source == "transferred"


def test_nvls_is_never_called_measured(h100: CalibrationProfile) -> None:
    assert not times(SIZES, h100, tp=8, allreduce="nvls").in_range.any()


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_without_peer_to_peer_takes_longer(h100: CalibrationProfile, tp: int) -> None:
    through_host = one_by_one(SIZES, h100, tp=tp, p2p=False)
    # NCCL's measured curve dips by a few percent below the multicast that it takes itself
    assert (through_host >= 0.9 * one_by_one(SIZES, h100, tp=tp)).all()
    large = times(np.array([2.0**30]), h100, tp=tp, p2p=False)
    # above two ranks NCCL multicasts large messages through the switch; eight are two islands, joined over the network
    assert large.most_common == {2: "nccl-host", 4: "nvls", 8: "nvls-tree"}[tp]
    assert not large.in_range.any()


@pytest.mark.parametrize("fields", [{"tp": 8, "stack": stack} for stack in SERVING] + [{"nodes": 2, "tp": 16}])
@pytest.mark.parametrize("kind", get_args(CollectiveKind)[:4])
def test_messages_priced_together_are_those_priced_one_by_one(kind: CollectiveKind, fields: dict[str, object]) -> None:
    asked = scenario(cluster="h100-sxm", **fields)
    costs = KernelCosts(asked, resolve_profile(asked, None))
    shapes = [CollectiveShape(message_bytes=float(size)) for size in SIZES]
    ops = [Op(name=str(number), kind=kind, shape=shape) for number, shape in enumerate(shapes)]
    for op, together in zip(ops, costs.estimates(ops), strict=True):
        (alone,) = costs.estimates([op])
        assert (together.source, together.algorithm, together.inline) == (alone.source, alone.algorithm, alone.inline)
        assert together.seconds == pytest.approx(alone.seconds, rel=1e-12)
        assert together.error == pytest.approx(alone.error, rel=1e-12)
        assert dataclasses.asdict(together.demand) == pytest.approx(dataclasses.asdict(alone.demand), rel=1e-12)


@pytest.mark.parametrize("fields", [{"tp": 8, "stack": "vllm"}, {"nodes": 2, "tp": 16}])
def test_a_message_in_an_array_is_priced_as_a_number(fields: dict[str, object]) -> None:
    """`capacity` failed where one load alone had steps of a form: its messages were arrays of one."""
    asked = scenario(cluster="h100-sxm", **fields)
    costs = KernelCosts(asked, resolve_profile(asked, None))
    (number,), (array,) = (
        costs.estimates([Op(name="", kind="all_reduce", shape=CollectiveShape(message_bytes=size))])
        for size in (1e6, np.array([1e6]))
    )
    assert dataclasses.asdict(array) == dataclasses.asdict(number)
