"""Recorded runs of vLLM servers, and the same requests served by `ladder-sim serve`: tables of docs/load.md, adopt.md.

    python -m benchmarks.vllm_servers

Times of steps were fitted to some runs of each server; the fits serve requests that come at the same times as in other
runs, and the times of both are compared. Commit c98f50a is the last one with the programs that made the runs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.pages import DOCS, remade, table
from ladder_sim.serving import MeasuredSteps, Outcome, Request
from ladder_sim.serving.replicas.simulation import Pool, simulate

RECORDED = DOCS.parent / "tests" / "data"
# of one wiring under load, by what the page calls the series
SERIES = {
    "": RECORDED / "serve_vllm",
    "slow": RECORDED / "serve_vllm/slow",
    "one rate": RECORDED / "serve_vllm/one_rate",
}
# of standard and ladder over emulated links
LINKS, COMPILED = RECORDED / "vllm_ladder", RECORDED / "vllm_ladder" / "compiled"
VARIANTS = ("standard", "ladder")
FIGURES = {"ttft_p50_s": "TTFT p50", "ttft_p95_s": "TTFT p95", "tpot_p50_s": "TPOT p50", "tpot_p95_s": "TPOT p95"}
_LOADS, _LINKS = ("tp", "load", "rate"), ("link", "mode", "rate", "variant")


class Runs(NamedTuple):
    """Runs of one server at one rate, with requests of their own in each."""

    measured_s: Mapping[str, Sequence[float]]
    """Times of the runs, seconds, by figure."""
    predicted_s: Mapping[str, float]
    """Median of the runs' predictions, seconds, by figure."""
    in_flight: float
    """Requests in flight on average, predicted."""

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
        float(np.mean([outcome.in_flight for outcome in outcomes])),
    )


def loads() -> tuple[str, str]:
    """Tables of load.md: a series at three rates, and the errors of two more."""
    rows = [
        (
            *(str(tp), load, f"{rate:g}", f"{runs.in_flight:.1f}", name),
            *(_ms(runs.median_s(figure)), " to ".join(_ms(end(runs.measured_s[figure])) for end in (min, max))),
            *(_ms(runs.predicted_s[figure]), f"{runs.error(figure):+.0%}"),
        )
        for (tp, load, rate), runs in compare(SERIES[""]).items()
        for figure, name in FIGURES.items()
    ]
    others = [
        (series, str(tp), load, f"{rate:g}", *(f"{runs.error(figure):+.0%}" for figure in FIGURES))
        for series, folder in SERIES.items()
        if series
        for (tp, load, rate), runs in compare(folder).items()
    ]
    measured = ("in flight", "time", "measured, ms", "of single runs", "predicted, ms", "error")
    return (
        table(("TP", "load", "requests/s", *measured), rows),
        table(("series", "TP", "load", "requests/s", *FIGURES.values()), others),
    )


def gains(folder: Path) -> str:
    """Table of adopt.md: both wirings over each link at each rate, and what ladder gains."""
    columns = ("standard, ms", "predicted", "ladder, ms", "predicted", "gain", "of pairs", "predicted")
    return table(("link", "requests/s", "time", *columns), _gains(folder))


def _gains(folder: Path) -> Iterator[tuple[str, ...]]:
    compared = compare(folder)
    for link, mode, rate in dict.fromkeys(kind[:3] for kind in compared):
        both = [compared[link, mode, rate, variant] for variant in VARIANTS]
        name = link.replace("ms", " ms").replace("mbit", " Mbit/s") + (", compiled" if mode == "compiled" else "")
        for figure in ("tpot_p50_s", "ttft_p50_s"):
            times = (_ms(each) for runs in both for each in (runs.median_s(figure), runs.predicted_s[figure]))
            # of two runs with the same requests
            pairs = np.divide(*(runs.measured_s[figure] for runs in both))
            predicted = np.divide(*(runs.predicted_s[figure] for runs in both))
            spread = f"{pairs.min():.2f} to {pairs.max():.2f}"
            yield name, f"{rate:g}", FIGURES[figure], *times, f"{np.median(pairs):.2f}", spread, f"{predicted:.2f}"


def _ms(seconds: float) -> str:
    """To three digits."""
    return f"{float(f'{1e3 * seconds:.3g}'):g}"


def pages() -> dict[str, str]:
    """Both pages with their tables."""
    return {
        "load.md": remade("load.md", {"Compared with a real server": loads()}),
        "adopt.md": remade("adopt.md", {"Measured: ladder in vLLM": (gains(LINKS), gains(COMPILED))}),
    }


if __name__ == "__main__":
    for page, text in pages().items():
        (DOCS / page).write_text(text, "utf-8")
