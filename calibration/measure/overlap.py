"""One kernel and one all-reduce at the same time, and each of them alone."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from calibration.fit.samples import BESIDE, Sample
from calibration.measure.clock import Timing, clock_of, timed
from calibration.measure.collectives import DTYPE
from calibration.measure.kernels import kernel
from calibration.measure.ranks import Ranks

# in a row during one message
MAX_KERNELS = 1000
# kernels run for this multiple of the message's time alone, and for `GROWTH` times longer whenever they end too soon
MARGIN, GROWTH = 2.0, 4.0


class OverlapMeasurement:
    """A kernel and an all-reduce, ready to run at the same time.

    Parameters
    ----------
    op
        Its point holds the kernel's coordinates, and bytes, ranks and nodes of the message.
    ranks
        All of them; each group sends its own message.
    """

    def __init__(self, op: Sample, ranks: Ranks) -> None:
        name, _, message = op.op.partition(BESIDE)
        self._kernel_name, self._message_name = op.op, f"{message}{BESIDE}{name}"
        self._run = kernel(Sample(op=name, point=op.point, seconds=None), ranks.weights)
        self._ranks, self._group, self._clock = ranks, ranks.group(op), clock_of(ranks.device)
        self._margin = MARGIN
        self._tiny = torch.zeros(1, dtype=DTYPE, device=ranks.device)
        self._x = torch.zeros(max(1, round(op.point["bytes"] / DTYPE.itemsize)), dtype=DTYPE, device=ranks.device)
        # the kernel's result needs memory as well: if there is too little, fail here and not during a message
        self._run()

    def measure(self) -> dict[str, Timing]:
        """Run the message alone, kernels alone, and enough kernels during the message to outlast it; times by op.

        How many are enough is found once, up to `MAX_KERNELS`: later repeats start from there.
        """
        _, message_alone_s = self._overlapped(0)
        kernel_s = self._kernels_s(1)
        while True:
            kernels = min(MAX_KERNELS, 1 + math.ceil(self._margin * message_alone_s / kernel_s))
            ends_s, message_s = self._overlapped(kernels)
            # a message needs all ranks: if one has to send another, all do
            if self._ranks.agree(fine=kernels == MAX_KERNELS or ends_s[-1] >= message_s):
                break
            self._margin *= GROWTH
        # later kernels ran after the message's end
        count = max(1, sum(end_s <= message_s for end_s in ends_s))
        return {
            self._kernel_name: Timing(ends_s[count - 1] / count, self._kernels_s(count) / count),
            self._message_name: Timing(message_s, message_alone_s),
        }

    def _overlapped(self, kernels: int) -> tuple[list[float], float]:
        """When each kernel and the message end, in seconds from the message's issue."""
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

    def _kernels_s(self, count: int) -> float:
        return timed(lambda: [self._run() for _ in range(count)], self._clock)

    def _send(self) -> Callable[[], Any]:
        """Issue the message; return a function that waits for it and returns the moment of its end."""
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
