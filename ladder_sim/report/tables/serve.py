"""The answers of `ladder_sim.serve` as tables."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.display.console import table
from ladder_sim.display.labels import gpus_label, hardware_label, interval_text, range_text, stack_label
from ladder_sim.report.documents.serve import estimate_price, fleet_price
from ladder_sim.serve import Estimate, Estimates, Fleets, Trace, Traffic
from ladder_sim.serve.replicas.pools import Sizes
from ladder_sim.serve.requests.promise import Metric
from ladder_sim.serve.sizing.best_plan import MORE
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_rate, format_seconds, step_for

_TIMES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"))
_P95: tuple[Metric, ...] = ("ttft", "tpot")
_COLUMNS = ("mean", "p50", "p90", "p95", "p99")
_GAINS = tuple((*time, column) for time in (*_TIMES[:2], _TIMES[3]) for column in ("p50", "p95"))


def load_label(scenario: Scenario, requests: Traffic | Trace, how: Mapping[str, Any]) -> str:
    """What is served where, in a line; `how` has fields of a `ladder_sim.serve.Service`."""
    where = f"{scenario.model.name}, {hardware_label(scenario)}, {stack_label(scenario)}"
    if steps := how["steps"]:
        where = f"steps of {steps.engine}"
    return f"{where}{_manner(how)}; {_arrivals(requests)}"


def load_subtitle(scenario: Scenario, requests: Traffic | Trace, how: Mapping[str, Any]) -> str:
    """The same by names, for a figure."""
    if steps := how["steps"]:
        return f"steps of {steps.engine}{_manner(how)}, {_arrivals(requests)}"
    where = f"{scenario.plan} on {scenario.cluster.name}{_manner(how)}"
    return f"{scenario.model.name}, {where}, {_arrivals(requests)}, {scenario.stack.name}"


def _manner(how: Mapping[str, Any]) -> str:
    """Replicas for prompts, and drafted tokens, if there are any."""
    parts = [f"scheduled by {engine} itself"] if (engine := how.get("engine")) else []
    if prefill := how.get("prefill"):
        parts.append(f"prompts on {prefill.plan}")
    if speculation := how["changed"].get("speculation"):
        rates = "/".join(f"{rate:.2g}" for rate in speculation.acceptance)
        parts.append(f"{speculation.drafts} drafted, accepted {rates}")
    return "".join(f", {part}" for part in parts)


def capacity_label(scenario: Scenario, how: Mapping[str, Any], fleets: Fleets) -> str:
    """What is to be served on which GPUs, in a line."""
    where = f"{scenario.model.name}, replicas on at most {gpus_label(scenario)}, {stack_label(scenario)}{_manner(how)}"
    return f"{where}; {_arrivals(fleets.traffic)}; promised: {fleets.promise}"


def _arrivals(requests: Traffic | Trace) -> str:
    if isinstance(requests, Trace):
        units = requests.units
        return f"trace {requests.path.name}" + (f" ({units})" if units else "")
    shared = f"{requests.prefix} shared + " if requests.prefix else ""
    return f"{requests.arrivals}, prompt {shared}{requests.prompt} + {requests.gen}"


def serve_report(label: str, estimates: Estimates, usd_per_gpu_hour: float | None) -> RenderableType:
    """Times of requests by percentile, then rates, then what each variant gains."""
    variants = estimates.variants
    rows = [
        (name, title, *(_seconds_span(each.figures[f"{metric}_{column}_s"]) for column in _COLUMNS))
        for title, metric in _TIMES
        for name, each in variants.items()
    ]
    rates = []
    for name, each in variants.items():
        figures = each.figures
        row = [
            name,
            interval_text(figures["tokens_per_s"], format_rate),
            format_rate(figures["tokens_per_s_per_gpu"].value),
            f"{100 * figures['utilisation'].value:.0f} %",
            f"{100 * figures['kv_occupancy'].value:.0f} %",
            f"{figures['preemptions'].value:.0f}",
        ]
        if each.promise:
            row += [range_text(figures["goodput"], "{:.3g}".format), _kept(each)]
        if usd_per_gpu_hour is not None:
            row.append(f"${interval_text(estimate_price(each, usd_per_gpu_hour), '{:.2f}'.format)}")
        rates.append(row)
    first = variants[estimates.first]
    columns = ["variant", "tok/s", "tok/s/GPU", "busy", "KV cache", "preempted"]
    columns += ["goodput/s", "promise kept"] if first.promise else []
    columns += ["$/Mtok"] if usd_per_gpu_hour is not None else []
    gains = [
        (name, *(interval_text(each.gains[f"{metric}_{column}_s"], "{:.2f}".format) for _, metric, column in _GAINS))
        for name, each in variants.items()
        if each.gains
    ]
    gained = (f"faster than {estimates.first}", *(f"{title} {column}" for title, _, column in _GAINS))
    outcome = first.outcome
    loads = f" x {estimates.seeds} seeds" if estimates.seeds > 1 else ""
    return Group(
        Text(f"{label}; {len(outcome.answers)} requests{loads}, {outcome.gpus} GPUs", "bold"),
        table(("variant", "", *_COLUMNS), rows, left=2, keys=2, wrapped=()),
        "",
        table(columns, rates, wrapped=()),
        *(("", table(gained, gains, wrapped=())) if gains else ()),
    )


def _kept(estimate: Estimate) -> str:
    doubt = f", unsure: {', '.join(estimate.unsure)}" if estimate.unsure else ""
    return ("yes" if estimate.kept else f"no: {', '.join(estimate.broken)}") + doubt


def _seconds_span(interval: Interval) -> str:
    """All three in the unit that suits the value."""
    if math.isnan(interval.value):
        return "-"
    if not interval.known:
        return f"{format_seconds(interval.value)} (not known)"
    size, _ = step_for(interval.value, "s")
    low, high = (
        f"{end:#.3g}".rstrip(".") if end < 999.5 else f"{end:.0f}"
        for end in (interval.low / size, interval.high / size)
    )
    return f"{format_seconds(interval.value)} ({low}-{high})"


def capacity_report(label: str, fleets: Fleets, usd_per_gpu_hour: float | None) -> RenderableType:
    """What each variant needs, what it saves, and where it breaks; then the plans."""
    first = next(iter(fleets.variants))
    rows = []
    for name, each in fleets.variants.items():
        need, outcome = each.capacity, each.capacity.outcome
        row = [name, each.plans]
        if need.replicas:
            row += [gpus_text(each.gpus), _sizes(need.sizes), rate_text(each.rate_limit)]
            row += [", ".join(need.breaks), *(format_seconds(outcome.seconds(metric, 95)) for metric in _P95)]
        else:
            row += ["none", "none", "0", f"{', '.join(need.breaks)} on an idle replica", "", ""]
        saves = name != first and not math.isnan(each.saved.value)
        row += [gpus_text(each.saved), interval_text(each.gain, "{:.2f}".format)] if saves else ["", ""]
        if usd_per_gpu_hour is not None:
            price = fleet_price(each, fleets.traffic, usd_per_gpu_hour)
            row.append(f"${interval_text(price, '{:.2f}'.format)}" if need.replicas else "")
        rows.append(row)
    columns = ["variant", "plan", "GPUs", "replicas", "requests/s of one", "breaks first", "TTFT p95", "TPOT p95"]
    columns += ["GPUs saved", "rate per GPU"] + (["$/Mtok"] if usd_per_gpu_hour is not None else [])
    return Group(Text(label, "bold"), table(columns, rows, left=2, wrapped=()), *map(Text, _plans(fleets)))


def _sizes(sizes: Sizes) -> str:
    return f"{sizes.serving} + {sizes.prefill}" if sizes.prefill else str(sizes.serving)


def gpus_text(number: Interval) -> str:
    """A number of GPUs with its interval."""
    return range_text(number, lambda each: f"{each:.0f}" if math.isfinite(each) else "none")


def rate_text(rate: Interval) -> str:
    """Requests per second with their interval."""
    return range_text(rate, "{:.3g}".format)


def _plans(fleets: Fleets) -> Iterator[str]:
    """Plans that are not the best, a line for each reason."""
    plans: dict[str, dict[str, None]] = {}
    for name, each in fleets.variants.items():
        for tried in each.tried:
            if tried.plans != each.plans:
                reason = f"{name} needs {tried.gpus} GPUs" if tried.gpus else tried.reason
                plans.setdefault(f"{name} {reason}" if reason == MORE else reason, {})[tried.plans] = None
    for reason, names in plans.items():
        yield f"{'; '.join(names)}: {reason}"
