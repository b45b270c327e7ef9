"""Writes the tables of docs/evidence.md: how far off predictions are, where they miss, and what was never checked.

    python -m benchmarks.evidence

Errors of runs, and of steps on one H100, are computed; those of servings come from docs/accuracy-servings.csv; those of
cross-checks from the tables of their pages.
"""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from benchmarks.checked_parts import ENGINES, behind, never
from benchmarks.pages import DOCS, Row, bullets, number_in, percent, remade, rows_of, table, table_of
from ladder_sim.validation.compare import Comparison, Quantity, error_stats, unseen, validate
from ladder_sim.validation.dataset import DEFAULT_DATASET
from tests.support import beside

PAGE, SERVINGS = DOCS / "evidence.md", DOCS / "accuracy-servings.csv"
LEVEL = "protocol-b"
# runs whose decode steps and prefills were measured apart
PASSES = "ladder-h100"
# of servings' models
MODELS = ("dense", "experts")
# setups are named whose mean error of TPOT is above, and whose share of servings inside the interval is below; the
# latter of so many servings
_FAR_OFF, _FEW_INSIDE, _LEAST_ROWS = 0.1, 0.9, 10


def servings(models: str, by: str) -> list[Row]:
    """Errors of measured servings by one of their parts."""
    return [row for row in rows_of(SERVINGS) if (row["models"], row["by"]) == (models, by)]


def to_page() -> str:
    """Return the page with its tables and lists."""
    return remade(
        PAGE.name,
        {
            "At a glance": [_glance()],
            "One static batch": [_static(), _passes()],
            "Requests in flight": [_in_flight()],
            "Cross-checks": [table(("where", "what", "figures", "mean error", "largest"), _cross_checks())],
            "On one H100": [beside.by_shard()],
            "Misses": [_misses(), _far_off()],
            "Runs behind an answer": [behind()],
            "Never checked": [never()],
        },
    )


@cache
def _runs(dataset: str = DEFAULT_DATASET) -> tuple[Comparison, ...]:
    return unseen(validate(dataset, LEVEL)[LEVEL])


def _glance() -> str:
    """Return a table with a line for each comparison."""
    ladder = [
        (row.measurement.configuration.p2p, row.speedup) for row in _runs() if row.measurement.variant == "ladder"
    ]
    compared: dict[str, list[Quantity | None]] = {
        "ladder's speedup, with peer-to-peer links": [speedup for p2p, speedup in ladder if p2p],
        "ladder's speedup, without peer-to-peer links": [speedup for p2p, speedup in ladder if not p2p],
        "tok/s of four wirings": [row.tokens_per_s for row in _runs()],
    }
    rows = []
    for name, quantities in compared.items():
        errors = error_stats(quantities)
        assert errors is not None
        what, far = (
            f"one static batch, 70B on H100, {name}",
            f"{percent(errors.mean_error)}, {percent(errors.max_error)} at most",
        )
        rows.append((what, str(errors.rows), far, percent(errors.inside, 0), "[every row](accuracy-70b.csv)"))
    for time, models in itertools.product(("time per token", "time to first token"), MODELS):
        (each,) = servings(models, "all")
        name, section = (
            ("dense models", "requests-in-flight")
            if models == "dense"
            else ("models with experts", "models-with-experts")
        )
        errors_inside = (
            (percent(each["tpot_mean"]), percent(each["inside"], 0))
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
    return table(("compared", "rows", "mean error", "inside", "where"), rows)


def _tpot(row: Row) -> tuple[str, str, str]:
    """Mean error of times per token, with its sign, and the share inside."""
    return percent(row["tpot_mean"]), f"{100 * float(row['tpot_bias']):+.1f} %", percent(row["inside"], 0)


def _static() -> str:
    groups: dict[tuple[bool, str], list[Comparison]] = {}
    for row in _runs():
        configuration = row.measurement.configuration
        groups.setdefault((not configuration.p2p, f"TP {configuration.tp}"), []).append(row)
    rows = []
    for (without_p2p, tp), members in sorted(groups.items()):
        both = (error_stats([row.speedup for row in members]), error_stats([row.tokens_per_s for row in members]))
        cells = (
            (f"{percent(each.mean_error)}, {percent(each.max_error)}", percent(each.inside, 0)) if each else ("-", "-")
            for each in both
        )
        rows.append((tp, "off" if without_p2p else "on", str(len(members)), *itertools.chain(*cells)))
    columns = ("degree", "P2P", "rows", "speedup: mean, largest", "inside", "tok/s: mean, largest", "inside")
    return table(columns, rows)


def _passes() -> str:
    """Return a table of decode steps and prefills apart, by model and degree."""
    groups: dict[tuple[str, bool, int], list[Comparison]] = {}
    for row in _runs(PASSES):
        configuration = row.measurement.configuration
        groups.setdefault((configuration.model, not configuration.p2p, configuration.tp), []).append(row)
    order = list(dict.fromkeys(model for model, _, _ in groups))
    rows = []
    for (model, without_p2p, tp), members in sorted(
        groups.items(), key=lambda each: (order.index(each[0][0]), each[0])
    ):
        cells = []
        for name in ("tpot_s", "ttft_s", "speedup"):
            errors = error_stats([getattr(row, name) for row in members])
            far = f"{percent(errors.mean_error)}, {percent(errors.max_error)}" if errors else "-"
            cells += [far, percent(errors.inside, 0) if errors else "-"]
        rows.append((model, f"TP {tp}", "off" if without_p2p else "on", str(len(members)), *cells))
    columns = ("model", "degree", "P2P", "rows", "TPOT: mean, largest", "inside", "TTFT", "inside", "speedup", "inside")
    return table(columns, rows)


def _by_engine(models: str) -> list[Row]:
    """Errors by engine alone: of its rows by precision and GPU, weighted."""
    groups: dict[str, list[Row]] = {}
    for row in servings(models, "engine"):
        groups.setdefault(ENGINES[row["value"].partition(",")[0]], []).append(row)
    columns = ("tpot_mean", "tpot_bias", "inside", "half_width", "ttft_mean")
    merged: list[Row] = []
    for engine, rows in groups.items():
        counts = [int(row["rows"]) for row in rows]
        means = {name: statistics.fmean([float(row[name]) for row in rows], counts) for name in columns}
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
        for models in MODELS
        for row in by(models)
    ]
    return table(("by engine, GPU, model", "models", "rows", "TPOT", "bias", "inside", "half-width", "TTFT"), rows)


def _cross_checks() -> Iterator[tuple[str, ...]]:
    """Yield this project's own runs, of which few are on the machines that predictions are about."""
    for file, where in (
        ("crosscheck-emulated.csv", "two CPU cores, emulated links, TP 8"),
        ("crosscheck-gloo.csv", "two CPU cores, 200 Mbit/s between two ranks"),
    ):
        # those of the run that was calibrated have no bound
        judged = [row for row in rows_of(DOCS / file) if row["bound"]]
        for what, gains in (("prefill and decode", False), ("ladder's speedup", True)):
            errors = [100 * float(row["error"]) for row in judged if (row["what"] == "speedup") == gains]
            yield f"[{where}](crosscheck.md)", what, *_spread(errors)
    wirings = [row for number in (0, 1) for row in table_of("crosscheck.md", "Other wirings, and techniques", number)]
    errors = [number_in(cell) for row in wirings for name, cell in row.items() if name.startswith("error")]
    where = "[both](crosscheck.md#other-wirings-and-techniques)"
    yield where, "gains of other wirings and of techniques", *_spread(errors)
    runs = table_of("crosscheck.md", "On H100s")
    where = "[an H100 as a rank of eight, emulated all-reduces](crosscheck.md#on-h100s)"
    for what, measured, predicted in (
        ("time per token", "TPOT, ms", "predicted 2"),
        ("time to first token", "TTFT, ms", "predicted"),
        ("speedups", "speedup", "predicted 3"),
        ("time per token of another H100", "second H100", "predicted 2"),
        ("its speedups", "second H100 2", "predicted 3"),
    ):
        yield where, what, *_spread(_errors(runs, measured, predicted))
    where = "[vLLM with ladder on two CPU cores](adopt.md#measured-ladder-in-vllm)"
    runs = table_of("adopt.md", "Measured: ladder in vLLM")
    times = [*_errors(runs, "standard, ms", "predicted"), *_errors(runs, "ladder, ms", "predicted 2")]
    yield where, "TTFT and TPOT p50 at three rates", *_spread(times)
    yield where, "ladder's gain in these", *_spread(_errors(runs, "gain", "predicted 3"))
    for number, (column, of) in enumerate((("case", "this runtime"), ("way", "plain PyTorch"))):
        for row in table_of("traces.md", "Ask", number):
            where = f"[trace of {of}, {row[column]}](traces.md#ask)"
            yield where, "a rewired step", *_spread([number_in(row["error"])])
    for what, own in beside.spread_rows():
        yield "[a rank's shard on one H100](#on-one-h100)", what, *_spread(100 * error for error in own)
    served, others = (table_of("load.md", "Compared with a real server", number) for number in (0, 1))
    hours = {
        ("`vllm serve` on two CPU cores", "compared-with-a-real-server"): [
            (row["TP"], row["time"], row["error"]) for row in served
        ],
        ("the same in two other hours", "in-other-hours"): [
            (row["TP"], time, cell) for row in others for time, cell in row.items() if time.startswith("T")
        ],
    }
    for (where, section), cells in hours.items():
        for tp, percentile in itertools.product("12", ("p50", "p95")):
            errors = [number_in(cell) for of, time, cell in cells if of == tp and time.endswith(percentile)]
            what = f"TTFT and TPOT {percentile} at three rates"
            yield f"[{where}, TP {tp}](load.md#{section})", what, *_spread(errors)


def _errors(rows: Sequence[Row], measured: str, predicted: str) -> list[float]:
    """Of predictions in two columns of a table, in percent."""
    return [100 * (number_in(row[predicted]) / number_in(row[measured]) - 1) for row in rows if row[measured]]


def _spread(errors: Iterable[float]) -> tuple[str, str, str]:
    """How many errors in percent, their mean and the largest."""
    sizes = [abs(error) for error in errors]
    # of errors that are rounded already: a half goes up, as on the pages that have them all
    return str(len(sizes)), f"{statistics.mean(sizes) + 1e-9:.1f} %", f"{max(sizes):.1f} %"


def _misses() -> str:
    """Return a list of the predictions that are furthest off."""
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
    worst = {shard: min(exchange, default=0.0) for shard, (_, exchange) in beside.errors().items()}
    noisy, short = (percent(-error, 0) for error in (worst.pop(beside.NOISY), min(worst.values())))
    lines += [
        "Ladder next to all-reduces of many steps through memory: its step up to "
        f"{short} (70B at batch 64, whose runs differ, up to {noisy}) too short on one H100 ([above](#on-one-h100)).",
        "Times to first token with requests in flight, everywhere: the last column of the table.",
        "Ladder under load, where it was measured: vLLM on two CPU cores ([adopt](adopt.md#measured-ladder-in-vllm)).",
        "Tails (p95) of a server whose processes share too few cores ([load](load.md#compared-with-a-real-server)).",
        "Ladder rewired from traces on CPUs whose cores cut messages into packets: gains far too high "
        "([traces](traces.md#ask)).",
    ]
    return bullets(lines)


def _far_off() -> str:
    """Setups of servings, by rules that are the same for all."""
    rows = [
        (each["value"], each["rows"], *_tpot(each))
        for models in MODELS
        for each in sorted(servings(models, "setup"), key=lambda row: -float(row["tpot_mean"]))
        if float(each["tpot_mean"]) > _FAR_OFF
        or (float(each["inside"]) < _FEW_INSIDE and int(each["rows"]) >= _LEAST_ROWS)
    ]
    return table(("version, GPU, model, plan", "rows", "TPOT", "bias", "inside"), rows)


if __name__ == "__main__":
    PAGE.write_text(to_page(), encoding="utf-8")
