"""Schedules the page's requests, and computes answers that take seconds in a process of their own.

So the page's server stays free. The process has one question at a time, in the order in which pages asked them. What no
page waits for any more is given up.
"""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from multiprocessing.connection import Connection
from typing import Any, Generic, NamedTuple, Self, TypeVar

from ladder_sim.errors import LadderSimError
from ladder_sim.sweeps.executors import settle

# deadlines of the two kinds of request
HEADLINE_S, VIEW_S = 0.1, 0.5
# pages whose latest query is remembered
_MAX_PAGES = 1000


class StaleError(Exception):
    """The page has sent another query since."""


class Scheduler:
    """Lets one request run at a time, earliest deadline first.

    Answering is pure computation, so two at once would take turns at Python's lock and both be late. What a page no
    longer waits for is not computed at all.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        # deadline on the monotonic clock and thread of each request that waits
        self._queue: list[tuple[float, int]] = []

        # page -> query of its latest headline
        self._latest: OrderedDict[str, object] = OrderedDict()

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @contextmanager
    def headline(self, page: str | None, query: object) -> Iterator[None]:
        """Run a page's headline, whose other views follow this query from now on; None: an unknown page.

        Raises StaleError if the page has sent another query before this one could start.
        """
        if page is not None:
            with self._changed:
                self._latest[page] = query
                self._latest.move_to_end(page)
                if len(self._latest) > _MAX_PAGES:
                    self._latest.popitem(last=False)
                self._changed.notify_all()
        with self._run(page, query, HEADLINE_S):
            yield

    @contextmanager
    def view(self, page: str | None, query: object) -> Iterator[None]:
        """Run another view of a page; raises StaleError if the page's headline is about another query by then."""
        with self._run(page, query, VIEW_S):
            yield

    @contextmanager
    def _run(self, page: str | None, query: object, patience_s: float) -> Iterator[None]:
        own = time.monotonic() + patience_s, threading.get_ident()

        def is_stale() -> bool:
            return page is not None and self._latest.get(page, query) != query

        with self._changed:
            self._queue.append(own)
            self._changed.wait_for(lambda: is_stale() or (not self._busy and own == min(self._queue)))
            self._queue.remove(own)
            if is_stale():
                self._changed.notify_all()
                raise StaleError
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()


# answers that are kept
_KEPT = 32
# for a process to start, or to report something new: far more than answers take on a busy machine
SILENCE_S = 120.0

Result = TypeVar("Result")
# what a question is computed with: it passes on what it has so far, the whole answer at last
Compute = Callable[[Any, Callable[[Result], object]], object]


class LostError(LadderSimError):
    """The process did not start, died, or was ended because it reported nothing."""


class _GivenUpError(Exception):
    """No page waits for the answer."""


@dataclass(slots=True, kw_only=True, eq=False)
class Job(Generic[Result]):
    """A question and what is known of its answer."""

    question: Hashable
    future: "Future[None]" = field(default_factory=Future)
    """Done when the whole answer is there, or with the error that says why there is none."""
    pages: "dict[Hashable, Future[None]]" = field(default_factory=dict)
    """Pages that wait for the answer. The future of a page is done when the page waits for it no more."""
    updates: int = 0
    """Number of results that were reported."""
    result: Result | None = None
    """Latest result that was reported."""

    @property
    def done(self) -> bool:
        """Whether nothing more will be reported."""
        return self.future.done()

    @property
    def lost(self) -> bool:
        """Whether there is no answer because of the process: who asks again has it tried again."""
        return self.done and isinstance(self.future.exception(), LostError)


class Worker(Generic[Result]):
    """A process that computes answers; it starts with the first question, and again when it has died.

    `compute` is a function of a module, or a value with ``__call__`` that can be pickled.
    """

    def __init__(self, compute: Compute[Result]) -> None:
        self._compute = compute
        self._lock = threading.Lock()
        # by question, oldest first
        self._jobs: dict[Hashable, Job[Result]] = {}
        self._running: Job[Result] | None = None

        # hands one question after the other to the process
        self._thread = ThreadPoolExecutor(1)
        self._process: _Process | None = None

        # shared with the process: whether it is to give its question up
        self._given_up = multiprocessing.get_context("spawn").Value("b", lock=False)

    def ask(self, page: Hashable, question: Hashable) -> Job[Result]:
        """Return the job of an answer, started if needed; a page waits for the last question that it asked."""
        with self._lock:
            self._forget(page, question)
            job = self._jobs.get(question)
            if job is None or (job.lost and page not in job.pages):
                self._jobs.pop(question, None)
                for each in [each for each in self._jobs.values() if each.done][:-_KEPT]:
                    del self._jobs[each.question]
                job = self._jobs[question] = Job(question=question)
                job.future = self._thread.submit(self._answer, job)
            if job.done:
                # an error of the process is shown once, then the question is tried again
                job.pages.pop(page, None)
            else:
                job.pages.setdefault(page, Future())
            return job

    def answer(self, question: Hashable, page: Hashable = None) -> Result:
        """Return the whole answer, once it is there; raise StaleError if the page asks another question meanwhile.

        Raises LadderSimError if the question has no answer, StaleError if the page has asked another one since.
        """
        page = object() if page is None else page
        job = self.ask(page, question)
        if left := job.pages.get(page):
            wait([job.future, left], return_when=FIRST_COMPLETED)
            if left.done():
                raise StaleError
        with self._lock:
            job.pages.pop(page, None)
        job.future.result()
        if job.result is None:
            raise LadderSimError("the worker reported nothing", hint="a bug: the terminal shows where")
        return job.result

    def ahead(self, job: Job[Result]) -> int:
        """Return the number of questions that are answered before this one."""
        with self._lock:
            return sum(not each.done for each in takewhile(lambda each: each is not job, self._jobs.values()))

    def leave(self, page: Hashable) -> None:
        """Forget the question that a page waits for."""
        with self._lock:
            self._forget(page, None)

    def _forget(self, page: Hashable, but: Hashable) -> None:
        for job in [each for each in self._jobs.values() if each.question != but and page in each.pages]:
            job.pages.pop(page).set_result(None)
            if not job.pages and not job.done:
                del self._jobs[job.question]
                if job is self._running:
                    self._given_up.value = True

    def _answer(self, job: Job[Result]) -> None:
        """Have the process answer a question, and take what it reports."""
        with self._lock:
            self._check_wanted(job)
            self._running, self._given_up.value = job, False
        try:
            process = self._process = self._process or _Process.start(self._compute, self._given_up)
            answered = process.pool.submit(_answer, job.question)
            with suppress(EOFError):
                while (result := process.report()) is not None:
                    job.result = result
                    job.updates += 1
            answered.result()
        except (OSError, RuntimeError) as fault:
            # the latter is how a pool says that its process has died
            self._process = None
            raise LostError(
                f"the process that computes this did not start or was ended, possibly out of memory: {fault}",
                hint="ask for less, or change a control or reload the page to try again",
            ) from fault
        with self._lock:
            self._check_wanted(job)

    def _check_wanted(self, job: Job[Result]) -> None:
        if self._jobs.get(job.question) is not job:
            raise StaleError


class _Process(NamedTuple):
    """A process, as the process that asks it sees it."""

    pool: ProcessPoolExecutor
    pid: int
    reports: "Connection[Any, Any]"

    @classmethod
    def start(cls, compute: Compute[Any], given_up: Any) -> Self:
        # spawned: forking a process that has threads is not safe
        context = multiprocessing.get_context("spawn")
        reports, told = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(1, context, _begin, (compute, told, given_up))
        # without another end outside the process, its death ends what it reports
        with told:
            started = pool.submit(os.getpid)
        return cls(pool, started.result(SILENCE_S), reports)

    def report(self) -> Any:
        """Return the next report of the process; None if it is done with its question."""
        if not self.reports.poll(SILENCE_S):
            os.kill(self.pid, signal.SIGKILL)
            raise TimeoutError(f"it reported nothing for {SILENCE_S:g} seconds")
        return self.reports.recv()


_task: tuple[Compute[Any], "Connection[Any, Any]", Any]


def _begin(*task: Any) -> None:
    """Keep in the process what every question needs."""
    global _task
    settle()
    _task = task


def _answer(question: Any) -> None:
    """Answer a question in the process; report results and then None."""
    compute, told, given_up = _task

    def tell(result: object) -> None:
        told.send(result)
        if given_up.value:
            raise _GivenUpError

    try:
        compute(question, tell)
    except _GivenUpError:
        pass
    except LadderSimError as refused:
        # the message and the hint: not all errors can be pickled
        raise LadderSimError(refused.message, hint=refused.hint) from None
    except Exception:
        traceback.print_exc()
        raise LadderSimError("the simulator failed", hint="a bug: the terminal shows where") from None
    finally:
        told.send(None)
