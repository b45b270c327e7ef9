"""The public function `capacity`: the fewest GPUs that meet an SLO, and its answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from ladder_sim.answer import Named
from ladder_sim.confidence import Interval
from ladder_sim.errors import UsageError
from ladder_sim.serving.asked import LoadFields, arguments_asked, check_prefill, service_asked, traffic_asked
from ladder_sim.serving.engine.measured_steps import MeasuredSteps
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.intervals import interval_note
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.service import SERVED_VARIANTS
from ladder_sim.serving.sizing.fleet import SEEDS, Fleet, smallest_fleets
from ladder_sim.specs.arguments import SystemFields
from ladder_sim.specs.legal_plans import legal_plans, without_plan
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import DOUBT, Caution
from ladder_sim.specs.settings import Overrides
from ladder_sim.sweeps.axes import axis
from ladder_sim.sweeps.price import check_price, token_price
from ladder_sim.values import typed

# an interval of the rate whose ends are further apart than this factor is explained
_WIDE = 1.6
# degrees of a replica's plan
_SEARCHED = ("tp", "pp", "ep", "attention_dp", "sp")


class CapacityFields(LoadFields, SystemFields, total=False):
    """Types of the keywords of `capacity` for the scenario, the requests and how they are served."""

    overrides: Overrides | None
    """Single figures to change, as in `Scenario`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Capacity(Named[str, Fleet]):
    """What each variant needs to meet an SLO, by canonical name, in the order asked for."""

    shown_by = "capacity.CapacityReport"
    parts = "variants"

    variants: Mapping[str, Fleet]
    """Fleets by canonical name of the variant."""
    scenario: Scenario
    """Model, GPUs and engine; its plan and requests do not count."""
    load: Traffic
    """Requests to serve."""
    slo: SLO
    """Bounds to keep."""
    seeds: int
    """Loads simulated at each point of the search."""
    speculation: Speculation | None = None
    """Drafted tokens, if there are any."""
    steps: MeasuredSteps | None = None
    """Step times of a running engine, if they were used."""
    usd_per_gpu_hour: float | None = None
    """Price of one GPU."""

    @property
    def enough_requests(self) -> int:
        """Number of requests that would say what a replica carries, if more than were simulated; else 0."""
        return max((each.need.enough_requests for each in self.variants.values() if each.need.too_few), default=0)

    def usd_per_Mtoken(self, name: str) -> Interval | None:  # noqa: N802
        """Return the US dollars for a million new tokens of a variant, at the rate served; None without a price."""
        if self.usd_per_gpu_hour is None:
            return None
        gpus, rate = self.variants[name].gpus, self.load.rate * self.load.gen.mean
        value, low, high = (
            token_price(self.usd_per_gpu_hour, each, rate) for each in (gpus.value, gpus.low, gpus.high)
        )
        return Interval(value=value, low=low, high=high)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What the reader should know, one sentence each."""
        why = [f"{name}: {text}" for name, each in self.variants.items() for text in each.reasons]
        if enough := self.enough_requests:
            few = f"{self.load.requests} requests are few: req/s alone is too high, gains are not of a steady load"
            why.append(Caution(f"{few}; raise --requests to {enough}", DOUBT))
        return (*why, *filter(None, dict.fromkeys(each.need.outcome.caution for each in self.variants.values())))

    @property
    def interval_note(self) -> str:
        """What intervals are over, and what figures leave out, as a sentence; empty where there are none."""
        widths = {name: each.widths for name, each in self.variants.items() if each.widths}
        stack = next((each.confidence.scenario.stack for each in self.variants.values() if each.confidence), None)
        if not stack:
            return ""
        spans = {name: each.rate_limit.high / each.rate_limit.low for name, each in self.items() if each.rate_limit.low}
        wide = " and ".join(f"{span:.2g} ({name})" for name, span in spans.items() if span > _WIDE)
        note = interval_note(widths, self.seeds, self.steps, stack)
        if wide:
            note += f"; near the bound that breaks, req/s alone moves by more than steps: by a factor of {wide}"
        return note


@typed()
def capacity(
    scenario: Scenario | None = None,
    variants: str | Sequence[str] = SERVED_VARIANTS,
    *,
    slo: str | Mapping[str, float | str] | SLO,
    tp: int | str | Sequence[int] | None = None,
    pp: int | str | Sequence[int] | None = None,
    ep: int | str | Sequence[int] | None = None,
    attention_dp: int | str | Sequence[int] | None = None,
    sp: bool | str | Sequence[bool] | None = None,
    prefill_tp: int | str | Sequence[int] | None = None,
    seeds: int | None = None,
    usd_per_gpu_hour: float | None = None,
    curves: bool = False,
    watch: Callable[[int, int], object] = lambda done, total: None,
    say: Callable[[str], object] = lambda text: None,
    **fields: Unpack[CapacityFields],
) -> Capacity:
    """Find the plan with the fewest GPUs that meets an SLO at a request rate, and the rate each replica sustains.

    Parameters
    ----------
    scenario
        Model, GPUs and engine; or its arguments as keywords. ``nodes`` is the most that one replica may use. Its prompt
        and gen count where the keywords do not say them.
    variants
        Residual wirings; savings are over the first one.
    slo
        Bounds on times: ``{"ttft_p95_s": 0.5}``, ``"ttft_p95=500ms,tpot_p95=30ms"``, or `SLO`.
    tp, pp, ep, attention_dp, sp
        Degrees of a replica's plan to try: one, several, or a range as text. By default those that the scenario was
        given, and of the others all that are legal.
    prefill_tp
        Tensor parallelisms to try for replicas that run prompts only; how many there are is part of the search.
    rate, prompt, gen, requests, burstiness, prefix, seed, router, speculate, steps, profile
        As in `ladder_sim.serve`.
    seeds
        Number of loads whose mean is compared with a bound: 3 by default.
    usd_per_gpu_hour
        Price of one GPU.
    curves
        Whether to simulate one replica of the best plan at further rates, for figures.
    watch
        Called with how much is simulated, and about how much there is.
    say
        Called once, before anything is simulated, with the answer by predictions of requests in flight, a sentence.

    Returns
    -------
    Capacity
        GPUs, replicas and the rate of each variant, with intervals, and what became of each plan.

    Raises
    ------
    UsageError
        There is no rate, or no plan can be simulated.

    Examples
    --------
    >>> from ladder_sim import Scenario, capacity
    >>> chat = {"rate": 60.0, "prompt": 512, "gen": 32, "requests": 60}
    >>> need = capacity(Scenario(model="8b", stack="vllm"), slo={"ttft_p95_s": 0.2}, tp=1, pp=1, seeds=1, **chat)
    >>> {name: (each.plans, each.gpus.value) for name, each in need.items()}
    {'standard': ('TP 1', 1.0), 'ladder': ('TP 1', 1.0)}
    """
    arguments = arguments_asked(scenario, fields)
    typed_degrees = {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp, "sp": sp}
    said = {name: arguments.pop(name, None) for name in _SEARCHED}
    degrees = {name: said[name] if given is None else given for name, given in typed_degrees.items()}
    if (dp := arguments.pop("dp", 1)) != 1:
        raise UsageError(f"dp {dp} changes nothing here: the search finds the number of replicas", hint="leave it out")
    base = _base(arguments)
    traffic, slo = traffic_asked(scenario, fields), SLO.read(slo)
    prefill_tps: Sequence[int] = ()
    if prefill_tp is not None:
        check_prefill("prefill_tp", fields)
        prefill_tps = axis("tp", prefill_tp).values
    how = service_asked(fields)
    price = None if usd_per_gpu_hour is None else check_price(usd_per_gpu_hour)
    count = SEEDS if seeds is None else seeds
    fleets = smallest_fleets(
        base,
        traffic,
        slo,
        variants,
        plans=_plans(base, degrees, measured=how["steps"] is not None),
        prefill_tps=prefill_tps,
        seeds=count,
        curves=curves,
        watch=watch,
        say=say,
        **how,
    )
    return Capacity(
        variants=fleets,
        scenario=base,
        load=traffic,
        slo=slo,
        seeds=count,
        speculation=how["changed"].get("speculation"),
        steps=how["steps"],
        usd_per_gpu_hour=price,
    )


def _base(arguments: Mapping[str, Any]) -> Scenario:
    """Return the scenario without a plan, with a request for each GPU."""
    base = without_plan(arguments, concurrency=1)
    gpus = base.nodes * base.cluster.gpus_per_node
    return base.having(workload=replace(base.workload, concurrency=gpus))


def _plans(base: Scenario, degrees: Mapping[str, Any], *, measured: bool) -> Sequence[Plan]:
    given = {name: axis(name, values).values for name, values in degrees.items() if values is not None}
    if measured:
        # those of a running engine are of one plan
        given = {"tp": (base.cluster.gpus_per_node,), "pp": (1,), "ep": (1,), "attention_dp": (1,), **given}
    return legal_plans(base, base.workload.in_flight, {**given, "dp": [1]}).legal
