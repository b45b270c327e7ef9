"""Drafted tokens: what they bring, what they cost, and how they are named."""

import json

import pytest

from ladder_sim import Scenario
from ladder_sim.errors import UsageError
from ladder_sim.serving import Lengths, Service, Traffic
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.service import scheduler_spec
from ladder_sim.serving.steps.mix import Mix
from tests.support.commands import run
from tests.support.replicas import Steps, serve

RATES = (0.8, 0.6, 0.4)


def spec(speculation: Speculation | None, **given: object) -> SchedulerSpec:
    fields = {"step_tokens": 256, "step_requests": 16, "kv_blocks": 5000, "ahead": False, **given}
    return SchedulerSpec(speculation=speculation, **fields)  # type: ignore[arg-type]


def test_a_step_brings_one_token_and_those_that_are_accepted() -> None:
    """Of a request alone: as many steps as its tokens divided by the mean acceptance length of vLLM's log."""
    gen = 20_001
    steps = Steps(0.01, 0.0)
    (answer,) = serve(
        [Request(arrival_s=0.0, prompt=10, gen=gen)], spec(Speculation(acceptance=RATES, cost=0.0)), steps
    )
    assert answer.tpot_s == pytest.approx(0.01 / (1.0 + sum(RATES)), rel=0.01)
    # each decodes four rows
    assert steps.tokens == pytest.approx(10 + 4 * (gen - 1) / (1.0 + sum(RATES)), rel=0.01)


@pytest.mark.parametrize(("rate", "decoding_steps"), [(1.0, 5), (0.0, 20)])
def test_all_or_no_drafts_are_accepted(rate: float, decoding_steps: int) -> None:
    request = Request(arrival_s=0.0, prompt=10, gen=21)
    (answer,) = serve([request], spec(Speculation(acceptance=(rate,) * 3, cost=0.0)), Steps(0.01, 0.0))
    assert answer.request_s == pytest.approx(0.01 * (1 + decoding_steps))


def test_a_scheduler_that_decides_ahead_runs_a_step_too_many_unless_the_end_is_certain() -> None:
    """As vLLM: the last token may come with the step that runs, and does with the next at the latest."""
    for gen, surplus in ((6, 1), (2, 0)):
        steps = Steps(0.01, 0.0)
        speculation = Speculation(acceptance=(1.0,) * 4, cost=0.0)
        (answer,) = serve([Request(arrival_s=0.0, prompt=10, gen=gen)], spec(speculation, ahead=True), steps)
        assert steps.tokens == 10 + 5 * (1 + surplus)
        assert answer.request_s == pytest.approx(0.02)


def test_a_drafter_runs_over_all_rows_and_then_over_one_of_each_request() -> None:
    request = Request(arrival_s=0.0, prompt=10, gen=2)
    (answer,) = serve([request], spec(Speculation(acceptance=(0.5,) * 3, cost=0.1)), Steps(0.0, 1.0))
    # ten tokens of the prompt, four rows, and two passes over one
    assert answer.first_s == pytest.approx(1.1 * 10.0)
    assert answer.last_s - answer.first_s == pytest.approx(1.1 * 4.0 + 0.1 * 2 * 1.0)


def test_a_drafter_is_a_layer_and_the_lm_head_by_default() -> None:
    given = Scenario(model="70b", stack="vllm")
    by_default = scheduler_spec(given, 2000, speculation=Speculation(acceptance=RATES))
    assert by_default.speculation is not None
    # a layer of 0.86 and a head of 1.05 of 69.5 billion weights
    assert by_default.speculation.cost == pytest.approx(0.0275, rel=0.01)
    assert by_default.ahead
    # vLLM does not decide ahead with an n-gram lookup
    assert not scheduler_spec(given, 2000, speculation=Speculation(acceptance=RATES, cost=0.0)).ahead


def test_a_step_with_drafted_tokens_takes_longer_than_without_and_less_than_as_many_requests() -> None:
    traffic = Traffic(prompt=Lengths.parse("1024"), gen=Lengths.parse("64"), rate=1.0, requests=2)
    changed = {"speculation": Speculation(acceptance=RATES)}
    service = Service.for_requests(Scenario(model="8b", tp=2, stack="vllm"), traffic, changed=changed)
    times = service.times("ladder")
    plain_s, drafted_s, further_s = (
        times.of_mix(mix) for mix in (Mix(64, 64 * 1024), Mix(64, 64 * 1024, drafted=192), Mix(256, 256 * 1024))
    )
    assert plain_s < drafted_s < further_s
    # all requests that run may draft
    assert times.limits.requests == 4 * 1024


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("3", "'3': not drafted tokens"),
        ("x:0.5", "not drafted tokens"),
        ("3:0.5:0:1", "not drafted tokens"),
        ("0:0.5", "must be 1 to 64"),
        ("65:0.5", "must be 1 to 64"),
        ("3:1.5", "must be 0 to 1"),
        ("3:nan", "must be 0 to 1"),
        ("0.5/0.6", "must be 0 to 1, none above that before it"),
        ("3:0.5:-1", "must be 0 to 10"),
    ],
)
def test_what_is_no_speculation_is_refused(text: str, shown: str) -> None:
    with pytest.raises(UsageError, match=shown):
        Speculation.parse(text)


def test_the_command_drafts() -> None:
    flags = ("--model", "8b", "--tp", "2", "--stack", "vllm", "--rate", "4", "--requests", "50", "--seeds", "1")
    plain, drafted = (
        json.loads(run("serve", *flags, "--variant", "ladder", *more, "--json").out)
        for more in ((), ("--set", "speculate=3:0.7"))
    )
    assert drafted["speculation"]["acceptance"] == pytest.approx([0.7, 0.49, 0.343])
    faster = plain["rows"][0]["tpot_mean_s"] / drafted["rows"][0]["tpot_mean_s"]
    # 2.53 tokens a step, which takes longer
    assert 1.5 < faster < 1.0 + 0.7 + 0.7**2 + 0.7**3
    text = run("serve", *flags, "--set", "speculate=3:0.7").out
    assert "3 drafted, accepted 0.7/0.49/0.34; 1024 + 256" in " ".join(text.split())
