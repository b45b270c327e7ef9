"""One kernel and one all-reduce at the same time, for a profile."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from calibration.fit.samples import BESIDE, Sample
from calibration.measure.clock import clock_of, timed
from calibration.measure.collectives import DTYPE
from calibration.measure.kernels import kernel
from calibration.measure.ranks import Ranks

# in a row beside one message
MOST_KERNELS = 1000
# times as long as the message alone that kernels run beside it at first, and times more whenever they end too soon
LONGER, MORE = 2.0, 4.0


class Both(NamedTuple):
    """Seconds of the two."""

    kernel_s: float
    kernel_alone_s: float
    message_s: float
    message_alone_s: float


class Pair:
    """A kernel and an all-reduce of one op, ready to run.

    Parameters
    ----------
    op
        Its point holds the kernel's coordinates, and bytes, ranks and nodes of the message.
    ranks
        All of them; each group sends its own message.
    """

    def __init__(self, op: Sample, ranks: Ranks) -> None:
        name, _, _ = op.op.partition(BESIDE)
        self._run = kernel(Sample(op=name, point=op.point, seconds=None), ranks.device)
        self._ranks, self._group, self._clock = ranks, ranks.group(op), clock_of(ranks.device)
        self._longer = LONGER
        self._tiny = torch.zeros(1, dtype=DTYPE, device=ranks.device)
        # the kernel needs memory for its result too; better to run out of it now than beside a message
        self._x = torch.zeros(max(1, round(op.point["bytes"] / DTYPE.itemsize)), dtype=DTYPE, device=ranks.device)
        self._run()

    def measure(self) -> Both:
        """Run the message alone, kernels alone, and so many kernels beside the message that they outlast it.

        How many are enough is found once, up to `MOST_KERNELS`: later repeats start from there.
        """
        _, message_alone_s = self._beside(0)
        kernel_s = self._kernels(1)
        while True:
            kernels = min(MOST_KERNELS, 1 + math.ceil(self._longer * message_alone_s / kernel_s))
            ends_s, message_s = self._beside(kernels)
            # a message needs all ranks: where one asks for another, all send it
            if self._ranks.agree(fine=kernels == MOST_KERNELS or ends_s[-1] >= message_s):
                break
            self._longer *= MORE
        # the others ran when it had ended
        met = max(1, sum(end_s <= message_s for end_s in ends_s))
        return Both(ends_s[met - 1] / met, self._kernels(met) / met, message_s, message_alone_s)

    def _beside(self, kernels: int) -> tuple[list[float], float]:
        """When each kernel ends, and the message, in seconds from its issue."""
        self._clock.hold()
        # the ranks meet
        self._group.allreduce([self._tiny]).wait()
        start = self._clock.now()
        message_end = self._send()
        ends = [self._kernel_end() for _ in range(kernels)]
        end = message_end()
        return [self._clock.elapsed_s(start, at) for at in ends], self._clock.elapsed_s(start, end)

    def _kernel_end(self) -> Any:
        self._run()
        return self._clock.now()

    def _kernels(self, count: int) -> float:
        return timed(lambda: [self._run() for _ in range(count)], self._clock)

    def _send(self) -> Callable[[], Any]:
        """Issue the message; what is returned waits for it and tells when it ended."""
        if self._x.is_cuda:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._group.allreduce([self._x]).wait()
                at = self._clock.now()
            return lambda: at
        ended: list[float] = []
        work = self._group.allreduce([self._x])
        work.get_future().add_done_callback(lambda _: ended.append(self._clock.now()))

        def wait() -> float:
            work.wait()
            while not ended:
                time.sleep(0.0)
            return ended[0]

        return wait
