"""Result files of load generators: what was asked of a server, and what was measured.

vllm bench serve   a JSON object (--save-result), or one a line (--append-result); --save-detailed adds each request
SGLang             bench_serving: a JSON object a line
AIPerf             profile_export_aiperf.json holds figures, profile_export.jsonl a line for each request
GenAI-Perf         profile_export_genai_perf.json
GuideLLM           benchmarks.json: a report with a list of benchmarks
InferenceX         a JSON object for each serving, or an array of them: figures, and what they were measured on
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.serving.requests.generators import aiperf, guidellm, inferencex, sglang, vllm
from ladder_sim.serving.requests.generators.fields import JSON
from ladder_sim.serving.requests.result import Result
from ladder_sim.system.files import json_fault, read_text, shown_path
from ladder_sim.units import quoted

KINDS = "vllm bench serve, SGLang's bench_serving, AIPerf, GenAI-Perf, GuideLLM or InferenceX"
# ten thousand requests of 1,000 tokens, the time of each written out
_MOST_BYTES = 256 * 2**20
# keys that published results have besides those of their generator: what is known of the server is kept under the first
CAMPAIGN = ("campaign", "source")
# keys that only one generator writes, and what reads it: the first that has all of one set
_SIGNS: tuple[tuple[frozenset[str], Callable[[JSON], Result | Iterable[Result]]], ...] = (
    (frozenset({"benchmarks"}), guidellm.read),
    (frozenset({"total_input_tokens", "mean_e2e_latency_ms"}), sglang.read),
    (frozenset({"total_input_tokens", "mean_e2e_latency"}), sglang.read),
    (frozenset({"total_input_tokens", "total_output_tokens_retokenized"}), sglang.read),
    (frozenset({"total_input_tokens"}), vllm.read),
    (frozenset({"request_latency", "input_config"}), aiperf.read),
    (frozenset({"records", "input_config"}), aiperf.read),
    (frozenset({"conc"}), inferencex.read),
)


def read_results(path: Path) -> tuple[Result, ...]:
    """Read the loads of a file in one of the formats above, recognised by its keys; it may be gzipped.

    Raises UsageError if the file cannot be read, is no such file, or a figure is missing or absurd.
    """
    name = shown_path(path)
    text = read_text(path, what=f"results of {KINDS}", limit_bytes=_MOST_BYTES, unpack=True, error=UsageError)
    documents = _documents(text, name)
    if all(aiperf.is_record(document) for _, document in documents):
        results = _read(name, aiperf.read_records, [document for _, document in documents])
    else:
        results = tuple(result for where, document in documents for result in _read(where, _result, document))
    return tuple(
        replace(result, left_out=f"contradicts itself: {result.contradiction}") if result.contradiction else result
        for result in results
    )


def _documents(text: str, name: str) -> list[tuple[str, JSON]]:
    """Return the JSON objects of a file, each with where it stands."""
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
        documents = [(where, _parsed(where, line, last=line is lines[-1][1])) for where, line in lines]
    if not documents or not all(isinstance(each, dict) for _, each in documents):
        raise UsageError(f"{name}: holds no results", hint=f"give results of {KINDS}")
    return documents


def _parsed(where: str, text: str, *, last: bool = True) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        reason, hint = json_fault(text, fault, last=last)
        raise UsageError(f"{where}: {reason}", hint=hint or f"give results of {KINDS}") from None


def reason_of(fault: Exception) -> str:
    """Say what is wrong with a JSON object that its reader stumbled over."""
    if isinstance(fault, KeyError):
        return f"no field {fault}"
    return "nested too deeply" if isinstance(fault, RecursionError) else str(fault)


def _read(where: str, read: Callable[[Any], Result | Iterable[Result]], content: Any) -> tuple[Result, ...]:
    """Read the loads of one document; a fault names where it stands."""
    try:
        results = read(content)
        return (results,) if isinstance(results, Result) else tuple(results)
    except UsageError as fault:
        raise UsageError(f"{where}: {fault.message}", hint=fault.hint) from None
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as fault:
        raise UsageError(
            f"{where}: cannot be read: {reason_of(fault)}", hint=f"give the file as it was written by {KINDS}"
        ) from None


def _result(document: JSON) -> Result | Iterable[Result]:
    for keys, read in _SIGNS:
        if keys <= document.keys():
            result = read(document)
            if isinstance(result, Result) and "campaign" in document:
                result = replace(result, server={**result.server, **{key: document[key] for key in CAMPAIGN}})
            return result
    shown = ", ".join(map(str, document))
    raise UsageError(
        f"a JSON object with the keys {quoted(shown[:50])}: written by no known load generator",
        hint=f"give results of {KINDS}",
    )
