"""Collectives across nodes: formulas, public logs over several fabrics, and which of NCCL's algorithms runs."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.costs.collectives.fabrics import fabric_curve
from ladder_sim.costs.collectives.nccl import NVLS_TREE, TREE_LL128, across_nodes_s, tree_traffic
from ladder_sim.costs.collectives.network import Network
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.prediction import predict, resolve_profile
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import TREE_LL
from tests.conftest import DATA, REPO
from tests.support.networks import BANDWIDTH, LATENCY, MESSAGE, SIZES, scenario, times


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
            np.array([message / 200e9]),
            nodes=2**log_nodes,
            ranks_per_node=ranks,
            allreduce_floor_s=latency_s,
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


def test_two_nodes_reproduce_the_fabrics_log(h100: CalibrationProfile) -> None:
    fabric = fabric_curve("ib-ndr400")
    assert fabric is not None
    result = times(fabric.curve.size_bytes, h100, nodes=2)
    np.testing.assert_allclose(result.seconds, fabric.curve.seconds, rtol=1e-9)
    assert result.seconds[0] == pytest.approx(40e-6, rel=0.02)
    # where the log is congested nothing was kept, so nothing between 4 KB and 256 MB is a measurement
    assert result.in_range.tolist() == [True] * 4 + [False] + [True] * 4
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
        "overrides": {"inter.allreduce_floor": latency, "inter.bandwidth": "400 Gb/s"},
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
    """In full from the floor on that NCCL states for its trees: nearer links shorten the steps of all protocols."""
    message = np.array([1.0, 2.0**16])
    layout = {"nodes": 2, "ranks_per_node": 8, "allreduce_floor_s": latency_s, "bandwidth_Bps": bandwidth}
    ways = across_nodes_s(message, np.zeros(2), np.zeros(2), **layout)
    assert ways["tree"][0] == pytest.approx(latency_s, abs=1e-9)
    near = min(1.0, latency_s / 25.2e-6)
    assert ways["tree-ll128"][0] - ways["tree"][0] == pytest.approx(near * 23.3e-6, rel=2e-3)
    assert ways["nvls-tree"][0] - ways["tree"][0] == pytest.approx(near * 27.8e-6, rel=2e-3)


def parents(nodes: int) -> list[int]:
    """Parent of each node in NCCL's binary tree, -1 of the first (2.21.5, src/graph/trees.cc, ncclGetBtree)."""
    up = [-1]
    for node in range(1, nodes):
        bit = node & -node
        above = (node ^ bit) | (bit << 1)
        up.append(above if above < nodes else node ^ bit)
    return up


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6, 7, 8, 12, 16, 64])
def test_a_node_of_two_trees_sends_as_much_as_they_say(nodes: int) -> None:
    """Half of the message goes up and down each; the second is the first one mirrored, or shifted (ncclGetDtree)."""
    sent = [0.0] * nodes
    for places in (list(range(nodes)), [nodes - 1 - at if nodes % 2 == 0 else (at + 1) % nodes for at in range(nodes)]):
        for child, parent in enumerate(parents(nodes)):
            if parent >= 0:
                sent[places[child]] += 0.5
                sent[places[parent]] += 0.5
    assert tree_traffic(nodes) == max(sent)
    assert tree_traffic(nodes) >= 2 * (nodes - 1) / nodes, "no all-reduce carries less"


@pytest.mark.parametrize("p2p", [True, False])
def test_algorithms_across_nodes_are_nccls_choice(h100: CalibrationProfile, p2p: bool) -> None:
    """By NCCL's own model (2.21.5, 2 x 8 H100); left out are sizes where its estimates lie closer than logs do to them:
    64 and 128 KB (LL or LL128), 1 and 2 MB (LL128 or NVLSTree). Without P2P two nodes are four islands."""
    if p2p:
        choices = {"tree": (10, 15), "tree-ll128": (18, 19), "nvls-tree": (22, 33)}
    else:
        choices = {"tree": (10, 15), "ring": (16, 17), "nvls-tree": (18, 33)}
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
    assert list(dict.fromkeys(names)) == ["tree", "ring", "nvls-tree"]
    assert not host.in_range.any()
    # four islands in place of two nodes: four times as much on a rail of the island that two others hang below; for
    # the barriers 120 us
    large = SIZES >= 2**25
    assert (host.seconds[large] <= 2.8 * direct.seconds[large] + 120e-6).all()
    # on two GPUs of each node there is no NVLS: everything goes through host memory
    pairs = times(SIZES, h100, nodes=2, gpus_per_node=2, p2p=False)
    assert set(pairs.algorithms) == {"tree", "ring", "nccl-host"}
    assert pairs.seconds[-1] > 2 * times(SIZES, h100, nodes=2, gpus_per_node=2).seconds[-1]


@pytest.mark.parametrize(("nodes", "gpus_per_node"), [(2, 8), (4, 8), (2, 2), (8, 4)])
def test_without_peer_to_peer_no_larger_message_takes_less(nodes: int, gpus_per_node: int) -> None:
    """NCCL's estimates choose when an algorithm begins, too late where that is faster already."""
    layout = {**unlisted_fabric("40 us"), "nodes": nodes, "gpus_per_node": gpus_per_node, "p2p": False}
    result = times(2.0 ** np.arange(6, 33, 0.125), None, **layout)
    assert (np.diff(result.seconds) >= 0).all()
    assert len(result.names) >= 2


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
        for change, slack in (({f"{tier}.bandwidth": "900 GB/s"}, 1e-12), ({f"{tier}.allreduce_floor": "5 us"}, 2e-3)):
            faster = times(SIZES, profile, kind=kind, nodes=nodes, overrides=change).seconds
            assert (faster <= base * (1 + slack)).all(), change


def test_an_all_to_all_across_nodes_is_bound_by_every_gpus_own_port() -> None:
    """What a rank sends to other nodes goes through its port, where a gathered result is shared by those of a node."""
    message = np.array([2.0**30])
    own = scenario(nodes=2)
    across, gather = (times(message, None, kind=kind, nodes=2).seconds[0] for kind in ("all_to_all", "all_gather"))
    port_s = message[0] / 2 / own.cluster.inter.bandwidth_Bps
    assert port_s < across < 1.3 * port_s
    assert across > 4 * gather


def test_a_slow_network_is_felt_at_every_size() -> None:
    """405B on two nodes took 38.3767 ms a token at 10 MB/s and at 400 GB/s alike."""
    slow, fast = (
        predict(Scenario(model="405b", nodes=2, overrides={"inter.bandwidth": rate}))["standard"]
        for rate in ("10 MB/s", "400 GB/s")
    )
    # two all-reduces a layer, each rank's share of 32 KiB once each way through its port
    wire_s = 2 * 126 * 2**15 / 8 / 10e6
    assert slow.tpot_s > wire_s > 2 * fast.tpot_s
    # and the trees' low-latency rate of NCCL 2.21.5 bounds it from below
    assert 30e-3 < fast.tpot_s < 38.3e-3


def test_a_curve_of_another_gpu_is_no_faster_than_the_line_rate() -> None:
    """The log over NDR, of H100s, on B200s: 1 GiB took 2.446 ms where eight ports of 400 Gb/s need 2.684."""
    profile, message = load_profile("b200-sxm"), np.array([2.0**30])
    assert times(message, profile, nodes=2, cluster="b200-sxm").seconds[0] == pytest.approx(2.684e-3, rel=1e-3)


@pytest.mark.parametrize("cluster", ["a100-sxm-roce", "h100-crusoe", "h100-p5"])
def test_a_fabrics_curve_at_a_lower_rate_is_no_faster_than_it(cluster: str) -> None:
    profile = load_profile(catalog.cluster(cluster).profile)
    for rate in (1e9, 10e9):
        slow = times(SIZES, profile, nodes=2, cluster=cluster, overrides={"inter.bandwidth_Bps": rate}).seconds
        assert (slow >= SIZES / 8 / rate).all()


def test_no_protocol_is_faster_inside_a_node_than_what_was_measured_there() -> None:
    """LL128 ran at the line rate of NVLink, of which NCCL reaches 75 % on A100: it was taken for 17 GB."""
    faster = {"inter.bandwidth": "300GB/s"}
    own = times([16 * 2.0**30], load_profile("a100-sxm"), cluster="a100-sxm-roce", nodes=2, overrides=faster)
    assert own.most_common == "nvls-tree"


@pytest.mark.parametrize("stack", ["vllm", "gpt-fast"])
def test_an_own_sweep_that_ends_early_is_kept_and_its_end_is_said(tmp_path: Path, stack: str) -> None:
    """Regression: gpt-fast's NCCL took 217 us for the 300 of the file, and the next size a quarter of that."""
    path = tmp_path / "mine.toml"
    sizes, seconds = [512.0, 4096.0, 65536.0], [80e-6, 90e-6, 300e-6]
    path.write_text(
        f'source = "mine"\ncluster = "h100-sxm"\nnodes = 2\nranks_per_node = 8\nbytes = {sizes}\n'
        f"time_us = {[1e6 * each for each in seconds]}\n"
    )
    scenario = Scenario(model="405b", nodes=2, stack=stack, overrides={"inter.fabric": str(path)})
    profile = resolve_profile(scenario, None)
    network = Network(scenario, profile, Hardware.of(scenario, profile))
    assert network.times("all_reduce", np.array(sizes)).seconds == pytest.approx(seconds)
    beyond = network.times("all_reduce", 2.0 ** np.arange(16, 35)).seconds
    assert (np.diff(beyond) >= -1e-12).all()
    warnings = predict(scenario, ["standard"])["standard"].confidence.warnings
    # the prompts' all-reduces are of 34 MB
    assert sum("has no sizes near all-reduces of 33.6 MB" in text for text in warnings) == 1
