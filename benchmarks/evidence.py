"""Writes docs/evidence.md: what predictions were compared with, how far off they are, and what was never checked.

    python -m benchmarks.evidence

Errors of runs, and of steps on one H100, are computed; those of servings come from docs/accuracy-servings.csv; those of
cross-checks from the tables of their pages.
"""

import csv
import itertools
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from benchmarks import beside
from benchmarks.checked_parts import ENGINES, behind, never
from benchmarks.pages import DOCS, Row, number_in, paragraph, percent, pictures, table, table_of
from ladder_sim.validation.compare import Comparison, error_stats, unseen, validate
from ladder_sim.validation.dataset import read_dataset

SERVINGS = DOCS / "accuracy-servings.csv"
LEVEL = "protocol-b"
# setups are named whose mean error of TPOT is above, and whose share of servings inside the interval is below; the
# latter of so many servings
_FAR_OFF, _FEW_INSIDE, _LEAST_ROWS = 0.1, 0.9, 10


def rows_of(file: Path) -> list[Row]:
    """Of a CSV file."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def servings(models: str, by: str) -> list[Row]:
    """Errors of measured servings by one of their parts."""
    return [row for row in rows_of(SERVINGS) if (row["models"], row["by"]) == (models, by)]


def to_page() -> str:
    """The whole page as Markdown."""
    head = "# Evidence\n\n" + paragraph(
        "What predictions were compared with, how far off they are, where they miss, and what was never checked. "
        "Errors are absolute, of the prediction over the measurement; *inside* is the share of measurements in their "
        "90 % interval. Written by `python -m benchmarks.evidence`; the figures by `python -m benchmarks.page_figures`."
    )
    return "\n".join(
        [head, _glance(), _static(), _in_flight(), _cross_checks(), beside.section(), _misses(), behind(), never()]
    )


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
        what, mean = f"one static batch, 70B on H100, {name}", percent(errors.mean_error)
        far = f"{mean}, {percent(errors.max_error)} at most"
        rows.append((what, str(errors.rows), far, percent(errors.inside, 0), "[every row](accuracy-70b.csv)"))
    for time in ("time per token", "time to first token"):
        for models, name, section in (
            ("dense", "dense models", "requests-in-flight"),
            ("experts", "models with experts", "models-with-experts"),
        ):
            (each,) = servings(models, "all")
            errors_inside = (
                (percent(each["tpot_mean"]), _inside(each))
                if time == "time per token"
                else (f"median {percent(each['ttft_median'])}", "")
            )
            what, where = f"requests in flight, {name}: {time}", f"[accuracy](accuracy.md#{section})"
            rows.append((what, each["rows"], *errors_inside, where))
    ratios = table_of("accuracy.md", "Prompts with and without all-reduces")
    what = "prefills of 1k to 64k tokens, with and without all-reduces: their ratio"
    by_tp = ", ".join(f"{row['their ratio']} at TP {row['TP']}" for row in ratios)
    rows.append((what, "14", by_tp, "", "[accuracy](accuracy.md#prompts-with-and-without-all-reduces)"))
    woven = [abs(number_in(row["error"])) for row in table_of("versus.md", "TokenWeave")]
    what = "gains of TokenWeave's techniques in prefill"
    far = f"{statistics.mean(woven):.1f} %, {max(woven):.0f} % at most"
    rows.append((what, str(len(woven)), far, "", "[versus](versus.md#tokenweave)"))
    gains = [abs(number_in(row["points"])) for row in table_of("versus.md", "Published gains")]
    what, far = "published gains of other techniques", f"{statistics.mean(gains):.1f} points, {max(gains):.1f} at most"
    rows.append((what, str(len(gains)), far, "", "[versus](versus.md#published-gains)"))
    return "## At a glance\n\n" + table(("compared", "rows", "mean error", "inside", "where"), rows)


def _inside(row: Row) -> str:
    return percent(row["inside"], 0)


def _tpot(row: Row) -> tuple[str, str, str]:
    """Mean error of times per token, with its sign, and the share inside."""
    return percent(row["tpot_mean"]), f"{100 * float(row['tpot_bias']):+.1f} %", _inside(row)


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
            (f"{percent(each.mean_error)}, {percent(each.max_error)}", percent(each.inside, 0)) if each else ("-", "-")
            for each in (speedups, rates)
        )
        rows.append((tp, "on" if p2p else "off", str(rates.rows), *(cell for pair in cells for cell in pair)))
    columns = ("degree", "P2P", "rows", "speedup: mean, largest", "inside", "tok/s: mean, largest", "inside")
    return (
        "## One static batch\n\n"
        + paragraph(
            "Llama 3 70B on one node of H100s under `gpt-fast`, the benchmark of Ladder's authors: "
            f"{len(_runs())} rows that the fit behind predictions had not seen. The structure of the model was made "
            f"with all {len(read_dataset().measurements)} in sight: they test its figures."
        )
        + "\n"
        + pictures(
            "evidence-runs",
            "Predicted over measured speedups of parallel, ladder and the upper bound, with their 90 % intervals",
        )
        + table(columns, rows)
        + "\n"
        + paragraph(
            "Hollow marks are rows that the fit saw. [accuracy-70b.md](accuracy-70b.md) has the largest errors with "
            "their causes."
        )
    )


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
            *_tpot(row),
            percent(row["half_width"], 0),
            percent(row["ttft_mean"], 0),
        )
        for by in (_by_engine, lambda models: servings(models, "cluster"), lambda models: servings(models, "model"))
        for models in ("dense", "experts")
        for row in by(models)
    ]
    columns = ("by engine, GPU, model", "models", "rows", "TPOT", "bias", "inside", "half-width", "TTFT")
    return (
        "## Requests in flight\n\n"
        + paragraph(
            "Servings of vLLM, TensorRT-LLM and SGLang measured by NVIDIA (aiconfigurator-core 0.12.0), all of the "
            "standard wiring. Four figures of the engines are fitted to the dense ones, one to 51 of those with "
            "experts. Every dense row is predicted here by a fit that had not seen its model."
        )
        + "\n"
        + pictures(
            "evidence-servings",
            "Mean signed error of the time per token by engine, precision and GPU, and how wide its interval is",
        )
        + paragraph("A bar is the mean half-width of the 90 % interval, a dot the mean error with its sign.")
        + "\n"
        + table(columns, rows)
        + "\n"
        + paragraph(
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
    gains = [number_in(cell) for row in wirings for name, cell in row.items() if name.startswith("error")]
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
            rows.append((where, "a rewired step", *_spread([number_in(row["error"])])))
    for what, own in beside.spread_rows():
        rows.append(("[a rank's shard on one H100](#on-one-h100)", what, *_spread(100 * error for error in own)))
    served, others = (table_of("load.md", "Compared with a real server", number) for number in (0, 1))
    for tp, percentile in itertools.product("12", ("p50", "p95")):
        where = f"[`vllm serve` on two CPU cores, TP {tp}](load.md#compared-with-a-real-server)"
        errors = [number_in(row["error"]) for row in served if row["TP"] == tp and row["time"].endswith(percentile)]
        rows.append((where, f"TTFT and TPOT {percentile} at three rates", *_spread(errors)))
    for tp, percentile in itertools.product("12", ("p50", "p95")):
        where = f"[the same in two other hours, TP {tp}](load.md#in-other-hours)"
        figures = (f"TTFT {percentile}", f"TPOT {percentile}")
        errors = [number_in(row[figure]) for row in others if row["TP"] == tp for figure in figures]
        rows.append((where, f"TTFT and TPOT {percentile} at three rates", *_spread(errors)))
    return (
        "## Cross-checks\n\n"
        + paragraph(
            "Measured by this project itself. On CPUs a machine is measured, predicted, and run: that checks the "
            "simulator, not the tables of GPUs."
        )
        + "\n"
        + table(("where", "what", "figures", "mean error", "largest"), rows)
        + "\n"
        + paragraph(
            "Two engines, one event by event and one vectorised, give the same times ([model](model.md#streams)). The "
            "scheduler of `serve` gives every step and every token of 15 cases the time that vLLM's own gives "
            "([load](load.md#compared-with-vllms-own-scheduler))."
        )
    )


def _errors(rows: Sequence[Row], measured: str, predicted: str) -> list[float]:
    """Of predictions in two columns of a table, in percent."""
    return [100 * (number_in(row[predicted]) / number_in(row[measured]) - 1) for row in rows if row[measured]]


def _spread(errors: Iterable[float]) -> tuple[str, str, str]:
    """How many errors in percent, their mean and the largest."""
    sizes = [abs(error) for error in errors]
    # of errors that are rounded already: a half goes up, as on the pages that have them all
    return str(len(sizes)), f"{statistics.mean(sizes) + 1e-9:.1f} %", f"{max(sizes):.1f} %"


def _too_short() -> str:
    """How far the worst predictions of steps on one H100 are below what was measured."""
    worst = {shard: min(exchange, default=0.0) for shard, (_, exchange) in beside.errors().items()}
    noisy = percent(-worst.pop(beside.NOISY), 0)
    return f"up to {percent(-min(worst.values()), 0)} (70B at batch 64, whose runs differ, up to {noisy})"


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
        (each["value"], each["rows"], *_tpot(each))
        for models in ("dense", "experts")
        for each in sorted(servings(models, "setup"), key=lambda row: -float(row["tpot_mean"]))
        if float(each["tpot_mean"]) > _FAR_OFF
        or (float(each["inside"]) < _FEW_INSIDE and int(each["rows"]) >= _LEAST_ROWS)
    ]
    lines += [
        f"Ladder next to all-reduces of many steps through memory: its step {_too_short()} too short on one H100 "
        "([above](#on-one-h100)).",
        "Times to first token with requests in flight, everywhere: the last column of the table.",
        "Ladder under load, where it was measured: vLLM on two CPU cores ([adopt](adopt.md#measured-ladder-in-vllm)).",
        "Tails (p95) of a server whose processes share too few cores ([load](load.md#compared-with-a-real-server)).",
        "Ladder rewired from traces on CPUs whose cores cut messages into packets: gains far too high "
        "([traces](traces.md#ask)).",
    ]
    return (
        "## Misses\n\n"
        + paragraph(
            "Unseen rows of static batches outside of their interval, and what else is known to miss. Causes, as far "
            "as they are known: [accuracy-70b](accuracy-70b.md), [accuracy](accuracy.md)."
        )
        + "\n"
        + "".join(paragraph(line, bullet=True) for line in lines)
        + "\n"
        + paragraph(
            f"Setups of servings whose mean error of TPOT is above {percent(_FAR_OFF, 0)}, or of which, of "
            f"{_LEAST_ROWS} or more, fewer than {percent(_FEW_INSIDE, 0)} lie inside:"
        )
        + "\n"
        + table(("version, GPU, model, plan", "rows", "TPOT", "bias", "inside"), far)
    )


if __name__ == "__main__":
    (DOCS / "evidence.md").write_text(to_page(), encoding="utf-8")
