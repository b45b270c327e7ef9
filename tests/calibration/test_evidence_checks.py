"""What `calibrate evidence` expects of a GPU: it holds in traces as they should be, and not in others."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration.evidence import checks
from calibration.evidence.checks import kernels_per_layer, of_captures, of_device, of_ranks, of_run, of_samples
from calibration.evidence.faults import Fault, cause, faults
from calibration.fit.samples import Sample, SampleStore
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
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
    monkeypatch.setattr(checks, "MAX_LAUNCHES", {"gpt-fast": 1})
    assert not judged(tmp_path, tensor_parallel(stream=COMPUTE), ladder())["standard: kernels"]


@pytest.mark.torch
def test_graphs_are_seen_to_end_and_compute_what_eager_steps_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.launches import install

    cuda, launches, _ = install(monkeypatch)

    def synchronize() -> None:
        cuda.hangs = False

    monkeypatch.setattr("torch.cuda.synchronize", synchronize)
    cuda.hangs = True
    with launches:
        tokens, end = of_device("cpu")
    assert end.holds
    # the fake one computes nothing, and its tokens are those of the eager steps before
    assert not tokens.holds
    # a graph that has ended before it is looked at, as if it had not been replayed
    with launches:
        _, end = of_device("cpu")
    assert not end.holds


@pytest.mark.torch
def test_ranks_that_do_not_sum_are_seen(tmp_path: Path) -> None:
    """Two that do compute what one does, in every wiring."""
    from calibration.measure.graphs import equal_together
    from runtime.comm.base import Communicator
    from tests.support.ranks import on_ranks

    for equal, tokens in on_ranks(2, tmp_path, equal_together):
        assert equal == tokens == 2 * 9 * 3
    equal, tokens = equal_together(Communicator(2))
    assert equal < tokens


@pytest.mark.slow
@pytest.mark.torch
def test_ranks_are_started_and_judged(capfd: pytest.CaptureFixture[str]) -> None:
    """On CPUs, which have no memory in common."""
    backend, one_shot = of_ranks(2, ("backend", "one-shot"))
    assert backend == ("tokens of 2 ranks, all-reduces by backend", True, "54 of 54 tokens are those of one rank")
    assert not one_shot.holds
    assert "the backend is gloo" in capfd.readouterr().err


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


def test_faults_are_those_that_the_ranks_can_show() -> None:
    alone, eight = ([fault.name for fault in faults(ranks, ranks)] for ranks in (1, 8))
    assert alone == ["memory", "too few GPUs"]
    assert eight == [*alone, "noise of NCCL", "rank that dies", "rank that stops"]
    stops = list(faults(8, 8))[-1]
    assert (stops.words, stops.strikes) == ("rank 7 died or was stopped", signal.SIGSTOP)


@pytest.mark.slow
@pytest.mark.torch
def test_a_fault_is_caused_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs."""
    monkeypatch.setattr("calibration.evidence.faults.BUSY_S", 0.0)
    short = ("--tp=1", "--repeats=1", "--warmups=0", "--prompt=8", "--gen=2")
    memory = Fault("memory", (*short, "--batch=100000000"), 3, "needed per rank")
    check = cause(memory, "1b")
    assert check.holds
    assert check.says.startswith("code 3 after ")
    assert "GB needed per rank" in check.says
    wrong = cause(memory._replace(code=4), "1b")
    assert not wrong.holds
    assert "expected code 4 and 'needed per rank'" in wrong.says
    # killed before it has ranks
    dies = Fault("dies", (*short, "--repeats=1000000"), 1, "rank 0", strikes=signal.SIGKILL)
    assert not cause(dies, "1b").holds
