"""The equations of docs/model.md, docs/load.md and docs/how, written out again, give what the code gives."""

import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.closed_loop.engine import FrontEnd, Steps, simulate
from ladder_sim.closed_loop.schedule import Scheduling
from ladder_sim.confidence.errors import UNCHECKED
from ladder_sim.costs import estimate
from ladder_sim.costs.collectives.across_nodes import AcrossNodes
from ladder_sim.costs.collectives.algorithms import ALL_REDUCE
from ladder_sim.costs.collectives.nccl import across_nodes_s, host_ring_s
from ladder_sim.costs.estimate import COLLECTIVE_ERROR, OverlapParameters, Source, kernel_demand
from ladder_sim.costs.hardware import Hardware, skew_growth
from ladder_sim.costs.kernels import CALIBRATED_KERNEL_ERROR, KERNEL_ERROR, KernelCosts
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.des.shared import Demand, Device
from ladder_sim.graph.ops import Op
from ladder_sim.kernels import AttentionShape, CollectiveShape, ElementwiseShape, GemmShape
from ladder_sim.prediction import resolve_profile
from ladder_sim.wirings.names import NO_COMMUNICATION
from tests.conftest import REPO

PAGES = [*(REPO / "docs" / "how").glob("*.md"), REPO / "docs" / "model.md", REPO / "docs" / "load.md"]
SOURCES: tuple[Source, ...] = ("measured", "fitted", "transferred", "roofline")
# floors of links, seconds, and their rates, bytes/s
ALPHA, HOST_ALPHA, NODE_ALPHA = 15.6e-6, 49e-6, 40e-6
BANDWIDTH, HOST_BANDWIDTH, PORT = 450e9, 31.5e9, 50e9


def growth(ranks: int, gamma: float) -> float:
    return (ranks / 8) ** gamma if ranks <= 8 else 1 + (1 - 2**-gamma) * math.log2(ranks / 8)


@pytest.mark.parametrize("name", ["nccl", "one-shot", "two-shot", "push", "multimem", "mnnvl-one-shot"])
def test_an_algorithm_inside_a_node(name: str) -> None:
    for ranks in (2, 4, 8, 16):
        for message in (1e4, 1e6, 1e8):
            expected_s = min(
                line.floor * growth(ranks, line.growth) * ALPHA
                + line.traffic(ranks) * message / (line.rate * BANDWIDTH)
                for line in ALL_REDUCE[name].lines
            )
            seconds = ALL_REDUCE[name](np.array([message]), ranks, ALPHA, BANDWIDTH)
            assert seconds == pytest.approx([expected_s])


def test_through_host_memory() -> None:
    for n in (2, 4, 8):
        for b in (1e3, 1e5, 1e8):
            floor, wire = HOST_ALPHA * (n - 1) / 7, 2 * (n - 1) / n * b / HOST_BANDWIDTH
            expected_s = min(floor + wire / min(1, n / 2 * 0.125), 5.7 * floor + wire)
            assert host_ring_s(np.array([b]), n, HOST_ALPHA, HOST_BANDWIDTH, 0.125) == pytest.approx([expected_s])


def test_across_nodes() -> None:
    for nodes in (2, 4):
        for ranks in (2, 4, 8):
            for b in (1e4, 1e5, 1e6, 1e9):
                low, low128, switch, simple = (
                    1e-6 * (base + 2 * ((ranks - 1) * hop + math.log2(nodes) * network))
                    for base, hop, network in ((6.8, 0.6, 5), (14, 1.25, 8.5), (25, 0, 14), (0, 4, 14))
                )
                node_s, rail_s = b / 300e9, min(2, nodes / 2) * (b / ranks) / (0.95 * PORT)
                floor_s, chunks = math.log2(nodes) * growth(ranks, 0.67) * NODE_ALPHA, max(1, b / 2**25)
                large, name = (switch, "nvls-tree") if ranks > 2 else (simple, "nccl")
                piped_s = (node_s + rail_s) / chunks + (1 - 1 / chunks) * max(node_s, rail_s)
                low_latency_s = 2 * 2 * (ranks - 1) / ranks * b / 450e9
                path_s = max(b / (2.3 * PORT), 16 / 15 * rail_s)
                expected_s = {
                    "tree": floor_s + b / 1.79e9 + low_latency_s + 2 * rail_s,
                    "tree-ll128": floor_s + low128 - low + path_s + 8 / 15 * low_latency_s,
                    name: floor_s + max(0, large - low) + piped_s,
                }
                layout = {
                    "nodes": nodes,
                    "ranks_per_node": ranks,
                    "allreduce_floor_s": NODE_ALPHA,
                    "bandwidth_Bps": PORT,
                }
                times_s = across_nodes_s(np.array([b]), np.array([node_s]), np.array([low_latency_s]), **layout)
                assert {way: float(seconds[0]) for way, seconds in times_s.items()} == pytest.approx(expected_s)
                # by the rate of NCCL 2.21.5
                share = np.interp(math.log2(b), (15, 16, 17, 18), (0.7, 0.6, 0.5, 0.4))
                known_s = floor_s + b / (19.5e9 * share) + low_latency_s + 2 * rail_s
                times_s = across_nodes_s(
                    np.array([b]), np.array([node_s]), np.array([low_latency_s]), **layout, known_nccl=True
                )
                assert float(times_s["tree"][0]) == pytest.approx(known_s)


def test_islands_without_peer_to_peer_access() -> None:
    for nodes in (1, 2):
        scenario = Scenario(model="405b", stack="gpt-fast", nodes=nodes, tp=8 * nodes, p2p=False)
        hardware, islands, ranks = Hardware.of(scenario), 2 * nodes, 4
        network, cluster, n, levels = AcrossNodes(scenario, hardware, "tensor", {}), scenario.cluster, 8 * nodes, nodes
        port, host, floor = (
            0.95 * cluster.inter.bandwidth_Bps,
            cluster.host.bandwidth_Bps,
            cluster.host.allreduce_floor_s,
        )
        for b in (4096.0, 65536.0, 2.0**23):
            rates = [min(1, 0.125 * each / 2) * host for each in (ranks, n)]
            outside_s = levels * growth(4, 0.67) * cluster.inter.allreduce_floor_s - 3.6e-6
            share = np.interp(math.log2(b), (15, 16, 17, 18), (0.7, 0.6, 0.5, 0.4))
            wire_s, rail_s = 1.5 * b / (0.82 * 450e9), min(2, islands / 2) * b / ranks / port
            expected_s = {
                "tree": floor * 3 / 7 + outside_s + max(b / 19.5e9 / share, b / (0.3125 * rates[0])) + 2 * rail_s,
                "ring": (2 * (n - 1) - 2 * islands) / 14 * floor
                + 2.7 * islands / (5 * levels) * outside_s
                + 2 * (n - 1) / n * b * (1 / rates[1] + 2 / (ranks * port)),
                "nvls-tree": 2 * floor * 3 / 7 + outside_s + 18e-6 * levels + wire_s + rail_s,
            }
            ways = network._without_p2p("all_reduce", np.array([b]), known_nccl=True)
            assert {name: float(seconds[0]) for name, seconds in ways.items()} == pytest.approx(expected_s)


def test_small_kernels_and_a_dispatch_across_nodes() -> None:
    scenario = Scenario(
        model="deepseek-v3",
        nodes=2,
        tp=1,
        attention_dp=16,
        ep=16,
        batch=16,
        stack="vllm",
        overrides={"stack.dispatch": "deepep-ll"},
    )
    profile = resolve_profile(scenario, None)
    costs, cluster, b = KernelCosts(scenario, profile), scenario.cluster, 1e7
    message = CollectiveShape(message_bytes=b, group="experts", kernel="deepep-ll")
    norm, dispatch = costs.estimates(
        [
            Op(name="", kind="norm", shape=ElementwiseShape(moved_bytes=b)),
            Op(name="", kind="dispatch", shape=message),
        ]
    )
    assert profile is not None
    assert norm.seconds == pytest.approx(
        cluster.gpu.kernel_s + b / (profile.memory_efficiency * cluster.gpu.hbm_bandwidth_Bps)
    )
    port_s = 0.5 * 0.5 * b / (0.95 * cluster.inter.bandwidth_Bps)
    assert dispatch.seconds == pytest.approx(13e-6 + 0.3 * cluster.inter.allreduce_floor_s + port_s)


@pytest.mark.parametrize(("batch", "prompt"), [(1, 1), (4, 1), (1, 1024), (4, 300)])
def test_math_attention(batch: int, prompt: int) -> None:
    heads, kv_heads, dim, context = 8, 1, 128, 1536 if prompt == 1 else prompt
    shape = AttentionShape(
        kernel="math",
        batch=batch,
        q_len=prompt,
        kv_len=context,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
    )
    scenario = Scenario(model="70b", tp=8, batch=batch)
    profile = resolve_profile(scenario, "h100-sxm")
    (attention,) = KernelCosts(scenario, profile).estimates([Op(name="", kind="attention", shape=shape)])
    gpu = scenario.cluster.gpu
    assert profile is not None

    def memory_s(q: int) -> float:
        moved = 2 * 2 * batch * dim * (q * heads + context * kv_heads) + 20 * batch * heads * q * context
        return moved / (profile.memory_efficiency * gpu.hbm_bandwidth_Bps)

    expanded_s = 2 * 2 * batch * context * dim * heads / (1.3 * gpu.hbm_bandwidth_Bps)
    floor_s, several_s = 3 * gpu.kernel_s, 10e-6 * (batch > 1)
    seconds = floor_s + several_s + max(memory_s(1), expanded_s)
    if prompt > 1:
        filled = []
        for columns in (context, dim):
            tiles = batch * heads * math.ceil(prompt / 128) * math.ceil(columns / 128)
            # the tiles of an SM at a time, each as long as one that is full
            slots = 132 * math.ceil(tiles / 132) * min(prompt, 128) * min(columns, 128)
            filled.append(batch * heads * prompt * columns / slots)
        multiplied_s = 8 * shape.flops / gpu.bf16_flops * sum(1 / each for each in filled)
        seconds = max(seconds, floor_s + multiplied_s + memory_s(prompt))
    assert attention.seconds == pytest.approx(seconds)


def test_the_slowest_of_some_ranks() -> None:
    def largest(ranks: int) -> float:
        return NormalDist().inv_cdf((ranks - 3 / 8) / (ranks + 1 / 4))

    for ranks in (2, 4, 8, 16):
        assert skew_growth(ranks) == pytest.approx(largest(ranks) / largest(8))
    page = (REPO / "docs" / "model.md").read_text("utf-8")
    assert (
        f"{skew_growth(2):.2f}, {skew_growth(4):.2f} and {skew_growth(16):.2f} times $s$ for 2, 4 and 16 ranks" in page
    )


@pytest.mark.parametrize("held", [1, 16, 40])
def test_what_a_kernel_loses_with_its_sms(held: int) -> None:
    overlap, other = OverlapParameters(), ElementwiseShape(moved_bytes=1e6)
    gemm = GemmShape(m=64, n=7168, k=8192)
    for shape, m, a, lost in (
        (other, 0.0, 0.0, 0.5),
        (gemm, 0.9, 0.0, 0.5),
        (gemm, 0.8, 0.2, 0.875),
        (gemm, 0.1, 0.7, 2),
    ):
        # whatever it uses of the memory, which is shared apart
        kernel = replace(kernel_demand(shape, overlap, m, a), memory=0.0)
        assert Device(sms=132).rate(kernel, [Demand(held_sms=held)]) == pytest.approx(1 - lost * held / 132)


def level_of(needs: list[float], sms: list[float]) -> float:
    """What an SM gets of a memory that tasks share by their SMs: the level at which their parts add up to all of it."""
    full = max(need / n for need, n in zip(needs, sms, strict=True))
    if sum(needs) <= 1:
        return full
    low, high = 0.0, full
    for _ in range(100):
        level = (low + high) / 2
        given = sum(min(need, n * level) for need, n in zip(needs, sms, strict=True))
        low, high = (level, high) if given < 1 else (low, level)
    return low


@pytest.mark.parametrize(
    ("own", "held", "busy", "binds"),
    [
        (0.1, 4, 0.2, "waiting"),
        (0.1, 4, 0.8, "waiting"),
        (0.1, 1, 0.98, "memory"),
        (0.1, 1, 1.0, "memory"),
        (0.1, 16, 1.0, "waiting"),
        (0.02, 4, 1.0, "waiting"),
    ],
)
def test_what_busy_memory_costs_a_collective_and_a_kernel(own: float, held: int, busy: float, binds: str) -> None:
    w, d, sms = 0.7, 3.5, 132
    collective, kernel = Demand(held_sms=held, waits=w, memory=own, link=1.0), Demand(memory=busy, delay=d * busy)
    waiting = 1 / (1 + w * d * busy)
    level = level_of([own * waiting, busy], [held, sms])
    expected = {"waiting": waiting, "memory": held * level / own}
    # where the memory has room for all, both are the same rate
    assert (expected["memory"] < 0.999 * waiting) == (binds == "memory")
    assert Device(sms=sms).rate(collective, [kernel]) == pytest.approx(expected[binds])
    assert Device(sms=sms).rate(kernel, [collective]) == pytest.approx(min(1, sms * level / busy))


@pytest.mark.parametrize("memory", [(0.9, 0.3), (0.6, 0.6), (1.0, 0.1)])
def test_kernels_share_the_memory_in_equal_parts(memory: tuple[float, float]) -> None:
    level = level_of(list(memory), [132, 132])
    own, other = (Demand(memory=each) for each in memory)
    assert Device(sms=132).rate(own, [other]) == pytest.approx(min(1, 132 * level / memory[0]))
    assert Device(sms=132).rate(other, [own]) == pytest.approx(min(1, 132 * level / memory[1]))


def test_steps_through_memory_of_each_collective() -> None:
    for nodes in (1, 2, 4):
        for p in (2, 8):
            for kind, u in (("all_reduce", 2), ("all_gather", 1)):
                chain, switch = 2 + u * (p - 1 + math.log2(nodes)), 2 + u * (2 + math.log2(nodes))
                assert estimate.memory_steps("nccl", kind, nodes, p) == chain
                assert estimate.memory_steps("tree", kind, nodes, p) == chain
                assert estimate.memory_steps("nvls-tree", kind, nodes, p) == switch
    for name, steps in (("one-shot", 3), ("multimem", 3), ("two-shot", 5), ("symmetric-two-shot", 5)):
        assert estimate.memory_steps(name, "all_reduce", 1, 8) == steps


@pytest.mark.parametrize(
    ("label", "scenario"),
    [
        ("70B, TP 8, batch 1: ring", Scenario(model="70b", tp=8, dtype="fp16")),
        ("70B, TP 8, batch 4: ring", Scenario(model="70b", tp=8, batch=4, dtype="fp16")),
        ("70B, TP 8, batch 16 under vLLM: multimem", Scenario(model="70b", tp=8, batch=16, stack="vllm")),
        ("405B, two nodes, batch 4: tree by LL", Scenario(model="405b", nodes=2, tp=16, batch=4, dtype="fp16")),
    ],
)
def test_an_all_reduce_next_to_the_gate_and_up_projection(label: str, scenario: Scenario) -> None:
    # without what a fit to runs makes of them
    profile = None if scenario.stack.name == "vllm" else "h100-sxm"
    costs, model = KernelCosts(scenario, resolve_profile(scenario, profile)), scenario.model
    batch, tp = scenario.workload.batch, scenario.plan.tp
    gate_up = GemmShape(
        m=batch,
        n=2 * model.intermediate // tp,
        k=model.hidden,
    )
    message = CollectiveShape(message_bytes=2 * batch * model.hidden, group="tensor")
    reduced, kernel = costs.estimates(
        [
            Op(name="", kind="all_reduce", shape=message),
            Op(name="", kind="gemm", shape=gate_up),
        ]
    )
    waits, us = float(reduced.demand.waits), 1e6 * float(reduced.seconds)
    longer = 1 / float(Device(sms=132).rate(reduced.demand, [kernel.demand]))
    page = (REPO / "docs" / "how" / "contention.md").read_text("utf-8")
    assert f"| {label} | {us:.1f} us | {waits * us / 0.8:.0f} | {waits:.2f} | {longer:.2f} |" in page


def test_what_keeps_ladder_from_the_upper_bound() -> None:
    """Decode steps of the headline, cause after cause: each line adds one to those above."""
    profile = load_profile("h100-sxm-gpt-fast")
    alone, page = {"gemm_delay": 0.0, "kernel_delay": 0.0}, (REPO / "docs" / "how" / "contention.md").read_text("utf-8")
    no_skew, no_waits = {"cluster.rank_skew": "0"}, {"stack.stream_wait": "0"}
    causes: list[tuple[str, dict[str, str], dict[str, float]]] = [
        ("its adds, and what all-reduces outlast", no_skew | no_waits, alone | {"lost": 0.0}),
        ("the slowest of 16 ranks", no_waits, alone | {"lost": 0.0}),
        ("waits for the other stream", {}, alone | {"lost": 0.0}),
        ("SMs that all-reduces hold", {}, alone),
        ("steps of all-reduces that kernels delay", {}, {}),
    ]
    rows: dict[str, list[str]] = {}
    for batch in (1, 4, 16):
        before_ms = 0.0
        for label, overrides, overlap in causes:
            scenario = Scenario(model="405b", nodes=2, batch=batch, overrides=overrides)
            answer = predict(scenario, ["ladder", NO_COMMUNICATION], profile=replace(profile, overlap=overlap))
            bound_ms, ladder_ms = (1e3 * answer[name].tpot_s for name in (NO_COMMUNICATION, "ladder"))
            if not before_ms:
                rows.setdefault("no communication", []).append(f"{bound_ms:.1f}")
            rows.setdefault(label, []).append(f"{ladder_ms - (before_ms or bound_ms):+.1f}")
            before_ms = ladder_ms
        rows.setdefault("ladder", []).append(f"{before_ms:.1f}")
    for label, cells in rows.items():
        assert f"| {label} | {' | '.join(cells)} |" in page


def test_the_front_end_of_requests_in_flight() -> None:
    load = {"concurrency": 64, "prompt": 1024, "steps": 255, "slots": 1e9}
    times = Steps(decode_s=[0.01 + 1e-4 * n for n in range(65)], tokens=[1024, 8192], added_s=[0.02, 0.16])
    scheduling = Scheduling(step_tokens=8192, mixed_steps=True, ahead=True)
    served = simulate(times, scheduling, front_end=FrontEnd(0.05, 2.0, 0.01), **load)
    f = 0.05 + 2.0 * served.tpot_s + 0.01
    z = served.ttft_s - f + 255 * served.tpot_s
    assert served.front_end_s == pytest.approx(f)
    assert served.in_engine == pytest.approx(64 * z / (z + f))


def test_an_interval_without_a_fit() -> None:
    answer = predict(Scenario(model="70b", tp=8, stack="vllm", prompt=8192), ["standard", "ladder"])
    (base, own), (base_s, own_s) = zip(
        *((each.breakdown, float(each.request_s)) for each in answer.values()), strict=True
    )
    apart = [UNCHECKED[part] for part, checked in answer.confidence.validated.items() if not checked]
    kernels, collectives = (math.hypot(*(getattr(each, name) for each in apart)) for name in ("kernels", "collectives"))
    of_base, of_own = (
        {kind: error / seconds for kind, error in each.errors_s.items()}
        for each, seconds in ((base, base_s), (own, own_s))
    )
    rate = math.log1p(math.hypot(*of_own.values()))
    speedup = math.log1p(math.hypot(*(of_own.get(k, 0) - of_base.get(k, 0) for k in of_own | of_base)))
    x_base, x, y = base.exposed_comm_s / base_s, own.exposed_comm_s / own_s, own.collectives_s / own_s
    u_rate = math.log1p(math.hypot(kernels * (1 - y), collectives * y))
    u_speedup = math.log1p(
        math.hypot(
            math.hypot(kernels, collectives) * (x_base - x),
            kernels * (1 - own_s * (1 - x) / (base_s * (1 - x_base))),
        )
    )
    assert answer["ladder"].tokens_per_s.log_width == pytest.approx(math.hypot(rate, u_rate))
    assert answer["ladder"].speedup.log_width == pytest.approx(math.hypot(speedup, u_speedup))


def test_tables_of_constants_are_those_of_the_code() -> None:
    page = (REPO / "docs" / "how" / "intervals.md").read_text("utf-8")
    for label, errors in (
        ("a kernel", KERNEL_ERROR),
        ("a kernel of a stack fitted to end-to-end runs", CALIBRATED_KERNEL_ERROR),
        ("a collective", COLLECTIVE_ERROR),
    ):
        assert f"| {label} | {' | '.join(f'{100 * errors[source]:.0f} %' for source in SOURCES)} |" in page
    page, held = (REPO / "docs" / "how" / "contention.md").read_text("utf-8"), OverlapParameters()
    for label, each, most in (
        ("NCCL's ring, also through host memory", estimate.RING_CHANNEL_BYTES, held.max_channels),
        ("NCCL's trees across nodes", estimate.TREE_CHANNEL_BYTES, held.nvls_channels),
        ("engines' other kernels", estimate.BLOCK_BYTES, estimate.MAX_BLOCKS),
    ):
        assert f"| {label} | {each / 1024:g} KiB | {most:g} |" in page
    for names, values in (
        (("memory_step_s",), "0.8 us"),
        (("gemm_delay",), f"{held.gemm_delay:g}"),
        (("kernel_delay",), f"{held.kernel_delay:g}"),
        (("lost",), f"{held.lost:g}"),
        (("max_channels",), f"{held.max_channels:g}"),
        (("nvls_channels",), f"{held.nvls_channels:g}"),
        (("ring_traffic", "nvls_traffic"), f"{held.ring_traffic:g}, {held.nvls_traffic:g}"),
    ):
        assert f"| {', '.join(f'`{name}`' for name in names)} | {values} |" in page
    assert held.memory_step_s == 0.8e-6
    assert f"$\\ell$ of a GEMM bound by arithmetic | {estimate.CLUSTERED:g} |" in page
    for label, most in (
        ("NVLS, within a node and across; `nccl-symmetric`", held.nvls_channels),
        ("`multimem`, `fused-norm`", estimate.MULTIMEM_BLOCKS),
        ("DeepEP", estimate.DEEPEP_SMS),
    ):
        assert f"| {label} | any size takes all | {most:g} |" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    files = {
        path.as_posix(): path for folder in ("ladder_sim", "calibration") for path in (REPO / folder).rglob("*.py")
    }
    named = re.findall(r"`([\w/.]+\.py)`", text)
    assert all(any(path.endswith(f"/{name}") for path in files) or (REPO / name).is_file() for name in named), named
    for names, file in re.findall(r"\(((?:`\w[\w.]*`(?:, | and )?)+) in\s+`([\w/.]+\.py)`", text):
        (path,) = [path for full, path in files.items() if full.endswith(f"/{file}")]
        for name in re.findall(r"`([\w.]+)`", names):
            last = name.rpartition(".")[2]
            assert re.search(rf"\b(?:def|class) {last}\b|^\s*{last}\b.*=", path.read_text("utf-8"), re.MULTILINE), name
