"""The answers of `ladder_sim.serve` as tables."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.console import table
from ladder_sim.display.labels import hardware_label, stack_label
from ladder_sim.serve import Capacity, Outcome, Trace, Traffic
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.price import token_price
from ladder_sim.units import format_rate, format_seconds

_TIMES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"))
_COLUMNS = (("mean", 0), ("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99))


def load_label(scenario: Scenario, requests: Traffic | Trace) -> str:
    """What is served where, in a line."""
    return f"{scenario.model.name}, {hardware_label(scenario)}, {stack_label(scenario)}; {_arrivals(requests)}"


def load_subtitle(scenario: Scenario, requests: Traffic | Trace) -> str:
    """The same by names, for a figure."""
    where = f"{scenario.plan} on {scenario.cluster.name}"
    return f"{scenario.model.name}, {where}, {_arrivals(requests)}, {scenario.stack.name}"


def _arrivals(requests: Traffic | Trace) -> str:
    if isinstance(requests, Trace):
        return f"trace {requests.path.name}"
    come = f"{requests.rate:g} requests/s" if requests.rate else f"{requests.concurrency} requests in flight"
    shared = f"{requests.prefix} shared + " if requests.prefix else ""
    return f"{come}, prompt {shared}{requests.prompt} + {requests.gen}"


def serve_report(label: str, outcomes: Mapping[str, Outcome], usd_per_gpu_hour: float | None) -> RenderableType:
    """Times of requests by percentile, then rates."""
    rows = [
        (name, title, *(format_seconds(outcome.seconds(metric, number)) for _, number in _COLUMNS))  # type: ignore[arg-type]
        for title, metric in _TIMES
        for name, outcome in outcomes.items()
    ]
    rates = []
    for name, outcome in outcomes.items():
        fields = outcome.fields()
        row = [
            name,
            format_rate(outcome.tokens_per_s),
            format_rate(fields["tokens_per_s_per_gpu"]),
            f"{100 * fields['utilisation']:.0f} %",
            f"{100 * fields['kv_occupancy']:.0f} %",
            str(fields["preemptions"]),
        ]
        if outcome.promise:
            row += [f"{fields['goodput']:.3g}", "yes" if outcome.kept else f"no: {', '.join(outcome.broken)}"]
        if usd_per_gpu_hour is not None:
            row.append(f"${token_price(usd_per_gpu_hour, outcome.gpus, outcome.tokens_per_s):.2f}")
        rates.append(row)
    first = next(iter(outcomes.values()))
    columns = ["variant", "tok/s", "tok/s/GPU", "busy", "KV cache", "preempted"]
    columns += ["goodput/s", "promise kept"] if first.promise else []
    columns += ["$/Mtok"] if usd_per_gpu_hour is not None else []
    return Group(
        Text(f"{label}; {len(first.answers)} requests, {first.gpus} GPUs", "bold"),
        table(("variant", "", *(title for title, _ in _COLUMNS)), rows, left=2, keys=2, wrapped=()),
        "",
        table(columns, rates, wrapped=()),
    )


def capacity_report(label: str, needs: Mapping[str, Capacity], usd_per_gpu_hour: float | None) -> RenderableType:
    """What each variant needs, and where it breaks."""
    rows = []
    for name, need in needs.items():
        row = [name]
        if need.replicas:
            row += [str(need.gpus), str(need.replicas), f"{need.rate_limit:.3g}", ", ".join(need.breaks)]
            row += [format_seconds(need.outcome.seconds(metric, 95)) for metric in ("ttft", "tpot")]
        else:
            row += ["none", "none", "0", f"{', '.join(need.breaks)} on an idle replica", "", ""]
        if usd_per_gpu_hour is not None:
            tokens_per_s = need.outcome.tokens_per_s
            row.append(f"${token_price(usd_per_gpu_hour, need.gpus, tokens_per_s):.2f}" if need.replicas else "")
        rows.append(row)
    columns = ["variant", "GPUs", "replicas", "requests/s of one", "breaks first", "TTFT p95", "TPOT p95"]
    columns += ["$/Mtok"] if usd_per_gpu_hour is not None else []
    return Group(Text(label, "bold"), table(columns, rows, wrapped=()))
