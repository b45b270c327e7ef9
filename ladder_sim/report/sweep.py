"""The answer of `sweep`: what the variants gain at the points that differ most, and at all of them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document
from ladder_sim.display.labels import (
    asked_text,
    axis_values,
    batching_label,
    evidence_text,
    field_label,
    field_text,
    field_title,
    interval_text,
    wiring_label,
    with_unit,
)
from ladder_sim.errors import UsageError
from ladder_sim.report.columns import Column, number_text, table_of
from ladder_sim.report.console import WholeTable
from ladder_sim.report.figures.style import (
    MAX_TICKS,
    NOW_MARKER,
    Figure,
    figure,
    log_axis,
    round_ticks,
    value_axis,
    variant_colour,
)
from ladder_sim.report.report import WIDTH, Brief, Remark, Report
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.sweeps.evaluate import PRICE, PROBLEM
from ladder_sim.sweeps.table import SweepTable
from ladder_sim.units import counted_text
from ladder_sim.wirings.names import NO_COMMUNICATION

# points of the default answer, and rows that a person reads behind it; more are for a file
SHOWN, MAX_ROWS = 8, 100


class SweepReport(Report[SweepTable]):
    """How the points of a sweep look."""

    figures: ClassVar = {"speedup": lambda self: sweep_figure(self.answer)}

    @property
    def base(self) -> str:
        """The variant whose times are shown."""
        return "standard" if "standard" in self.answer.variants else self.answer.variants[0]

    @property
    def compared(self) -> list[str]:
        """Variants that have a speedup; what nobody can run only where there is no other."""
        compared = [name for name in self.answer.variants if name != "standard"]
        return [name for name in compared if name != NO_COMMUNICATION] or compared

    @cached_property
    def able(self) -> NDArray[np.intp]:
        """Rows that have figures."""
        return np.flatnonzero(self.answer.feasible)

    @property
    def leading(self) -> str:
        """The variant that gains most at most of the points; empty: only standard was asked for."""
        gains = {name: float(np.median(self.answer[f"{name}.speedup"][self.able])) for name in self.compared}
        return max(gains, key=gains.__getitem__, default="")

    def figure_of(self, row: int, variant: str, metric: str) -> Any:
        """Return one figure of a point, with its interval where the sweep has one; None if the point has none."""
        sweep, name = self.answer, f"{variant}.{metric}"
        value = float(sweep[name][row])
        if np.isnan(value):
            return None
        # step times have one error, that of the rate
        bounded = f"{variant}.tokens_per_s" if metric == "tpot_s" else name
        if f"{bounded}_low" not in sweep.columns:
            return value
        low, high = (float(sweep[f"{bounded}_{end}"][row] / sweep[bounded][row]) for end in ("low", "high"))
        return Interval(value=value, low=value * low, high=value * high)

    def chosen(self) -> list[int]:
        """Return the points that differ most in what they gain and how fast they are, in the grid's order."""
        rows = self.able
        if len(rows) <= SHOWN:
            return list(map(int, rows))
        names = [f"{self.base}.tokens_per_s", *(f"{name}.speedup" for name in self.compared)]
        figures = np.log([self.answer[name][rows] for name in names])
        spread = np.ptp(figures, axis=1, keepdims=True)
        figures = figures / np.where(spread > 0.0, spread, 1.0)
        picked = list(dict.fromkeys(self.ends()))
        apart = np.full(len(rows), np.inf)
        for at in picked:
            apart = np.minimum(apart, _distance(figures, at))
        while len(picked) < SHOWN:
            picked.append(int(np.argmax(apart)))
            apart = np.minimum(apart, _distance(figures, picked[-1]))
        return [int(rows[at]) for at in sorted(set(picked))]

    def ends(self) -> tuple[int, int]:
        """Return the places among `able` of the least and the largest gain, or rate of standard."""
        name = f"{self.leading}.speedup" if self.leading else f"{self.base}.tokens_per_s"
        values = self.answer[name][self.able]
        return int(np.argmin(values)), int(np.argmax(values))

    def table(self, rows: Sequence[int], *, whole: bool = False) -> WholeTable:
        """Return a table of what varies and what was computed; if `whole`, with why points have no figures."""
        sweep, base = self.answer, self.base

        def figure(variant: str, metric: str, name: str, heading: str, decimals: int | None = None) -> Column[int]:
            def read(row: int) -> Any:
                return None if sweep[PROBLEM][row] else self.figure_of(row, variant, metric)

            return Column(name, read, heading, decimals=decimals)

        compared = [name for name in sweep.variants if name != "standard"] if whole else self.compared
        price = [figure(base, PRICE, "", "$/Mtoken")] if f"{base}.{PRICE}" in sweep.columns else []
        columns = [
            *(self._field(name) for name in sweep.varied),
            *(figure(name, "speedup", "", f"{wiring_label(name)}", 2) for name in compared),
            *price,
            figure(base, "tokens_per_s", "", f"{base} tok/s"),
            figure(base, "tpot_s", "tpot_s", "TPOT"),
            *([figure(base, "ttft_s", "ttft_s", "TTFT")] if whole else []),
        ]
        if whole and not sweep.feasible.all():
            columns.append(Column("", lambda row: str(sweep[PROBLEM][row]), PROBLEM))
        return table_of(columns, rows, left=len(sweep.varied), wrapped=(PROBLEM,), width=0 if whole else WIDTH)

    def _field(self, name: str) -> Column[int]:
        """Return the column of a field that varies, in one unit."""
        sweep = self.answer
        unit, values = axis_values(name, sweep[name], sweep.units[name])
        heading = f"{field_label(name)} [{unit}]" if unit else field_label(name)
        return Column("", lambda row: f"{values[row]:.4g}" if values.dtype.kind == "f" else str(values[row]), heading)

    def place(self, row: int) -> str:
        """Return a point as text, by the fields that vary."""
        sweep = self.answer
        return ", ".join(
            f"{field_label(name)} {field_text(name, _plain(sweep[name][row]), sweep.units[name])}"
            for name in sweep.varied
        )

    def _brief(self) -> Brief:
        sweep, able = self.answer, len(self.able)
        rows = self.chosen()
        hidden = len(sweep) - len(rows)
        more = counted_text(hidden, "more point")
        if len(sweep) > MAX_ROWS:
            more = f"the first {MAX_ROWS} points (--csv and --save: all)"
        confidence = next(iter(self.notes.confidences.values()), None)
        asked = [asked_text(confidence.scenario, varied=sweep.varied)] if confidence else []
        if len(sweep) > 1:
            asked.append(f"{len(sweep):,} points" + (f", {able:,} can run" if able < len(sweep) else ""))
        return Brief(
            sentence=self._verdict(),
            asked="; ".join(asked),
            table=self.table(rows) if rows else None,
            remarks=list(self._remarks()),
            more=more if hidden else "",
        )

    def _verdict(self) -> str:
        if not len(self.able):
            return "This cannot run." if len(self.answer) == 1 else f"None of {len(self.answer):,} points can run."
        least, most = (int(self.able[at]) for at in self.ends())
        name, metric = (self.leading, "speedup") if self.leading else (self.base, "tokens_per_s")
        subject = f"{wiring_label(name, sentence=True)}'s {'speedup' if self.leading else 'tok/s'}"
        low, high = (self.figure_of(row, name, metric) for row in (least, most))
        if low == high:
            where = "at every point" if len(self.able) > 1 else "at the only point" if len(self.answer) > 1 else "here"
            return f"{subject}: {_text(low, metric)} {where}."
        tie = ", overlapping" if isinstance(low, Interval) and low.high >= high.low else ""
        return f"{subject}: {_text(low, metric)} to {_text(high, metric)}{tie}; most at {self.place(most)}."

    def _remarks(self) -> Iterator[Remark]:
        sweep = self.answer
        problems = np.flatnonzero(~sweep.feasible)
        if len(problems):
            first = int(problems[0])
            reasons = len(set(sweep[PROBLEM][problems].tolist()))
            others = f" ({reasons} different reasons)" if reasons > 1 else ""
            where = f" {self.place(first)}" if sweep.varied else ""
            count = f"{len(problems):,} point{'s' if len(problems) != 1 else ''}"
            said = f"{count}{others}:{where} {sweep[PROBLEM][first]}."
            yield Remark("left out", said)
        if confidences := self.notes.confidences:
            yield Remark("evidence", evidence_text(*confidences.values(), wirings=self.compared))
        if not sweep.options.intervals:
            yield Remark("left out", "Intervals: --set intervals=true adds them, and takes longer.")

    def details(self) -> RenderableType:
        rows = range(min(len(self.answer), MAX_ROWS))
        rest = len(self.answer) - len(rows)
        after = [Text(f"and {rest:,} more: --csv and --save write all")] if rest else []
        return Group(self.table(rows, whole=True), *after)

    def values(self) -> Document:
        sweep = self.answer
        columns = [values.tolist() for values in sweep.columns.values()]
        rows = [dict(zip(sweep.columns, row, strict=True)) for row in zip(*columns, strict=True)]
        return Document.of_rows({"varied": list(sweep.varied), "variants": list(sweep.variants)}, rows)


def _distance(figures: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    distance: NDArray[np.float64] = np.abs(figures - figures[:, at : at + 1]).sum(axis=0)
    return distance


def _text(figure: Any, metric: str) -> str:
    if not isinstance(figure, Interval):
        return f"{figure:.2f}x" if metric == "speedup" else number_text(figure)
    value, _, ends = interval_text(figure, decimals=2 if metric == "speedup" else None).partition(" ")
    return f"{value}{'x' if metric == 'speedup' else ''} {ends}".rstrip()


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


# speedup above which the axis is logarithmic: an upper bound would press all others flat
_LOG_SPEEDUP = 3.0
# names that have room below a map on a phone
_COMPACT_NAMES = 5
# cells of a map that have room for numbers
_NUMBERED_CELLS = 200
# around a number
_NOW_RING = {"color": "#56B4E9", "size": 38, "symbol": "circle-open", "line": {"width": 3}}


def sweep_figure(table: SweepTable, over: str = "standard") -> Figure:
    """Draw lines along a sweep's field, or a map of speedup over two; raise UsageError for more or fewer."""
    if len(table.varied) == 1:
        return speedup_lines(table)
    if len(table.varied) == 2:
        return speedup_map(table, over=over)
    names = ", ".join(map(field_label, table.varied)) or "none"
    raise UsageError(
        f"{len(table.varied)} fields vary ({names}): a figure shows one or two", hint="hold the others at one value"
    )


def speedup_lines(
    table: SweepTable, *, compact: bool = False, now: tuple[float, Mapping[str, float]] | None = None
) -> Figure:
    """Draw every variant's speedup over standard along the one field that varies.

    `compact` is for a part of a page: the axis has its title in words. A scenario to mark, `now`, is its value of the
    field, and its speedups by variant.
    """
    (field,) = table.varied
    typed = table.units[field]
    values, axis = value_axis(field, table[field], title=field_title(field) if compact else "", typed=typed)
    compared = [variant for variant in table.variants if variant != "standard"]
    data: list[dict[str, Any]] = []
    for variant in compared:
        # the limit's interval would hide the others
        if variant != NO_COMMUNICATION and f"{variant}.speedup_low" in table.columns:
            edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            inside = {"fill": "tonexty", "fillcolor": _pale(variant_colour(variant))}
            data.append({**edge, "x": values, "y": table[f"{variant}.speedup_high"]})
            data.append({**edge, "x": values, "y": table[f"{variant}.speedup_low"], **inside})
    for variant in compared:
        limit = {"dash": "dash", "width": 1.5} if variant == NO_COMMUNICATION else {}
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(table) <= MAX_TICKS else "lines",
                "name": wiring_label(variant).strip("()") if compact else variant,
                "x": values,
                "y": table[f"{variant}.speedup"],
                "line": {"color": variant_colour(variant), "width": 2.5, **limit},
                "marker": {"size": 7},
                "connectgaps": False,
                "hovertemplate": "%{y:.2f}x",
            }
        )
    layout = {"xaxis": axis, "yaxis": {"title": {"text": "speedup over standard"}}, "hovermode": "x unified"}
    title = f"Speedup over standard by {field_label(field)}"
    drawn = figure(title, _held(table), data=data, layout=layout)
    level = {"color": variant_colour("standard"), "dash": "dot", "width": 2}
    drawn.add_hline(y=1.0, line=level, annotation_text="" if compact else "standard", annotation_position="bottom left")
    if now is not None:
        value, speedups = now
        # in the unit of the axis, which the largest value decides
        unit, (place, _) = axis_values(field, [value, float(np.max(table[field]))], typed)
        drawn.update_layout(xaxis={"unifiedhovertitle": {"text": f"%{{x:.3~g}} {unit}"}})
        drawn.add_vline(x=place, line={"color": NOW_MARKER["color"], "width": 1, "dash": "dash"})
        drawn.add_scatter(
            x=[place] * len(speedups),
            y=list(speedups.values()),
            mode="markers",
            marker={**NOW_MARKER, "color": [variant_colour(variant) for variant in speedups]},
            name=f"now: {field_text(field, value, typed)}",
            hoverinfo="skip",
            showlegend=False,
        )
    feasible = [value for variant in compared for value in table[f"{variant}.speedup"].tolist() if value > 0.0]
    if feasible and max(feasible) > _LOG_SPEEDUP:
        drawn.update_layout(yaxis=log_axis("speedup over standard", [min(1.0, *feasible), max(feasible)]))
        # an annotation's place on such an axis is the logarithm
        drawn.update_annotations(y=0.0)
    return drawn


def _pale(colour: str) -> str:
    """Return a colour of six hexadecimal digits as that of a band."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def speedup_map(
    table: SweepTable,
    variant: str = "ladder",
    over: str = "standard",
    *,
    compact: bool = False,
    now: tuple[float, float] | None = None,
) -> Figure:
    """Draw one variant's speedup over another as a heat map of the two fields that vary, with a line where it is 1.

    `compact` is for a part of a page: cells without gaps, axes with titles in words, few names below. A scenario to
    mark, `now`, is its values to the right and upwards.
    """
    for name in (variant, over):
        if name not in table.variants:
            raise UsageError(f"the sweep holds no {name}", hint=f"it holds {', '.join(table.variants)}")
    row_field, column_field = table.varied
    rows, columns = (list(dict.fromkeys(table[field].tolist())) for field in (row_field, column_field))
    row_texts, column_texts = (
        [field_text(field, value, table.units[field]) for value in values]
        for field, values in ((row_field, rows), (column_field, columns))
    )
    # rows of a sweep lie in the grid's order
    ratio = (table[f"{variant}.tokens_per_s"] / table[f"{over}.tokens_per_s"]).reshape(len(rows), len(columns))
    hovers = [
        [f"{field_label(column_field)} {column}, {field_label(row_field)} {row}" for column in column_texts]
        for row in row_texts
    ]
    # cells of equal size, whatever the values: a sweep's steps are of one factor or of one width
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "z": ratio,
            # on both sides of 1 two hues that part there
            **({"zmid": 1.0, "colorscale": "PuOr_r"} if np.nanmin(ratio) < 1.0 else {"colorscale": "Cividis"}),
            "colorbar": {"thickness": 10} if compact else {"title": {"text": "speedup"}, "thickness": 16},
            "texttemplate": "%{z:.2f}" if ratio.size <= _NUMBERED_CELLS else "",
            "customdata": hovers,
            "hovertemplate": "%{customdata}<br>speedup %{z:.3f}<extra></extra>",
            "xgap": 0 if compact else 1,
            "ygap": 0 if compact else 1,
        }
    ]
    if np.nanmin(ratio) < 1.0 < np.nanmax(ratio):
        data.append(
            {
                "type": "contour",
                "name": "break-even",
                "z": ratio,
                "contours": {"start": 1.0, "end": 1.0, "size": 1.0, "coloring": "none"},
                # seen on pale cells in both colour schemes
                "line": {"color": "#777777", "width": 3, "smoothing": 0},
                "showscale": False,
                "hoverinfo": "skip",
                "showlegend": True,
            }
        )
    if now is not None:
        marker = NOW_MARKER if ratio.size > _NUMBERED_CELLS else _NOW_RING
        place = {"x": [_place(now[0], columns)], "y": [_place(now[1], rows)], "marker": marker}
        data.append(
            {"type": "scatter", "mode": "markers", "name": "now", "hoverinfo": "skip", "showlegend": False, **place}
        )
    x_axis, y_axis = (
        _cell_axis(field, values, table.units[field], compact=compact)
        for field, values in ((column_field, columns), (row_field, rows))
    )
    if compact:
        step = -(-len(x_axis["tickvals"]) // _COMPACT_NAMES)
        x_axis |= {"tickangle": 0, **{name: x_axis[name][::step] for name in ("tickvals", "ticktext")}}
    layout = {"xaxis": x_axis, "yaxis": y_axis, "plot_bgcolor": "#F5F5F5"}
    return figure(f"Speedup of {variant} over {over}", _held(table), data=data, layout=layout)


def _cell_axis(field: str, values: list[Any], typed: str, *, compact: bool) -> dict[str, Any]:
    """Return an axis with one cell per value, or with round numbers between cells for many ascending values."""
    title = field_title(field) if compact else field_label(field)
    unit, numbers = axis_values(field, values, typed)
    axis: dict[str, Any] = {"tickmode": "array", "showgrid": False}
    if len(values) > MAX_TICKS and numbers.dtype.kind in "if" and numbers[0] > 0 and (np.diff(numbers) > 0).all():
        ticks = round_ticks(numbers[0], numbers[-1])
        places = [_place(tick, numbers) for tick in ticks]
        names = [f"{tick:.4g}" for tick in ticks]
        return {**axis, "title": {"text": with_unit(title, unit)}, "tickvals": places, "ticktext": names}
    cells = range(0, len(values), -(-len(values) // 16))
    names = [field_text(field, values[cell], typed) for cell in cells]
    return {**axis, "title": {"text": title}, "tickvals": list(cells), "ticktext": names}


def _place(value: float, ascending: Any) -> float:
    """Return where a value lies among equal cells."""
    return float(np.interp(np.log(value), np.log(ascending), np.arange(len(ascending))))


def _held(table: SweepTable) -> str:
    """Return what does not vary in a sweep, as text."""
    names = ("model", "cluster", "nodes", "tp", "batch", "prompt", "gen", "dtype", "stack")
    parts = []
    for name in names:
        values = set(table[name].tolist()) - {None}
        if name not in table.varied and len(values) == 1:
            value = values.pop()
            parts.append(str(value) if ARGUMENTS[name].kind is not int else f"{name} {value}")
    return ", ".join([*parts, batching_label(table["batching"])])
