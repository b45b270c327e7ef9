"""Result files of load generators: what was asked of a server, and what was measured.

vllm bench serve   a JSON object (--save-result), or one a line (--append-result); --save-detailed adds each request
AIPerf             profile_export_aiperf.json holds figures, profile_export.jsonl a line for each request
InferenceX         a JSON object for each serving, or an array of them: figures, and what they were measured on
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ladder_sim.errors import UsageError
from ladder_sim.serve.requests.lengths import Lengths
from ladder_sim.serve.requests.promise import PERCENTILES, Metric
from ladder_sim.serve.requests.request import Request
from ladder_sim.serve.requests.traffic import MAX_BURSTINESS, Traffic
from ladder_sim.system.files import read_text, shown_path
from ladder_sim.units import quoted

KINDS = "vllm bench serve (--save-result), AIPerf (profile_export) or InferenceX"
# ten thousand requests of 1,000 tokens, the time of each written out
_MOST_BYTES = 256 * 2**20
# beyond any time, rate and count that was measured
_MOST = 1e12
# requests of each client in an InferenceX serving, and the shortest length as a share of the longest: its scripts give
# --num-prompts 10 x concurrency and --random-range-ratio 0.8
_ROUNDS, _SHORTEST = 10, 0.8
_UNITS = {"ms": 1e-3, "sec": 1.0, "s": 1.0, "us": 1e-6, "ns": 1e-9}

# what each calls the metrics
_VLLM: Mapping[str, Metric] = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}
_AIPERF: Mapping[str, Metric] = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "e2e",
}
_STATISTICS = {"mean": "mean", "median": "p50", **{f"p{number}": f"p{number}" for number in PERCENTILES}}
_AGAIN = "a truncated file? copy it again"
_JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A load as it was measured."""

    tool: str
    """Which load generator measured it."""
    requests: Traffic | Sequence[Request]
    """Drawn as the file describes them, or as they were recorded."""
    concurrency: int = 0
    """Requests in flight at most: of a rate the client held others back; 0: they came at times of their own."""
    figures: Mapping[str, float]
    """Measured: names as in `ladder_sim.serve.Outcome.fields`."""
    server: Mapping[str, Any] = field(default_factory=dict)
    """What the file says of the server, in its own words: model, system, backend, dtype, tp, ep, dp_attention."""
    left_out: str = ""
    """Why no simulation can be compared with it."""


def read_results(path: Path) -> tuple[Result, ...]:
    """Read the loads of a file; it may be gzipped.

    Parameters
    ----------
    path
        In one of the formats above.

    Raises
    ------
    UsageError
        The file cannot be read, is no such file, or a figure is missing or absurd.
    """
    name = shown_path(path)
    text = read_text(path, what=f"results of {KINDS}", limit_bytes=_MOST_BYTES, unpack=True, error=UsageError)
    documents = _documents(text, name)
    if all(is_record(document) for _, document in documents):
        return (_read(name, _of_records, [document for _, document in documents]),)
    return tuple(_read(where, _result, document) for where, document in documents)


def is_record(document: _JSON) -> bool:
    """Whether it is one request of an AIPerf run."""
    return "metadata" in document and "metrics" in document


def read_record(document: _JSON) -> tuple[float, int, int]:
    """When a request of an AIPerf run was sent, and its lengths; an answer of no tokens if it failed or warmed up."""
    about, metrics = document["metadata"], document["metrics"]
    at_s = 1e-9 * _number(about, "request_start_ns", most=1e20)
    if document.get("error") or about.get("was_cancelled") or about.get("benchmark_phase", "profiling") != "profiling":
        return at_s, 1, 0
    prompt, gen = (_count(metrics[f"{each}_sequence_length"], "value") for each in ("input", "output"))
    return at_s, prompt, gen


def _documents(text: str, name: str) -> list[tuple[str, _JSON]]:
    """The JSON objects of a file, each with where it stands."""
    try:
        content = _parsed(name, text)
        documents = [(name, content)]
        if isinstance(content, list):
            documents = [(f"{name}, entry {number}", each) for number, each in enumerate(content, 1)]
    except UsageError:
        lines = [(f"{name}, line {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        # an object on lines of its own is damaged; one a line may be
        if len(lines) < 2 or not lines[0][1].rstrip().endswith("}"):
            raise
        documents = [(where, _parsed(where, line)) for where, line in lines]
    if not documents or not all(isinstance(each, dict) for _, each in documents):
        raise UsageError(f"{name}: holds no results", hint=f"give results of {KINDS}")
    return documents


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        reason = "nested too deeply" if isinstance(fault, RecursionError) else str(fault)
        raise UsageError(f"{where}: no JSON ({reason})", hint=_AGAIN) from None


def _read(where: str, read: Callable[[Any], Result], content: Any) -> Result:
    """Read one load; a fault names where it stands."""
    try:
        return read(content)
    except UsageError as fault:
        raise UsageError(f"{where}: {fault.message}", hint=fault.hint) from None
    except KeyError as fault:
        raise UsageError(f"{where}: no field {fault}", hint=_AGAIN) from None
    except (TypeError, ValueError, IndexError, OverflowError, AttributeError) as fault:
        raise UsageError(f"{where}: cannot be read ({fault})", hint=_AGAIN) from None


def _result(document: _JSON) -> Result:
    for sign, read in (("total_input_tokens", _of_vllm), ("time_to_first_token", _of_aiperf), ("conc", _of_inferencex)):
        if sign in document:
            return read(document)
    fields = quoted(", ".join(document)[:80])
    raise UsageError(f"unknown format, with the fields {fields}", hint=f"give results of {KINDS}")


# vllm bench serve

_STACKS = {"sglang": "sglang", "tensorrt-llm": "trtllm"}


def _of_vllm(document: _JSON) -> Result:
    answered = _count(document, "completed")
    rate = math.inf if document["request_rate"] == "inf" else _number(document, "request_rate")
    # requests of a rate wait for one of --max-concurrency places, and their times count from when they are sent
    # (vLLM 0.32.0, benchmarks/serve.py)
    concurrency = _count(document, "max_concurrency") if document.get("max_concurrency") else 0
    if rate == math.inf:
        rate, concurrency = 0.0, concurrency or _count(document, "num_prompts")
    requests: Traffic | Sequence[Request]
    if "start_times" in document:
        requests = _answered(
            (_positive(at_s, "a start time"), _whole(prompt), _whole(gen))
            for at_s, prompt, gen in zip(
                *(document[each] for each in ("start_times", "input_lens", "output_lens")), strict=True
            )
        )
        if not rate:
            # sent when others were answered
            requests = tuple(replace(request, arrival_s=0.0) for request in requests)
    else:
        means = (_number(document, f"total_{each}_tokens") / answered for each in ("input", "output"))
        prompt, gen = (Lengths(kind="fixed", first=max(1.0, round(mean))) for mean in means)
        requests = Traffic(
            prompt=prompt,
            gen=gen,
            requests=answered,
            rate=rate,
            concurrency=concurrency,
            burstiness=_number(document, "burstiness"),
        )
    rates = {"requests_per_s": "request_throughput", "tokens_per_s": "output_throughput"}
    return Result(
        tool="vllm bench serve",
        requests=requests,
        concurrency=concurrency,
        figures=_times_s(document, "_ms", 1e-3) | {ours: _number(document, theirs) for ours, theirs in rates.items()},
        server={"model": document["model_id"], "backend": _STACKS.get(document.get("backend", ""), "vllm")},
    )


def _times_s(document: _JSON, suffix: str = "", unit_s: float = 1.0) -> dict[str, float]:
    """Figures in the words of vLLM's benchmark."""
    names = {
        f"{word}_{theirs}{suffix}": f"{ours}_{statistic}_s"
        for theirs, ours in _VLLM.items()
        for word, statistic in _STATISTICS.items()
    }
    return {ours: unit_s * _number(document, theirs) for theirs, ours in names.items() if document.get(theirs)}


def _answered(rows: Iterable[tuple[float, int, int]]) -> tuple[Request, ...]:
    """Requests in order of arrival, from the first on; those that failed have no answer and are left out."""
    answered = sorted(row for row in rows if row[2])
    if not answered:
        raise UsageError("holds no request that was answered", hint="look at the errors in the file")
    start_s = answered[0][0]
    return tuple(Request(arrival_s=at_s - start_s, prompt=prompt, gen=gen) for at_s, prompt, gen in answered)


# AIPerf


def _of_aiperf(document: _JSON) -> Result:
    asked = document["input_config"]
    (load,) = [phase for phase in asked["phases"] if phase["kind"] == "profiling"]
    rate = _number(load, "rate") if "rate" in load else 0.0
    concurrency = _count(load, "concurrency") if "concurrency" in load or not rate else 0
    if rate and load["type"] not in ("poisson", "constant", "gamma"):
        raise UsageError(
            f"arrivals of type {quoted(load['type'])}", hint="give profile_export.jsonl, which has their times"
        )
    regular = MAX_BURSTINESS if load["type"] == "constant" else 1.0
    traffic = Traffic(
        prompt=_spread(document["input_sequence_length"]),
        gen=_spread(document["output_sequence_length"]),
        requests=_count(document["request_count"], "avg"),
        rate=rate,
        concurrency=concurrency,
        burstiness=_number(load, "smoothness") if load["type"] == "gamma" else regular,
    )
    figures = {
        f"{ours}_{statistic}_s": _unit_s(theirs, document[theirs]) * _number(document[theirs], key)
        for theirs, ours in _AIPERF.items()
        if theirs in document
        for key, statistic in {**_STATISTICS, "avg": "mean"}.items()
        if key in document[theirs]
    }
    rates = {"requests_per_s": "request_throughput", "tokens_per_s": "output_token_throughput"}
    return Result(
        tool="AIPerf",
        requests=traffic,
        concurrency=concurrency,
        figures=figures | {ours: _number(document[theirs], "avg") for ours, theirs in rates.items()},
        server={"model": asked["models"]["items"][0]["name"]},
    )


def _unit_s(name: str, figures: _JSON) -> float:
    """The unit of a time, in seconds."""
    unit = figures["unit"]
    if unit not in _UNITS:
        raise UsageError(f"{name} in {quoted(unit)}: must be in {', '.join(_UNITS)}", hint="convert it")
    return _UNITS[unit]


def _spread(figures: _JSON) -> Lengths:
    """Lengths of a mean and a standard deviation."""
    mean = _number(figures, "avg")
    if not figures.get("std"):
        return Lengths(kind="fixed", first=max(1.0, round(mean)))
    half = math.sqrt(3.0) * _number(figures, "std")
    return Lengths(kind="uniform", first=max(1.0, round(mean - half)), second=max(1.0, round(mean + half)))


def _of_records(documents: Sequence[_JSON]) -> Result:
    rows = [read_record(document) for document in documents]
    requests = _answered(rows)
    metrics = [document["metrics"] for document, row in zip(documents, rows, strict=True) if row[2]]
    ends_s = [
        1e-9 * document["metadata"]["request_end_ns"] for document, row in zip(documents, rows, strict=True) if row[2]
    ]
    duration_s = _positive(max(ends_s) - min(row[0] for row in rows if row[2]), "the time from first to last")
    figures = {}
    for theirs, ours in _AIPERF.items():
        cells = [each[theirs] for each in metrics if theirs in each]
        if not cells:
            continue
        values = np.concatenate(
            [_unit_s(theirs, cell) * np.atleast_1d(np.asarray(cell["value"], float)) for cell in cells]
        )
        figures[f"{ours}_mean_s"] = float(values.mean())
        figures |= {f"{ours}_p{number}_s": float(np.percentile(values, number)) for number in PERCENTILES}
    rates = {"requests_per_s": len(requests), "tokens_per_s": sum(request.gen for request in requests)}
    figures |= {name: total / duration_s for name, total in rates.items()}
    for name, value in figures.items():
        _positive(value, name)
    return Result(tool="AIPerf", requests=requests, figures=figures)


# InferenceX


def _of_inferencex(document: _JSON) -> Result:
    concurrency = _count(document, "conc")
    prompt, gen = (
        Lengths(kind="uniform", first=max(1.0, round(_SHORTEST * longest)), second=float(longest))
        for longest in (_count(document, "isl"), _count(document, "osl"))
    )
    figures = _times_s(document)
    if document.get("output_tput_per_gpu"):
        figures["tokens_per_s_per_gpu"] = _number(document, "output_tput_per_gpu")
    elif document.get("tput_per_gpu"):
        # of prompts and answers
        share = document["osl"] / (document["isl"] + document["osl"])
        figures["tokens_per_s_per_gpu"] = share * _number(document, "tput_per_gpu")
    left_out = ""
    if document.get("spec_decoding", "none") not in ("", "none", None):
        left_out = f"speculative decoding ({document['spec_decoding']}): its acceptance is not in the file"
    elif document.get("disagg") in (True, "true"):
        left_out = "prefill and decode on GPUs of their own: how many have which is not in the file"
    words = {"model": "model", "hw": "system", "framework": "backend", "precision": "dtype", "tp": "tp", "ep": "ep"}
    return Result(
        tool="InferenceX",
        requests=Traffic(prompt=prompt, gen=gen, requests=_ROUNDS * concurrency, concurrency=concurrency),
        concurrency=concurrency,
        figures=figures,
        server={ours: document[theirs] for theirs, ours in words.items() if theirs in document}
        | {"dp_attention": document.get("dp_attention") in (True, "true")},
        left_out=left_out,
    )


# numbers


def _number(fields: _JSON, name: str, *, most: float = _MOST) -> float:
    return _positive(fields[name], name, most)


def _positive(raw: Any, name: str, most: float = _MOST) -> float:
    value = float(raw)
    if not 0.0 < value <= most:
        raise UsageError(f"{name} is {raw}: must be a number above 0", hint="correct it, or measure again")
    return value


def _count(fields: _JSON, name: str) -> int:
    value = _number(fields, name)
    if not value.is_integer():
        raise UsageError(f"{name} is {fields[name]}: must be a whole number", hint="correct it, or measure again")
    return int(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise UsageError(f"a length is {value}: must be a whole number", hint="correct it, or measure again")
    return value
