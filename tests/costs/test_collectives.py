"""Collectives: the formulas' shape, the measurements they are held against, and which algorithm runs."""

import csv
import dataclasses
import functools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.costs.collectives.algorithms import ALGORITHMS, ALL_REDUCE, OWN, multicast
from ladder_sim.costs.collectives.fabrics import fabric_curve
from ladder_sim.costs.collectives.formulas import NVLS_TREE, TREE_LL, TREE_LL128, across_nodes_s, host_ring_s
from ladder_sim.costs.collectives.measured import MeasuredCollective, bracketed
from ladder_sim.costs.collectives.network import CollectiveTimes, Network
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import UsageError
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import AllReduce, AllReduceRule
from tests.conftest import DATA, REPO

ALL_FORMULAS = {" ".join(key): algorithm for key, algorithm in ALGORITHMS.items()}
ALL_FORMULAS["host"] = functools.partial(host_ring_s, low_latency_share=0.125)
LATENCY = st.floats(1e-7, 1e-3)
BANDWIDTH = st.floats(1e9, 2e12)
MESSAGE = st.floats(1, 2**34)
# the range of nccl-tests: 8 bytes to 16 GiB
SIZES = 2.0 ** np.arange(3, 35)


@pytest.fixture(scope="module")
def h100() -> CalibrationProfile:
    return load_profile("h100-sxm")


def scenario(**fields: object) -> Scenario:
    return Scenario.of(**{"model": "405b", **fields})


def network(profile: CalibrationProfile | None, **fields: object) -> Network:
    own = scenario(**fields)
    return Network(own, profile, Hardware.of(own))


def times(
    sizes: np.ndarray, profile: CalibrationProfile | None, *, kind: str = "all_reduce", **fields: object
) -> CollectiveTimes:
    return network(profile, **fields).times(kind, np.asarray(sizes, np.float64))


def one_by_one(sizes: np.ndarray, profile: CalibrationProfile | None, **fields: object) -> np.ndarray:
    """Seconds, the algorithm chosen for each size by itself."""
    chosen = network(profile, **fields)
    return np.array([chosen.times("all_reduce", np.array([size])).seconds[0] for size in sizes])


# formulas


@pytest.mark.parametrize("name", ALL_FORMULAS)
@given(MESSAGE, st.integers(2, 64), LATENCY, BANDWIDTH, st.floats(1, 100))
def test_formulas_are_monotone(
    name: str, message: float, ranks: int, latency_s: float, bandwidth: float, more: float
) -> None:
    formula = ALL_FORMULAS[name]

    def seconds(message: float, ranks: int, latency_s: float, bandwidth: float) -> float:
        return float(formula(np.array([message]), ranks, latency_s, bandwidth)[0])

    here = seconds(message, ranks, latency_s, bandwidth)
    assert here > 0
    assert seconds(message * more, ranks, latency_s, bandwidth) >= here
    # through host memory more ranks open more channels; what the switch multicasts, each GPU writes its share of
    fewer_bytes = name == "host" or any(line.traffic is multicast for line in formula.lines)
    assert seconds(message, ranks + 1, latency_s, bandwidth) >= here or fewer_bytes
    assert seconds(message, ranks, latency_s * more, bandwidth) >= here
    assert seconds(message, ranks, latency_s, bandwidth * more) <= here


@given(
    MESSAGE, st.integers(1, 6), st.integers(1, 8), LATENCY, BANDWIDTH, st.floats(1, 100), st.booleans(), st.booleans()
)
def test_formulas_across_nodes_are_monotone(
    message: float,
    log_nodes: int,
    ranks: int,
    latency_s: float,
    bandwidth: float,
    more: float,
    nvlink: bool,
    switch: bool,
) -> None:
    """Of every algorithm, so that the fastest of them is, too."""

    def seconds(
        message: float = message, log_nodes: int = log_nodes, latency_s: float = latency_s, bandwidth: float = bandwidth
    ) -> dict[str, float]:
        times_s = across_nodes_s(
            np.array([message]),
            np.array([message / 400e9]),
            nodes=2**log_nodes,
            ranks_per_node=ranks,
            latency_s=latency_s,
            bandwidth_Bps=bandwidth,
            nvlink=nvlink,
            switch=switch,
        )
        return {name: float(time_s[0]) for name, time_s in times_s.items()}

    here, slack = seconds(), 1 + 1e-12
    assert set(here) == {"tree", "nvls-tree" if switch and ranks > 2 else "nccl"} | (
        {"tree-ll128"} if nvlink else set()
    )
    larger, wider, later, faster = (
        seconds(message=message * more),
        seconds(log_nodes=log_nodes + 1),
        seconds(latency_s=latency_s * more),
        seconds(bandwidth=bandwidth * more),
    )
    for name, time_s in here.items():
        assert 0 < time_s <= larger[name] * slack, name
        assert time_s <= wider[name] * slack, name
        assert faster[name] <= time_s <= later[name], name


def test_formulas_of_large_messages_are_bandwidth() -> None:
    """Bus bandwidths that nccl-tests would print for 16 GiB on eight ranks."""
    message, bandwidth = 2.0**34, 450e9
    for name, factor in (("nccl", 0.82), ("nvls", 452 / 450), ("multimem", 1.75 * 274 / 450), ("two-shot", 300 / 450)):
        seconds = float(ALL_REDUCE[name](np.array([message]), 8, 15.6e-6, bandwidth)[0])
        assert 2 * 7 / 8 * message / seconds == pytest.approx(factor * bandwidth, rel=1e-3)


# measured curves


def cases(profile: CalibrationProfile) -> list[tuple[str, int, Curve]]:
    curves = profile.collectives["all_reduce"]
    return [(name, ranks, curve) for name in ("nccl", "one-shot", "two-shot") for ranks, curve in curves[name].items()]


def test_measured_all_reduces_are_reproduced(h100: CalibrationProfile) -> None:
    for algorithm, ranks, curve in cases(h100):
        result = times(curve.size_bytes, h100, tp=ranks, allreduce=algorithm)
        np.testing.assert_allclose(result.seconds, curve.seconds, rtol=1e-9)
        assert result.in_range.all(), (algorithm, ranks)
        assert result.most_common == algorithm


def test_measured_gathers_are_reproduced(h100: CalibrationProfile) -> None:
    for ranks, curve in h100.collectives["all_gather"]["nccl"].items():
        result = times(curve.size_bytes, h100, kind="all_gather", tp=ranks)
        np.testing.assert_allclose(result.seconds, curve.seconds, rtol=1e-9)
        assert result.in_range.all()


def test_outside_the_measurements_is_said(h100: CalibrationProfile) -> None:
    curve = h100.collectives["all_reduce"]["nccl"][8]
    beyond = np.array([curve.size_bytes[0] / 2, curve.size_bytes[-1] * 2])
    result = times(beyond, h100, tp=8)
    assert not result.in_range.any()
    assert result.source == "fitted"
    # another link: carried over, not measured
    slower = times(curve.size_bytes, h100, tp=8, overrides={"intra.bandwidth": "225 GB/s"})
    assert not slower.in_range.any()
    assert slower.source == "transferred"
    assert (slower.seconds >= curve.seconds).all()
    # ranks between the measured ones
    assert not times(SIZES, h100, model="codellama-34b", gpus_per_node=16, tp=16).in_range.any()
    assert times(SIZES, None, tp=8).source == "roofline"


def test_a_gap_between_sizes_brackets_nothing() -> None:
    curve = Curve(size_bytes=np.array([1e3, 8e3, 1e6]), seconds=np.array([1.0, 2.0, 3.0]))
    inside = bracketed(curve, np.array([999.0, 1e3, 5e3, 8e3, 9e3, 2e6]))
    assert inside.tolist() == [False, True, True, True, False, False]


@given(st.floats(2.0, 8.0), MESSAGE)
def test_ranks_between_curves_lie_between_their_ratios(ranks: float, message: float) -> None:
    sizes = np.array([1e3, 1e9])
    collective = MeasuredCollective(
        formula=ALL_REDUCE["nccl"],
        curves={
            2: Curve(size_bytes=sizes, seconds=np.array([8e-6, 4e-3])),
            8: Curve(size_bytes=sizes, seconds=np.array([2e-5, 5e-3])),
        },
        tier=catalog.cluster("h100-sxm").intra,
    )
    low, between, high = (collective.ratio(np.array([message]), n)[0][0] for n in (2, round(ranks), 8))
    assert min(low, high) * (1 - 1e-9) <= between <= max(low, high) * (1 + 1e-9)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("allreduce", [name for name in get_args(AllReduce) if name != "pcie-one-shot"])
def test_larger_messages_take_no_less(h100: CalibrationProfile, allreduce: str, tp: int) -> None:
    """Measurements wiggle by a few percent where protocols change."""
    seconds = one_by_one(SIZES, h100, tp=tp, allreduce=allreduce)
    assert (seconds[1:] >= 0.93 * seconds[:-1]).all()
    assert (seconds[4:] >= 0.96 * seconds[:-4]).all()


# two nodes


def test_two_nodes_reproduce_the_fabrics_log(h100: CalibrationProfile) -> None:
    fabric = fabric_curve("ib-ndr400")
    assert fabric is not None
    result = times(fabric.curve.size_bytes, h100, nodes=2)
    np.testing.assert_allclose(result.seconds, fabric.curve.seconds, rtol=1e-9)
    assert result.seconds[0] == pytest.approx(40e-6, rel=0.02)
    # where the log is congested nothing was kept, so nothing between 8 KB and 256 MB is a measurement
    assert result.in_range.tolist() == [True] * 5 + [False] + [True] * 4
    for message, source in ((2.0**20, "transferred"), (2.0**14, "transferred"), (2.0**34, "fitted"), (256.0, "fitted")):
        between = times(np.array([message]), h100, nodes=2)
        assert (between.in_range.any(), between.source) == (False, source), message


def nccl_tests(*sources: str, smallest: float = 1024) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and seconds of public nccl-tests logs."""
    with (DATA / "allreduce_nccl_tests.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    chosen = [row for row in rows if row["source"] in sources and float(row["bytes"]) >= smallest]
    return np.array([float(row["bytes"]) for row in chosen]), np.array([float(row["time_us"]) * 1e-6 for row in chosen])


def unlisted_fabric(latency: str) -> dict[str, object]:
    """Two nodes of H100 with 400 Gb/s per GPU on a fabric without a log: the formula alone."""
    cluster = catalog.cluster("h100-sxm")
    inter = dataclasses.replace(cluster.inter, fabric="unlisted")
    return {
        "nodes": 2,
        "cluster": dataclasses.replace(cluster, inter=inter),
        "overrides": {"inter.latency": latency, "inter.bandwidth": "400 Gb/s"},
    }


def test_two_node_formula_against_other_fabrics(h100: CalibrationProfile) -> None:
    """EFA (its own floor) and an H20 pair on NDR, neither of which the formula's factors were read off alone."""
    errors = []
    for latency, sources in (("77 us", ("aws_p5_efa", "aws_p5_efa_inplace")), ("40 us", ("h20_2x8_issue1244",))):
        sizes, measured_s = nccl_tests(*sources)
        errors.append(np.abs(times(sizes, h100, **unlisted_fabric(latency)).seconds / measured_s - 1))
    efa, h20 = errors
    assert len(efa) == 50
    assert len(h20) == 10
    assert np.median(efa) <= 0.10
    assert efa.max() <= 0.20
    assert np.median(np.concatenate(errors)) <= 0.15


@pytest.mark.parametrize(
    ("cluster", "logs", "mean", "largest"),
    [
        ("h100-p5", ("aws_p5_efa", "aws_p5_efa_inplace"), 0.04, 0.11),
        ("h100-a3mega", ("gcp_a3mega",), 0.04, 0.06),
        ("a100-sxm-roce", ("oci_bm_gpu4",), 0.06, 0.12),
        ("h100-crusoe", ("crusoe_h100_vm", "crusoe_h100_vm_inplace"), 0.08, 0.18),
    ],
)
def test_step_above_the_fabrics_floor(
    h100: CalibrationProfile, cluster: str, logs: tuple[str, ...], mean: float, largest: float
) -> None:
    """From 16 KB to 512 KB, where the low-latency protocol ends: sizes that a curve holds and sizes that it lacks."""
    for log in logs:
        sizes, measured_s = nccl_tests(log, smallest=16384)
        step = sizes <= 2**19
        profile = load_profile(catalog.cluster(cluster).profile)
        errors = np.abs(times(sizes[step], profile, nodes=2, cluster=cluster).seconds / measured_s[step] - 1)
        assert errors.mean() <= mean, log
        assert errors.max() <= largest, log


# first and last size of each row of the catalog page's table
SIZE_CLASSES = (
    ("1 to 8 KB", 10, 13),
    ("16 and 32 KB", 14, 15),
    ("64 and 128 KB", 16, 17),
    ("256 KB to 1 MB", 18, 20),
    ("2 and 4 MB", 21, 22),
    ("8 to 32 MB", 23, 25),
    ("64 MB to 2 GB", 26, 31),
)


def test_errors_by_size_are_those_on_the_catalog_page(h100: CalibrationProfile) -> None:
    """The one clean log of two nodes on plain InfiniBand; its two runs differ by as much as the formula errs."""
    bare = catalog.cluster("h100-crusoe")
    bare = dataclasses.replace(bare, inter=dataclasses.replace(bare.inter, fabric="unlisted"))
    sizes, first_s = nccl_tests("crusoe_h100_vm")
    same_sizes, second_s = nccl_tests("crusoe_h100_vm_inplace")
    np.testing.assert_array_equal(sizes, same_sizes)
    page = (REPO / "docs" / "catalog.md").read_text("utf-8")
    for label, first, last in SIZE_CLASSES:
        rows = (sizes >= 2.0**first) & (sizes <= 2.0**last)
        apart = np.abs(first_s - second_s)[rows] / (0.5 * (first_s + second_s)[rows])
        cells = [label, str(2 * rows.sum()), f"{apart.mean():.0%}"]
        for cluster in (bare, "h100-crusoe"):
            predicted_s = times(sizes[rows], h100, nodes=2, cluster=cluster).seconds
            errors = np.concatenate([predicted_s / measured_s[rows] - 1 for measured_s in (first_s, second_s)])
            cells.append(f"{np.abs(errors).mean():.0%} ({np.abs(errors).max():.0%})")
        line = f"| {' | '.join(cells)} |"
        assert line in page, line


@pytest.mark.parametrize("p2p", [True, False])
def test_larger_messages_take_no_less_across_nodes(p2p: bool) -> None:
    """Logs wiggle by a few percent, and so do their curves."""
    for cluster in ("h100-sxm", "h100-p5", "h100-crusoe", "h100-a3mega", "a100-sxm-roce"):
        profile = load_profile(catalog.cluster(cluster).profile)
        result = times(SIZES, profile, nodes=2, cluster=cluster, p2p=p2p)
        assert (result.seconds[1:] >= 0.93 * result.seconds[:-1]).all(), cluster


def test_what_nccl_states_of_its_trees() -> None:
    """2 x 8 H100: figures of NCCL's own tuning log (NVIDIA/nccl issue 1453) and source."""
    low, low128, switch = (latency.seconds(2, 8) * 1e6 for latency in (TREE_LL, TREE_LL128, NVLS_TREE))
    assert low == pytest.approx(25.2)
    assert low128 - low == pytest.approx(23.3)
    assert switch - low == pytest.approx(27.8)


@given(LATENCY, BANDWIDTH)
def test_the_step_is_added_to_any_floor(latency_s: float, bandwidth: float) -> None:
    message = np.array([1.0, 2.0**16])
    ways = across_nodes_s(message, np.zeros(2), nodes=2, ranks_per_node=8, latency_s=latency_s, bandwidth_Bps=bandwidth)
    assert ways["tree"][0] == pytest.approx(latency_s, abs=1e-9)
    assert ways["tree-ll128"][0] - ways["tree"][0] == pytest.approx(23.3e-6, rel=1e-3)
    assert ways["nvls-tree"][0] - ways["tree"][0] == pytest.approx(27.8e-6, rel=1e-3)


@pytest.mark.parametrize("p2p", [True, False])
def test_algorithms_across_nodes_are_nccls_choice(h100: CalibrationProfile, p2p: bool) -> None:
    """By NCCL's own model (2.21.5, 2 x 8 H100); left out are sizes where its estimates lie closer than logs do to them:
    64 and 128 KB (LL or LL128), 1 and 2 MB (LL128 or NVLSTree), without P2P 64 KB."""
    if p2p:
        choices = {"tree": (10, 15), "tree-ll128": (18, 19), "nvls-tree": (22, 33)}
    else:
        choices = {"tree": (10, 15), "nvls-tree": (17, 33)}
    for profile in (h100, None):
        for name, (first, last) in choices.items():
            sizes = 2.0 ** np.arange(first, last + 1)
            assert times(sizes, profile, nodes=2, p2p=p2p).names == {name}


def test_nodes_without_nvls_go_by_trees() -> None:
    # PCIe nodes, and nodes of two GPUs
    for fields in ({"cluster": "l40s-pcie", "model": "70b"}, {"gpus_per_node": 2, "model": "70b"}):
        assert times(np.array([2.0**30]), None, nodes=2, **fields).most_common == "nccl"


def test_without_peer_to_peer_across_nodes(h100: CalibrationProfile) -> None:
    """LL128 goes, NVLS stays: prefill messages go through the switch and not through host memory."""
    direct, host = times(SIZES, h100, nodes=2), times(SIZES, h100, nodes=2, p2p=False)
    assert (host.seconds >= direct.seconds).all()
    names = [host.algorithms[number] for number in host.choice]
    assert set(names) == {"tree", "nvls-tree"}
    assert (names[0], names[-1]) == ("tree", "nvls-tree")
    assert not host.in_range.any()
    large = SIZES >= 2**25
    assert (host.seconds[large] <= direct.seconds[large] + 120e-6).all()
    # on two GPUs of each node there is no NVLS: everything goes through host memory
    pairs = times(SIZES, h100, nodes=2, gpus_per_node=2, p2p=False)
    assert set(pairs.algorithms) == {"tree", "nccl-host"}
    assert pairs.seconds[-1] > 2 * times(SIZES, h100, nodes=2, gpus_per_node=2).seconds[-1]


def test_an_algorithm_that_no_log_holds_is_transferred(h100: CalibrationProfile) -> None:
    """The log over NDR holds small messages and large ones, none by LL128; EFA's holds all three, with P2P."""
    for fields, source in (({"nodes": 2}, "transferred"), ({"nodes": 2, "cluster": "h100-p5"}, "fitted")):
        chosen = times(np.array([2.0**17]), h100, **fields)
        assert (chosen.most_common, chosen.source) == ("tree-ll128", source)
        assert {times(np.array([size]), h100, p2p=False, **fields).source for size in SIZES} == {"transferred"}


def test_two_node_formula_of_large_messages_on_ndr(h100: CalibrationProfile) -> None:
    sizes, measured_s = nccl_tests("h100_2x8_ib_large")
    predicted_s = times(sizes, h100, **unlisted_fabric("40 us")).seconds
    assert np.abs(predicted_s / measured_s - 1).max() <= 0.08


@pytest.mark.parametrize(("gpus_per_node", "source"), [(2, "dgx_h100_2x2_ndr"), (4, "dgx_h100_2x4_ndr")])
def test_smaller_nodes_have_a_lower_floor(h100: CalibrationProfile, gpus_per_node: int, source: str) -> None:
    """The log of two full nodes, carried over to half and quarter nodes."""
    sizes, measured_s = nccl_tests(source)
    small = sizes <= 8192
    predicted_s = times(sizes[small], h100, nodes=2, gpus_per_node=gpus_per_node).seconds
    assert np.median(np.abs(predicted_s / measured_s[small] - 1)) <= 0.15


@pytest.mark.parametrize("measured", [True, False])
def test_more_nodes_take_longer(h100: CalibrationProfile, measured: bool) -> None:
    two, four, eight = (times(SIZES, h100 if measured else None, nodes=n).seconds for n in (2, 4, 8))
    assert (four > two).all()
    assert (eight > four).all()
    # a tree level each
    assert four[0] / two[0] == pytest.approx(2.0, rel=0.05)
    assert not times(SIZES, h100, nodes=4).in_range.any()


@pytest.mark.parametrize("tier", ["intra", "inter"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast"])
def test_faster_links_take_no_longer(h100: CalibrationProfile, kind: str, nodes: int, tier: str) -> None:
    for profile in (h100, None):
        base = times(SIZES, profile, kind=kind, nodes=nodes).seconds
        # across nodes the floor is taken off a measured curve, which leaves a rest of two parts in a thousand
        for change, slack in (({f"{tier}.bandwidth": "900 GB/s"}, 1e-12), ({f"{tier}.latency": "5 us"}, 2e-3)):
            faster = times(SIZES, profile, kind=kind, nodes=nodes, overrides=change).seconds
            assert (faster <= base * (1 + slack)).all(), change


# algorithms


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
@pytest.mark.parametrize("engine", ["vllm", "trtllm", "sglang"])
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
    stack = dataclasses.replace(
        catalog.stack("vllm"), allreduce_rules=(AllReduceRule(up_to=((algorithm, 1e12),)),), allreduce_copies=copies
    )
    # six ranks divide the intermediate size
    fields = {"model": "1b", "overrides": {"model.intermediate": "4608"}} if gpus == 6 else {}
    (cluster,) = {row["cluster"] for row in rows}
    if algorithm == "pcie-one-shot":
        stack = dataclasses.replace(stack, custom_allreduce_without_nvlink=8)
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


# rules of stacks


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


# what does not work


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
        for text in scenario(cluster=cluster, stack=stack, allreduce="auto", tp=tp).warnings()
    )
    assert warned == (not own)
    assert not any("its own all-reduce" in text for text in linked.warnings())


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
    like_h100 = {"intra.fabric": "nvlink4-nvswitch", "intra.bandwidth": "450GB/s", "intra.latency": "15.6us"}
    blackwell = {"cluster": "b200-sxm", "nodes": 2, "overrides": {**like_h100, "inter.latency": "40us"}}
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
    # above two ranks NCCL multicasts large messages through the switch
    assert large.most_common == ("nccl-host" if tp == 2 else "nvls")
    assert not large.in_range.any()


def test_dispatch_and_combine_are_as_measured_in_the_engine() -> None:
    """A message of 64 tokens of a rank, of DeepSeek-V3: 16 bits, eight experts each; moe_a2a and wideep files."""
    message = np.array([64 * 8 * 7168 * 2.0])
    for stack, kernel, dispatch_us, combine_us in (
        ("sglang", "deepep-ll", 24.6, 39.7),
        ("vllm", "deepep-ht", 298.7, 112.2),
        ("trtllm", "deepep-ht", 77.4, 69.3),
    ):
        own = scenario(model="70b", stack=stack)
        of_engine = Network(own, resolve_profile(own, None), Hardware.of(own))
        for op, microseconds in (("dispatch", dispatch_us), ("combine", combine_us)):
            priced = of_engine.alone(op, kernel, message)
            assert priced.seconds[0] * 1e6 == pytest.approx(microseconds, rel=0.05)
            assert priced.in_range.all()
            assert priced.algorithms == (kernel,)


def test_dispatch_that_was_not_measured_follows_the_formula() -> None:
    message = np.array([2.0**24])
    (formula,) = (network(None, stack="sglang", nodes=1).alone("dispatch", "deepep-ll", message).seconds,)
    measured = network(load_profile("h100-sxm-sglang"), nodes=1).alone("dispatch", "deepep-ll", message)
    assert formula == pytest.approx(measured.seconds, rel=0.15)
    # not in the GPU's own profile, which is no engine's
    assert not network(load_profile("h100-sxm"), nodes=1).alone("dispatch", "deepep-ll", message).in_range.any()
    with pytest.raises(UsageError, match=r"dispatch 'deepep-ll' needs peer-to-peer access"):
        network(None, nodes=1, p2p=False).alone("dispatch", "deepep-ll", message)


def experts_network(kernel: str, profile: str = "h100-sxm-sglang", nodes: int = 1, **fields: object) -> Network:
    ranks = 8 * nodes
    spread = {"tp": 1, "attention_dp": ranks, "ep": ranks, "batch": ranks, "nodes": nodes}
    own = scenario(**{"model": "deepseek-v3", "stack": "sglang", **spread, **fields})
    measured = load_profile(profile) if profile else None
    return Network(own, measured, Hardware.of(own), "experts")


@pytest.mark.parametrize("kernel", ["deepep-ll", "deepep-ht"])
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_deepep_across_nodes(kernel: str, nodes: int) -> None:
    """As SGLang measured it on H100s; elsewhere by a formula, which those curves judge."""
    mean = 0.15 if kernel == "deepep-ll" else 0.35
    here = experts_network(kernel, nodes=nodes)
    elsewhere = experts_network(kernel, "h100-sxm-vllm", nodes=nodes)
    for op in ("dispatch", "combine"):
        curve = load_profile("h100-sxm-sglang").moe.collectives[op][kernel][8 * nodes]
        # up to 4096 tokens of a rank: beyond it the normal kernels on eight nodes come to half of their rate
        sizes = curve.size_bytes[curve.size_bytes <= 4096 * 8 * 7168 * 2]
        measured = here.times(op, sizes, kernel=kernel)
        assert measured.seconds == pytest.approx(curve.seconds[: len(sizes)])
        assert measured.in_range.all()
        formula = elsewhere.times(op, sizes, kernel=kernel)
        assert (formula.source, formula.in_range.any()) == ("transferred", False)
        errors = np.abs(formula.seconds / measured.seconds - 1.0)
        assert errors.mean() < mean, (op, errors.round(2))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_nccls_exchanges_of_tokens_are_as_measured_in_a_node(kind: str) -> None:
    where = {"cluster": "h200-sxm", "stack": "vllm"}
    profile = load_profile("h200-sxm-vllm")
    for ranks in (2, 4, 8):
        curve = profile.collectives[kind]["nccl"][ranks]
        group = experts_network("", profile.name, attention_dp=ranks, ep=ranks, **where)
        measured = group.times(kind, curve.size_bytes)  # type: ignore[arg-type]
        assert measured.seconds == pytest.approx(curve.seconds)
        assert measured.in_range.all()
        # beyond the largest message, and across nodes, by formulas
        assert not group.times(kind, 2.0 * curve.size_bytes[-1:]).in_range.any()  # type: ignore[arg-type]
    across = experts_network("", profile.name, nodes=2, **where).times(kind, curve.size_bytes)  # type: ignore[arg-type]
    assert (across.source, across.in_range.any()) == ("roofline", False)


def test_kernels_for_experts_say_what_they_need() -> None:
    message = np.array([2.0**20])
    for kernel, fields, need in (
        ("nvlink-one-sided", {"nodes": 2}, "ranks of one node"),
        ("nvlink-two-sided", {"p2p": False}, "peer-to-peer access"),
        ("deepep-ht", {"cluster": "rtx-pro-6000"}, "NVLink between all GPUs"),
    ):
        with pytest.raises(UsageError, match=f"dispatch '{kernel}' needs {need}"):
            experts_network(kernel, "", **fields).times("dispatch", message, kernel=kernel)  # type: ignore[arg-type]


def test_an_all_to_all_is_as_measured(h100: CalibrationProfile) -> None:
    for ranks in (2, 4, 8):
        sizes = h100.collectives["all_to_all"]["nccl"][ranks].size_bytes
        measured = times(sizes, h100, kind="all_to_all", model="70b", tp=ranks)
        assert measured.seconds == pytest.approx(h100.collectives["all_to_all"]["nccl"][ranks].seconds)
        assert measured.in_range.all()


def test_an_all_to_all_across_nodes_is_bound_by_every_gpus_own_port() -> None:
    """What a rank sends to other nodes goes through its port, where a gathered result is shared by those of a node."""
    message = np.array([2.0**30])
    own = scenario(nodes=2)
    across, gather = (times(message, None, kind=kind, nodes=2).seconds[0] for kind in ("all_to_all", "all_gather"))
    port_s = message[0] / 2 / own.cluster.inter.bandwidth_Bps
    assert port_s < across < 1.3 * port_s
    assert across > 4 * gather
