"""Reports of ``guidellm benchmark``: a benchmark for each strategy, figures of the requests that were answered."""

from collections.abc import Iterator, Mapping
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.serving.requests.generators.fields import JSON, count, number, or_zero, seconds, spread, stated
from ladder_sim.serving.requests.result import Result
from ladder_sim.serving.requests.slo import PERCENTILES, Metric
from ladder_sim.serving.requests.traffic import MAX_BURSTINESS, Lengths, Traffic
from ladder_sim.units import quoted

# names end in their unit, but for the time of a request, which is in seconds
_TIMES: Mapping[str, tuple[Metric, float]] = {
    "time_to_first_token_ms": ("ttft", 1e-3),
    "inter_token_latency_ms": ("tpot", 1e-3),
    "request_latency": ("e2e", 1.0),
}

# share of the requests that a run may cut off for its mean number in flight to be that of the others
_CUT_OFF = 0.05
_RATES = {"requests_per_s": "requests_per_second", "tokens_per_s": "output_tokens_per_second"}


def read(document: JSON) -> Iterator[Result]:
    """Read the benchmarks of a report, in its order."""
    for benchmark in document["benchmarks"]:
        yield _benchmark(benchmark)


def _benchmark(benchmark: JSON) -> Result:
    metrics = benchmark["metrics"]
    totals = _totals(benchmark)
    done = count(totals, "successful")
    strategy = next((each for each in stated(benchmark, "strategy") if isinstance(each, dict)), {})
    rate, concurrency, burstiness = _load(strategy, done)
    figures: dict[str, float] = {}
    for theirs, (ours, scale_s) in _TIMES.items():
        given = _successful(metrics, theirs)
        values = {"mean": given.get("mean"), "p50": given.get("median")}
        percentiles = given.get("percentiles") or {}
        values |= {f"p{each}": percentiles[f"p{each}"] for each in PERCENTILES if percentiles.get(f"p{each}")}
        figures |= {
            f"{ours}_{statistic}_s": seconds({theirs: value}, theirs, scale_s)
            for statistic, value in values.items()
            if value
        }
    figures |= {ours: number(_successful(metrics, theirs), "mean") for ours, theirs in _RATES.items()}
    gen = _lengths(metrics, "output_token_count")
    # requests in flight at the end of a run are not among those that were answered
    cut_off = or_zero(totals, "incomplete") > _CUT_OFF * done
    models = [each for each in stated(benchmark, "backend_model", "model") if isinstance(each, str)]
    return Result(
        tool="GuideLLM",
        requests=Traffic(
            prompt=_lengths(metrics, "prompt_token_count"),
            gen=gen,
            requests=done,
            rate=rate,
            concurrency=concurrency,
            burstiness=burstiness,
        ),
        concurrency=concurrency,
        figures=figures,
        server={"model": models[0]} if models else {},
        failed=round(or_zero(totals, "errored")),
        in_flight=0.0 if cut_off else or_zero(_successful(metrics, "request_concurrency"), "mean"),
        one_length=gen.kind == "fixed",
    )


def _totals(benchmark: JSON) -> JSON:
    """Return the numbers of requests by what became of them: each version has them elsewhere."""
    for each in stated(benchmark, "request_totals", "requests_made"):
        if isinstance(each, dict) and "successful" in each:
            return each
    raise KeyError("request_totals")


def _successful(metrics: JSON, name: str) -> JSON:
    given: Any = metrics.get(name) or {}
    return given.get("successful") or {}


def _lengths(metrics: JSON, name: str) -> Lengths:
    given = _successful(metrics, name)
    return spread(number(given, "mean"), or_zero(given, "std_dev"))


def _load(strategy: JSON, done: int) -> tuple[float, int, float]:
    """Return the request rate (0: none), the requests in flight (0: any) and the burstiness of a strategy."""
    kind = strategy.get("type_")
    if kind == "synchronous":
        return 0.0, 1, 1.0
    if kind == "concurrent":
        return 0.0, count(strategy, "streams"), 1.0
    if kind == "throughput":
        # all at once
        return 0.0, count(strategy, "max_concurrency") if strategy.get("max_concurrency") else done, 1.0
    limit = count(strategy, "max_concurrency") if strategy.get("max_concurrency") else 0
    if kind in ("constant", "async"):
        return number(strategy, "rate"), limit, MAX_BURSTINESS
    if kind == "poisson":
        return number(strategy, "rate"), limit, 1.0
    raise UsageError(
        f"requests of the strategy {quoted(kind)}", hint="known: synchronous, concurrent, throughput, constant, poisson"
    )
