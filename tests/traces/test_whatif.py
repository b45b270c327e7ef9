"""Changes to a recorded run."""

from pathlib import Path

import pytest

from ladder_sim import Scenario
from ladder_sim.errors import UsageError
from ladder_sim.traces import whatif
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import replay
from tests.support.trace_files import COMM, KERNEL_US, LAYERS, REDUCE_US, TraceFile, tensor_parallel

US = 1e-6


@pytest.fixture
def graph(tmp_path: Path) -> TraceGraph:
    """A standard pass whose launches cost nothing."""
    return whatif.without_launch_gaps(load([tensor_parallel(stream=COMM).write(tmp_path / "trace.json")]))


def seconds(graph: TraceGraph) -> float:
    return replay(graph).steps[0].replayed_s


def test_communication_is_removed(graph: TraceGraph) -> None:
    assert seconds(graph) - seconds(whatif.without_communication(graph)) == pytest.approx(2 * LAYERS * REDUCE_US * US)


@pytest.mark.parametrize(("what", "count"), [("rms_norm*", 2 * LAYERS + 1), ("activation", LAYERS), ("norm", 7)])
def test_ops_are_scaled_by_kind_and_by_name(graph: TraceGraph, what: str, count: int) -> None:
    assert seconds(graph) - seconds(whatif.scale(graph, what, 0.5)) == pytest.approx(count * KERNEL_US * US / 2)


def test_all_reduces_are_priced_by_their_size(graph: TraceGraph) -> None:
    sizes: list[float] = []

    def price(message_bytes: float) -> float:
        sizes.append(message_bytes)
        return 0.0

    assert seconds(whatif.with_all_reduce_times(graph, price)) == pytest.approx(
        seconds(whatif.without_communication(graph))
    )
    assert set(sizes) == {4096 * 2.0}


def test_a_slower_interconnect_costs_more() -> None:
    near, far = (whatif.all_reduce_seconds(Scenario(cluster="h100-sxm", nodes=nodes)) for nodes in (1, 2))
    assert 0.0 < near(8192.0) < far(8192.0)


def test_launch_gaps_go_and_waits_stay(tmp_path: Path) -> None:
    trace = TraceFile()
    trace.kernel("one", 0, 100, 50)
    correlation = trace.call("cudaDeviceSynchronize", 10, 150)
    trace.sync("Context Sync", 10, 150, correlation)
    trace.kernel("two", 500, 600, 50)
    graph = load([trace.write(tmp_path / "trace.json")])
    # both kernels, and what the blocking call took once the first had ended
    assert seconds(whatif.without_launch_gaps(graph)) == pytest.approx((50 + 10 + 50) * US)


@pytest.mark.parametrize(
    ("what", "factor", "says"),
    [
        ("conv", 0.5, "no op has this kind, name or module"),
        ("gemm", -1.0, "must be 0 or more"),
        ("gemm", float("nan"), "must be 0 or more"),
    ],
)
def test_what_cannot_be_scaled(graph: TraceGraph, what: str, factor: float, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        whatif.scale(graph, what, factor)


def test_sizes_have_to_be_known(tmp_path: Path) -> None:
    trace = TraceFile()
    trace.kernel("gemm", 0, 10, 10)
    graph = load([trace.write(tmp_path / "none.json")])
    with pytest.raises(UsageError, match="no all-reduces"):
        whatif.with_all_reduce_times(graph, lambda _: 1.0)
    trace.all_reduce(20, 30, 10, elements=0)
    graph = load([trace.write(tmp_path / "unsized.json")])
    with pytest.raises(UsageError, match="no message sizes of all-reduces"):
        whatif.with_all_reduce_times(graph, lambda _: 1.0)
