"""What `calibrate evidence` expects of a GPU: it holds in traces as they should be, and not in others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
from ladder_sim_calibration.evidence.runs import kernels_per_layer, of_captures, of_run, of_samples
from ladder_sim_calibration.fit.samples import Sample, SampleStore
from tests.conftest import DATA
from tests.support.trace_files import COMM, COMPUTE, TraceFile, tensor_parallel

LAYERS = 3
US = 40.0


@pytest.mark.parametrize(("recording", "kernels"), [("h100_compiled_graph", 10), ("h100_flash_graph", 9)])
def test_kernels_of_a_layer_on_an_h100(recording: str, kernels: int) -> None:
    """Without those that cuBLAS and FlashAttention add to sum what they split."""
    step = choose_step(load([DATA / "traces" / "tp" / recording]), None)
    assert kernels_per_layer(step, 80) == kernels


def ladder() -> TraceFile:
    """A prefill and a decode step: every all-reduce but the last is under a block, and the one after waits for it."""
    trace = TraceFile(0, 2)
    trace.event("cpu_op", "aten::add", 0, 1, 0)
    now = 1_000.0
    for step in range(2):
        trace.step(step, now, 4 * LAYERS * US)
        # when the events behind them are recorded
        reduced: list[float] = []
        for block in range(2 * LAYERS):
            if block > 1:
                trace.wait(reduced[block - 2], now + 1, on=COMM, by=COMPUTE)
            trace.kernel("gemm", now + 2, now + 10, US)
            last = block == 2 * LAYERS - 1
            if last:
                trace.wait(reduced[-1], now + 9, on=COMM, by=COMPUTE)
            else:
                trace.wait(now + 8, now + 9, on=COMPUTE, by=COMM)
            trace.all_reduce(now + 10, now + 10 + US, US / 2, stream=COMPUTE if last else COMM)
            reduced.append(now + 16)
            now += 2 * US
    return trace


def judged(folder: Path, *traces: TraceFile, stack: str = "gpt-fast") -> dict[str, bool]:
    """Whether checks of captures of standard and ladder hold."""
    for variant, trace in zip(("standard", "ladder"), traces, strict=False):
        (folder / variant).mkdir(parents=True, exist_ok=True)
        # kernels and waits of several ranks do not add up
        for rank in range(2):
            trace.metadata["distributedInfo"]["rank"] = rank
            trace.write(folder / variant / f"rank{rank}.json.gz")
    return {check.name: check.holds for check in of_captures(folder, stack, LAYERS)}


def test_all_reduces_of_ladder_alone_leave_the_stream_of_the_computation(tmp_path: Path) -> None:
    one_stream, own_stream = (tensor_parallel(stream=stream) for stream in (COMPUTE, COMM))
    for trace in (one_stream, own_stream):
        trace.step(0, 0, 10**6)
    assert judged(tmp_path, one_stream, ladder()) == {
        "standard: kernels": True,
        "standard: streams": True,
        "ladder: kernels": True,
        "ladder: streams": True,
    }
    # standard as vLLM runs it under torch.compile; ladder without overlap
    assert judged(tmp_path, own_stream, one_stream, stack="other") == {
        "standard: streams": False,
        "ladder: streams": False,
    }


def test_captures_that_are_not_there_or_launch_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(tmp_path) == {"standard: capture": False, "ladder: capture": False}
    monkeypatch.setattr("ladder_sim_calibration.evidence.runs.MAX_LAUNCHES", {"gpt-fast": 1})
    assert not judged(tmp_path, tensor_parallel(stream=COMPUTE), ladder())["standard: kernels"]


def test_a_run_does_what_its_stack_says_and_ladder_waits_less() -> None:
    figures = {"standard": {"comm_s": 2.0, "exposed_comm_s": 2.0}, "ladder": {"comm_s": 2.0, "exposed_comm_s": 0.5}}
    done: dict[str, Any] = {"decode": "CUDA graphs", "blocks": "compiled", "kernels": "fused", "missing": []}
    memory = {"planned_bytes": 20 * 10**9, "reserved_bytes": 19 * 10**9}
    run = {"execution": done, "memory": memory, "variants": figures}
    as_expected = list(of_run("a", run))
    assert [check.holds for check in as_expected] == [True, True, True]
    assert as_expected[1].says == "torch took 19.0 GB, 20.0 GB were planned"
    assert as_expected[2].says.endswith("ladder waits for 25% of its communication")
    eager = {**done, "missing": ["CUDA graphs need a GPU"]}
    blocking = {**figures, "ladder": figures["standard"]}
    # as before graphs were planned
    more = {**memory, "reserved_bytes": 22 * 10**9}
    wrong = of_run("a", {"execution": eager, "memory": more, "variants": blocking})
    assert [check.holds for check in wrong] == [False, False, False]
    # no communication was measured
    assert [check.holds for check in of_run("a", {**run, "variants": {"standard": {}}})] == [True, True, False]


def test_clocks_that_fall(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "s.jsonl", {"gpu": "one"})
    steady = Sample(op="add", point={"bytes": 4096.0}, seconds=1e-6)
    for _ in range(19):
        store.append(steady)
    store.append(replace(steady, burst=True))
    assert [check.holds for check in of_samples(store)] == [True]
    store.append(replace(steady, burst=True))
    assert [check.holds for check in of_samples(store)] == [False]
