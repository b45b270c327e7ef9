"""Recorded runs of vLLM servers, and the same requests served by `ladder-sim serve`.

Times of steps were fitted to some runs of each server; the fits serve requests that come at the same times as in other
runs, and the times of both are compared. Commit c98f50a is the last one with the programs that made the runs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.pages import DOCS
from ladder_sim.serving import MeasuredSteps, Outcome, Request
from ladder_sim.serving.replicas.simulation import Pool, simulate

RECORDED = DOCS.parent / "tests" / "data"
# of one wiring under load, by the hour of the series
SERIES = {
    "": RECORDED / "serve_vllm",
    "slow": RECORDED / "serve_vllm/slow",
    "one rate": RECORDED / "serve_vllm/one_rate",
}
# of standard and ladder over emulated links
LINKS, COMPILED = RECORDED / "vllm_ladder", RECORDED / "vllm_ladder" / "compiled"
VARIANTS = ("standard", "ladder")
FIGURES = ("ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s")
_LOADS, _LINKS = ("tp", "load", "rate"), ("link", "mode", "rate", "variant")


class Runs(NamedTuple):
    """Runs of one server at one rate, with requests of their own in each."""

    measured_s: Mapping[str, Sequence[float]]
    """Times of the runs, seconds, by figure."""
    predicted_s: Mapping[str, float]
    """Median of the runs' predictions, seconds, by figure."""

    def median_s(self, figure: str) -> float:
        """Return the median of a measured figure, in seconds."""
        return float(np.median(self.measured_s[figure]))

    def error(self, figure: str) -> float:
        """Of the prediction, next to the median of what was measured."""
        return self.predicted_s[figure] / self.median_s(figure) - 1.0


def predict(steps: MeasuredSteps, run: Mapping[str, Any]) -> Outcome:
    """Serve the requests of a run with fitted steps."""
    lists = zip(run["arrival_ms"], run["prompt"], run["gen"], strict=True)
    requests = [Request(arrival_s=1e-3 * at_ms, prompt=prompt, gen=gen) for at_ms, prompt, gen in lists]
    return simulate("standard", Pool(times=steps, spec=steps.spec), requests)


@cache
def compare(folder: Path) -> dict[tuple[Any, ...], Runs]:
    """Return the runs of a folder with predictions, by TP, load and rate, or by link, mode, rate and wiring."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in json.loads((folder / "runs.json").read_text("utf-8"))["runs"]:
        groups.setdefault(tuple(run[name] for name in (_LOADS if "tp" in run else _LINKS)), []).append(run)
    return {kind: _compared(folder, runs) for kind, runs in groups.items()}


def _compared(folder: Path, runs: Sequence[Mapping[str, Any]]) -> Runs:
    fit = ("tp{tp}.toml" if "tp" in runs[0] else "link-{link}-{mode}-{variant}.toml").format(**runs[0])
    outcomes = [predict(MeasuredSteps.read(folder / fit), run) for run in runs]
    return Runs(
        {figure: [run[figure] for run in runs] for figure in FIGURES},
        {figure: float(np.median([outcome.fields()[figure] for outcome in outcomes])) for figure in FIGURES},
    )


def gain_errors(folder: Path) -> Iterator[float]:
    """Yield the errors of ladder's gain in TTFT and TPOT p50, over each link at each rate."""
    compared = compare(folder)
    for kind in dict.fromkeys(kind[:3] for kind in compared):
        standard, ladder = (compared[*kind, variant] for variant in VARIANTS)
        for figure in ("tpot_p50_s", "ttft_p50_s"):
            # of two runs with the same requests
            measured = float(np.median(np.divide(standard.measured_s[figure], ladder.measured_s[figure])))
            yield standard.predicted_s[figure] / ladder.predicted_s[figure] / measured - 1.0
