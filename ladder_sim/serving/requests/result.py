"""One load as a load generator measured it, and whether its figures agree with each other."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.slo import METRICS, PERCENTILES
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.units import format_rate, format_seconds

# how far two ways to the same figure may be apart: generators count ends of a run and answers' first tokens differently
_AGREE = 1.25
# ... where answers have one length, in the time of a request
_LENGTH = 1.1
# ... and where means of products are compared with products of means, which differ with the spread of lengths
_SPREAD = 2.5
# ITL counts chunks, which have more than one token where tokens are drafted
_CHUNK = 10.0
# clients of a fixed number in flight keep at least this share of them busy, the last wave of requests included
_LEAST_BUSY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A load as it was measured."""

    tool: str
    """Load generator that measured it."""
    requests: Traffic | Sequence[Request]
    """Drawn as the file describes them, or as they were recorded; those that failed are not among them."""
    concurrency: int = 0
    """Requests in flight at most: of a rate the client held others back; 0: they came at times of their own."""
    figures: Mapping[str, float]
    """Measured: names as in `ladder_sim.serving.Outcome.fields`."""
    server: Mapping[str, Any] = field(default_factory=dict)
    """What the file says of the server, in its own words: model, system, backend, dtype, tp, ep, dp_attention."""
    failed: int = 0
    """Requests that were not answered."""
    duration_s: float = 0.0
    """Time of the run, seconds; 0 where the file does not say it."""
    in_flight: float = 0.0
    """Mean number of requests in flight, as measured; 0 where the file does not say it."""
    one_length: bool = False
    """Whether all answers are known to have the same number of tokens."""
    left_out: str = ""
    """Why no simulation can be compared with it."""

    @property
    def answered(self) -> int:
        """Number of requests that were answered."""
        return self.requests.requests if isinstance(self.requests, Traffic) else len(self.requests)

    @property
    def contradiction(self) -> str:
        """Two figures that cannot both be right, as a sentence; empty if there are none."""
        return next(filter(None, (self._order(), self._parts(), self._counts(), self._busy())), "")

    @property
    def _gen(self) -> float:
        """Mean number of tokens of an answer."""
        if isinstance(self.requests, Traffic):
            return self.requests.gen.mean
        return float(np.mean([request.gen for request in self.requests]))

    def _order(self) -> str:
        """Say which percentiles do not increase; empty if all do."""
        for metric in METRICS:
            names = [f"{metric}_p{number}_s" for number in PERCENTILES if f"{metric}_p{number}_s" in self.figures]
            for low, high in itertools.pairwise(names):
                if self.figures[low] > (1.0 + 1e-6) * self.figures[high]:
                    return f"{_shown(low, self.figures)} is above {_shown(high, self.figures)}"
        return ""

    def _parts(self) -> str:
        """Say what does not fit if a request takes its first token and all others; empty if all fits."""
        itl_s, tpot_s = (self.figures.get(f"{metric}_mean_s", 0.0) for metric in ("itl", "tpot"))
        if itl_s and tpot_s and not _agree(itl_s, tpot_s, _CHUNK):
            return f"{_shown('itl_mean_s', self.figures)} and {_shown('tpot_mean_s', self.figures)} are not both right"
        if not {"ttft_mean_s", "tpot_mean_s", "e2e_mean_s"} <= self.figures.keys():
            return ""
        parts_s, whole_s = self._sum_s, self.figures["e2e_mean_s"]
        if _agree(parts_s, whole_s, _LENGTH if self.one_length else _SPREAD):
            return ""
        return (
            f"{_shown('ttft_mean_s', self.figures)} and {self._gen - 1.0:.0f} times "
            f"{_shown('tpot_mean_s', self.figures)} are {format_seconds(parts_s)}, but "
            f"{_shown('e2e_mean_s', self.figures)}"
        )

    @property
    def _sum_s(self) -> float:
        """Mean time of a request by its tokens, seconds; 0 without their times."""
        if not {"ttft_mean_s", "tpot_mean_s"} <= self.figures.keys():
            return 0.0
        return self.figures["ttft_mean_s"] + max(0.0, self._gen - 1.0) * self.figures["tpot_mean_s"]

    def _counts(self) -> str:
        """Say which counts are not their rates times the duration; empty if all are."""
        rate, tokens = self.figures.get("requests_per_s", 0.0), self.figures.get("tokens_per_s", 0.0)
        if rate and self.duration_s and not _agree(rate * self.duration_s, self.answered, _AGREE):
            return (
                f"{format_rate(rate)} requests/s over {format_seconds(self.duration_s)} are "
                f"{rate * self.duration_s:.3g}, but {self.answered} were answered"
            )
        if rate and tokens and not _agree(rate * self._gen, tokens, _AGREE):
            return (
                f"{format_rate(rate)} requests/s of {self._gen:.0f} new tokens are {rate * self._gen:.4g} tok/s, but "
                f"{tokens:.4g} were measured"
            )
        return ""

    def _busy(self) -> str:
        """Say what does not fit if requests in flight are rate times duration (Little's law); empty if all fits."""
        rate, each_s = self.figures.get("requests_per_s", 0.0), self.figures.get("e2e_mean_s", self._sum_s)
        busy = rate * each_s
        if not busy:
            return ""
        mean = f"{format_rate(rate)} requests/s of {format_seconds(each_s)} each are {busy:.3g} in flight"
        if self.in_flight and not _agree(busy, self.in_flight, _AGREE if "e2e_mean_s" in self.figures else _SPREAD):
            return f"{mean}, but {self.in_flight:.3g} were measured"
        if self.concurrency and busy > _AGREE * self.concurrency + 0.5:
            return f"{mean}, but the client had at most {self.concurrency}"
        closed = self.concurrency and not (isinstance(self.requests, Traffic) and self.requests.rate)
        if closed and not self.failed and busy < _LEAST_BUSY * min(self.concurrency, self.answered):
            return f"{mean}, but the client kept {self.concurrency}"
        return ""


def _agree(one: float, other: float, factor: float) -> bool:
    return one <= factor * other and other <= factor * one


def _shown(name: str, figures: Mapping[str, float]) -> str:
    metric, statistic, _ = name.split("_")
    return f"{metric.upper()} {statistic} of {format_seconds(figures[name])}"
