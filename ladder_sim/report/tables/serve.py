"""The answers of `serve` and `capacity` as tables."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.display.labels import gpus_label, hardware_label, interval_text, range_text, stack_label
from ladder_sim.report.console import table
from ladder_sim.serving import Capacity, Request, Served, ServedVariant, Service, Trace, Traffic
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.replicas.pools import Sizes
from ladder_sim.serving.requests.slo import Metric
from ladder_sim.serving.sizing.best_plan import MORE
from ladder_sim.units import format_rate, format_seconds, step_for

_TIMES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"))
_P95: tuple[Metric, ...] = ("ttft", "tpot")
_COLUMNS = ("mean", "p50", "p90", "p95", "p99")
_GAINS = tuple((*time, column) for time in (*_TIMES[:2], _TIMES[3]) for column in ("p50", "p95"))


def serve_label(served: Served) -> str:
    """What is served where, in a line."""
    scenario = served.scenario
    where = f"{scenario.model.name}, {hardware_label(scenario)}, {stack_label(scenario)}"
    if served.steps:
        where = f"steps of {served.steps.engine}"
    return f"{where}{manner_label(served.service)}; {load_label(served.load)}"


def manner_label(service: Service) -> str:
    """Who schedules, replicas for prompts, and drafted tokens, if that is not as usual."""
    parts = [f"scheduled by {service.engine} itself"] if service.engine else []
    if service.prefill:
        parts.append(f"prompts on {service.prefill.plan}")
    if service.speculation:
        parts.append(_drafted(service.speculation))
    return "".join(f", {part}" for part in parts)


def _drafted(speculation: Speculation) -> str:
    rates = "/".join(f"{rate:.2g}" for rate in speculation.acceptance)
    return f"{speculation.drafts} drafted, accepted {rates}"


def load_label(requests: Traffic | Trace | Sequence[Request]) -> str:
    """Which requests arrive, in a phrase."""
    if isinstance(requests, Trace):
        units = requests.units
        return f"trace {requests.path.name}" + (f" ({units})" if units else "")
    if not isinstance(requests, Traffic):
        return "given requests"
    shared = f"{requests.prefix} shared + " if requests.prefix else ""
    return f"{requests.arrivals}, prompt {shared}{requests.prompt} + {requests.gen}"


def serve_report(served: Served) -> RenderableType:
    """Times of requests by percentile, then rates, then what each variant gains."""
    rows = [
        (name, title, *(_seconds_span(each.figures[f"{metric}_{column}_s"]) for column in _COLUMNS))
        for title, metric in _TIMES
        for name, each in served.items()
    ]
    rates = []
    for name, each in served.items():
        figures = each.figures
        row = [
            name,
            interval_text(figures["tokens_per_s"], format_rate),
            format_rate(figures["tokens_per_s_per_gpu"].value),
            f"{100 * figures['utilisation'].value:.0f} %",
            f"{100 * figures['kv_occupancy'].value:.0f} %",
            f"{figures['preemptions'].value:.0f}",
        ]
        if each.slo:
            row += [range_text(figures["goodput"], "{:.3g}".format), _kept(each)]
        if "usd_per_Mtoken" in figures:
            row.append(f"${interval_text(figures['usd_per_Mtoken'], '{:.2f}'.format)}")
        rates.append(row)
    first = served[served.first]
    columns = ["variant", "tok/s", "tok/s/GPU", "busy", "KV cache", "preempted"]
    columns += ["goodput/s", "promise kept"] if first.slo else []
    columns += ["$/Mtok"] if "usd_per_Mtoken" in first.figures else []
    gains = [
        (name, *(interval_text(each.gains[f"{metric}_{column}_s"], "{:.2f}".format) for _, metric, column in _GAINS))
        for name, each in served.items()
        if each.gains
    ]
    gained = (f"faster than {served.first}", *(f"{title} {column}" for title, _, column in _GAINS))
    outcome = first.outcome
    loads = f" x {served.seeds} seeds" if served.seeds > 1 else ""
    return Group(
        Text(f"{serve_label(served)}; {len(outcome.answers)} requests{loads}, {outcome.gpus} GPUs", "bold"),
        table(("variant", "", *_COLUMNS), rows, left=2, keys=2, wrapped=()),
        "",
        table(columns, rates, wrapped=()),
        *(("", table(gained, gains, wrapped=())) if gains else ()),
    )


def _kept(variant: ServedVariant) -> str:
    doubt = f", unsure: {', '.join(variant.unsure)}" if variant.unsure else ""
    return ("yes" if variant.kept else f"no: {', '.join(variant.broken)}") + doubt


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


def capacity_label(capacity: Capacity) -> str:
    """What is to be served on which GPUs, in a line."""
    scenario = capacity.scenario
    where = f"{scenario.model.name}, replicas on at most {gpus_label(scenario)}, {stack_label(scenario)}"
    drafted = f", {_drafted(capacity.speculation)}" if capacity.speculation else ""
    return f"{where}{drafted}; {load_label(capacity.load)}; promised: {capacity.slo}"


def capacity_report(capacity: Capacity) -> RenderableType:
    """What each variant needs, what it saves, and where it breaks; then the plans."""
    first = next(iter(capacity))
    rows = []
    for name, each in capacity.items():
        need, outcome = each.need, each.need.outcome
        row = [name, each.plans]
        if need.replicas:
            row += [gpus_text(each.gpus), _sizes(need.sizes), rate_text(each.rate_limit)]
            row += [", ".join(need.breaks), *(format_seconds(outcome.seconds(metric, 95)) for metric in _P95)]
        else:
            row += ["none", "none", "0", f"{', '.join(need.breaks)} on an idle replica", "", ""]
        saves = name != first and not math.isnan(each.saved.value)
        row += [gpus_text(each.saved), interval_text(each.gain, "{:.2f}".format)] if saves else ["", ""]
        if price := capacity.usd_per_Mtoken(name):
            row.append(f"${interval_text(price, '{:.2f}'.format)}" if need.replicas else "")
        rows.append(row)
    columns = ["variant", "plan", "GPUs", "replicas", "requests/s of one", "breaks first", "TTFT p95", "TPOT p95"]
    columns += ["GPUs saved", "rate per GPU"] + (["$/Mtok"] if capacity.usd_per_gpu_hour is not None else [])
    needs = table(columns, rows, left=2, wrapped=())
    return Group(Text(capacity_label(capacity), "bold"), needs, *map(Text, _plans(capacity)))


def _sizes(sizes: Sizes) -> str:
    return f"{sizes.serving} + {sizes.prefill}" if sizes.prefill else str(sizes.serving)


def gpus_text(number: Interval) -> str:
    """A number of GPUs with its interval."""
    return range_text(number, lambda each: f"{each:.0f}" if math.isfinite(each) else "none")


def rate_text(rate: Interval) -> str:
    """Requests per second with their interval."""
    return range_text(rate, "{:.3g}".format)


def _plans(capacity: Capacity) -> Iterator[str]:
    """Plans that are not the best, a line for each reason."""
    plans: dict[str, dict[str, None]] = {}
    for name, each in capacity.items():
        for tried in each.tried:
            if tried.plans != each.plans:
                reason = f"{name} needs {tried.gpus} GPUs" if tried.gpus else tried.reason
                plans.setdefault(f"{name} {reason}" if reason == MORE else reason, {})[tried.plans] = None
    for reason, names in plans.items():
        yield f"{'; '.join(names)}: {reason}"
