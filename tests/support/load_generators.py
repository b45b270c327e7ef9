"""The same measured load in the words of each load generator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A load with a fixed number of requests in flight, all of one length, whose figures agree with each other."""

    concurrency: int
    requests: int
    failed: int
    prompt: int
    gen: int
    ttft_s: Mapping[str, float]
    """By statistic: mean, p50, p90, p95, p99."""
    tpot_s: Mapping[str, float]

    @property
    def e2e_s(self) -> dict[str, float]:
        return {name: self.ttft_s[name] + (self.gen - 1) * self.tpot_s[name] for name in self.ttft_s}

    @property
    def requests_per_s(self) -> float:
        return 0.95 * self.concurrency / self.e2e_s["mean"]

    @property
    def duration_s(self) -> float:
        return self.requests / self.requests_per_s

    @property
    def figures(self) -> dict[str, float]:
        """What every generator writes, as `ladder_sim` names it."""
        times = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}
        return {
            **{f"{metric}_{name}_s": value for metric, values in times.items() for name, value in values.items()},
            "requests_per_s": self.requests_per_s,
            "tokens_per_s": self.gen * self.requests_per_s,
        }


@st.composite
def measured(draw: st.DrawFn) -> Measured:
    """A random load."""
    concurrency = draw(st.integers(1, 512))

    def times_s(low: float, high: float) -> dict[str, float]:
        median = draw(st.floats(low, high))
        steps = [draw(st.floats(0.0, 0.5)) for _ in PERCENTILES[1:]]
        values = [median]
        for step in steps:
            values.append(values[-1] * (1.0 + step))
        return {
            "mean": median * draw(st.floats(0.9, 1.1)),
            **{f"p{each}": value for each, value in zip(PERCENTILES, values, strict=True)},
        }

    return Measured(
        concurrency=concurrency,
        requests=concurrency * draw(st.integers(2, 20)),
        failed=draw(st.integers(0, 20)),
        prompt=draw(st.integers(1, 32_000)),
        gen=draw(st.integers(2, 4_000)),
        ttft_s=times_s(0.01, 10.0),
        tpot_s=times_s(0.002, 0.2),
    )


def _bench(load: Measured, names: Mapping[str, str], suffix: str) -> dict[str, Any]:
    """Times as vLLM and SGLang write them, in milliseconds."""
    times = {"ttft": load.ttft_s, "tpot": load.tpot_s, "e2e": load.e2e_s}
    words = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
    return {
        f"{words[statistic]}_{names[metric]}{suffix}": 1e3 * value
        for metric, values in times.items()
        for statistic, value in values.items()
    }


def vllm(load: Measured, draw: Any) -> Any:
    """``vllm bench serve --save-result``; versions before the field ``failed`` have the number of prompts alone."""
    return {
        "backend": "vllm",
        "model_id": "m",
        "num_prompts": load.requests + load.failed,
        "request_rate": draw(st.sampled_from(["inf", float("inf")])),
        "burstiness": 1.0,
        "max_concurrency": load.concurrency,
        "duration": load.duration_s,
        "completed": load.requests,
        **({"failed": load.failed} if draw(st.booleans()) else {}),
        "total_input_tokens": load.requests * load.prompt,
        "total_output_tokens": load.requests * load.gen,
        "request_throughput": load.requests_per_s,
        "output_throughput": load.gen * load.requests_per_s,
        **_bench(load, {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}, "_ms"),
    }


def sglang(load: Measured, draw: Any) -> Any:
    """SGLang's ``bench_serving``; versions of 2024 have no unit in names."""
    return {
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": draw(st.sampled_from(["inf", float("inf")])),
        "max_concurrency": load.concurrency,
        "random_input_len": load.prompt,
        "random_output_len": load.gen,
        "random_range_ratio": 1.0,
        "duration": load.duration_s,
        "completed": load.requests,
        "total_input_tokens": load.requests * load.prompt,
        "total_output_tokens": load.requests * load.gen,
        "total_output_tokens_retokenized": load.requests * load.gen - 1,
        "request_throughput": load.requests_per_s,
        "output_throughput": load.gen * load.requests_per_s,
        **_bench(load, {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e_latency"}, draw(st.sampled_from(["_ms", ""]))),
        "errors": [""] * load.requests + ["Timeout"] * load.failed,
    }


UNITS = {"ms": 1e-3, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def aiperf(load: Measured, draw: Any) -> Any:
    """AIPerf and GenAI-Perf: each time in a unit of its own, the load where a version has it."""

    def timed(values: Mapping[str, float]) -> dict[str, Any]:
        unit = draw(st.sampled_from(list(UNITS)))
        words = {"mean": "avg"}
        return {
            "unit": unit,
            **{words.get(name, name): value / UNITS[unit] for name, value in values.items()},
        }

    metrics: dict[str, Any] = {
        "request_latency": timed(load.e2e_s),
        "time_to_first_token": timed(load.ttft_s),
        "inter_token_latency": timed(load.tpot_s),
        "request_throughput": {"unit": "requests/sec", "avg": load.requests_per_s},
        "output_token_throughput": {"unit": "tokens/sec", "avg": load.gen * load.requests_per_s},
        "input_sequence_length": {"unit": "tokens", "avg": load.prompt, "std": 0.0},
        "output_sequence_length": {"unit": "tokens", "avg": load.gen, "std": 0.0},
        "request_count": {"unit": "requests", "avg": float(load.requests)},
        "benchmark_duration": timed({"mean": load.duration_s}),
    }
    errors: dict[str, Any] = {"error_summary": [{"error_details": {"code": 500}, "count": load.failed}]}
    if not load.failed or draw(st.booleans()):
        metrics["error_request_count"] = {"unit": "requests", "avg": float(load.failed)}
        errors = {}
    limit = {"concurrency": load.concurrency}
    config = draw(
        st.sampled_from(
            [
                {"phases": [{"kind": "warmup", "concurrency": 1}, {"kind": "profiling", "type": "x", **limit}]},
                {"loadgen": {"request_rate_mode": "concurrency_burst", **limit}},
                {"model_names": ["m"], "endpoint_type": "chat", **limit},
                {"model": ["m"], "perf_analyzer": {"stimulus": limit}},
            ]
        )
    )
    body = {"records": metrics} if draw(st.booleans()) else metrics
    return {**body, **errors, "input_config": config}


def guidellm(load: Measured, draw: Any) -> Any:
    """GuideLLM's report: the strategy and the numbers of requests where a version has them."""

    def distribution(values: Mapping[str, float], scale: float) -> dict[str, Any]:
        percentiles = {name: scale * value for name, value in values.items() if name not in ("mean", "p50")}
        return {
            "successful": {
                "mean": scale * values["mean"],
                "median": scale * values["p50"],
                "std_dev": 0.0,
                "percentiles": percentiles,
            }
        }

    def steady(value: float) -> dict[str, Any]:
        return distribution({"mean": value, "p50": value}, 1.0)

    totals = {"successful": load.requests, "errored": load.failed, "incomplete": 0}
    strategy = {"type_": "concurrent", "streams": load.concurrency}
    if load.concurrency == 1 and draw(st.booleans()):
        strategy = {"type_": "synchronous"}
    metrics = {
        "requests_per_second": steady(load.requests_per_s),
        "request_concurrency": steady(load.requests_per_s * load.e2e_s["mean"]),
        "request_latency": distribution(load.e2e_s, 1.0),
        "prompt_token_count": steady(load.prompt),
        "output_token_count": steady(load.gen),
        "time_to_first_token_ms": distribution(load.ttft_s, 1e3),
        "inter_token_latency_ms": distribution(load.tpot_s, 1e3),
        "output_tokens_per_second": steady(load.gen * load.requests_per_s),
    }
    if draw(st.booleans()):
        benchmark = {"config": {"strategy": strategy}, "metrics": {**metrics, "request_totals": totals}}
    else:
        benchmark = {"args": {"strategy": strategy}, "run_stats": {"requests_made": totals}, "metrics": metrics}
    return {"benchmarks": [benchmark]}


GENERATORS: tuple[Callable[[Measured, Any], Any], ...] = (vllm, sglang, aiperf, guidellm)
