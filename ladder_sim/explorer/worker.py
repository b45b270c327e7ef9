"""Computes answers that take seconds in a process of their own, so that the page's server stays free.

One question at a time, in the order in which pages asked them. What no page waits for any more is given up.
"""

import contextlib
import multiprocessing
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from ladder_sim.errors import LadderSimError
from ladder_sim.explorer.scheduler import StaleError
from ladder_sim.sweeps.executors import settle

# answers that are kept
_KEPT = 32
_GIVE_UP = None
# for a process that has closed its end to be gone, seconds
_EXIT_S = 5.0
# for a process to start, or to report something new: far more than answers take on a busy machine
SILENCE_S = 120.0

Result = TypeVar("Result")
# what a question is computed with: it passes on what it has so far, the whole answer at last
Compute = Callable[[Any, Callable[[Result], object]], object]


class _GivenUpError(Exception):
    """No page waits for the answer."""


class _NotStartedError(Exception):
    """There is no process."""


class _SilentError(Exception):
    """Nothing came from the process for `SILENCE_S`."""

    def __init__(self) -> None:
        super().__init__(f"nothing came from it for {SILENCE_S:g} seconds")


@dataclass(frozen=True, slots=True)
class _End:
    """The worker is done with a question."""

    error: LadderSimError | None = None
    lost: bool = False
    """It did not start, died, or was ended because nothing came from it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Job(Generic[Result]):
    """A question and what is known of its answer."""

    question: Hashable
    pages: set[Hashable] = field(default_factory=set)
    """That wait for it."""
    updates: int = 0
    """How often something new was reported."""
    result: Result | None = None
    """The latest."""
    error: LadderSimError | None = None
    """Why there is no answer."""
    lost: bool = False
    """As `_End.lost`: who asks again has it tried again."""
    done: bool = False


class Worker(Generic[Result]):
    """A process that computes answers; it starts with the first question.

    Parameters
    ----------
    compute
        A function of a module, or a value with ``__call__`` that can be pickled.
    """

    def __init__(self, compute: Compute[Result]) -> None:
        self._compute = compute
        self._changed = threading.Condition()
        # by question, oldest first
        self._jobs: OrderedDict[Hashable, Job[Result]] = OrderedDict()
        self._running: Job[Result] | None = None
        self._process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._thread: threading.Thread | None = None

    def ask(self, page: Hashable, question: Hashable) -> Job[Result]:
        """What is known of an answer by now; a page waits for the last question that it asked."""
        with self._changed:
            self._forget(page, question)
            job = self._jobs.get(question)
            if job is None or (job.lost and page not in job.pages):
                self._jobs.pop(question, None)
                job = self._jobs[question] = Job(question=question)
            if job.lost:
                # once
                job.pages.discard(page)
            elif not job.done:
                job.pages.add(page)
                self._start()
            self._changed.notify_all()
            return job

    def answer(self, question: Hashable, page: Hashable = None) -> Result:
        """The whole answer, once it is there; of a page, unless that asks another question meanwhile.

        Raises
        ------
        LadderSimError
            The question has none.
        StaleError
            The page has asked another one since.
        """
        page = object() if page is None else page
        job = self.ask(page, question)
        with self._changed:
            self._changed.wait_for(lambda: job.done or page not in job.pages)
            if job.done:
                job.pages.discard(page)
        if not job.done:
            raise StaleError
        if job.error is not None or job.result is None:
            raise job.error or LadderSimError("the worker reported nothing", hint="a bug: the terminal shows where")
        return job.result

    def ahead(self, job: Job[Result]) -> int:
        """Questions that are answered before this one."""
        with self._changed:
            waiting = self._waiting()
            return waiting.index(job) + (self._running is not None) if job in waiting else 0

    def leave(self, page: Hashable) -> None:
        """A page waits for nothing."""
        with self._changed:
            self._forget(page, None)

    def _forget(self, page: Hashable, but: Hashable) -> None:
        for question, job in list(self._jobs.items()):
            if question == but or page not in job.pages:
                continue
            job.pages.discard(page)
            if not job.pages and not job.done:
                del self._jobs[question]
                if job is self._running and self._connection is not None:
                    # the process may have died, which `_hand_out` will notice
                    with contextlib.suppress(OSError):
                        self._connection.send(_GIVE_UP)

    def _waiting(self) -> list[Job[Result]]:
        return [job for job in self._jobs.values() if not job.done and job is not self._running]

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._hand_out, daemon=True)
            thread.start()
            self._thread = thread

    def _hand_out(self) -> None:
        """On a thread of its own: give the process one question after the other."""
        while True:
            with self._changed:
                self._changed.wait_for(self._waiting)
                job = self._running = self._waiting()[0]
            try:
                end = self._listen(job)
            except Exception as fault:
                # whatever it is: a page must not wait for ever
                end = _End(self._lose(fault), lost=True)
            with self._changed:
                self._running = None
                # one that was given up has no answer, whoever looks at it late
                job.error, job.lost, job.done = end.error, end.lost, self._jobs.get(job.question) is job
                if not job.lost:
                    job.pages.clear()
                done = [question for question, each in self._jobs.items() if each.done]
                for question in done[:-_KEPT]:
                    del self._jobs[question]
                self._changed.notify_all()

    def _lose(self, fault: Exception) -> LadderSimError:
        """End the process, if it is there still; the next question starts another."""
        if self._process is not None:
            self._process.kill()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        again = "change a control or reload the page to try again"
        if isinstance(fault, _NotStartedError):
            return LadderSimError(
                f"the process that computes this did not start: {fault}", hint=f"the terminal may show why; {again}"
            )
        if isinstance(fault, _SilentError):
            return LadderSimError(
                f"the process that computes this was ended: {fault}", hint=f"ask for less, or {again}"
            )
        if not isinstance(fault, EOFError | OSError):
            traceback.print_exception(fault)
        return LadderSimError("the worker process died, possibly out of memory", hint=f"ask for less, or {again}")

    def _listen(self, job: Job[Result]) -> _End:
        if self._connection is None:
            self._connection = self._spawn()
        connection = self._connection
        with self._changed:
            connection.send(job.question)
            if self._jobs.get(job.question) is not job:
                connection.send(_GIVE_UP)
        while True:
            message = _receive(connection)
            if isinstance(message, _End):
                return message
            with self._changed:
                job.result = message
                job.updates += 1
                self._changed.notify_all()

    def _spawn(self) -> "Connection[Any, Any]":
        """Start the process, and wait until it has imported what it needs."""
        # spawned: forking a process that has threads is not safe
        context = multiprocessing.get_context("spawn")
        try:
            ours, theirs = context.Pipe()
            with theirs:
                process = context.Process(target=_work, args=(theirs, self._compute), daemon=True)
                process.start()
        except Exception as fault:
            raise _NotStartedError(str(fault) or type(fault).__name__) from fault
        self._process = process
        try:
            _receive(ours)
        except _SilentError as fault:
            raise _NotStartedError(str(fault)) from fault
        except (EOFError, OSError) as fault:
            process.join(_EXIT_S)
            raise _NotStartedError(f"it ended with exit code {process.exitcode}") from fault
        return ours


def _receive(connection: "Connection[Any, Any]") -> Any:
    """What comes next."""
    if not connection.poll(SILENCE_S):
        raise _SilentError
    return connection.recv()


def _work(connection: "Connection[Any, Any]", compute: Compute[Any]) -> None:
    """The process: answer one question after the other."""
    settle()
    # it has started
    connection.send(None)

    def tell(result: object) -> None:
        connection.send(result)
        if connection.poll():
            connection.recv()
            raise _GivenUpError

    while True:
        question = connection.recv()
        # it came when the answer was on its way
        if question is _GIVE_UP:
            continue
        error = None
        try:
            compute(question, tell)
        except _GivenUpError:
            pass
        except LadderSimError as refused:
            # the message and the hint: not all errors can be pickled
            error = LadderSimError(refused.message, hint=refused.hint)
        except Exception:
            traceback.print_exc()
            error = LadderSimError("the simulator failed", hint="a bug: the terminal shows where")
        connection.send(_End(error))
