"""A minute of a replica under load, for Perfetto: its steps, its requests, and counters of its state."""

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from ladder_sim.serving import Outcome
from ladder_sim.serving.steps.mix import Mix
from ladder_sim.traces.perfetto import US, Track, nanoseconds, process_name, slice_event, thread_name, write_events

MINUTE_S = 60.0


def write_steps(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Write the middle minute of one replica of each variant, gzipped if the name ends in .gz.

    The outcomes are of simulations that keep their steps.
    """
    numbers = count(1)
    write_events([event for name, outcome in outcomes.items() for event in _replica(name, outcome, numbers)], path)


def _replica(name: str, outcome: Outcome, numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
    replica, track = outcome.recorded, {"pid": next(numbers), "tid": next(numbers)}
    end_s = replica.steps[-1].start_s + replica.steps[-1].seconds
    begin_s = max(0.0, 0.5 * (end_s - MINUTE_S))
    yield process_name(track["pid"], f"{name}: one replica")
    yield thread_name(track, "steps")
    for step in replica.steps:
        if begin_s <= step.start_s < begin_s + MINUTE_S:
            start_ns, end_ns = nanoseconds(step.start_s), nanoseconds(step.start_s + step.seconds)
            yield slice_event(_name(step.mix), "step", track, (start_ns, end_ns), step.mix._asdict())
            requests = {"running": step.running, "waiting": step.waiting}
            yield from _counters(track, end_ns, {"requests": requests, "KV cache (%)": {"in use": 100 * step.kv_share}})
    for answer in replica.answers:
        request = answer.request
        if request.arrival_s < begin_s + MINUTE_S and answer.last_s > begin_s:
            about = {"prompt": request.prompt, "gen": request.gen, "preemptions": answer.preemptions}
            parts = {"waits, prompt": (request.arrival_s, answer.first_s), "decodes": (answer.first_s, answer.last_s)}
            for part, span_s in parts.items():
                yield from _async(part, track, answer.number, span_s, about)


def _counters(track: Track, at_ns: int, values: Mapping[str, Mapping[str, float]]) -> Iterator[dict[str, Any]]:
    for name, series in values.items():
        yield {"ph": "C", "name": name, "pid": track["pid"], "ts": at_ns / US, "args": dict(series)}


def _async(
    name: str, track: Track, number: int, span_s: tuple[float, float], about: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield the two events of a part of a request, on the row of the request."""
    for kind, seconds, arguments in zip("be", span_s, (about, {}), strict=True):
        event = {"ph": kind, "cat": "request", "id": number, "name": name, "pid": track["pid"]}
        yield {**event, "ts": nanoseconds(seconds) / US, "args": dict(arguments)}


def _name(mix: Mix) -> str:
    parts = [f"decode {mix.decoding}"] if mix.decoding else []
    return " + ".join([*parts, *([f"prompt {mix.chunk}"] if mix.prompts else [])])
