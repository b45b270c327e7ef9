"""The public function `serve`: what becomes of requests that arrive at a scenario's replicas."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from ladder_sim.errors import UsageError
from ladder_sim.serving.asked import (
    DRAWN,
    LoadFields,
    arguments_asked,
    check_prefill,
    service_asked,
    traffic_asked,
)
from ladder_sim.serving.intervals import Served, under_load
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.serving.requests.traces import Trace
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.service import SERVED_VARIANTS, Service
from ladder_sim.specs.arguments import PlacedFields
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import Overrides
from ladder_sim.sweeps.price import check_price
from ladder_sim.values import typed, whole


class ServeFields(LoadFields, PlacedFields, total=False):
    """Types of the keywords of `serve` for the scenario, the requests and how they are served."""

    overrides: Overrides | None
    """Single figures to change, as in `Scenario`."""


@typed()
def serve(
    scenario: Scenario | None = None,
    variants: str | Sequence[str] = SERVED_VARIANTS,
    *,
    trace: str | Path | Sequence[Request] | None = None,
    speed: float | None = None,
    slo: str | Mapping[str, float | str] | SLO | None = None,
    seeds: int | None = None,
    prefill_replicas: int = 0,
    prefill_tp: int | None = None,
    engine: str | None = None,
    usd_per_gpu_hour: float | None = None,
    record: bool = False,
    watch: Callable[[int, int], object] = lambda answered, total: None,
    **fields: Unpack[ServeFields],
) -> Served:
    """Simulate requests that arrive under load, one by one, with several residual wirings.

    Parameters
    ----------
    scenario
        Model, GPUs, plan and engine, whose ``dp`` is the number of replicas; or its arguments as keywords. Its prompt
        and gen count where the keywords do not say them, and its concurrency where they say neither that nor a rate.
    variants
        Residual wirings; gains are over the first one.
    prompt, gen
        Tokens of prompts (1024 by default) and of answers (256): a number, a distribution as on the command line
        (``"uniform:512:1536"``, ``"lognormal:1024:0.5"``), or `Lengths`.
    rate
        Requests per second.
    concurrency
        Requests in flight at all times, instead of a rate; with a rate, the most at a time.
    requests
        Number of requests: 1000 by default, or all of a trace.
    burstiness, prefix, seed
        Regularity of arrivals (1 is a Poisson process), tokens that all prompts begin with, and the first seed.
    trace
        Requests of a file instead of random ones (`ladder_sim.serving.Trace`), or a list of
        `ladder_sim.serving.Request`.
    speed
        How many times as fast as recorded the file is played.
    slo
        Bounds on times: ``{"ttft_p95_s": 0.5}``, ``"ttft_p95=500ms,tpot_p95=30ms"``, or `SLO`.
    seeds
        Number of random loads, for intervals: 5 by default; 1: a single run, with the error of step times alone.
    router
        Which replica a request goes to: ``"round-robin"``, ``"least-loaded"`` or ``"prefix-aware"``.
    speculate
        Drafted tokens and their acceptance: ``"3:0.7"``, or ``"0.8/0.6/0.4"`` by position.
    prefill_replicas, prefill_tp
        Number of replicas that run prompts only, next to those that decode, and their tensor parallelism.
    engine
        ``"vllm"``: an installed vLLM schedules, and its steps take predicted times.
    steps
        Step times of a running vLLM: a file of ``calibrate fit-steps``, or `ladder_sim.serving.MeasuredSteps`.
    profile
        As in `ladder_sim.predict`.
    usd_per_gpu_hour
        Price of one GPU.
    record
        Whether replicas keep every step of the first seed, for figures.
    watch
        Called with the number of requests answered so far, and of all.

    Returns
    -------
    Served
        Times, rates and gains of each variant, with intervals.

    Raises
    ------
    UsageError
        No requests are described, or what describes them is contradictory.

    Examples
    --------
    >>> from ladder_sim import Scenario, serve
    >>> ladder = serve(Scenario(model="70b", stack="vllm"), rate=4.0, requests=200)["ladder"]
    >>> tpot, gain = ladder.tpot_p95_s, ladder.gains["tpot_p95_s"]
    >>> f"{1e3 * tpot.low:.0f} to {1e3 * tpot.high:.0f} ms, {gain.low:.2f} to {gain.high:.2f} times as fast"
    '10 to 15 ms, 1.05 to 1.48 times as fast'
    """
    arguments = arguments_asked(scenario, fields)
    placed = _placed(arguments)
    prefill = _prefill(arguments, placed, prefill_replicas, prefill_tp, fields)
    slo = None if slo is None else SLO.read(slo)
    price = None if usd_per_gpu_hour is None else check_price(usd_per_gpu_hour)
    load: Traffic | Trace | Sequence[Request]
    if trace is None:
        if speed is not None:
            raise UsageError(f"speed {speed:g} without a trace: nothing is played", hint="name a file of requests")
        load = traffic_asked(scenario, fields)
    else:
        load = _recorded(trace, 1.0 if speed is None else speed, fields)
    service = Service.for_requests(placed, load, prefill=prefill, engine=engine, **service_asked(fields))
    return under_load(
        service,
        load,
        variants,
        seeds=seeds,
        concurrency=load.concurrency if isinstance(load, Traffic) else 0,
        slo=slo,
        steady=isinstance(load, Traffic),
        usd_per_gpu_hour=price,
        record=record,
        watch=watch,
    )


def _placed(arguments: Mapping[str, Any]) -> Scenario:
    """Return the scenario with a request on each replica."""
    replicas = arguments.get("dp", 1) * arguments.get("attention_dp", 1)
    # of degrees below 1, which are no number of requests, the plan says so
    return Scenario(**arguments, concurrency=max(1, replicas))


def _prefill(
    arguments: Mapping[str, Any], placed: Scenario, replicas: int, tp: int | None, fields: Mapping[str, Any]
) -> Scenario | None:
    """Return the scenario of replicas that run prompts only; None if there are none."""
    if not replicas:
        if tp is not None:
            raise UsageError(
                f"prefill_tp {tp} without prefill_replicas: no replica runs prompts only",
                hint="say how many, e.g. --set prefill_replicas=2",
            )
        return None
    check_prefill("prefill_replicas", fields)
    whole(replicas, "prefill_replicas", 1, 10_000)
    return _placed({**arguments, "dp": replicas, "tp": placed.plan.tp if tp is None else tp})


def _recorded(
    trace: str | Path | Sequence[Request], speed: float, fields: Mapping[str, Any]
) -> Trace | Sequence[Request]:
    for name, default in DRAWN.items():
        # acceptance of drafted tokens is drawn all the same
        if name == "seed" and fields.get("speculate"):
            continue
        if str(value := fields.get(name, default)) != str(default):
            raise UsageError(
                f"{name} {value} with a trace: a trace has its own times and lengths, and nothing is drawn",
                hint="leave out one of them; speed and requests say how fast and how much of a trace is played",
            )
    if not 1e-6 <= speed <= 1e6:
        raise UsageError(f"speed {speed:g}: must be 1e-6 to 1e6", hint="2 plays a trace twice as fast")
    count = fields.get("requests")
    if isinstance(trace, str | Path):
        return Trace(path=Path(trace), requests=count, speed=speed)
    if speed != 1.0:
        raise UsageError(f"speed {speed:g} with requests of your own: they have times", hint="leave it out")
    return trace[:count]
