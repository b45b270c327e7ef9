"""Requests through replicas behind a router, on simpy."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace

import simpy

from ladder_sim.errors import UsageError
from ladder_sim.serve.mix import MixTimes
from ladder_sim.serve.outcome import Outcome
from ladder_sim.serve.promise import Promise
from ladder_sim.serve.replica import Replica
from ladder_sim.serve.requests import Answer, Request
from ladder_sim.serve.routers import ROUTERS, Router
from ladder_sim.serve.scheduler import SchedulerSpec


def simulate(
    variant: str,
    times: MixTimes,
    spec: SchedulerSpec,
    requests: Iterable[Request],
    *,
    gpus: int,
    replicas: int = 1,
    steps_at_once: int = 1,
    router: Router = "round-robin",
    concurrency: int = 0,
    promise: Promise | None = None,
    watch: Callable[[int], object] = lambda answered: None,
    record: bool = False,
) -> Outcome:
    """Serve requests, all of them.

    Parameters
    ----------
    variant
        Whose steps these are.
    times, spec
        Of each replica.
    requests
        In order of arrival.
    gpus
        Of one replica.
    replicas, router
        How many, and which of them a request goes to.
    steps_at_once
        Of each replica; each is for requests of its own, as if they were further replicas.
    concurrency
        Requests in flight: each of the others comes when one is answered, whatever its time of arrival; 0: then.
    promise
        To be kept.
    watch
        Is given the number of requests answered so far.
    record
        Whether replicas keep every step.

    Raises
    ------
    UsageError
        A request is larger than the KV cache or than what times are made for.
    """
    env = simpy.Environment()
    system = _System(env, times, spec, replicas * steps_at_once, router, watch, record=record)
    source = iter(requests)
    if concurrency:
        system.source = source
        for _ in range(concurrency):
            system.send_next()
    else:
        env.process(system.arrivals(source))
    env.run()
    if not system.answers:
        raise UsageError("no requests to serve", hint="ask for at least one, e.g. --requests 1000")
    return Outcome(
        variant=variant,
        gpus=replicas * gpus,
        answers=system.answers,
        replicas=system.replicas,
        queued=system.queued(),
        promise=promise,
    )


class _System:
    def __init__(
        self,
        env: simpy.Environment,
        times: MixTimes,
        spec: SchedulerSpec,
        replicas: int,
        router: Router,
        watch: Callable[[int], object],
        *,
        record: bool,
    ) -> None:
        self.env, self.spec, self.limit = env, spec, times.limits.context
        self.replicas = [Replica(env, times, spec, self._answered, record=record) for _ in range(replicas)]
        self._choose, self._watch = ROUTERS[router](), watch
        self.answers: list[Answer] = []
        self.source: Iterator[Request] = iter(())
        self._queues: list[int] = []
        self._done = 0

    def arrivals(self, source: Iterator[Request]) -> Generator[simpy.Event, object, None]:
        """Send each request when it comes."""
        for request in source:
            at_s = request.arrival_s + self.spec.frontend_s
            if at_s > self.env.now:
                yield self.env.timeout(at_s - self.env.now)
            self._send(request)
            self._queues.append(sum(len(replica.scheduler.waiting) for replica in self.replicas))

    def send_next(self) -> None:
        """Send the next request now, if there is one."""
        request = next(self.source, None)
        if request is None:
            return
        request = replace(request, arrival_s=self.env.now)
        if self.spec.frontend_s:
            self.env.timeout(self.spec.frontend_s).callbacks.append(lambda _: self._send(request))
        else:
            self._send(request)

    def queued(self) -> tuple[int, int]:
        """As in `Outcome`."""
        return (self._queues[len(self._queues) // 2], self._queues[-1]) if self._queues else (0, 0)

    def _send(self, request: Request) -> None:
        context = request.prompt + request.gen
        room = self.spec.room
        if context > min(room, self.limit):
            what = "the KV cache has room for" if room < self.limit else "times of steps are made for"
            raise UsageError(
                f"request {len(self.answers) + 1}: {context} tokens: {what} {min(room, self.limit)}",
                hint="leave out longer requests, or use more GPUs",
            )
        answer = Answer(request=request, number=len(self.answers))
        self.answers.append(answer)
        self._choose(self.replicas, answer).add(answer)

    def _answered(self, answer: Answer) -> None:
        self._done += 1
        self._watch(self._done)
        self.send_next()
