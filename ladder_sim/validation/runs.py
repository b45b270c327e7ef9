"""Predictions against requests that ran on a machine, of which a profile was measured: `validate` of runs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ladder_sim.answer import Answer
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.des.shared import Floats
from ladder_sim.errors import BoundError, ProfileError, UsageError
from ladder_sim.prediction import predict
from ladder_sim.specs.scenario import Scenario
from ladder_sim.wirings.names import NO_COMMUNICATION, canonical_names

# resamples of the requests
DRAWS = 2000
# of the resampled medians: 95 %
INTERVAL = (0.025, 0.975)
# what of the environment of a profile of real passes may differ from that of runs: wirings that were timed
VARIANTS = "variants"
# quantities of `RunCheck.require`, and what messages call them
QUANTITIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "request_s": "request", "speedup": "speedup"}


@runtime_checkable
class MeasuredRuns(Protocol):
    """Requests by wiring, as `ladder_sim_runtime.runs.bench` returns them: seconds of prefill and of decode steps."""

    scenario: Scenario
    """What ran."""
    environment: Mapping[str, str]
    """Everything that times depend on, by the names in a profile's environment."""

    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, variant: str, /) -> Sequence[tuple[float, float]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One quantity of one wiring."""

    variant: str
    """Residual wiring, maybe with techniques."""
    quantity: str
    """One of `QUANTITIES`; seconds, or a request's speedup over standard."""
    predicted: float
    """Value that the simulator predicts."""
    measured: float
    """Median over the requests; of a speedup over pairs with standard of the same round."""
    low: float
    """Lower end of the 95 % interval of that median."""
    high: float
    """Upper end of that interval."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    def exceeds(self, bound: float) -> bool:
        """Whether the error is larger than a bound for every value in the measured interval."""
        return not (self.predicted / self.high - 1.0 <= bound and self.predicted / self.low - 1.0 >= -bound)

    def undecided(self, bound: float) -> bool:
        """Whether the measured interval is too wide to hold an error against a bound."""
        return not self.exceeds(bound) and max(self.high / self.measured, self.measured / self.low) - 1.0 > bound


def compare_requests(
    requests: Mapping[str, Sequence[tuple[float, float]]], predicted: Mapping[str, tuple[float, float]], steps: int
) -> list[Compared]:
    """Compare every quantity of every wiring, by seconds of prefill and of all decode steps.

    Requests of one round are at the same place in each list. TPOT is the decode time over `steps`; 0: there are none.
    """
    rows = []
    standard = np.array(requests["standard"]) if "standard" in requests else None
    for variant, samples in requests.items():
        measured, (prefill_s, decode_s) = np.array(samples), predicted[variant]
        columns: dict[str, tuple[float, Floats]] = {"ttft_s": (prefill_s, measured[:, 0])}
        if steps:
            columns["tpot_s"] = decode_s / steps, measured[:, 1] / steps
        columns["request_s"] = prefill_s + decode_s, measured.sum(axis=1)
        if standard is not None and variant != "standard":
            columns["speedup"] = (
                sum(predicted["standard"]) / (prefill_s + decode_s),
                standard.sum(axis=1) / measured.sum(axis=1),
            )
        for quantity, (value, sample) in columns.items():
            low, high = bootstrap(sample)
            middle = float(np.median(sample))
            rows.append(
                Compared(variant=variant, quantity=quantity, predicted=value, measured=middle, low=low, high=high)
            )
    return rows


def bootstrap(sample: Floats) -> tuple[float, float]:
    """Return the 95 % interval of a sample's median, with the same draws in every call."""
    chosen = np.random.default_rng(0).integers(len(sample), size=(DRAWS, len(sample)))
    low, high = np.quantile(np.median(np.asarray(sample)[chosen], axis=1), INTERVAL)
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunCheck(Answer):
    """Predictions compared with runs of one machine."""

    shown_by = "runs.RunReport"

    title: str
    """What ran where."""
    rows: tuple[Compared, ...]
    """Comparisons by wiring and quantity."""
    timed: tuple[str, ...]
    """Wirings whose passes were timed for the profile; the others are held back."""
    missing: tuple[str, ...]
    """Wirings that should have run."""
    pace: float | None = None
    """Time of the runs without communication over that in the profile, by which predictions are multiplied; None: there
    are no such runs."""

    @property
    def held_back(self) -> tuple[str, ...]:
        """Wirings that ran and were not timed for the profile."""
        return tuple(dict.fromkeys(row.variant for row in self.rows if row.variant not in self.timed))

    def mean_error(self, quantity: str) -> float | None:
        """Return the mean error of a quantity over the wirings held back, as a fraction; None without any."""
        own = [abs(row.error) for row in self.rows if row.quantity == quantity and row.variant in self.held_back]
        return float(np.mean(own)) if own else None

    def row(self, variant: str, quantity: str) -> Compared | None:
        """Return the comparison of a wiring's quantity; None: standard's speedup, or TPOT of a single token."""
        return next((row for row in self.rows if (row.variant, row.quantity) == (variant, quantity)), None)

    def require(self, **bounds: float) -> None:
        """Raise unless every error is within its bound, and every measurement is sharp enough to say so.

        Bounds are the largest errors allowed, by quantity (`QUANTITIES`), as shares. Raises BoundError if an error is
        beyond its bound, a measurement is undecided, or a wiring did not run; UsageError if there is no such quantity.
        """
        for name in bounds:
            if name not in QUANTITIES:
                raise UsageError(f"'{name}' is not compared", hint=f"known: {', '.join(QUANTITIES)}")
        broken = [f"{variant}: no run" for variant in self.missing]
        for row in self.rows:
            bound = bounds.get(row.quantity)
            if bound is None:
                continue
            if row.exceeds(bound):
                broken.append(
                    f"{row.variant}: {QUANTITIES[row.quantity]} off by {abs(row.error):.0%}, bound {bound:.0%}"
                )
            elif row.undecided(bound):
                broken.append(
                    f"{row.variant}: measured {QUANTITIES[row.quantity]} {_interval(row)} is wider than its bound"
                )
        if broken:
            raise BoundError("; ".join(broken))


def validate_runs(
    runs: MeasuredRuns, profile: str | os.PathLike[str] | CalibrationProfile, held_back: Sequence[str] = ()
) -> RunCheck:
    """Predict runs from a profile of real passes on their machine, of the same model and workload, and compare.

    Wirings that are held back must have run, and their passes must not have been timed for the profile. Runs of the
    upper bound show how much slower or faster the machine is than when the profile was measured, and are not compared.
    """
    measured = profile if isinstance(profile, CalibrationProfile) else load_profile(profile)
    name = measured.name if isinstance(profile, CalibrationProfile) else os.fspath(profile)
    check_same(measured, runs.environment, name)
    timed = tuple(filter(None, measured.environment.get(VARIANTS, "").split(",")))
    wanted = canonical_names(held_back) if held_back else ()
    for variant in wanted:
        if variant in timed:
            raise UsageError(f"{variant}: timed for this profile, so it is not held back", hint="hold back another one")
    scenario, steps = runs.scenario, runs.scenario.workload.gen - 1
    requests = {variant: runs[variant] for variant in runs if len(runs[variant])}
    answer: Mapping[str, Any] = predict(scenario, list(requests), profile=measured)
    predicted: dict[str, tuple[float, float]] = {
        variant: (prediction.ttft_s, prediction.request_s - prediction.ttft_s) for variant, prediction in answer.items()
    }
    facts, count = runs.environment, min(map(len, requests.values()))
    pace = None
    # a profile holds how long runs without communication took then, so they show how fast the machine is now
    if NO_COMMUNICATION in requests and len(requests) > 1:
        now, then = np.median(requests.pop(NO_COMMUNICATION), axis=0), np.array(predicted.pop(NO_COMMUNICATION))
        paces = np.divide(now, then, out=np.ones(2), where=then > 0.0)
        predicted = {variant: tuple(paces * times) for variant, times in predicted.items()}
        pace = float(now.sum() / then.sum())
    cores = facts.get("cpu_cores", "?")
    title = (
        f"{scenario.model.name} {facts['dtype']}, {scenario.model.layers} layers, TP {scenario.plan.tp} over "
        f"{facts['backend']}; {facts['cpu']}, {cores} cores, torch {facts['torch']}; {count} requests each"
    )
    missing = [variant for variant in (*runs, *wanted) if variant not in answer]
    return RunCheck(
        title=title,
        rows=tuple(compare_requests(requests, predicted, steps)),
        timed=timed,
        missing=tuple(dict.fromkeys(missing)),
        pace=pace,
    )


def check_same(profile: CalibrationProfile, environment: Mapping[str, str], name: str) -> None:
    """Raise ProfileError unless a profile of real passes is of the machine and of the runs of an environment.

    `name` is what messages call it.
    """
    if profile.in_place is None:
        raise ProfileError(
            f"profile {name} holds no times of real passes", hint="measure them: ladder-sim calibrate run --out"
        )
    own = profile.environment
    differing = [key for key in {**own, **environment} if key != VARIANTS and own.get(key) != environment.get(key)]
    if differing:
        before, now = (
            ", ".join(_fact(key, facts.get(key, "none")) for key in differing) for facts in (own, environment)
        )
        raise ProfileError(
            f"profile {name}: measured on {before}; these runs: {now}",
            hint="measure again: ladder-sim calibrate run --out",
        )


def _fact(key: str, value: str) -> str:
    return value if key in ("cpu", "gpu") else f"{'TP' if key == 'tp' else key.replace('_', ' ')} {value}"


def _interval(row: Compared) -> str:
    if row.quantity == "speedup":
        return f"{row.low:.2f}-{row.high:.2f}"
    return f"{1e3 * row.low:.3g}-{1e3 * row.high:.3g} ms"
