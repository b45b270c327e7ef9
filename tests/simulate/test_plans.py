"""Times of models with experts and latent attention, and of plans: limits in which they are those of simpler ones."""

import dataclasses
import itertools
import re
from typing import Any

import pytest

from ladder_sim import Scenario, predict
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.des.engine import run
from ladder_sim.des.program import Program, Stream, Task
from ladder_sim.des.scan import evaluation_order, scan
from ladder_sim.des.timeline import Timeline
from ladder_sim.graph.ops import PassInputs
from ladder_sim.graph.pass_kernels import PassKernels
from ladder_sim.graph.techniques import form, rewrites_of
from ladder_sim.kernels import CollectiveShape, Phase, Sizes
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.lower import COMM, COMPUTE
from ladder_sim.simulate.passes import FIRST_PERIODS, ForwardPass, simulate
from ladder_sim.specs import catalog
from tests.support.graphs import build
from tests.support.predict_one import predict_one

VARIANTS = ["standard", "parallel", "ladder", "hybrid-ladder:5", "desync:3", "upper-bound"]
# of each kind of layer and plan
SCENARIOS: dict[str, dict[str, Any]] = {
    "latent attention": {"model": "deepseek-v2-lite", "tp": 4},
    "dense layers first, shared experts": {"model": "glm-4.5-air", "tp": 8, "ep": 8, "dtype": "fp8"},
    "windows of every other layer": {"model": "gpt-oss-20b", "tp": 4},
    "windows of five in six": {"model": "gemma-3-12b", "tp": 4, "prompt": 3000},
    "experts of every other layer": {"model": "llama-4-maverick", "tp": 8, "nodes": 2, "dtype": "fp8"},
    "norms over all heads": {"model": "minimax-m2.5", "tp": 4, "ep": 4, "cluster": "h200-sxm"},
    "data-parallel attention": {"model": "qwen3-30b-a3b", "attention_dp": 8, "ep": 8, "batch": 24},
    "DeepEP": {
        "model": "deepseek-v2-lite",
        "attention_dp": 8,
        "ep": 8,
        "batch": 24,
        "overrides": {"stack.dispatch": "deepep-auto"},
    },
    "both": {"model": "qwen3-30b-a3b", "tp": 2, "attention_dp": 4, "ep": 8, "batch": 24},
    "stages": {"model": "8b", "tp": 2, "pp": 3, "batch": 7},
    "stages across nodes": {"model": "qwen3-30b-a3b", "nodes": 2, "tp": 4, "pp": 3, "batch": 7},
    "everything": {"model": "deepseek-v2-lite", "attention_dp": 2, "ep": 2, "pp": 2, "dp": 2, "batch": 16},
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_engines_agree(name: str) -> None:
    for stack in ("vllm", "gpt-fast"):
        scenario = Scenario(**{"gen": 4, "prompt": 100, "stack": stack, **SCENARIOS[name]})
        fast, des = (predict(scenario, VARIANTS, engine=engine) for engine in ("fast", "des"))  # type: ignore[arg-type]
        for variant in VARIANTS:
            assert fast[variant].request_s == pytest.approx(des[variant].request_s, rel=1e-9), (stack, variant)
            assert fast[variant].ttft_s == pytest.approx(des[variant].ttft_s, rel=1e-9), (stack, variant)


@pytest.mark.parametrize("name", SCENARIOS)
def test_ops_of_any_size_follow_from_those_of_one_token(name: str) -> None:
    for stack, sp in (("vllm", False), ("gpt-fast", False), ("vllm", True)):
        given = {"gen": 4, "prompt": 100, "stack": stack, **SCENARIOS[name]}
        if sp and Scenario(**given).plan.tp == 1:
            continue
        scenario = Scenario(**given, sp=sp)
        inputs, workload = PassInputs.of(scenario), scenario.workload
        phases: tuple[Phase, ...] = ("prefill", "decode")
        for phase in phases:
            kv_len = workload.prompt + (phase == "decode")
            requests = {"batch": inputs.workload.batch, "prompt": workload.prompt, "gen": workload.gen}
            sizes = Sizes.of(scenario.stack, phase, kv_len, **requests)
            rewrites = rewrites_of(inputs, form(inputs, phase, sizes.tokens))
            small = PassKernels(inputs.of_one_token(), phase)
            ops = small.ops(small.layout(scenario.variant, rewrites))
            assert [op.resized(sizes) for op in ops] == list(build(scenario, phase, kv_len).ops()), (stack, phase)


@pytest.mark.parametrize("name", SCENARIOS)
def test_layers_left_out_are_equal_to_those_kept(name: str) -> None:
    for variant in ("standard", "ladder", "desync:3"):
        scenario = Scenario(**{"prompt": 100, "stack": "vllm", "variant": variant, **SCENARIOS[name]})
        costs = KernelCosts(scenario, resolve_profile(scenario, None))
        few, every = (simulate(scenario, "decode", 101, costs, keep=keep) for keep in (3, 1000))
        assert few.seconds == pytest.approx(every.seconds, rel=1e-9), variant


@pytest.mark.parametrize("name", SCENARIOS)
def test_ops_are_simulated_in_the_order_of_their_issue(name: str) -> None:
    """To look for another order takes several times as long as to simulate them."""
    for variant in VARIANTS:
        scenario = Scenario(**{"prompt": 100, "stack": "vllm", "variant": variant, **SCENARIOS[name]})
        costs = KernelCosts(scenario, resolve_profile(scenario, None))
        _, program = simulate(scenario, "decode", 101, costs).lowered(FIRST_PERIODS)
        assert evaluation_order(program, COMPUTE, COMM) == range(len(program.tasks)), variant


@pytest.mark.parametrize("name", SCENARIOS)
def test_requests_in_flight(name: str) -> None:
    arguments = {key: value for key, value in SCENARIOS[name].items() if key != "batch"}
    predictions = predict(Scenario(**{"stack": "vllm", "concurrency": 48, **arguments}), ["standard", "upper-bound"])
    standard, bound = predictions["standard"], predictions["upper-bound"]
    assert bound.request_s <= standard.request_s
    assert sum(standard.request.breakdown.limits_s.values()) == pytest.approx(standard.request_s, rel=1e-6)


def test_one_expert_is_a_dense_model() -> None:
    """But for a router without a choice; without power limits, and floors of kernels, which are not as many."""
    dense = catalog.model("8b")
    sparse = dataclasses.replace(dense, experts=1, experts_per_token=1, expert_intermediate=dense.intermediate)
    floors = {"gpu.kernel": "1e-21 s", "stack.sustained_rate": 1.0}
    for arguments in ({"batch": 1}, {"batch": 64}, {"batch": 8, "prompt": 2000}):
        one, other = (
            predict_one(
                Scenario(model=model, tp=1, stack="vllm", overrides=floors, **arguments),  # type: ignore[arg-type]
                "standard",
                profile="none",
            )
            for model in (dense, sparse)
        )
        assert other.tpot_s == pytest.approx(one.tpot_s, rel=0.01)
        # the traffic of the activation is hidden behind the grouped GEMMs
        assert 0.95 * one.ttft_s < other.ttft_s < 1.01 * one.ttft_s
        assert other.memory.weights_bytes == pytest.approx(one.memory.weights_bytes, rel=1e-4)


def test_replicas_serve_their_own_requests() -> None:
    one = predict_one(Scenario(model="8b", tp=2, batch=3), "ladder")
    four = predict_one(Scenario(model="8b", tp=2, dp=4, batch=12), "ladder")
    assert four.request_s == one.request_s
    assert four.tokens_per_s.value == pytest.approx(4 * one.tokens_per_s.value)
    # the one that has most is the slowest
    assert predict_one(Scenario(model="8b", tp=2, dp=4, batch=9), "ladder").request_s == one.request_s
    served = [
        predict_one(Scenario(model="8b", tp=2, dp=dp, concurrency=16 * dp, stack="vllm"), "ladder") for dp in (1, 4)
    ]
    assert served[0].tpot_s == served[1].tpot_s


def test_stages_add_their_sends() -> None:
    """A pass of a micro-batch through all stages is one through all layers of a single stage."""
    whole = predict_one(Scenario(model="8b", tp=4, batch=2, stack="vllm"))
    staged = predict_one(Scenario(model="8b", tp=4, pp=2, batch=4, stack="vllm"))
    assert whole.request.decode is not None
    assert staged.request.decode is not None
    send_s = 15.6e-6 / 2 + 2 * 2 * 4096 * 2 / 450e9
    assert send_s < staged.request.decode.seconds - whole.request.decode.seconds < send_s + 20e-6
    # the second micro-batch of prompts leaves half of a pass later
    assert staged.ttft_s == pytest.approx(1.5 * whole.ttft_s, rel=0.02)
    # a single request goes through all stages, alone
    for load in ({"batch": 1}, {"concurrency": 1}):
        alone, one = (predict_one(Scenario(model="8b", tp=4, pp=pp, stack="vllm", **load)) for pp in (2, 1))
        assert alone.ttft_s == pytest.approx(one.ttft_s, rel=0.02)
        assert alone.tpot_s == pytest.approx(one.tpot_s, rel=0.02)


def test_sends_to_another_node_take_longer() -> None:
    """Four stages of four ranks on two nodes: one of three sends leaves its node."""
    times = {}
    for latency in ("40us", "1ms"):
        scenario = Scenario(model="8b", nodes=2, tp=4, pp=4, overrides={"inter.allreduce_floor": latency})
        times[latency] = predict_one(scenario).tpot_s
    assert times["1ms"] - times["40us"] == pytest.approx(960e-6 / 2, rel=1e-6)  # type: ignore[operator]


# even stages, an LM head next to the last layers, stages of different kinds, fewer requests than stages
PIPELINES: list[dict[str, Any]] = [
    {"model": "70b", "nodes": 2, "tp": 8, "pp": 2, "batch": 8},
    {"model": "8b", "tp": 1, "pp": 8, "batch": 16, "stack": "vllm"},
    {"model": "8b", "tp": 1, "pp": 8, "batch": 3, "stack": "vllm"},
    {"model": "deepseek-v2-lite", "tp": 1, "pp": 8, "batch": 8, "stack": "vllm"},
    {"model": "gemma-3-4b", "tp": 2, "pp": 4, "batch": 7, "prompt": 3000, "stack": "sglang"},
]


@pytest.mark.parametrize("arguments", PIPELINES, ids=str)
def test_micro_batches_follow_one_another_as_in_a_pipeline(arguments: dict[str, Any]) -> None:
    """Passes of all layers, cut into stages, one task each; the stages are streams.

    Ladder's stages are compared as if nothing overlapped.
    """
    for variant, error in (("standard", 0.01), ("ladder", 0.03)):
        scenario = Scenario(**{"gen": 9, **arguments}, variant=variant)
        prediction = predict_one(scenario, variant)
        micro_batches = int(scenario.plan.micro_batches(scenario.workload.batch))
        prompts = pipeline(stages_s(prediction.request.prefill), micro_batches, rounds=1)
        assert prediction.ttft_s == pytest.approx(prompts.makespan_s, rel=error)
        rounds = 12
        assert prediction.request.decode is not None
        steps = pipeline(stages_s(prediction.request.decode), micro_batches, rounds=rounds)
        ends = [steps.end_s[number] for number, task in enumerate(steps.program.tasks) if task.name == "first, last"]
        decode = prediction.request.decode
        token_s = decode.seconds * decode.round_trips(micro_batches)
        assert token_s == pytest.approx((ends[-1] - ends[4]) / (rounds - 5), rel=error)
        # and that is what times per token are made of
        passes = [(step.seconds, times) for step, times in prediction.request.passes[1:]]
        assert sum(times for _, times in passes) == pytest.approx(8 * decode.round_trips(micro_batches), rel=1e-3)


def stages_s(step: ForwardPass) -> list[float]:
    """Of every stage, its send included."""
    schedule, program = step.lowered(1000)
    times = scan(program)
    sends = [number for number, task in enumerate(program.tasks) if re.fullmatch(r"layer\d+\.send", task.name)]
    assert len(sends) == schedule.kernels.rank.plan.pp - 1
    ends = [0.0, *(float(times[2][number]) for number in sends), max(map(float, times[2]))]
    return [end - start for start, end in itertools.pairwise(ends)]


def pipeline(stages: list[float], micro_batches: int, rounds: int) -> Timeline:
    """Each micro-batch goes through the stages; its next token waits for its last."""
    tasks: list[Task] = []
    last = [-1] * micro_batches
    for _ in range(rounds):
        for number in range(micro_batches):
            for stage, seconds in enumerate(stages):
                name = "first, last" if (number, stage) == (0, len(stages) - 1) else ""
                tasks.append(Task(name, stage, seconds, (last[number],) if last[number] >= 0 else ()))
                last[number] = len(tasks) - 1
    return run(Program(tasks=tuple(tasks), streams=tuple(Stream(name=str(stage)) for stage in range(len(stages)))))


@pytest.mark.parametrize("model", ["70b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_degrees_of_one_change_nothing(model: str) -> None:
    """One stage has nothing to send, one part of the experts nothing to exchange, one replica nothing to share."""
    plain = Scenario(model=model, tp=4, batch=8, stack="vllm")
    ones = Scenario(model=model, tp=4, pp=1, ep=1, attention_dp=1, dp=1, sp=False, batch=8, stack="vllm")
    assert ones == plain
    for phase in ("prefill", "decode", "mixed"):
        messages = [op for op in build(plain, phase, 1025).ops() if isinstance(op.shape, CollectiveShape)]
        assert {message.shape.group for message in messages} == {"tensor"}, phase  # type: ignore[union-attr]
    assert plain.plan.micro_batches(8) == 1
    assert plain.plan.micro_batch(8) == 8


def test_expert_parallelism_of_a_whole_node_divides_the_work_as_tensor_parallelism() -> None:
    """Where tokens choose experts evenly.

    With several experts for each token ranks sum fewer outputs by whole experts than by their widths, which each of
    them has an output of.
    """
    many = catalog.model("qwen3-30b-a3b")
    for per_token in (1, 8):
        model = dataclasses.replace(many, experts_per_token=per_token)
        by_width, by_expert = (
            Scenario(model=model, tp=8, ep=ep, batch=16, stack="vllm", imbalance="balanced") for ep in (1, 8)
        )
        shapes = [
            next(op.shape for op in build(each, "prefill", 1024).ops() if op.kind == "experts")
            for each in (by_width, by_expert)
        ]
        assert shapes[0].flops == shapes[1].flops
        width_s, expert_s = (predict_one(each, profile="none").request_s for each in (by_width, by_expert))
        if per_token == 1:
            assert expert_s == pytest.approx(width_s, rel=1e-12)
        else:
            assert 0.9 * width_s < expert_s < width_s


def test_prompts_wait_for_the_rank_whose_experts_have_most_tokens() -> None:
    """The more so the fewer experts a rank has.

    Single tokens need not: where they meet in fewer experts, fewer weights are read.
    """
    hot = [50.0 if expert == 3 else 1.0 for expert in range(128)]
    given = {"balanced": "balanced", "some": "power-law-1.01", "more": "power-law-1.2", "hot": hot}
    slower = []
    for ep in (2, 8):
        ttft_s = {
            name: predict_one(
                Scenario(model="qwen3-30b-a3b", tp=8, ep=ep, batch=64, stack="vllm", imbalance=imbalance),  # type: ignore[arg-type]
                "standard",
            ).ttft_s
            for name, imbalance in given.items()
        }
        assert ttft_s["balanced"] < ttft_s["some"] < ttft_s["more"] < ttft_s["hot"]
        slower.append([ttft_s[name] / ttft_s["balanced"] for name in ("some", "more", "hot")])
    assert all(few > many for many, few in zip(*slower, strict=True))


def test_latent_attention_reads_less_of_a_long_context() -> None:
    """A token of DeepSeek-V3 keeps 70 kB in 16 bits, one of Llama 405B 516 kB."""
    deepseek, llama = (
        predict_one(Scenario(model=name, tp=8, prompt=prompt, dtype="bf16", kv_dtype="bf16"), **ignored)
        for name, prompt, ignored in (
            ("deepseek-v3", 100_000, {"ignore_memory": True}),
            ("405b", 100_000, {"ignore_memory": True}),
        )
    )
    assert deepseek.memory.kv_cache_bytes / llama.memory.kv_cache_bytes == pytest.approx(70_272 * 8 / 516_096)
