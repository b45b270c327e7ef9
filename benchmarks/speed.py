"""How fast the simulator answers, compared with its targets, as a table or as docs/performance.md.

Cold figures are medians over fresh processes, so they include the start of the interpreter. Timings depend on the
machine and on its load, so a figure that misses its target is marked and does not fail::

    python benchmarks/speed.py [--json]
    python benchmarks/speed.py --page docs/performance.md

The page also holds the figures of ``sweeps.py``; what it says of other simulators is kept.
"""

import argparse
import dataclasses
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import sweeps
from figure import Figure, as_json, as_table, median_s, quietly, rate

if TYPE_CHECKING:
    import simpy

    from ladder_sim.des.program import Program

IMPORT = [sys.executable, "-c", "import ladder_sim"]
COMMAND = [sys.executable, "-m", "ladder_sim", "predict", "--model", "405b", "--nodes", "2"]
# 1,245 plans
ADVISE = [sys.executable, "-m", "ladder_sim", "advise", "--model", "qwen3-235b-a22b", "--gpus", "128"]
COLD_RUNS = 7
WARM_RUNS = 41
# kinds of hardware in one batch
CONFIGURATIONS = 32_768
EVERY_LAYER = 10**6


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure speed and memory, and compare them with their targets.")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")
    parser.add_argument("--page", type=Path, help="write the figures, and those of sweeps, as a Markdown page")
    arguments = parser.parse_args()
    figures = cold_figures()
    # a child's peak memory counts from what its parent had at the fork, so this process imports the package last
    swept = sweeps.measure() if arguments.page else []
    figures += [*warm_predictions(), *own_graphs(), *growth(), *techniques(), *batches(), *events()]
    if arguments.page:
        _, heading, others = arguments.page.read_text("utf-8").partition("## Compared with other simulators\n")
        arguments.page.write_text(page(figures, swept) + heading + others, encoding="utf-8")
    print(as_json([*figures, *swept]) if arguments.json else "\n".join(as_table([*figures, *swept])))
    return 0


def cold_figures() -> list[Figure]:
    import_s = median_s(lambda: quietly(IMPORT), COLD_RUNS)
    command_s = median_s(lambda: quietly(COMMAND), COLD_RUNS)
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    advise_s = median_s(lambda: quietly([*ADVISE, "--concurrency", "256"]), 1)
    return [
        Figure(name="import ladder_sim", value=import_s * 1e3, target=300, unit="ms"),
        Figure(name="predict --model 405b --nodes 2, fresh process", value=command_s * 1e3, target=1500, unit="ms"),
        Figure(name="the same, peak memory", value=peak_bytes / 1e6, target=300, unit="MB"),
        Figure(
            name="advise over 1,245 plans of Qwen3-235B on 128 GPUs, a thousand of them",
            value=advise_s / 1.245,
            target=10,
            unit="s",
        ),
    ]


def warm_predictions() -> list[Figure]:
    """One prediction of the four default variants in a running process, of another bandwidth each time."""
    from ladder_sim import Scenario, predict
    from ladder_sim.answer import Prediction

    def read(predictions: dict[str, Prediction]) -> None:
        for prediction in predictions.values():
            _ = prediction.breakdown, prediction.confidence.measured_fraction, prediction.confidence.warnings

    def intervals(predictions: dict[str, Prediction]) -> None:
        for prediction in predictions.values():
            _ = prediction.speedup

    def measured(
        name: str, bound: float | None = None, *, then: Any = None, engine: Any = "fast", **fields: Any
    ) -> Figure:
        link = "inter" if "nodes" in fields else "intra"
        speeds = (f"{40 + 0.25 * number} GB/s" for number in range(WARM_RUNS + 1))
        each = [Scenario.of(**fields, overrides={f"{link}.bandwidth": speed}) for speed in speeds]
        left = iter(each)

        def answer() -> None:
            predictions = predict(next(left), engine=engine)
            if then:
                then(predictions)

        answer()
        return Figure(name=name, value=1e3 * median_s(answer, WARM_RUNS), target=bound, unit="ms")

    two_nodes = {"model": "405b", "nodes": 2, "stack": "gpt-fast"}
    return [
        measured("predict() of four variants, warm, 405b on two nodes, gpt-fast", 2, **two_nodes),
        measured("the same, and every breakdown read", then=read, **two_nodes),
        measured("the same, and every interval", then=intervals, **two_nodes),
        measured("predict() of the same, vllm", **{**two_nodes, "stack": "vllm"}),
        measured("predict() of the same, gpt-fast, engine des", 200, engine="des", **two_nodes),
        measured("predict() of DeepSeek-V3 on 16 GPUs, vllm", 6, model="deepseek-v3", nodes=2, stack="vllm"),
        *(
            measured(
                f"predict() of 64 requests in flight, 70b on 8 GPUs, {stack}",
                5,
                model="70b",
                stack=stack,
                concurrency=64,
            )
            for stack in ("vllm", "trtllm", "sglang")
        ),
    ]


def own_graphs() -> list[Figure]:
    """What it adds to a warm prediction that a point has kernels of its own, or a graph of its own."""
    from ladder_sim import Scenario, predict

    figures = []
    for model in ("405b", "deepseek-v3"):
        given: dict[str, Any] = {"model": model, "nodes": 2, "tp": 16, "stack": "vllm"}
        shape = Scenario.of(**given).model
        rows = [
            [
                Scenario.of(**given, overrides=overrides)
                for overrides in (
                    {"inter.bandwidth": f"{40 + number} GB/s"},
                    {"model.vocab": str(shape.vocab + 1024 * number)},
                    {"model.layers": str(shape.layers + number)},
                )
            ]
            for number in range(1, WARM_RUNS + 1)
        ]
        predict(rows[0][0], ignore_memory=True)
        # in turns, so that load on the machine slows all equally
        times = [[median_s(partial(predict, each, ignore_memory=True), 1) for each in row] for row in rows]
        warm_s, kernels_s, graph_s = (statistics.median(column) for column in zip(*times, strict=True))
        for what, seconds, target in (("kernels", kernels_s, 2), ("layers", graph_s, None)):
            name = f"what {what} of its own add to predict() of {model} on 16 GPUs, vllm"
            figures.append(Figure(name=name, value=1e3 * (seconds - warm_s), target=target, unit="ms"))
    return figures


def growth() -> list[Figure]:
    """What more layers, ranks and decode steps cost a prediction."""
    from ladder_sim import Scenario, predict

    def ratio(name: str, maximum: float | None, few: dict[str, Any], many: dict[str, Any]) -> Figure:
        # in turns, so that load on the machine slows both equally
        pair = [
            Scenario.of(**{"cluster": "gb200-nvl72", "model": "405b", "stack": "vllm", **more}) for more in (few, many)
        ]
        runs = [[median_s(partial(predict, each, ignore_memory=True), 1) for each in pair] for _ in range(WARM_RUNS)]
        few_s, many_s = (statistics.median(column) for column in zip(*runs[1:], strict=True))
        return Figure(name=name, value=many_s / few_s, target=maximum, unit="")

    layers = ({"tp": 8, "overrides": {"model.layers": str(count)}} for count in (126, 1260))
    return [
        ratio("time of a prediction of 1260 layers over that of 126", 1.2, *layers),
        ratio("time of TP 64 over that of TP 8", 1.2, {"tp": 8}, {"tp": 64}),
        ratio("time of 8192 new tokens over that of 512", None, {"tp": 8}, {"tp": 8, "gen": 8192}),
    ]


def techniques() -> list[Figure]:
    """What techniques cost a prediction: those whose passes are simulated in parts cost most."""
    from ladder_sim import Scenario, predict

    figures = []
    for what, fields in (
        ("70b", {"model": "70b"}),
        ("64 requests in flight, vllm", {"model": "70b", "concurrency": 64}),
        ("a prefill, vllm", {"model": "70b", "stack": "vllm", "gen": 1}),
        ("405b on two nodes", {"model": "405b", "nodes": 2}),
    ):
        link = "inter" if "nodes" in fields else "intra"
        for technique in ("token-split", "fused-norm+token-split"):
            if "fused" in technique and link == "inter":
                continue
            given: list[dict[str, Any]] = [{**fields, "technique": name} for name in ("none", technique)]
            pairs = [
                [Scenario.of(**each, overrides={f"{link}.bandwidth": f"{40 + number / 4} GB/s"}) for each in given]
                for number in range(WARM_RUNS + 1)
            ]
            # in turns, so that load on the machine slows both equally
            times = [[median_s(partial(predict, each), 1) for each in pair] for pair in pairs]
            plain_s, with_s = (statistics.median(column) for column in zip(*times[1:], strict=True))
            name = f"time of a prediction with {technique} over one without, {what}"
            figures.append(Figure(name=name, value=with_s / plain_s, target=1.5, unit=""))
    return figures


def batches() -> list[Figure]:
    """Full requests (prefill and decode over context, four variants counted as one) on many kinds of hardware."""
    import numpy as np

    from ladder_sim import Scenario
    from ladder_sim.costs.profile_file import load_profile
    from ladder_sim.des.program import Program
    from ladder_sim.graph.variants import DEFAULT_VARIANTS
    from ladder_sim.simulate import passes
    from ladder_sim.simulate.lower import lower
    from ladder_sim.simulate.request import simulate_requests

    random = np.random.default_rng(0)
    figures = {
        "intra.bandwidth_Bps": random.uniform(50e9, 900e9, CONFIGURATIONS),
        "intra.allreduce_floor_s": random.uniform(2e-6, 40e-6, CONFIGURATIONS),
        "gpu.hbm_bandwidth_Bps": random.uniform(1e12, 8e12, CONFIGURATIONS),
        "gpu.bf16_flops": random.uniform(2e14, 2e15, CONFIGURATIONS),
    }
    profile = load_profile("h100-sxm")

    def alone(*arguments: Any) -> Program:
        """A pass whose kernels and collectives do not slow each other."""
        return dataclasses.replace(lower(*arguments), device=None)

    rates = []
    for stack in ("gpt-fast", "vllm"):
        scenario = Scenario.of(model="70b", tp=8, stack=stack)

        def per_s() -> float:
            return CONFIGURATIONS / median_s(lambda: simulate_requests(scenario, figures, DEFAULT_VARIANTS, profile), 7)  # noqa: B023

        name = f"requests in a batch of {CONFIGURATIONS:,} kinds of hardware, 70B TP 8, {stack}, one process"
        rates.append(rate(name, per_s(), 50_000))
        with mock.patch.object(passes, "lower", alone):
            rates.append(rate("the same, nothing shared", per_s(), 100_000))
    return rates


def events() -> list[Figure]:
    """Event rate of the simpy engine and of a bare simpy program of the same events: every layer of 405B's ladder."""
    from ladder_sim import Scenario
    from ladder_sim.costs.kernels import KernelCosts
    from ladder_sim.costs.profile_file import load_profile
    from ladder_sim.des import engine, scan
    from ladder_sim.simulate.passes import simulate

    scenario = Scenario.of(model="405b", nodes=2, variant="ladder")
    costs = KernelCosts(scenario, load_profile("h100-sxm"))
    _, program = simulate(scenario, "decode", 1025, costs).lowered(EVERY_LAYER)
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

    from ladder_sim.des.engine import Clocks, drain

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


def interleaved_rates(*calls: Callable[[], tuple[int, float]]) -> list[float]:
    """Median rate of each call, taken in turns so that load on the machine slows all equally."""
    rates = [[count / seconds for count, seconds in (call() for call in calls)] for _ in range(WARM_RUNS)]
    return [statistics.median(column) for column in zip(*rates, strict=True)]


def page(figures: Sequence[Figure], swept: Sequence[Figure]) -> str:
    versions = (
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
    )
    return "\n".join(
        [
            "# Performance",
            "",
            f"Written by `python benchmarks/speed.py --page docs/performance.md` ({versions}).",
            f"Medians: cold figures over {COLD_RUNS} fresh processes, warm ones over {WARM_RUNS} calls. The machine is",
            "shared, so figures vary by about ten percent from run to run; those to be compared are measured in turns.",
            "",
            *as_table(figures),
            "",
            "Each warm prediction has another bandwidth; only graphs and tables are kept from call to call.",
            "A point with kernels of its own, as of another plan, has another vocabulary here: their order along the",
            "layers is known. One with layers of its own, as of another model or of other pipeline stages, has another",
            "number of them.",
            "Breakdowns and intervals are computed when they are read. A batch varies in-node bandwidth and",
            "latency, memory bandwidth and tensor-core peak at random; kernels and collectives share the GPU unless",
            'the row says "nothing shared". Both engines give the same times: `python benchmarks/engines_agree.py`',
            "runs every model, cluster, stack and variant of the catalog through both and prints the largest",
            "difference.",
            "",
            "## Sweeps",
            "",
            *as_table(swept),
            "",
            "Every sweep starts in a fresh process, uses two worker processes and writes CSV; times include the",
            "start of all three. A point is one request (prefill and decode over context) of four variants, with",
            "kernels and collectives sharing the GPU.",
            "",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
