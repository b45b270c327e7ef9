"""How fast the simulator answers, beside what it promises, as a table or as docs/performance.md.

Cold figures are medians over fresh processes, so they include the start of the interpreter. Timings depend on the
machine and on what else it does, so a figure beyond its target is marked, not failed::

    python benchmarks/speed.py [--json | --page docs/performance.md]
"""

import argparse
import dataclasses
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import simpy

    from ladder_sim.des.program import Program

IMPORT = [sys.executable, "-c", "import ladder_sim"]
COMMAND = [sys.executable, "-m", "ladder_sim", "predict", "--model", "405b", "--nodes", "2"]
COLD_RUNS = 7
WARM_RUNS = 41
CONFIGURATIONS = 4000
# kinds of hardware in one batch
EVERY_LAYER = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement and its target, in the same unit."""

    name: str
    # what was measured
    value: float
    # median, or peak for memory
    target: float | None
    # most that is promised, or least where more is better; None: for comparison
    unit: str
    # of both
    more_is_better: bool = False

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        met = self.value >= self.target if self.more_is_better else self.value <= self.target
        return "met" if met else "MISSED"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure speed and memory beside their targets.")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")
    parser.add_argument("--page", type=Path, help="write the figures as a Markdown page")
    arguments = parser.parse_args()
    found = measure()
    if arguments.page:
        arguments.page.write_text(page(found), encoding="utf-8")
    if arguments.json:
        print(json.dumps([{**asdict(figure), "verdict": figure.verdict} for figure in found], indent=1))
    else:
        for figure in found:
            print(f"{figure.name:<70} {shown(figure.value):>9} {figure.unit:<4} {target(figure):<16} {figure.verdict}")
    return 0


def measure() -> list[Figure]:
    # The package is imported in this process last: a child's peak memory counts from what its parent had at the fork.
    import_s = median_s(lambda: quietly(IMPORT), COLD_RUNS)
    command_s = median_s(lambda: quietly(COMMAND), COLD_RUNS)
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return [
        Figure(name="import ladder_sim", value=import_s * 1e3, target=300, unit="ms"),
        Figure(name="predict --model 405b --nodes 2, fresh process", value=command_s * 1e3, target=1500, unit="ms"),
        Figure(name="the same, peak memory", value=peak_bytes / 1e6, target=300, unit="MB"),
        *warm_predictions(),
        *batches(),
        *events(),
    ]


def warm_predictions() -> list[Figure]:
    """One prediction of the four default variants in a running process."""
    from ladder_sim import Scenario, predict

    found = []
    for stack, engine, bound in (("gpt-fast", "fast", 5), ("vllm", "fast", None), ("gpt-fast", "des", 200)):
        scenario = Scenario.of(model="405b", nodes=2, stack=stack)
        predict(scenario, engine=engine)
        seconds = median_s(lambda: predict(scenario, engine=engine), WARM_RUNS)  # noqa: B023
        name = f"predict() of four variants, warm, 405b on two nodes, {stack}, engine {engine}"
        found.append(Figure(name=name, value=seconds * 1e3, target=bound, unit="ms"))
    scenario = Scenario.of(model="405b", nodes=2)
    seconds = median_s(lambda: [one.speedup for one in predict(scenario).values()], WARM_RUNS)
    found.append(Figure(name="the first of these with its intervals", value=seconds * 1e3, target=None, unit="ms"))
    return found


def batches() -> list[Figure]:
    """Full requests (prefill and decode over context, four variants counted as one) on many kinds of hardware."""
    import numpy as np

    from ladder_sim import Scenario
    from ladder_sim.costs.profile import load_profile
    from ladder_sim.graph.variants import DEFAULT_VARIANTS
    from ladder_sim.requests import simulate_requests

    random = np.random.default_rng(0)
    figures = {
        "intra.bandwidth_Bps": random.uniform(50e9, 900e9, CONFIGURATIONS),
        "intra.latency_s": random.uniform(2e-6, 40e-6, CONFIGURATIONS),
        "gpu.hbm_bandwidth_Bps": random.uniform(1e12, 8e12, CONFIGURATIONS),
        "gpu.bf16_flops": random.uniform(2e14, 2e15, CONFIGURATIONS),
    }
    profile = load_profile("h100-sxm")
    found = []
    for stack in ("gpt-fast", "vllm"):
        scenario = Scenario.of(model="70b", tp=8, stack=stack)
        seconds = median_s(lambda: simulate_requests(scenario, figures, DEFAULT_VARIANTS, profile), 5)  # noqa: B023
        name = f"requests in a batch of {CONFIGURATIONS} kinds of hardware, 70B TP 8, {stack}"
        found.append(Figure(name=name, value=CONFIGURATIONS / seconds, target=50_000, unit="/s", more_is_better=True))
    return found


def events() -> list[Figure]:
    """Event rate of the simpy engine beside a bare simpy program of the same events: every layer of 405B's ladder."""
    from ladder_sim import Scenario
    from ladder_sim.costs.model import KernelCosts
    from ladder_sim.costs.profile import load_profile
    from ladder_sim.des import engine, scan
    from ladder_sim.steps import lowered_step

    scenario = Scenario.of(model="405b", nodes=2, variant="ladder")
    costs = KernelCosts(scenario, load_profile("h100-sxm"))
    program = lowered_step(scenario, "decode", 1025, costs, EVERY_LAYER)[1].program
    alone = dataclasses.replace(program, device=None)
    bare, own = interleaved_rates(lambda: bare_simpy(alone), lambda: own_engine(alone))
    passes = [
        Figure(
            name=f"one pass over all its 126 layers, {name}",
            value=1e3 * median_s(call, WARM_RUNS),
            target=None,
            unit="ms",
        )
        for name, call in (
            ("engine des, nothing shared", lambda: engine.run(alone)),
            ("engine des, GPU shared", lambda: engine.run(program)),
            ("engine fast, GPU shared", lambda: scan.run(program)),
        )
    ]
    return [
        Figure(name="bare simpy, events of a 405B decode step", value=bare / 1e3, target=None, unit="k/s"),
        Figure(
            name="engine des, the same events",
            value=own / 1e3,
            target=0.8 * bare / 1e3,
            unit="k/s",
            more_is_better=True,
        ),
        *passes,
    ]


def bare_simpy(program: "Program") -> tuple[int, float]:
    """Events and seconds of the program written down in simpy by hand, without any record of its times."""
    import simpy

    environment = simpy.Environment()
    tasks = program.tasks
    waits = [[before for before in task.after if tasks[before].stream != task.stream] for task in tasks]
    delays: list[Any] = [task.lead_s + task.duration_s for task in tasks]
    ended = {before: environment.event() for needed in waits for before in needed}

    def drain(queue: Sequence[int]) -> Generator[simpy.Event, None, None]:
        for index in queue:
            for before in waits[index]:
                if not ended[before].processed:
                    yield ended[before]
            yield environment.timeout(delays[index])
            if index in ended:
                ended[index].succeed()

    for queue in program.queues():
        if queue:
            environment.process(drain(queue))
    return timed(environment)


def own_engine(program: "Program") -> tuple[int, float]:
    """Events and seconds of the simpy engine."""
    import simpy

    from ladder_sim.des.stream import Clocks, drain

    environment = simpy.Environment()
    clocks = Clocks(environment, program)
    for stream, queue in enumerate(program.queues()):
        if queue:
            environment.process(drain(clocks, stream, queue))
    return timed(environment)


def timed(environment: "simpy.Environment") -> tuple[int, float]:
    start = time.perf_counter()
    environment.run()
    seconds = time.perf_counter() - start
    # every event that was ever scheduled took a number
    return next(environment._eid), seconds


def rate(count: int, seconds: float) -> float:
    return count / seconds


def interleaved_rates(*calls: Callable[[], tuple[int, float]]) -> list[float]:
    """Median rate of each call, taken in turns so that a busy machine slows all alike."""
    rates = [[rate(*call()) for call in calls] for _ in range(WARM_RUNS)]
    return [statistics.median(column) for column in zip(*rates, strict=True)]


def quietly(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")


def median_s(call: Callable[[], object], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'at least' if figure.more_is_better else 'at most'} {shown(figure.target)}"


def page(found: list[Figure]) -> str:
    rows = [f"| {one.name} | {shown(one.value)} {one.unit} | {target(one)} | {one.verdict} |" for one in found]
    versions = (
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
    )
    return "\n".join(
        [
            "# Performance",
            "",
            f"Written by `python benchmarks/speed.py --page docs/performance.md` ({versions}).",
            f"Medians: cold figures over {COLD_RUNS} fresh processes, warm ones over {WARM_RUNS} calls. The machine is",
            "shared, so figures vary by some ten percent from run to run; the two event rates are taken in turns.",
            "",
            "| what | measured | target | |",
            "|---|---|---|---|",
            *rows,
            "",
            "A batch varies in-node bandwidth and latency, memory bandwidth and tensor-core peak at random; kernels",
            "and collectives share the GPU in it. Both engines give the same times:",
            "`python benchmarks/engines_agree.py` runs every model, cluster, stack and variant of the catalog through",
            "both and prints the worst difference.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
