"""Replicas that run prompts for others: what is conserved, and systems whose times are known."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.serving import Lengths, Service, StepLimits, Traffic
from ladder_sim.serving.engine.answer import Answer
from ladder_sim.serving.engine.replica import Replica
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.intervals import confidence_of
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.replicas.simulation import ROUTERS, Pool, Prefill, simulate
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.steps.mix import Line, Mix
from tests.support.commands import run


class Times:
    """Times of steps that a test knows."""

    def __init__(self, step_s: float = 0.01, token_s: float = 1e-4) -> None:
        self.step_s, self.token_s, self.tokens = step_s, token_s, 0
        self.limits = StepLimits(1000, 1000, 10_000)

    def of_mix(self, mix: Mix, duty: float | None = None) -> float:
        self.tokens += 0 if duty is None else mix.tokens
        return self.step_s + self.token_s * mix.tokens

    def line(self, mix: Mix) -> Line:
        return Line(self.of_mix(mix, 0.0), 0.0, 1)

    def slower(self, factor: float) -> "Times":
        return Times(factor * self.step_s, factor * self.token_s)


# of 70B: keys and values of 80 layers and 8 heads of 128, in 16 bits
KV_BYTES_PER_TOKEN = 2 * 80 * 8 * 128 * 2
SPEC = {"step_tokens": 1000, "step_requests": 16, "kv_blocks": 200}


def pools(
    requests: Iterable[Request], *, replicas: tuple[int, int] = (1, 1), link_s: float = 0.05, **changed: object
) -> tuple[Outcome, Times, Times]:
    """Serve requests by pools that decode and run prompts; a KV cache takes as long as `link_s`, whatever its size."""
    decode, prompts = Times(), Times()
    kinds = [(decode, {}), (prompts, {"hands_over": True, "speculation": None})]
    pool, other = (
        Pool(times=times, spec=SchedulerSpec(**{**SPEC, **changed, **own}), replicas=count, gpus=count)  # type: ignore[arg-type]
        for (times, own), count in zip(kinds, replicas, strict=True)
    )
    prefill = Prefill(pool=other, latency_s=link_s, bandwidth_Bps=1e9, gpu_bytes=lambda tokens: 0.0)
    return simulate("standard", pool, requests, prefill=prefill, router="least-loaded", record=True), decode, prompts


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.0, 0.003, 0.1]), st.integers(1, 500), st.integers(1, 90), st.integers(0, 4)),
        min_size=1,
        max_size=30,
    ),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.fixed_dictionaries(
        {
            "kv_blocks": st.sampled_from([40, 60, 400]),
            "step_tokens": st.sampled_from([16, 100, 1000]),
            "takes_first_token": st.booleans(),
            "ahead": st.booleans(),
            "mixed_steps": st.booleans(),
            "prefix_cache": st.booleans(),
            "speculation": st.sampled_from([None, Speculation(acceptance=(0.8, 0.5), cost=0.0)]),
        }
    ),
)
def test_tokens_and_blocks_are_conserved(
    drawn: list[tuple[float, int, int, int]], replicas: tuple[int, int], changed: dict[str, object]
) -> None:
    arrivals_s = itertools.accumulate(gap for gap, *_ in drawn)
    requests = [
        Request(arrival_s=at_s, prompt=prompt, gen=gen, prefix=tuple(range(parts)), prefix_tokens=48)
        for at_s, (_, prompt, gen, parts) in zip(arrivals_s, drawn, strict=True)
    ]
    outcome, decode, prompts = pools(requests, replicas=replicas, link_s=0.02, **changed)
    assert [answer.request for answer in outcome.answers] == requests
    assert outcome.gpus == sum(replicas) == len(outcome.replicas)
    for replica in outcome.replicas:
        assert not replica.load
        assert replica.scheduler.blocks.free == changed["kv_blocks"]
    for answer in outcome.answers:
        # a prompt's step, and its KV cache
        assert answer.first_s - answer.request.arrival_s > 0.03
        assert (answer.first_s == answer.last_s) == (answer.request.gen == 1)
    needed = sum(request.prompt for request in requests)
    assert prompts.tokens + sum(answer.reused for answer in outcome.answers) >= needed
    # the first token of an answer is decoded unless it comes with the KV cache
    further = sum(request.gen - bool(changed["takes_first_token"]) for request in requests)
    if not any(answer.preemptions for answer in outcome.answers):
        assert prompts.tokens + sum(answer.reused for answer in outcome.answers) == needed
        if not changed["speculation"]:
            assert decode.tokens == further
    assert decode.tokens >= further


@pytest.mark.parametrize(("takes_first_token", "first_s"), [(False, 0.11 + 0.05 + 0.0101), (True, 0.11 + 0.05)])
def test_the_first_token_waits_for_the_kv_cache(takes_first_token: bool, first_s: float) -> None:
    """It is decoded from there, or comes with it; each further one takes a step."""
    request = Request(arrival_s=1.0, prompt=1000, gen=21)
    outcome, *_ = pools([request], takes_first_token=takes_first_token)
    assert outcome.answers[0].ttft_s == pytest.approx(first_s)
    assert outcome.answers[0].tpot_s == pytest.approx(0.0101)


def test_kv_caches_wait_for_the_link_as_in_a_queue_of_one_server() -> None:
    """M/D/1: prompts are done at random times, and each KV cache takes the same time."""
    random, link_s, load = Random(3), 2.0, 0.5
    arrivals_s = itertools.accumulate(random.expovariate(load / link_s) for _ in range(10_000))
    requests = [Request(arrival_s=at_s, prompt=1, gen=1) for at_s in arrivals_s]
    outcome, *_ = pools(requests, link_s=link_s, takes_first_token=True)
    # a prompt's step takes next to no time
    waiting_s = outcome.seconds("ttft") - link_s - 0.0101
    assert waiting_s == pytest.approx(load * link_s / (2.0 * (1.0 - load)), rel=0.05)


def test_two_links_carry_two_kv_caches_at_a_time() -> None:
    requests = [Request(arrival_s=0.0, prompt=1, gen=1)] * 2
    for replicas, last_s in (((1, 1), 2.0), ((2, 1), 2.0), ((1, 2), 2.0), ((2, 2), 1.0)):
        outcome, *_ = pools(requests, replicas=replicas, link_s=1.0, takes_first_token=True)
        assert max(answer.last_s for answer in outcome.answers) == pytest.approx(last_s, abs=0.1)


def test_a_prompt_keeps_its_blocks_until_its_kv_cache_has_arrived() -> None:
    requests = [Request(arrival_s=0.0, prompt=600, gen=1)] * 2
    little, *_ = pools(requests, kv_blocks=60, link_s=1.0, takes_first_token=True)
    enough, *_ = pools(requests, kv_blocks=80, link_s=1.0, takes_first_token=True)
    # the second prompt runs when the first's KV cache has arrived
    assert little.answers[1].ttft_s == pytest.approx(2 * (0.07 + 1.0))
    # its KV cache waits for the first one's, whose step has room for part of it
    assert enough.answers[1].ttft_s == pytest.approx(0.11 + 2 * 1.0)


@pytest.mark.parametrize("rate", [2.0, 10.0, 25.0])
def test_requests_there_are_as_many_as_arrive_in_the_time_of_one(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little's law, of all that wait, run or are on their way: who arrives at random meets as many as there are."""
    random, met, known = Random(2), list[int](), set[Replica]()

    def choose(replicas: Sequence[Replica], answer: Answer) -> Replica:
        known.update(replicas)
        return min(replicas, key=lambda replica: replica.load)

    def arrive() -> Iterator[Request]:
        now_s = 0.0
        for _ in range(4000):
            now_s += random.expovariate(rate)
            yield Request(arrival_s=now_s, prompt=random.randint(1, 300), gen=random.randint(1, 40))
            # but itself
            met.append(sum(replica.load for replica in known) - 1)

    monkeypatch.setitem(ROUTERS, "least-loaded", lambda: choose)  # type: ignore[arg-type]
    outcome, *_ = pools(arrive(), replicas=(2, 1), link_s=0.01)
    assert sum(met) / len(met) == pytest.approx(outcome.in_flight, rel=0.08)


def test_an_idle_system_takes_the_kv_cache_and_a_step_longer() -> None:
    """The KV cache of 1,024 tokens, of which each GPU sends its share over its own port."""
    given = Scenario(model="70b", stack="vllm")
    one = Traffic(prompt=Lengths.parse("1024"), gen=Lengths.parse("16"), rate=1.0, requests=1)
    alone, apart = (Service.for_requests(given, one, prefill=prefill).run("ladder", one) for prefill in (None, given))
    port = given.cluster.inter
    kv_s = port.allreduce_floor_s + KV_BYTES_PER_TOKEN * 1024 / 8 / port.bandwidth_Bps
    times = Service.for_requests(given, one).times("ladder")
    step_s = times.of_mix(Mix.of(decode=[1024]))
    assert apart.seconds("ttft") == pytest.approx(alone.seconds("ttft") + kv_s + step_s, rel=1e-6)
    assert apart.seconds("tpot") == pytest.approx(alone.seconds("tpot"), rel=1e-2)
    assert (alone.gpus, apart.gpus) == (8, 16)


def test_what_an_answer_is_compared_with_has_the_requests_of_a_replica_that_decodes() -> None:
    requests = [Request(arrival_s=0.0, prompt=100, gen=80)] * 12
    outcome, *_ = pools(requests, replicas=(1, 3), link_s=0.0)
    given = Scenario(model="8b", tp=1, stack="vllm")
    load = confidence_of(given, {"standard": outcome}, profile=None).scenario.workload
    assert load.concurrency == round(outcome.in_flight) > 8


def test_pools_inside_a_node_are_joined_by_its_own_links() -> None:
    given = Scenario(model="8b", tp=2, stack="vllm")
    times, spec = Times(), SchedulerSpec(**SPEC)  # type: ignore[arg-type]
    pool = Pool(times=times, spec=spec, replicas=1, gpus=2)
    near, far = (Prefill.between(pool, given, given, gpus) for gpus in (8, 10))
    assert near.bandwidth_Bps == given.cluster.intra.bandwidth_Bps > far.bandwidth_Bps


def test_the_side_with_fewer_gpus_says_how_long_a_kv_cache_takes() -> None:
    few, many = (Scenario(model="70b", tp=tp, stack="vllm") for tp in (2, 8))
    pool = Pool(times=Times(), spec=SchedulerSpec(**SPEC), replicas=1, gpus=2)  # type: ignore[arg-type]
    for sides in ((few, many), (many, few)):
        assert Prefill.between(pool, *sides, 10).gpu_bytes(1000) == KV_BYTES_PER_TOKEN * 1000 / 2


def test_the_command_takes_pools() -> None:
    flags = ("--model", "8b", "--tp", "2", "--stack", "vllm", "--rate", "20", "--requests", "80", "--variant", "ladder")
    shown = run("serve", *flags, "--seeds", "1", "--set", "prefill_replicas=2", "--set", "prefill_tp=1", "--explain")
    assert "; 80 requests" in " ".join(shown.out.split())
    assert "prompts on TP 1, DP 2; " in shown.out
    measured = run("serve", *flags, "--set", "prefill_replicas=2", "--steps", "steps.toml")
    assert "prefill_replicas with steps" in measured.err
    without = run("serve", *flags, "--set", "prefill_tp=1")
    assert "prefill_tp 1 without prefill_replicas" in without.err
    negative = run("serve", *flags, "--set", "prefill_replicas=-1")
    assert "prefill_replicas: '-1' must be finite and not negative" in negative.err


def test_answers_of_one_token_leave_nothing_to_decode(tmp_path: Path) -> None:
    """The first token comes with the KV cache, so that what is drawn and traced are replicas that run prompts."""
    flags = ("--model", "8b", "--tp", "1", "--stack", "sglang", "--rate", "5", "--requests", "30", "--gen", "1")
    figure, trace = tmp_path / "load.html", tmp_path / "minute.json"
    shown = run(
        *("serve", *flags, "--variant", "standard", "--seeds", "1", "--set", "prefill_replicas=1"),
        *("--set", f"plot={figure}", "--set", f"perfetto={trace}"),
    )
    assert shown.code == 0, shown.err
    assert figure.exists()
    assert {event["ph"] for event in json.loads(trace.read_text("utf-8"))["traceEvents"]} >= {"M", "X", "C"}
