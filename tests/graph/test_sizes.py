"""Requests of many sizes at once: ops grown from one token's, contexts, and the same times as one by one."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.costs.memory import memory_use, total_bytes
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import PassInputs
from ladder_sim.graph.pass_kernels import PassKernels
from ladder_sim.graph.techniques import form, rewrites_of
from ladder_sim.kernels import Phase, Sizes
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.request import context_counts, decode_contexts, weighted_contexts
from ladder_sim.specs import catalog
from tests.support.graphs import build
from tests.support.scenarios import VARIANTS

RTOL = 1e-12


@given(
    st.sampled_from([("8b", 4, "bf16"), ("qwen2.5-7b", 1, "fp8"), ("1b", 8, "nvfp4")]),
    st.sampled_from(["prefill", "decode", "mixed"]),
    st.sampled_from(VARIANTS),
    st.sampled_from(catalog.stack_names()),
)
def test_every_op_grows_from_one_token(case: tuple[str, int, str], phase: Phase, variant: str, stack: str) -> None:
    """Sweeps depend on it: a graph of any size has the ops of one token's, and their shapes follow from them."""
    model, tp, dtype = case
    scenario = Scenario(model=model, tp=tp, dtype=dtype, stack=stack, variant=variant, batch=3, prompt=50, gen=20)
    kv_len = 50 if phase == "prefill" else 61
    sizes = Sizes.of(scenario.stack, phase, kv_len, batch=3, prompt=50, gen=20)
    if phase == "mixed":
        sizes = Sizes.mixed(scenario.stack, sizes.kv_len, batch=3, prompts=1, chunk=50, prompt=50, gen=20, duty=0.0)
    inputs = PassInputs.of(scenario)
    rewrites = rewrites_of(inputs, form(inputs, phase, sizes.tokens))
    small, grown = PassKernels(inputs.of_one_token(), phase), PassKernels(inputs, phase, kv_len)
    layouts = [kernels.layout(variant, rewrites) for kernels in (small, grown)]
    assert layouts[0] is layouts[1]
    assert [op.resized(sizes) for op in small.ops(layouts[0])] == list(build(scenario, phase, kv_len).ops())


@pytest.mark.parametrize(
    "given",
    [
        {"model": "70b"},
        {"model": "8b", "tp": 4, "stack": "vllm", "dtype": "fp8"},
        {"model": "405b", "nodes": 2, "stack": "trtllm"},
        {"model": "8b", "tp": 1, "stack": "vllm"},
        {"model": "70b", "stack": "vllm", "allreduce": "auto"},
        {"model": "70b", "p2p": False},
        {"model": "1b", "stack": "vllm", "overrides": {"stack.cuda_graphs": "off", "stack.eager_launch": "5us"}},
    ],
    ids=str,
)
def test_many_sizes_are_as_one_by_one(given: dict[str, object]) -> None:
    """Every kind of size in one call: one row and many, one token and many, few contexts and many."""
    scenario = Scenario(**given)  # type: ignore[arg-type]
    random = np.random.default_rng(1)
    figures = {
        "batch": np.array([1, 1, 2, 8, 9, 64, 100, 128, 1, 16]),
        "prompt": np.array([1, 1024, 1, 7, 100, 1024, 3000, 300, 5000, 1024]),
        "gen": np.array([1, 2, 512, 3, 1, 512, 2000, 20000, 10, 512]),
        "intra.bandwidth_Bps": random.uniform(50e9, 900e9, 10),
    }
    profile = resolve_profile(scenario, None)
    requests = simulate_requests(scenario, figures, VARIANTS, profile)
    for row in range(10):
        workload = {key: int(figures[key][row]) for key in ("batch", "prompt", "gen")}
        intra = dataclasses.replace(scenario.cluster.intra, bandwidth_Bps=float(figures["intra.bandwidth_Bps"][row]))
        alone = scenario.having(
            workload=dataclasses.replace(scenario.workload, **workload),
            cluster=dataclasses.replace(scenario.cluster, intra=intra),
        )
        for variant, expected in predict(alone, VARIANTS, ignore_memory=True, profile=profile).items():
            assert requests[variant].ttft_s[row] == pytest.approx(expected.ttft_s, rel=RTOL), (workload, variant)
            assert requests[variant].request_s[row] == pytest.approx(expected.request_s, rel=RTOL), (workload, variant)
        memory_bytes = total_bytes(scenario, figures["batch"], figures["prompt"], figures["gen"])
        assert np.asarray(memory_bytes)[row] == memory_use(alone).total_bytes


def test_sizes_of_several_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="several lengths: 2, 3"):
        simulate_requests(
            Scenario(), {"batch": [1, 2], "intra.allreduce_floor_s": [1e-6, 2e-6, 3e-6]}, ["ladder"], None
        )


def test_contexts_of_many_requests_are_those_of_each() -> None:
    prompt, gen = np.array([1, 1024, 1024, 7, 100]), np.array([1, 2, 512, 9000, 300])
    counts = context_counts(prompt, gen)
    assert counts.tolist() == [0, 3, 3, 9, 5]
    for count in (3, 5, 9):
        rows = np.flatnonzero(counts == count)
        at, weights = weighted_contexts(prompt[rows], gen[rows], count)
        assert weights.sum(axis=1).tolist() == pytest.approx((gen[rows] - 1).tolist())
        for row, places in zip(rows, at.tolist(), strict=True):
            alone = decode_contexts(int(prompt[row]), int(gen[row]), static_cache=False)
            assert [place for place, _ in alone] == sorted(set(places))
