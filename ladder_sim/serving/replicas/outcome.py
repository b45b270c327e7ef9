"""What became of the requests of a simulation: percentiles, rates, and whether an SLO was kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, isnan
from typing import Any

import numpy as np

from ladder_sim.des.shared import Floats
from ladder_sim.serving.engine.answer import Answers
from ladder_sim.serving.engine.replica import Replica
from ladder_sim.serving.requests.slo import METRICS, PERCENTILES, SLO, Bound, Metric

# the queue grows without end if, when the last request arrives, it is so many times as long as half-way, and holds such
# a share of all requests, and more than what waits for the end of a step
_GROWTH, _SHARE, _FEWEST = 1.5, 0.02, 8


# no slots: percentiles are computed once and kept
@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """One variant under load."""

    variant: str
    """Canonical name."""
    gpus: int
    """Number of GPUs of all replicas."""
    answers: Answers
    """All requests, in order of arrival."""
    replicas: Sequence[Replica]
    """As they were at the end; those that run prompts only come last."""
    serving: int
    """How many of them decode."""
    queued: tuple[int, int]
    """Requests that waited for admission when half of them had arrived, and when all had."""
    slo: SLO | None = None
    """To be kept."""
    steady: bool = False
    """Whether requests that meet a server which fills or empties are left out."""

    @cached_property
    def counted(self) -> slice:
        """Requests that times and rates are over, by number.

        A server fills for about as long as a mean request takes, and empties for as long. Requests that arrive then are
        left out if the load is to be `steady`, but not if that were half of all, nor if the queue grows: the server
        then answers fewer requests than come.
        """
        arrival_s, last_s = map(self.answers.column, ("arrival_s", "last_s"))
        mean_s = float((last_s - arrival_s).mean())
        first, last = np.searchsorted(arrival_s, (arrival_s[0] + mean_s, arrival_s[-1] - mean_s)).tolist()
        if self.steady and self.stable and last - first > len(arrival_s) / 2:
            return slice(first, last)
        return slice(0, len(arrival_s))

    def _column(self, name: str) -> Floats:
        return self.answers.column(name)[self.counted]

    @cached_property
    def _counted_s(self) -> float:
        """Seconds in which the counted requests arrive; if these are all, the whole duration."""
        arrival_s, counted = self.answers.column("arrival_s"), self.counted
        every = counted.stop == len(arrival_s)
        return self.duration_s if every else float(arrival_s[counted.stop] - arrival_s[counted.start])

    @cached_property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.answers.column("last_s").max() - self.answers.column("arrival_s").min())

    @cached_property
    def _seconds(self) -> dict[Metric, tuple[Floats, Floats | None]]:
        """Values, and how often each occurs; None: once."""
        columns = self._times_s
        columns["tpot"] = columns["tpot"][self._column("gen") > 1]
        gaps = [replica.gaps_s.columns() for replica in self.replicas]
        gaps_s, counts = (np.concatenate(column) for column in zip(*gaps, strict=True))
        return {**{name: (values, None) for name, values in columns.items()}, "itl": (gaps_s, counts)}

    @property
    def _times_s(self) -> dict[Metric, Floats]:
        """Times of each request; TPOT of one without further tokens is 0."""
        arrival_s, first_s, last_s, gen = map(self._column, ("arrival_s", "first_s", "last_s", "gen"))
        tpot_s = (last_s - first_s) / np.maximum(1, gen - 1)
        return {"ttft": first_s - arrival_s, "tpot": tpot_s, "e2e": last_s - arrival_s}

    def values_s(self, metric: Metric) -> Floats:
        """Return a metric of each request that has it, in seconds; of ITL, each time that occurs."""
        return self._seconds[metric][0]

    def seconds(self, metric: Metric, percentile: int = 0) -> float:
        """Return a percentile of a metric, or its mean, in seconds; NaN if no request has it."""
        values, counts = self._seconds[metric]
        if not len(values):
            return float("nan")
        if not percentile:
            return float(np.average(values, weights=counts))
        if counts is None:
            place = max(0, ceil(percentile / 100.0 * len(values)) - 1)
            return float(np.partition(values, place)[place])
        order = np.argsort(values)
        reached = np.cumsum(counts[order])
        return float(values[order][np.searchsorted(reached, percentile / 100.0 * reached[-1])])

    @property
    def recorded(self) -> Replica:
        """The first replica that ran steps: one that decodes, where any does."""
        return next(replica for replica in self.replicas if replica.steps)

    @property
    def stable(self) -> bool:
        """The queue does not grow without end."""
        half, whole = self.queued
        return whole < max(_FEWEST, _SHARE * len(self.answers)) or whole < _GROWTH * half

    @property
    def kept(self) -> bool | None:
        """Whether the SLO is kept; None: there is none."""
        return not self.broken if self.slo else None

    @property
    def broken(self) -> tuple[str, ...]:
        """The bounds of the SLO that are not kept."""
        return self.slo.broken(self.bounded_s) if self.slo else ()

    @property
    def _bounds(self) -> Sequence[Bound]:
        return self.slo.bounds if self.slo else ()

    @property
    def bounded_s(self) -> list[float]:
        """What each bound of the SLO bounds."""
        return [self.seconds(bound.metric, bound.percentile) for bound in self._bounds]

    @property
    def first_s(self) -> list[float]:
        """Time to first token in what each bound of the SLO bounds: all of TTFT, a part of E2E, else none."""
        return [
            self.seconds("ttft", bound.percentile) if bound.metric in ("ttft", "e2e") else 0.0 for bound in self._bounds
        ]

    @property
    def caution(self) -> str:
        """Which bounds of the SLO bound nothing, as a sentence; mostly empty."""
        names = [bound.name for bound, value_s in zip(self._bounds, self.bounded_s, strict=True) if isnan(value_s)]
        if not names:
            return ""
        return f"no request has a second token: {', '.join(names)} cannot be broken"

    @property
    def good_share(self) -> float:
        """Share of requests that keep every bound of the SLO on single requests."""
        times_s = self._times_s
        good = np.ones_like(times_s["e2e"], bool)
        for bound in self._bounds:
            if bound.metric in times_s:
                good &= times_s[bound.metric] <= bound.seconds
        return float(good.mean())

    @property
    def goodput(self) -> float | None:
        """Requests per second that keep the bounds of the SLO; None without an SLO."""
        return self.good_share * self.requests_per_s if self.slo else None

    @property
    def requests_per_s(self) -> float:
        """Requests answered per second."""
        return len(self._column("gen")) / self._counted_s

    @property
    def in_flight(self) -> float:
        """Requests that wait or run, on average; by Little's law."""
        return float(self._times_s["e2e"].sum()) / self._counted_s

    @property
    def tokens_per_s(self) -> float:
        """New tokens."""
        return float(self._column("gen").sum()) / self._counted_s

    def fields(self) -> dict[str, Any]:
        """Return the outcome's figures as fields of JSON and CSV."""
        column = self._column
        busy_s = sum(replica.busy_s for replica in self.replicas)
        return {
            "requests": len(self.answers),
            "gpus": self.gpus,
            "duration_s": self.duration_s,
            **{
                f"{metric}_{name}_s": self.seconds(metric, number)
                for metric in METRICS
                for name, number in (("mean", 0), *((f"p{number}", number) for number in PERCENTILES))
            },
            "requests_per_s": self.requests_per_s,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s / self.gpus,
            "utilisation": busy_s / (len(self.replicas) * self.duration_s),
            "kv_occupancy": sum(replica.kv_share_s for replica in self.replicas) / busy_s,
            "preemptions": int(self.answers.column("preemptions").sum()),
            "cached_prompt_share": min(1.0, float(column("reused").sum() / column("prompt").sum())),
            "stable": self.stable,
            "goodput": self.goodput,
            "promise_kept": self.kept,
            "broken": ",".join(self.broken),
        }
