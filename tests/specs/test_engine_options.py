"""Options of inference engines by their own names set the fields of a stack that they are."""

from collections.abc import Mapping
from typing import Any

import pytest

from ladder_sim import Scenario, predict
from ladder_sim.errors import SpecError, UnknownNameError, UsageError
from ladder_sim.serving.service import scheduler_spec
from ladder_sim.sweeps.grid import Grid
from tests.support.commands import run

LOADED: Mapping[str, Any] = {"model": "8b", "tp": 1, "concurrency": 512}


@pytest.mark.parametrize(
    ("stack", "option", "value", "field", "expected"),
    [
        ("vllm", "max-num-seqs", "256", "step_requests", 256),
        ("vllm", "max_num_batched_tokens", "4096", "step_tokens", 4096),
        ("vllm", "gpu-memory-utilization", "0.85", "memory_fraction", 0.85),
        ("vllm", "max-model-len", 32768, "max_context", 32768),
        ("vllm@0.19", "enable-prefix-caching", "false", "prefix_cache", False),
        ("sglang", "max-running-requests", "256", "step_requests", 256),
        ("sglang", "chunked-prefill-size", "4096", "step_tokens", 4096),
        ("sglang", "mem_fraction_static", 0.85, "memory_fraction", 0.85),
        ("sglang", "context-length", "32Ki", "max_context", 32768),
        ("sglang", "disable-radix-cache", "true", "prefix_cache", False),
        ("sglang", "disable_radix_cache", False, "prefix_cache", True),
        ("trtllm", "max-batch-size", "256", "step_requests", 256),
        ("trtllm", "max-num-tokens", "4096", "step_tokens", 4096),
        ("trtllm", "free-gpu-memory-fraction", "0.85", "memory_fraction", 0.85),
        ("trtllm", "max-seq-len", "32768", "max_context", 32768),
        ("trtllm", "enable-block-reuse", True, "prefix_cache", True),
    ],
)
def test_sets_one_figure_of_the_stack(
    stack: str, option: str, value: str | float, field: str, expected: object
) -> None:
    scenario = Scenario(**LOADED, stack=stack, overrides={option: value})
    assert getattr(scenario.stack, field) == expected
    assert set(scenario.settings) == {f"stack.{field}"}
    spec = scheduler_spec(scenario, 1024)
    scheduled = {
        "step_requests": spec.step_requests,
        "step_tokens": spec.step_tokens,
        "prefix_cache": spec.prefix_cache,
    }
    assert scheduled.get(field, expected) == expected


@pytest.mark.parametrize("cluster", ["h100-sxm", "b200-sxm", "l40s-pcie", "a100-sxm-hdr"])
def test_holds_on_every_gpu(cluster: str) -> None:
    """Regression: a figure by hand changed nothing where the stack has another one for the GPU."""
    overrides = {"max-num-batched-tokens": "1024", "max-num-seqs": "48"}
    scenario = Scenario(**LOADED, cluster=cluster, stack="vllm", overrides=overrides)
    assert (scenario.step_tokens, scenario.step_requests) == (1024, 48)


def test_defaults_are_those_of_the_gpu() -> None:
    """vLLM admits 1,024 requests on an H100, 256 on an A100 and on GPUs of less than 70 GiB."""
    clusters = ("h100-sxm", "b200-sxm", "a100-sxm-hdr", "l40s-pcie")
    admitted = [Scenario(**LOADED, cluster=name, stack="vllm").step_requests for name in clusters]
    assert admitted == [1024, 1024, 256, 256]


@pytest.mark.parametrize(
    ("stack", "option", "hint"),
    [
        ("sglang", "max-num-seqs", "sglang calls it max-running-requests"),
        ("trtllm", "gpu_memory_utilization", "trtllm calls it free-gpu-memory-fraction"),
        ("vllm", "disable-radix-cache", "vllm calls it enable-prefix-caching (the opposite)"),
        ("gpt-fast", "max-num-seqs", "leave it out, or take --stack vllm"),
    ],
)
def test_an_option_of_another_engine_is_refused(stack: str, option: str, hint: str) -> None:
    value = "true" if "cache" in option else "1"
    with pytest.raises(UsageError) as caught:
        Scenario(model="8b", tp=1, stack=stack, overrides={option: value})
    assert caught.value.message.startswith(f"{option.replace('_', '-')} is an option of ")
    assert caught.value.hint == hint


def test_a_sweep_refuses_options_of_other_engines_as_well() -> None:
    axes: dict[str, Any] = {"model": "8b", "concurrency": 64, "max-num-seqs": "16:64:x2"}
    assert Grid({**axes, "stack": "vllm"}).size == 3
    with pytest.raises(UsageError, match="and the stack is 'sglang'"):
        Grid({**axes, "stack": ["vllm", "sglang"]})


def test_one_figure_is_set_once() -> None:
    with pytest.raises(UsageError, match=r"stack\.step_requests and max-num-seqs set the same figure"):
        Scenario(**LOADED, overrides={"stack.step_requests": 64, "max-num-seqs": 32})


@pytest.mark.parametrize(
    ("option", "value", "kind", "message"),
    [
        ("max-num-seq", "64", UnknownNameError, "unknown setting 'max-num-seq'"),
        ("max-num-seqs", "0", SpecError, "step_requests is 0"),
        ("max-num-seqs", "1.5", SpecError, "max-num-seqs is '1.5'"),
        ("gpu-memory-utilization", "1.1", SpecError, "memory_fraction is 1.1"),
        ("gpu-memory-utilization", "0", SpecError, "memory_fraction is 0"),
        ("enable-prefix-caching", "yes", SpecError, "must be true or false"),
    ],
)
def test_bad_values(option: str, value: str, kind: type[UsageError], message: str) -> None:
    with pytest.raises(kind) as caught:
        Scenario(**LOADED, stack="vllm", overrides={option: value})
    assert message in caught.value.message
    assert caught.value.hint


def test_requests_beyond_the_longest_are_refused() -> None:
    scenario = Scenario(**LOADED, stack="vllm", prompt=1024, gen=512, overrides={"max-model-len": 1024})
    with pytest.raises(UsageError, match=r"requests of 1536 tokens: vllm takes at most 1024 \(max-model-len\)"):
        predict(scenario, profile="none")
    with pytest.raises(UsageError, match="max-model-len"):
        scheduler_spec(scenario, 1025)
    assert scheduler_spec(scenario, 1024).room >= 1024


def test_few_requests_at_a_time_are_served_in_turns() -> None:
    """And it is said: three of four wait."""
    flags = ("--model", "8b", "--tp", "1", "--concurrency", "512", "--variant", "ladder")
    every, few = (run("predict", *flags, *more) for more in ((), ("--set", "max-num-seqs=128")))
    assert "max-num-seqs 128 is fewer than 512 requests in flight: the others wait" in few.out + few.err
    assert "max-num-seqs" not in every.out + every.err


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "--concurrency", "512"),
        ("advise", "--gpus", "1", "--concurrency", "512"),
        ("serve", "--rate", "200", "--requests", "400", "--seeds", "1"),
        (
            "capacity",
            "--rate",
            "60",
            "--requests",
            "300",
            "--seeds",
            "1",
            "--slo",
            "tpot_p95=20ms,ttft_p95=2s",
            "--tp",
            "1",
        ),
    ],
)
def test_acts_in_every_command_with_requests_in_flight(command: tuple[str, ...]) -> None:
    flags = ("--model", "8b", "--stack", "vllm", "--variant", "standard", "--json")
    plain, few = (run(*command, *flags, *more) for more in ((), ("--set", "max-num-seqs=16")))
    assert (plain.code, few.code) == (0, 0), plain.err + few.err
    assert plain.out != few.out


def test_settings_are_listed_by_both_names() -> None:
    listed = " ".join(run("list", "settings", "--stack", "vllm").out.split())
    assert "vllm max-num-seqs, sglang max-running-requests, trtllm max-batch-size" in listed
