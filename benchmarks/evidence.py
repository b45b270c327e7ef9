"""Writes the tables of docs/evidence.md: how far off predictions are, where they miss, and what was never checked.

    python -m benchmarks.evidence

Errors of runs, of techniques, of recorded servers and of steps on one H100 are computed; those of servings, of
published loads (`ladder-sim validate published --csv`) and of cross-checks come from CSV files in docs.
"""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from benchmarks import techniques, vllm_servers
from benchmarks.accuracy import levels
from benchmarks.checked_parts import ENGINES, never
from benchmarks.pages import DOCS, Row, bullets, percent, remade, rows_of, table, table_of
from ladder_sim.validation.compare import Comparison, Quantity, error_stats, unseen, validate
from ladder_sim.validation.dataset import DEFAULT_DATASET
from tests.support import beside

PAGE, SERVINGS = DOCS / "evidence.md", DOCS / "accuracy-servings.csv"
LOADS = DOCS.parent / "ladder_sim" / "validation" / "data" / "published-errors.csv"
LEVEL = "protocol-b"
# runs whose decode steps and prefills were measured apart
PASSES = "ladder-h100"
# of servings' models
MODELS = ("dense", "experts")
# setups of servings are named whose mean error of TPOT is above, of at least so many rows
_FAR_OFF, _LEAST_ROWS = 0.14, 20


def servings(models: str, by: str) -> list[Row]:
    """Errors of measured servings by one of their parts."""
    return [row for row in rows_of(SERVINGS) if (row["models"], row["by"]) == (models, by)]


def left_out(error: str = "tpot_mean") -> list[Row]:
    """Errors of dense servings by what was left out of the fit, the worst first."""
    return sorted(servings("dense", "left out"), key=lambda row: -float(row[error]))


def to_page() -> str:
    """Return the page with its tables and lists."""
    return remade(
        PAGE.name,
        {
            "At a glance": [_glance()],
            "One static batch": [levels(), _passes()],
            "Requests in flight": [_left_out(), _in_flight()],
            "Techniques": [techniques.published_table()],
            "Published loads": [_published()],
            "Cross-checks": [table(("where", "what", "figures", "mean error", "largest"), _cross_checks())],
            "Misses": [_misses()],
            "Never checked": [never()],
        },
    )


@cache
def _runs(dataset: str = DEFAULT_DATASET) -> tuple[Comparison, ...]:
    return unseen(validate(dataset, LEVEL)[LEVEL])


def _glance() -> str:
    """Return a table with a line for each comparison."""
    rows: list[tuple[str, ...]] = []
    for time, models in itertools.product(("time to first token", "time per token"), MODELS):
        of_token = time == "time per token"
        worst = left_out("tpot_mean" if of_token else "ttft_median")
        each = worst[0] if models == "dense" else servings(models, "all")[0]
        name = f"dense models, {each['value']} left out" if models == "dense" else "models with experts"
        errors_inside = (
            (percent(each["tpot_mean"]), percent(each["inside"], 0))
            if of_token
            else (f"median {percent(each['ttft_median'])}", "")
        )
        rows.append((f"requests in flight, {name}: {time}", each["rows"], *errors_inside))
    ladder = [
        (row.measurement.configuration.p2p, row.speedup) for row in _runs() if row.measurement.variant == "ladder"
    ]
    compared: dict[str, list[Quantity | None]] = {
        "ladder's speedup, with peer-to-peer links": [speedup for p2p, speedup in ladder if p2p],
        "ladder's speedup, without peer-to-peer links": [speedup for p2p, speedup in ladder if not p2p],
        "tok/s of four wirings": [row.tokens_per_s for row in _runs()],
    }
    for name, quantities in compared.items():
        errors = error_stats(quantities)
        assert errors is not None
        what, far = (
            f"one static batch, 70B on H100, {name}",
            f"{percent(errors.mean_error)}, {percent(errors.max_error)} at most",
        )
        rows.append((what, str(errors.rows), far, percent(errors.inside, 0)))
    ratios = table_of(PAGE.name, "Prompts with and without all-reduces")
    what = "prefills of 1k to 64k tokens, with and without all-reduces: their ratio"
    by_tp = ", ".join(f"{row['their ratio']} at TP {row['TP']}" for row in ratios)
    rows.append((what, "14", by_tp, ""))
    woven = [abs(100 * gain.error) for gain in techniques.tokenweave()]
    far = f"{statistics.mean(woven):.1f} %, {max(woven):.0f} % at most"
    rows.append(("gains of TokenWeave's techniques in prefill", str(len(woven)), far, ""))
    gains = [abs(gain.points) for gain in techniques.published()]
    far = f"{statistics.mean(gains):.1f} points, {max(gains):.1f} at most"
    rows.append(("published gains of other techniques", str(len(gains)), far, ""))
    return table(("compared", "rows", "mean error", "inside"), rows)


def _tpot(row: Row) -> tuple[str, str, str]:
    """Mean error of times per token, with its sign, and the share inside."""
    return percent(row["tpot_mean"]), f"{100 * float(row['tpot_bias']):+.1f} %", percent(row["inside"], 0)


def _passes() -> str:
    """Return a table of decode steps and prefills apart, by model and links."""
    groups: dict[tuple[str, bool], list[Comparison]] = {}
    for row in _runs(PASSES):
        configuration = row.measurement.configuration
        groups.setdefault((configuration.model, configuration.p2p), []).append(row)
    rows = []
    for (model, p2p), members in groups.items():
        cells = []
        for name in ("tpot_s", "ttft_s", "speedup"):
            errors = error_stats([getattr(row, name) for row in members])
            assert errors is not None
            cells += [f"{percent(errors.mean_error)}, {percent(errors.max_error)}", percent(errors.inside, 0)]
        degrees = sorted({row.measurement.configuration.tp for row in members})
        tp = "-".join(str(each) for each in dict.fromkeys((degrees[0], degrees[-1])))
        rows.append((model, f"TP {tp}", "on" if p2p else "off", str(len(members)), *cells))
    columns = ("model", "degree", "P2P", "rows", "TPOT: mean, largest", "inside", "TTFT", "inside", "speedup", "inside")
    return table(columns, sorted(rows, key=lambda row: (row[0], row[2] == "off")))


def _left_out() -> str:
    """Return a table of the errors of dense servings by what was left out of the fit."""
    rows = [
        (
            f"each {row['value']}",
            percent(row["tpot_mean"]),
            percent(row["tpot_median"]),
            *_tpot(row)[1:],
            percent(row["ttft_median"]),
        )
        for row in left_out()
    ]
    return table(("left out of the fit", "TPOT, mean", "median", "bias", "inside", "TTFT, median"), rows)


def _in_flight() -> str:
    rows = []
    for models in MODELS:
        for row in servings(models, "engine"):
            engine, _, rest = row["value"].partition(", ")
            where = f"{ENGINES[engine]}, {rest.replace(' on ', ', ')}"
            widths = percent(row["half_width"], 0), percent(row["ttft_median"], 0)
            rows.append((where, models, row["rows"], *_tpot(row), *widths))
    columns = ("engine, precision, GPU", "models", "rows", "TPOT", "bias", "inside", "half-width", "TTFT, median")
    return table(columns, rows)


def _published() -> str:
    """Return a table of published loads that are predicted, a line for each source and server, with the ends of errors.

    A load that is more than the predicted server carries has a queue that grows, and no error worth its digits.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows_of(LOADS):
        if row["error"]:
            server = f"{row['model']}, {row['dtype']}, TP {row['tp']} on {row['cluster']}"
            groups.setdefault((row["source"].partition(",")[0], server), []).append(row)
    lines = []
    for (source, server), rows in groups.items():
        cells = [_ends([row for row in rows if row["figure"] in names]) for names in _PUBLISHED]
        judged = [row for row in rows if not row["note"]]
        inside = sum(row["inside"] == "True" for row in judged)
        lines.append((source, server, str(len({row["load"] for row in rows})), *cells, f"{inside} of {len(judged)}"))
    return table(("source", "server", "loads", "tok/s", "TPOT or ITL", "TTFT", "figures inside"), lines)


# figures of each column
_PUBLISHED = (("tokens_per_s",), ("tpot_mean_s", "itl_mean_s"), ("ttft_mean_s",))


def _ends(rows: Sequence[Row]) -> str:
    """Return the least and the largest of the errors as text."""
    known = [f"{100 * error:+.0f}" for error in sorted(float(row["error"]) for row in rows if not row["note"])]
    said = [f"{' to '.join(dict.fromkeys((known[0], known[-1])))} %"] if known else []
    return ", or ".join([*said, *(["the queue grows"] if len(known) < len(rows) else [])]) or "-"


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
            yield where, what, *_spread(errors)
    wirings = rows_of(DOCS / "crosscheck-wirings.csv")
    for kind, where, what in (
        ("speedup", "two CPU cores, both links", "speedups of other wirings and of techniques"),
        ("rewired step, ms", "traces of CPU ranks, rewired as ladder", "a step"),
    ):
        yield where, what, *_spread(100 * float(row["error"]) for row in wirings if row["what"] == kind)
    runs = rows_of(DOCS / "crosscheck-h100.csv")
    for what, pairs in (
        ("time per token", (("tpot_ms", "tpot_predicted_ms"), ("tpot_second_ms", "tpot_predicted_ms"))),
        ("time to first token", (("ttft_ms", "ttft_predicted_ms"),)),
        ("speedups", (("speedup", "speedup_predicted"), ("speedup_second", "speedup_predicted"))),
    ):
        errors = [
            100 * (float(row[predicted]) / float(row[measured]) - 1)
            for row in runs
            for measured, predicted in pairs
            if row[measured]
        ]
        yield "two H100s as a rank of eight, emulated all-reduces", what, *_spread(errors)
    for what, own in beside.spread_rows():
        yield "a rank's shard on one H100", what, *_spread(100 * error for error in own)
    first, *others = vllm_servers.SERIES.values()
    for where, folders in (
        ("`vllm serve` on two CPU cores", [first]),
        ("the same in two other hours", others),
        ("the same with ladder", [vllm_servers.LINKS]),
    ):
        every = [runs for folder in folders for runs in vllm_servers.compare(folder).values()]
        errors = [100 * runs.error(figure) for runs in every for figure in vllm_servers.FIGURES if "p50" in figure]
        yield where, "TTFT and TPOT p50 at three rates", *_spread(errors)
    gains = [100 * error for error in vllm_servers.gain_errors(vllm_servers.LINKS)]
    yield "the same with ladder", "ladder's gain in these", *_spread(gains)


def _spread(errors: Iterable[float]) -> tuple[str, str, str]:
    """How many errors in percent, their mean and the largest."""
    sizes = [abs(error) for error in errors]
    return str(len(sizes)), f"{statistics.mean(sizes) + 1e-9:.1f} %", f"{max(sizes):.1f} %"


def _misses() -> str:
    """Return a list of the predictions that are furthest off."""
    lines = []
    for row in _runs():
        configuration = row.measurement.configuration
        where = f"TP {configuration.tp}, P2P {'on' if configuration.p2p else 'off'}, batch {configuration.batch}"
        for what, quantity in (("speedup", row.speedup), ("tok/s", row.tokens_per_s)):
            if quantity and not quantity.inside:
                lines.append(f"70B, {where}: {what} of {row.measurement.variant} {100 * quantity.error:+.1f} %.")
    worst = {shard: min(exchange, default=0.0) for shard, (_, exchange) in beside.errors().items()}
    noisy, short = (percent(-error, 0) for error in (worst.pop(beside.NOISY), min(worst.values())))
    lines += [
        f"{row['value']}: TPOT of {row['rows']} servings, {percent(row['tpot_mean'])}."
        for models in MODELS
        for row in sorted(servings(models, "setup"), key=lambda row: -float(row["tpot_mean"]))
        if int(row["rows"]) >= _LEAST_ROWS and float(row["tpot_mean"]) > _FAR_OFF
    ]
    lines += [
        f"Ladder next to all-reduces of many steps through memory: up to {short} too short on one H100, and up to "
        f"{noisy} for 70B at batch 64, whose runs differ by half.",
        "Tails (p95) of a server whose processes share too few cores.",
        "Ladder rewired from traces of CPUs whose own cores cut messages into packets: gains far too high.",
    ]
    return bullets(lines)


if __name__ == "__main__":
    PAGE.write_text(to_page(), encoding="utf-8")
