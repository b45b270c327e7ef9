"""Runs chunks one after the other, on processes of this machine, or on a Dask cluster; results come in order."""

import asyncio
import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Protocol, TypeVar

from ladder_sim.errors import LadderSimError, MissingPackageError, UsageError

# chunks in flight per worker: enough that none waits for the slowest
AHEAD = 3
# of a chunk whose Dask worker was lost
RETRIES = 5
# to wait for a Dask scheduler, and for a worker where it has none
CONNECT_S = 10

Task = TypeVar("Task")
Answer = TypeVar("Answer")


class Executor(Protocol):
    """Applies a function to tasks, ahead of the reader but only so far."""

    def __call__(self, function: Callable[[Task], Answer], tasks: Iterable[Task]) -> Iterator[Answer]: ...


def serial(function: Callable[[Task], Answer], tasks: Iterable[Task]) -> Iterator[Answer]:
    """Yield the answers, computed in this process."""
    return map(function, tasks)


class Processes:
    """Worker processes, which stay warm from chunk to chunk and end with this one."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __call__(self, function: Callable[[Task], Answer], tasks: Iterable[Task]) -> Iterator[Answer]:
        # spawned: forking a process that has threads is not safe
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=settle)
        try:
            yield from _in_order(lambda task: pool.submit(function, task), tasks, self.workers * AHEAD)
        except BrokenProcessPool as error:
            raise LadderSimError(
                "a worker process died, possibly out of memory", hint="--resume goes on; use fewer --workers"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def settle() -> None:
    """Leave Ctrl-C to the parent in a spawned process, and end when the parent ends, however that happens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class Dask:
    """Workers of a Dask cluster, at the address of its scheduler, e.g. ``"tcp://host:8786"``.

    The scheduler repeats what a lost worker had, and each answer is read once. Raises MissingPackageError if
    distributed is not installed; UsageError if no scheduler answers there.
    """

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise MissingPackageError("--dask needs distributed", extra="dask") from None
        try:
            connect: Any = distributed.Client
            self._client = connect(address, timeout=CONNECT_S, set_as_default=False)
            # set when the scheduler next says that it has lost a worker; the one waited for is set by any loss since
            # workers were last counted
            self._awaited = self._loss = Future[None]()
            self._client.subscribe_topic("all", self._notice)
            self._client.wait_for_workers(1, timeout=CONNECT_S)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--dask '{address}': no scheduler with workers answers",
                hint="start `dask scheduler`, and `dask worker` for each machine",
            ) from error

    def __call__(self, function: Callable[[Task], Answer], tasks: Iterable[Task]) -> Iterator[Answer]:
        import distributed

        threads = max(1, sum(self._client.nthreads().values()))

        def submit(task: Task) -> Any:
            return self._client.submit(function, task, pure=False, retries=RETRIES)

        try:
            yield from _in_order(submit, tasks, threads * AHEAD, self._result)
        except (CancelledError, OSError) as error:
            raise LadderSimError("the Dask scheduler was lost", hint="start it again; --resume goes on") from error
        except distributed.KilledWorker as error:
            raise LadderSimError(
                "a chunk was lost with every Dask worker that had it, possibly out of memory",
                hint="--resume goes on; give workers more memory",
            ) from error
        finally:
            self._client.close()

    def _notice(self, event: tuple[float, Any]) -> None:
        _, message = event
        if isinstance(message, dict) and message.get("action") == "remove-worker":
            loss, self._loss = self._loss, Future()
            loss.set_result(None)

    def _result(self, future: Any) -> Any:
        while True:
            request = self._client.gather(future, asynchronous=True)
            answer = asyncio.run_coroutine_threadsafe(request, self._client.loop.asyncio_loop)
            done, _ = wait_for([answer, self._awaited], return_when=FIRST_COMPLETED)
            if answer in done:
                return answer.result()
            # before workers are counted: what is lost meanwhile ends the next wait
            self._awaited = self._loss
            try:
                self._client.wait_for_workers(1, timeout=CONNECT_S)
            except TimeoutError as error:
                raise LadderSimError(
                    "the last Dask worker was lost", hint="start workers again; --resume goes on"
                ) from error


def _in_order(
    submit: Callable[[Task], Any], tasks: Iterable[Task], ahead: int, result: Callable[[Any], Answer] = Future.result
) -> Iterator[Answer]:
    remaining = iter(tasks)
    flying = deque(submit(task) for task in itertools.islice(remaining, ahead))
    while flying:
        answer = result(flying.popleft())
        flying.extend(submit(task) for task in itertools.islice(remaining, 1))
        yield answer
