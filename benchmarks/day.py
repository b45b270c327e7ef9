"""A day of requests on many replicas: time and memory.

Requests come at a rate that follows the hours, twice the mean at noon and none at midnight; prompts begin with one of
some hundred system prompts; a router sends each to a replica that has its beginning::

    python -m benchmarks.day [--rate 200] [--replicas 40] [--hours 1] [--router prefix-aware] [--workers 2 --parts 24]

A router that looks at its replicas ties all of them together, so that it is time that is split into parts, each in a
process. What a part begins with is forgotten after the longest request: each starts `LEAD_S` before the requests that
it counts, and goes on for `TAIL_S` after them.
"""

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise

import numpy as np

from ladder_sim import Scenario
from ladder_sim.des.shared import Floats
from ladder_sim.serving import Request, Service
from ladder_sim.sweeps.executors import Processes, serial

DAY_S = 86_400.0
# median tokens and spread of own prompts and of answers; system prompts, and the tokens of each
PROMPT, GEN, SPREAD = 700, 180, 0.8
BEGINNINGS, BEGINNING_TOKENS = 200, 512
# an answer of 1,500 tokens takes 45 s at noon
LEAD_S, TAIL_S = 180.0, 60.0
COLUMNS = ("arrival_s", "first_s", "last_s", "prompt", "gen", "preemptions", "reused")


def requests(rate: float, begin_s: float, end_s: float, seed: int = 0, start_s: float = 0.0) -> Iterator[Request]:
    """Yield requests of a part of the day, whose mean rate is `rate`: a Poisson process, thinned.

    They are those from `begin_s` on, without those before `start_s`.
    """
    random, now_s = np.random.default_rng(seed), begin_s
    while True:
        gaps_s, kept = random.exponential(0.5 / rate, 4096), random.random(4096)
        prompts, gens = (
            np.maximum(1, length * np.exp(SPREAD * random.standard_normal(4096))) for length in (PROMPT, GEN)
        )
        beginnings = random.zipf(1.3, 4096) % BEGINNINGS
        last_s = now_s + float(gaps_s.sum())
        if last_s < start_s:
            now_s = last_s
            continue
        columns = (now_s + np.cumsum(gaps_s), kept, prompts.astype(int), gens.astype(int), beginnings)
        for at_s, chance, prompt, gen, beginning in zip(*(column.tolist() for column in columns), strict=True):
            if at_s >= end_s:
                return
            now_s = at_s
            if at_s >= start_s and chance < 0.5 * (1.0 - np.cos(2.0 * np.pi * at_s / DAY_S)):
                yield Request(
                    arrival_s=at_s - begin_s,
                    prompt=BEGINNING_TOKENS + min(prompt, 14_000),
                    gen=min(gen, 1500),
                    prefix=(beginning,),
                    prefix_tokens=BEGINNING_TOKENS,
                )


def simulated(
    service: Service, rate: float, begin_s: float, end_s: float, within: tuple[float, float]
) -> tuple[Mapping[str, Floats], float, float]:
    """Return columns of the requests that come `within` some time, seconds of CPU, and the peak of memory, MB."""
    spent_s = time.process_time()
    start_s, stop_s = within
    load = requests(rate, begin_s, min(end_s, stop_s + TAIL_S), start_s=max(begin_s, start_s - LEAD_S))
    answers = service.run("standard", load).answers
    columns = {name: answers.column(name) for name in COLUMNS}
    counted = (columns["arrival_s"] >= start_s - begin_s) & (columns["arrival_s"] < stop_s - begin_s)
    peak_MB = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {name: column[counted] for name, column in columns.items()}, time.process_time() - spent_s, peak_MB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0, help="mean requests per second of the day")
    parser.add_argument("--replicas", type=int, default=40)
    parser.add_argument("--hours", type=float, default=1.0, help="hours from 11 o'clock on; 24: the whole day")
    parser.add_argument("--router", default="prefix-aware")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--parts", type=int, default=1, help="parts of the time, each simulated alone")
    options = parser.parse_args()
    begin_s = 0.0 if options.hours == 24.0 else 11 * 3600.0
    end_s = begin_s + 3600.0 * options.hours
    scenario = Scenario(
        model="70b", tp=8, nodes=options.replicas, dp=options.replicas, stack="vllm", batch=options.replicas
    )
    service = Service(scenario=scenario, context=16_384, router=options.router)
    service.times("standard")
    begun_s = time.perf_counter()
    ends_s = np.linspace(begin_s, end_s, options.parts + 1).tolist()
    executor = Processes(options.workers) if options.workers > 1 else serial
    simulate = partial(simulated, service, options.rate, begin_s, end_s)
    parts, spent_s, peaks_MB = zip(*executor(simulate, pairwise(ends_s)), strict=True)
    wall_s, cpu_s = time.perf_counter() - begun_s, sum(spent_s)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
    count = len(columns["gen"])
    print(f"{count:,} requests, {cpu_s:,.0f} s of CPU, {wall_s:,.0f} s, {count / cpu_s:,.0f}/s, ", end="")
    print(f"{max(peaks_MB):,.0f} MB in each of {options.workers}")
    ttft_s = columns["first_s"] - columns["arrival_s"]
    further = columns["gen"] > 1
    tpot_s = ((columns["last_s"] - columns["first_s"]) / np.maximum(1, columns["gen"] - 1))[further]
    for name, seconds in (("ttft", ttft_s), ("tpot", tpot_s), ("e2e", columns["last_s"] - columns["arrival_s"])):
        print(", ".join(f"{name}_p{share}_s {np.percentile(seconds, share):.5g}" for share in (50, 95, 99)))
    print(f"cached_prompt_share {columns['reused'].sum() / columns['prompt'].sum():.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
