"""Each measurement compared with its prediction."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from types import MappingProxyType
from typing import Literal, overload

from ladder_sim.answer import Named
from ladder_sim.confidence import Interval
from ladder_sim.costs.profile import NO_PROFILE, CalibrationProfile, StackFit
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import InfeasibleError, LadderSimError, UnknownNameError, UsageError
from ladder_sim.prediction import predict
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.dataset import (
    DEFAULT_DATASET,
    FIT_TPS,
    PROTOCOLS,
    Configuration,
    Dataset,
    Measurement,
    dataset_names,
    read_dataset,
)
from ladder_sim.validation.runs import MeasuredRuns, RunCheck, validate_runs
from ladder_sim.values import typed
from ladder_sim.wirings.names import NO_COMMUNICATION

Level = Literal["roofline", "microbench", "protocol-a", "protocol-b", "profile"]

# evidence behind the predictions, the weakest first
LEVELS: MappingProxyType[Level, str] = MappingProxyType(
    {
        "roofline": "datasheet figures only",
        "microbench": "measured kernels and collectives, no end-to-end calibration",
        "protocol-a": "as microbench, and figures of the stack fitted to standard and upper-bound runs at TP 2 and 4",
        "protocol-b": "as protocol-a, fitted to ladder runs at TP 2 and 4 as well: the profile that predictions use",
    }
)

# every one of them
ALL_LEVELS: Literal["all"] = "all"

# a profile that the caller names
OWN_PROFILE: Level = "profile"

# shipped profiles of the levels with a fit
FITTED_PROFILES: MappingProxyType[Level, str] = MappingProxyType(
    {"protocol-a": "h100-sxm-gpt-fast-a", "protocol-b": "h100-sxm-gpt-fast"}
)

# what is compared, in the order in which it is told
QUANTITIES = ("speedup", "tokens_per_s", "tpot_s", "ttft_s")

# group of a summary over every tensor-parallel degree
ALL_TPS = "all"
# group of the degrees that a fit may see
_FIT_GROUP = " and ".join(map(str, FIT_TPS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A measured figure and its prediction."""

    measured: float
    """As published."""
    predicted: Interval
    """Prediction with its 90 % interval."""

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
    """One measurement and its prediction."""

    measurement: Measurement
    tokens_per_s: Quantity | None
    """Throughput of the whole batch; None where it cannot be predicted."""
    speedup: Quantity | None
    """Over standard of the same configuration; None for standard itself, and where either is missing."""
    tpot_s: Quantity | None = None
    """Time of a decode step, seconds; None where it was not measured apart, or cannot be predicted."""
    ttft_s: Quantity | None = None
    """Time of the prefill, seconds; None: not measured apart, or it cannot be predicted."""
    seen: bool = False
    """Whether the fit behind the prediction has used the measurement."""
    note: str = ""
    """Why something is missing, or a caveat."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Validation(Named[Level, Sequence[Comparison]]):
    """Comparisons of one data set by level of evidence, the strongest last."""

    shown_by = "validation.ValidationReport"
    parts = "levels"

    data: Dataset
    """Measured runs."""
    levels: Mapping[Level, tuple[Comparison, ...]]
    """A comparison of each run, in the order of the data set, by level."""

    @property
    def level(self) -> Level:
        """The strongest level."""
        return list(self.levels)[-1]

    @property
    def rows(self) -> tuple[Comparison, ...]:
        """Comparisons at the strongest level."""
        return self.levels[self.level]

    @property
    def unseen(self) -> "Unseen":
        """Comparisons at the strongest level that no fit behind the predictions has used."""
        return Unseen(rows=unseen(self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Comparisons that no fit behind the predictions has used."""

    rows: tuple[Comparison, ...]
    """In the order of the data set."""

    def quantities(self, figure: str, *, p2p: bool) -> list[Quantity]:
        """Return the comparisons of a figure, such as "ladder.speedup" or "standard.tokens_per_s", by kind of links."""
        variant, _, name = figure.rpartition(".")
        members = [row for row in self.rows if row.measurement.variant == variant]
        quantities = [getattr(row, name) for row in members if row.measurement.configuration.p2p == p2p]
        return [quantity for quantity in quantities if quantity is not None]

    @property
    def figures(self) -> tuple[str, ...]:
        """What was compared: the speedups, ladder's first, then the throughputs in the same order."""
        variants = dict.fromkeys(row.measurement.variant for row in self.rows)
        ordered = sorted(variants, key=lambda name: (name != "ladder", name == NO_COMMUNICATION, name == "standard"))
        names = [f"{variant}.{name}" for name in QUANTITIES for variant in ordered]
        return tuple(name for name in names if any(self.quantities(name, p2p=p2p) for p2p in (True, False)))

    @property
    def mean_error(self) -> Mapping[str, float]:
        """Mean absolute error of each figure, a fraction, over links with P2P; without, where there are no others."""
        return {
            name: errors.mean_error
            for name in self.figures
            if (errors := error_stats(self.quantities(name, p2p=True) or self.quantities(name, p2p=False)))
        }


def evidence(level: Level) -> str:
    """Return what a level predicts from, in words."""
    return LEVELS.get(level, "the profile that was given")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStats:
    """Errors of one quantity's predictions, as fractions."""

    rows: int
    """Number of measurements that were compared."""
    mean_error: float
    """Mean absolute error."""
    median_error: float
    """Median absolute error."""
    max_error: float
    """Largest absolute error."""
    bias: float
    """Mean of the errors with their signs: above 0 where predictions are too large."""
    inside: float
    """Share of rows whose 90 % interval holds the measured figure."""
    half_width: float
    """Mean half-width of the intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """The spreads of one variant in one part of a data set."""

    variant: str
    """Canonical name."""
    p2p: bool
    tps: str
    """Tensor-parallel degrees: "2 and 4", "8", ..., or `ALL_TPS`."""
    rows: int
    """Measured."""
    unseen: int
    """Number of the measured rows that the fit behind the predictions has not seen."""
    speedup: ErrorStats | None
    """None where nothing was compared."""
    tokens_per_s: ErrorStats | None
    tpot_s: ErrorStats | None
    ttft_s: ErrorStats | None


@overload
def validate(
    dataset: str | Dataset = DEFAULT_DATASET,
    level: Level | Literal["all"] = ALL_LEVELS,
    *,
    profile: str | CalibrationProfile | None = None,
) -> Validation: ...
@overload
def validate(
    dataset: MeasuredRuns, *, profile: str | CalibrationProfile, held_back: Sequence[str] = ()
) -> RunCheck: ...
@typed(unless={"dataset"})
def validate(
    dataset: str | Dataset | MeasuredRuns = DEFAULT_DATASET,
    level: Level | Literal["all"] = ALL_LEVELS,
    *,
    profile: str | CalibrationProfile | None = None,
    held_back: Sequence[str] = (),
) -> Validation | RunCheck:
    """Compare measured runs of static batches with predictions.

    Parameters
    ----------
    dataset
        CSV file of runs, or a data set of the package; see `ladder_sim.validation.dataset`. Or requests that ran on
        this machine, as `ladder_sim_runtime.runs.bench` returns them: they need a profile of real passes on it.
    level
        Evidence behind the predictions: one of `LEVELS`, or all of them.
    profile
        Predict from this profile instead: a name, a path, or a loaded one.
    held_back
        Of requests on this machine: wirings that must be among them, and that the profile must not have timed.

    Returns
    -------
    Validation, or RunCheck of requests on this machine
        By level, a comparison of each run, in the order of the data set, and `unseen` of the strongest level. With a
        profile there is one level, ``"profile"``.

    Raises
    ------
    UsageError
        The data set or the profile cannot be read, or there is no such level.

    Examples
    --------
    >>> compared = validate("ladder-70b", level="protocol-b")
    >>> len(compared.rows), f"{compared.unseen.mean_error['ladder.speedup']:.1%}"
    (70, '1.2%')
    """
    if not isinstance(dataset, str | Dataset):
        if not isinstance(dataset, MeasuredRuns):
            raise UsageError(f"dataset is {dataset!r}: must be text, a Dataset or runs", hint="give a CSV file's path")
        if profile is None:
            raise UsageError("requests on a machine need its profile", hint="profile=measure(scenario)")
        return validate_runs(dataset, profile, held_back)
    data = read_dataset(dataset) if isinstance(dataset, str) else dataset
    if level not in (*LEVELS, ALL_LEVELS):
        raise UnknownNameError("level", level, (*LEVELS, ALL_LEVELS))
    if profile is None:
        chosen = [name for name in LEVELS if level in (name, ALL_LEVELS)]
        return Validation(data=data, levels={name: _compare(data, name, None) for name in chosen})
    if level != ALL_LEVELS:
        raise UsageError("a profile and a level exclude each other", hint="leave one of them out")
    own = load_profile(profile) if isinstance(profile, str) else profile
    return Validation(data=data, levels={OWN_PROFILE: _compare(data, OWN_PROFILE, own)})


def _compare(data: Dataset, level: Level, profile: CalibrationProfile | None) -> tuple[Comparison, ...]:
    """Predict every measurement with the evidence of one level; in the order of the data set."""
    groups: dict[Configuration, list[Measurement]] = {}
    for row in data.measurements:
        groups.setdefault(row.configuration, []).append(row)
    compared = {
        (row.measurement.configuration, row.measurement.variant): row
        for group in groups.values()
        for row in _compare_group(data, group, level, profile)
    }
    return tuple(compared[row.configuration, row.variant] for row in data.measurements)


def _compare_group(
    data: Dataset, rows: Sequence[Measurement], level: Level, own: CalibrationProfile | None
) -> list[Comparison]:
    try:
        scenario = rows[0].configuration.scenario()
        profile = own if level == OWN_PROFILE else _profile(scenario, level)
    except (InfeasibleError, _NoEvidenceError) as error:
        note = f"not predicted: {error.message}"
        return [Comparison(measurement=row, tokens_per_s=None, speedup=None, note=note) for row in rows]
    # it has been measured, so it did fit, whatever the memory model says
    variants = [row.variant for row in rows]
    predictions = predict(scenario, variants, profile=profile or NO_PROFILE, ignore_memory=True)
    fits = next(iter(predictions.values())).memory.fits
    standard = next((row for row in rows if row.variant == "standard"), None)
    notes = [
        *([] if fits else ["the memory model says that this does not fit"]),
        *([] if standard else ["no speedup: no standard row of this configuration"]),
    ]
    compared = []
    for row in rows:
        prediction, speedup = predictions[row.variant], None
        if standard is not None and row is not standard:
            speedup = Quantity(measured=row.tokens_per_s / standard.tokens_per_s, predicted=prediction.speedup)
        apart = {"ttft_s": prediction.ttft, "tpot_s": prediction.tpot}
        compared.append(
            Comparison(
                measurement=row,
                tokens_per_s=Quantity(measured=row.tokens_per_s, predicted=prediction.tokens_per_s),
                speedup=speedup,
                seen=_used_by_fit(data, row, profile.stack_fit if profile else None),
                note="; ".join(notes),
                **{
                    name: Quantity(measured=measured, predicted=predicted)
                    for name, predicted in apart.items()
                    if (measured := getattr(row, name)) is not None and predicted is not None
                },
            )
        )
    return compared


def _used_by_fit(data: Dataset, row: Measurement, stack_fit: StackFit | None) -> bool:
    if stack_fit is None:
        return False
    # the data sets of the package hold the same runs
    fitted = data.name == stack_fit.runs or {data.name, stack_fit.runs} <= set(dataset_names())
    return fitted and (not stack_fit.protocol or PROTOCOLS[stack_fit.protocol].fits(row))


class _NoEvidenceError(LadderSimError):
    """A level has nothing to predict a scenario from."""


def _profile(scenario: Scenario, level: Level) -> CalibrationProfile | None:
    cluster, stack = scenario.cluster, scenario.stack
    if level == "roofline":
        return None
    if cluster.profile in ("", NO_PROFILE):
        raise _NoEvidenceError(f"cluster '{cluster.name}' names no measured profile")
    if level not in FITTED_PROFILES:
        return load_profile(cluster.profile)
    fitted = load_profile(FITTED_PROFILES[level])
    if fitted.stack_fit is None or (fitted.stack_fit.stack, fitted.base) != (stack.name, cluster.profile):
        raise _NoEvidenceError(f"no fit to runs of stack '{stack.name}' on {cluster.name} is shipped")
    return fitted


def summarize(comparisons: Iterable[Comparison]) -> tuple[GroupSummary, ...]:
    """Return errors and coverage by variant, interconnect and group of TP degrees, and over all degrees."""
    parts: dict[tuple[str, bool, str], list[Comparison]] = {}
    for comparison in comparisons:
        row = comparison.measurement
        tp = row.configuration.tp
        for tps in (_FIT_GROUP if tp in FIT_TPS else str(tp), ALL_TPS):
            parts.setdefault((row.variant, row.configuration.p2p, tps), []).append(comparison)
    variants = list(dict.fromkeys(variant for variant, _, _ in parts))
    return tuple(
        GroupSummary(
            variant=variant,
            p2p=p2p,
            tps=tps,
            rows=len(members),
            unseen=len(unseen(members)),
            **{name: error_stats([getattr(member, name) for member in members]) for name in QUANTITIES},
        )
        for (variant, p2p, tps), members in sorted(
            parts.items(), key=lambda part: (variants.index(part[0][0]), not part[0][1], _order(part[0][2]))
        )
    )


def _order(tps: str) -> float:
    if tps == ALL_TPS:
        return math.inf
    return int(tps) if tps.isdigit() else max(FIT_TPS)


def error_stats(quantities: Iterable[Quantity | None]) -> ErrorStats | None:
    """Return the errors and coverage of some quantities; None without quantities."""
    given = [quantity for quantity in quantities if quantity is not None]
    if not given:
        return None
    errors = [quantity.error for quantity in given]
    absolute = list(map(abs, errors))
    return ErrorStats(
        rows=len(given),
        mean_error=fmean(absolute),
        median_error=median(absolute),
        max_error=max(absolute),
        bias=fmean(errors),
        inside=fmean(quantity.inside for quantity in given),
        half_width=fmean(quantity.half_width for quantity in given),
    )


def check_error(errors: ErrorStats | None, maximum: float, figure: str, rows: str) -> None:
    """Refuse errors of a figure over some rows whose mean exceeds `maximum`, a fraction."""
    if errors and errors.mean_error > maximum:
        raise LadderSimError(
            f"mean absolute error of {figure} over {errors.rows} {rows} is {errors.mean_error:.2%}: must be at most "
            f"{maximum:.2%}",
            hint="the table shows which rows miss",
        )


def unseen(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
    """Return the comparisons that no fit behind the predictions has used."""
    return tuple(row for row in comparisons if not row.seen)


def gate(comparisons: Iterable[Comparison], maximum: float) -> None:
    """Refuse predictions of ladder's speedup whose mean error exceeds `maximum`, a fraction, over unseen P2P rows."""
    rows = [
        row for row in unseen(comparisons) if row.measurement.variant == "ladder" and row.measurement.configuration.p2p
    ]
    if not rows:
        raise UsageError(
            "--max-error: no ladder row with P2P on that no fit has used",
            hint="leave --max-error out for this data set",
        )
    for row in rows:
        if row.speedup is None:
            # a row that cannot be predicted must not make the mean better
            raise LadderSimError(
                f"--max-error: line {row.measurement.line} has no speedup to compare: {row.note}",
                hint="leave the row out, or add what it lacks",
            )
    check_error(error_stats(row.speedup for row in rows), maximum, "ladder's speedup", "unseen rows with P2P on")
