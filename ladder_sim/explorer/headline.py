"""The top of the page: what each variant does, whether it fits, and what the numbers rest on."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from ladder_sim.analysis.compare import Candidate
from ladder_sim.explorer.controls import SLIDERS, extra
from ladder_sim.explorer.quantities import field_of
from ladder_sim.explorer.queries import Asked, Found, validation_error
from ladder_sim.prediction import Prediction
from ladder_sim.report.export import scenario_fields
from ladder_sim.report.figures.style import variant_colour
from ladder_sim.units import format_bandwidth, format_bytes, format_count, format_seconds

_MEMORY = {"weights": "#0072B2", "kv_cache": "#E69F00", "activation": "#009E73", "overhead": "#8A939E"}
_SOURCES = {
    "measured": ("#009E73", "interpolated within measurements of this GPU and this link"),
    "fitted": ("#0072B2", "continued beyond measurements, or a formula fitted to them"),
    "transferred": ("#56B4E9", "measured elsewhere, carried over by the ratio of the formulas"),
    "roofline": ("#E69F00", "from the datasheet"),
    "stack": ("#8A939E", "waits and launches"),
}


def summary(found: Found) -> str:
    """What was asked, in a line."""
    scenario = found.scenario
    cluster, workload = scenario.cluster, scenario.workload
    nodes = scenario.nodes_used
    across = f" + {cluster.inter.fabric}" if nodes > 1 else ""
    return (
        f"{scenario.model.name}, TP {scenario.tp} on {nodes} x {scenario.ranks_per_node} {cluster.gpu.name}, "
        f"{cluster.intra.fabric}{across}; batch {workload.batch}, prompt {workload.prompt}, {workload.gen} new tokens, "
        f"{workload.dtype}; {scenario.stack.name}, all-reduce {scenario.stack.allreduce}"
    )


def cards(found: Found) -> list[html.Article]:
    """One for each variant."""
    return [_card(one, found) for one in found.predictions.values()]


def memory_bar(found: Found) -> list[Any]:
    """What one GPU holds."""
    memory = next(iter(found.predictions.values())).memory
    full = max(memory.capacity_bytes, memory.total_bytes)
    parts = {name: float(getattr(memory, f"{name}_bytes")) for name in _MEMORY}
    free = memory.capacity_bytes - memory.total_bytes
    left = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} too much"
    return [
        html.Div(
            [
                html.Strong("Memory of one GPU"),
                html.Span(f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)}, {left}"),
            ],
            className="barhead",
        ),
        _bar({name.replace("_", " "): (size / full, _MEMORY[name]) for name, size in parts.items()}),
        _legend({name.replace("_", " "): (_MEMORY[name], format_bytes(size)) for name, size in parts.items()}),
    ]


def evidence(found: Found) -> list[Any]:
    """What the numbers rest on, what to know about them, and how far published runs were missed."""
    standard = found.predictions["standard"]
    provenance = standard.confidence
    shares: dict[str, float] = {}
    for (source, _), seconds in standard.breakdown.sources_s.items():
        shares[source] = shares.get(source, 0.0) + seconds / standard.request_s
    shares["stack"] = max(0.0, 1.0 - sum(shares.values()))
    shown = {name: shares[name] for name in _SOURCES if shares.get(name, 0.0) > 0.0005}
    error = validation_error(found.scenario.stack.name, p2p=found.scenario.p2p)
    if error is None:
        judged = f"No published run of {found.scenario.stack.name} to judge by: trust the order more than the digits."
    else:
        links = "with" if found.scenario.p2p else "without"
        judged = (
            f"Against {error.rows} published 70B runs of {found.scenario.stack.name} {links} peer-to-peer links that "
            f"no fit had seen, ladder's speedup is missed by {error.mean_error:.1%} on average and "
            f"{error.max_error:.1%} at most; {error.inside:.0%} lie in the 90 % interval."
        )
    return [
        html.Div(
            [
                html.Strong(f"{provenance.measured_fraction:.0%} of standard's time is measured"),
                html.Span(f"profile {provenance.profile}"),
            ],
            className="barhead",
        ),
        _bar({name: (share, _SOURCES[name][0]) for name, share in shown.items()}),
        _legend({name: (_SOURCES[name][0], f"{share:.0%}, {_SOURCES[name][1]}") for name, share in shown.items()}),
        html.P(judged),
        html.Ul([html.Li(warning) for warning in provenance.warnings], className="warnings"),
    ]


def facts(asked: Asked) -> dict[str, Any]:
    """The scenario's value for each slider: as a number, and as the reader would type it."""
    values = {one.key: asked.current(field_of(one.key)[0]) for one in SLIDERS}
    return {key: {"value": value, "text": typed(key, value)} for key, value in values.items()}


def typed(key: str, value: float) -> str:
    """A slider's value as it may be typed.

    Examples
    --------
    >>> typed("inter.bandwidth", 5e10), typed("gpu.bf16", 9.89e14), typed("tp", 8.0)
    ('50.0 GB/s', '989 TFLOP/s', '8')
    """
    name, _ = field_of(key)
    if name.endswith("_Bps"):
        return format_bandwidth(value)
    if name.endswith("_s"):
        return format_seconds(value)
    return f"{format_count(value)}FLOP/s" if name.endswith("_flops") else str(int(value))


def comparison_table(candidates: Sequence[Candidate]) -> html.Table:
    """The pinned scenarios side by side: what differs, then every variant."""
    rows = [
        html.Tr([html.Th(name, scope="row"), *(html.Td(text) for text in texts)])
        for name, texts in {**_differences(candidates), **_results(candidates)}.items()
    ]
    head = html.Tr([html.Th(""), *(html.Th(one.name, scope="col") for one in candidates)])
    return html.Table([html.Thead(head), html.Tbody(rows)], className="compare")


def _card(one: Prediction, found: Found) -> html.Article:
    standard = one.variant == "standard"
    gain = one.speedup
    hidden = 1.0 - one.breakdown.exposed_comm_s / one.breakdown.comm_s if one.breakdown.comm_s else 0.0
    share = one.breakdown.limits_s[one.limited_by] / one.request_s
    rate = one.tokens_per_s
    lines: Mapping[str, str] = {
        "tok/s": f"{_rate(rate.value)} ({_rate(rate.low)}-{_rate(rate.high)})",
        "TTFT": format_seconds(one.ttft_s),
        "TPOT": "-" if one.tpot_s is None else format_seconds(one.tpot_s),
        "comm. hidden": f"{hidden:.0%} of {format_seconds(one.breakdown.comm_s)}" if one.breakdown.comm_s else "-",
        "limit": f"{one.limited_by.replace('_', '-')} {share:.0%}",
    }
    chosen = one is found.chosen and not standard
    return html.Article(
        [
            html.H3(one.variant),
            html.Div("1.00x" if standard else f"{gain.value:.2f}x", className="gain"),
            html.Div("baseline" if standard else f"90 %: {gain.low:.2f}-{gain.high:.2f}", className="interval"),
            html.Dl([html.Div([html.Dt(name), html.Dd(text)]) for name, text in lines.items()]),
        ],
        className="card chosen" if chosen else "card",
        style={"--variant": variant_colour(one.variant)},
        **extra("data-variant", one.variant),
    )


def _rate(rate: float) -> str:
    """Four digits, zeros at the end included, so that the ends of an interval are told alike.

    Examples
    --------
    >>> _rate(35.2), _rate(1234.5)
    ('35.20', '1234')
    """
    return f"{rate:#.4g}".rstrip(".")


def _bar(parts: Mapping[str, tuple[float, str]]) -> html.Div:
    text = ", ".join(f"{name} {share:.0%}" for name, (share, _) in parts.items())
    return html.Div(
        [html.Span(style={"width": f"{100 * share:.2f}%", "background": colour}) for share, colour in parts.values()],
        className="bar",
        role="img",
        **extra("aria-label", text),
    )


def _legend(parts: Mapping[str, tuple[str, str]]) -> html.Ul:
    return html.Ul(
        [
            html.Li([html.Span(className="dot", style={"background": colour}), html.B(name), f" {text}"])
            for name, (colour, text) in parts.items()
        ],
        className="legend",
    )


def _differences(candidates: Sequence[Candidate]) -> dict[str, list[str]]:
    every = [scenario_fields(one.scenario) for one in candidates]
    for fields, one in zip(every, candidates, strict=True):
        cluster = one.scenario.cluster
        for tier in ("intra", "inter"):
            link = getattr(cluster, tier)
            fields[f"{tier} bandwidth"] = format_bandwidth(link.bandwidth_Bps)
            fields[f"{tier} latency"] = format_seconds(link.latency_s)
        fields["HBM bandwidth"] = format_bandwidth(cluster.gpu.hbm_bandwidth_Bps)
    return {
        name.replace("_", " "): [str(fields[name]) for fields in every]
        for name in every[0]
        if len({fields[name] for fields in every}) > 1
    }


def _results(candidates: Sequence[Candidate]) -> dict[str, list[str]]:
    found = {}
    for variant in candidates[0].predictions:
        ones = [one.predictions[variant] for one in candidates]
        found[f"{variant}: tok/s"] = [_rate(one.rate) for one in ones]
        if variant != "standard":
            found[f"{variant}: speedup"] = [
                f"{one.speedup.value:.2f}x ({one.speedup.low:.2f}-{one.speedup.high:.2f})" for one in ones
            ]
    return found
