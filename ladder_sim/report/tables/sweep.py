"""A sweep as a table."""

from math import isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.display.labels import batching_label, field_label, field_text
from ladder_sim.report.console import table
from ladder_sim.sweeps.evaluate import ENDS, PRICE, PROBLEM
from ladder_sim.sweeps.table import SweepTable
from ladder_sim.units import format_rate, format_seconds

# rows that a person reads; more are for a file
MAX_ROWS = 100


def sweep_report(sweep: SweepTable) -> RenderableType:
    """What varies, standard's times and every variant's speedup; the first `MAX_ROWS` points."""
    compared = [name for name in sweep.variants if name != "standard"]
    base = "standard" if "standard" in sweep.variants else sweep.variants[0]
    priced = f"{base}.{PRICE}" in sweep.columns
    prices = ("$/Mtoken",) if priced else ()
    columns = (*map(field_label, sweep.varied), f"{base} TTFT", "TPOT", "tok/s", *prices, *compared, "infeasible")
    rows = [_row(sweep, row, base, compared, priced=priced) for row in range(min(len(sweep), MAX_ROWS))]
    if sweep.feasible.all():
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    feasible = int(sweep.feasible.sum())
    kind = batching_label(sweep["batching"])
    parts: list[RenderableType] = [
        Text(f"{len(sweep):,} points, {feasible:,} feasible; {kind}; speedups over standard", "bold"),
        table(columns, rows, left=len(sweep.varied), keys=len(sweep.varied)),
    ]
    if len(sweep) > MAX_ROWS:
        parts.append(Text(f"and {len(sweep) - MAX_ROWS:,} more: --save FILE.csv writes all, --set plot=FILE draws"))
    return Group(*parts)


def _row(sweep: SweepTable, row: int, base: str, compared: list[str], *, priced: bool) -> tuple[str, ...]:
    place = [field_text(name, _plain(sweep[name][row]), sweep.units[name]) for name in sweep.varied]
    problem = str(sweep[PROBLEM][row])
    if problem:
        return (*place, *["-"] * (3 + priced + len(compared)), problem)
    tpot_s = float(sweep[f"{base}.tpot_s"][row])
    return (
        *place,
        format_seconds(float(sweep[f"{base}.ttft_s"][row])),
        # NaN: one new token has none
        format_seconds(tpot_s) if not isnan(tpot_s) else "-",
        format_rate(float(sweep[f"{base}.tokens_per_s"][row])),
        *([f"{sweep[f'{base}.{PRICE}'][row]:.3g}"] if priced else []),
        *(_speedup(sweep, row, name) for name in compared),
        "",
    )


def _speedup(sweep: SweepTable, row: int, name: str) -> str:
    value, *ends = (
        float(sweep[column][row])
        for column in (f"{name}.{metric}" for metric in ("speedup", *ENDS["speedup"]))
        if column in sweep.columns
    )
    return Interval(value=value, low=ends[0], high=ends[1]).text if ends else f"{value:.2f}"


def _plain(value: Any) -> Any:
    """A numpy scalar as Python's own."""
    return value.item() if hasattr(value, "item") else value
