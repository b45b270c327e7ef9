"""A figure in the common style, and its axes."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from ladder_sim.report.fields import scaled, spans_much
from ladder_sim.report.plots import template
from ladder_sim.specs.scenario import Scenario

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_TICKS = 12
# values of an axis that are all named


def figure(
    title: str, subtitle: str = "", *, data: Sequence[Mapping[str, Any]] = (), layout: Mapping[str, Any] | None = None
) -> "go.Figure":
    """A figure with a title, and what is in it from the start: plotly takes twice as long to add the same later."""
    import plotly.graph_objects as go

    below = f"<br><span style='font-size:13px;color:#595959'>{subtitle}</span>" if subtitle else ""
    return go.Figure(data, {"template": template(), "title": {"text": f"{title}{below}"}, **(layout or {})})


def asked(scenario: Scenario) -> str:
    """What was asked, for a subtitle."""
    return (
        f"{scenario.model.name}, TP {scenario.tp} on {scenario.cluster.name}, {work(scenario)}, {scenario.stack.name}"
    )


def work(scenario: Scenario) -> str:
    """The part of it that is the workload."""
    workload = scenario.workload
    return f"batch {workload.batch}, prompt {workload.prompt}, {workload.gen} new tokens, {workload.dtype}"


def value_axis(name: str, values: Any) -> tuple[Any, dict[str, Any]]:
    """Values of a field as they are drawn, and the axis for them."""
    title, drawn = scaled(name, values)
    axis: dict[str, Any] = {"title": {"text": title}}
    if drawn.dtype.kind not in "if":
        return [str(value) for value in drawn], {**axis, "type": "category"}
    ticks = sorted(set(drawn.tolist()))
    if spans_much(drawn):
        axis["type"] = "log"
        ticks = ticks if len(ticks) <= MOST_TICKS else round_ticks(ticks[0], ticks[-1])
    if len(ticks) <= MOST_TICKS:
        axis |= _ticks_at(ticks)
    return drawn, axis


def log_axis(title: str, values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis with some room on both sides."""
    low, high = min(values), max(values)
    margin = 0.08 * max(log10(high / low), 0.1)
    return {
        "title": {"text": title},
        "type": "log",
        "range": [log10(low) - margin, log10(high) + margin],
        **_ticks_at(round_ticks(low, high)),
    }


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, at least three where there are so many, finer where the span is short.

    Examples
    --------
    >>> round_ticks(3.0, 80.0)
    [5.0, 10.0, 20.0, 50.0]
    """
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    found: list[float] = []
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), [tenth / 10 for tenth in range(10, 100, 2)]):
        found = [digit * 10.0**decade for decade in decades for digit in digits]
        found = [tick for tick in found if low * 0.999 <= tick <= high * 1.001]
        if len(found) > 2:
            break
    return found


def _ticks_at(values: Sequence[float]) -> dict[str, Any]:
    return {"tickmode": "array", "tickvals": list(values), "ticktext": [f"{value:.4g}" for value in values]}
