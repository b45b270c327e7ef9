"""The top of the page: what each variant does, whether it fits, and the sources of the numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from ladder_sim.analysis.advise import SERVING, TTFT_BOUND
from ladder_sim.analysis.compare import Candidate, Comparison
from ladder_sim.confidence import Confidence
from ladder_sim.display.document import scenario_fields
from ladder_sim.display.labels import (
    field_text,
    field_title,
    interval_text,
    kind_label,
    next_to_label,
    validated_lines,
)
from ladder_sim.explorer.background import page_notes
from ladder_sim.explorer.controls import GLOSSARY, RATE, SLIDERS, extra, page_words
from ladder_sim.explorer.queries import Answer, Setup
from ladder_sim.graph.variants import parse
from ladder_sim.prediction import Prediction
from ladder_sim.quality.published import quality_of
from ladder_sim.report.figures.style import variant_colour
from ladder_sim.sweeps.price import PRICE_CAVEAT, token_price
from ladder_sim.units import format_bytes, format_rate, format_seconds
from ladder_sim.validation.compare import ErrorStats

_MEMORY = {"weights": "#0072B2", "KV cache": "#E69F00", "activations": "#009E73", "stack": "#8A939E"}
_SOURCES = {
    "measured": "#009E73",
    "fitted": "#0072B2",
    "transferred": "#56B4E9",
    "roofline": "#E69F00",
    "stack": "#8A939E",
}

# requests per second where the rate's slider stands at first
USUAL_RATE = 10.0
# by slider: its value, and the same as the reader would type it
ControlValues = dict[str, dict[str, float | str]]


def cards(answer: Answer) -> list[html.Article]:
    """Return a card for each variant."""
    return [_card(prediction, answer) for prediction in answer.predictions.values()]


def quality(answer: Answer) -> list[html.P]:
    """Return a line for each wiring with a published quality, that is, one that models must be trained with."""
    known = [quality_of(name) for name in answer.predictions]
    return [html.P(f"{each.sentence[0].upper()}{each.sentence[1:]}.") for each in known if each]


def memory_bar(answer: Answer) -> list[Component]:
    """Return a bar of what one GPU's memory holds."""
    memory = next(iter(answer.predictions.values())).memory
    full = max(memory.capacity_bytes, memory.total_bytes)
    free = memory.capacity_bytes - memory.total_bytes
    left = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} too much"
    total = f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)}, {left}"
    parts = {name: (size / full, _MEMORY[name], format_bytes(size)) for name, size in memory.part_bytes.items()}
    return [_heading("Memory of one GPU", total), *_shares(parts)]


def evidence(answer: Answer, error: ErrorStats | None) -> list[Component]:
    """Return the sources of the numbers, warnings, and the error against published runs."""
    standard, confidence = answer.predictions["standard"], answer.predictions.confidence
    shares: dict[str, float] = {}
    for (source, _), seconds in standard.breakdown.sources_s.items():
        shares[source] = shares.get(source, 0.0) + seconds / standard.request_s
    shares["stack"] = max(0.0, 1.0 - sum(shares.values()))
    sources = {
        name: (shares[name], colour, f"{shares[name]:.0%}. {GLOSSARY[name]}")
        for name, colour in _SOURCES.items()
        if shares.get(name, 0.0) > 0.0005
    }
    stack = answer.scenario.stack.name
    if error is None or not confidence.validated["gpu"]:
        where = f"{stack} on {answer.scenario.cluster.gpu.name}"
        accuracy = f"No published run of {where} to compare with; trust the ranking more than the values."
    else:
        links = "with" if answer.scenario.p2p else "without"
        accuracy = (
            f"Over {error.rows} published 70B runs of {stack} {links} peer-to-peer links that no fit has seen, the "
            f"error of ladder's speedup is {error.mean_error:.1%} on average and {error.max_error:.1%} at most; "
            f"{error.inside:.0%} lie in the 90 % interval."
        )
    return [
        _heading(f"{confidence.measured_fraction:.0%} of standard's time is measured", f"profile {confidence.profile}"),
        *_shares(sources),
        _runs(confidence),
        html.P(accuracy),
        warnings(answer.notes.warnings),
    ]


def messages(answer: Answer) -> list[Component]:
    """Return a table of every variant's collectives in most layers, and whether each can be hidden."""
    rows = []
    for name, prediction in answer.predictions.items():
        usual = {each.name: each for each in prediction.collectives}
        for each in prediction.collectives:
            usual[each.name] = max(usual[each.name], each, key=lambda collective: collective.count)
        for number, each in enumerate(usual.values()):
            variant = [] if number else [html.Th(name, scope="rowgroup", rowSpan=len(usual))]
            hidden = f"{each.hidden_s / each.seconds:.0%}"
            cells = (each.name, hidden, next_to_label(each), each.needed_by or "the next step", each.after)
            rows.append(html.Tr([*variant, *map(html.Td, cells)]))
    titles = ("", "message", "hidden", "can run next to", "needed by", "waits for")
    head = html.Tr([html.Th(title, scope="col") for title in titles])
    return [html.Table([html.Thead(head), html.Tbody(rows)], className="compare")] if rows else [html.P("None.")]


def notes(answer: Answer) -> html.Ul:
    """Return what the reader of latency, throughput and prices should know."""
    static = answer.scenario.workload.concurrency is None
    bounded = [TTFT_BOUND] if static and answer.state.max_ttft else []
    priced = [PRICE_CAVEAT] if answer.state.price is not None else []
    return warnings([*([SERVING] if static else []), *bounded, *priced])


def control_values(setup: Setup) -> ControlValues:
    """Return the scenario's value for each slider: as a number, and as the reader would type it."""
    values: ControlValues = {}
    for slider in SLIDERS:
        value = setup.current(slider.field)
        text = field_text(slider.field, int(value) if slider.doubling else value)
        values[slider.key] = {"value": value, "text": text}
    rate = setup.state.rate or USUAL_RATE
    return values | {RATE.key: {"value": rate, "text": f"{rate:g}"}}


def comparison(candidates: Comparison) -> list[Component]:
    """Return a table of what differs between pinned scenarios and of every variant, then runs and warnings."""
    rows = [
        html.Tr([html.Th(name, scope="row"), *(html.Td(text) for text in texts)])
        for name, texts in {**_differences(candidates), **_results(candidates)}.items()
    ]
    head = html.Tr([html.Th(""), *(html.Th(candidate.name, scope="col") for candidate in candidates)])
    table = html.Table([html.Thead(head), html.Tbody(rows)], className="compare")
    notes = page_notes(candidates.notes)
    return [table, _runs(*notes.confidences.values()), warnings(notes.warnings)]


def _card(prediction: Prediction, answer: Answer) -> html.Article:
    standard = prediction.variant == "standard"
    gain, rate, limit, parts = prediction.speedup, prediction.tokens_per_s, prediction.limited_by, prediction.breakdown
    lines = {
        "tok/s": interval_text(rate, format_rate),
        "TTFT": _bounded(prediction.ttft_s, answer.state.max_ttft_s),
        "TPOT": "-" if prediction.tpot_s is None else _bounded(prediction.tpot_s, answer.state.max_tpot_s),
        "hidden": f"{parts.hidden_share:.0%} of {format_seconds(parts.comm_s)}" if parts.comm_s else "-",
        "limit": f"{kind_label(limit)} {prediction.limit_share(limit):.0%}",
    }
    if answer.state.price is not None:
        lines["$/Mtok"] = f"{token_price(answer.state.price, answer.scenario.plan.gpus, rate.value):.2f}"
    return card(
        prediction.variant,
        "1.00x" if standard else f"{gain.value:.2f}x",
        "baseline" if standard else f"90 %: {f'{gain.low:.2f}-{gain.high:.2f}' if gain.known else 'not known'}",
        lines,
        chosen=prediction is answer.chosen and not standard,
    )


def card(variant: str, gain: str, below: str, lines: Mapping[str, Any], *, chosen: bool = False) -> html.Article:
    """Return a card of a variant: what it gains, a line below that, and further figures by name."""
    terms = {name: html.Dt(name, **(extra("title", GLOSSARY[name]) if name in GLOSSARY else {})) for name in lines}
    return html.Article(
        [
            html.H3(variant, title=parse(variant).sentence),
            html.Div(gain, className="gain"),
            html.Div(below, className="interval"),
            html.Dl([html.Div([terms[name], html.Dd(text)]) for name, text in lines.items()]),
        ],
        className="card chosen" if chosen else "card",
        style={"--variant": variant_colour(variant)},
        **extra("data-variant", variant),
    )


def _bounded(seconds: float, bound_s: float) -> str | list[Component | str]:
    """Return a time in seconds as text, marked if it exceeds its bound."""
    text = format_seconds(seconds)
    return text if seconds <= bound_s else [html.Mark(f"over {format_seconds(bound_s)}"), f" {text}"]


def _runs(*confidences: Confidence) -> html.P:
    return html.P(page_words(" ".join(validated_lines(*confidences))))


def warnings(texts: Sequence[str]) -> html.Ul:
    """Return warnings as a list."""
    return html.Ul([html.Li(page_words(text)) for text in texts], className="warnings")


def _shares(parts: Mapping[str, tuple[float, str, str]]) -> list[Component]:
    """Return a bar of shares, and its legend: share, colour and text by name."""
    label = ", ".join(f"{name} {share:.0%}" for name, (share, _, _) in parts.items())
    bar = [
        html.Span(style={"width": f"{100 * share:.2f}%", "background": colour}) for share, colour, _ in parts.values()
    ]
    legend = [
        html.Li([html.Span(className="dot", style={"background": colour}), html.B(name), f" {text}"])
        for name, (_, colour, text) in parts.items()
    ]
    return [
        html.Div(bar, className="bar", role="img", **extra("aria-label", label)),
        html.Ul(legend, className="legend"),
    ]


def _heading(title: str, text: str) -> html.Div:
    return html.Div([html.Strong(title), html.Span(text)], className="barhead")


def _differences(candidates: Sequence[Candidate]) -> dict[str, list[str]]:
    columns = []
    for candidate in candidates:
        scenario = candidate.scenario
        column = {name: field_text(name, value) for name, value in scenario_fields(scenario).items()}
        for slider in SLIDERS:
            if "." in slider.field:
                typed = scenario.settings.get(slider.field, "")
                column[slider.field] = field_text(slider.field, scenario.setting(slider.field), typed)
        columns.append(column)
    return {
        field_title(name): [column[name] for column in columns]
        for name in columns[0]
        if len({column[name] for column in columns}) > 1
    }


def _results(candidates: Sequence[Candidate]) -> dict[str, list[str]]:
    rows = {}
    for variant in candidates[0].predictions:
        predictions = [candidate.predictions[variant] for candidate in candidates]
        rows[f"{variant}: tok/s"] = [format_rate(prediction.rate) for prediction in predictions]
        if variant != "standard":
            rows[f"{variant}: speedup"] = [prediction.speedup.text for prediction in predictions]
        prices = [candidate.token_price(variant) for candidate in candidates]
        if any(prices):
            rows[f"{variant}: $/Mtok"] = ["-" if price is None else f"{price:.2f}" for price in prices]
    return rows
