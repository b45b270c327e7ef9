"""Find out which rank died or hangs, when a collective fails.

Each rank writes twice a second to the common store how many beats it has made and how many collectives it has issued.
When a collective fails, the rank whose beats stopped died or was stopped; if all beat, the one behind the others hangs.
NCCL's collectives do not fail by themselves: there a rank that is silent or behind for too long ends the others.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence

from torch.distributed.distributed_c10d import Store

from ladder_sim.errors import RankError
from runtime.comm.launch import report_error

BEAT_S = 0.5
# between two looks at the others' beats, which take a round trip for each rank
_LOOK_S = 5.0


class Heartbeat:
    """One rank's beats, and its view of the others'.

    Parameters
    ----------
    store
        Shared by all ranks.
    rank, size
        Of this process, and number of ranks.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._issued: Callable[[], int] = lambda: 0
        self._beats = 0
        self._failed = 0
        self._patience_s: float | None = None

        # of each rank, beats and collectives, and since when they are as many
        self._since: dict[tuple[int, int], tuple[int, float]] = {}
        self._beat()
        threading.Thread(target=self._run, daemon=True, name="heartbeat").start()

    def count(self, issued: Callable[[], int]) -> None:
        """Report this number of issued collectives from now on."""
        self._issued = issued

    def end_if_stuck(self, patience_s: float) -> None:
        """From now on end this process when another rank has been silent, or behind the others, for so long."""
        self._patience_s = patience_s

    def stuck(self, now_s: float, patience_s: float) -> RankError | None:
        """The error to end with, if that is so."""
        ranks = self._read()
        most = max(issued for _, issued, _ in ranks.values())
        silent, behind = (
            [
                rank
                for rank, entry in ranks.items()
                if now_s - self._unchanged(rank, which, entry[which], now_s) > patience_s
            ]
            for which in (0, 1)
        )
        return self._named(
            silent=[rank for rank in silent if not ranks[rank][2]],
            behind=[rank for rank in behind if ranks[rank][1] < most],
        )

    def _unchanged(self, rank: int, which: int, value: int, now_s: float) -> float:
        """Since when a rank has said the same."""
        before, since_s = self._since.get((rank, which), (value, now_s))
        self._since[rank, which] = value, since_s if value == before else now_s
        return self._since[rank, which][1]

    def blame(self, error: RuntimeError) -> RankError:
        """The error to raise for a collective that failed with `error`."""
        self._failed = 1
        try:
            self._beat()
            before = self._read()
            time.sleep(3 * BEAT_S)
            now = self._read()
        except RuntimeError:
            return RankError(f"rank 0, where the ranks meet, is gone (noticed by rank {self._rank})")
        absent = [rank for rank in range(self._size) if rank not in now]
        # a rank that saw the failure, too, may have ended by now
        silent = [rank for rank in now if now[rank][0] == before.get(rank, (-1,))[0] and not now[rank][2]]
        behind = [rank for rank in now if now[rank][1] < max(entry[1] for entry in now.values())]
        named = self._named(absent=absent, silent=silent, behind=behind)
        return named or RankError(f"communication between the ranks failed: {error}")

    def _named(
        self, *, absent: Sequence[int] = (), silent: Sequence[int] = (), behind: Sequence[int] = ()
    ) -> RankError | None:
        for ranks, fate in ((absent, "never came"), (silent, "died or was stopped"), (behind, "hangs")):
            if ranks:
                plural = "s" if len(ranks) > 1 else ""
                named = ", ".join(map(str, ranks))
                return RankError(
                    f"rank{plural} {named} {fate} (noticed by rank {self._rank})",
                    hint=f"find what ended or blocks rank{plural} {named}; --timeout sets how long the others wait",
                )
        return None

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_S)
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

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(f"alive/{self._rank}", f"{self._beats} {self._issued()} {self._failed}")

    def _read(self) -> dict[int, tuple[int, int, int]]:
        """Beats, issued collectives and whether it saw a failure, of every rank that came."""
        ranks = {}
        for rank in range(self._size):
            if self._store.check([f"alive/{rank}"]):
                beats, issued, failed = map(int, self._store.get(f"alive/{rank}").split())
                ranks[rank] = (beats, issued, failed)
        return ranks
