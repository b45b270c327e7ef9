"""What is tested on GPUs holds on CPUs, too, as far as they show it, and not where it is wrong."""

import signal
from pathlib import Path

import pytest

from ladder_sim.errors import RankError
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.comm.launch import on_ranks
from tests.support import ranks
from tests.support.faults import Fault, cause, faults
from tests.support.gpu_steps import end_seen, equal_by, equal_together, equal_tokens
from tests.support.launches import install

pytestmark = pytest.mark.torch


def test_graphs_are_seen_to_end_and_compute_what_eager_steps_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, launches, _ = install(monkeypatch)

    def synchronize() -> None:
        cuda.hangs = False

    monkeypatch.setattr("torch.cuda.synchronize", synchronize)
    cuda.hangs = True
    with launches:
        equal, tokens = equal_tokens("cpu")
        assert end_seen("cpu") == (False, True)
    # the fake one computes nothing, and its tokens are those of the eager steps before
    assert equal < tokens
    # a graph that has ended before it is looked at, as if it had not been replayed
    with launches:
        assert end_seen("cpu") == (True, True)


def test_ranks_that_do_not_sum_are_seen(tmp_path: Path) -> None:
    """Two that do compute what one does, in every wiring."""
    for equal, tokens in ranks.on_ranks(2, tmp_path, equal_together):
        assert equal == tokens == 2 * 9 * 3
    equal, tokens = equal_together(Communicator(2))
    assert equal < tokens


@pytest.mark.slow
def test_a_call_is_made_on_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    """CPUs have no memory in common."""
    assert on_ranks(2, equal_by, "backend") == (54, 54)
    with pytest.raises(RankError):
        on_ranks(2, equal_by, "one-shot")
    assert "the backend is gloo" in capfd.readouterr().err


def test_faults_are_those_that_the_ranks_can_show() -> None:
    alone, eight = ([fault.name for fault in faults(ranks, ranks)] for ranks in (1, 8))
    assert alone == ["memory", "too few GPUs"]
    assert eight == [*alone, "noise of NCCL", "rank that dies", "rank that stops"]
    stops = list(faults(8, 8))[-1]
    assert (stops.words, stops.strikes) == ("rank 7 died or was stopped", signal.SIGSTOP)


@pytest.mark.slow
def test_a_fault_is_caused_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.faults.BUSY_S", 0.0)
    short = ("--tp=1", "--repeats=1", "--warmups=0", "--prompt=8", "--gen=2")
    memory = Fault("memory", (*short, "--batch=100000000"), 3, "needed per rank")
    holds, says = cause(memory, "1b")
    assert holds
    assert says.startswith("code 3 after ")
    assert "GB needed per rank" in says
    holds, says = cause(memory._replace(code=4), "1b")
    assert not holds
    assert "expected code 4 and 'needed per rank'" in says
    # killed before it has ranks
    dies = Fault("dies", (*short, "--repeats=1000000"), 1, "rank 0", strikes=signal.SIGKILL)
    assert not cause(dies, "1b")[0]
