"""Writes docs/evidence.md: what predictions were compared with, how far off they are, and what was never checked.

    python -m benchmarks.evidence

Errors of runs are computed; those of servings come from docs/accuracy-servings.csv; those of cross-checks from the
tables of their pages. What was never checked is what the catalog has and no run behind an answer had.
"""

import csv
import itertools
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ladder_sim.closed_loop.checks import ServingCheck, serving_checks
from ladder_sim.costs.profile import StackFit
from ladder_sim.costs.profile_file import shipped_fits
from ladder_sim.graph.families import FAMILIES
from ladder_sim.specs import catalog
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.techniques import TECHNIQUES
from ladder_sim.specs.workload import FORMATS
from ladder_sim.validation.compare import Comparison, error_stats, unseen, validate
from ladder_sim.validation.dataset import read_dataset

DOCS = Path(__file__).parents[1] / "docs"
SERVINGS = DOCS / "accuracy-servings.csv"
LEVEL = "protocol-b"
ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"}
# setups are named whose mean error of TPOT is above, and whose share of servings inside the interval is below; the
# latter of so many servings
_FAR_OFF, _FEW_INSIDE, _LEAST_ROWS = 0.1, 0.9, 10

Row = Mapping[str, str]


def rows_of(file: Path) -> list[Row]:
    """Of a CSV file."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def servings(models: str, by: str) -> list[Row]:
    """Errors of measured servings by one of their parts."""
    return [row for row in rows_of(SERVINGS) if (row["models"], row["by"]) == (models, by)]


def table_of(page: str, heading: str, number: int = 0) -> list[Row]:
    """One of the tables below a heading of a page, by its columns: "error", and the next one of that name "error 2"."""
    text = (DOCS / page).read_text("utf-8")
    section = text[text.index(f" {heading}\n") :].partition("\n## ")[0]
    lines = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)[number].splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines)
    columns = [f"{name} {seen + 1}" if (seen := head[:at].count(name)) else name for at, name in enumerate(head)]
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _number(cell: str) -> float:
    """The first number of a cell."""
    (value,) = re.findall(r"[-+]?\d+(?:\.\d+)?", cell)[:1]
    return float(value)


def to_page() -> str:
    """The whole page as Markdown."""
    head = "# Evidence\n\n" + _prose(
        "What predictions were compared with, how far off they are, where they miss, and what was never checked. "
        "Errors are absolute, of the prediction over the measurement; *inside* is the share of measurements in their "
        "90 % interval. Written by `python -m benchmarks.evidence`; the figures by `python -m benchmarks.page_figures`."
    )
    return "\n".join([head, _glance(), _static(), _in_flight(), _cross_checks(), _misses(), _behind(), _never()])


def _prose(text: str, *, bullet: bool = False) -> str:
    """A paragraph, or an entry of a list, in lines of a page."""
    fill = textwrap.TextWrapper(
        120, break_long_words=False, break_on_hyphens=False, subsequent_indent="  " if bullet else ""
    )
    return f"{fill.fill(f'- {text}' if bullet else text)}\n"


def _percent(share: float | str, digits: int = 1) -> str:
    return f"{100 * float(share):.{digits}f} %"


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


@cache
def _runs() -> tuple[Comparison, ...]:
    return unseen(validate(level=LEVEL)[LEVEL])


def _glance() -> str:
    """A line for each comparison."""
    ladder = [row for row in _runs() if row.measurement.variant == "ladder"]
    with_p2p = [row.speedup for row in ladder if row.measurement.configuration.p2p]
    without = [row.speedup for row in ladder if not row.measurement.configuration.p2p]
    rows = []
    for name, quantities in (
        ("ladder's speedup, with peer-to-peer links", with_p2p),
        ("ladder's speedup, without peer-to-peer links", without),
        ("tok/s of four wirings", [row.tokens_per_s for row in _runs()]),
    ):
        errors = error_stats(quantities)
        assert errors is not None
        what, mean = f"one static batch, 70B on H100, {name}", _percent(errors.mean_error)
        far = f"{mean}, {_percent(errors.max_error)} at most"
        rows.append((what, str(errors.rows), far, _percent(errors.inside, 0), "[every row](accuracy-70b.csv)"))
    for time in ("time per token", "time to first token"):
        for models, name, section in (
            ("dense", "dense models", "requests-in-flight"),
            ("experts", "models with experts", "models-with-experts"),
        ):
            (each,) = servings(models, "all")
            errors_inside = (
                (_percent(each["tpot_mean"]), _inside(each))
                if time == "time per token"
                else (f"median {_percent(each['ttft_median'])}", "")
            )
            what, where = f"requests in flight, {name}: {time}", f"[accuracy](accuracy.md#{section})"
            rows.append((what, each["rows"], *errors_inside, where))
    ratios = table_of("accuracy.md", "Prompts with and without all-reduces")
    what = "prefills of 1k to 64k tokens, with and without all-reduces: their ratio"
    by_tp = ", ".join(f"{row['their ratio']} at TP {row['TP']}" for row in ratios)
    rows.append((what, "14", by_tp, "", "[accuracy](accuracy.md#prompts-with-and-without-all-reduces)"))
    woven = [abs(_number(row["error"])) for row in table_of("versus.md", "TokenWeave")]
    what, far = (
        "gains of TokenWeave's techniques in prefill",
        f"{statistics.mean(woven):.1f} %, {max(woven):.0f} % at most",
    )
    rows.append((what, str(len(woven)), far, "", "[versus](versus.md#tokenweave)"))
    gains = [abs(_number(row["points"])) for row in table_of("versus.md", "Published gains")]
    what, far = "published gains of other techniques", f"{statistics.mean(gains):.1f} points, {max(gains):.1f} at most"
    rows.append((what, str(len(gains)), far, "", "[versus](versus.md#published-gains)"))
    return "## At a glance\n\n" + _markdown(("compared", "rows", "mean error", "inside", "where"), rows)


def _inside(row: Row) -> str:
    return _percent(row["inside"], 0)


def _static() -> str:
    groups: dict[tuple[str, bool], list[Comparison]] = {}
    for row in _runs():
        configuration = row.measurement.configuration
        groups.setdefault((f"TP {configuration.tp}", configuration.p2p), []).append(row)
    rows = []
    for (tp, p2p), members in sorted(groups.items(), key=lambda item: (not item[0][1], item[0][0])):
        speedups = error_stats([row.speedup for row in members])
        rates = error_stats([row.tokens_per_s for row in members])
        assert rates is not None
        cells = (
            (f"{_percent(each.mean_error)}, {_percent(each.max_error)}", _percent(each.inside, 0))
            if each
            else ("-", "-")
            for each in (speedups, rates)
        )
        rows.append((tp, "on" if p2p else "off", str(rates.rows), *(cell for pair in cells for cell in pair)))
    columns = ("degree", "P2P", "rows", "speedup: mean, largest", "inside", "tok/s: mean, largest", "inside")
    return (
        "## One static batch\n\n"
        + _prose(
            "Llama 3 70B on one node of H100s under `gpt-fast`, the benchmark of Ladder's authors: "
            f"{len(_runs())} rows that the fit behind predictions had not seen. The structure of the model was made "
            f"with all {len(read_dataset().measurements)} in sight: they test its figures."
        )
        + "\n"
        + _pictures(
            "evidence-runs",
            "Predicted over measured speedups of parallel, ladder and the upper bound, with their 90 % intervals",
        )
        + _markdown(columns, rows)
        + "\n"
        + _prose(
            "Hollow marks are rows that the fit saw. [accuracy-70b.md](accuracy-70b.md) has the largest errors with "
            "their causes."
        )
    )


def _pictures(name: str, says: str) -> str:
    return "".join(f"![{says}]({name}-{scheme}.svg#gh-{scheme}-mode-only)\n" for scheme in ("light", "dark")) + "\n"


def _by_engine(models: str) -> list[Row]:
    """Errors by engine alone: of its rows by precision and GPU, weighted."""
    groups: dict[str, list[Row]] = {}
    for row in servings(models, "engine"):
        groups.setdefault(ENGINES[row["value"].partition(",")[0]], []).append(row)
    columns = ("tpot_mean", "tpot_bias", "inside", "half_width", "ttft_mean")
    merged: list[Row] = []
    for engine, rows in groups.items():
        counts = [int(row["rows"]) for row in rows]
        means = {
            name: sum(count * float(row[name]) for count, row in zip(counts, rows, strict=True)) / sum(counts)
            for name in columns
        }
        merged.append({"value": engine, "rows": str(sum(counts)), **{name: str(mean) for name, mean in means.items()}})
    return merged


def _in_flight() -> str:
    rows = [
        (
            row["value"],
            models,
            row["rows"],
            _percent(row["tpot_mean"]),
            f"{100 * float(row['tpot_bias']):+.1f} %",
            _inside(row),
            _percent(row["half_width"], 0),
            _percent(row["ttft_mean"], 0),
        )
        for by in (_by_engine, lambda models: servings(models, "cluster"), lambda models: servings(models, "model"))
        for models in ("dense", "experts")
        for row in by(models)
    ]
    columns = ("by engine, GPU, model", "models", "rows", "TPOT", "bias", "inside", "half-width", "TTFT")
    return (
        "## Requests in flight\n\n"
        + _prose(
            "Servings of vLLM, TensorRT-LLM and SGLang measured by NVIDIA (aiconfigurator-core 0.12.0), all of the "
            "standard wiring. Four figures of the engines are fitted to the dense ones, one to 51 of those with "
            "experts."
        )
        + "\n"
        + _pictures(
            "evidence-servings",
            "Mean signed error of the time per token by engine, precision and GPU, and how wide its interval is",
        )
        + _prose("A bar is the mean half-width of the 90 % interval, a dot the mean error with its sign.")
        + "\n"
        + _markdown(columns, rows)
        + "\n"
        + _prose(
            "TPOT and TTFT are mean errors; a bias below 0 means that predictions are too short. "
            "[accuracy-servings.csv](accuracy-servings.csv) has each version, GPU, model, precision and plan."
        )
    )


def _cross_checks() -> str:
    """Runs of this project's own, of which few are on the machines that predictions are about."""
    rows = []
    for file, where in (
        ("crosscheck-emulated.csv", "two CPU cores, emulated links, TP 8"),
        ("crosscheck-gloo.csv", "two CPU cores, 200 Mbit/s between two ranks"),
    ):
        # those of the run that was calibrated have no bound
        judged = [row for row in rows_of(DOCS / file) if row["bound"]]
        for what, own in (
            ("prefill and decode", [row for row in judged if row["what"] != "speedup"]),
            ("ladder's speedup", [row for row in judged if row["what"] == "speedup"]),
        ):
            rows.append((f"[{where}](crosscheck.md)", what, *_spread(100 * float(row["error"]) for row in own)))
    wirings = [
        cells for number in (0, 1) for cells in table_of("crosscheck.md", "Other wirings, and techniques", number)
    ]
    gains = [_number(cell) for row in wirings for name, cell in row.items() if name.startswith("error")]
    where = "[both](crosscheck.md#other-wirings-and-techniques)"
    rows.append((where, "gains of other wirings and of techniques", *_spread(gains)))
    runs = table_of("crosscheck.md", "On H100s")
    where = "[an H100 as a rank of eight, emulated all-reduces](crosscheck.md#on-h100s)"
    for what, measured, predicted in (
        ("time per token", "TPOT, ms", "predicted 2"),
        ("time to first token", "TTFT, ms", "predicted"),
        ("speedups", "speedup", "predicted 3"),
        ("time per token of another H100", "second H100", "predicted 2"),
        ("its speedups", "second H100 2", "predicted 3"),
    ):
        rows.append((where, what, *_spread(_errors(runs, measured, predicted))))
    where = "[vLLM with ladder on two CPU cores](adopt.md#measured-ladder-in-vllm)"
    runs = table_of("adopt.md", "Measured: ladder in vLLM")
    times = [*_errors(runs, "standard, ms", "predicted"), *_errors(runs, "ladder, ms", "predicted 2")]
    rows.append((where, "TTFT and TPOT p50 at three rates", *_spread(times)))
    rows.append((where, "ladder's gain in these", *_spread(_errors(runs, "gain", "predicted 3"))))
    for number, (column, of) in enumerate((("case", "this runtime"), ("way", "plain PyTorch"))):
        for row in table_of("traces.md", "Ask", number):
            where = f"[trace of {of}, {row[column]}](traces.md#ask)"
            rows.append((where, "a rewired step", *_spread([_number(row["error"])])))
    served, others = (table_of("load.md", "Compared with a real server", number) for number in (0, 1))
    for tp, percentile in itertools.product("12", ("p50", "p95")):
        where = f"[`vllm serve` on two CPU cores, TP {tp}](load.md#compared-with-a-real-server)"
        errors = [_number(row["error"]) for row in served if row["TP"] == tp and row["time"].endswith(percentile)]
        rows.append((where, f"TTFT and TPOT {percentile} at three rates", *_spread(errors)))
    for tp, percentile in itertools.product("12", ("p50", "p95")):
        where = f"[the same in two other hours, TP {tp}](load.md#in-other-hours)"
        figures = (f"TTFT {percentile}", f"TPOT {percentile}")
        errors = [_number(row[figure]) for row in others if row["TP"] == tp for figure in figures]
        rows.append((where, f"TTFT and TPOT {percentile} at three rates", *_spread(errors)))
    return (
        "## Cross-checks\n\n"
        + _prose(
            "Measured by this project itself. On CPUs a machine is measured, predicted, and run: that checks the "
            "simulator, not the tables of GPUs."
        )
        + "\n"
        + _markdown(("where", "what", "figures", "mean error", "largest"), rows)
        + "\n"
        + _prose(
            "Two engines, one event by event and one vectorised, give the same times ([model](model.md#streams)). The "
            "scheduler of `serve` gives every step and every token of 15 cases the time that vLLM's own gives "
            "([load](load.md#compared-with-vllms-own-scheduler))."
        )
    )


def _errors(rows: Sequence[Row], measured: str, predicted: str) -> list[float]:
    """Of predictions in two columns of a table, in percent."""
    return [100 * (_number(row[predicted]) / _number(row[measured]) - 1) for row in rows if row[measured]]


def _spread(errors: Iterable[float]) -> tuple[str, str, str]:
    """How many errors in percent, their mean and the largest."""
    sizes = [abs(error) for error in errors]
    # of errors that are rounded already: a half goes up, as on the pages that have them all
    return str(len(sizes)), f"{statistics.mean(sizes) + 1e-9:.1f} %", f"{max(sizes):.1f} %"


def _misses() -> str:
    """What is furthest off, by rules that are the same for all."""
    lines = []
    for row in _runs():
        configuration = row.measurement.configuration
        where = f"TP {configuration.tp}, P2P {'on' if configuration.p2p else 'off'}, batch {configuration.batch}"
        for what, quantity in (("speedup", row.speedup), ("tok/s", row.tokens_per_s)):
            if quantity and not quantity.inside:
                lines.append(
                    f"70B, {where}: {what} of {row.measurement.variant} off by {100 * quantity.error:+.1f} %, outside "
                    "of its interval."
                )
    far = [
        (
            each["value"],
            each["rows"],
            _percent(each["tpot_mean"]),
            f"{100 * float(each['tpot_bias']):+.1f} %",
            _inside(each),
        )
        for models in ("dense", "experts")
        for each in sorted(servings(models, "setup"), key=lambda row: -float(row["tpot_mean"]))
        if float(each["tpot_mean"]) > _FAR_OFF
        or (float(each["inside"]) < _FEW_INSIDE and int(each["rows"]) >= _LEAST_ROWS)
    ]
    training = [_number(each["step gains"]) for each in table_of("quality.md", "What adapting costs")]
    lines += [
        "Times to first token with requests in flight, everywhere: the last column of the table.",
        "Ladder under load, where it was measured: vLLM on two CPU cores ([adopt](adopt.md#measured-ladder-in-vllm)).",
        "Tails (p95) of a server whose processes share too few cores ([load](load.md#compared-with-a-real-server)).",
        "Ladder rewired from traces on CPUs whose cores cut messages into packets: gains far too high "
        "([traces](traces.md#ask)).",
        "What ladder gains in training: published are 5 to 7 % of plans that are not stated, predicted by plan "
        f"{min(training):.1f} to {max(training):.1f} % ([quality](quality.md#what-adapting-costs)).",
    ]
    return (
        "## Misses\n\n"
        + _prose(
            "Unseen rows of static batches outside of their interval, and what else is known to miss. Causes, as far "
            "as they are known: [accuracy-70b](accuracy-70b.md), [accuracy](accuracy.md)."
        )
        + "\n"
        + "".join(_prose(line, bullet=True) for line in lines)
        + "\n"
        + _prose(
            f"Setups of servings whose mean error of TPOT is above {_percent(_FAR_OFF, 0)}, or of which, of "
            f"{_LEAST_ROWS} or more, fewer than {_percent(_FEW_INSIDE, 0)} lie inside:"
        )
        + "\n"
        + _markdown(("version, GPU, model, plan", "rows", "TPOT", "bias", "inside"), far)
    )


def _compared_runs() -> list[tuple[str, StackFit | ServingCheck]]:
    """As `ladder_sim.confidence.runs` compares scenarios with them: those of fits, and measured servings."""
    fits = [(profile.cluster.gpu.name, profile.stack_fit) for profile in shipped_fits() if profile.stack_fit]
    return [*fits, *((check.cluster.gpu.name, check) for check in serving_checks())]


def _behind() -> str:
    """The runs that answers are compared with, one line each."""
    rows = []
    for gpu, runs in _compared_runs():
        in_flight = isinstance(runs, ServingCheck)
        spans = {name: f"{low:g}" if low == high else f"{low:g}-{high:g}" for name, (low, high) in runs.sizes.items()}
        plans = ", ".join(runs.plans) if in_flight else "TP"
        rows.append(
            (
                f"{ENGINES.get(runs.stack, runs.stack)} {runs.versions if in_flight else ''}, {gpu}".replace(" ,", ","),
                f"{', '.join(runs.models)} in {', '.join(runs.dtypes)}",
                f"{plans}; TP {spans['tp']}",
                f"{spans['batch']} {'in flight' if in_flight else 'in a batch'}",
                f"{spans['prompt']} + {spans['gen']}",
                # their sizes are those of the whole data set, in the fit or not
                str(runs.servings)
                if in_flight
                else f"{len(read_dataset(runs.runs).measurements)}, {runs.rows} in the fit",
            )
        )
    columns = ("stack, GPU", "models", "plan", "requests", "prompt + answer", "runs")
    return (
        "## Runs behind an answer\n\n"
        + _prose(
            "Every prediction is compared with those of these runs that are most like it; what they had counts as "
            "checked."
        )
        + "\n"
        + _markdown(columns, rows)
    )


# what else is known of such parts
_ELSEWHERE = {
    "GPU": " (one serving was measured on GB200, and is missed: above)",
    "technique": " (published gains are compared above)",
    "wiring": " (ladder with D = 1 alone; gains on one machine are compared above)",
    "nodes": " (all-reduces alone: [catalog](catalog.md#fabrics))",
}
# what no part of a scenario stands for
_NEVER = (
    "Prefill and decode on replicas of their own, and drafted tokens with their acceptance rates ([load](load.md)).",
    "The quality of a rewired model: nothing here predicts it ([quality](quality.md)).",
)


def _never() -> str:
    """What the catalog has, and none of these runs had."""
    every = _compared_runs()
    kinds = {
        "one static batch": [(gpu, runs) for gpu, runs in every if isinstance(runs, StackFit)],
        "requests in flight": [(gpu, runs) for gpu, runs in every if isinstance(runs, ServingCheck)],
    }
    models = [catalog.model(name) for name in catalog.model_names()]
    measured = {row.variant for row in read_dataset().measurements}
    # equal layers: one model with experts stands for all that have them
    alike = {model.experts_label: model.name if model.experts_label else "dense models" for model in reversed(models)}
    parts: Mapping[str, tuple[Iterable[str], Callable[[str, Any], Iterable[str]]]] = {
        "GPU": ((catalog.cluster(name).gpu.name for name in catalog.cluster_names()), lambda gpu, runs: [gpu]),
        "stack": (catalog.stack_names(), lambda gpu, runs: [runs.stack]),
        "model family": ((model.family for model in models), lambda gpu, runs: runs.families),
        "layers like those of": (
            alike.values(),
            lambda gpu, runs: [alike[label] for label in getattr(runs, "layers", ("",))],
        ),
        "precision": (
            (each.name for each in FORMATS.values()),
            lambda gpu, runs: [FORMATS[dtype].name for dtype in runs.dtypes],
        ),
        "plan": (
            Plan(tp=2, pp=2, dp=2, attention_dp=2, ep=2, sp=True).kind.split(" + "),
            lambda gpu, runs: [part for kind in getattr(runs, "plans", ("TP",)) for part in kind.split(" + ")],
        ),
        "technique": (TECHNIQUES, lambda gpu, runs: []),
        "nodes": (
            ("one node", "two nodes or more"),
            lambda gpu, runs: ["one node" if set(runs.nodes) <= {1} else "two nodes or more"],
        ),
        "wiring": (
            FAMILIES,
            lambda gpu, runs: ["standard"] if isinstance(runs, ServingCheck) else measured,
        ),
    }
    lines = []
    for part, (names, of) in parts.items():
        known = dict.fromkeys(names)
        had = {kind: {name for pair in members for name in of(*pair)} for kind, members in kinds.items()}
        never = [name for name in known if not any(name in each for each in had.values())]
        missing = {kind: [name for name in known if name not in (*each, *never)] for kind, each in had.items()}
        says = [f"**{', '.join(never)}**"] if never else []
        says += [f"with {kind} {', '.join(names)}" for kind, names in missing.items() if names]
        lines.append(f"{part}: {'; '.join(says)}{_ELSEWHERE.get(part, '')}")
    return (
        "## Never checked\n\n"
        + _prose(
            "By part of a scenario, what the catalog has and none of these runs had: in bold with any load, then with "
            "one kind of load. It is predicted from measured kernels and collectives where a profile has them, "
            "otherwise from formulas. Every answer says the same of its own scenario: its last lines, the explorer, "
            "and `validated` in JSON. What that adds to an interval is in "
            "[intervals.md](how/intervals.md#what-was-not-checked)."
        )
        + "\n"
        + "".join(_prose(line, bullet=True) for line in (*lines, *_NEVER))
    )


if __name__ == "__main__":
    (DOCS / "evidence.md").write_text(to_page(), encoding="utf-8")
