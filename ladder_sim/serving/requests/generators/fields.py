"""Fields of results as numbers, and statistics in the words of generators."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.slo import PERCENTILES, Metric
from ladder_sim.serving.requests.traffic import Lengths
from ladder_sim.units import quoted

JSON = Mapping[str, Any]
# beyond any time in seconds, rate and count that was measured
_MOST = 1e12
UNITS_S = {"ms": 1e-3, "sec": 1.0, "seconds": 1.0, "s": 1.0, "us": 1e-6, "ns": 1e-9}
# metrics in the words of vllm bench serve, SGLang and InferenceX
BENCH_TIMES: Mapping[str, Metric] = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e", "e2e_latency": "e2e"}
STATISTICS = {"mean": "mean", "median": "p50", **{f"p{number}": f"p{number}" for number in PERCENTILES}}


def number(fields: JSON, name: str, *, most: float = _MOST) -> float:
    """Return the field `name`, a number above 0."""
    return positive(fields[name], name, most)


def positive(raw: Any, name: str, most: float = _MOST) -> float:
    """Return a number above 0; `name` is what messages call it."""
    value = float(raw)
    if not 0.0 < value <= most:
        raise UsageError(
            f"{name} is {quoted(raw)}: must be a number above 0, at most {most:g}", hint="correct it, or measure again"
        )
    return value


def seconds(fields: JSON, name: str, scale_s: float) -> float:
    """Return the time `name`, which counts units of `scale_s` seconds."""
    return scale_s * number(fields, name, most=_MOST / scale_s)


def count(fields: JSON, name: str) -> int:
    """Return the field `name`, a whole number above 0."""
    value = number(fields, name)
    if not value.is_integer():
        raise UsageError(f"{name} is {fields[name]}: must be a whole number", hint="correct it, or measure again")
    return int(value)


def whole(value: Any) -> int:
    """Return the length of a prompt or an answer."""
    if type(value) is not int:
        raise UsageError(f"a length is {quoted(value)}: must be a whole number", hint="correct it, or measure again")
    return value


def or_zero(fields: JSON, name: str) -> float:
    """Return the field `name`, or 0 where it is left out, null or 0."""
    return number(fields, name) if fields.get(name) else 0.0


def unit_s(name: str, figures: JSON) -> float:
    """Return the unit of the time `name`, in seconds."""
    unit = figures["unit"]
    if unit not in UNITS_S:
        raise UsageError(f"{name} in {quoted(unit)}: must be in {', '.join(UNITS_S)}", hint="convert it")
    return UNITS_S[unit]


def times_s(document: JSON, suffix: str = "", scale_s: float = 1.0) -> dict[str, float]:
    """Return figures that are written as ``mean_ttft_ms``, with `suffix`, in a unit of `scale_s`."""
    keys = {
        f"{word}_{theirs}{suffix}": f"{ours}_{statistic}_s"
        for theirs, ours in BENCH_TIMES.items()
        for word, statistic in STATISTICS.items()
    }
    return {ours: seconds(document, theirs, scale_s) for theirs, ours in keys.items() if document.get(theirs)}


def fixed(mean: float) -> Lengths:
    """Return the lengths where no more than the mean is known."""
    return Lengths(kind="fixed", first=max(1.0, round(mean)))


def spread(mean: float, deviation: float) -> Lengths:
    """Return the lengths with a mean and a standard deviation."""
    half = math.sqrt(3.0) * deviation
    if round(mean - half) == round(mean + half):
        return fixed(mean)
    return Lengths(kind="uniform", first=max(1.0, round(mean - half)), second=max(1.0, round(mean + half)))


def answered(rows: Iterable[tuple[float, int, int]]) -> tuple[Request, ...]:
    """Return the answered requests in order of arrival, from the first on; failed ones are left out."""
    kept = sorted(row for row in rows if row[2])
    if not kept:
        raise UsageError("holds no request that was answered", hint="look at the errors in the file")
    start_s = kept[0][0]
    return tuple(Request(arrival_s=at_s - start_s, prompt=prompt, gen=gen) for at_s, prompt, gen in kept)


def stated(config: Any, *names: str) -> Iterator[Any]:
    """Yield the values of fields anywhere in a configuration, the first name's first; empty ones are left out."""
    for name in names:
        yield from _within(config, name)


def _within(config: Any, name: str) -> Iterator[Any]:
    if isinstance(config, Mapping):
        if config.get(name):
            yield config[name]
        for value in config.values():
            yield from _within(value, name)
    elif isinstance(config, list):
        for value in config:
            yield from _within(value, name)
