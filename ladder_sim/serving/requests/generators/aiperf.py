"""Results of AIPerf and of GenAI-Perf before it: figures with their units, or a line for each request."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ladder_sim.errors import UsageError
from ladder_sim.serving.requests.generators.fields import (
    JSON,
    STATISTICS,
    answered,
    count,
    number,
    or_zero,
    positive,
    seconds,
    spread,
    stated,
    unit_s,
)
from ladder_sim.serving.requests.result import Result
from ladder_sim.serving.requests.slo import PERCENTILES, Metric
from ladder_sim.serving.requests.traffic import MAX_BURSTINESS, Lengths, Traffic
from ladder_sim.units import quoted

_TIMES: Mapping[str, Metric] = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "e2e",
}
_RATES = {"requests_per_s": "request_throughput", "tokens_per_s": "output_token_throughput"}
# GenAI-Perf before 0.0.9 does not count requests: its default is ten for each client
_ROUNDS = 10


def read(document: JSON) -> Result:
    """Read the figures of one run."""
    metrics: JSON = document["records"] if isinstance(document.get("records"), dict) else document
    asked = document["input_config"]
    rate, concurrency, burstiness = _load(asked, is_aiperf=not _is_genai_perf(document))
    duration = metrics.get("benchmark_duration")
    duration_s = seconds(duration, "avg", unit_s("benchmark_duration", duration)) if duration else 0.0
    done = count(metrics["request_count"], "avg") if "request_count" in metrics else _ROUNDS * max(1, concurrency)
    traffic = Traffic(
        prompt=_lengths(metrics["input_sequence_length"]),
        gen=_lengths(metrics["output_sequence_length"]),
        requests=done,
        rate=rate,
        concurrency=concurrency,
        burstiness=burstiness,
    )
    figures = {
        f"{ours}_{statistic}_s": seconds(metrics[theirs], key, unit_s(theirs, metrics[theirs]))
        for theirs, ours in _TIMES.items()
        if theirs in metrics
        for key, statistic in {**STATISTICS, "avg": "mean"}.items()
        if metrics[theirs].get(key)
    }
    figures |= {ours: number(metrics[theirs], "avg") for ours, theirs in _RATES.items() if theirs in metrics}
    names = [
        name
        for name in stated(asked.get("models", asked), "model_names", "model", "name")
        if isinstance(name, list | str)
    ]
    model = next((each[0] if isinstance(each, list) else each for each in names), "")
    return Result(
        tool="GenAI-Perf" if _is_genai_perf(document) else "AIPerf",
        requests=traffic,
        concurrency=concurrency,
        figures=figures,
        server={"model": model} if model else {},
        failed=_failed(document, metrics),
        duration_s=duration_s,
        one_length=traffic.gen.kind == "fixed",
    )


def _is_genai_perf(document: JSON) -> bool:
    asked = document["input_config"]
    return "aiperf_version" not in document and not {"loadgen", "phases"} & set(asked)


def _load(asked: JSON, *, is_aiperf: bool) -> tuple[float, int, float]:
    """Return the request rate (0: none), the requests in flight (0: any number) and the burstiness of a run."""
    load: Any = asked
    if isinstance(asked.get("phases"), list):
        (load,) = [phase for phase in asked["phases"] if phase["kind"] == "profiling"]
    rates = list(stated(load, "request_rate", "rate"))
    rate = positive(rates[0], "the request rate") if rates else 0.0
    limits = list(stated(load, "concurrency"))
    if not rates and not limits:
        raise UsageError(
            "input_config says neither a concurrency nor a request rate", hint="measure again with one of them"
        )
    concurrency = count({"concurrency": limits[0]}, "concurrency") if limits else 0
    if not rate:
        return 0.0, concurrency, 1.0
    # Perf Analyzer, which GenAI-Perf runs, sends at equal distances
    usual = "poisson" if is_aiperf else "constant"
    words = stated(load, "request_rate_mode", "arrival_pattern", "request_distribution")
    kind = load.get("type") if load is not asked else next(words, usual)
    if kind not in ("poisson", "constant", "gamma"):
        raise UsageError(f"arrivals of type {quoted(kind)}", hint="give profile_export.jsonl, which has their times")
    if kind == "gamma":
        shapes = stated(load, "smoothness", "arrival_smoothness")
        return rate, concurrency, positive(next(shapes, 1.0), "the smoothness")
    return rate, concurrency, MAX_BURSTINESS if kind == "constant" else 1.0


def _lengths(figures: JSON) -> Lengths:
    return spread(number(figures, "avg"), or_zero(figures, "std"))


def _failed(document: JSON, metrics: JSON) -> int:
    """Return the number of requests that failed."""
    if "error_request_count" in metrics:
        return round(or_zero(metrics["error_request_count"], "avg"))
    errors = document.get("error_summary") or document.get("errors_by_type") or []
    return sum(count(each, "count") for each in errors)


def is_record(document: JSON) -> bool:
    """Whether it is one request of an AIPerf run."""
    return "metadata" in document and "metrics" in document


def read_record(document: JSON) -> tuple[float, int, int]:
    """Return when a request of an AIPerf run was sent, and its lengths; 0 answer tokens: failed or warm-up."""
    about, metrics = document["metadata"], document["metrics"]
    at_s = 1e-9 * number(about, "request_start_ns", most=1e20)
    if _has_failed(document) or about.get("benchmark_phase", "profiling") != "profiling":
        return at_s, 1, 0
    prompt, gen = (count(metrics[f"{each}_sequence_length"], "value") for each in ("input", "output"))
    return at_s, prompt, gen


def _has_failed(document: JSON) -> bool:
    return bool(document.get("error") or document["metadata"].get("was_cancelled"))


def read_records(documents: Sequence[JSON]) -> Result:
    """Read a run of which each request was recorded."""
    rows = [read_record(document) for document in documents]
    requests = answered(rows)
    kept = [document for document, row in zip(documents, rows, strict=True) if row[2]]
    ends_s = [1e-9 * document["metadata"]["request_end_ns"] for document in kept]
    duration_s = positive(max(ends_s) - min(row[0] for row in rows if row[2]), "the time from first to last")
    figures = {}
    for theirs, ours in _TIMES.items():
        cells = [each["metrics"][theirs] for each in kept if theirs in each["metrics"]]
        if not cells:
            continue
        values = np.concatenate(
            [unit_s(theirs, cell) * np.atleast_1d(np.asarray(cell["value"], float)) for cell in cells]
        )
        figures[f"{ours}_mean_s"] = float(values.mean())
        figures |= {f"{ours}_p{each}_s": float(np.percentile(values, each)) for each in PERCENTILES}
    totals = {"requests_per_s": len(requests), "tokens_per_s": sum(request.gen for request in requests)}
    figures |= {name: total / duration_s for name, total in totals.items()}
    for name, value in figures.items():
        positive(value, name)
    failed = sum(map(_has_failed, documents))
    return Result(tool="AIPerf", requests=requests, figures=figures, failed=failed, duration_s=duration_s)
