"""What choosing the next token costs, against a GPU."""

import csv

import pytest

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.specs.scenario import Scenario
from tests.conftest import DATA
from tests.support.graphs import build


def seconds(batch: int, vocab: int, sampling: str = "top-k") -> float:
    settings = {"stack.sampling": sampling, "model.vocab": vocab}
    scenario = Scenario(model="8b", cluster="h200-sxm", tp=1, batch=batch, stack="gpt-fast", overrides=settings)
    (op,) = (op for op in build(scenario, "decode", 1024).ops() if op.kind == "sample")
    (estimate,) = KernelCosts(scenario, None).estimates([op])
    return float(estimate.seconds)


def test_the_likeliest_200_take_what_they_take_on_a_gpu() -> None:
    """Compiled with the step, as gpt-fast does; one step of 8B in eight ranks takes 2.1 ms."""
    rows = [*csv.DictReader((DATA / "sampling_h200.csv").read_text("utf-8").splitlines())]
    compiled = [row for row in rows if (row["way"], row["form"]) == ("top_k", "compiled")]
    assert len(compiled) == 6
    for row in compiled:
        assert seconds(int(row["batch"]), int(row["vocab"])) == pytest.approx(float(row["graph_us"]) * 1e-6, rel=0.06)


@pytest.mark.parametrize("sampling", ["greedy", "top-k"])
def test_more_rows_or_logits_never_take_less(sampling: str) -> None:
    by_rows = [seconds(batch, 128256, sampling) for batch in (1, 2, 132, 133, 512)]
    by_logits = [seconds(4, vocab, sampling) for vocab in (100, 32000, 256000)]
    assert by_rows == sorted(by_rows)
    assert by_logits == sorted(by_logits)
