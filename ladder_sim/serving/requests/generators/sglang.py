"""Results of SGLang's ``python -m sglang.bench_serving --output-file``: one run a line."""

import math

from ladder_sim.serving.requests.generators.fields import JSON, count, fixed, number, or_zero, times_s
from ladder_sim.serving.requests.result import Result
from ladder_sim.serving.requests.traffic import Lengths, Traffic

# what it calls engines
_STACKS = {"trt": "trtllm", "vllm": "vllm", "vllm-chat": "vllm"}

# published tables may lack them
_RATES = {"tokens_per_s": "output_throughput", "requests_per_s": "request_throughput"}


def read(document: JSON) -> Result:
    """Read one run."""
    done = count(document, "completed")
    rate = document["request_rate"]
    rate = 0.0 if rate in ("inf", math.inf) else number(document, "request_rate")
    # without a limit all are sent at once
    concurrency = count(document, "max_concurrency") if document.get("max_concurrency") else 0
    if not rate:
        concurrency = concurrency or done
    errors = document.get("errors")
    failed = sum(map(bool, errors)) if isinstance(errors, list) else 0
    # versions of 2024 leave the unit out of the names
    suffix = "_ms" if any(name.endswith("_ms") for name in document) else ""
    figures = times_s(document, suffix, 1e-3)
    for ours, theirs in _RATES.items():
        if document.get(theirs):
            figures[ours] = number(document, theirs)
    accepted = or_zero(document, "accept_length")
    server = document.get("server_info")
    server = server if isinstance(server, dict) else {}
    return Result(
        tool="SGLang's bench_serving",
        requests=Traffic(
            prompt=_lengths(document, "input", done),
            gen=_lengths(document, "output", done),
            requests=done,
            rate=rate,
            concurrency=concurrency,
        ),
        concurrency=concurrency,
        figures=figures,
        server={
            "backend": _STACKS.get(document["backend"], "sglang"),
            **({"model": server["model_path"]} if server.get("model_path") else {}),
            # attention of groups of ranks has degrees of its own
            **(
                {"tp": count(server, "tp_size")}
                if server.get("tp_size") and not server.get("enable_dp_attention")
                else {}
            ),
        },
        failed=failed,
        duration_s=or_zero(document, "duration"),
        in_flight=or_zero(document, "concurrency"),
        left_out=f"speculative decoding ({accepted:g} tokens a step): its chances of acceptance are not in the file"
        if accepted > 1.0
        else "",
        one_length=document.get("dataset_name") == "random" and document.get("random_range_ratio") == 1.0,
    )


def _lengths(document: JSON, which: str, done: int) -> Lengths:
    """Return uniform lengths from a share of the longest on, if the mean says so too; else the mean."""
    mean = number(document, f"total_{which}_tokens") / done
    longest, share = document.get(f"random_{which}_len"), document.get("random_range_ratio")
    if document.get("dataset_name") == "random" and longest and share is not None and 0.0 <= share < 1.0:
        lengths = Lengths(kind="uniform", first=max(1.0, math.floor(share * longest)), second=float(longest))
        if lengths.first <= mean <= lengths.second:
            return lengths
    return fixed(mean)
