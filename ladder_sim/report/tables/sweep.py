"""A sweep as a table for people."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.report.labels import field_label, field_text
from ladder_sim.report.tables.console import table
from ladder_sim.sweeps.evaluate import PRICE, PROBLEM
from ladder_sim.sweeps.table import SweepTable
from ladder_sim.units import format_seconds

# more is for a file
MOST_ROWS = 100


def sweep_report(found: SweepTable) -> RenderableType:
    """What varies, standard's times and every variant's speedup; the first `MOST_ROWS` points."""
    compared = [name for name in found.variants if name != "standard"]
    base = "standard" if "standard" in found.variants else found.variants[0]
    priced = f"{base}.{PRICE}" in found.columns
    prices = ("$/Mtoken",) if priced else ()
    columns = (*map(field_label, found.varied), f"{base} TTFT", "TPOT", "tok/s", *prices, *compared, "infeasible")
    rows = [_row(found, row, base, compared, priced=priced) for row in range(min(len(found), MOST_ROWS))]
    if found.feasible.all():
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    parts: list[RenderableType] = [
        Text(f"{len(found):,} points, {int(found.feasible.sum()):,} feasible; speedups over standard", "bold"),
        table(columns, rows, left=len(found.varied)),
    ]
    if len(found) > MOST_ROWS:
        parts.append(Text(f"and {len(found) - MOST_ROWS:,} more: --save FILE.csv writes all, --plot draws them"))
    return Group(*parts)


def _row(found: SweepTable, row: int, base: str, compared: list[str], *, priced: bool) -> tuple[str, ...]:
    place = [field_text(name, _plain(found[name][row])) for name in found.varied]
    problem = str(found[PROBLEM][row])
    if problem:
        return (*place, *["-"] * (3 + priced + len(compared)), problem)
    tpot_s = float(found[f"{base}.tpot_s"][row])
    return (
        *place,
        format_seconds(float(found[f"{base}.ttft_s"][row])),
        # one new token has none
        format_seconds(tpot_s) if tpot_s == tpot_s else "-",
        f"{found[f'{base}.tokens_per_s'][row]:.4g}",
        *([f"{found[f'{base}.{PRICE}'][row]:.3g}"] if priced else []),
        *(f"{found[f'{name}.speedup'][row]:.3f}" for name in compared),
        "",
    )


def _plain(value: Any) -> Any:
    """A numpy scalar as Python's own."""
    return value.item() if hasattr(value, "item") else value
