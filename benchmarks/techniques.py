"""Gains of techniques, predicted and measured."""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from benchmarks.pages import DOCS, rows_of, table
from ladder_sim import Scenario, predict
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.specs.arguments import ARGUMENTS

DATA = DOCS.parent / "tests" / "data"
# of the runs of TokenWeave: vLLM 0.8.5 without compilation and CUDA graphs, which was measured nowhere else
EAGER = {
    # what its norms take beyond a kernel of a graph: 6.8 us at few tokens (figure_4.csv) instead of 2.5
    "kernel_gap_s": 4.3e-6,
    # its shortest prefill in two parts takes 46.2 ms, as long as 1,447 launches: the one fit to these rows
    "eager_launch_s": 31.9e-6,
}
TOKENWEAVE = {"model": "70b", "stack": "vllm", "allreduce": "multimem", "gen": 1}
BOTH = "fused-norm+token-split"


class Gain(NamedTuple):
    """One row: how many times as fast."""

    cells: tuple[str, ...]
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Of the prediction, as a fraction."""
        return self.predicted / self.measured - 1.0

    @property
    def points(self) -> float:
        """Percentage points that the prediction is above the measurement."""
        return 100.0 * (self.predicted - self.measured)


@cache
def tokenweave(**overheads: float) -> list[Gain]:
    """Prefills of Llama 3.3 70B in two parts with fused norms, over those with multimem alone.

    `overheads`: figures of a profile that its machine has otherwise.
    """
    gains = []
    eager = replace(load_profile("h100-sxm-vllm"), overheads=EAGER | overheads)
    for row in rows_of(DATA / "tokenweave_prefill.csv"):
        fields = TOKENWEAVE | {"tp": int(row["tp"]), "prompt": int(row["prompt"])}
        plain = predict(Scenario(**fields), ["standard", "upper-bound"], profile=eager)
        standard_s, free_s = plain["standard"].ttft_s, plain["upper-bound"].ttft_s
        fused_s, both_s = (
            predict(Scenario(**fields, technique=name), ["standard"], profile=eager)["standard"].ttft_s
            for name in ("fused-norm", BOTH)
        )
        measured = {name: float(value) for name, value in row.items()}
        bound = measured["ttft_ms"] / measured["without_allreduce_ms"]
        cells = (row["tp"], row["prompt"], f"{bound:.2f}", f"{standard_s / free_s:.2f}", f"{standard_s / fused_s:.2f}")
        gains.append(Gain(cells, measured["ttft_ms"] / measured["overlapped_ms"], standard_s / both_s))
    return gains


@cache
def published() -> list[Gain]:
    """Return the published gains that a scenario can express."""
    gains = []
    for row in rows_of(DATA / "overlap_techniques.csv"):
        before, after = (
            predict(Scenario(**_fields(text)), ["standard"], ignore_memory=True)["standard"]
            for text in (row["scenario"], f"{row['scenario']} {row['change']}")
        )
        predicted = getattr(before, row["metric"]) / getattr(after, row["metric"])
        gains.append(Gain((row["what"], row["source"], row["stands_in"]), float(row["measured"]), predicted))
    return gains


def published_table() -> str:
    """Return the published gains next to the predicted ones, as a table."""
    rows = [
        (gain.cells[0], f"{gain.measured:.2f}", f"{gain.predicted:.2f}", f"{gain.points:+.1f}", gain.cells[1])
        for gain in published()
    ]
    return table(("technique", "measured", "predicted", "points", "source"), rows)


def _fields(text: str) -> dict[str, object]:
    given = dict(pair.split("=") for pair in text.split())
    return {name: ARGUMENTS[name].read(value, name=name) for name, value in given.items()}
