"""Requests through pools of replicas behind a router, on simpy; some may run prompts for the others."""

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import gcd, inf
from operator import attrgetter
from typing import Literal, NamedTuple, Self

import simpy

from ladder_sim.costs.memory import kv_bytes
from ladder_sim.errors import UsageError
from ladder_sim.serving.engine.answer import Answer, Answers
from ladder_sim.serving.engine.replica import Calendar, Replica, SimulatedReplica
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.requests.request import Request, in_order
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.serving.steps.mix import MixTimes
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import MAX_TOKENS
from ladder_sim.values import whole


class Sizes(NamedTuple):
    """How many replicas each pool has."""

    serving: int
    """Number of replicas that decode, and run prompts if no others do."""
    prefill: int
    """Number of replicas that run prompts only."""

    @property
    def groups(self) -> int:
        """Equal groups of both into which they can be split."""
        return gcd(*self)

    @property
    def group(self) -> "Sizes":
        """One of these."""
        return Sizes(self.serving // self.groups, self.prefill // self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas that are alike."""

    times: MixTimes
    """Times of the replicas' steps."""
    spec: SchedulerSpec
    """How each schedules."""
    replicas: int = 1
    """How many there are."""
    gpus: int = 1
    """Number of GPUs of all replicas together."""
    replica: type[Replica] = SimulatedReplica
    """What each is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Replicas that run prompts for others, and the link over which the KV cache gets there.

    Each GPU sends its part to one of the other replica, all at the same time.
    """

    pool: Pool
    """The replicas."""
    latency_s: float
    """Latency of a transfer of the KV cache."""
    bandwidth_Bps: float
    """Bandwidth of one GPU for transfers."""
    gpu_bytes: Callable[[int], float]
    """What one GPU sends or receives of the KV cache of so many tokens, where that is more."""

    @classmethod
    def between(cls, pool: Pool, scenario: Scenario, decode: Scenario, gpus: int) -> Self:
        """Return replicas of `scenario` that run prompts for those of `decode`, in one node if their `gpus` fit it."""
        cluster = scenario.cluster
        tier = cluster.intra if gpus <= cluster.gpus_per_node else cluster.inter

        def gpu_bytes(tokens: int) -> float:
            return max(float(kv_bytes(side, tokens)) for side in (scenario, decode))

        return cls(pool=pool, latency_s=tier.allreduce_floor_s, bandwidth_Bps=tier.bandwidth_Bps, gpu_bytes=gpu_bytes)

    def seconds(self, tokens: int) -> float:
        """Return the seconds that sending the KV cache of a prompt takes."""
        return self.latency_s + self.gpu_bytes(tokens) / self.bandwidth_Bps


# which replica a request goes to
Router = Literal["round-robin", "least-loaded", "prefix-aware"]
Choose = Callable[[Sequence[Replica], Answer], Replica]

_LOAD = attrgetter("load")

# a replica that has a request's beginning may have so many more requests than the least loaded one
MOST_MORE = 16
# first parts of prompts of which a router remembers the replicas
_MOST_PARTS = 1 << 17


def _round_robin() -> Choose:
    turns = count()
    return lambda replicas, answer: replicas[next(turns) % len(replicas)]


def _least_loaded() -> Choose:
    return lambda replicas, answer: min(replicas, key=lambda replica: replica.load)


def _by_load(replicas: Sequence[Replica], least: Replica) -> Iterator[Replica]:
    """Yield the replica with the fewest requests, mostly the only one that is looked at, and then the others."""
    yield least
    yield from sorted(replicas, key=_LOAD)[1:]


def _prefix_aware() -> Choose:
    # replicas that were sent a prompt, by its first part; any replica may have a part that is not remembered
    sent = dict[Hashable, set[Replica]]()

    def choose(replicas: Sequence[Replica], answer: Answer) -> Replica:
        best, request = min(replicas, key=_LOAD), answer.request
        spec = best.spec
        if not (spec.prefix_cache and request.prefix):
            return best
        # what others may have left there
        whole = min(request.shared_tokens, answer.prompt - 1) // spec.block_tokens
        part = request.first_part
        may_have = sent.setdefault(part, set()) if len(sent) < _MOST_PARTS else sent.get(part, set(replicas))
        most, limit = 0, best.load + MOST_MORE
        for replica in _by_load(replicas, best):
            # the others have more requests, and cannot have more of the prompt
            if replica.load > limit:
                break
            if replica in may_have and (blocks := replica.cached(answer)) > most:
                best, most = replica, blocks
            if most == whole:
                break
        may_have.add(best)
        return best

    return choose


# each call begins anew. In turn; the one with the fewest requests; among those with few, the one that has most of it
ROUTERS: Mapping[Router, Callable[[], Choose]] = {
    "round-robin": _round_robin,
    "least-loaded": _least_loaded,
    "prefix-aware": _prefix_aware,
}


def simulate(
    variant: str,
    pool: Pool,
    requests: Iterable[Request],
    *,
    prefill: Prefill | None = None,
    router: Router = "round-robin",
    concurrency: int = 0,
    slo: SLO | None = None,
    steady: bool = False,
    watch: Callable[[int], object] = lambda answered: None,
    record: bool = False,
) -> Outcome:
    """Serve requests, all of them.

    Raises UsageError if a request is larger than the KV cache or than what times are made for, or comes before the one
    in front of it.

    Parameters
    ----------
    variant
        Whose steps these are.
    pool, prefill
        Replicas that serve them, and that run prompts for those.
    requests
        In order of arrival.
    router
        Which replica of a pool a request goes to.
    concurrency
        Most requests in flight: the client holds others back, and each arrives when one is answered; 0: all arrive in
        time.
    slo, steady
        As in `Outcome`.
    watch
        Is given the number of requests answered so far.
    record
        Whether replicas keep every step.
    """
    env = simpy.Environment()
    system = _System(env, pool, prefill, router, watch, record=record)
    source = in_order(requests)
    if whole(concurrency, "concurrency", 0, MAX_TOKENS, hint="give the most requests in flight; 0: all come in time"):
        system.hold_back(source, concurrency)
    else:
        env.process(system.arrivals(source))
    env.run()
    system.calendar.catch_up(inf)
    if not system.answers:
        raise UsageError("no requests to serve", hint="ask for at least one, e.g. --requests 1000")
    return Outcome(
        variant=variant,
        gpus=pool.gpus + (prefill.pool.gpus if prefill else 0),
        answers=system.answers,
        replicas=system.replicas,
        serving=pool.replicas,
        queued=system.queued(),
        slo=slo,
        steady=steady,
    )


# lengths of the queue that are kept, at most: of more arrivals every other
_MOST_QUEUES = 8192


class _System:
    def __init__(
        self,
        env: simpy.Environment,
        pool: Pool,
        prefill: Prefill | None,
        router: Router,
        watch: Callable[[int], object],
        *,
        record: bool,
    ) -> None:
        self.env, self.pool, self.prefill, self._watch = env, pool, prefill, watch
        self._longest = min(pool.spec.room, pool.times.limits.context)
        decoding = [
            pool.replica(env, pool.times, pool.spec, self._answered, record=record) for _ in range(pool.replicas)
        ]
        prompts = (
            [self._prefill_replica(prefill.pool, record=record) for _ in range(prefill.pool.replicas)]
            if prefill
            else []
        )
        self.replicas: list[Replica] = [*decoding, *prompts]

        # of those that run alone
        self.calendar = Calendar()
        self._choose, self._choose_prefill = partial(ROUTERS[router](), decoding), partial(ROUTERS[router](), prompts)
        # whether that depends on what replicas do
        self._looks = router != "round-robin"
        # of each replica, taken by one KV cache at a time
        self._links = {replica: simpy.Resource(env) for replica in self.replicas}
        # KV caches on their way
        self._moving = 0
        self.answers = Answers(record=record)
        # answers whose prompts run on other replicas
        self._open: dict[int, Answer] = {}
        self._queues: list[int] = []
        self._sent = self._done = self._back = 0
        # what the client holds back or waits for, with so many in flight at most
        self._source: Iterator[Request] = iter(())
        self._next: Request | None = None
        self._most = 0
        self._waits = False

    def _prefill_replica(self, pool: Pool, *, record: bool) -> SimulatedReplica:
        def answered(part: Answer) -> None:
            self.env.process(self._hand_over(part, replica))

        replica = SimulatedReplica(self.env, pool.times, pool.spec, answered, record=record)
        return replica

    def arrivals(self, source: Iterator[Request]) -> Generator[simpy.Event, object, None]:
        """Send each request when it comes; replicas that no others wait for run alone."""
        for replica in self.replicas:
            if isinstance(replica, SimulatedReplica) and self.prefill is None:
                replica.calendar = self.calendar
        every = 1
        for number, request in enumerate(source):
            if request.arrival_s > self.env.now:
                yield self.env.timeout(request.arrival_s - self.env.now)
            self._send(request)
            if number % every == 0:
                self._queues.append(self._queued())
            if len(self._queues) == _MOST_QUEUES:
                self._queues, every = self._queues[::2], 2 * every
        if self._queues:
            self._queues.append(self._queued())

    def _queued(self) -> int:
        """Return how many requests wait for admission, or for their KV cache to arrive."""
        self.calendar.catch_up(self.env.now)
        return self._moving + sum(replica.waiting for replica in self.replicas)

    def hold_back(self, source: Iterator[Request], most: int) -> None:
        """Send requests when they come, but no more than so many at a time."""
        self._source, self._next, self._most = source, next(source, None), most
        self._send_due()

    def _send_due(self) -> None:
        while self._next and self._sent - self._back < self._most:
            wait_s = self._next.arrival_s - self.env.now
            if wait_s > 0.0:
                # once, however many are answered meanwhile
                if not self._waits:
                    self._waits = True
                    self.env.timeout(wait_s).callbacks.append(lambda _: self._arrived())
                return
            request, self._next = self._next, next(self._source, None)
            self._sent += 1
            self._send(replace(request, arrival_s=self.env.now))

    def _arrived(self) -> None:
        self._waits = False
        self._send_due()

    def queued(self) -> tuple[int, int]:
        """Return the queued requests halfway and at the end, as `Outcome` has them."""
        return (self._queues[len(self._queues) // 2], self._queues[-1]) if self._queues else (0, 0)

    def _send(self, request: Request) -> None:
        context = request.prompt + request.gen
        if context > self._longest:
            limit = self.pool.times.limits.context
            what = "the KV cache has room for" if self._longest < limit else "times of steps are made for"
            raise UsageError(
                f"request {len(self.answers) + 1}: {context} tokens: {what} {self._longest}",
                hint="leave out longer requests, or use more GPUs",
            )
        answer = self.answers.add(request)
        if self.prefill is None:
            if self._looks:
                self.calendar.catch_up(self.env.now)
            self._choose(answer).add(answer)
        else:
            self._open[answer.number] = answer
            part = Answer(request=replace(request, gen=1), number=answer.number)
            self._choose_prefill(part).add(part)

    def _hand_over(self, part: Answer, source: SimulatedReplica) -> Generator[simpy.Event, object, None]:
        """Send the KV cache of a prompt that is done to a replica that decodes."""
        assert self.prefill is not None
        answer = self._open.pop(part.number)
        target = self._choose(answer)
        # it counts for those that come next
        target.load += 1
        self._moving += 1
        with self._links[source].request() as sending:
            yield sending
            with self._links[target].request() as receiving:
                yield receiving
                yield self.env.timeout(self.prefill.seconds(part.request.prompt))
        self._moving -= 1
        target.load -= 1
        source.release(part)
        answer.reused, answer.preemptions = part.reused, part.preemptions
        if self.pool.spec.takes_first_token:
            answer.first_s = answer.token_s = self.env.now
            answer.produced = 1
        if answer.produced == answer.request.gen:
            answer.last_s = self.env.now
            self._answered(answer)
        else:
            answer.received = answer.prompt
            target.add(answer)

    def _answered(self, answer: Answer) -> None:
        # all its tokens come later by this
        outside_s = self.pool.spec.outside_s(answer)
        answer.first_s += outside_s
        answer.last_s += outside_s
        self.answers.note(answer)
        self._done += 1
        self._watch(self._done)
        if self._most:
            # a client in flight sends the next request when it has the last token
            self.env.timeout(outside_s).callbacks.append(lambda _: self._returned())

    def _returned(self) -> None:
        self._back += 1
        self._send_due()
