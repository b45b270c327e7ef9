"""vLLM's executors without a model: a step puts out tokens after the time that it is predicted to take.

`PredictedExecutor` serves so in real time, on a machine without the GPUs:

    vllm serve MODEL --distributed-executor-backend vllm_ladder.executor.PredictedExecutor \
        --additional-config '{"ladder_sim": {"model": "70b", "tp": 8, "stack": "vllm", "variant": "ladder"}}'

MODEL lends its tokenizer. Limits of steps, the KV cache and scheduling ahead are the scenario's, whatever vLLM's flags.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, DraftTokenIds, ModelRunnerOutput

from ladder_sim import Scenario
from ladder_sim.errors import UsageError
from ladder_sim.serving import Service
from ladder_sim.serving.engine.replica import Pace
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.steps.mix import Mix

# tokens that a step with drafts brings a request, by its name and by the tokens that its answer has by then
Gains = Callable[[str], Sequence[int]]


class Clock:
    """Real time."""

    @property
    def now_s(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic()

    def reach(self, at_s: float) -> None:
        """Wait until a time."""
        time.sleep(max(0.0, at_s - self.now_s))


class VirtualClock(Clock):
    """Simulated time: who waits for a time moves the clock there."""

    def __init__(self) -> None:
        self._now_s = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the start of the simulation."""
        return self._now_s

    def reach(self, at_s: float) -> None:
        """Move the clock forward to a time."""
        self._now_s = max(self._now_s, at_s)


class _Timed(Future[ModelRunnerOutput]):
    """The output of a step: done when the clock has reached the step's end."""

    def __init__(self, output: ModelRunnerOutput, clock: Clock, end_s: float) -> None:
        super().__init__()
        self._clock, self._end_s = clock, end_s
        self.set_result(output)

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        self._clock.reach(self._end_s)
        return super().result(timeout)

    def done(self) -> bool:
        return self._clock.now_s >= self._end_s


class TimedExecutor(Executor):
    """Executor whose steps only take time.

    Parameters
    ----------
    config
        vLLM's configuration; limits of steps, scheduling ahead and the prefix cache are replaced by those of `spec`.
    spec
        Limits of the scheduler's steps and of its KV cache.
    seconds
        Duration of a step; called once for each step, in order.
    clock
        Says when a step has ended: real or simulated time.
    gains
        Tokens that steps with drafts bring; None: no tokens are drafted.
    """

    supports_pp = True

    def __init__(
        self,
        config: VllmConfig,
        spec: SchedulerSpec,
        seconds: Callable[[Mix], float],
        clock: Clock,
        gains: Gains | None = None,
    ) -> None:
        self.spec, self._seconds, self._clock, self._gains = spec, seconds, clock, gains
        super().__init__(config)

    def _init_executor(self) -> None:
        """Set the limits of vLLM's scheduler, which is made after this."""
        spec, scheduler, cache = self.spec, self.scheduler_config, self.cache_config
        scheduler.async_scheduling = spec.ahead
        scheduler.max_num_batched_tokens = scheduler.max_num_scheduled_tokens = spec.step_tokens
        scheduler.max_num_seqs = spec.step_requests
        cache.block_size, cache.enable_prefix_caching = spec.block_tokens, spec.prefix_cache
        # end of the last step
        self._free_s = 0.0
        self._output: Future[ModelRunnerOutput] = Future()
        # any but the tokenizer's special ones, which are first or last
        self._token = self.model_config.get_vocab_size() // 2
        # by request: tokens of its prompt, tokens of its answer so far, and tokens in the KV cache without rejected
        # drafts
        self._prompts: dict[str, int] = {}
        self._produced: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        # requests that have drafts in their next step
        self._drafting: list[str] = []
        # one layer stands for all
        kv = FullAttentionSpec(block_size=spec.block_tokens, num_kv_heads=1, head_size=64, dtype=torch.float32)
        self._worker: dict[str, Any] = {
            "get_supported_tasks": ("generate",),
            "get_kv_cache_spec": {"layers.0": kv},
            # any layout would do
            "get_supported_kv_cache_layouts": ["NHD"],
            # vLLM never uses one of the blocks
            "determine_available_memory": (spec.kv_blocks + 1) * kv.page_size_bytes,
        }

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """Say whether a step may be scheduled while another one runs; always true here."""
        return True

    def collective_rpc(self, method: Any, *_: Any, **__: Any) -> list[Any]:
        """Answer for the workers, of which there are none."""
        return [self._worker.get(method)]

    def check_health(self) -> None:
        """Return: nothing can fail."""

    def compile_or_warm_up_model(self) -> None:
        """Return: there is no model to compile."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Start a step, which begins when the step before it has ended."""
        scheduled = scheduler_output.num_scheduled_tokens
        if not scheduled:
            nothing = _Timed(EMPTY_MODEL_RUNNER_OUTPUT, self._clock, self._clock.now_s)
            return nothing if non_block else nothing.result()
        before, lengths = self._read(scheduler_output)
        drafts = scheduler_output.scheduled_spec_decode_tokens
        # prompts that go on bring no token
        gained = {
            name: self._gain(name, len(drafts.get(name, ()))) if before[name] + new >= lengths[name] else 0
            for name, new in scheduled.items()
        }
        # the scheduler counts drafts on their way as accepted
        before |= {name: self._computed.get(name, before[name]) for name in drafts}
        for name, new in scheduled.items():
            self._produced[name] = self._produced.get(name, 0) + gained[name]
            rejected = 1 + len(drafts[name]) - gained[name] if name in drafts else 0
            self._computed[name] = before[name] + new - rejected
        self._drafting = [name for name, tokens in gained.items() if tokens]
        self._free_s = max(self._clock.now_s, self._free_s) + self._seconds(_mix(scheduled, before, drafts))
        output = ModelRunnerOutput(
            req_ids=list(scheduled),
            req_id_to_index={name: number for number, name in enumerate(scheduled)},
            sampled_token_ids=[[self._token] * tokens for tokens in gained.values()],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self._output = _Timed(output, self._clock, self._free_s)
        started: Future[None] = Future()
        started.set_result(None)
        return started if non_block else None

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Return the output of the last step."""
        return self._output if non_block else self._output.result()

    def take_draft_token_ids(self) -> DraftTokenIds:
        """Return as many drafts as a step takes, for each request that decodes next."""
        return DraftTokenIds(self._drafting, [[self._token] * (self.spec.rows - 1) for _ in self._drafting])

    def _read(self, scheduler_output: Any) -> tuple[dict[str, int], dict[str, int]]:
        """Return by request its tokens computed before this step, and all its tokens: prompt and answer so far."""
        for name in scheduler_output.finished_req_ids:
            for tokens in (self._prompts, self._produced, self._computed):
                tokens.pop(name, None)
        new, cached = scheduler_output.scheduled_new_reqs, scheduler_output.scheduled_cached_reqs
        self._prompts |= {request.req_id: request.prompt_len for request in new}
        before = {request.req_id: request.num_computed_tokens for request in new}
        lengths = {request.req_id: request.prompt_len for request in new}
        before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        answers = zip(cached.req_ids, cached.num_output_tokens, strict=True)
        lengths |= {name: self._prompts[name] + tokens for name, tokens in answers}
        return before, lengths

    def _gain(self, name: str, drafts: int) -> int:
        """Return the tokens that a step brings a request whose prompt is done."""
        # rows that vLLM adds to a prompt of one token are no drafts
        if not drafts or self._gains is None or not self._produced.get(name):
            return 1
        gains = self._gains(name)
        return min(1 + drafts, gains[min(self._produced[name], len(gains)) - 1])


def _mix(scheduled: Mapping[str, int], before: Mapping[str, int], drafts: Mapping[str, Sequence[int]]) -> Mix:
    """Add up the requests of a step."""
    mix = Mix.of(prefill=[(new, before[name]) for name, new in scheduled.items() if name not in drafts])
    return mix._replace(
        decoding=mix.decoding + len(drafts),
        context=mix.context + sum(before[name] + scheduled[name] for name in drafts),
        drafted=mix.drafted + sum(map(len, drafts.values())),
    )


class PredictedExecutor(TimedExecutor):
    """Serves in real time as if on the GPUs of a scenario.

    Parameters
    ----------
    config
        vLLM's configuration. Its `additional_config["ladder_sim"]` holds the arguments of `Scenario`.
    """

    def __init__(self, config: VllmConfig) -> None:
        arguments = config.additional_config.get("ladder_sim")
        if arguments is None:
            raise UsageError(
                "no scenario for the predicted steps",
                hint='say what to serve as: --additional-config \'{"ladder_sim": {"model": "70b", "stack": "vllm"}}\'',
            )
        if config.speculative_config is not None:
            raise UsageError(
                "drafted tokens in real time: how many are accepted is not known",
                hint="leave out --speculative-config, or ask ladder-sim serve --set engine=vllm --set speculate=3:0.7",
            )
        scenario, context = Scenario(**arguments), config.model_config.max_model_len
        service = Service(scenario=scenario, context=context, engine="vllm")
        times = service.times(scenario.variant)
        super().__init__(config, service.spec, Pace(times, None).seconds, Clock())
