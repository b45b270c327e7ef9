"""The value of a field at which a variant's gain crosses a target.

A coarse scan over the range finds the brackets, in one vectorised pass if the field is a hardware figure, and a root
finder closes in on each. Two crossings between neighbouring scan points are missed.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ladder_sim.answer import Answer
from ladder_sim.confidence import Confidence, Interval
from ladder_sim.costs.memory import fit_error, memory_use
from ladder_sim.display.document import Notes
from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs.scenario import Scenario, formerly_a_dict, point_asked
from ladder_sim.specs.scenario_warnings import unused
from ladder_sim.sweeps.axes import Axis, axis, resolve, used_value, value_at
from ladder_sim.sweeps.evaluate import SweepOptions
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid, scenario_at
from ladder_sim.sweeps.run import run
from ladder_sim.sweeps.table import confidences
from ladder_sim.values import typed
from ladder_sim.wirings.names import canonical

# values of the coarse scan
SCANNED = 65
# the default range goes from the scenario's value divided by this to that multiplied by it
REACH = 16
# above any gain over another variant; more is a percentage without its sign
MAX_GAIN = 5.0
# of a crossing, relative to its value
PRECISION = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where the speedup crosses the target."""

    value: float
    """Value of the field; for integer fields the first value past the target that can run."""
    direction: Literal["rising", "falling"]
    """Whether the speedup grows with the field there, or falls."""
    speedup: Interval
    """Speedup at the value."""

    @property
    def rising(self) -> bool:
        """Whether the speedup grows with the field; former name of ``direction == "rising"``."""
        warnings.warn('Crossing.rising is Crossing.direction == "rising" now', DeprecationWarning, stacklevel=2)
        return self.direction == "rising"


class Range(NamedTuple):
    """Values of a field, both ends included."""

    start: float
    """Lowest value."""
    stop: float
    """Highest value."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BreakEven(Answer):
    """Speedup of one variant over another along a field."""

    shown_by = "breakeven.BreakEvenReport"

    scenario: Scenario
    """Everything that is fixed; the field has the value that was asked about, or the lowest that can run."""
    now: float | None
    """Value of the field in the scenario that was asked about; None: that cannot run, or lies out of the range."""
    field: str
    """Name of the field, with its unit."""
    variant: str
    """Whose gain it is."""
    over: str
    """The variant to compare with."""
    target: float
    """Speedup to search for."""
    unit: str
    """Unit in which the range, or else the figure, was typed; empty for none, or several."""
    values: NDArray[np.float64]
    """Scanned, ascending."""
    speedups: NDArray[np.float64]
    """At these; NaN where one of both cannot run."""
    lows: NDArray[np.float64]
    """Lower ends of their 90 % intervals."""
    highs: NDArray[np.float64]
    """Upper ends of the same intervals."""
    crossings: tuple[Crossing, ...]
    """Ascending."""
    sure: tuple[Range, ...]
    """Where the lower end of the interval reaches the target, ascending; of integer fields, between scanned values the
    first and last that do."""
    confidences: Mapping[str, Confidence]
    """How sure the predictions are, by value: at the ends of the range."""
    beside: Mapping[float, Interval]
    """Speedups at the ends of `sure` and at `now`."""

    @property
    def notes(self) -> Notes:
        """What the reader should know about the predictions."""
        return Notes(confidences=self.confidences)

    @property
    def ends(self) -> tuple[tuple[float, Interval], tuple[float, Interval]]:
        """The lowest and the highest value that can run, each with its speedup."""
        there = np.flatnonzero(~np.isnan(self.speedups))
        low, high = (
            (
                float(self.values[at]),
                Interval(value=float(self.speedups[at]), low=float(self.lows[at]), high=float(self.highs[at])),
            )
            for at in (there[0], there[-1])
        )
        return low, high


@formerly_a_dict
@typed()
def breakeven(
    scenario: Scenario | None = None,
    field: str = "",
    given: str | None = None,
    *,
    variant: str = "ladder",
    over: str = "standard",
    gain: float | str = 0.0,
    profile: str | None = None,
    ignore_memory: bool = False,
    **fields: Any,
) -> BreakEven:
    """Find where a variant's gain crosses a target.

    Parameters
    ----------
    scenario
        Everything that is fixed; or its arguments as keywords.
    field
        Argument of a scenario or setting that varies; a number.
    given
        Its range, e.g. ``"50:800Gb/s"``; by default a sixteenth to sixteen times the scenario's value.
    variant, over
        The speedup is of the first over the second.
    gain
        0.05 or ``"5%"`` searches for a speedup of 1.05.
    profile, ignore_memory
        As in `predict`.

    Returns
    -------
    BreakEven
        The crossings, and the speedups at the values that were scanned.

    Raises
    ------
    UsageError
        The field is not a number, the range is malformed, or the gain is out of range.
    InfeasibleError
        Nothing in the range can run.

    Examples
    --------
    >>> result = breakeven(Scenario(model="405b", nodes=2), "inter.allreduce_floor", "16:400us", gain=0.3)
    >>> [(f"{1e6 * crossing.value:.1f} us", crossing.direction) for crossing in result.crossings]
    [('25.0 us', 'rising'), ('276.0 us', 'falling')]
    >>> [f"{1e6 * start:.0f} to {1e6 * stop:.0f} us" for start, stop in result.sure]
    ['66 to 142 us']
    """
    point = point_asked(scenario, fields)
    target = 1.0 + _gain(gain)
    values = _scan_values(point, field, given)
    if reason := "." in values.name and _unused(point, values.name):
        raise UsageError(f"{field} changes nothing: {reason}", hint="search along a figure that is used")
    how = SweepOptions(
        variants=(canonical(variant),),
        over=canonical(over),
        profile=profile,
        ignore_memory=ignore_memory,
        intervals=True,
    )
    speedup = _Speedup(point, values.name, how)
    scanned, lows, highs = speedup.at(values.values)
    whole = isinstance(values.values[0], int)
    if np.isnan(scanned).all():
        problem, hint = speedup.problem, "take another range"
        here = scenario_at(point)
        memory = memory_use(here)
        if not memory.fits and not ignore_memory:
            error = fit_error(here, memory, otherwise=f"or {hint}")
            problem, hint = error.message, error.hint
        raise InfeasibleError(f"nothing in the range of {field} can run: {problem}", hint=hint)
    # degrees of parallelism that cannot run lie between others that can; a figure has no value next to a gap
    tried = [each for each in zip(values.values, scanned, lows, strict=True) if not (whole and np.isnan(each[1]))]
    crossings = []
    for (start, left, _), (end, right, _) in pairwise(tried):
        # never where one is NaN
        if left < target <= right or left > target >= right:
            value = _close_in(speedup.value, target, (start, end), whole=whole)
            crossings.append(
                Crossing(
                    value=value, direction="rising" if right > left else "falling", speedup=speedup.interval(value)
                )
            )
    sure = tuple(_sure(speedup, target, [(value, low) for value, _, low in tried], whole=whole))
    able = [value for value, here in zip(values.values, scanned, strict=True) if not np.isnan(here)]
    asked, now = _asked(point, values.name, able, profile)
    beside = dict.fromkeys([*(end for each in sure for end in each), *([] if now is None else [now])])
    return BreakEven(
        scenario=asked,
        now=now,
        field=values.name,
        variant=variant,
        over=over,
        target=target,
        unit=values.unit,
        values=np.asarray(values.values, np.float64),
        speedups=scanned,
        lows=lows,
        highs=highs,
        crossings=tuple(crossings),
        sure=sure,
        confidences=speedup.confidences((values.values[0], values.values[-1])),
        beside={value: speedup.interval(int(value) if whole else value) for value in beside},
    )


def _asked(
    point: Mapping[str, Any], field: str, values: Sequence[float], profile: str | None
) -> tuple[Scenario, float | None]:
    """Return the scenario, and its own value of the field if that and values around it can run; else None."""
    try:
        scenario = scenario_at(point)
    except InfeasibleError:
        fixed = {key: value for key, value in point.items() if resolve(key)[0] != field}
        return scenario_at({**fixed, field: values[0]}), None
    now = used_value(scenario, field, resolve_profile(scenario, profile))
    # None: requests in flight of a static batch, or a batch of those
    inside = now is not None and values[0] <= now <= values[-1]
    return scenario, now if inside and memory_use(scenario).fits else None


def _gain(given: float | str) -> float:
    """Read a share, or as text also a percentage; a text above 1 must have the sign, as percentages once had none."""
    percentage = isinstance(given, str) and given.rstrip().endswith("%")
    try:
        gain = float(given.rstrip(" %")) / 100.0 if percentage else float(given)  # type: ignore[union-attr]
    except ValueError:
        gain = math.nan
    if isinstance(given, str) and not percentage and gain > 1.0:
        raise UsageError(
            f"gain {given}: must have a percent sign, or be a share from 0 to 1", hint=f"write {given}%; 0.1 is 10%"
        )
    if not -1.0 < gain <= MAX_GAIN:
        raise UsageError(
            f"gain {given}: must be above -100% and at most {MAX_GAIN:.0%}", hint="10% is --gain 10% or 0.1"
        )
    return gain


def _unused(point: Mapping[str, Any], name: str) -> str:
    try:
        return unused(scenario_at(point), name)
    except InfeasibleError:
        # with another value of the field it may run
        return ""


class _Speedup:
    """Speedup of one variant over another as a function of one field."""

    def __init__(self, point: Mapping[str, Any], field: str, how: SweepOptions) -> None:
        # as a list: text is one value and no range
        self._fixed = {key: [value] for key, value in point.items() if resolve(key)[0] != field}
        self._field = field
        self._how = how
        # why a value of the last call could not run
        self.problem = ""

    def confidences(self, values: Sequence[float]) -> dict[str, Confidence]:
        """Return the confidence of the predictions at these values, by variant."""
        return confidences(Grid({**self._fixed, self._field: values}, (*self._how.variants, self._how.over)), self._how)

    def at(self, values: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the speedups at some values, and both ends of their intervals; NaN where one variant cannot run."""
        table = run(Grid({**self._fixed, self._field: values}, self._how.variants), self._how, serial)
        self.problem = next(filter(None, table["infeasible"]), "")
        name = f"{self._how.variants[0]}.speedup"
        return table[name], table[f"{name}_low"], table[f"{name}_high"]

    def value(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return the speedups without intervals."""
        return self.at(values)[0]

    def low(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Lower ends of their intervals."""
        return self.at(values)[1]

    def interval(self, value: float) -> Interval:
        """Return the speedup at one value, with its interval."""
        (speedup,), (low,), (high,) = self.at([value])
        return Interval(value=float(speedup), low=float(low), high=float(high))


def _sure(speedup: _Speedup, target: float, lows: Sequence[tuple[float, float]], *, whole: bool) -> Iterator[Range]:
    """Yield the ranges in which the lower end of the interval reaches the target, given it at scanned values."""
    for reaches, run_of in groupby(enumerate(lows), lambda each: each[1][1] >= target):
        if not reaches:
            continue
        (first, (start, _)), *others = run_of
        last, (stop, _) = others[-1] if others else (first, lows[first])
        if first and not np.isnan(lows[first - 1][1]):
            start = _reaching(
                speedup, target, _close_in(speedup.low, target, (lows[first - 1][0], start), whole=whole), start
            )
        if last + 1 < len(lows) and not np.isnan(lows[last + 1][1]):
            beyond = lows[last + 1][0]
            past = _close_in(speedup.low, target, (stop, beyond), whole=whole)
            between = range(int(stop) + 1, int(past)) if whole else ()
            # the last that can run before it
            can_run = zip(between, speedup.low(between), strict=True) if between else ()
            stop = (
                max([stop, *(value for value, low in can_run if not np.isnan(low))])
                if whole
                else _reaching(speedup, target, past, stop)
            )
        yield Range(start, stop)


def _reaching(speedup: _Speedup, target: float, end: float, inside: float) -> float:
    """Return the end of a range where the lower end reaches the target: where it jumps, the side that is inside."""
    if speedup.low([end])[0] >= target * (1.0 - PRECISION):
        return end
    return end + math.copysign(2.0 * PRECISION * end, inside - end)


def _close_in(
    figure: Callable[[Sequence[float]], NDArray[np.float64]],
    target: float,
    bracket: tuple[float, float],
    *,
    whole: bool,
) -> float:
    """Return the value inside a bracket at which a figure is `target`, or jumps over it."""
    left, right = bracket

    def excess(value: float) -> float:
        return float(figure([value])[0]) - target

    if whole:
        between, left_is_above = range(int(left) + 1, int(right)), excess(left) > 0
        figures = zip(between, figure(between), strict=True) if between else ()
        # NaN where a degree cannot run
        past = (value for value, here in figures if not np.isnan(here) and (here > target) != left_is_above)
        return next(past, right)
    if excess(left) * excess(right) > 0:
        # a single value may be rounded otherwise than in the scan
        return min(bracket, key=lambda value: abs(excess(value)))
    from scipy.optimize import brentq

    root: float = brentq(excess, left, right, rtol=PRECISION)
    return root


def _scan_values(point: Mapping[str, Any], field: str, given: str | None) -> Axis:
    """Return the values between the ends of a range: evenly spaced by factor, or by step from zero on."""
    name, unit, low, high = _ends(point, field, given)
    spaced = (np.geomspace if low > 0 else np.linspace)(float(low), float(high), SCANNED)
    # rounding must not leave the range
    spaced[0], spaced[-1] = low, high
    whole = isinstance(low, int)
    scanned = axis(name, [int(value) for value in np.unique(np.round(spaced))] if whole else spaced.tolist())
    return replace(scanned, unit=unit)


def _ends(point: Mapping[str, Any], field: str, given: str | None) -> tuple[str, str, float, float]:
    """Return the field's name, the unit that was typed, and both ends of the range."""
    name, kind = resolve(field)
    if kind not in (int, float):
        raise UsageError(f"{field} is not a number", hint="break-even needs a field with numbers, e.g. inter.bandwidth")
    if given is not None:
        typed = axis(field, given, factor=2)
        unit = typed.unit
        low, *_, high = typed.values * 2
    else:
        scenario = scenario_at(point)
        now, unit = value_at(scenario, name), scenario.settings.get(name, "")
        low, high = (max(1, now // REACH), now * REACH) if kind is int else (now / REACH, now * REACH)
    if not low < high:
        raise UsageError(f"{field}: the range from {low:g} to {high:g} is empty", hint=f"write {field}=START:STOP")
    return name, unit, low, high
