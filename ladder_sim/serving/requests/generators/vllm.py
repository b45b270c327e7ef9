"""Results of ``vllm bench serve --save-result``; with ``--save-detailed`` they have each request."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ladder_sim.serving.requests.generators.fields import (
    JSON,
    answered,
    count,
    fixed,
    number,
    or_zero,
    positive,
    times_s,
)
from ladder_sim.serving.requests.generators.fields import whole as length
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.result import Result
from ladder_sim.serving.requests.traffic import Traffic

_STACKS = {"sglang": "sglang", "tensorrt-llm": "trtllm"}
_RATES = {"requests_per_s": "request_throughput", "tokens_per_s": "output_throughput"}


def read(document: JSON) -> Result:
    """Read one run."""
    done = count(document, "completed")
    rate = math.inf if document["request_rate"] == "inf" else number(document, "request_rate", most=math.inf)
    # requests of a rate wait for one of --max-concurrency places, and their times count from when they are sent
    # (vLLM 0.32.0, benchmarks/serve.py)
    concurrency = count(document, "max_concurrency") if document.get("max_concurrency") else 0
    if rate == math.inf:
        rate, concurrency = 0.0, concurrency or count(document, "num_prompts")
    failed = document.get("failed")
    if failed is None:
        failed = document.get("num_prompts", done) - done
    return Result(
        tool="vllm bench serve",
        requests=_requests(document, done, rate, concurrency),
        concurrency=concurrency,
        figures=times_s(document, "_ms", 1e-3) | {ours: number(document, theirs) for ours, theirs in _RATES.items()},
        server={"model": document["model_id"], "backend": _STACKS.get(document.get("backend", ""), "vllm")},
        failed=length(failed),
        duration_s=or_zero(document, "duration"),
    )


def _requests(document: JSON, done: int, rate: float, concurrency: int) -> Traffic | Sequence[Request]:
    if "start_times" in document:
        requests = answered(
            (positive(at_s, "a start time"), length(prompt), length(gen))
            for at_s, prompt, gen in zip(
                *(document[each] for each in ("start_times", "input_lens", "output_lens")), strict=True
            )
        )
        if rate:
            return requests
        # sent when others were answered
        return tuple(replace(request, arrival_s=0.0) for request in requests)
    prompt, gen = (fixed(number(document, f"total_{each}_tokens") / done) for each in ("input", "output"))
    return Traffic(
        prompt=prompt,
        gen=gen,
        requests=done,
        rate=rate,
        concurrency=concurrency,
        burstiness=number(document, "burstiness") if "burstiness" in document else 1.0,
    )
