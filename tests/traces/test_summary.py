"""Sums over a run: idle time in the terms of Holistic Trace Analysis, modules, spread."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ladder_sim.cli.trace import trace
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.load import load
from ladder_sim.traces.summary import idle_times, module_totals, summarize_run
from ladder_sim.traces.whatif import scale
from tests.conftest import DATA
from tests.support.trace_files import MAIN, TraceFile


def modular(folder: Path) -> Path:
    """Two blocks of an attention and an MLP module, one kernel each, in a range of the user's."""
    file = TraceFile()
    file.event("user_annotation", "forward", 0, 400, MAIN)
    for block in range(2):
        begin = 10 + 200 * block
        file.event("python_function", f"nn.Module: Block_{block}", begin, 150, MAIN)
        for number, (module, kernel) in enumerate((("Attention", "flash_fwd"), ("MLP", "up_gemm"))):
            file.event("python_function", f"nn.Module: {module}_{block}", begin + 10 + 60 * number, 50, MAIN)
            file.kernel(kernel, begin + 20 + 60 * number, begin + 30 + 60 * number, 20 + 10 * number)
    file.kernel("lm_head_gemm", 500, 510, 40)
    return file.write(folder / "rank0.json")


def test_modules_and_ranges_sum_up_what_they_launched(tmp_path: Path) -> None:
    graph = load([modular(tmp_path)])
    scopes = {op.scope for op in graph.ops if op.name == "up_gemm"}
    assert scopes == {"forward/Block_0/MLP_0", "forward/Block_1/MLP_1"}
    totals = {total.name: (total.calls, round(1e6 * total.seconds)) for total in module_totals(graph)}
    assert totals == {"forward": (1, 100), "Block": (2, 100), "MLP": (2, 60), "Attention": (2, 40)}


def test_what_if_a_module_were_faster(tmp_path: Path) -> None:
    graph = load([modular(tmp_path)])

    def gemms_us(changed: TraceGraph) -> list[int]:
        return [round(1e6 * op.duration_s) for op in changed.ops if op.kind == "gemm"]

    assert gemms_us(scale(graph, "MLP_*", 0.5)) == [15, 15, 40]
    assert gemms_us(scale(graph, "MLP_1", 2.0)) == [30, 60, 40]
    assert gemms_us(scale(graph, "forward", 0.0)) == [0, 0, 40]


def test_info_shows_the_spread_and_holds_modules(tmp_path: Path) -> None:
    path = str(modular(tmp_path))
    shown = CliRunner().invoke(trace, ["info", path, "--spread", "--explain"]).stdout
    assert "deviation" in shown
    [gemm] = [total for total in summarize_run(load([Path(path)])).totals if total.name == "up_gemm"]
    assert (gemm.shortest_s, gemm.longest_s, gemm.deviation_s) == pytest.approx((30e-6, 30e-6, 0.0), abs=1e-12)
    document = json.loads(CliRunner().invoke(trace, ["info", path, "--json"]).stdout)
    assert [module["name"] for module in document["modules"]] == ["forward", "Block", "MLP", "Attention"]


def test_idle_time_by_its_cause(tmp_path: Path) -> None:
    file = TraceFile()
    file.kernel("first", 0, 10, 100)
    # launched long before, right behind the first
    file.kernel("second", 20, 110.02, 50)
    # launched, but later by 40 us
    file.kernel("third", 30, 200, 10)
    # launched after the end of the third
    file.kernel("fourth", 250, 260, 10)
    [idle] = idle_times(load([file.write(tmp_path / "rank0.json")]))
    assert (idle.host_s, idle.kernel_s, idle.other_s) == pytest.approx((50e-6, 0.02e-6, 39.98e-6), abs=1e-12)
    assert idle.idle_s == pytest.approx(90e-6)


def test_idle_time_is_that_of_holistic_trace_analysis() -> None:
    """Version 0.5.0 of this file, microseconds of streams 40 and 7; it drops fractions of them from all times."""
    rows = {row.stream: row for row in idle_times(load([DATA / "traces" / "nccl_ddp.json.gz"]))}
    assert rows["stream 40"].host_s == pytest.approx(583_942e-6, rel=0.001)
    assert rows["stream 7"].host_s == pytest.approx(542_749e-6, rel=0.01)
    assert rows["stream 7"].idle_s == pytest.approx((542_749 + 3_224) * 1e-6, rel=0.01)
    assert rows["stream 7"].other_s == rows["stream 40"].other_s == 0.0
