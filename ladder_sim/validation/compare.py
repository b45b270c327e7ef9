"""Each measurement beside its prediction, and how far apart they are."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ladder_sim.errors import InfeasibleError, LadderSimError, UsageError
from ladder_sim.prediction import NO_PROFILE, Interval, Prediction, predict
from ladder_sim.validation.dataset import Configuration, Measurement
from ladder_sim.validation.splits import FIT_TPS, tp_group

Level = Literal["roofline", "microbench"]

LEVELS: MappingProxyType[Level, str] = MappingProxyType(
    {
        "roofline": "datasheet figures only",
        "microbench": "measured kernels and collectives, no end-to-end calibration",
    }
)
# evidence behind the predictions, the weakest first
ALL_TPS = "all"
# group of a summary over every tensor-parallel degree


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A measured figure beside its prediction."""

    measured: float
    # as published
    predicted: Interval
    # with its 90 % interval

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.value / self.measured - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured figure lies in the interval."""
        return self.predicted.low <= self.measured <= self.predicted.high

    @property
    def half_width(self) -> float:
        """Half of the interval, relative to the prediction."""
        return (self.predicted.high - self.predicted.low) / (2.0 * self.predicted.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One measurement beside its prediction."""

    measurement: Measurement
    # what was measured
    tokens_per_s: Quantity | None
    # of the whole batch; None where it cannot be predicted
    speedup: Quantity | None
    # over standard of the same configuration; None for standard itself, and where either is missing
    note: str = ""
    # why something is missing, or is to be read with care


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far predictions of one quantity lie from the measurements; fractions."""

    rows: int
    # compared
    mean_error: float
    # mean absolute error
    max_error: float
    # largest absolute error
    inside: float
    # share of rows whose 90 % interval holds the measured figure
    half_width: float
    # mean half-width of the intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The spreads of one variant in one part of a data set."""

    variant: str
    # canonical name
    p2p: bool
    # GPUs of a node reach each other directly
    tps: str
    # tensor-parallel degrees: "2 and 4", "8", ..., or `ALL_TPS`
    rows: int
    # measured
    speedup: Spread | None
    # None where nothing was compared
    tokens_per_s: Spread | None
    # None where nothing was compared


def compare(rows: Sequence[Measurement], level: Level) -> tuple[Comparison, ...]:
    """Predict every measurement with the evidence of one level; in the order given."""
    groups: dict[Configuration, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(row.configuration, []).append(row)
    found = {
        (one.measurement.configuration, one.measurement.variant): one
        for configuration, group in groups.items()
        for one in _compare_group(configuration, group, level)
    }
    return tuple(found[row.configuration, row.variant] for row in rows)


def _compare_group(configuration: Configuration, rows: Sequence[Measurement], level: Level) -> list[Comparison]:
    predictions, note = _predictions(configuration, [row.variant for row in rows], level)
    standard = next((row for row in rows if row.variant == "standard"), None)
    found = []
    for row in rows:
        predicted = predictions.get(row.variant)
        if predicted is None:
            found.append(Comparison(measurement=row, tokens_per_s=None, speedup=None, note=note))
            continue
        speedup, why = None, note
        if standard is None:
            why = "; ".join(filter(None, (note, "no speedup: no standard row of this configuration")))
        elif row is not standard:
            speedup = Quantity(measured=row.tokens_per_s / standard.tokens_per_s, predicted=predicted.speedup)
        rate = Quantity(measured=row.tokens_per_s, predicted=predicted.tokens_per_s)
        found.append(Comparison(measurement=row, tokens_per_s=rate, speedup=speedup, note=why))
    return found


def _predictions(configuration: Configuration, variants: list[str], level: Level) -> tuple[dict[str, Prediction], str]:
    """Predictions by variant, and what is to be known about them; none where it says why there are none."""
    try:
        scenario = configuration.scenario()
    except InfeasibleError as error:
        return {}, f"not predicted: {error.message}"
    if level == "microbench" and scenario.cluster.profile in ("", NO_PROFILE):
        return {}, f"not predicted: cluster '{scenario.cluster.name}' names no measured profile"
    # it has been measured, so it did fit, whatever the memory model thinks
    found = predict(scenario, variants, profile=NO_PROFILE if level == "roofline" else None, ignore_memory=True)
    fits = next(iter(found.values())).memory.fits
    return found, "" if fits else "the memory model says that this does not fit"


def summarize(comparisons: Iterable[Comparison]) -> tuple[Summary, ...]:
    """Errors and coverage by variant, interconnect and group of tensor-parallel degrees, and over all degrees."""
    parts: dict[tuple[str, bool, str], list[Comparison]] = {}
    for one in comparisons:
        row = one.measurement
        for tps in (tp_group(row.configuration.tp), ALL_TPS):
            parts.setdefault((row.variant, row.configuration.p2p, tps), []).append(one)
    variants = list(dict.fromkeys(variant for variant, _, _ in parts))
    return tuple(
        Summary(
            variant=variant,
            p2p=p2p,
            tps=tps,
            rows=len(members),
            speedup=_spread([one.speedup for one in members]),
            tokens_per_s=_spread([one.tokens_per_s for one in members]),
        )
        for (variant, p2p, tps), members in sorted(
            parts.items(), key=lambda part: (variants.index(part[0][0]), not part[0][1], _order(part[0][2]))
        )
    )


def _order(tps: str) -> float:
    if tps == ALL_TPS:
        return math.inf
    return int(tps) if tps.isdigit() else max(FIT_TPS)


def _spread(quantities: Iterable[Quantity | None]) -> Spread | None:
    found = [one for one in quantities if one is not None]
    if not found:
        return None
    errors = [abs(one.error) for one in found]
    return Spread(
        rows=len(found),
        mean_error=math.fsum(errors) / len(found),
        max_error=max(errors),
        inside=sum(one.inside for one in found) / len(found),
        half_width=math.fsum(one.half_width for one in found) / len(found),
    )


def gate(comparisons: Iterable[Comparison], most: float) -> None:
    """Refuse predictions of ladder's speedup that miss by more than `most` on average, over all rows with P2P on.

    Parameters
    ----------
    comparisons
        Of one level.
    most
        Largest mean absolute error, as a fraction.

    Raises
    ------
    LadderSimError
        The mean is larger, or a row could not be compared.
    UsageError
        There is no ladder row with P2P on.
    """
    rows = [one for one in comparisons if one.measurement.variant == "ladder" and one.measurement.configuration.p2p]
    if not rows:
        raise UsageError("--max-error: no ladder row with P2P on", hint="leave --max-error out for this data set")
    for one in rows:
        if one.speedup is None:
            # a row that cannot be predicted must not make the mean better
            raise LadderSimError(
                f"--max-error: line {one.measurement.line} has no speedup to compare: {one.note}",
                hint="leave the row out, or add what it lacks",
            )
    mean = math.fsum(abs(one.speedup.error) for one in rows if one.speedup) / len(rows)
    if mean > most:
        raise LadderSimError(
            f"mean absolute error of ladder's speedup over {len(rows)} rows with P2P on is {mean:.2%}: must be at most "
            f"{most:.2%}",
            hint="the table shows which rows miss",
        )
