"""A day of requests on many replicas: time and memory.

Requests come at a rate that follows the hours, twice the mean at noon and none at midnight; prompts begin with one of
some hundred system prompts; a router sends each to a replica that has its beginning::

    python -m benchmarks.day [--rate 200] [--replicas 40] [--hours 1] [--router prefix-aware]
"""

import argparse
import resource
import sys
import time
from collections.abc import Iterator

import numpy as np

from ladder_sim import Scenario
from ladder_sim.serving import Request, Service

DAY_S = 86_400.0
# median tokens and spread of own prompts and of answers; system prompts, and the tokens of each
PROMPT, GEN, SPREAD = 700, 180, 0.8
BEGINNINGS, BEGINNING_TOKENS = 200, 512


def requests(rate: float, begin_s: float, end_s: float, seed: int = 0) -> Iterator[Request]:
    """Yield requests of a part of the day, whose mean rate is `rate`: a Poisson process, thinned."""
    random, now_s = np.random.default_rng(seed), begin_s
    while True:
        gaps_s, kept = random.exponential(0.5 / rate, 4096), random.random(4096)
        prompts, gens = (
            np.maximum(1, length * np.exp(SPREAD * random.standard_normal(4096))) for length in (PROMPT, GEN)
        )
        beginnings = random.zipf(1.3, 4096) % BEGINNINGS
        columns = (now_s + np.cumsum(gaps_s), kept, prompts.astype(int), gens.astype(int), beginnings)
        for at_s, chance, prompt, gen, beginning in zip(*(column.tolist() for column in columns), strict=True):
            if at_s >= end_s:
                return
            now_s = at_s
            if chance < 0.5 * (1.0 - np.cos(2.0 * np.pi * at_s / DAY_S)):
                yield Request(
                    arrival_s=at_s - begin_s,
                    prompt=BEGINNING_TOKENS + min(prompt, 14_000),
                    gen=min(gen, 1500),
                    prefix=(beginning,),
                    prefix_tokens=BEGINNING_TOKENS,
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0, help="mean requests per second of the day")
    parser.add_argument("--replicas", type=int, default=40)
    parser.add_argument("--hours", type=float, default=1.0, help="hours from 11 o'clock on; 24: the whole day")
    parser.add_argument("--router", default="prefix-aware")
    options = parser.parse_args()
    begin_s = 0.0 if options.hours == 24.0 else 11 * 3600.0
    end_s = begin_s + 3600.0 * options.hours
    scenario = Scenario(
        model="70b", tp=8, nodes=options.replicas, dp=options.replicas, stack="vllm", batch=options.replicas
    )
    service = Service(scenario=scenario, context=16_384, router=options.router)
    service.times("standard")
    begun_s, spent_s = time.perf_counter(), time.process_time()
    outcome = service.run("standard", requests(options.rate, begin_s, end_s))
    begun_s, spent_s = time.perf_counter() - begun_s, time.process_time() - spent_s
    count, peak_MB = len(outcome.answers), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{count:,} requests, {spent_s:,.0f} s of CPU, {begun_s:,.0f} s, {count / spent_s:,.0f}/s, {peak_MB:,.0f} MB")
    fields = outcome.fields()
    names = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "itl_p99_s", "cached_prompt_share", "preemptions")
    print(", ".join(f"{name} {fields[name]:.4g}" for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
