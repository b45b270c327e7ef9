"""Predictions of a server that runs already: what it measured moves what is uncertain, as far as each may be off.

Kernels, prompts, collectives, the CPU and the front end each have a factor. Most servers are what a scenario says:
their factors are 1, and what they measure differs by the errors of one load. Some are not (other flags, clocks or
kernels): their factors are spread. And some rows are odd: they differ from all others of their server. A measurement
tells how likely each of the four is, and which factors would explain it (Gaussian, linearised on the way there); the
profile that is returned has their expectation.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence.interval import NORMAL_90
from ladder_sim.costs.hardware import FRONT_END, Hardware
from ladder_sim.costs.profile import CalibrationProfile, ServerMeasurement
from ladder_sim.des.shared import TINY
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.kernels import Stack
from ladder_sim.prediction import predict, resolve_profile
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS, ScenarioFields
from ladder_sim.specs.scenario import Scenario, scenario_asked
from ladder_sim.specs.workload import FORMATS
from ladder_sim.units import format_rate, format_seconds, parse_quantity, quoted

if TYPE_CHECKING:
    from ladder_sim.serving.requests.result import Result


class ServerFigures(TypedDict, total=False):
    """Figures of standard, as `condition` takes them."""

    tpot_s: float
    ttft_s: float
    tokens_per_s: float


class Prior(NamedTuple):
    """How servers and their rows differ from predictions; standard deviations are of logarithms."""

    gpu_sd: float
    """Of the factors of kernels, prompts and collectives, of a server that is not as its scenario says."""
    cpu_sd: float
    """Of the factor of the CPU's part, likewise."""
    row_sd: float
    """Of the time per token of one load and plan alone."""
    odd_share: float
    """Share of rows that are odd."""
    odd_times: float
    """How many times as much an odd row differs."""
    different: float
    """Share of servers that are not as their scenarios say."""
    different_16_bits: float
    """Likewise of dense models in 16 bits, whose GEMMs are one library's in every engine and version."""

    @property
    def variance(self) -> NDArray[Any]:
        """Variance of the logarithm of each factor, of a server that is not as its scenario says."""
        return np.square([*[self.gpu_sd] * 3, self.cpu_sd, FRONT_END_SD])

    @property
    def elsewhere_sd(self) -> float:
        """Standard deviation of the time per token of one load and plan alone, odd ones among them."""
        return self.row_sd * math.sqrt(1.0 + self.odd_share * (self.odd_times**2 - 1.0))

    def share_different(self, scenario: Scenario) -> float:
        """Return the share of servers of a scenario that are not as it says."""
        sixteen_bits = FORMATS[scenario.workload.dtype] is FORMATS["bf16"] and not scenario.model.experts
        return self.different_16_bits if sixteen_bits else self.different


# fitted to pairs of rows of one server, and the shares counted, by `python -m tools.profiles.conditioning
# serving_dense.csv serving_moe.csv`, which prints how they do with each model left out
PRIOR = Prior(
    gpu_sd=0.146, cpu_sd=0.179, row_sd=0.0456, odd_share=0.139, odd_times=3.41, different=0.34, different_16_bits=0.1
)

# of the front end, which times per token hardly depend on: judgement
FRONT_END_SD = 0.7


class Factor(NamedTuple):
    """What a measurement may move."""

    figures: tuple[str, ...]
    """Fields of `ladder_sim.costs.hardware.Stack` that it multiplies."""
    suspect: str
    """What is probably otherwise on the server, if it explains most of the difference."""


FACTORS: Mapping[str, Factor] = {
    "kernels": Factor(("kernel_factor",), "the GPUs' clocks, the precision of weights or the kernels"),
    "prompts": Factor(("prompt_factor",), "the size of chunks, or what the prefix cache holds of prompts"),
    "collectives": Factor(("collective_factor",), "the all-reduce (--allreduce) or the links"),
    "the CPU's part": Factor(
        ("eager_launch_s", "host_request_s", "host_rank_s", "host_state_s"), "CUDA graphs, the CPU or what else it does"
    ),
    "the front end": Factor(FRONT_END, "the front end: HTTP, tokenizer, queueing"),
}

# what front ends differ by where a stack's own takes less: clients of one campaign have vLLM's first tokens 2.2 steps,
# 15 to 50 ms, later than those of another (`validation/data/campaigns.toml`)
LEAST_FRONT_END_S = 0.03

# standard deviation of the logarithm of what is of one load and plan alone; and of a measurement where it is that load
# which is predicted: runs of one server differ by 1 to 2 % (docs/how/intervals.md), first tokens by more
ELSEWHERE_SD: Mapping[str, float] = {"tpot_s": PRIOR.row_sd, "ttft_s": 0.35, "tokens_per_s": PRIOR.row_sd}
HERE_SD: Mapping[str, float] = {"tpot_s": 0.015, "ttft_s": 0.05, "tokens_per_s": 0.015}

# logarithms beyond which a measurement is of something else: of a factor, and of what no factor explains
MOST_MOVED, MOST_MISSED = math.log(20.0), 0.3

# by which the logarithm of a factor is changed to see what it moves, at how many points on the way to the factors, and
# times that this is done anew
STEP, ON_THE_WAY, ROUNDS = 0.1, 4, 4

# of a measured scenario, what may be otherwise than asked: load and plan
OTHERS = ("concurrency", "batch", "prompt", "gen", "nodes", "tp", "pp", "ep", "attention_dp", "dp")

Name = Literal["tpot_s", "ttft_s", "tokens_per_s"]
_NAMES: Mapping[str, Name] = {"tpot": "tpot_s", "ttft": "ttft_s", "tok/s": "tokens_per_s"}
_LABELS = {"tpot_s": "TPOT", "ttft_s": "TTFT", "tokens_per_s": "throughput"}


def condition(
    scenario: Scenario | None = None,
    *,
    tpot_s: float | None = None,
    ttft_s: float | None = None,
    tokens_per_s: float | None = None,
    elsewhere: bool = False,
    profile: str | CalibrationProfile | None = None,
    **fields: Unpack[ScenarioFields],
) -> CalibrationProfile:
    """Return a profile in which the standard wiring takes what a running server measured.

    Parameters
    ----------
    scenario
        What was measured: model, GPUs, plan, engine and load of the standard deployment; or its arguments as keywords.
    tpot_s, ttft_s
        Mean time per further token and to the first, seconds.
    tokens_per_s
        New tokens of all requests in flight, or of the batch, per second.
    elsewhere
        The profile is for other loads or plans of that server, of which one load tells less.
    profile
        As in `ladder_sim.predict`; what it says is moved.

    Returns
    -------
    CalibrationProfile
        For `profile=` of every function, on the same model, GPUs and engine.

    Raises
    ------
    UsageError
        No figure was measured, one is not above 0, or there is no profile to move.

    Examples
    --------
    >>> from ladder_sim import Scenario, condition, predict
    >>> scenario = Scenario(model="70b", tp=8, concurrency=32, prompt=1024, gen=256)
    >>> slower = predict(scenario, profile=condition(scenario, tpot_s=0.022))
    >>> print(f"{1e3 * predict(scenario)['standard'].tpot_s:.1f} {1e3 * slower['standard'].tpot_s:.1f} ms")
    17.3 21.9 ms
    """
    at = scenario_asked(scenario, fields)
    measured = {
        name: value
        for name, value in (("tpot_s", tpot_s), ("ttft_s", ttft_s), ("tokens_per_s", tokens_per_s))
        if value is not None
    }
    _check(measured, at)
    base = resolve_profile(at, profile)
    if base is None or base.in_place is not None:
        raise UsageError("a measurement moves what a profile says, and there is none here", hint="leave out profile")
    sd = ELSEWHERE_SD if elsewhere else HERE_SD
    log_factors = np.zeros(len(FACTORS))
    predicted: dict[str, float] = {}
    slopes: Mapping[str, NDArray[Any]] = {}
    for _ in range(ROUNDS):
        now, along = responses(at, base, log_factors)
        predicted = predicted or now
        # half is of the rounds before, which would else take turns with others where kernels nearly outrun the CPU
        slopes = {name: 0.5 * (slopes.get(name, changed) + changed) for name, changed in along.items()}
        by_factor = np.array([slopes[name] for name in measured])
        missed = np.array([math.log(value) - now[name] for name, value in measured.items()])
        log_errors = missed + by_factor @ log_factors
        log_factors, covariance = posterior(
            log_errors, by_factor, [sd[name] for name in measured], PRIOR.share_different(at) if elsewhere else None
        )
        if np.abs(log_factors).max() > MOST_MOVED:
            raise _impossible(measured, predicted)
    now, _ = responses(at, base, log_factors)
    left = {name: abs(math.log(value) - now[name]) for name, value in measured.items()}
    if not elsewhere and max(left.values()) > MOST_MISSED:
        raise _impossible(measured, predicted)

    def at_least_left(name: str) -> float:
        return max(width(slopes[name], covariance, sd[name]), left.get(name, 0.0))

    elsewhere_width = width(slopes["tpot_s"], covariance, PRIOR.elsewhere_sd)
    measurement = ServerMeasurement(
        said=_said(measured, predicted),
        at=(at.model, at.plan, at.workload),
        tpot=elsewhere_width if elsewhere else at_least_left("tpot_s"),
        # what one load tells of other loads' first tokens was not checked
        ttft=at_least_left("ttft_s") if "ttft_s" in measured and not elsewhere else math.inf,
        tpot_elsewhere=elsewhere_width,
        factors={name: float(value) for name, value in zip(FACTORS, np.exp(log_factors), strict=True)},
        caution=_caution(measured, by_factor * log_factors, at, base),
        here=condition(at, tpot_s=tpot_s, ttft_s=ttft_s, tokens_per_s=tokens_per_s, profile=base)
        if elsewhere
        else None,
    )
    stack = Hardware.of(at, base).stack
    figures = {
        figure: float(_times(stack, figure, np.exp(value)))
        for factor, value in zip(FACTORS.values(), log_factors, strict=True)
        for figure in factor.figures
    }
    return dataclasses.replace(base, overheads={**base.overheads, **figures}, measurement=measurement)


class Stated(NamedTuple):
    """Figures that a running server measured, and the load and plan that they are of."""

    figures: ServerFigures
    """As `condition` takes them."""
    fields: Mapping[str, Any]
    """Arguments of `Scenario` that the measurement states."""
    result: "Result | None" = None
    """The file that the figures are from; None if they were typed."""

    def condition(self, scenario: Scenario, given: Mapping[str, Any], **how: Any) -> CalibrationProfile:
        """Return the profile of `ladder_sim.condition` for a scenario, of which `given` are the arguments typed.

        Raises UsageError if the file states another deployment.
        """
        if self.result is None:
            return condition(scenario, **self.figures, **how)
        # imported here, as in `_of_file`
        from ladder_sim.validation.load import failures, stated_otherwise

        ours = scenario.fields()
        asked = {**{name: ours[name] for name in ("model", "cluster", "stack")}, **given}
        other = stated_otherwise(self.result, scenario, asked)
        if other:
            raise UsageError(
                f"--measured is of {', '.join(f'{name} {value}' for name, value in other.items())}, and the answer of "
                + ", ".join(f"{name} {ours[name]}" for name in other),
                hint="add " + " ".join(f"--{name.replace('_', '-')} {value}" for name, value in other.items()),
            )
        cautions = [*failures(self.result)]
        if name := self.result.server.get("model"):
            try:
                catalog.model(name)
            except LadderSimError:
                cautions.append(f"whether its model {quoted(name)} is {ours['model']} is not known")
        return _with_cautions(condition(scenario, **self.figures, **how), cautions)


def _with_cautions(profile: CalibrationProfile, cautions: Sequence[str]) -> CalibrationProfile:
    """Return a moved profile with further cautions."""
    measurement = profile.measurement
    if measurement is None or not cautions:
        return profile
    here = measurement.here and _with_cautions(measurement.here, cautions)
    said = "; ".join(filter(None, (measurement.caution, *cautions)))
    return dataclasses.replace(profile, measurement=measurement._replace(caution=said, here=here))


def read_measured(text: str) -> Stated:
    """Read what ``--measured`` gives.

    Its text is ``tpot=19.3ms,ttft=200ms,tok/s=1500``, with the load and the plan where they are others than the
    scenario's (``concurrency=64,tp=4``); or the name of a result file of a load generator. Raises UsageError if a name
    is unknown, a value is not one, or the file holds several loads or no fixed number in flight.
    """
    if not text.strip():
        raise UsageError("--measured is empty", hint="e.g. --measured tpot=19.3ms")
    if Path(text).is_file() or "=" not in text:
        return _of_file(Path(text))
    figures = ServerFigures()
    fields: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        known = _NAMES.get(name.lower())
        if known is not None and known in figures:
            raise UsageError(f"--measured: {name} is given twice", hint="give it once")
        if known is not None:
            figures[known] = parse_quantity(
                value, "count" if known == "tokens_per_s" else "s", name=f"--measured {name}", likely=("ms", "s")
            )
        elif equals and name.replace("-", "_") in OTHERS:
            key = name.replace("-", "_")
            fields[key] = ARGUMENTS[key].read(value, name=name)
        else:
            raise UsageError(
                f"--measured {part}: neither a figure nor a part of the load or plan",
                hint=f"figures are {', '.join(_NAMES)}; e.g. --measured tpot=19.3ms,concurrency=64",
            )
    return Stated(figures, fields)


def _of_file(path: Path) -> Stated:
    # imported here: a figure that was typed needs no reader of files
    from ladder_sim.serving.requests.results import read_results
    from ladder_sim.serving.requests.traffic import Traffic
    from ladder_sim.validation.load import plan_of

    results = read_results(path)
    if len(results) != 1:
        raise UsageError(f"--measured: '{path}' holds {len(results)} loads", hint="give a file with one of them")
    (result,) = results
    if result.left_out:
        raise UsageError(f"--measured: '{path}' {result.left_out}", hint="measure it anew")
    if not result.concurrency or (isinstance(result.requests, Traffic) and result.requests.rate):
        raise UsageError(
            f"--measured: '{path}' does not have a fixed number of requests in flight",
            hint="measure with --max-concurrency and without a rate, or give tpot=...,concurrency=...",
        )
    lengths = result.requests
    prompt, gen = (
        (lengths.prompt.mean, lengths.gen.mean)
        if isinstance(lengths, Traffic)
        else (np.mean([each.prompt for each in lengths]), np.mean([each.gen for each in lengths]))
    )
    figures = ServerFigures()
    if "tpot_mean_s" in result.figures:
        figures["tpot_s"] = result.figures["tpot_mean_s"]
    if "ttft_mean_s" in result.figures:
        figures["ttft_s"] = result.figures["ttft_mean_s"]
    load = {"concurrency": result.concurrency, "prompt": round(float(prompt)), "gen": round(float(gen))}
    return Stated(figures, {**plan_of(result), **load}, result)


def _check(measured: Mapping[str, float], scenario: Scenario) -> None:
    if not measured:
        raise UsageError("no measured figure", hint="give tpot_s, ttft_s or tokens_per_s of the standard deployment")
    for name, value in measured.items():
        if not 0.0 < value < math.inf:
            raise UsageError(f"{name} of {value:g}: must be above 0", hint="seconds, or tokens per second")
    if "tpot_s" in measured and scenario.workload.gen < 2:
        raise UsageError("a TPOT of one new token", hint="give gen of at least 2, or ttft_s alone")


def responses(
    scenario: Scenario, profile: CalibrationProfile, log_factors: NDArray[Any]
) -> tuple[dict[str, float], dict[str, NDArray[Any]]]:
    """Return the logarithm of each figure of standard with factors of such logarithms, and what each changes in it.

    The latter on average on the way from 1 to these factors: where kernels become faster than the CPU launches them,
    another factor counts.
    """
    stack, count = Hardware.of(scenario, profile).stack, len(FACTORS)
    shares = (np.arange(ON_THE_WAY) + 0.5) / ON_THE_WAY
    varied: dict[str, NDArray[Any]] = {}
    for number, factor in enumerate(FACTORS.values()):
        # where it starts from and with each factor changed, all along the way, and its end
        logs = np.repeat(np.append(shares, 1.0) * log_factors[number], [*[count + 1] * ON_THE_WAY, 1])
        logs[number + 1 : -1 : count + 1] += STEP
        varied |= {f"stack.{figure}": _times(stack, figure, np.exp(logs)) for figure in factor.figures}
    request = simulate_requests(scenario, varied, ["standard"], profile)["standard"]
    workload = scenario.workload
    times = {
        "tpot_s": np.asarray(request.decode_s) / max(workload.gen - 1, 1),
        "ttft_s": np.asarray(request.ttft_s),
        "tokens_per_s": workload.in_flight * workload.gen / np.asarray(request.request_s),
    }
    size = len(shares) * (count + 1) + 1
    figures = {name: np.log(np.maximum(np.broadcast_to(values, size), TINY)) for name, values in times.items()}
    now = {name: float(values[-1]) for name, values in figures.items()}
    along = {name: values[:-1].reshape(len(shares), count + 1) for name, values in figures.items()}
    return now, {name: (values[:, 1:] - values[:, :1]).mean(0) / STEP for name, values in along.items()}


def _times(stack: Stack, figure: str, factor: Any) -> Any:
    own = float(getattr(stack, figure))
    scale = max(own, LEAST_FRONT_END_S) if figure == "frontend_s" else own
    return np.maximum(0.0, own + (factor - 1.0) * scale)


def posterior(
    log_errors: NDArray[Any],
    by_factor: NDArray[Any],
    row_sd: Sequence[float],
    different: float | None,
    prior: Prior = PRIOR,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the expected logarithms of the factors, and their covariance, given the errors of figures.

    `log_errors` is the logarithm of each measured figure over its prediction, `by_factor` what each factor's logarithm
    changes in them, shape (figures, factors), and `row_sd` the standard deviation of what is of one row alone.
    `different` is the share of servers that are not as their scenarios say; None: the load itself is to be predicted,
    which takes what it measured on any server.
    """
    variance, rows = np.diag(prior.variance), np.diag(np.square(row_sd))
    if different is None:
        return _given(log_errors, by_factor, variance, rows)[1:]
    classes = [
        (server * row, *_given(log_errors, by_factor, differs * variance, times**2 * rows))
        for server, differs in ((1.0 - different, 0.0), (different, 1.0))
        for row, times in ((1.0 - prior.odd_share, 1.0), (prior.odd_share, prior.odd_times))
    ]
    most = max(log_density for _, log_density, *_ in classes)
    weights = np.array([share * math.exp(log_density - most) for share, log_density, *_ in classes])
    weights /= weights.sum()
    means = np.array([mean for *_, mean, _ in classes])
    mean = weights @ means
    apart = means - mean
    within = np.einsum("c,cij->ij", weights, np.array([covariance for *_, covariance in classes]))
    return mean, within + (apart.T * weights) @ apart


def _given(
    log_errors: NDArray[Any], by_factor: NDArray[Any], variance: NDArray[Any], rows: NDArray[Any]
) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Return the log density of errors of figures, and the mean and covariance of the factors given these errors."""
    every = by_factor @ variance @ by_factor.T + rows
    gain = variance @ by_factor.T @ np.linalg.inv(every)
    density = -0.5 * (log_errors @ np.linalg.solve(every, log_errors) + np.linalg.slogdet(every)[1])
    return float(density), gain @ log_errors, variance - gain @ by_factor @ variance


def width(slopes: NDArray[Any], covariance: NDArray[Any], row_sd: float) -> float:
    """Return the half-width of an interval, in the logarithm."""
    return NORMAL_90 * math.sqrt(row_sd**2 + max(float(slopes @ covariance @ slopes), 0.0))


def _text(name: str, value: float) -> str:
    return f"{format_rate(value)} tok/s" if name == "tokens_per_s" else format_seconds(value)


def _said(measured: Mapping[str, float], now: Mapping[str, float]) -> str:
    return ", ".join(
        f"{_LABELS[name]} {_text(name, value)} (predicted {_text(name, math.exp(now[name]))})"
        for name, value in measured.items()
    )


def _impossible(measured: Mapping[str, float], predicted: Mapping[str, float]) -> UsageError:
    return UsageError(
        f"no server of this scenario measures {_said(measured, predicted)}",
        hint="check the unit, the load (concurrency=...) and the plan (tp=...)",
    )


def _caution(
    measured: Mapping[str, float], explained: NDArray[Any], scenario: Scenario, profile: CalibrationProfile
) -> str:
    """Say what about the server is probably otherwise, if a figure lies outside of its interval; else nothing.

    `explained` is what each factor explains of the logarithm of each figure.
    """
    standard = predict(scenario, ["standard"], profile=profile, ignore_memory=True)["standard"]
    intervals = {"tpot_s": standard.tpot, "ttft_s": standard.ttft, "tokens_per_s": standard.tokens_per_s}
    for (name, value), by_factor in zip(measured.items(), explained, strict=True):
        interval = intervals[name]
        if interval is None or interval.low <= value <= interval.high:
            continue
        suspect = list(FACTORS.values())[int(np.argmax(np.abs(by_factor)))].suspect
        faster = (value > interval.high) == (name == "tokens_per_s")
        return (
            f"the measured {_LABELS[name]} is outside of its interval ({_text(name, interval.low)} to "
            f"{_text(name, interval.high)}): probably this server differs in {suspect}"
            + (", or it decodes speculatively, which is not in these figures" if faster and name != "ttft_s" else "")
        )
    return ""
