"""The answer of `validate` for results of load generators: measured loads next to simulations of the same requests."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document, Notes
from ladder_sim.display.labels import asked_text, evidence_text, interval_text
from ladder_sim.report.columns import Column, fields_of, number_text, percent, table_of
from ladder_sim.report.console import WholeTable, table
from ladder_sim.report.errors import error_columns, error_fields, left_out, loads_figure, quantity_columns
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.serving import Traffic
from ladder_sim.serving.requests.result import Result
from ladder_sim.units import counted_text, step_for
from ladder_sim.validation.compare import ErrorStats, Quantity
from ladder_sim.validation.load import DEPLOYMENT, GROWS, LoadComparison, LoadValidation, summarize_loads

FIGURE_COLUMNS = ("figure", "measured", "predicted (90 %)", "error", "inside")
# loads of which --explain shows each figure
_SHOWN_LOADS = 4
# figures of the table, the first of these that were measured
_SHOWN_FIGURES = 4
_WANTED = ("tpot_mean_s", "ttft_mean_s", "tpot_p99_s", "ttft_p99_s", "tokens_per_s", "e2e_mean_s", "requests_per_s")
_RATES = {"requests_per_s": "requests/s", "tokens_per_s": "tok/s", "tokens_per_s_per_gpu": "tok/s per GPU"}

# in JSON and CSV, of one figure
VALUES: Sequence[Column[Quantity | None]] = quantity_columns("", lambda each: each)

# in a table: a figure and its errors over several loads
SHOWN: Sequence[Column[tuple[str, ErrorStats]]] = (
    Column("", lambda each: _title(each[0]), "figure"),
    Column("", lambda each: str(each[1].rows), "loads"),
    *error_columns(lambda each: each[1]),
    Column("", lambda each: percent(each[1].bias, sign="+"), "bias"),
)


class LoadsReport(Report[LoadValidation]):
    """How a comparison with measured loads looks."""

    figures: ClassVar = {"times": lambda self: loads_figure(self.answer)}

    @property
    def notes(self) -> Notes:
        loads = self.answer
        cautions = tuple(dict.fromkeys(text for each in loads for text in each.cautions))
        confidences = {f"load {number}": each.confidence for number, each in enumerate(loads, 1) if each.confidence}
        return Notes(confidences=confidences, about=cautions)

    @property
    def _timed(self) -> list[LoadComparison]:
        return [each for each in self.answer if each.scenario and each.figures]

    def _brief(self) -> Brief:
        loads, timed = self.answer, self._timed
        remarks = list(left_out((each.note for each in loads if each.note), len(loads), "loads"))
        if grown := sum(not each.stable for each in timed):
            text = f"of {counted_text(grown, 'load')} {GROWS}: TTFT and E2E there are not counted."
            remarks.append(Remark("apart", text))
        if confidences := [each.confidence for each in timed if each.confidence]:
            remarks.append(Remark("evidence", evidence_text(confidences[0])))
        return Brief(
            sentence=_sentence(summarize_loads(timed), len(loads)),
            asked=_asked(loads.name, timed),
            table=self._table(),
            remarks=remarks,
        )

    def _table(self) -> WholeTable | None:
        """Return a table of the main figures: measured and predicted ones of one load, errors of several loads."""
        timed = self._timed
        errors = summarize_loads(timed)
        figures = timed[0].figures if len(timed) == 1 else errors
        names = sorted(figures, key=lambda name: _WANTED.index(name) if name in _WANTED else len(_WANTED))
        names = names[:_SHOWN_FIGURES]
        if len(timed) == 1:
            return table(FIGURE_COLUMNS, [_shown_cells(name, timed[0].figures[name]) for name in names])
        return table_of(SHOWN, [(name, errors[name]) for name in names]) if names else None

    def details(self) -> RenderableType:
        """Return every figure of few loads, errors by figure of many, and what is not predicted, with the reason."""
        timed = self._timed
        parts: list[RenderableType] = []
        for each in timed[:_SHOWN_LOADS]:
            assert each.scenario is not None
            rows = [_shown_cells(figure, quantity) for figure, quantity in each.figures.items()]
            where = f"{asked_text(each.scenario).partition(';')[0]}; {each.result.tool}, {_requests(each.result)}"
            parts += [Text(where), table(FIGURE_COLUMNS, rows), Text()]
        if len(timed) > 1:
            if len(timed) > _SHOWN_LOADS:
                parts += [Text(f"{len(timed) - _SHOWN_LOADS} further loads: --json and --csv have them"), Text()]
            errors = list(summarize_loads(timed).items())
            parts += [Text("errors of all loads"), table_of(SHOWN, errors), Text()]
        notes = Counter(each.note for each in self.answer if each.note)
        parts += [Text(f"{counted_text(count, 'load')}: {note}") for note, count in notes.items()]
        return Group(*parts)

    def values(self) -> Document:
        """Return a row for each figure of each load, seconds or fractions, and errors by figure."""
        loads = self.answer
        rows: list[dict[str, Any]] = []
        for number, each in enumerate(loads, 1):
            scenario = each.scenario.fields() if each.scenario else {}
            load = {
                "load": number,
                "tool": each.result.tool,
                "source": each.result.server.get("source", ""),
                **{name: scenario.get(name) for name in DEPLOYMENT},
                "concurrency": each.result.concurrency or None,
            }
            figures = each.figures or dict.fromkeys(each.result.figures)
            for figure, quantity in figures.items():
                fields = {**fields_of(VALUES, quantity), "measured": each.result.figures[figure]}
                grows = GROWS if quantity and figure not in each.judged else ""
                rows.append({**load, "figure": figure, **fields, "note": each.note or grows})
        errors = {figure: error_fields(each) for figure, each in summarize_loads(loads).items()}
        return Document.of_rows({"batching": "continuous", "dataset": loads.name, "summary": errors}, rows)


def _sentence(errors: Mapping[str, ErrorStats], count: int) -> str:
    """Return how far off the mean TPOT and TTFT are, or what was measured instead, as a sentence."""
    names = [name for name in _WANTED[:2] if name in errors] or list(errors)[:1]
    if not names:
        return f"None of the {count} loads could be predicted."
    first, *others = names
    loads = max(errors[name].rows for name in names)
    if loads == 1:
        said = [f"{_spoken(first)} is predicted {_apart(errors[first].bias)}"]
        said += [f"{_spoken(name)} {_apart(errors[name].bias)}" for name in others]
        end = ""
    else:
        said = [f"{_spoken(first)} is off by {percent(errors[first].mean_error)}"]
        said += [f"{_spoken(name)} by {percent(errors[name].mean_error)}" for name in others]
        end = f" on average over {loads} loads"
    text = ", ".join(said)
    return f"{text[0].upper()}{text[1:]}{end}."


def _spoken(name: str) -> str:
    """Return a figure as it stands in a sentence: "mean TPOT"."""
    metric, _, statistic = _title(name).partition(" ")
    return f"{statistic} {metric}" if statistic == "mean" else _title(name)


def _apart(error: float) -> str:
    return f"{percent(abs(error))} too {'high' if error > 0.0 else 'low'}"


def _asked(name: str, timed: Sequence[LoadComparison]) -> str:
    """Return a description of the first load, and how many more there are."""
    first = next(((each.result, each.scenario) for each in timed if each.scenario), None)
    if first is None:
        return name
    result, scenario = first
    measured = f"{result.tool}, {_requests(result)}"
    if len(timed) > 1:
        tools = {each.result.tool for each in timed}
        measured = f"first of {len(timed)} loads of {result.tool if len(tools) == 1 else name}"
    return f"{asked_text(scenario).partition(';')[0]}; {measured}"


def _requests(result: Result) -> str:
    come = "as recorded"
    if isinstance(result.requests, Traffic):
        come = result.requests.arrivals
    elif result.concurrency:
        come = f"{result.concurrency} in flight"
    return f"{result.answered} requests, {come}"


def _shown_cells(name: str, quantity: Quantity) -> tuple[str, ...]:
    is_time = name.endswith("_s") and not name.endswith("per_s")
    scale, unit = step_for(quantity.measured, "s") if is_time else (1.0, "")
    title = f"{_title(name)} [{unit}]" if unit else _title(name)
    values = number_text(quantity.measured / scale), interval_text(quantity.predicted, scale=scale)
    return title, *values, percent(quantity.error, sign="+"), "yes" if quantity.inside else "no"


def _title(name: str) -> str:
    """Return a figure as a heading: "TTFT p99", "tok/s"."""
    metric, _, statistic = name.removesuffix("_s").partition("_")
    return _RATES.get(name, f"{metric.upper()} {statistic}")
