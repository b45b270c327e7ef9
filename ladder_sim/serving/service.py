"""What serves requests: the replicas of a scenario, how they schedule and how long their steps take."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UsageError
from ladder_sim.serving.engine.defaults import scheduler_spec, with_drafter
from ladder_sim.serving.engine.measured_steps import MeasuredSteps, RewiredSteps
from ladder_sim.serving.engine.real import check_engine, replica_of
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.replicas.pools import Pool, Prefill, Sizes
from ladder_sim.serving.replicas.simulation import ROUTERS, Router, simulate
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.steps.mix import MixTimes, StepLimits
from ladder_sim.serving.steps.times import StepTimes
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.values import choice

DEFAULT_VARIANTS = ("standard", "ladder")


# no slots: times are made once for each variant and kept
@dataclass(frozen=True, kw_only=True, eq=False)
class Service:
    """A scenario that serves: its scheduler, and the times of its steps."""

    scenario: Scenario
    """Model, GPUs, plan and stack; its requests do not count."""
    context: int
    """Tokens of the longest request."""
    requests: int = 0
    """How many there are, if that is known; 0: it is not."""
    router: Router = "round-robin"
    """Which replica a request goes to."""
    profile: str | CalibrationProfile | None = None
    """As in `ladder_sim.predict`."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SchedulerSpec` to set otherwise."""
    steps: MeasuredSteps | None = None
    """Times of a running engine's steps, with the standard wiring, instead of simulated ones."""
    prefill: Scenario | None = None
    """As `scenario`, of replicas that run prompts only, if there are any; its ``dp`` is their number."""
    engine: str | None = None
    """A real engine that schedules instead of the simulated one: "vllm"."""
    _times: dict[tuple[str, int], MixTimes] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        choice(self.router, "router", ROUTERS)
        if self.engine is None:
            return
        check_engine(self.engine, self.scenario)
        if self.prefill:
            raise UsageError(
                f"engine {self.engine} with replicas that run prompts only: their scheduler is simulated",
                hint="leave out one of them",
            )

    @classmethod
    def for_requests(cls, scenario: Scenario, requests: Iterable[Request], **how: Any) -> Self:
        """Return a service that takes requests as long as these, which are read once."""
        count = longest = 0
        for request in requests:
            count, longest = count + 1, max(longest, request.prompt + request.gen)
        if not count:
            raise UsageError("no requests to serve", hint="ask for at least one, e.g. --requests 1000")
        return cls(scenario=scenario, context=longest, requests=count, **how)

    @property
    def plans(self) -> str:
        """Of one replica of each kind, e.g. "TP 8, prompts on TP 4"."""
        prompts = f", prompts on {replace(self.prefill.plan, dp=1)}" if self.prefill else ""
        return f"{replace(self.scenario.plan, dp=1)}{prompts}"

    def alike(self, number: int) -> Sizes:
        """Return the sizes with this number of replicas of each kind."""
        return Sizes(number, number if self.prefill else 0)

    def gpus(self, sizes: Sizes) -> int:
        """Return the number of GPUs of some replicas."""
        prefill = sizes.prefill * self.prefill.plan.replica_gpus if self.prefill else 0
        return sizes.serving * self.scenario.plan.replica_gpus + prefill

    @property
    def speculation(self) -> Speculation | None:
        """Drafted tokens as they were asked for, if they were."""
        asked: Speculation | None = self.changed.get("speculation")
        return asked

    @property
    def spec(self) -> SchedulerSpec:
        """How each replica schedules."""
        if self.steps:
            return with_drafter(replace(self.steps.spec, **self.changed), self.scenario)
        return scheduler_spec(self.scenario, self.context, **self.changed)

    def times(self, variant: str, longest: int = 0) -> MixTimes:
        """Return the times of a variant's steps, also for requests longer than the longest known one."""
        # a power of two, so that files serve many loads
        context = max(4096, 1 << (max(self.context, longest) - 1).bit_length())
        if (variant, context) not in self._times:
            times: MixTimes
            if self.steps is None:
                times = self._simulated(variant, context)
            elif variant == "standard":
                times = self.steps
            else:
                times = RewiredSteps(
                    self.steps, self._simulated("standard", context), self._simulated(variant, context)
                )
            self._times[variant, context] = times
        return self._times[variant, context]

    def _simulated(self, variant: str, context: int) -> StepTimes:
        spec = self.spec
        limits = StepLimits(
            requests=min(spec.rows * min(spec.step_requests, 1024), spec.step_tokens),
            tokens=spec.step_tokens,
            context=context,
        )
        return StepTimes.of(self.scenario, variant, profile=self.profile, limits=limits)

    def run(
        self,
        variant: str,
        requests: Iterable[Request],
        *,
        replicas: int | None = None,
        prefill_replicas: int | None = None,
        slower: float = 1.0,
        **how: Any,
    ) -> Outcome:
        """Serve requests, in order of arrival, with one variant.

        The plans say how many replicas there are, unless it is given. All steps take `slower` times as long. The rest
        is passed to `ladder_sim.serving.replicas.simulation.simulate`.
        """
        # another seed or rate draws others than those that the service was made for
        longest = max(each.prompt + each.gen for each in requests) if isinstance(requests, Traffic) else 0
        pool = self._pool(variant, replicas, slower, longest)
        prefill = None
        if self._prompts:
            prompts = self._prompts._pool(variant, prefill_replicas, slower, longest)
            prefill = Prefill.between(prompts, self._prompts.scenario, self.scenario, pool.gpus + prompts.gpus)
        return simulate(variant, pool, requests, prefill=prefill, router=self.router, **how)

    @cached_property
    def _prompts(self) -> "Service | None":
        """What runs prompts only."""
        if self.prefill is None:
            return None
        changed = {**self.changed, "hands_over": True, "speculation": None}
        return replace(self, scenario=self.prefill, changed=changed, prefill=None, _times={})

    def _pool(self, variant: str, replicas: int | None, slower: float, longest: int) -> Pool:
        replica = replica_of(self.engine)
        plan, times = self.scenario.plan, self.times(variant, longest).slower(slower)
        count = plan.dp if replicas is None else replicas
        # steps at once are for requests of their own, as if they were further replicas
        return Pool(
            times=times,
            spec=self.spec,
            replicas=count * plan.steps_at_once,
            gpus=count * plan.replica_gpus,
            replica=replica,
        )
