"""Loads that a load generator measured, next to simulations of the same requests."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from ladder_sim.answer import Listed
from ladder_sim.confidence import Confidence
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.serving.intervals import under_load
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.result import Result
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.service import Service
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import DOUBT, Caution
from ladder_sim.validation.campaigns import cluster_name, format_name, server_of, stack_name
from ladder_sim.validation.compare import ErrorStats, Quantity, check_error, error_stats

# what InferenceX calls engines
_ENGINES = {"trt": "trtllm", "tensorrt-llm": "trtllm"}
# columns of a published load that say what served it
DEPLOYMENT = ("model", "cluster", "stack", "dtype", "tp", "ep", "attention_dp")
# those of them that a file states for sure: a client's backend need not be the server's engine
_STATED = frozenset({"model", "cluster", "dtype", "tp", "ep"})
# checkpoints in them are quantised by a flag of the server
_UNQUANTIZED = ("bf16", "fp16")
# note on times that hold the wait in a queue which grows as long as requests come: they have no error worth its digits
GROWS = "the queue grows in the prediction"
# without it nothing is predicted, with an example
_NEEDED = {"model": "70b", "cluster": "h100-sxm", "tp": "8", "stack": "vllm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadComparison:
    """One measured load and its simulation."""

    result: Result
    scenario: Scenario | None
    """What served it; None where the file and the caller do not say."""
    figures: Mapping[str, Quantity]
    """Each measured figure with its prediction; empty where it cannot be predicted."""
    confidence: Confidence | None
    """Confidence of the predictions."""
    cautions: tuple[str, ...] = ()
    """What the reader should know."""
    note: str = ""
    """Why it is not predicted."""
    stable: bool = True
    """Whether the queue stays bounded in the prediction."""

    @property
    def judged(self) -> Mapping[str, Quantity]:
        """Figures without those that depend on how many requests come, because the queue grows."""
        return {
            name: each for name, each in self.figures.items() if self.stable or not name.startswith(("ttft", "e2e"))
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class LoadValidation(Listed[LoadComparison]):
    """Measured loads of one file and their simulations, in the order of the file."""

    shown_by = "loads.LoadsReport"
    parts = "rows"

    name: str
    """File that the loads are from."""
    rows: tuple[LoadComparison, ...]


def compare_loads(
    results: Sequence[Result],
    given: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    name: str = "",
    profile: str | None = None,
    watch: Callable[[int], object] = lambda done: None,
) -> LoadValidation:
    """Simulate measured loads, standard wiring.

    `results` are as `read_results` of `ladder_sim.serving.requests.results` returns them, from the file `name`. Where
    there is no argument of `Scenario`, what the file says counts. `watch` is given the number of loads done so far.
    Raises LadderSimError if none of them can be predicted; with the reason of the first.
    """
    compared, faults = [], []
    for number, result in enumerate(results, 1):
        try:
            compared.append(_compare(result, given, overrides, profile))
        except LadderSimError as error:
            faults.append(error)
            note = f"not predicted: {error.message}"
            compared.append(LoadComparison(result=result, scenario=None, figures={}, confidence=None, note=note))
        watch(number)
    if len(faults) == len(results):
        raise faults[0]
    return LoadValidation(name=name, rows=tuple(compared))


def summarize_loads(comparisons: Sequence[LoadComparison]) -> Mapping[str, ErrorStats]:
    """Return the errors of each figure that was measured, where the prediction's queue does not make it grow."""
    names = dict.fromkeys(name for each in comparisons for name in each.judged)
    summaries = {name: error_stats(each.judged.get(name) for each in comparisons) for name in names}
    return {name: errors for name, errors in summaries.items() if errors}


def gate_loads(comparisons: Sequence[LoadComparison], maximum: float) -> None:
    """Refuse predictions whose mean error of the mean TPOT exceeds `maximum`, a fraction, or that could not be made."""
    for each in comparisons:
        if each.note and not each.result.left_out:
            raise LadderSimError(f"--max-error: a load is {each.note}", hint="leave it out, or add what it lacks")
    check_error(error_stats(each.figures.get("tpot_mean_s") for each in comparisons), maximum, "TPOT", "rows")


class PublishedError(NamedTuple):
    """How far off predictions of one published load were."""

    load: str
    """Source of the load."""
    errors: Mapping[str, float]
    """Predicted over measured - 1, by figure."""


def errors_of(scenario: Scenario) -> list[PublishedError]:
    """Return the errors on published loads of the same model, GPU, engine, precision and degrees of a plan.

    Examples
    --------
    >>> [each.load.partition(",")[0] for each in errors_of(Scenario(model="70b", stack="vllm", tp=4, concurrency=8))]
    ['BLIS ground truth', 'BLIS ground truth', 'BLIS ground truth', 'BLIS ground truth']
    """
    fields = {**scenario.fields(), "stack": scenario.stack.unversioned}
    wanted = tuple(str(fields[name]) for name in DEPLOYMENT)
    loads: dict[str, dict[str, float]] = {}
    for row in _published_errors():
        if tuple(row[name] for name in DEPLOYMENT) == wanted and not row["note"]:
            loads.setdefault(row["source"], {})[row["figure"]] = float(row["error"])
    return [PublishedError(source, errors) for source, errors in loads.items()]


@cache
def _published_errors() -> list[dict[str, str]]:
    file = resources.files("ladder_sim.validation") / "data" / "published-errors.csv"
    return list(csv.DictReader(file.read_text("utf-8").splitlines()))


def _compare(
    result: Result, given: Mapping[str, Any], overrides: Mapping[str, Any], profile: str | None
) -> LoadComparison:
    scenario = _scenario(result, given, overrides)
    requests = _requests(result)
    if result.left_out:
        return LoadComparison(result=result, scenario=scenario, figures={}, confidence=None, note=result.left_out)
    service = Service.for_requests(scenario, requests, profile=profile)
    served = under_load(service, requests, "standard", concurrency=result.concurrency)
    predicted = served["standard"].figures
    # as many requests were measured
    cautions = [text for text in served.cautions if text != served.too_few]
    return LoadComparison(
        result=result,
        scenario=scenario,
        figures={
            name: Quantity(measured=measured, predicted=predicted[name]) for name, measured in result.figures.items()
        },
        confidence=served.confidence,
        stable=served["standard"].stable,
        cautions=(*_contradiction(result, scenario, given), *failures(result), *cautions, served.interval_note),
    )


def failures(result: Result) -> tuple[str, ...]:
    """Return notes on what failed requests mean for a comparison."""
    if not result.failed:
        return ()
    sent = result.failed + result.answered
    return (
        f"{result.failed} of {sent} requests failed where it was measured, and are left out: the server had less to do "
        "than the load says",
    )


def _contradiction(result: Result, scenario: Scenario, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a caution if the file states another deployment than is given."""
    other = stated_otherwise(result, scenario, given)
    if not other:
        return ()
    measured, predicted = (
        ", ".join(f"{name} {values[name]}" for name in other) for values in (other, scenario.fields())
    )
    return (Caution(f"the file says that it measured {measured}; predicted is {predicted}, as given", DOUBT),)


def stated_otherwise(result: Result, scenario: Scenario, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file states otherwise than the arguments that are given; a client's own names do not count."""
    ours, theirs = scenario.fields(), {}
    # who names the GPUs names the engine that ran on them, and no client's protocol
    for name in given.keys() & (_STATED | ({"stack"} if "system" in result.server else set())):
        try:
            said = _said(result.server, {key: value for key, value in given.items() if key != name}).get(name)
            if said and name == "model":
                spec = catalog.model(said)
                said = spec.name
                if "dtype" not in given or spec.weights_dtype not in _UNQUANTIZED:
                    theirs["dtype"] = spec.weights_dtype
            elif said and name == "stack" and said == scenario.stack.unversioned:
                continue
        except LadderSimError:
            continue
        if said:
            theirs[name] = said
    return {name: theirs[name] for name in DEPLOYMENT if theirs.get(name, ours[name]) != ours[name]}


def plan_of(result: Result) -> dict[str, int]:
    """Return the degrees of the plan that a file states, as arguments of a scenario."""
    plan = {name: value for name, value in result.server.items() if name in ("tp", "ep", "dp_attention")}
    return {name: degree for name, degree in _said(plan, {}).items() if degree > 1 or name == "tp"}


def _scenario(result: Result, given: Mapping[str, Any], overrides: Mapping[str, Any]) -> Scenario:
    if "campaign" in result.server:
        known = server_of(str(result.server["campaign"]))
        given, overrides = {**known.scenario, **given}, {**known.server, **overrides}
    arguments = {**_said(result.server, given), **given}
    missing = [name for name in _NEEDED if name not in arguments]
    if missing:
        raise UsageError(
            f"the result of {result.tool} does not say {', '.join(missing)}",
            hint="add " + " ".join(f"--{name} {_NEEDED[name]}" for name in missing),
        )
    # each replica has a request, whatever comes
    replicas = arguments.get("dp", 1) * arguments.get("attention_dp", 1)
    return Scenario(**arguments, concurrency=max(1, replicas), overrides=overrides)


def _requests(result: Result) -> Traffic | Sequence[Request]:
    """Return the requests of a load: as the file says, and what is known of its campaign."""
    requests = result.requests
    if "campaign" not in result.server or not isinstance(requests, Traffic):
        return requests
    known: Mapping[str, Any] = server_of(str(result.server["campaign"])).requests
    own = replace(requests.prompt, first=requests.prompt.first - known.get("prefix", 0))
    return replace(requests, **known, prompt=own)


def _said(server: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a scenario that a file says, without those that are given."""
    said: dict[str, Any] = {}
    if "model" in server and "model" not in given:
        said["model"] = str(server["model"])
        try:
            catalog.model(said["model"])
        except UsageError as error:
            raise UsageError(error.message, hint="give --model: a name of the catalog or a config.json") from error
    if "system" in server and "cluster" not in given:
        said["cluster"] = cluster_name(str(server["system"]))
    if "backend" in server and "stack" not in given:
        engine = str(server["backend"])
        said["stack"] = stack_name(_ENGINES.get(engine, engine), "")
    if "dtype" in server and "dtype" not in given:
        model = str(given.get("model") or said["model"])
        cell = {"moe_quant_mode": "", "gemm_quant_mode": "", "dtype": str(server["dtype"])}
        said["dtype"] = format_name(cell, model)
    if "tp" in server and not {"tp", "attention_dp"} & given.keys():
        # of attention, if it has not the whole of its groups on each GPU
        said["attention_dp" if server.get("dp_attention") else "tp"] = int(server["tp"])
        said.setdefault("tp", 1)
    if int(server.get("ep", 1)) > 1 and "ep" not in given:
        said["ep"] = int(server["ep"])
    return said
