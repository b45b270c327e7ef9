"""Find out which rank died or hangs, when a collective fails.

Each rank writes twice a second to the common store how many beats it has made, how many collectives and CUDA graphs it
has issued, and how many of these graphs have ended. When a collective fails, the rank whose beats stopped died or was
stopped; if all beat, the one behind the others hangs. NCCL's collectives do not fail by themselves: there a rank that
is silent or behind for too long ends the others. Nor does NCCL see those in a graph: a graph that does not end for as
long ends them, too.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

from ladder_sim.errors import RankError
from ladder_sim_runtime.comm.launch import report_error

Ranks = Collection[int]

BEAT_S = 0.5
# between two looks at the others' beats, which take a round trip for each rank
_LOOK_S = 5.0


class RankProgress(NamedTuple):
    """How far a rank has got."""

    issued: int
    """Collectives and graphs with collectives so far."""
    ended: int = 0
    """Number of the graphs that have ended."""
    running: bool = False
    """Whether there are graphs that have not ended."""


class _Beat(NamedTuple):
    """What a rank has said last."""

    beats: int
    progress: RankProgress
    failed: bool
    """It saw a failure, and may have ended by now."""


class Heartbeat:
    """The beats of a rank, out of `size`, and its view of the others', through a `store` that all share."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._progress: Callable[[], RankProgress] = lambda: RankProgress(0)
        self._beats = 0
        self._failed = False
        self._patience_s: float | None = None

        # by rank, and by what it says something of: what, and since when
        self._heard: dict[tuple[int, str], tuple[object, float]] = {}
        self._beat()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")
        self._thread.start()
        # a thread that the interpreter's end finds within the store aborts the process
        atexit.register(self._end)

    def follow(self, progress: Callable[[], RankProgress]) -> None:
        """Report this from now on."""
        self._progress = progress

    def end_if_stuck(self, patience_s: float) -> None:
        """End this process from now on when a rank is silent or behind, or a graph runs, for `patience_s` seconds."""
        self._patience_s = patience_s

    def stuck(self, now_s: float, patience_s: float) -> RankError | None:
        """Return the error to end with if ranks are stuck; None if they are not."""
        ranks = self._read()
        most_issued = max(each.progress.issued for each in ranks.values())
        most_ended = max(each.progress.ended for each in ranks.values())
        silent, behind, hangs = set(), set(), False
        for rank, (beats, progress, failed) in ranks.items():
            said = {"beats": beats, "issued": progress.issued, "graphs": (progress.ended, progress.running)}
            stays = {what for what, value in said.items() if now_s - self._since(rank, what, value, now_s) > patience_s}
            if "beats" in stays and not failed:
                silent.add(rank)
            if "issued" in stays and progress.issued < most_issued:
                behind.add(rank)
            if "graphs" in stays and progress.ended < most_ended:
                behind.add(rank)
            hangs = hangs or ("graphs" in stays and progress.running)
        stuck = {rank for rank, each in ranks.items() if hangs and each.progress.running}
        return self._named(silent=silent, behind=behind, stuck=stuck)

    def _since(self, rank: int, what: str, value: object, now_s: float) -> float:
        """Return since when a rank has reported this value."""
        before, since_s = self._heard.get((rank, what), (value, now_s))
        self._heard[rank, what] = value, since_s if value == before else now_s
        return self._heard[rank, what][1]

    def blame(self, error: RuntimeError) -> RankError:
        """Return the error to raise for a collective that failed with `error`."""
        self._failed = True
        try:
            self._beat()
            before = self._read()
            time.sleep(3 * BEAT_S)
            now = self._read()
        except RuntimeError:
            return RankError(f"rank 0, where the ranks meet, is gone (noticed by rank {self._rank})")
        absent = [rank for rank in range(self._size) if rank not in now]
        # a rank that saw the failure, too, may have ended by now
        most = max(each.progress.issued for each in now.values())
        silent = [rank for rank in now if rank in before and now[rank].beats == before[rank].beats]
        silent = [rank for rank in silent if not now[rank].failed]
        behind = [rank for rank in now if now[rank].progress.issued < most]
        named = self._named(absent=absent, silent=silent, behind=behind)
        return named or RankError(f"communication between the ranks failed: {error}")

    def _named(self, *, absent: Ranks = (), silent: Ranks, behind: Ranks, stuck: Ranks = ()) -> RankError | None:
        fates = (
            (absent, "never came", "never came"),
            (silent, "died or was stopped", "died or were stopped"),
            (behind, "hangs", "hang"),
            # each waits for the others: which of them began is not known
            (stuck, "hangs in a CUDA graph", "hang in a CUDA graph"),
        )
        for ranks, one, several in fates:
            if ranks:
                who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
                return RankError(
                    f"{who} {several if len(ranks) > 1 else one} (noticed by rank {self._rank})",
                    hint=f"find what ended or blocks {who}; --timeout sets how long the others wait",
                )
        return None

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                self._beat()
                if self._patience_s is not None and self._beats % round(_LOOK_S / BEAT_S) == 0:
                    error = self.stuck(time.monotonic(), self._patience_s)
                    if error:
                        # the main thread may wait for a GPU that never ends
                        report_error(str(error))
                        os._exit(error.exit_code)
            except RuntimeError:
                # the store is gone with its host; the next collective fails and reports it
                return

    def _end(self) -> None:
        self._over.set()
        self._thread.join(_LOOK_S)

    def _beat(self) -> None:
        self._beats += 1
        said = (self._beats, *self._progress(), self._failed)
        self._store.set(f"alive/{self._rank}", " ".join(str(int(value)) for value in said))

    def _read(self) -> dict[int, _Beat]:
        """Return the state of every rank that has reported."""
        ranks = {}
        for rank in range(self._size):
            if self._store.check([f"alive/{rank}"]):
                beats, issued, ended, running, failed = map(int, self._store.get(f"alive/{rank}").split())
                ranks[rank] = _Beat(beats, RankProgress(issued, ended, bool(running)), bool(failed))
        return ranks
