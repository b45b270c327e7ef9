"""vLLM's engine, its scheduler included, as a replica of `ladder_sim.serving`."""

import functools
import json
import os
import tempfile
from collections import Counter, deque
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import simpy

from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.engine.replica import Replica
from ladder_sim.serving.engine.scheduler import SchedulerSpec, Step
from ladder_sim.serving.steps.mix import Mix
from vllm_ladder import cpu  # noqa: F401

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request as VllmRequest

from vllm_ladder.executor import TimedExecutor, VirtualClock

# a model that is never loaded
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32000,
    "torch_dtype": "float32",
}


class _Started(NamedTuple):
    """A step that runs, or waits for the step before it."""

    mix: Mix
    start_s: float
    seconds: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds


class EngineReplica(Replica):
    """Replica that vLLM's engine core schedules, with steps that only take time."""

    def _make_scheduler(self) -> None:
        self._arrival = self.env.event()
        self.env.process(self._run())
        self._clock = VirtualClock()
        self._started = deque[_Started]()
        self._open: dict[str, tuple[Answer, VllmRequest]] = {}
        self._gains: dict[str, list[int]] = {}
        # each part of a prompt is one token many times: equal names, equal tokens
        self._tokens: dict[object, int] = {}
        spec = self.spec
        self._core = EngineCore(
            _config(spec, min(self.times.limits.context, spec.kv_blocks * spec.block_tokens)),
            functools.partial(
                TimedExecutor,
                spec=spec,
                seconds=self._begin,
                clock=self._clock,
                gains=self._gains.__getitem__ if spec.speculation else None,
            ),
            log_stats=False,
        )

    @property
    def running(self) -> int:
        """Number of admitted requests."""
        return len(self._core.scheduler.running)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for admission."""
        return len(self._core.scheduler.waiting)

    @property
    def kv_share(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return float(self._core.scheduler.kv_cache_manager.usage)

    def cached(self, answer: Answer) -> int:
        """Return how many blocks of the KV cache hold the beginning of a request."""
        _, tokens, *_ = self._core.scheduler.kv_cache_manager.get_computed_blocks(self._request(answer))
        return int(tokens) // self.spec.block_tokens

    def _queue(self, answer: Answer) -> None:
        request = self._request(answer)
        self._open[request.request_id] = answer, request
        if self.spec.speculation:
            self._gains[request.request_id] = self.spec.speculation.gains(answer.number, answer.request.gen)
        self._core.add_request(request)
        if not self._arrival.triggered:
            self._arrival.succeed()

    def _request(self, answer: Answer) -> VllmRequest:
        """Make vLLM's request of one of ours."""
        asked = answer.request
        parts = [self._token(name) for name in asked.prefix]
        shared = [token for token in parts for _ in range(asked.prefix_tokens)]
        own = [self._token(answer)] * asked.prompt
        request, _ = self._core.preprocess_add_request(
            EngineCoreRequest(
                # of equal arrivals, vLLM takes the one whose name is first in the alphabet
                request_id=f"{answer.number:012}",
                prompt_token_ids=(shared + own)[: asked.prompt],
                mm_features=None,
                sampling_params=SamplingParams(max_tokens=asked.gen, ignore_eos=True),
                pooling_params=None,
                arrival_time=asked.arrival_s,
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
        )
        return request

    def _token(self, of: object) -> int:
        return self._tokens.setdefault(of, len(self._tokens))

    def _begin(self, mix: Mix) -> float:
        start_s = max(self._clock.now_s, self._started[-1].end_s if self._started else 0)
        self._started.append(_Started(mix, start_s, self._seconds(mix)))
        return self._started[-1].seconds

    def _run(self) -> Generator[simpy.Event, object, None]:
        """Run steps for ever; with nothing to run, wait for the next request."""
        core = self._core
        while True:
            if not core.scheduler.has_requests() and not core.batch_queue:
                self._arrival = self.env.event()
                yield self._arrival
                continue
            self._clock.reach(self.env.now)
            outputs, ran = core.step_fn()
            core.post_step(ran)
            # requests that arrive while the step runs are scheduled in the next one
            yield self.env.timeout(self._clock.now_s - self.env.now)
            parts = [part for each in (outputs or {}).values() for part in each.outputs]
            if self._started and self._started[0].end_s <= self._clock.now_s:
                mix, start_s, seconds = self._started.popleft()
                step, gaps_s = self._step(mix, parts)
                self._ended(step, start_s, seconds, gaps_s.items())

    def _step(self, mix: Mix, parts: list[Any]) -> tuple[Step, Counter[float]]:
        """Note the tokens of a step in their answers; return the step and the times between tokens."""
        step, gaps_s = Step(mix, [], []), Counter[float]()
        for part in parts:
            answer, request = self._open[part.request_id]
            if part.new_token_ids:
                if answer.first_s:
                    gaps_s[self.env.now - answer.token_s] += 1
                else:
                    answer.first_s = self.env.now
                    step.first.append(answer)
                answer.token_s = self.env.now
            if part.prefill_stats:
                answer.reused += part.prefill_stats.num_cached_tokens
            if part.finish_reason is not None:
                answer.last_s, answer.preemptions = self.env.now, request.num_preemptions
                step.last.append(answer)
                del self._open[part.request_id]
        return step, gaps_s


def _config(spec: SchedulerSpec, context: int) -> Any:
    """Make vLLM's configuration for requests of at most `context` tokens; the executor sets its limits."""
    # the method that needs no second model
    drafts = {"method": "ngram", "num_speculative_tokens": spec.rows - 1} if spec.speculation else None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps({**_MODEL, "max_position_embeddings": context}), "utf-8")
        return EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="float32",
            enforce_eager=True,
            max_model_len=context,
            max_num_batched_tokens=max(spec.step_tokens, spec.step_requests),
            max_num_seqs=spec.step_requests,
            block_size=spec.block_tokens,
            enable_prefix_caching=spec.prefix_cache,
            distributed_executor_backend=TimedExecutor,
            speculative_config=drafts,
        ).create_engine_config()
